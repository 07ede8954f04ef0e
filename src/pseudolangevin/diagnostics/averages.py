"""Averages along chains, with standard errors that know about autocorrelation.

The mean of n correlated draws is as uncertain as that of n/g independent ones, with the statistical inefficiency

    g = 1 + 2·Σ_t ρ(t),

ρ the normalised autocorrelation. The sum is cut by Geyer's initial monotone sequence: pairs ρ(2k) + ρ(2k+1) are
positive and decreasing for a reversible chain, so what is not is noise. With several chains the variance between their
means enters ρ, so chains that disagree count as few samples. ArviZ computes its effective sample size the same way;
this is a version that returns errors, costs little, and works for one chain.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import check_interval

Floats = NDArray[np.float64]

MIN_DRAWS = 4
"""Below this many draws nothing can be said about autocorrelation."""


class Average(NamedTuple):
    """A mean with what it is worth."""

    mean: float
    standard_error: float
    """Autocorrelation-corrected; NaN where there are too few draws to know, or all are the same."""
    effective_samples: float
    """Independent draws that would be as good, at most their number; NaN where the standard error is."""


def average(values: ArrayLike, *, burn_in: float = 0.0) -> Average:
    """The mean over chains and draws, its standard error and the effective number of samples.

    Args:
        values: array (draw,) or (chain, draw), for example ``result.trace["loss"].sel(temperature=T)``.
        burn_in: share of the draws to discard at the start of every chain; nothing is discarded unless asked for.

    Example:
        >>> average([1.0, 3.0, 1.0, 3.0, 1.0, 3.0]).mean
        2.0
    """
    chains = discard(as_chains(values), burn_in)
    mean = float(chains.mean()) if chains.size else math.nan
    if chains.shape[1] < MIN_DRAWS or not np.isfinite(chains).all():
        return Average(mean, math.nan, math.nan)
    spread = _pooled_variance(chains)
    effective = chains.size / inefficiency(chains)
    return Average(mean, math.sqrt(spread / effective), effective)


def as_chains(values: ArrayLike) -> Floats:
    """The values as float64 with axes (chain, draw)."""
    array = np.asarray(values, np.float64)
    if array.ndim not in (1, 2):
        raise ValueError(f"values has shape {array.shape}; pass an array (draw,) or (chain, draw)")
    return np.atleast_2d(array)


def discard(chains: Floats, burn_in: float) -> Floats:
    """What is left after the first share of the last axis."""
    check_interval("burn_in", burn_in, 0.0, 0.99, "it is the share of the draws to discard at the start")
    return chains[..., math.floor(burn_in * chains.shape[-1]) :]


def inefficiency(values: ArrayLike) -> float:
    """g = 1 + 2·Σρ(t), draws per independent sample; at least 1, so that antithetic draws earn no credit.

    NaN for a constant: a chain that does not move shows nothing of its fluctuations, which is not certainty.
    """
    chains = as_chains(values)
    num_draws = chains.shape[1]
    spread = _pooled_variance(chains)
    if not spread > 0:
        return math.nan
    unbiased = _autocovariance(chains).mean(axis=0) * num_draws / (num_draws - 1)
    correlation = 1 - (unbiased[0] - unbiased) / spread
    correlation[0] = 1.0
    pairs = correlation[: num_draws // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    positive = pairs[: negative[0]] if len(negative) else pairs
    return max(1.0, 2 * float(np.minimum.accumulate(positive).sum()) - 1) if len(positive) else 1.0


def _autocovariance(chains: Floats) -> Floats:
    """Σ_t x(t)·x(t + lag)/n about every chain's own mean, by fast Fourier transform; axes (chain, lag)."""
    num_draws = chains.shape[1]
    centred = chains - chains.mean(axis=1, keepdims=True)
    length = 2 ** math.ceil(math.log2(2 * num_draws))  # padded, so that the correlation is not circular
    power = np.abs(np.fft.rfft(centred, length)) ** 2
    return np.fft.irfft(power, length)[:, :num_draws] / num_draws


def _pooled_variance(chains: Floats) -> float:
    """Variance within the chains plus that between their means."""
    within = float(chains.var(axis=1, ddof=1).mean())
    between = float(chains.mean(axis=1).var(ddof=1)) if len(chains) > 1 else 0.0
    return within * (1 - 1 / chains.shape[1]) + between
