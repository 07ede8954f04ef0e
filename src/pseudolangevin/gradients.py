"""Mini-batch gradients, and exact energies and gradients over the full data set.

Energies are compensated sums: a pair (high, low) whose exact value is high + low. Adding to a pair loses nothing down
to about the square of the machine epsilon (Knuth's two-sum). A Metropolis step needs U to a fraction of T: at T = 1e-6
and U ≈ 0.2, plain float32 sums are not precise enough.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from . import _trees as trees
from ._convolutions import fast_convolutions
from ._trees import Array, Batch, PerExample, Weights
from .data.dataset import Dataset, fold_chunks
from .potential import Potential

DEFAULT_CHUNK_SIZE = 4096  # examples held at once in a pass over all of them


def default_chunk_size(chunk_size: int | None, weights: Weights, function: Callable, dataset: Dataset) -> int:
    """Return `chunk_size`, or the default: 4096 examples, eight times as many for a small network on a GPU.

    Fewer if the intermediate arrays of `function(weights, batch)` would exceed 32 MiB, which caches of a CPU hold in
    part, or 256 MiB on a GPU.
    """
    if chunk_size is not None:
        return chunk_size
    on_gpu = jax.default_backend() == "gpu"
    size = 8 * DEFAULT_CHUNK_SIZE if on_gpu and trees.num_weights(weights) <= 2**17 else DEFAULT_CHUNK_SIZE
    one, two = (_bytes(jax.make_jaxpr(function)(weights, dataset.shapes(num)).jaxpr) for num in (1, 2))
    return max(1, min(size, (2**28 if on_gpu else 2**25) // max(1, two - one)))


def _bytes(jaxpr: Any) -> int:
    """Return the size of all arrays that a program computes, without those inside loops."""
    results = [variable.aval for equation in jaxpr.eqns for variable in equation.outvars]
    inner = [e.params["jaxpr"].jaxpr for e in jaxpr.eqns if e.primitive.name in ("jit", "pjit")]
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in results) + sum(map(_bytes, inner))


def minibatch_gradient(
    potential: Potential,
    weights: Weights,
    batch: Batch,
    precision: str | None = None,
    *,
    coefficients: Array | None = None,
    split: bool = False,
) -> Weights:
    """Return ∇U on a batch (eq:MiniBatchGradientDefinition).

    Args:
        potential: U.
        weights: weights of one chain.
        batch: inputs and targets.
        precision: precision of the matrix products ("highest", "tensorfloat32", "bfloat16"…); None is the fastest that
            the device has. Rounding is one more small gradient noise.
        coefficients: coefficient of the loss of each example; default: one over the number of examples.
        split: whether chains, data or weights are split over several devices.
    """
    if potential.gradient is not None:
        gradient = potential.gradient(weights, batch, coefficients, precision, split)
    else:
        with jax.default_matmul_precision(precision):
            gradient = fast_convolutions(
                jax.grad(lambda w, b: weighted_loss(w, potential.per_example_loss, b, coefficients))
            )(weights, batch)
    return potential.add_regularizer_gradient(weights, gradient)


def weighted_loss(weights: Weights, per_example_loss: PerExample, batch: Batch, coefficients: Array | None) -> Array:
    """Return the sum of the losses of a batch with these coefficients, or their mean without."""
    losses = per_example_loss(weights, batch)
    return jnp.mean(losses) if coefficients is None else jnp.sum(coefficients * losses)


def slopes(
    potential: Potential,
    weights: Weights,
    velocity: Weights,
    batch: Batch,
    precision: str | None = None,
    *,
    split: bool = False,
) -> Array:
    """Return g_i·v, the derivative of the loss of each example along a velocity v."""
    if potential.slopes is not None:
        return potential.slopes(weights, velocity, batch, precision, split)
    with jax.default_matmul_precision(precision):
        return jax.jvp(lambda w: potential.per_example_loss(w, batch), (weights,), (velocity,))[1]


def covariance_product(
    potential: Potential, weights: Weights, batch: Batch, precision: str | None = None
) -> Callable[[Weights], tuple[Weights, Array]]:
    """Return the product v ↦ Σ·v with the covariance Σ of the gradient of one example, estimated on a batch.

    With slopes a_i = g_i·v for the gradients g_i of B examples, Σ·v = Σ_i (a_i − ā)·g_i/(B − 1): one Jacobian-vector
    product of the per-example losses and one vector-Jacobian product, with no matrix and O(N) memory. Divide by S for
    the covariance of the mean of S examples. The product also returns a_i − ā.
    """
    with jax.default_matmul_precision(precision):
        loss = fast_convolutions(potential.per_example_loss, mapped=False)
        losses, along = jax.linearize(lambda w: loss(w, batch), weights)
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
    """Gradient ∇U, regulariser included; None if it was not asked for."""
    dead_class: Array | None
    """Whether the score of each class is the same for every example or, if scores are nowhere negative (ReLU), for all
    but one in a thousand; None for potentials without classes."""


def exact_sums(
    potential: Potential, weights: Weights, dataset: Dataset, chunk_size: int | None, *, with_gradient: bool = True
) -> ExactSums:
    """Return mean loss, mean error, ∇U and the dead classes over the full data set, with float32 products."""

    def chunk_loss(weights: Weights, batch: Batch, mask: Array) -> tuple[Array, Array]:
        losses = jnp.where(mask, potential.per_example_loss(weights, batch), 0.0)
        return jnp.sum(losses), losses

    @fast_convolutions
    def fold(carry: tuple, batch: Batch, mask: Array) -> tuple:
        loss, error, gradient, low, high, positive = carry
        if with_gradient:
            (_, losses), chunk_gradient = jax.value_and_grad(chunk_loss, has_aux=True)(weights, batch, mask)
            gradient = jax.tree.map(jnp.add, gradient, chunk_gradient)
        else:
            _, losses = chunk_loss(weights, batch, mask)
        loss = add(loss, total(losses))
        if potential.per_example_error is not None:
            error = error + jnp.sum(jnp.where(mask, potential.per_example_error(weights, batch), 0.0))
        if potential.class_scores is not None:
            scores = potential.class_scores(weights, batch[0])
            low, high = jnp.minimum(low, jnp.min(scores, axis=0)), jnp.maximum(high, jnp.max(scores, axis=0))
            positive = positive + jnp.sum(mask[:, None] & (scores > 0), axis=0, dtype=jnp.int32)
        return loss, error, gradient, low, high, positive

    num_classes = 0
    if potential.class_scores is not None:
        num_classes = jax.eval_shape(potential.class_scores, weights, dataset.shapes(1)[0]).shape[-1]
    error = jnp.zeros(()) if potential.per_example_error is not None else jnp.full((), jnp.nan)
    low, high = jnp.full((num_classes,), jnp.inf), jnp.full((num_classes,), -jnp.inf)
    gradient = trees.zeros_like(weights) if with_gradient else None
    carry = (zero_sum(), error, gradient, low, high, jnp.zeros((num_classes,), jnp.int32))
    with jax.default_matmul_precision("highest"):
        chunk_size = default_chunk_size(chunk_size, weights, potential.per_example_loss, dataset)
        loss, error, gradient, low, high, positive = fold_chunks(fold, carry, dataset, chunk_size)
    num = dataset.num_examples
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

    @fast_convolutions
    def fold(totals: list[Sum], batch: Batch, mask: Array) -> list[Sum]:
        values = [jnp.where(mask, quantity(weights, batch), 0.0) for quantity in per_example]
        return [add(t, total(v)) for t, v in zip(totals, values, strict=True)]

    with jax.default_matmul_precision("highest"):
        zeros = [zero_sum() for _ in per_example]
        chunk_size = default_chunk_size(chunk_size, weights, per_example[0], dataset)
        totals = fold_chunks(fold, zeros, dataset, chunk_size)
    return [scale(value, 1 / dataset.num_examples) for value in totals]


def exact_energy(potential: Potential, weights: Weights, dataset: Dataset, chunk_size: int | None = None) -> Sum:
    """Return U on the full data set, regulariser included, precise enough for Metropolis.

    Differences of two such energies, by `difference`, are limited by the rounding of the single losses (about 1e-7
    each, of random sign), not by their sum: about 1e-9 on 50 000 examples.
    """
    (loss,) = exact_means([potential.per_example_loss], weights, dataset, chunk_size)
    terms = [
        scale(total_of_squares(values) if squared else total(values), factor)
        for values, factor, squared in potential.regularizer_terms(weights)
    ]
    return functools.reduce(add, terms, loss)


class Sum(NamedTuple):
    """The unevaluated sum high + low."""

    high: Array
    low: Array


def zero_sum() -> Sum:
    """Return the empty sum."""
    return Sum(jnp.zeros(()), jnp.zeros(()))


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
    """Return the sum times a number, with the rounding error of the product.

    The factor itself is rounded to the working precision: a constant relative change of the unit, the same for every
    sum scaled by it, so differences of scaled sums stay as precise as the sums.
    """
    factor_array = jnp.asarray(factor, value.high.dtype)
    product = value.high * factor_array
    error = _product_error(value.high, factor_array, product)
    return _two_sum(product, error + value.low * factor_array)


def total(values: Array) -> Sum:
    """Return the sum of all entries of an array."""
    values = jnp.ravel(values)
    init = (jnp.zeros((), values.dtype), jnp.zeros((), values.dtype))

    def combine(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return add(Sum(*left), Sum(*right))

    return Sum(*lax.reduce((values, jnp.zeros_like(values)), init, combine, (0,)))


def total_of_squares(values: Array) -> Sum:
    """Return the sum of squares of all entries, each square with its rounding error."""
    values = jnp.ravel(values)
    squares = values * values
    return add(total(squares), total(_product_error(values, values, squares)))


def sum_of_squares(tree: Weights) -> Sum:
    """Return |w|² of a pytree as a compensated sum."""
    return functools.reduce(add, [total_of_squares(leaf) for leaf in jax.tree.leaves(tree)])


def _split(a: Array) -> tuple[Array, Array]:
    """Return two halves of the mantissa (Veltkamp), so that products of halves are exact (Dekker)."""
    mantissa_bits = jnp.finfo(a.dtype).nmant + 1
    shifted = a * (2.0 ** ((mantissa_bits + 1) // 2) + 1.0)
    high = shifted - (shifted - a)
    return high, a - high


def _product_error(a: Array, b: Array, product: Array) -> Array:
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
