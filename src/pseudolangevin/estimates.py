"""Averages of a trace by temperature, over the chains that did not fail."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from .checks import check_interval
from .diagnostics.averages import Average, average
from .types import HEALTHY

DEFAULT_DISCARD = 0.5
"""Share of the records at the start of a run that averages leave out, while the chains equilibrate."""


def kept(trace: xr.Dataset, discard: float = DEFAULT_DISCARD) -> xr.Dataset:
    """The records that averages are taken over: all but the first share `discard`, at least the last one."""
    check_interval("discard", discard, 0, 1, "it is the share of the records to leave out")
    num_draws = trace.sizes.get("draw", 0)
    first = min(math.floor(discard * num_draws), max(num_draws - 1, 0))
    return trace.isel(draw=slice(first, None), missing_dims="ignore")


def healthy_chains(trace: xr.Dataset, temperature: int) -> np.ndarray:
    """Which chains at a temperature (by its index) had not failed by the last record."""
    if "status" not in trace or trace.sizes.get("draw", 0) == 0:
        return np.ones(trace.sizes.get("chain", 0), bool)
    return np.isin(trace["status"].values[temperature, :, -1], HEALTHY)


def average_by_temperature(values: xr.DataArray, trace: xr.Dataset) -> list[Average]:
    """One average for each temperature, over the chains that did not fail and hold numbers throughout."""
    averages = []
    for index in range(values.sizes["temperature"]):
        array = np.asarray(values.isel(temperature=index).transpose("chain", "draw").values, np.float64)
        usable = healthy_chains(trace, index) & np.isfinite(array).all(axis=1)
        if array.shape[1] == 0 or not usable.any():
            averages.append(Average(math.nan, math.nan, math.nan))
        else:
            averages.append(average(array[usable]))
    return averages
