"""Where gradients come from: the oracles.

An oracle maps (key, weights, dataset) to a gradient of the potential. `minibatch` draws its examples inside the
compiled step and is noisy; `exact` visits every example in order, ignores the key, and has no variance.
A frozen oracle is bound to its examples first, (key, dataset) → (weights → gradient), and is then a deterministic
function of the weights: what a reversible trajectory needs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from . import compensated, fused, trees
from .compensated import Sum
from .data import Dataset, draw_batch, fold_chunks
from .potential import Potential
from .types import Array, Batch, Key, PerExample, Weights

Oracle: TypeAlias = Callable[[Key, Weights, Dataset], Weights]
FrozenOracle: TypeAlias = Callable[[Key, Dataset], Callable[[Weights], Weights]]

DEFAULT_CHUNK_SIZE = 4096
"""Examples held at once when visiting all of them; bounds the memory, not the result."""
LARGEST_DEFAULT = 8 * DEFAULT_CHUNK_SIZE
SMALL_NETWORK = 2**17


def chunk_for(chunk_size: int | None, weights: Weights) -> int:
    """A chunk size that was asked for, or the default: larger for a small network on a GPU, where launches decide."""
    if chunk_size is not None:
        return chunk_size
    small = jax.default_backend() == "gpu" and trees.num_weights(weights) <= SMALL_NETWORK
    return LARGEST_DEFAULT if small else DEFAULT_CHUNK_SIZE


def minibatch(potential: Potential, batch_size: int, precision: str | None = None) -> Oracle:
    """∇U on `batch_size` examples drawn with replacement (eq:MiniBatchGradientDefinition).

    `precision` is that of the matrix products ("highest", "tensorfloat32", "bfloat16"…); None is the fastest way that
    the device has, see `fused`. Rounding is one more small gradient noise.
    """

    def gradient(key: Key, weights: Weights, dataset: Dataset) -> Weights:
        batch = draw_batch(key, dataset, batch_size)
        gradient = fused.loss_gradient(potential, weights, batch, precision, split=dataset.mesh is not None)
        return potential.add_regularizer_gradient(weights, gradient)

    return gradient


def exact(potential: Potential, chunk_size: int | None = None) -> Oracle:
    """∇U on the whole data set, in chunks, with full float32 products."""

    def gradient(key: Key, weights: Weights, dataset: Dataset) -> Weights:
        del key
        return exact_sums(potential, weights, dataset, chunk_size).gradient

    return gradient


def frozen_batch(potential: Potential, batch_size: int, precision: str | None = None) -> FrozenOracle:
    """∇U on one batch of `batch_size` examples, drawn with replacement when the oracle is bound and kept from then on.

    A trajectory that changed its batch on the way could not be run backwards, and Metropolis would be wrong.
    """

    def bind(key: Key, dataset: Dataset) -> Callable[[Weights], Weights]:
        batch = draw_batch(key, dataset, batch_size)

        def gradient(weights: Weights) -> Weights:
            with jax.default_matmul_precision(precision):
                return jax.grad(potential.energy)(weights, batch)

        return gradient

    return bind


def frozen_exact(potential: Potential, chunk_size: int | None = None) -> FrozenOracle:
    """∇U on the whole data set; it has no examples to choose, so nothing to freeze."""
    oracle = exact(potential, chunk_size)
    return lambda key, dataset: lambda weights: oracle(key, weights, dataset)


class ExactSums(NamedTuple):
    """What one visit to every example yields."""

    loss: Sum
    """Mean loss, without the regulariser."""
    error: Array
    """Mean of `per_example_error`; NaN where the potential has none."""
    gradient: Weights
    """∇U, regulariser included."""
    dead_class: Array | None
    """Of every class: whether its score is the same for every example or, where scores are nowhere negative (ReLU), for
    all but one in a thousand. None where there are no classes."""


ALIVE_SHARE = 1e-3
"""Of the examples. A class that is told apart has a positive score for its own and for many others; a rare class, with
fewer examples than this, may be taken for dead."""


def exact_sums(potential: Potential, weights: Weights, dataset: Dataset, chunk_size: int | None) -> ExactSums:
    """Mean loss, mean error, ∇U and the dead classes over the whole data set."""

    def chunk_loss(weights: Weights, batch: Batch, mask: Array) -> tuple[Array, Array]:
        losses = jnp.where(mask, potential.per_example_loss(weights, batch), 0.0)
        return jnp.sum(losses), losses

    def fold(carry: tuple, batch: Batch, mask: Array) -> tuple:
        loss, error, gradient, low, high, positive = carry
        (_, losses), chunk_gradient = jax.value_and_grad(chunk_loss, has_aux=True)(weights, batch, mask)
        loss = compensated.add(loss, compensated.total(losses))
        if potential.per_example_error is not None:
            error = error + jnp.sum(jnp.where(mask, potential.per_example_error(weights, batch), 0.0))
        if potential.class_scores is not None:
            scores = potential.class_scores(weights, batch[0])
            low, high = jnp.minimum(low, jnp.min(scores, axis=0)), jnp.maximum(high, jnp.max(scores, axis=0))
            positive = positive + jnp.sum(mask[:, None] & (scores > 0), axis=0, dtype=jnp.int32)
        return loss, error, jax.tree.map(jnp.add, gradient, chunk_gradient), low, high, positive

    num_classes = 0
    if potential.class_scores is not None:
        num_classes = jax.eval_shape(potential.class_scores, weights, dataset.shapes(1)[0]).shape[-1]
    error = jnp.zeros(()) if potential.per_example_error is not None else jnp.full((), jnp.nan)
    low, high = jnp.full((num_classes,), jnp.inf), jnp.full((num_classes,), -jnp.inf)
    carry = (compensated.zero(), error, trees.zeros_like(weights), low, high, jnp.zeros((num_classes,), jnp.int32))
    with jax.default_matmul_precision("highest"):
        loss, error, gradient, low, high, positive = fold_chunks(fold, carry, dataset, chunk_for(chunk_size, weights))
    num = dataset.num_examples
    gradient = potential.add_regularizer_gradient(weights, jax.tree.map(lambda g: g / num, gradient))
    dead = (high == low) | ((low >= 0) & (positive < ALIVE_SHARE * num))
    return ExactSums(compensated.scale(loss, 1 / num), error / num, gradient, dead if num_classes else None)


def exact_mean(per_example: PerExample, weights: Weights, dataset: Dataset, chunk_size: int | None) -> Sum:
    """The mean of a per-example quantity over the whole data set: forward only, full float32 products, compensated."""
    (mean,) = exact_means([per_example], weights, dataset, chunk_size)
    return mean


def exact_means(
    per_example: Sequence[PerExample], weights: Weights, dataset: Dataset, chunk_size: int | None
) -> list[Sum]:
    """The means of several quantities, in one pass: what they compute in common is computed once."""

    def fold(totals: list[Sum], batch: Batch, mask: Array) -> list[Sum]:
        values = [jnp.where(mask, quantity(weights, batch), 0.0) for quantity in per_example]
        return [compensated.add(t, compensated.total(v)) for t, v in zip(totals, values, strict=True)]

    zeros = [compensated.zero() for _ in per_example]
    with jax.default_matmul_precision("highest"):
        totals = fold_chunks(fold, zeros, dataset, chunk_for(chunk_size, weights))
    return [compensated.scale(total, 1 / dataset.num_examples) for total in totals]


def exact_energy(potential: Potential, weights: Weights, dataset: Dataset, chunk_size: int | None = None) -> Sum:
    """U on the whole data set, regulariser included, precise enough for Metropolis.

    Differences of two such energies, by `compensated.difference`, are limited by the rounding of the single losses
    (about 1e-7 each, of random sign), not by their sum: about 1e-9 on 50 000 examples.
    """
    loss = exact_mean(potential.per_example_loss, weights, dataset, chunk_size)
    if not potential.has_regularizer:
        return loss
    stiffness = trees.spread(potential.stiffness(weights), weights)
    squares = [
        compensated.scale(compensated.total_of_squares(leaf), 0.5 * k)
        for leaf, k in zip(jax.tree.leaves(weights), jax.tree.leaves(stiffness), strict=True)
    ]
    return functools.reduce(compensated.add, squares, loss)


def sum_of_squares(tree: Weights) -> Sum:
    """|w|² of a pytree as a compensated sum."""
    return functools.reduce(compensated.add, [compensated.total_of_squares(leaf) for leaf in jax.tree.leaves(tree)])
