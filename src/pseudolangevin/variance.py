"""The variance 𝒱 of every component of the mini-batch gradient, from mini-batches or from single examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from . import _trees as trees
from ._convolutions import fast_convolutions
from ._trees import Array, Batch, Key, Weights
from .data.dataset import Dataset, fold_chunks
from .gradients import DEFAULT_CHUNK_SIZE, default_chunk_size
from .potential import Potential


class VarianceEstimate(NamedTuple):
    """An estimate of 𝒱 from mini-batches."""

    variance: Weights
    num_batches: Array
    converged: Array
    """Whether every component met the tolerance before the mini-batches ran out."""


def from_minibatches(
    gradient: Callable[[Key], Weights],
    key: Key,
    weights: Weights,
    *,
    block_size: int = 100,
    max_batches: int = 1000,
    tolerance: float = 0.1,
) -> VarianceEstimate:
    """Estimate 𝒱 from independent mini-batch gradients, until it converges for every component.

    After each block of mini-batches the running estimate is compared with the one before the block. It has converged
    when √(𝒱_new/𝒱_old) is within `tolerance` of one everywhere; components without noise agree.

    Args:
        gradient: maps a key to the gradient of an independent mini-batch at the weights.
        key: random key.
        weights: weights of one chain, for their shapes.
        block_size: mini-batches per block.
        max_batches: largest number of mini-batches.
        tolerance: largest relative change of the standard deviation of any component.
    """
    zeros = trees.zeros_like(weights)

    def absorb(moments: tuple[Array, Weights, Weights], index: Array) -> tuple[tuple[Array, Weights, Weights], None]:
        num, mean, squares = moments  # squares: sum of squared deviations from the mean (Welford)
        sample = gradient(jax.random.fold_in(key, index))
        count = num + 1
        delta = jax.tree.map(jnp.subtract, sample, mean)
        mean = jax.tree.map(lambda m, d: m + d / count, mean, delta)
        squares = jax.tree.map(lambda s, d, g, m: s + d * (g - m), squares, delta, sample, mean)
        return (count, mean, squares), None

    def one_more_block(carry: tuple) -> tuple:
        moments, old, _ = carry
        moments = lax.scan(absorb, moments, moments[0] + jnp.arange(block_size))[0]
        new = jax.tree.map(lambda s: s / (moments[0] - 1), moments[2])
        return moments, new, agree(old, new, tolerance)

    def unfinished(carry: tuple) -> Array:
        return ~carry[2] & (carry[0][0] + block_size <= max_batches)

    # Before the first block the estimate is zero, which agrees with a later one only if there is no noise at all.
    start = ((jnp.zeros((), jnp.int32), zeros, zeros), zeros, jnp.asarray(False))
    moments, variance, converged = lax.while_loop(unfinished, one_more_block, start)
    return VarianceEstimate(variance, moments[0], converged)


def from_examples(
    potential: Potential,
    key: Key,
    weights: Weights,
    dataset: Dataset,
    *,
    batch_size: int,
    num_examples: int,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
) -> Weights:
    """Return 𝒱 of the mean gradient of `batch_size` examples from the gradients of single examples, in one pass.

    A batch of S examples drawn with replacement has 𝒱 = Var(g)/S, with g the gradient of one example. The pass visits
    all examples, which makes 𝒱 exact, or `num_examples` drawn ones if there are more; its relative error is then
    √((κ − 1)/num_examples), with κ the kurtosis of g.
    """
    zeros = (trees.zeros_like(weights), trees.zeros_like(weights))
    if potential.gradient_moments is None:  # gradients of single examples are held at once: 2²⁴ numbers at most
        chunk_size = default_chunk_size(None, weights, potential.per_example_loss, dataset)
        chunk_size = max(1, min(chunk_size, 2**24 // trees.num_weights(weights)))

    def fold(sums: tuple[Weights, Weights], batch: Batch, mask: Array) -> tuple[Weights, Weights]:
        return jax.tree.map(jnp.add, sums, gradient_moments(potential, weights, batch, mask))

    if num_examples >= dataset.num_examples:
        num, unbiased = dataset.num_examples, 1.0
        sums = fold_chunks(fold, zeros, dataset, chunk_size)
    else:
        chunk_size = min(chunk_size, num_examples)
        num_chunks = -(-num_examples // chunk_size)
        num = num_chunks * chunk_size
        unbiased = num / (num - 1)
        everything = jnp.ones((chunk_size,), bool)

        def body(sums: tuple[Weights, Weights], index: Array) -> tuple[tuple[Weights, Weights], None]:
            return fold(sums, dataset.draw(jax.random.fold_in(key, index), chunk_size), everything), None

        sums = lax.scan(body, zeros, jnp.arange(num_chunks))[0]
    factor = unbiased / batch_size
    return jax.tree.map(lambda g, s: factor * jnp.maximum(s / num - (g / num) ** 2, 0.0), *sums)


def gradient_moments(potential: Potential, weights: Weights, batch: Batch, mask: Array) -> tuple[Weights, Weights]:
    """Return sums of the gradients of single examples, and of their squares, over the examples with a true `mask`.

    The regulariser is left out: it is the same for all examples.
    """
    if potential.gradient_moments is not None:
        return potential.gradient_moments(weights, batch, mask)

    def loss(weights: Weights, example: Batch) -> Array:
        single = jax.tree.map(lambda array: array[None], example)
        return potential.per_example_loss(weights, single)[0]

    def masked(g: Array) -> Array:
        return jnp.where(mask.reshape(-1, *[1] * (g.ndim - 1)), g, 0.0)

    by_example = fast_convolutions(jax.vmap(jax.grad(loss), in_axes=(None, 0)))
    gradients = jax.tree.map(masked, by_example(weights, batch))
    return (
        jax.tree.map(lambda g: jnp.sum(g, axis=0), gradients),
        jax.tree.map(lambda g: jnp.sum(g**2, axis=0), gradients),
    )


def agree(old: Weights, new: Weights, tolerance: float) -> Array:
    """Return whether √(new/old) is within `tolerance` of one for every component; zero agrees with zero."""

    def within(a: Array, b: Array) -> Array:
        return jnp.all((b >= (1 - tolerance) ** 2 * a) & (b <= (1 + tolerance) ** 2 * a))

    return jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(within, old, new))))


def tensor_means(variance: Weights) -> Weights:
    """Return the mean 𝒱 of each tensor, a summary with a small statistical error."""
    return jax.tree.map(jnp.mean, variance)
