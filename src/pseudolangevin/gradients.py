"""Mini-batch gradients, and exact energies and gradients over the full data set.

Energies are compensated sums: a pair (high, low) whose exact value is high + low. Adding to a pair loses nothing down
to about the square of the machine epsilon (Knuth's two-sum). A Metropolis step needs U to a fraction of T: at T = 1e-6
and U ≈ 0.2, plain float32 sums are not precise enough.

**Convolutions in compiled loops on a CPU.**

XLA's fast CPU convolution takes images (N, H, W, C), kernels (H, W, I, O) and no groups. Other layouts, such as those
of the gradient with respect to a kernel, are rearranged by XLA outside loops only; inside a loop, where all steps and
sums over chunks are, they run five to ten times slower. So the operands are rearranged here. Chains with their own
kernels are convolved one after the other, because the mapped convolution has groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal, primitives

from . import _trees as trees
from ._trees import Array, Batch, PerExample, Weights
from .data.dataset import Dataset, fold_chunks
from .potential import Potential

DEFAULT_CHUNK_SIZE = 4096  # examples held at once in a pass over all of them


def default_chunk_size(chunk_size: int | None, weights: Weights, function: Callable, dataset: Dataset) -> int:
    """Return `chunk_size`, or the default: 4096 examples, eight times as many for a small network on a GPU.

    Fewer if the intermediate arrays of `function(weights, batch)` would exceed 4 MiB (the cache), or 256 MiB on a GPU.
    """
    if chunk_size is not None:
        return chunk_size
    on_gpu = jax.default_backend() == "gpu"
    size = 8 * DEFAULT_CHUNK_SIZE if on_gpu and trees.num_weights(weights) <= 2**17 else DEFAULT_CHUNK_SIZE

    def num_bytes(num_examples: int) -> int:
        program = jax.make_jaxpr(function)(weights, dataset.shapes(num_examples)).jaxpr
        results = [variable.aval for equation in _equations(program) for variable in equation.outvars]
        return sum(math.prod(array.shape) * array.dtype.itemsize for array in results)

    return max(1, min(size, (2**28 if on_gpu else 2**22) // max(1, num_bytes(2) - num_bytes(1))))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["velocity", "temperature", "gain", "limit"],
    meta_fields=["strength", "num_kicked", "num_examples"],
)
@dataclass(frozen=True)
class Friction:
    """The friction of balanced Langevin, as coefficients of the losses of examples; see `samplers.balanced`.

    With the slopes a_i = g_i·v/T of the first B examples, loss i has the coefficient gain·strength·(a_i − ā), reduced
    if Σ(a_i − ā)² exceeds the limit.
    """

    velocity: Weights
    temperature: Array
    gain: Array
    limit: Array | float
    strength: float
    num_kicked: int  # examples S of the gradient: the first ones of the batch
    num_examples: int  # examples B of the friction: the first ones of the batch

    def coefficients(self, loss: PerExample, weights: Weights, batch: Batch) -> Array:
        """Return the coefficients of gradient and friction together, one for each example of the batch."""
        few = jax.tree.map(lambda array: array[: self.num_examples], batch)

        def along(weights: Weights, velocity: Weights) -> Array:
            return jax.jvp(lambda w: loss(w, few), (weights,), (velocity,))[1]

        scaled = fast_convolutions(along)(weights, self.velocity) / self.temperature
        total, squares = jnp.sum(scaled), jnp.sum(scaled**2)
        variation = jnp.maximum(squares - total**2 / self.num_examples, 1e-30)
        bound = jnp.minimum(1.0, self.limit / variation)
        num, kick = max(self.num_kicked, self.num_examples), jnp.full((self.num_kicked,), 1 / self.num_kicked)
        own = self.gain * bound * self.strength * (scaled - total / self.num_examples)
        return jnp.pad(kick.astype(own.dtype), (0, num - kick.size)) + jnp.pad(own, (0, num - own.size))


def minibatch_gradient(
    potential: Potential,
    weights: Weights,
    batch: Batch,
    precision: str | None = None,
    *,
    friction: Friction | None = None,
    split: bool = False,
) -> Weights:
    """Return ∇U on a batch (eq:MiniBatchGradientDefinition), plus a friction if there is one.

    `precision` is that of the matrix products ("highest", "tensorfloat32"…; None is the device's fastest). The faster
    versions of networks do not apply where chains, data or weights are `split` over several devices.
    """

    def plain(weights: Weights, batch: Batch, friction: Friction | None) -> Weights:
        with jax.default_matmul_precision(precision):
            weighted: Any = None
            if friction is not None:
                weighted = friction.coefficients(potential.per_example_loss, weights, batch)

            def loss(weights: Weights) -> Array:
                losses = potential.per_example_loss(weights, batch)
                return jnp.mean(losses) if weighted is None else jnp.sum(weighted * losses)

            return fast_convolutions(jax.grad(loss))(weights)

    faster = {} if split or potential.gradient is None else potential.gradient(weights, batch, precision)
    arguments = (weights, batch, friction)  # platforms: those that the program may be compiled for
    found = lax.platform_dependent(*arguments, default=plain, **faster) if faster else plain(*arguments)
    return potential.add_regularizer_gradient(weights, found)


def covariance_product(
    potential: Potential, weights: Weights, batch: Batch, precision: str | None = None
) -> Callable[[Weights], tuple[Weights, Array]]:
    """Return the product v ↦ Σ·v with the covariance Σ of the gradient of one example, estimated on a batch.

    With slopes a_i = g_i·v for the gradients g_i of B examples, Σ·v = Σ_i (a_i − ā)·g_i/(B − 1), with no matrix and
    O(N) memory. Divide by S for the covariance of the mean of S examples. The product also returns a_i − ā.
    """
    with jax.default_matmul_precision(precision):
        losses, along = jax.linearize(lambda w: potential.per_example_loss(w, batch), weights)
        back = jax.linear_transpose(along, weights)

    @fast_convolutions
    def product(vector: Weights) -> tuple[Weights, Array]:
        with jax.default_matmul_precision(precision):
            centred = along(vector)
            centred = centred - jnp.mean(centred)
            return back(centred / (losses.shape[0] - 1))[0], centred

    return product


class ExactSums(NamedTuple):
    """Averages over the full data set, from one visit to every example."""

    loss: Sum
    """Mean loss, without the regulariser."""
    error: Array
    """Mean of `per_example_error`; NaN if the potential has none."""
    gradient: Weights
    """Gradient ∇U, regulariser included; None if it was not requested."""
    dead_class: Array | None
    """Whether the score of each class is the same for every example or, if scores are nowhere negative (ReLU), for all
    but one in a thousand; None for potentials without classes."""


def exact_sums(
    potential: Potential, weights: Weights, dataset: Dataset, chunk_size: int | None, *, with_gradient: bool = True
) -> ExactSums:
    """Return mean loss, mean error, ∇U and the dead classes over the full data set, with float32 products."""
    errors, scores = potential.per_example_error, potential.class_scores
    num_classes = 0 if scores is None else jax.eval_shape(scores, weights, dataset.shapes(1)[0]).shape[-1]
    num = dataset.num_examples

    def fold(carry: tuple, batch: Batch, mask: Array) -> tuple:
        loss, error, gradient, low, high, positive = carry
        losses, pull_back = jax.vjp(lambda w: potential.per_example_loss(w, batch), weights)
        if with_gradient:
            gradient = jax.tree.map(jnp.add, gradient, pull_back(mask.astype(losses.dtype))[0])
        if errors is not None:
            error = error + jnp.sum(jnp.where(mask, errors(weights, batch), 0.0))
        if scores is not None:
            found = scores(weights, batch[0])
            low, high = jnp.minimum(low, jnp.min(found, axis=0)), jnp.maximum(high, jnp.max(found, axis=0))
            positive = positive + jnp.sum(mask[:, None] & (found > 0), axis=0, dtype=jnp.int32)
        return add(loss, total(jnp.where(mask, losses, 0.0))), error, gradient, low, high, positive

    carry = (
        Sum(jnp.zeros(()), jnp.zeros(())),
        jnp.full((), jnp.nan) if errors is None else jnp.zeros(()),
        jax.tree.map(jnp.zeros_like, weights) if with_gradient else None,
        jnp.full((num_classes,), jnp.inf),
        jnp.full((num_classes,), -jnp.inf),
        jnp.zeros((num_classes,), jnp.int32),
    )
    folded = _fold(fold, carry, potential.per_example_loss, weights, dataset, chunk_size)
    loss, error, gradient, low, high, positive = folded
    if with_gradient:
        gradient = potential.add_regularizer_gradient(weights, jax.tree.map(lambda g: g / num, gradient))
    # A class that is learned has a positive score for its own examples and many others. A class with fewer than one in
    # a thousand examples may be taken for dead.
    dead = (high == low) | ((low >= 0) & (positive < 1e-3 * num))
    return ExactSums(scale(loss, 1 / num), error / num, gradient, dead if num_classes else None)


def exact_means(
    per_example: Sequence[PerExample], weights: Weights, dataset: Dataset, chunk_size: int | None
) -> list[Sum]:
    """Return the means of per-example quantities over the full data set, in one forward pass with float32 products."""

    def fold(totals: list[Sum], batch: Batch, mask: Array) -> list[Sum]:
        values = [jnp.where(mask, quantity(weights, batch), 0.0) for quantity in per_example]
        return [add(t, total(v)) for t, v in zip(totals, values, strict=True)]

    start = [Sum(jnp.zeros(()), jnp.zeros(())) for _ in per_example]
    totals = _fold(fold, start, per_example[0], weights, dataset, chunk_size)
    return [scale(value, 1 / dataset.num_examples) for value in totals]


def _fold(fold: Any, carry: Any, function: Callable, weights: Weights, dataset: Dataset, chunk_size: int | None) -> Any:
    with jax.default_matmul_precision("highest"):
        chunk_size = default_chunk_size(chunk_size, weights, function, dataset)
        return fold_chunks(fast_convolutions(fold), carry, dataset, chunk_size)


def exact_energy(potential: Potential, weights: Weights, dataset: Dataset, chunk_size: int | None = None) -> Sum:
    """Return U on the full data set, regulariser included, precise enough for Metropolis.

    Differences, by `difference`, are limited by the rounding of the single losses, to about 1e-9 on 50 000 examples.
    """
    (loss,) = exact_means([potential.per_example_loss], weights, dataset, chunk_size)
    for values, factor, squared in potential.regularizer_terms(weights):
        loss = add(loss, scale(total(product(values, values) if squared else values), factor))
    return loss


class Sum(NamedTuple):
    """The unevaluated sum high + low."""

    high: Array
    low: Array


def _two_sum(a: Array, b: Array) -> Sum:
    rounded = a + b
    shadow = rounded - a
    return Sum(rounded, (a - (rounded - shadow)) + (b - shadow))


def add(left: Sum, right: Sum) -> Sum:
    """Return the sum of two compensated sums."""
    rounded = _two_sum(left.high, right.high)
    return _two_sum(rounded.high, rounded.low + left.low + right.low)


def difference(left: Sum, right: Sum) -> Array:
    """Return left − right as a plain number, exact to the rounding of the small result."""
    result = add(left, Sum(-right.high, -right.low))
    return result.high + result.low


def scale(value: Sum, factor: Array | float) -> Sum:
    """Return the sum times a number, whose own rounding changes the unit of every sum that is scaled by it."""
    factor = jnp.asarray(factor, value.high.dtype)
    return add(product(value.high, factor), Sum(value.low * factor, jnp.zeros_like(value.low)))


def total(values: Array | Sum) -> Sum:
    """Return the sum of all entries of an array, or of an array of compensated sums."""
    pairs = values if isinstance(values, Sum) else Sum(values, jnp.zeros_like(values))
    zero = jnp.zeros((), pairs.high.dtype)
    flat = tuple(map(jnp.ravel, pairs))
    return Sum(*lax.reduce(flat, (zero, zero), lambda left, right: tuple(add(Sum(*left), Sum(*right))), (0,)))


def product(a: Array, b: Array) -> Sum:
    """Return a·b with its rounding error: products of halves of the mantissas (Veltkamp) are exact (Dekker)."""

    def halves(x: Array) -> tuple[Array, Array]:
        mantissa_bits = jnp.finfo(x.dtype).nmant + 1
        shifted = x * (2.0 ** ((mantissa_bits + 1) // 2) + 1.0)
        high = shifted - (shifted - x)
        return high, x - high

    rounded, (a_high, a_low), (b_high, b_low) = a * b, halves(a), halves(b)
    return Sum(rounded, ((a_high * b_high - rounded) + a_high * b_low + a_low * b_high) + a_low * b_low)


def fast_convolutions(function: Callable) -> Callable:
    """Return the same function with its convolutions rearranged for a CPU; a function without any is unchanged.

    Wrap the gradient, not the loss: the result cannot be differentiated. Mapped convolutions run one after the other.
    """
    if jax.default_backend() != "cpu":
        return function

    def rearranged(*arguments: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if all(equation.primitive is not primitives.conv_general_dilated_p for equation in _equations(closed.jaxpr)):
            return function(*arguments)
        outputs = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return rearranged


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a program and of the compiled functions that it calls, without those inside loops."""
    for equation in jaxpr.eqns:
        yield equation
        if (inner := _inner(equation)) is not None:
            yield from _equations(inner.jaxpr)


def _inner(equation: Any) -> Any:
    """Return the program of a compiled function that is called by the equation, or None."""
    return equation.params["jaxpr"] if equation.primitive.name in ("jit", "pjit") else None


def _evaluate(jaxpr: Any, constants: Any, arguments: list[Any]) -> list[Any]:
    values = dict(zip(jaxpr.constvars, constants, strict=True)) | dict(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        inner = _inner(equation)
        results = _evaluate(inner.jaxpr, inner.consts, operands) if inner else _apply(equation, operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(equation: Any, operands: list[Any]) -> list[Any]:
    if equation.primitive is primitives.conv_general_dilated_p:
        return [_convolve(*operands, **equation.params)]
    bound = equation.primitive.get_bind_params(equation.params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)  # a pair in some versions of JAX
    with equation.ctx.manager:
        results = equation.primitive.bind(*functions, *operands, **params)
    return results if equation.primitive.multiple_results else [results]


def _convolve(left: Array, right: Array, *, dimension_numbers: Any, **params: Any) -> Array:
    """Return a convolution, computed with the images as (N, H, W, C) and the kernel as (H, W, I, O)."""
    image, kernel, output = dimension_numbers
    num = len(image)
    channels_last = (0, num - 1, *range(1, num - 1))
    canonical = lax.ConvDimensionNumbers(channels_last, (num - 1, num - 2, *range(num - 2)), channels_last)
    last = [(spec[0], *spec[2:], spec[1]) for spec in (image, output)]

    def plain(left: Array, right: Array) -> Array:
        return primitives.conv_general_dilated_p.bind(left, right, dimension_numbers=canonical, **params)

    convolution: Any = jax.custom_batching.custom_vmap(plain)

    @convolution.def_vmap
    def one_after_the_other(size: int, batched: list[bool], left: Array, right: Array) -> tuple[Array, bool]:
        if all(batched):
            return lax.map(lambda pair: convolution(*pair), (left, right)), True
        return jax.vmap(plain, in_axes=tuple(0 if b else None for b in batched))(left, right), True

    result = convolution(lax.transpose(left, last[0]), lax.transpose(right, (*kernel[2:], kernel[1], kernel[0])))
    return lax.transpose(result, [last[1].index(axis) for axis in range(num)])
