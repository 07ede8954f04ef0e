"""The two-temperature ensemble check (Shirts, J. Chem. Theory Comput. 9, 909 (2013)).

Whatever the density of states, two samples of exp(−U/T) at T1 and T2 satisfy

    ln[P2(U)/P1(U)] = const − (1/T2 − 1/T1)·U,

so the ratio of the two histograms is linear in U with a slope that contains no unknown. The slope is found by maximum
likelihood: given U, the probability that a sample came from T2 is a logistic function of it. Unlike the kinetic and
virial temperatures, which are first moments, this looks at the width of the energy distribution too.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .averages import MIN_DRAWS, Floats, as_chains, inefficiency

MAX_SEPARATION = 4.0
"""Distance of the two means, in standard deviations, beyond which the histograms hardly share a bin."""
BEST_SEPARATION = 2.0
"""Distance at which the slope is determined best, about."""
MIN_SAMPLES = 20
"""Fewer independent samples than this at either temperature are not fitted."""
MAX_BINS = 20
"""Of the histograms whose ratio is drawn."""


class EnsembleCheck(NamedTuple):
    """The measured slope of ln[P2(U)/P1(U)] against what it must be."""

    ratio: float
    """Measured slope over −(1/T2 − 1/T1); 1 is right. NaN where it cannot be measured."""
    standard_error: float
    """Of `ratio`, by bootstrap over blocks longer than the autocorrelation."""
    expected_slope: float
    num_samples: tuple[float, float]
    """Independent samples at the two temperatures."""
    separation: float
    """Distance between the means of U in units of their standard deviation."""
    suggested_temperature: float
    """A temperature next to T1 whose energies overlap well with those at T1."""

    @property
    def deviation(self) -> float:
        """How many standard errors the slope is off."""
        return (self.ratio - 1) / self.standard_error

    @property
    def overlap(self) -> bool:
        """Whether the two distributions overlap enough to compare them."""
        return self.separation <= MAX_SEPARATION


class EnergyRatio(NamedTuple):
    """ln[P2(U)/P1(U)] bin by bin, beside the line that it must follow."""

    energies: Floats
    """The middles of the bins that hold samples of both temperatures."""
    log_ratios: Floats
    standard_errors: Floats
    expected: Floats
    """The line of slope −(1/T2 − 1/T1) through the measured points; its height is the one number that is fitted."""


def energy_ratio(first: ArrayLike, second: ArrayLike, temperatures: tuple[float, float]) -> EnergyRatio | None:
    """The two histograms' ratio, as a picture shows it; None where they cannot be compared, as in the check.

    Args:
        first: potential U at T1, (draw,) or (chain, draw), burn-in already discarded.
        second: potential U at T2.
        temperatures: (T1, T2).
    """
    chains = [as_chains(first), as_chains(second)]
    effective = [_effective(u) for u in chains]
    if not (min(effective) >= MIN_SAMPLES and _separation(chains) <= MAX_SEPARATION):
        return None
    low, high = max(u.min() for u in chains), min(u.max() for u in chains)
    if not high > low:
        return None
    edges = np.linspace(low, high, int(np.clip(min(effective) / 10, 4, MAX_BINS)) + 1)
    counts = np.stack([np.histogram(u, edges)[0] for u in chains])
    shared = (counts > 0).all(axis=0)
    energies = ((edges[1:] + edges[:-1]) / 2)[shared]
    shares = counts[:, shared] / np.array([[u.size] for u in chains])
    log_ratios = np.log(shares[1] / shares[0])
    # The variance of ln n is 1/n, for independent samples.
    independent = shares * np.array(effective)[:, None]
    variances = (1 / independent).sum(axis=0)
    slope = -(1 / temperatures[1] - 1 / temperatures[0])
    offset = np.average(log_ratios - slope * energies, weights=1 / variances) if len(energies) else 0.0
    return EnergyRatio(energies, log_ratios, np.sqrt(variances), offset + slope * energies)


def two_temperature_check(
    first: ArrayLike, second: ArrayLike, temperatures: tuple[float, float], *, num_bootstrap: int = 200, seed: int = 0
) -> EnsembleCheck:
    """Measure the slope of ln[P2(U)/P1(U)].

    Args:
        first: potential U at T1, (draw,) or (chain, draw), burn-in already discarded.
        second: potential U at T2.
        temperatures: (T1, T2).
        num_bootstrap: resamplings for the standard error.
        seed: of the bootstrap.
    """
    chains = [as_chains(first), as_chains(second)]
    effective = (_effective(chains[0]), _effective(chains[1]))
    low, high = temperatures
    expected = -(1 / high - 1 / low)
    separation = _separation(chains)
    suggested = _neighbour(low, high, float(chains[0].std()))
    if not (min(effective) >= MIN_SAMPLES and separation <= MAX_SEPARATION):
        return EnsembleCheck(math.nan, math.nan, expected, effective, separation, suggested)
    energies = np.concatenate([u.ravel() for u in chains])
    scaled = (energies - energies.mean()) / energies.std()
    from_second = np.repeat([0.0, 1.0], [u.size for u in chains])
    random = np.random.default_rng(seed)
    resampled = np.concatenate([_block_weights(u, random, num_bootstrap) for u in chains], axis=1)
    weights = np.concatenate([np.ones((1, len(energies))), resampled])
    ratios = _logistic_slopes(scaled, from_second, weights) / energies.std() / expected
    return EnsembleCheck(float(ratios[0]), float(ratios[1:].std()), expected, effective, separation, suggested)


def _separation(chains: list[Floats]) -> float:
    """Distance of the means in units of the standard deviation."""
    spread = math.sqrt((chains[0].var() + chains[1].var()) / 2)
    return abs(float(chains[1].mean() - chains[0].mean())) / spread if spread > 0 else math.inf


def _effective(chains: Floats) -> float:
    """Independent samples in all chains."""
    return sum(len(chain) / inefficiency(chain) for chain in chains) if chains.shape[1] >= MIN_DRAWS else 0.0


def _block_weights(chains: Floats, random: np.random.Generator, num_bootstrap: int) -> Floats:
    """How often every draw occurs in resamplings of whole blocks; axes (resampling, draw of all chains).

    Blocks of 8·g draws are as good as independent; they are shorter, down to 4·g, where there would be fewer than 20.
    """
    inefficient = float(np.mean([inefficiency(chain) for chain in chains]))
    length = math.ceil(min(8 * inefficient, max(4 * inefficient, chains.size / MIN_SAMPLES)))
    blocks_per_chain = -(-chains.shape[1] // length)
    num_blocks = len(chains) * blocks_per_chain
    counts = random.multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), num_bootstrap).astype(np.float64)
    by_chain = counts.reshape(num_bootstrap, len(chains), blocks_per_chain)
    return np.repeat(by_chain, length, axis=2)[:, :, : chains.shape[1]].reshape(num_bootstrap, -1)


def _neighbour(low: float, high: float, fluctuation: float) -> float:
    """The temperature next to `low`, towards `high`, whose mean energy lies BEST_SEPARATION deviations away.

    The mean energy moves by the variance of U times the change of 1/T.
    """
    change = BEST_SEPARATION / fluctuation if fluctuation > 0 else math.inf
    inverse = 1 / low - math.copysign(change, high - low)
    return 1 / inverse if inverse > 0 else math.inf


def _logistic_slopes(x: Floats, label: Floats, weights: Floats) -> Floats:
    """Slopes of weighted logistic regressions of `label` on `x`, one for each row of weights, by Newton's method."""
    num_fits = len(weights)
    offset, slope = np.zeros(num_fits), np.zeros(num_fits)
    for _ in range(50):
        probability = 1 / (1 + np.exp(-np.clip(offset[:, None] + slope[:, None] * x, -50, 50)))
        residual = weights * (label - probability)
        curvature = weights * probability * (1 - probability) + 1e-12
        h00, h01, h11 = curvature.sum(1), curvature @ x, curvature @ x**2
        g0, g1 = residual.sum(1), residual @ x
        determinant = h00 * h11 - h01**2
        # Steps are bounded: Newton overshoots where the curvature is nearly gone.
        change_offset = np.clip((h11 * g0 - h01 * g1) / determinant, -2, 2)
        change_slope = np.clip((h00 * g1 - h01 * g0) / determinant, -2, 2)
        offset, slope = offset + change_offset, slope + change_slope
        if max(np.abs(change_offset).max(), np.abs(change_slope).max()) < 1e-9:
            break
    return slope
