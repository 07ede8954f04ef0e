"""Convolutions in compiled loops on a CPU.

XLA's fast CPU convolution takes images (N, H, W, C), kernels (H, W, I, O) and no groups. Other layouts, such as those
of the gradient with respect to a kernel, are rearranged by XLA outside loops only; inside a loop, where all steps and
sums over chunks are, they run five to ten times slower. So the operands are rearranged here. Chains with their own
kernels are convolved one after the other, because the mapped convolution has groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.extend.core import Literal, primitives

from ._trees import Array


def fast_convolutions(function: Callable, *, mapped: bool = True) -> Callable:
    """Return the same function with its convolutions rearranged for a CPU; a function without any is unchanged.

    Wrap the gradient, not the loss: the convolutions of the gradient are the slow ones.

    Args:
        function: maps pytrees of arrays to pytrees of arrays.
        mapped: whether mapped convolutions run one after the other; the function cannot be differentiated then.
    """
    if jax.default_backend() != "cpu":
        return function

    def rearranged(*arguments: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if not _has_convolutions(closed.jaxpr):
            return function(*arguments)
        outputs = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(arguments), mapped, {})
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return rearranged


def _has_convolutions(jaxpr: Any) -> bool:
    inner = (_inner(equation) for equation in jaxpr.eqns)
    return any(e.primitive is primitives.conv_general_dilated_p for e in jaxpr.eqns) or any(
        closed is not None and _has_convolutions(closed.jaxpr) for closed in inner
    )


def _inner(equation: Any) -> Any:
    """Return the program of a compiled function that is called by the equation, or None."""
    return equation.params["jaxpr"] if equation.primitive.name in ("jit", "pjit") else None


def _evaluate(jaxpr: Any, constants: Any, arguments: list[Any], mapped: bool, known: dict[Any, Any]) -> list[Any]:
    """Evaluate a program, each equation once: XLA does not merge equal convolutions of chains, which are loops.

    `known` maps equations that were evaluated to their results; it also keeps the operands, so that ids stay unique.
    """
    values = dict(zip(jaxpr.constvars, constants, strict=True)) | dict(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        if (inner := _inner(equation)) is not None:
            results = _evaluate(inner.jaxpr, inner.consts, operands, mapped, known)
        else:
            names = [repr((a.val, a.aval)) if isinstance(a, Literal) else id(values[a]) for a in equation.invars]
            same = (equation.primitive, repr(equation.params), *names)
            if same not in known:
                known[same] = _apply(equation, operands, mapped), operands
            results = known[same][0]
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(equation: Any, operands: list[Any], mapped: bool) -> list[Any]:
    if equation.primitive is primitives.conv_general_dilated_p:
        return [_convolve(*operands, mapped=mapped, **equation.params)]
    bound = equation.primitive.get_bind_params(equation.params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)  # a pair in some versions of JAX
    with equation.ctx.manager:
        results = equation.primitive.bind(*functions, *operands, **params)
    return results if equation.primitive.multiple_results else [results]


def _convolve(left: Array, right: Array, *, mapped: bool, dimension_numbers: Any, **params: Any) -> Array:
    """Return a convolution, computed with the images as (N, H, W, C) and the kernel as (H, W, I, O)."""
    image, kernel, output = dimension_numbers
    num = len(image)
    channels_last = (0, num - 1, *range(1, num - 1))
    canonical = lax.ConvDimensionNumbers(channels_last, (num - 1, num - 2, *range(num - 2)), channels_last)
    last = [(spec[0], *spec[2:], spec[1]) for spec in (image, output)]

    def plain(left: Array, right: Array) -> Array:
        return primitives.conv_general_dilated_p.bind(left, right, dimension_numbers=canonical, **params)

    convolution = one_by_one(plain) if mapped else plain
    result = convolution(lax.transpose(left, last[0]), lax.transpose(right, (*kernel[2:], kernel[1], kernel[0])))
    return lax.transpose(result, [last[1].index(axis) for axis in range(num)])


def one_by_one(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Return a function that, mapped over both arguments, is computed for one pair after the other."""
    called = jax.custom_batching.custom_vmap(function)

    @called.def_vmap
    def rule(size: int, batched: list[bool], left: Array, right: Array) -> tuple[Array, bool]:
        if all(batched):
            return lax.map(lambda pair: called(*pair), (left, right)), True
        return jax.vmap(function, in_axes=tuple(0 if b else None for b in batched))(left, right), True

    return called
