"""R-hat and effective sample size over chains, by ArviZ; the only file that knows it.

`arviz.ess` and `arviz.rhat` take arrays (chain, draw) in the 0.x and the 1.x series alike. ArviZ is imported when first
needed: it takes a second, and 0.23 announces 1.0 with a warning on import.
"""

from __future__ import annotations

import math
import warnings
from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike

from .averages import MIN_DRAWS, as_chains


def rhat(values: ArrayLike) -> float:
    """Rank-normalised split R-hat of values (chain, draw); NaN with fewer than two chains or four draws."""
    chains = as_chains(values)
    if chains.shape[0] < 2 or not _usable(chains):
        return math.nan
    return float(np.asarray(_arviz().rhat(chains)))


def effective_samples(values: ArrayLike) -> float:
    """Bulk effective sample size of values (chain, draw); NaN with fewer than four draws."""
    chains = as_chains(values)
    if not _usable(chains):
        return math.nan
    return float(np.asarray(_arviz().ess(chains)))


def _usable(chains: np.ndarray) -> bool:
    return chains.shape[1] >= MIN_DRAWS and bool(np.isfinite(chains).all())


def _arviz() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz  # noqa: PLC0415
    return arviz
