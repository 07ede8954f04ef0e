"""The distribution of the mini-batch noise, as a picture shows it beside N(0, 1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .averages import Floats

EDGES: Floats = np.linspace(-5.0, 5.0, 51)
"""Of the bins, in units of √𝒱. Of Gaussian noise, one number in two million lies outside."""


class NoiseHistogram(NamedTuple):
    """R^(b) = 𝒱^(−1/2)·(∇U^(b) − ∇U) of all components and draws at the final weights of one chain."""

    temperature: float
    chain: int
    density: Floats
    """Of R^(b) within `EDGES`; its integral is what does not lie outside."""
    outside: float
    """Share of the numbers beyond ±5."""


def noise_histogram(noise: Floats, temperature: float, chain: int) -> NoiseHistogram:
    """The histogram of draws (draw, component)."""
    counts, _ = np.histogram(noise, EDGES)
    inside = counts.sum() / max(noise.size, 1)
    return NoiseHistogram(temperature, chain, counts / (max(noise.size, 1) * np.diff(EDGES)), 1.0 - float(inside))
