"""Averages along chains, with standard errors corrected for autocorrelation.

A standard error is √(variance/n_eff). For the number of effective samples n_eff, the autocorrelation is summed by
Geyer's initial monotone sequence, and chains that disagree count as few samples. Sizes and R-hat are those of ArviZ.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from .._trees import check_interval
from ..samplers.base import HEALTHY

Floats = NDArray[np.float64]
Draws = TypeVar("Draws", xr.Dataset, NDArray[Any])

DEFAULT_DISCARD = 0.5  # share of the records at the start of a run that averages leave out
MIN_EFFECTIVE_SAMPLES = 20  # with fewer, an estimated error is not reliable: nothing passes, and nothing fails by it


class Average(NamedTuple):
    """Mean with its standard error and effective sample size."""

    mean: float
    standard_error: float  # corrected for autocorrelation; NaN for fewer than four draws and for a constant
    effective_samples: float  # independent draws with the same standard error, at most the number of draws; or NaN

    def __str__(self) -> str:
        return plus_minus(self.mean, self.standard_error)


def average(values: ArrayLike, *, burn_in: float = 0.0) -> Average:
    """Return the mean of values (draw,) or (chain, draw), without the share `burn_in` at the start of every chain."""
    chains = kept(as_chains(values), burn_in)
    mean = float(chains.mean()) if chains.size else math.nan
    effective = effective_samples(chains)
    if math.isnan(effective):
        return Average(mean, math.nan, math.nan)
    within = float(chains.var(axis=1, ddof=1).mean()) * (1 - 1 / chains.shape[1])
    between = float(chains.mean(axis=1).var(ddof=1)) if len(chains) > 1 else 0.0
    return Average(mean, math.sqrt((within + between) / effective), effective)


def effective_samples(values: ArrayLike, *, bulk: bool = False) -> float:
    """Return the effective sample size of the mean, or the bulk size of split and rank-normalised chains.

    It is at most the number of draws, and NaN for fewer than four draws and for a constant.
    """
    chains = as_chains(values)
    if chains.size == 0 or chains.shape[1] < 4 or not np.isfinite(chains).all() or np.ptp(chains) == 0:
        return math.nan
    return min(_ess(_normal_scores(_split(chains)) if bulk else chains), float(chains.size))


def rhat(values: ArrayLike) -> float:
    """Return the rank-normalised split R-hat of values (chain, draw); NaN for one chain or fewer than four draws."""
    chains = as_chains(values)
    if chains.shape[0] < 2 or chains.shape[1] < 4 or not np.isfinite(chains).all():
        return math.nan
    split = _split(chains)
    found = []
    for scores in map(_normal_scores, (split, np.abs(split - np.median(split)))):
        within, between = scores.var(axis=1, ddof=1).mean(), scores.mean(axis=1).var(ddof=1)
        found.append(math.sqrt(between / within + 1 - 1 / scores.shape[1]) if within > 0 else math.nan)
    return max(found)


def as_chains(values: ArrayLike) -> Floats:
    """Return the values as float64 with axes (chain, draw)."""
    array = np.asarray(values, np.float64)
    if array.ndim not in (1, 2):
        raise ValueError(f"values has shape {array.shape}; pass an array (draw,) or (chain, draw)")
    return np.atleast_2d(array)


def kept(draws: Draws, discard: float = DEFAULT_DISCARD) -> Draws:
    """Return a trace, or an array along its last axis, without the first share `discard`; the last draw is kept."""
    check_interval("discard", discard, 0, 1, "it is the share of the records to leave out")
    num_draws = draws.sizes.get("draw", 0) if isinstance(draws, xr.Dataset) else draws.shape[-1]
    retained = slice(min(math.floor(discard * num_draws), max(num_draws - 1, 0)), None)
    return draws.isel(draw=retained, missing_dims="ignore") if isinstance(draws, xr.Dataset) else draws[..., retained]


def healthy_chains(trace: xr.Dataset) -> NDArray[np.bool_]:
    """Return whether each chain (temperature, chain) had not failed by the last record."""
    status = trace["status"].transpose("temperature", "chain", "draw").values
    return np.all(np.isin(status[..., -1:], HEALTHY), axis=-1)


def chains_at(values: xr.DataArray, trace: xr.Dataset, temperature: int) -> Floats:
    """Return the draws (chain, draw) of healthy and finite chains at one temperature, given by its index."""
    array = np.asarray(values.isel(temperature=temperature).transpose("chain", "draw").values, np.float64)
    return array[healthy_chains(trace)[temperature] & np.isfinite(array).all(axis=1)]


def average_by_temperature(values: xr.DataArray, trace: xr.Dataset) -> list[Average]:
    """Return one average for each temperature, over the chains that are healthy and finite."""
    return [average(chains_at(values, trace, index)) for index in range(values.sizes["temperature"])]


class Drift(NamedTuple):
    """Change of a series from its first to its last third; NaN for fewer than 12 draws."""

    change: float  # mean of the last third minus mean of the first third
    standard_error: float  # of `change`, corrected for the autocorrelation of the detrended series
    fluctuation: float  # standard deviation about the straight line
    effective_samples: float  # independent draws in the detrended series


def drift(series: ArrayLike) -> Drift:
    """Compare the first and the last third of one chain's draws (after Geweke).

    A drift itself looks like one long correlation, so the error is measured after a straight line is removed.
    """
    values = np.asarray(series, np.float64)
    if values.ndim != 1:
        raise ValueError(f"series has shape {values.shape}; pass the draws of one chain")
    num = len(values)
    if num < 12 or not np.isfinite(values).all():
        return Drift(math.nan, math.nan, math.nan, math.nan)
    time, third = np.arange(num) - (num - 1) / 2, num // 3
    residual = values - values.mean() - (time @ values / (time @ time)) * time
    fluctuation, effective = float(residual.std(ddof=2)), effective_samples(residual)
    change = float(values[-third:].mean() - values[:third].mean())
    return Drift(change, fluctuation * math.sqrt(2 * num / (third * effective)), fluctuation, effective)


def plus_minus(value: float, error: float = math.nan) -> str:
    """Return text like '0.3249 ± 0.0012', with two digits of the error; the value alone without a positive error."""
    if not math.isfinite(value):
        return "-"
    if not (math.isfinite(error) and error > 0):
        return f"{value:.4g}"
    largest = max(abs(value), error)
    power = math.floor(math.log10(largest)) if largest < 1e-3 or largest >= 1e6 else 0
    digits = max(1 - math.floor(math.log10(error)) + power, 0)
    text = f"{value / 10.0**power:.{digits}f} ± {error / 10.0**power:.{digits}f}"
    return f"({text})e{power:+03d}" if power else text


def _ess(chains: Floats) -> float:
    """Return the effective sample size of the mean (Vehtari et al. 2021, as in ArviZ)."""
    num_chains, num = chains.shape
    size = 1 << (2 * num - 1).bit_length()
    spectrum = np.fft.rfft(chains - chains.mean(axis=1, keepdims=True), size)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, size)[:, :num].mean(axis=0) / num
    within = covariance[0] * num / (num - 1)
    total = covariance[0] + (chains.mean(axis=1).var(ddof=1) if num_chains > 1 else 0.0)
    rho = 1 - (within - covariance) / total
    rho[0] = 1.0
    # Geyer: only the first sums of pairs are used, as long as they are positive, and they decrease.
    pairs = rho[: 2 * len(range(1, num - 3, 2))].reshape(-1, 2).sum(axis=1)
    count = int(np.logical_and.accumulate(pairs > 0).sum())
    time = -1 + 2 * np.minimum.accumulate(pairs[:count]).sum() + max(0.0, rho[2 * count])
    return num_chains * num / max(float(time), 1 / math.log10(num_chains * num))


def _split(chains: Floats) -> Floats:
    half = chains.shape[1] // 2
    return np.concatenate([chains[:, :half], chains[:, -half:]])


def _normal_scores(chains: Floats) -> Floats:
    """Return the ranks of all values, as quantiles of a normal distribution."""
    ranks = stats.rankdata(chains, method="average").reshape(chains.shape)
    return special.ndtri((ranks - 0.375) / (chains.size + 0.25))
