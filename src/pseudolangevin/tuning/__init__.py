"""Choosing a sampler's settings by measurement: the fastest diffusion within a bias budget."""

from .measure import Measured, measure
from .result import Bias, Tried, Tuned
from .search import tune

__all__ = ["Bias", "Measured", "Tried", "Tuned", "measure", "tune"]
