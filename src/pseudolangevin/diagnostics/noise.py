"""Mini-batch noise: whether it is Gaussian, of variance 𝒱 and uncorrelated, as pseudo-Langevin assumes (Fig. 3a–c).

The mini-batch noise at weights w is R^(b) = 𝒱^(−1/2)·(∇U^(b) − ∇U) (eq:MiniBatchNoise), which should be N(0, 1) in
every component. `draw` draws it as the sampler does; most other functions take arrays (draw, component). In units of
the thermal noise √((1 − c1²)·M·T), the total noise of a half step is √𝒯·R^(b) + √(1 − 𝒯)·R.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike

from .. import _trees as trees
from .. import masses
from .._checks import check_integer, check_positive
from .._random import Stream, as_key, normal_like, stream_key
from .._trees import Array, Key, Weights
from ..chains import Run
from ..gradients import exact_sums
from ..samplers.base import Sampler
from .averages import Floats


class NoiseDraws(NamedTuple):
    """Independent draws of the mini-batch noise at one point."""

    noise: Floats  # noise R^(b), axes (draw, component); components with 𝒱 = 0 are left out
    ratios: Floats  # current temperature ratios 𝒯_i of these components
    num_silent: int  # components of the full network with 𝒱 = 0, which have no noise
    num_noisy: int  # components of the full network with 𝒱 > 0; `noise` holds all of them or a random subset
    layers: np.ndarray  # layer of each component, as an index into `layer_names`
    layer_names: tuple[str, ...]


def draw(
    sampler: Sampler,
    state: Any,
    key: Key | int,
    *,
    num_draws: int = 250,
    max_components: int = 10_000,
    chunk_size: int | None = None,
) -> NoiseDraws:
    """Draw mini-batch gradients at a chain's weights and return their noise in units of the current √𝒱.

    Args:
        sampler: a sampler that measures the variance of its mini-batch gradients.
        state: state of one chain, without leading axes.
        key: random key, or an integer seed.
        num_draws: mini-batches to draw; 250 in the paper.
        max_components: size of the random subset that is examined in larger networks.
        chunk_size: examples held at once for the exact gradient.
    """
    variance, ratios = variance_and_ratios(sampler, state)
    check_integer("num_draws", num_draws, minimum=2)
    check_integer("max_components", max_components, minimum=2)
    key = as_key(key)
    noisy = np.flatnonzero(variance > 0)
    chosen = _subset(noisy, max_components, key)
    deviations = _deviations(sampler, key, state.weights, chosen, num_draws=num_draws, chunk_size=chunk_size)
    noise = np.asarray(deviations, np.float64) / np.sqrt(variance[chosen])
    layers = trees.layers(state.weights)
    layer = np.repeat(np.arange(len(layers)), [trees.num_weights(tree) for tree in layers.values()])
    return NoiseDraws(noise, ratios[chosen], len(variance) - len(noisy), len(noisy), layer[chosen], tuple(layers))


def variance_and_ratios(sampler: Any, state: Any) -> tuple[Floats, Floats]:
    """Return the current 𝒱_i and 𝒯_i of every component as vectors; raise for samplers that do not measure 𝒱."""
    if not sampler.refreshes or not hasattr(state, "gradient_variance"):
        raise ValueError(f"sampler = {sampler.name} does not measure mini-batch noise; use pseudo_langevin")
    ratios = masses.temperature_ratios(state.gradient_variance, state.masses, state.temperature, **sampler.dynamics)

    def vector(tree: Weights) -> Floats:
        full = jax.tree.map(lambda values, w: np.broadcast_to(np.asarray(values), w.shape), tree, state.weights)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(full)]).astype(np.float64)

    return vector(state.gradient_variance), vector(ratios)


def _subset(components: np.ndarray, size: int, key: Key) -> np.ndarray:
    """Return at most `size` of the components, chosen at random, in order."""
    if len(components) <= size:
        return components
    order = np.asarray(jax.random.permutation(jax.random.fold_in(key, 0), len(components)))
    return np.sort(components[order[:size]])


@partial(jax.jit, static_argnames=("num_draws", "chunk_size"))
def _deviations(
    sampler: Any, key: Key, weights: Weights, components: Array, num_draws: int, chunk_size: int | None
) -> Array:
    """Return ∇U^(b) − ∇U, axes (draw, component)."""
    exact = trees.ravel(exact_sums(sampler.potential, weights, sampler.dataset, chunk_size).gradient)

    def deviation(index: Array) -> Array:
        batch = sampler.dataset.draw(jax.random.fold_in(key, index), sampler.batch_size)
        return (trees.ravel(sampler.gradient(weights, batch)) - exact)[components]

    return lax.map(deviation, 1 + jnp.arange(num_draws))


def ks_distances(noise: ArrayLike) -> Floats:
    """Return the Kolmogorov–Smirnov distance of every component's draws (draw, component) from N(0, 1)."""
    from scipy import special  # noqa: PLC0415

    ordered = special.ndtr(np.sort(np.asarray(noise, np.float64), axis=0))
    num = len(ordered)
    steps = np.arange(1, num + 1)[:, None] / num
    return np.maximum((steps - ordered).max(axis=0), (ordered - steps + 1 / num).max(axis=0))


def ks_fraction(noise: ArrayLike, significance: float = 0.05) -> float:
    """Return the share of components whose KS test against N(0, 1) has p > 0.05: 0.95 for noise N(0, 𝒱)."""
    from scipy import stats  # noqa: PLC0415

    return float(np.mean(ks_distances(noise) < stats.kstwo.isf(significance, np.shape(noise)[0])))


def ks_shape_fraction(noise: ArrayLike, critical: float = 1.329) -> float:
    """Return the same for components divided by their root mean square: 0.95 for Gaussian noise of any variance.

    An estimated scale makes the distances D smaller. The 5 % point of (√n + 0.12 + 0.11/√n)·D, with Stephens'
    correction for n draws (J. Am. Stat. Assoc. 69, 730 (1974)), was found by simulation: `critical`.
    """
    values = np.asarray(noise, np.float64)
    scale = np.sqrt(np.mean(values**2, axis=0))
    distances = ks_distances(np.divide(values, scale, out=np.zeros_like(values), where=scale > 0))
    root = np.sqrt(len(values))
    return float(np.mean(distances * (root + 0.12 + 0.11 / root) < critical))


def misplaced_energy(noise: Floats, ratios: Floats, momentum_retention: float) -> tuple[float, float]:
    """Return (1 + c1²)·⟨𝒯_i·|⟨R_i²⟩ − 1|⟩, the share of energy in the wrong components, and its jackknife error.

    |⟨R²⟩ − 1| of n draws is positive by chance: √(2/n)·√(2/π) where R is N(0, 1), in general with the standard
    deviation of R² instead of √2. This is subtracted. Where 𝒱 is wrong by more than chance, too much is subtracted:
    0.05·𝒯 for 1000 draws.
    """
    num_draws, squares, factor = len(noise), noise**2, 1 + momentum_retention**2
    by_chance = squares.std(axis=0, ddof=1) * math.sqrt(2 / (math.pi * num_draws))
    total = squares.sum(axis=0)
    value = factor * float(np.mean(ratios * (np.abs(total / num_draws - 1) - by_chance)))
    left_out = [
        factor * float(np.mean(ratios * np.abs((total - part.sum(axis=0)) / (num_draws - len(part)) - 1)))
        for part in np.array_split(squares, min(20, num_draws))
    ]
    return value, math.sqrt(len(left_out) - 1) * float(np.std(left_out))


class CollectiveNoise(NamedTuple):
    """Share of the energy that correlated mini-batch noise moves to collective directions."""

    share: float  # share H of the directions that can be seen; a lower estimate
    share_error: float  # standard error of `share`
    share_bound: float  # upper bound on H
    eigenvalues: Floats  # λ of these directions, largest first, as of the full network
    independent_components: float  # N²/tr(C²): independent components that would be as correlated by chance


def collective_noise(
    noise: ArrayLike, ratios: ArrayLike, momentum_retention: float, *, num_components: int | None = None
) -> CollectiveNoise:
    """Bracket the share of energy that uncorrected correlations of the mini-batch noise move.

    Pseudo-Langevin subtracts the diagonal 𝒱 of the noise's covariance. With the correlation matrix C of the mini-batch
    noise, all noise of a step has, in units of the thermal noise, the covariance 1 + (1 + c1²)·𝒯·(C − 1). A direction
    of eigenvalue λ is held at T·[1 + (1 + c1²)·𝒯·(λ − 1)]. The trace of C − 1 is zero: the mean temperature is right,
    but energy moves from the many directions with λ < 1 to the few with λ > 1. The share moved,

        H = (1 + c1²)·𝒯·(1/N)·Σ_k max(λ_k − 1, 0)   ≤ (1 + c1²)·𝒯,

    is bracketed from n draws, which see far fewer than N² correlations: from below by the eigenvalues that stand out of
    the noise of n draws (Marchenko–Pastur); from above by Cauchy and Schwarz. tr(C²) can be estimated without bias from
    pairs of draws, and with s1 the sum and s2 the sum of squares of λ − 1 over the directions seen,
    Σ max(λ − 1, 0) ≤ [s1 + √(N·(tr C² − N − s2))]/2.

    Args:
        noise: draws (draw, component) in units of the current √𝒱.
        ratios: current 𝒯_i; C is weighted with √(𝒯_i·𝒯_j)/mean 𝒯 of the actual noise, 𝒯_i·⟨R_i²⟩.
        momentum_retention: c1.
        num_components: components of the full network, if `noise` holds a random subset. A subset sees the eigenvalue
            of a collective direction smaller in proportion, and H unchanged.
    """
    values = np.asarray(noise, np.float64)
    num_draws, num = values.shape
    scale = np.sqrt(np.mean(values**2, axis=0))
    ratio = np.asarray(ratios, np.float64) * scale**2
    mean_ratio = float(ratio.mean())
    weight = np.sqrt(ratio / mean_ratio)
    weighted = values * np.divide(weight, scale, out=np.zeros(num), where=scale > 0)
    gram = weighted @ weighted.T
    squares, squares_error = _trace_of_square(gram)
    diagonal = float(np.sum(weight**4))
    spikes = _spikes(np.linalg.eigvalsh(gram)[::-1] / num_draws, num_draws, num)
    s1, s2 = float(np.sum(spikes - 1)), float(np.sum((spikes - 1) ** 2))
    # One-sided 95 % bound on tr(C²); what the directions seen do not explain may be spread in the worst way.
    unexplained = max(squares + 1.645 * squares_error - diagonal - s2, 0.0)
    bound = min(max(s1, 0.5 * (s1 + math.sqrt(num * unexplained))), float(num))
    unit = (1 + momentum_retention**2) * mean_ratio / num
    error = math.sqrt(2 / num_draws * float(np.sum(spikes**2)))
    full = 1 + (spikes - 1) * (num_components or num) / num
    return CollectiveNoise(unit * s1, unit * error, unit * bound, full, num / max(squares / diagonal, 1.0))


def _trace_of_square(gram: Floats) -> tuple[float, float]:
    """Return tr(C²) = ⟨(R_a·R_b)²⟩ over pairs of different draws and its standard error (a U-statistic of order 2)."""
    num = len(gram)
    squared = gram**2
    np.fill_diagonal(squared, 0.0)
    per_draw = squared.sum(axis=1) / (num - 1)
    return float(per_draw.mean()), float(2 * per_draw.std(ddof=1) / math.sqrt(num))


def _spikes(observed: Floats, num_draws: int, num: int) -> Floats:
    """Return the population eigenvalues that belong to the sample eigenvalues outside of the noise.

    Sample eigenvalues of white noise end at (1 + √γ)², γ = components/draws, up to a width (Johnstone 2001). An
    eigenvalue λ > 1 + √γ appears as ℓ = λ·(1 + γ/(λ − 1)), solved here for λ (Baik and Silverstein 2006).
    """
    aspect = num / num_draws
    root_sum = math.sqrt(num_draws) + math.sqrt(num)
    edge = root_sum**2 / num_draws
    width = root_sum * (num_draws**-0.5 + num**-0.5) ** (1 / 3) / num_draws
    outside = observed[observed > edge + 3 * width]
    half = (outside + 1 - aspect) / 2
    return half + np.sqrt(np.maximum(half**2 - outside, 0.0))


def total_noise(minibatch: ArrayLike, white: ArrayLike, ratios: ArrayLike) -> Floats:
    """Return √𝒯·R^(b) + √(1 − 𝒯)·R: all noise of a half step, in units of the thermal noise."""
    ratio = np.asarray(ratios, np.float64)
    return np.sqrt(ratio) * np.asarray(minibatch) + np.sqrt(np.maximum(1 - ratio, 0.0)) * np.asarray(white)


def correlations(noise: ArrayLike) -> Floats:
    """Return the elements C_ij, i < j, of the correlation matrix of draws (draw, component).

    For uncorrelated noise their standard deviation is 1/√draws. Components that no draw moved are left out.
    """
    values = np.asarray(noise, np.float64)
    matrix: Floats = np.atleast_2d(np.corrcoef(values[:, np.ptp(values, axis=0) > 0], rowvar=False))
    return matrix[np.triu_indices(len(matrix), 1)]


def autocorrelation(series: ArrayLike, max_lag: int) -> Floats:
    """Return χ(Δt) = N⁻¹·Σ_i [⟨x_i(t+Δt)·x_i(t)⟩ − ⟨x_i⟩²], Δt = 0 … max_lag, of a series (time, component)."""
    values = np.asarray(series, np.float64)
    num = len(values)
    check_integer("max_lag", max_lag, minimum=0, maximum=num - 1, remedy="record more consecutive steps")
    centred = values - values.mean(axis=0)
    return np.array([np.mean(centred[lag:] * centred[: num - lag]) for lag in range(max_lag + 1)])


@dataclass(frozen=True)
class NoiseStudy:
    """Mini-batch noise along a run, the arrays of Fig. 3a–c; axes called kind are (mini-batch, white, total)."""

    steps: np.ndarray  # steps of the measurements, (time,)
    last_refresh: np.ndarray  # step at which the current 𝒱 was measured, (time,)
    ks_fraction: Floats  # share of components with KS p > 0.05, (time,)
    noise_edges: Floats  # bin edges of `noise_density`
    noise_density: Floats  # density of the mini-batch noise over all components and draws, (time, bin)
    correlation_edges: Floats  # bin edges of `correlation_density`
    correlation_density: Floats  # density of the elements C_ij, (time, kind, bin)
    correlation_std: Floats  # standard deviation of the elements C_ij, (time, kind); 1/√draws for white noise
    autocorrelation: Floats  # χ(Δt), Δt = 0, 1, …, along consecutive steps of the run, (time, kind, lag)
    num_silent: np.ndarray  # components without noise, which are left out, (time,)


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
    chunk_size: int | None = None,
) -> NoiseStudy:
    """Run one chain and examine its noise at regular times.

    Args:
        sampler: from `pseudo_langevin`.
        weights: the start.
        temperature: T.
        num_steps: length of the run.
        measure_every: steps between measurements.
        key: random key, or an integer seed.
        num_draws: mini-batches drawn at each measurement.
        num_consecutive: steps of the run after each measurement whose noise enters the autocorrelation.
        max_lag: longest Δt of the autocorrelation.
        num_correlated: components, chosen at random, among which correlations are computed.
        chunk_size: examples held at once for exact gradients.
    """
    check_positive("temperature", temperature)
    check_integer("measure_every", measure_every, minimum=1, maximum=num_steps, remedy="measure at least once")
    check_integer("num_consecutive", num_consecutive, minimum=2)
    check_integer("max_lag", max_lag, minimum=0, maximum=num_consecutive - 1, remedy="raise num_consecutive")
    key = as_key(key)
    run = Run(sampler, temperatures=[temperature], chunk_size=chunk_size)
    noise_edges, correlation_edges = np.linspace(-4, 4, 82), np.linspace(-0.5, 0.5, 82)
    measured: list[dict[str, Any]] = []
    for record in run.records(run.start(weights, key), stop=num_steps, every=measure_every):
        state = jax.tree.map(lambda leaf: leaf[0], record.states)
        measure_key = jax.random.fold_in(key, record.step)
        draws = draw(sampler, state, measure_key, num_draws=num_draws, chunk_size=chunk_size)
        chosen = _subset(np.arange(draws.noise.shape[1]), num_correlated, measure_key)
        seed = np.asarray(jax.random.key_data(measure_key)).ravel()
        white = np.random.default_rng(seed).standard_normal((num_draws, len(chosen)))
        few, ratios = draws.noise[:, chosen], draws.ratios[chosen]
        elements = [correlations(noise) for noise in (few, white, total_noise(few, white, ratios))]
        series = consecutive_noise(
            run, record.states, num_steps=num_consecutive, num_components=num_correlated, key=measure_key
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


def consecutive_noise(run: Run, states: Any, *, num_steps: int, num_components: int, key: Key) -> list[Floats]:
    """Return mini-batch, white and total noise (step, component) of the next steps of a run's first chain.

    The states are not changed. Silent components are left out; `num_components` of the others are chosen at random.
    """
    first, stop = int(states.step[0]), int(states.step[0]) + num_steps
    variance, _ = variance_and_ratios(run.sampler, jax.tree.map(lambda leaf: leaf[0], states))
    chosen, rows = _subset(np.flatnonzero(variance > 0), num_components, key), []
    for record in run.records(jax.tree.map(jnp.copy, states), first=first, stop=stop, every=stop + 1, pause_every=1):
        state = jax.tree.map(lambda leaf: leaf[0], record.states)
        variance, ratios = (values[chosen] for values in variance_and_ratios(run.sampler, state))
        deviation, white = _noise_of_step(run.sampler, state, chosen, chunk_size=run.chunk_size)
        minibatch = np.asarray(deviation, np.float64) / np.sqrt(variance)
        rows.append((minibatch, np.asarray(white, np.float64), total_noise(minibatch, white, ratios)))
    return [np.stack(kind) for kind in zip(*rows, strict=True)]


@partial(jax.jit, static_argnames="chunk_size")
def _noise_of_step(sampler: Any, state: Any, components: Array, chunk_size: int | None) -> tuple[Array, Array]:
    """Return ∇U^(b) − ∇U and the white noise ξ of the step that led to `state`."""
    before = state._replace(step=state.step - 1)  # batch and noise are functions of the key and the step
    gradient = trees.ravel(sampler.gradient(state.weights, sampler.draw(before)))
    exact = trees.ravel(exact_sums(sampler.potential, state.weights, sampler.dataset, chunk_size).gradient)
    white = trees.ravel(normal_like(stream_key(state.key, Stream.NOISE), state.weights, before.step))
    return (gradient - exact)[components], white[components]
