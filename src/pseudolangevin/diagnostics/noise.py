"""Is the mini-batch noise what pseudo-Langevin takes it for: Gaussian, of variance 𝒱, uncorrelated? (paper Fig. 3a–c)

The mini-batch noise at weights w is R^(b) = 𝒱^(−1/2)·(∇U^(b) − ∇U) (eq:MiniBatchNoise), which should be N(0, 1) in
every component. `draw` makes such numbers with the sampler's own oracle; everything else here is a function of arrays
(draw, component). In units of the thermal noise √((1 − c1²)·M·T) the total noise of a half step,
(δt/2)·𝒱^(1/2)·R^(b) + K·R with K² = (1 − c1²)·M·T − (δt/2)²·𝒱, is √𝒯·R^(b) + √(1 − 𝒯)·R.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike
from scipy import special, stats

from .. import masses, trees
from ..checks import check_integer
from ..data import Dataset
from ..gradients import DEFAULT_CHUNK_SIZE, exact_sums
from ..samplers.base import Sampler
from ..samplers.langevin_kernel import LangevinKernel
from ..types import Array, Key, Weights
from .averages import Floats

MAX_COMPONENTS = 10_000
"""Components looked at when there are more weights: a random subset, the same for every draw."""

KS_SHAPE_CRITICAL = 1.329
"""5 % point of (√n + 0.12 + 0.11/√n)·D for n numbers from N(0, σ²), divided by their own root mean square."""


class NoiseDraws(NamedTuple):
    """Independent draws of the mini-batch noise at one point."""

    noise: Floats
    """R^(b), axes (draw, component); components with 𝒱 = 0 are left out."""
    ratios: Floats
    """𝒯_i in force of those components."""
    num_silent: int
    """Components of the whole network with 𝒱 = 0, which have no noise to look at."""
    num_noisy: int
    """Components of the whole network with 𝒱 > 0, of which `noise` holds all or a random subset."""
    layers: np.ndarray
    """The layer of each component, as an index into `layer_names`."""
    layer_names: tuple[str, ...]


def draw(
    sampler: Sampler,
    state: Any,
    key: Key | int,
    *,
    num_draws: int = 250,
    max_components: int = MAX_COMPONENTS,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
) -> NoiseDraws:
    """Draw mini-batch gradients at a chain's weights, against the exact gradient, in units of the 𝒱 in force.

    Args:
        sampler: a Langevin sampler with a mini-batch oracle whose noise is measured.
        state: one chain's state, without leading axes.
        key: random key, or an integer seed.
        num_draws: mini-batches to draw; the paper's 250.
        max_components: look at a random subset where there are more components; memory is draws × components.
        chunk_size: examples held at once for the exact gradient.
    """
    kernel = controlled_kernel(sampler)
    check_integer("num_draws", num_draws, minimum=2)
    check_integer("max_components", max_components, minimum=2)
    key = jax.random.key(key) if isinstance(key, int | np.integer) else key
    variance, ratios = in_force(kernel, state)
    noisy = np.flatnonzero(variance > 0)
    chosen = subset(noisy, max_components, key)
    deviations = _deviations(
        kernel, key, state.weights, jnp.asarray(chosen), sampler.dataset, num_draws=num_draws, chunk_size=chunk_size
    )
    noise = np.asarray(deviations, np.float64) / np.sqrt(variance[chosen])
    layers = trees.layers(state.weights)
    layer = np.repeat(np.arange(len(layers)), [trees.num_weights(tree) for tree in layers.values()])
    num_silent = len(variance) - len(noisy)
    return NoiseDraws(noise, ratios[chosen], num_silent, len(noisy), layer[chosen], tuple(layers))


def controlled_kernel(sampler: Sampler) -> LangevinKernel:
    """The kernel of a sampler that measures its noise; refuse others."""
    kernel = sampler.kernel
    if not isinstance(kernel, LangevinKernel) or kernel.control is None:
        raise ValueError(f"sampler = {sampler.name} does not measure mini-batch noise; use pseudo_langevin")
    return kernel


def in_force(kernel: LangevinKernel, state: Any) -> tuple[Floats, Floats]:
    """𝒱_i and 𝒯_i of every component, as vectors."""
    ratios = masses.temperature_ratios(
        state.gradient_variance, state.masses, state.temperature, kernel.momentum_retention, kernel.time_step
    )

    def vector(tree: Weights) -> Floats:
        full = jax.tree.map(lambda values, w: np.broadcast_to(np.asarray(values), w.shape), tree, state.weights)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(full)]).astype(np.float64)

    return vector(state.gradient_variance), vector(ratios)


def subset(components: np.ndarray, size: int, key: Key) -> np.ndarray:
    """At most `size` of the components, in order."""
    if len(components) <= size:
        return components
    order = np.asarray(jax.random.permutation(jax.random.fold_in(key, 0), len(components)))
    return np.sort(components[order[:size]])


@partial(jax.jit, static_argnames=("kernel", "num_draws", "chunk_size"))
def _deviations(
    kernel: LangevinKernel,
    key: Key,
    weights: Weights,
    components: Array,
    dataset: Dataset,
    num_draws: int,
    chunk_size: int,
) -> Array:
    """∇U^(b) − ∇U, axes (draw, component)."""
    exact = trees.ravel(exact_sums(kernel.potential, weights, dataset, chunk_size).gradient)[components]

    def deviation(index: Array) -> Array:
        gradient = kernel.oracle(jax.random.fold_in(key, index), weights, dataset)
        return trees.ravel(gradient)[components] - exact

    return lax.map(deviation, 1 + jnp.arange(num_draws))


def total_noise(minibatch: ArrayLike, white: ArrayLike, ratios: ArrayLike) -> Floats:
    """√𝒯·R^(b) + √(1 − 𝒯)·R: all noise of a half step, in units of the thermal noise."""
    ratio = np.asarray(ratios, np.float64)
    return np.sqrt(ratio) * np.asarray(minibatch) + np.sqrt(np.maximum(1 - ratio, 0.0)) * np.asarray(white)


def ks_distances(noise: ArrayLike) -> Floats:
    """Kolmogorov–Smirnov distance of every component's draws (draw, component) from N(0, 1)."""
    ordered = special.ndtr(np.sort(np.asarray(noise, np.float64), axis=0))
    num = len(ordered)
    steps = np.arange(1, num + 1)[:, None] / num
    return np.maximum((steps - ordered).max(axis=0), (ordered - steps + 1 / num).max(axis=0))


def ks_fraction(noise: ArrayLike, significance: float = 0.05) -> float:
    """Share of the components whose KS test against N(0, 1) has p > 0.05; 0.95 for Gaussian noise of variance 𝒱."""
    distances = ks_distances(noise)
    return float(np.mean(distances < stats.kstwo.isf(significance, np.shape(noise)[0])))


def ks_shape_fraction(noise: ArrayLike) -> float:
    """The same for components divided by their own root mean square: 0.95 for Gaussian noise of any variance.

    An estimated scale makes distances smaller. Their 5 % point was found by simulation, with Stephens' correction for
    finite samples (J. Am. Stat. Assoc. 69, 730 (1974)).
    """
    values = np.asarray(noise, np.float64)
    scale = np.sqrt(np.mean(values**2, axis=0))
    distances = ks_distances(np.divide(values, scale, out=np.zeros_like(values), where=scale > 0))
    root = np.sqrt(len(values))
    return float(np.mean(distances * (root + 0.12 + 0.11 / root) < KS_SHAPE_CRITICAL))


def correlations(noise: ArrayLike) -> Floats:
    """The elements C_ij, i < j, of the correlation matrix of draws (draw, component).

    For uncorrelated noise their standard deviation is 1/√draws: 0.063 for 250. A component that no draw moved (a unit
    that almost no example wakes) has no correlations and is left out.
    """
    values = np.asarray(noise, np.float64)
    matrix: Floats = np.atleast_2d(np.corrcoef(values[:, np.ptp(values, axis=0) > 0], rowvar=False))
    return matrix[np.triu_indices(len(matrix), 1)]


def autocorrelation(series: ArrayLike, max_lag: int) -> Floats:
    """χ(Δt) = N⁻¹·Σ_i [⟨x_i(t+Δt)·x_i(t)⟩ − ⟨x_i⟩²] for Δt = 0 … max_lag, of a series (time, component)."""
    values = np.asarray(series, np.float64)
    num = len(values)
    check_integer("max_lag", max_lag, minimum=0, maximum=num - 1, remedy="record more consecutive steps")
    centred = values - values.mean(axis=0)
    return np.array([np.mean(centred[lag:] * centred[: num - lag]) for lag in range(max_lag + 1)])
