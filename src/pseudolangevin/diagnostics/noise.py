"""Mini-batch noise: whether it is Gaussian, of variance 𝒱 and uncorrelated, as pseudo-Langevin assumes (Fig. 3a–c).

The mini-batch noise at weights w is R^(b) = 𝒱^(−1/2)·(∇U^(b) − ∇U) (eq:MiniBatchNoise), which should be N(0, 1) in
every component. Components with 𝒱 = 0 are silent, and left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import special, stats

from .. import _trees as trees
from .. import masses
from .._trees import Array, Key, Stream, Weights, as_key, check_integer, check_positive, normal_like, stream_key
from ..chains import Run
from ..gradients import exact_sums
from .averages import Floats


def draw(
    sampler: Any, state: Any, key: Key, *, num_draws: int = 250, max_components: int = 10_000
) -> tuple[Floats, Floats, int]:
    """Return the noise of mini-batches at the weights of one chain, (draw, component).

    Return also the temperature ratios 𝒯_i of these components, and the number of silent components. In networks larger
    than `max_components` a random subset is examined.
    """
    chosen, variance, ratios, num_silent = _noisy(sampler, state, max_components, key)
    deviations = np.asarray(_deviations(sampler, key, state.weights, chosen, num_draws), np.float64)
    return deviations / np.sqrt(variance), ratios, num_silent


def _noisy(sampler: Any, state: Any, size: int, key: Key) -> tuple[np.ndarray, Floats, Floats, int]:
    """Return at most `size` components with noise, their 𝒱_i and 𝒯_i, and the number of silent components."""
    if not sampler.refreshes or not hasattr(state, "gradient_variance"):
        raise ValueError(f"sampler = {sampler.name} does not measure mini-batch noise; use pseudo_langevin")
    ratios = masses.temperature_ratios(state.gradient_variance, state.masses, state.temperature, **sampler.dynamics)
    both = (state.gradient_variance, ratios)
    full = [jax.tree.map(lambda v, w: jnp.broadcast_to(v, w.shape), tree, state.weights) for tree in both]
    variance, ratio = (np.asarray(trees.ravel(tree), np.float64) for tree in full)
    noisy = np.flatnonzero(variance > 0)
    chosen = _subset(noisy, size, key)
    return chosen, variance[chosen], ratio[chosen], len(variance) - len(noisy)


def _subset(components: np.ndarray, size: int, key: Key) -> np.ndarray:
    """Return at most `size` of the components, chosen at random, in order."""
    order = np.asarray(jax.random.permutation(jax.random.fold_in(key, 0), len(components)))
    return np.sort(components[order[:size]])


@partial(jax.jit, static_argnums=4)
def _deviations(sampler: Any, key: Key, weights: Weights, components: Array, num_draws: int) -> Array:
    """Return ∇U^(b) − ∇U, (draw, component)."""
    sampler = sampler.at(1.0)  # the regulariser is in both
    exact = trees.ravel(exact_sums(sampler.potential, weights, sampler.dataset, None).gradient)

    def deviation(index: Array) -> Array:
        batch = sampler.dataset.draw(jax.random.fold_in(key, index), sampler.batch_size)
        return (trees.ravel(sampler.gradient(weights, batch)) - exact)[components]

    return lax.map(deviation, 1 + jnp.arange(num_draws))


def ks_fraction(noise: Floats) -> float:
    """Return the share of components whose KS test against N(0, 1) has p > 0.05: 0.95 for noise N(0, 𝒱)."""
    ordered, num = special.ndtr(np.sort(noise, axis=0)), len(noise)
    steps = np.arange(1, num + 1)[:, None] / num
    distances = np.maximum((steps - ordered).max(axis=0), (ordered - steps + 1 / num).max(axis=0))
    return float(np.mean(distances < stats.kstwo.isf(0.05, num)))


@dataclass(frozen=True)
class NoiseStudy:
    """Mini-batch noise along a run, the arrays of Fig. 3a–c; axes called kind are (mini-batch, white, total)."""

    noise_edges: Floats  # bin edges of `noise_density`
    correlation_edges: Floats  # bin edges of `correlation_density`
    steps: np.ndarray  # steps of the measurements, (time,)
    last_refresh: np.ndarray  # step at which the current 𝒱 was measured, (time,)
    num_silent: np.ndarray  # silent components, (time,)
    ks_fraction: Floats  # share of components with KS p > 0.05, (time,)
    noise_density: Floats  # density of the mini-batch noise over all components and draws, (time, bin)
    correlation_density: Floats  # density of the elements C_ij, (time, kind, bin)
    correlation_std: Floats  # standard deviation of the elements C_ij, (time, kind); 1/√draws for white noise
    autocorrelation: Floats  # χ(Δt), Δt = 0, 1, …, along consecutive steps of the run, (time, kind, lag)


def noise_study(
    sampler: Any,
    weights: Weights,
    *,
    temperature: float,
    num_steps: int,
    measure_every: int,
    key: Key | int,
    num_draws: int = 250,
    num_consecutive: int = 100,
    max_lag: int = 20,
    num_correlated: int = 500,
) -> NoiseStudy:
    """Run one chain and examine its noise at regular times.

    Every `measure_every` steps, `num_draws` mini-batches are drawn. Correlations are computed among `num_correlated`
    components, and the autocorrelation up to `max_lag` from the next `num_consecutive` steps.
    """
    check_positive("temperature", temperature)
    check_integer("measure_every", measure_every, minimum=1, maximum=num_steps, remedy="measure at least once")
    check_integer("max_lag", max_lag, minimum=0, maximum=num_consecutive - 1, remedy="raise num_consecutive")
    key, run = as_key(key), Run(sampler, temperatures=[temperature])
    noise_edges, correlation_edges = np.linspace(-4, 4, 82), np.linspace(-0.5, 0.5, 82)
    rows = []
    for record in run.records(run.start(weights, key), stop=num_steps, every=measure_every):
        state, own_key = jax.tree.map(lambda leaf: leaf[0], record.states), jax.random.fold_in(key, record.step)
        noise, ratios, num_silent = draw(sampler, state, own_key, num_draws=num_draws)
        chosen = _subset(np.arange(noise.shape[1]), num_correlated, own_key)
        random = np.random.default_rng(np.asarray(jax.random.key_data(own_key)).ravel())
        # Elements C_ij, i < j, of the correlation matrices, without components that no draw moved.
        elements = []
        for kind in _kinds(noise[:, chosen], random.standard_normal((num_draws, len(chosen))), ratios[chosen]):
            matrix = np.atleast_2d(np.corrcoef(kind[:, np.ptp(kind, axis=0) > 0], rowvar=False))
            elements.append(matrix[np.triu_indices(len(matrix), 1)])
        memory = []
        for kind in consecutive_noise(sampler, state, num_consecutive, num_correlated, own_key):
            x = kind - kind.mean(axis=0)
            memory.append([np.mean(x[lag:] * x[: num_consecutive - lag]) for lag in range(max_lag + 1)])
        density = np.histogram(noise, noise_edges, density=True)[0]
        densities = [np.histogram(c, correlation_edges, density=True)[0] for c in elements]
        numbers = (record.step, int(state.last_refresh), num_silent, ks_fraction(noise))
        rows.append((*numbers, density, densities, [c.std() for c in elements], memory))
    return NoiseStudy(noise_edges, correlation_edges, *map(np.asarray, zip(*rows, strict=True)))


def _kinds(minibatch: Floats, white: Floats, ratios: Floats) -> tuple[Floats, Floats, Floats]:
    """Return mini-batch, white and total noise of a half step; total in units of the thermal noise √((1 − c1²)·M·T)."""
    return minibatch, white, np.sqrt(ratios) * minibatch + np.sqrt(np.maximum(1 - ratios, 0.0)) * white


def consecutive_noise(
    sampler: Any, state: Any, num_steps: int, num_components: int, key: Key
) -> tuple[Floats, Floats, Floats]:
    """Return mini-batch, white and total noise (step, component) of the next steps of a chain, at the current 𝒱."""
    chosen, variance, ratios, _ = _noisy(sampler, state, num_components, key)
    deviations, white = (np.asarray(x, np.float64) for x in _noise_of_steps(sampler, state, chosen, num_steps))
    return _kinds(deviations / np.sqrt(variance), white, ratios)


@partial(jax.jit, static_argnums=3)
def _noise_of_steps(sampler: Any, state: Any, components: Array, num_steps: int) -> tuple[Array, Array]:
    """Return ∇U^(b) − ∇U and the white noise ξ of every step."""
    sampler = sampler.at(state.temperature)

    def step(state: Any, _: None) -> tuple[Any, tuple[Array, Array]]:
        batch = sampler.draw(state)
        moved = sampler.step(state, batch)
        gradient = trees.ravel(sampler.gradient(moved.weights, batch))
        exact = trees.ravel(exact_sums(sampler.potential, moved.weights, sampler.dataset, None).gradient)
        white = trees.ravel(normal_like(stream_key(state.key, Stream.NOISE), state.weights, state.step))
        return moved, ((gradient - exact)[components], white[components])

    return lax.scan(step, state, None, num_steps)[1]
