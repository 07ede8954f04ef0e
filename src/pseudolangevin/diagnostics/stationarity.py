"""Whether a series has stopped drifting: its first third against its last (after Geweke), and its slope.

A drift hides itself if errors are taken from the series as it is: it looks like one long correlation. So the noise is
measured on what is left after a straight line is removed. For a stationary series that costs two degrees of freedom;
for one that still relaxes it leaves the fast fluctuations, against which the drift stands out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .averages import inefficiency

MIN_DRAWS = 12
"""Below this many draws a drift cannot be told from noise."""


class Drift(NamedTuple):
    """How far a series moved while it was watched."""

    change: float
    """Mean of the last third minus mean of the first."""
    standard_error: float
    """Of `change`, corrected for the autocorrelation of the detrended series; NaN with too few draws."""
    slope: float
    """Least-squares slope times the number of draws: the change over the whole series were it a straight line."""
    fluctuation: float
    """Standard deviation about the straight line."""
    effective_samples: float
    """Independent draws in the detrended series."""


def drift(series: ArrayLike) -> Drift:
    """Compare the first and the last third of one chain's draws.

    Args:
        series: the draws (draw,), burn-in already discarded.
    """
    values = np.asarray(series, np.float64)
    if values.ndim != 1:
        raise ValueError(f"series has shape {values.shape}; pass the draws of one chain")
    num = len(values)
    if num < MIN_DRAWS or not np.isfinite(values).all():
        return Drift(math.nan, math.nan, math.nan, math.nan, math.nan)
    time = np.arange(num) - (num - 1) / 2
    slope = float(time @ values / (time @ time))
    residual = values - values.mean() - slope * time
    fluctuation = float(residual.std(ddof=2))
    effective = num / inefficiency(residual)
    third = num // 3
    change = float(values[-third:].mean() - values[:third].mean())
    standard_error = fluctuation * math.sqrt(2 * num / (third * effective))
    return Drift(change, standard_error, slope * num, fluctuation, effective)
