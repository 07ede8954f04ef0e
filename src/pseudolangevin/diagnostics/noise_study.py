"""The mini-batch noise along a pseudo-Langevin run: the arrays behind the paper's Fig. 3a–c."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import chains, trees
from ..checks import check_integer, check_positive
from ..data import Dataset
from ..gradients import DEFAULT_CHUNK_SIZE, exact_sums
from ..observables import Observer
from ..samplers.base import Sampler
from ..samplers.langevin_kernel import LangevinKernel
from ..types import Array, Key, Weights
from .averages import Floats
from .noise import autocorrelation, controlled_kernel, correlations, draw, in_force, ks_fraction, subset, total_noise

KINDS = ("minibatch", "white", "total")
"""The order of the noises along axes called kind."""


@dataclass(frozen=True)
class NoiseStudy:
    """Arrays ready to plot; the first axis is the time of the measurement."""

    steps: np.ndarray
    """Steps at which the run was stopped to measure, (time,)."""
    last_refresh: np.ndarray
    """The step at which the 𝒱 in force was measured, (time,)."""
    ks_fraction: Floats
    """Share of components with KS p > 0.05, (time,)."""
    noise_edges: Floats
    """Bin edges of `noise_density`."""
    noise_density: Floats
    """Density of the mini-batch noise over all components and draws, (time, bin); to compare with N(0, 1)."""
    correlation_edges: Floats
    """Bin edges of `correlation_density`."""
    correlation_density: Floats
    """Density of the elements C_ij, (time, kind, bin)."""
    correlation_std: Floats
    """Standard deviation of the elements C_ij, (time, kind); 1/√draws for white noise."""
    autocorrelation: Floats
    """χ(Δt), Δt = 0, 1, …, along consecutive steps of the run itself, (time, kind, lag)."""
    num_silent: np.ndarray
    """Components without noise, left out, (time,)."""


def noise_study(
    sampler: Sampler,
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
    num_bins: int = 81,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
) -> NoiseStudy:
    """Run one chain and stop it at regular times to look at its noise.

    Args:
        sampler: from `pseudo_langevin`.
        weights: the start.
        temperature: T.
        num_steps: length of the run.
        measure_every: steps between measurements.
        key: random key, or an integer seed.
        num_draws: mini-batches drawn at each stop.
        num_consecutive: steps of the run itself whose noise is recorded for the autocorrelation, from each stop.
        max_lag: longest Δt of the autocorrelation.
        num_correlated: components, chosen at random, among which correlations are computed.
        num_bins: of the histograms.
        chunk_size: examples held at once for exact gradients.
    """
    kernel = controlled_kernel(sampler)
    check_positive("temperature", temperature)
    check_integer("measure_every", measure_every, minimum=1, maximum=num_steps, remedy="measure at least once")
    check_integer("num_consecutive", num_consecutive, minimum=2)
    check_integer("max_lag", max_lag, minimum=0, maximum=num_consecutive - 1, remedy="raise num_consecutive")
    key = jax.random.key(key) if isinstance(key, int | np.integer) else key
    layout = chains.Layout((float(temperature),), 1)
    starts = layout.starts(weights, sampler.potential, sampler.dataset)
    states = chains.init(sampler, starts, layout.temperature_per_chain(starts), layout.keys(key))
    observer = Observer(sampler.potential, chunk_size)
    noise_edges = np.linspace(-4, 4, num_bins + 1)
    correlation_edges = np.linspace(-0.5, 0.5, num_bins + 1)
    measured: list[dict[str, Any]] = []
    for record in chains.run(
        sampler, observer, states, sampler.dataset, None, stop=num_steps, record_every=measure_every
    ):
        state = jax.tree.map(lambda leaf: leaf[0], record.states)
        measure_key = jax.random.fold_in(key, record.step)
        draws = draw(sampler, state, measure_key, num_draws=num_draws, chunk_size=chunk_size)
        chosen = subset(np.arange(draws.noise.shape[1]), num_correlated, measure_key)
        seed = np.asarray(jax.random.key_data(measure_key)).ravel()  # made of the seed and the step
        white = np.random.default_rng(seed).standard_normal((num_draws, len(chosen)))
        few, ratios = draws.noise[:, chosen], draws.ratios[chosen]
        elements = [correlations(noise) for noise in (few, white, total_noise(few, white, ratios))]
        series = consecutive_noise(
            kernel, state, sampler.dataset, num_steps=num_consecutive, num_components=num_correlated, key=measure_key
        )
        measured.append(
            {
                "steps": record.step,
                "last_refresh": int(state.last_refresh),
                "ks_fraction": ks_fraction(draws.noise),
                "noise_density": np.histogram(draws.noise, noise_edges, density=True)[0],
                "correlation_density": [np.histogram(c, correlation_edges, density=True)[0] for c in elements],
                "correlation_std": [c.std() for c in elements],
                "autocorrelation": [autocorrelation(noise, max_lag) for noise in series],
                "num_silent": draws.num_silent,
            }
        )
    stacked = {name: np.asarray([m[name] for m in measured]) for name in measured[0]}
    return NoiseStudy(noise_edges=noise_edges, correlation_edges=correlation_edges, **stacked)


def consecutive_noise(
    kernel: LangevinKernel,
    state: Any,
    dataset: Dataset,
    *,
    num_steps: int,
    num_components: int,
    key: Key,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
) -> tuple[Floats, Floats, Floats]:
    """The noise that the next steps of a chain really use: mini-batch, white and total, axes (step, component).

    The chain itself is not moved. Silent components are left out; `num_components` of the others are chosen at random.
    """
    variance, ratios = in_force(kernel, state)
    chosen = subset(np.flatnonzero(variance > 0), num_components, key)
    deviations, white = _steps(kernel, state, jnp.asarray(chosen), dataset, num_steps=num_steps, chunk_size=chunk_size)
    minibatch = np.asarray(deviations, np.float64) / np.sqrt(variance[chosen])
    injected = np.asarray(white, np.float64)
    return minibatch, injected, total_noise(minibatch, injected, ratios[chosen])


@partial(jax.jit, static_argnames=("kernel", "num_steps", "chunk_size"))
def _steps(
    kernel: LangevinKernel, state: Any, components: Array, dataset: Dataset, num_steps: int, chunk_size: int
) -> tuple[Array, Array]:
    """∇U^(b) − ∇U and ξ of consecutive steps, drawn again as the steps do."""

    def one(state: Any, _: None) -> tuple[Any, tuple[Array, Array]]:
        moved = kernel.step(state, dataset)
        gradient = kernel.oracle(state.key, moved.weights, kernel.with_batch(state, dataset))
        exact = exact_sums(kernel.potential, moved.weights, dataset, chunk_size).gradient
        deviation = trees.ravel(gradient)[components] - trees.ravel(exact)[components]
        white = trees.ravel(kernel.noise(state))[components]
        return moved, (deviation, white)

    return lax.scan(one, state, length=num_steps)[1]
