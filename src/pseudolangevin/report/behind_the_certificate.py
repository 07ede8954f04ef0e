"""Figures of what two of the certificate's checks look at: ratios of energy histograms, and the mini-batch noise."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import xarray as xr
from scipy import stats

from ..diagnostics.ensemble import energy_ratio
from ..diagnostics.noise_histogram import EDGES, NoiseHistogram
from ..estimates import healthy_chains
from .figure import Axis, Figure, Series
from .view import View, scientific

MAX_PAIRS = 8


def ensemble_figure(kept: xr.Dataset, view: View) -> Figure | None:
    """ln[P2(U)/P1(U)] of neighbouring temperatures whose energies overlap, with the line of the slope it must have."""
    if "potential" not in kept or not all(value > 0 for value in view.values):
        return None
    values = np.asarray(kept["potential"].transpose("temperature", "chain", "draw").values, np.float64)
    temperatures = np.asarray(kept["temperature"].values, np.float64)
    series: list[Series] = []
    legend: list[tuple[str, str]] = []
    for low, high in pairwise(int(t) for t in np.argsort(temperatures)):
        pair = (float(temperatures[low]), float(temperatures[high]))
        first, second = (values[t][healthy_chains(kept, t) & np.isfinite(values[t]).all(axis=1)] for t in (low, high))
        ratio = energy_ratio(first, second, pair) if first.size and second.size else None
        if ratio is None or len(ratio.energies) < 2 or len(legend) == MAX_PAIRS:
            continue
        index = len(legend)
        key, name = f"ensemble{index}", f"T = {scientific(pair[0])} and {scientific(pair[1])}"
        points = Series(
            key, name, f"c{index}", ratio.energies, ratio.log_ratios, ratio.standard_errors, None, None, "points"
        )
        line = Series(key, f"{name}, expected", f"c{index}", ratio.energies, ratio.expected, dash="dash")
        series += [points, line]
        legend.append((key, name))
    return Figure(
        "ensemble",
        "Two-temperature check",
        "ln[P2(U)/P1(U)] of neighbouring temperatures, from the histograms of U over the kept records (bars: one "
        "standard error). If both sample exp(−U/T), the points follow a line of slope −(1/T2 − 1/T1) (dashed) whatever "
        "the density of states; only its height is fitted.",
        Axis("U"),
        Axis("ln [P2(U) / P1(U)]"),
        series,
        legend=legend,
    )


def noise_figure(histograms: Sequence[NoiseHistogram], view: View) -> Figure | None:
    """The distribution of the mini-batch noise that the certificate drew, chains averaged, beside N(0, 1)."""
    middles = (EDGES[1:] + EDGES[:-1]) / 2
    series = []
    for position, temperature in enumerate(view.values):
        found = [histogram for histogram in histograms if histogram.temperature == temperature]
        if found:
            density = np.mean([histogram.density for histogram in found], axis=0)
            key, color = view.style(position)
            shown = np.where(density > 0, density, np.nan)
            series.append(Series(key, view.name(position), color, middles, shown))
    if not series:
        return None
    series.append(Series("noise-normal", "N(0, 1)", "ink", middles, stats.norm.pdf(middles), dash="dash"))
    outside = max(histogram.outside for histogram in histograms)
    beyond = f" Beyond ±5: at most {outside:.2g} of the numbers." if outside > 0 else ""
    return Figure(
        "noise-distribution",
        "Noise against N(0, 1)",
        "R = 𝒱^(−1/2)·(∇U^(b) − ∇U) of all components at the final weights, as the certificate drew it: N(0, 1) where "
        f"the noise is Gaussian and 𝒱 is right.{beyond}",
        Axis("mini-batch noise R, in units of √𝒱"),
        Axis("density", log=True),
        series,
        legend=[("noise-normal", "N(0, 1)")],
    )
