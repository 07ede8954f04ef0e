"""Masses, set from the variance 𝒱 of the mini-batch gradient so that its noise is a share of the thermal noise.

The temperature ratio of a component (eq:LTRLimit) is 𝒯_i = δt²·𝒱_i / (4·(1 − c1²)·T·M_i); inverting it gives the mass
for a given ratio. Masses and 𝒱 are kept per weight, per row (one for each output unit, the last axis of a kernel) or
per tensor, as arrays that broadcast against the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _trees as trees
from ._trees import Array, Batch, Key, Weights
from .data.dataset import Dataset, fold_chunks
from .gradients import DEFAULT_CHUNK_SIZE, default_chunk_size, fast_convolutions
from .potential import Potential

Granularity: TypeAlias = Literal["weight", "row", "tensor"]


def temperature_ratios(
    variance: Weights, masses: Weights, temperature: Array, momentum_retention: float, time_step: float
) -> Weights:
    """Return 𝒯_i of every component (eq:LTRLimit)."""
    return jax.tree.map(jnp.divide, from_noise(variance, temperature, 1.0, momentum_retention, time_step), masses)


def from_noise(
    variance: Weights, temperature: Array, ratio: float, momentum_retention: float, time_step: float
) -> Weights:
    """Return the masses that give every component the temperature ratio `ratio`."""
    constant = time_step**2 / (4 * (1 - momentum_retention**2) * temperature)
    return jax.tree.map(lambda v: constant * v / ratio, variance)


def given(weights: Weights, masses: float | Weights) -> Weights:
    """Return masses given as one number, or as a pytree whose arrays broadcast against the weights."""
    if jax.tree_util.all_leaves([masses]):
        masses = jax.tree.map(lambda _: masses, weights)

    def fitted(weight: Array, mass: Any) -> Array:
        mass = jnp.asarray(mass, weight.dtype)
        if jnp.broadcast_shapes(mass.shape, weight.shape) != weight.shape:
            raise ValueError(f"shape {mass.shape} for weights of shape {weight.shape}")
        return mass.reshape((1,) * (weight.ndim - mass.ndim) + mass.shape)

    try:
        return jax.tree.map(fitted, weights, masses)
    except ValueError as error:
        remedy = "pass one number or a pytree shaped like the weights of one chain"
        raise ValueError(f"masses do not fit the weights ({str(error).splitlines()[0]}); {remedy}") from None


def check_given(name: str, masses: float | Weights) -> None:
    """Raise unless the masses are positive, finite numbers."""
    for leaf in jax.tree.leaves(masses) or ["nothing"]:
        values = np.ravel(leaf)
        bad = values[~((values > 0) & (values < np.inf))] if values.dtype.kind in "iuf" else values
        if bad.size:
            remedy = "pass one positive number or a pytree shaped like the weights"
            raise ValueError(f"{name} holds {bad[0]}; all must be positive and finite: {remedy}")


def floor_variance(variance: Weights, fraction: float) -> Weights:
    """Return 𝒱 raised to at least `fraction` of its tensor's mean.

    A unit that is silent for every example has 𝒱 = 0; with no mass, the chain diverges if the unit becomes active. A
    tensor that is silent throughout takes the smallest mean of the others.
    """
    means = jax.tree.map(jnp.mean, variance)
    stacked = jnp.stack(jax.tree.leaves(means))
    smallest = jnp.min(jnp.where(stacked > 0, stacked, jnp.inf))
    fallback = jnp.where(jnp.isfinite(smallest), smallest, 0.0)
    return jax.tree.map(lambda v, mean: jnp.maximum(v, fraction * jnp.where(mean > 0, mean, fallback)), variance, means)


def stabilized(masses: Weights, stiffness: Weights, time_step: float, max_frequency: float) -> Weights:
    """Return the masses, raised to where the regulariser alone, ω² = (λ/N)/M, oscillates with ω·δt ≤ `max_frequency`.

    `stiffness` is λ/N, one number for each tensor.
    """
    factor = (time_step / max_frequency) ** 2
    return jax.tree.map(lambda m, k: jnp.maximum(m, k * factor), masses, stiffness)


def by_group(reduce: Callable[..., Array], tree: Weights, granularity: Granularity) -> Weights:
    """Apply `reduce` (jnp.max, jnp.mean) within every group that shares a mass; a vector has one entry per row."""

    def reduced(leaf: Array) -> Array:
        if granularity == "weight" or (granularity == "row" and leaf.ndim < 2):
            return leaf
        num_axes = leaf.ndim if granularity == "tensor" else leaf.ndim - 1
        return reduce(leaf, axis=tuple(range(num_axes)), keepdims=True)

    return jax.tree.map(reduced, tree)


def variance_from_minibatches(
    gradient: Callable[[Key], Weights],
    key: Key,
    weights: Weights,
    *,
    block_size: int = 100,
    max_batches: int = 1_000,
    tolerance: float = 0.1,
) -> tuple[Weights, Array]:
    """Return 𝒱 from independent mini-batch gradients, and their number: until 𝒱 converges for every component.

    After each block of mini-batches the running estimate is compared with the one before the block. It has converged
    when √(𝒱_new/𝒱_old) is within `tolerance` of one everywhere; components without noise agree. `gradient` maps a key
    to the gradient of an independent mini-batch at the weights.
    """
    zeros = jax.tree.map(jnp.zeros_like, weights)

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
        return moments, new, variances_agree(old, new, tolerance)

    def unfinished(carry: tuple) -> Array:
        return ~carry[2] & (carry[0][0] + block_size <= max_batches)

    # Before the first block the estimate is zero, which agrees with a later one only if there is no noise at all.
    start = ((jnp.zeros((), jnp.int32), zeros, zeros), zeros, jnp.asarray(False))
    moments, variance, _ = lax.while_loop(unfinished, one_more_block, start)
    return variance, moments[0]


def variance_from_examples(
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
    zeros = (jax.tree.map(jnp.zeros_like, weights),) * 2
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
    first, second = (jax.tree.map(lambda g, p=power: jnp.sum(g**p, axis=0), gradients) for power in (1, 2))
    return first, second


def variances_agree(old: Weights, new: Weights, tolerance: float) -> Array:
    """Return whether √(new/old) is within `tolerance` of one for every component; zero agrees with zero."""

    def within(a: Array, b: Array) -> Array:
        return jnp.all((b >= (1 - tolerance) ** 2 * a) & (b <= (1 + tolerance) ** 2 * a))

    return jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(within, old, new))))


def means_agree(old: Weights, new: Weights, tolerance: float) -> Array:
    """Return whether the mean 𝒱 of every tensor agrees; single components have a large statistical error."""
    return variances_agree(jax.tree.map(jnp.mean, old), jax.tree.map(jnp.mean, new), tolerance)
