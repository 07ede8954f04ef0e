"""The variance 𝒱 of every component of the mini-batch gradient."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from . import trees
from .data import Dataset
from .gradients import Oracle
from .types import Array, Key, Weights


class VarianceEstimate(NamedTuple):
    """𝒱 as measured at one point."""

    variance: Weights
    num_batches: Array
    converged: Array
    """Whether every component met the tolerance before the batches ran out."""


class _Moments(NamedTuple):
    num: Array
    mean: Weights
    squares: Weights
    """Sum of squared deviations from the mean (Welford)."""


def from_minibatches(
    oracle: Oracle,
    key: Key,
    weights: Weights,
    dataset: Dataset,
    *,
    block_size: int = 100,
    max_batches: int = 1000,
    tolerance: float = 0.1,
) -> VarianceEstimate:
    """Estimate 𝒱 at fixed weights from independent mini-batch gradients, until it converges for every component.

    After each block of mini-batches the running estimate is compared with the one before the block; the estimate has
    converged when √(𝒱_new/𝒱_old) is within `tolerance` of one everywhere (components without any noise agree).

    Args:
        oracle: the same mini-batch oracle that drives the dynamics.
        key: random key.
        weights: where to measure.
        dataset: what to draw from.
        block_size: mini-batches per block.
        max_batches: stop here, converged or not.
        tolerance: largest relative change of the standard deviation of any component.
    """

    def absorb(moments: _Moments, index: Array) -> tuple[_Moments, None]:
        gradient = oracle(jax.random.fold_in(key, index), weights, dataset)
        count = moments.num + 1
        delta = jax.tree.map(jnp.subtract, gradient, moments.mean)
        mean = jax.tree.map(lambda m, d: m + d / count, moments.mean, delta)
        squares = jax.tree.map(lambda s, d, g, m: s + d * (g - m), moments.squares, delta, gradient, mean)
        return _Moments(count, mean, squares), None

    def block(moments: _Moments) -> _Moments:
        return lax.scan(absorb, moments, moments.num + jnp.arange(block_size))[0]

    def variance_of(moments: _Moments) -> Weights:
        return jax.tree.map(lambda s: s / (moments.num - 1), moments.squares)

    def unfinished(carry: tuple[_Moments, Weights, Array]) -> Array:
        moments, _, converged = carry
        return ~converged & (moments.num + block_size <= max_batches)

    def one_more_block(carry: tuple[_Moments, Weights, Array]) -> tuple[_Moments, Weights, Array]:
        moments, old, _ = carry
        moments = block(moments)
        new = variance_of(moments)
        return moments, new, agree(old, new, tolerance)

    # The zero that stands for the estimate before the first block agrees with it only where there is no noise at all.
    nothing = _Moments(jnp.zeros((), jnp.int32), trees.zeros_like(weights), trees.zeros_like(weights))
    moments, variance, converged = lax.while_loop(
        unfinished, one_more_block, (nothing, trees.zeros_like(weights), jnp.asarray(False))
    )
    return VarianceEstimate(variance, moments.num, converged)


def agree(old: Weights, new: Weights, tolerance: float) -> Array:
    """Whether √(new/old) is within `tolerance` of one for every component; zero agrees with zero."""

    def within(a: Array, b: Array) -> Array:
        return jnp.all((b >= (1 - tolerance) ** 2 * a) & (b <= (1 + tolerance) ** 2 * a))

    return jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(within, old, new))))


def tensor_means(variance: Weights) -> Weights:
    """The mean 𝒱 of each tensor: a summary whose own statistical error is small."""
    return jax.tree.map(jnp.mean, variance)
