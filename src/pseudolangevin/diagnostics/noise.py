"""Mini-batch noise: whether it is Gaussian, of variance 𝒱 and uncorrelated, as pseudo-Langevin assumes (Fig. 3a–c).

The mini-batch noise at weights w is R^(b) = 𝒱^(−1/2)·(∇U^(b) − ∇U) (eq:MiniBatchNoise), which should be N(0, 1) in
every component. `draw` draws it as the sampler does; most other functions take arrays (draw, component).
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

from .. import _trees as trees
from .. import masses
from .._checks import check_integer, check_positive
from .._random import Stream, as_key, normal_like, stream_key
from .._trees import Array, Key, Weights
from ..gradients import exact_sums
from .averages import Floats


class NoiseDraws(NamedTuple):
    """Independent draws of the mini-batch noise at one point."""

    noise: Floats  # noise R^(b), axes (draw, component); components with 𝒱 = 0 are left out
    ratios: Floats  # current temperature ratios 𝒯_i of these components
    num_silent: int  # components of the full network with 𝒱 = 0, which have no noise
    num_noisy: int  # components of the full network with 𝒱 > 0; `noise` holds all of them or a random subset
    layers: np.ndarray  # layer of each component, as an index into `layer_names`
    layer_names: tuple[str, ...]


def draw(sampler: Any, state: Any, key: Key | int, *, num_draws: int = 250, max_components: int = 10_000) -> NoiseDraws:
    """Draw mini-batch gradients at the weights of one chain and return their noise in units of the current √𝒱.

    In networks larger than `max_components` a random subset is examined. The paper has 250 draws.
    """
    variance, ratios = _variance_and_ratios(sampler, state)
    check_integer("num_draws", num_draws, minimum=2)
    key = as_key(key)
    noisy = np.flatnonzero(variance > 0)
    chosen = _subset(noisy, max_components, key)
    deviations = _deviations(sampler, key, state.weights, chosen, num_draws)
    noise = np.asarray(deviations, np.float64) / np.sqrt(variance[chosen])
    layers = trees.layers(state.weights)
    layer = np.repeat(np.arange(len(layers)), [trees.num_weights(tree) for tree in layers.values()])
    return NoiseDraws(noise, ratios[chosen], len(variance) - len(noisy), len(noisy), layer[chosen], tuple(layers))


def _variance_and_ratios(sampler: Any, state: Any) -> list[Floats]:
    """Return the current 𝒱_i and 𝒯_i of every component as vectors; raise for samplers that do not measure 𝒱."""
    if not sampler.refreshes or not hasattr(state, "gradient_variance"):
        raise ValueError(f"sampler = {sampler.name} does not measure mini-batch noise; use pseudo_langevin")
    ratios = masses.temperature_ratios(state.gradient_variance, state.masses, state.temperature, **sampler.dynamics)
    both = (state.gradient_variance, ratios)
    full = [jax.tree.map(lambda v, w: jnp.broadcast_to(v, w.shape), tree, state.weights) for tree in both]
    return [np.asarray(trees.ravel(tree), np.float64) for tree in full]


def _subset(components: np.ndarray, size: int, key: Key) -> np.ndarray:
    """Return at most `size` of the components, chosen at random, in order."""
    if len(components) <= size:
        return components
    order = np.asarray(jax.random.permutation(jax.random.fold_in(key, 0), len(components)))
    return np.sort(components[order[:size]])


@partial(jax.jit, static_argnums=4)
def _deviations(sampler: Any, key: Key, weights: Weights, components: Array, num_draws: int) -> Array:
    """Return ∇U^(b) − ∇U, axes (draw, component)."""
    sampler = sampler.at(1.0)  # the regulariser is in both
    exact = trees.ravel(exact_sums(sampler.potential, weights, sampler.dataset, None).gradient)

    def deviation(index: Array) -> Array:
        batch = sampler.dataset.draw(jax.random.fold_in(key, index), sampler.batch_size)
        return (trees.ravel(sampler.gradient(weights, batch)) - exact)[components]

    return lax.map(deviation, 1 + jnp.arange(num_draws))


def _ks_distances(noise: Floats) -> Floats:
    """Return the Kolmogorov–Smirnov distance of every component's draws (draw, component) from N(0, 1)."""
    from scipy import special  # noqa: PLC0415

    ordered = special.ndtr(np.sort(noise, axis=0))
    num = len(ordered)
    steps = np.arange(1, num + 1)[:, None] / num
    return np.maximum((steps - ordered).max(axis=0), (ordered - steps + 1 / num).max(axis=0))


def ks_fraction(noise: Floats) -> float:
    """Return the share of components whose KS test against N(0, 1) has p > 0.05: 0.95 for noise N(0, 𝒱)."""
    from scipy import stats  # noqa: PLC0415

    return float(np.mean(_ks_distances(noise) < stats.kstwo.isf(0.05, len(noise))))


def ks_shape_fraction(noise: Floats) -> float:
    """Return the same for components divided by their root mean square: 0.95 for Gaussian noise of any variance."""
    scale = np.sqrt(np.mean(noise**2, axis=0))
    distances = _ks_distances(np.divide(noise, scale, out=np.zeros_like(noise), where=scale > 0))
    # An estimated scale makes the distances smaller. 1.329 is their 5 % point by simulation, with Stephens' correction
    # for the number of draws (J. Am. Stat. Assoc. 69, 730 (1974)).
    root = np.sqrt(len(noise))
    return float(np.mean(distances * (root + 0.12 + 0.11 / root) < 1.329))


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
    noise: Floats, ratios: Floats, momentum_retention: float, *, num_components: int | None = None
) -> CollectiveNoise:
    """Bracket the share of energy that uncorrected correlations of the mini-batch noise (draw, component) move.

    Pseudo-Langevin subtracts only the diagonal 𝒱 of the noise's covariance. A direction of eigenvalue λ of the
    correlation matrix C is held at T·[1 + (1 + c1²)·𝒯·(λ − 1)]. The mean temperature is right, but energy moves from
    the many directions with λ < 1 to the few with λ > 1. The share moved,

        H = (1 + c1²)·𝒯·(1/N)·Σ_k max(λ_k − 1, 0)   ≤ (1 + c1²)·𝒯,

    is bracketed from n draws: from below by the eigenvalues that stand out of the noise of n draws (Marchenko–Pastur);
    from above by Cauchy and Schwarz. With s1 the sum and s2 the sum of squares of λ − 1 over the directions seen,
    Σ max(λ − 1, 0) ≤ [s1 + √(N·(tr C² − N − s2))]/2, and pairs of draws give tr(C²) without bias.

    C is weighted with √(𝒯_i·𝒯_j)/mean 𝒯 of the actual noise. A random subset of `num_components` sees eigenvalues
    smaller in proportion, and H unchanged.
    """
    num_draws, num = noise.shape
    scale = np.sqrt(np.mean(noise**2, axis=0))
    ratio = ratios * scale**2
    mean_ratio = float(ratio.mean())
    weight = np.sqrt(ratio / mean_ratio)
    weighted = noise * np.divide(weight, scale, out=np.zeros(num), where=scale > 0)
    gram = weighted @ weighted.T
    pairs = gram**2
    np.fill_diagonal(pairs, 0.0)
    per_draw = pairs.sum(axis=1) / (num_draws - 1)  # tr(C²) = ⟨(R_a·R_b)²⟩, a U-statistic of order 2
    squares, squares_error = float(per_draw.mean()), float(2 * per_draw.std(ddof=1) / math.sqrt(num_draws))
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


def _spikes(observed: Floats, num_draws: int, num: int) -> Floats:
    """Return the population eigenvalues that belong to the sample eigenvalues outside of the noise.

    Sample eigenvalues of white noise end at (1 + √γ)², γ = components/draws, up to a width (Johnstone 2001). An
    eigenvalue λ > 1 + √γ appears as ℓ = λ·(1 + γ/(λ − 1)), solved here for λ (Baik and Silverstein 2006).
    """
    root_sum = math.sqrt(num_draws) + math.sqrt(num)
    width = root_sum * (num_draws**-0.5 + num**-0.5) ** (1 / 3) / num_draws
    outside = observed[observed > root_sum**2 / num_draws + 3 * width]
    half = (outside + 1 - num / num_draws) / 2
    return half + np.sqrt(np.maximum(half**2 - outside, 0.0))


@dataclass(frozen=True)
class NoiseStudy:
    """Mini-batch noise along a run, the arrays of Fig. 3a–c; axes called kind are (mini-batch, white, total)."""

    noise_edges: Floats  # bin edges of `noise_density`
    correlation_edges: Floats  # bin edges of `correlation_density`
    steps: np.ndarray  # steps of the measurements, (time,)
    last_refresh: np.ndarray  # step at which the current 𝒱 was measured, (time,)
    num_silent: np.ndarray  # components without noise, which are left out, (time,)
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
    from ..chains import Run  # noqa: PLC0415

    check_positive("temperature", temperature)
    check_integer("measure_every", measure_every, minimum=1, maximum=num_steps, remedy="measure at least once")
    check_integer("max_lag", max_lag, minimum=0, maximum=num_consecutive - 1, remedy="raise num_consecutive")
    key, run = as_key(key), Run(sampler, temperatures=[temperature])
    noise_edges, correlation_edges = np.linspace(-4, 4, 82), np.linspace(-0.5, 0.5, 82)
    rows = []
    for record in run.records(run.start(weights, key), stop=num_steps, every=measure_every):
        state = jax.tree.map(lambda leaf: leaf[0], record.states)
        measure_key = jax.random.fold_in(key, record.step)
        draws = draw(sampler, state, measure_key, num_draws=num_draws)
        chosen = _subset(np.arange(draws.noise.shape[1]), num_correlated, measure_key)
        seed = np.asarray(jax.random.key_data(measure_key)).ravel()
        white = np.random.default_rng(seed).standard_normal((num_draws, len(chosen)))
        elements = [_correlations(noise) for noise in _kinds(draws.noise[:, chosen], white, draws.ratios[chosen])]
        series = consecutive_noise(sampler, state, num_consecutive, num_correlated, measure_key)
        centred = [noise - noise.mean(axis=0) for noise in series]
        memory = [[np.mean(x[lag:] * x[: num_consecutive - lag]) for lag in range(max_lag + 1)] for x in centred]
        density = np.histogram(draws.noise, noise_edges, density=True)[0]
        densities = [np.histogram(c, correlation_edges, density=True)[0] for c in elements]
        numbers = (record.step, int(state.last_refresh), draws.num_silent, ks_fraction(draws.noise))
        rows.append((*numbers, density, densities, [c.std() for c in elements], memory))
    return NoiseStudy(noise_edges, correlation_edges, *map(np.asarray, zip(*rows, strict=True)))


def _kinds(minibatch: Floats, white: Floats, ratios: Floats) -> tuple[Floats, Floats, Floats]:
    """Return mini-batch, white and total noise of a half step; total in units of the thermal noise √((1 − c1²)·M·T)."""
    return minibatch, white, np.sqrt(ratios) * minibatch + np.sqrt(np.maximum(1 - ratios, 0.0)) * white


def _correlations(noise: Floats) -> Floats:
    """Return the elements C_ij, i < j, of the correlation matrix, without components that no draw moved."""
    matrix: Floats = np.atleast_2d(np.corrcoef(noise[:, np.ptp(noise, axis=0) > 0], rowvar=False))
    return matrix[np.triu_indices(len(matrix), 1)]


def consecutive_noise(
    sampler: Any, state: Any, num_steps: int, num_components: int, key: Key
) -> tuple[Floats, Floats, Floats]:
    """Return mini-batch, white and total noise (step, component) of the next steps of a chain, at the current 𝒱.

    Silent components are left out; `num_components` of the others are chosen at random.
    """
    variance, ratios = _variance_and_ratios(sampler, state)
    chosen = _subset(np.flatnonzero(variance > 0), num_components, key)
    deviations, white = (np.asarray(x, np.float64) for x in _noise_of_steps(sampler, state, chosen, num_steps))
    return _kinds(deviations / np.sqrt(variance[chosen]), white, ratios[chosen])


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
