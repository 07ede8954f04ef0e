"""Fictitious masses, set so that the mini-batch noise is a given small share of the thermal noise.

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

from . import _trees as trees
from ._checks import as_number
from ._trees import Array, Weights

Granularity: TypeAlias = Literal["weight", "row", "tensor"]


def _ratio_constant(temperature: Array, momentum_retention: float, time_step: float) -> Array:
    """Return 𝒯·M/𝒱."""
    return time_step**2 / (4 * (1 - momentum_retention**2) * temperature)


def temperature_ratios(
    variance: Weights, masses: Weights, temperature: Array, momentum_retention: float, time_step: float
) -> Weights:
    """Return 𝒯_i of every component (eq:LTRLimit)."""
    constant = _ratio_constant(temperature, momentum_retention, time_step)
    return jax.tree.map(lambda v, m: constant * v / m, variance, masses)


def from_noise(
    variance: Weights, temperature: Array, ratio: float, momentum_retention: float, time_step: float
) -> Weights:
    """Return the masses that give every component the temperature ratio `ratio`."""
    constant = _ratio_constant(temperature, momentum_retention, time_step)
    return jax.tree.map(lambda v: constant * v / ratio, variance)


def uniform(weights: Weights, mass: float, granularity: Granularity = "weight") -> Weights:
    """Return the same mass for every weight."""
    return jax.tree.map(lambda w: jnp.full(group_shape(w.shape, granularity), mass, w.dtype), weights)


def given(weights: Weights, masses: float | Weights) -> Weights:
    """Return masses given as one number, or as a pytree whose arrays broadcast against the weights."""
    if is_one_number(masses):
        return uniform(weights, masses, "tensor")
    structure: Any = jax.tree.structure(weights)
    if structure != jax.tree.structure(masses):
        raise ValueError(
            f"masses is a pytree {jax.tree.structure(masses)}, the weights are {structure}; "
            "pass one number or a pytree shaped like the weights of one chain"
        )

    def fitted(weight: Array, mass: Any) -> Array:
        mass = jnp.asarray(mass, weight.dtype)
        mass = mass.reshape((1,) * (weight.ndim - mass.ndim) + mass.shape)
        if mass.ndim != weight.ndim or any(m not in (1, w) for m, w in zip(mass.shape, weight.shape, strict=True)):
            raise ValueError(
                f"masses holds an array of shape {mass.shape} for weights of shape {weight.shape}; "
                "pass one number or a pytree shaped like the weights of one chain"
            )
        return mass

    return jax.tree.map(fitted, weights, masses)


def is_one_number(masses: float | Weights) -> bool:
    """Return whether one mass was given for all weights."""
    return jax.tree_util.all_leaves([masses]) and jnp.ndim(masses) == 0


def check_given(masses: float | Weights) -> None:
    """Raise unless the masses are positive, finite numbers."""
    leaves = jax.tree.leaves(masses)
    if not leaves:
        raise ValueError(f"masses = {masses!r} is empty; pass one number or a pytree shaped like the weights")
    for leaf in leaves:
        if jnp.ndim(leaf) == 0:
            as_number("masses", leaf)
        values = np.asarray(leaf, np.float64)
        low, high = float(values.min()), float(values.max())
        if not (low > 0 and high < np.inf):
            bad = low if not low > 0 else high
            raise ValueError(
                f"masses holds {bad:g}; all must be positive and finite: pass one number or a pytree shaped like the "
                "weights"
            )


def floor_variance(variance: Weights, fraction: float) -> Weights:
    """Return 𝒱 raised to at least `fraction` of its tensor's mean.

    A unit that is silent for every example has 𝒱 = 0 and would get no mass. If it becomes active before 𝒱 is measured
    again, its temperature ratio is unbounded and the chain diverges. A tensor that is silent throughout takes the
    smallest mean of the others.
    """
    means = jax.tree.map(jnp.mean, variance)
    stacked = jnp.stack(jax.tree.leaves(means))
    smallest = jnp.min(jnp.where(stacked > 0, stacked, jnp.inf))
    fallback = jnp.where(jnp.isfinite(smallest), smallest, 0.0)
    return jax.tree.map(lambda v, mean: jnp.maximum(v, fraction * jnp.where(mean > 0, mean, fallback)), variance, means)


def at_least(masses: Weights, minimum: Any) -> Weights:
    """Return the masses raised to a common minimum, or to one for each tensor."""
    return jax.tree.map(jnp.maximum, masses, trees.spread(minimum, masses))


def stable_minimum(stiffness: Any, time_step: float, max_frequency: float) -> Any:
    """Return the mass at which the regulariser alone, ω² = (λ/N)/M, oscillates with ω·δt = `max_frequency`.

    `stiffness` is λ/N, one number or one for each tensor.
    """
    return jax.tree.map(lambda k: k * (time_step / max_frequency) ** 2, stiffness)


def group_shape(shape: tuple[int, ...], granularity: Granularity) -> tuple[int, ...]:
    """Return the shape of the masses of a tensor."""
    if granularity == "weight" or (granularity == "row" and len(shape) < 2):
        return shape
    if granularity == "row":
        return (1,) * (len(shape) - 1) + shape[-1:]
    return (1,) * len(shape)


def by_group(reduce: Callable[..., Array], tree: Weights, granularity: Granularity) -> Weights:
    """Apply `reduce` (jnp.max, jnp.mean) within every group that shares a mass."""

    def reduced(leaf: Array) -> Array:
        shape = group_shape(leaf.shape, granularity)
        axes = tuple(axis for axis, (n, m) in enumerate(zip(leaf.shape, shape, strict=True)) if n != m)
        return reduce(leaf, axis=axes, keepdims=True) if axes else leaf

    return jax.tree.map(reduced, tree)
