"""Averages of a trace by temperature, with standard errors that know about autocorrelation.

The estimator is the one of `diagnostics.averages` where that is installed, and batch means otherwise.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import xarray as xr

from .checks import check_interval
from .types import Status

DEFAULT_DISCARD = 0.5
"""Share of the records at the start of a run that averages leave out, while the chains equilibrate."""


class Average(NamedTuple):
    """The mean of a quantity, its standard error, and the number of independent values that it is worth."""

    mean: float
    standard_error: float
    effective_samples: float


Estimator: TypeAlias = Callable[[np.ndarray], Average]
"""A function of values (chain, draw)."""


def batch_means(values: np.ndarray) -> Average:
    """Mean and standard error from the means of √n batches of consecutive draws of each chain.

    Batches longer than the autocorrelation time have independent means, so their scatter gives the error; those of all
    chains are pooled, so that chains which disagree widen it.
    """
    num_chains, num_draws = values.shape
    if values.size == 0:
        return Average(math.nan, math.nan, math.nan)
    mean = float(values.mean())
    num_batches = math.isqrt(num_draws)
    if num_chains * num_batches < 2:
        return Average(mean, math.nan, math.nan)
    length = num_draws // num_batches
    # The oldest draws are left out where the batches do not divide them.
    batches = values[:, num_draws - num_batches * length :].reshape(num_chains, num_batches, length).mean(axis=-1)
    squared_error = float(batches.var(ddof=1)) / batches.size
    variance = float(values.var())
    effective = min(float(values.size), variance / squared_error) if squared_error > 0 else math.nan
    return Average(mean, math.sqrt(squared_error), effective)


def default_estimator() -> Estimator:
    """`diagnostics.averages.average` where present, else batch means."""
    try:
        module = importlib.import_module("pseudolangevin.diagnostics.averages")
    except ImportError:
        return batch_means

    def estimator(values: np.ndarray) -> Average:
        if values.shape[1] < 4:
            return batch_means(values)
        return Average(*map(float, tuple(module.average(values))[:3]))

    return estimator


def kept(trace: xr.Dataset, discard: float = DEFAULT_DISCARD) -> xr.Dataset:
    """The records that averages are taken over: all but the first share `discard`, at least the last one."""
    check_interval("discard", discard, 0, 1, "it is the share of the records to leave out")
    num_draws = trace.sizes.get("draw", 0)
    first = min(math.ceil(discard * num_draws), max(num_draws - 1, 0))
    return trace.isel(draw=slice(first, None), missing_dims="ignore")


def healthy_chains(trace: xr.Dataset, temperature: int) -> np.ndarray:
    """Which chains at a temperature (by its index) were still running at the last record."""
    if "status" not in trace or trace.sizes.get("draw", 0) == 0:
        return np.ones(trace.sizes.get("chain", 0), bool)
    return np.asarray(trace["status"].values[temperature, :, -1] == Status.RUNNING)


def average_by_temperature(values: xr.DataArray, trace: xr.Dataset, estimator: Estimator) -> list[Average]:
    """One average for each temperature, over the chains that did not stop and hold numbers throughout."""
    averages = []
    for index in range(values.sizes["temperature"]):
        array = np.asarray(values.isel(temperature=index).transpose("chain", "draw").values, np.float64)
        usable = healthy_chains(trace, index) & np.isfinite(array).all(axis=1)
        if array.shape[1] == 0 or not usable.any():
            averages.append(Average(math.nan, math.nan, math.nan))
        else:
            averages.append(estimator(array[usable]))
    return averages
