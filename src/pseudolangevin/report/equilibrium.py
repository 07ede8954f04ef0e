"""Figures of the equilibrium: averages against temperature, layers, energies, diffusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from ..diagnostics.averages import Average
from ..estimates import average_by_temperature
from ..published import PublishedAverages
from .displacement import mean_squared_displacement
from .figure import Axis, Figure, Reference, Series
from .view import View

MAX_BINS = 40

_AVERAGES = [
    ("loss", "Loss against T", "⟨loss⟩"),
    ("squared_norm", "|w|² against T", "⟨|w|²⟩"),
    ("error", "Error against T", "⟨error⟩"),
]


def average_figures(
    temperatures: np.ndarray,
    averages: Mapping[str, Sequence[Average]],
    published: Sequence[PublishedAverages],
) -> list[Figure]:
    """Averages with error bars, beside the published ones."""
    figures = []
    for variable, title, label in _AVERAGES:
        if variable not in averages:
            continue
        series: list[Series] = []
        legend: list[tuple[str, str]] = []
        with_test = variable == "error" and "test_error" in averages
        measured = [(variable, "training set" if with_test else "this run")]
        measured += [("test_error", "test set")] if with_test else []
        for index, (name, words) in enumerate(measured):
            points = _average_series(f"average-{name}-run", words, f"c{index}", index, temperatures, averages[name])
            series += [points, replace(points, mark="line", error=None)]
            legend.append((points.key, words))
        for index, other in enumerate(published):
            if variable in other.values:
                points = _published_series(other, variable, index)
                series.append(points)
                legend.append((points.key, points.name))
        caption = "Averages over the kept records and all chains; bars are standard errors."
        if any(variable in other.values for other in published):
            caption += " Published bars are thermal standard deviations."
        axis = Axis("T", log=bool((temperatures > 0).all()))
        figures.append(
            Figure(f"average-{variable.replace('_', '-')}", title, caption, axis, Axis(label), series, legend=legend)
        )
    return figures


def layer_figure(kept: xr.Dataset, view: View) -> Figure | None:
    """Virial temperature of each layer over T."""
    if "layer_virial_temperature" not in kept or not all(value > 0 for value in view.values):
        return None
    layers = [str(name) for name in kept["layer"].values]
    table = [
        average_by_temperature(kept["layer_virial_temperature"].isel(layer=index), kept) for index in range(len(layers))
    ]
    series = []
    for position, temperature in enumerate(view.temperatures):
        # Side by side within a layer, so that the bars of different temperatures do not cover each other.
        offset = 0.5 * ((position + 0.5) / len(view.temperatures) - 0.5)
        means = np.array([row[temperature].mean for row in table]) / view.values[position]
        errors = np.array([row[temperature].standard_error for row in table]) / view.values[position]
        key, color = view.style(position)
        x = np.arange(len(layers)) + offset
        name = view.name(position)
        series.append(Series(key, name, color, x, means, errors, mark="points", marker=position % 5))
    return Figure(
        "layers",
        "Virial temperature by layer",
        "⟨w·∇U⟩/(N·T) within each layer; every one is 1 at equilibrium.",
        Axis("layer", categories=layers),
        Axis("virial temperature / T"),
        series,
        [Reference(1.0, "equipartition")],
    )


def variance_figure(temperatures: np.ndarray, kept: xr.Dataset) -> Figure | None:
    """Mean 𝒱 of each layer against temperature."""
    if "gradient_variance" not in kept:
        return None
    series, legend = [], []
    for index, layer in enumerate(str(name) for name in kept["layer"].values[:8]):
        averages = average_by_temperature(kept["gradient_variance"].isel(layer=index), kept)
        key = f"variance-layer{index}"
        series.append(_average_series(key, layer, f"c{index}", index, temperatures, averages))
        legend.append((key, layer))
    return Figure(
        "variance",
        "Gradient variance 𝒱 by layer",
        "Mean variance 𝒱 of the mini-batch gradient within a layer; masses are proportional to it.",
        Axis("T", log=bool((temperatures > 0).all())),
        Axis("mean 𝒱", log=True),
        series,
        legend=legend,
    )


def energy_figure(kept: xr.Dataset, view: View) -> Figure | None:
    """Histograms of U, each scaled to its peak: neighbours that overlap can be reweighted into each other."""
    if "potential" not in kept:
        return None
    values = np.asarray(kept["potential"].transpose("temperature", "chain", "draw").values, np.float64)
    series = []
    for position, temperature in enumerate(view.temperatures):
        energies = values[temperature][np.isfinite(values[temperature])]
        if energies.size < 2 or np.ptp(energies) == 0:
            continue
        num_bins = int(np.clip(len(np.histogram_bin_edges(energies, "fd")) - 1, 5, MAX_BINS))
        counts, edges = np.histogram(energies, num_bins)
        # The outline of the bars, down to zero at both ends.
        x = np.repeat(edges, 2)
        y = np.concatenate([[0.0], np.repeat(counts / counts.max(), 2), [0.0]])
        key, color = view.style(position)
        series.append(Series(key, view.name(position), color, x, y, low=np.zeros_like(y), high=y, mark="band"))
        series.append(Series(key, view.name(position), color, x, y))
    return Figure(
        "energies",
        "Energy histograms",
        "Histograms of U = loss + λ/(2N)·|w|² over the kept records, each scaled to its peak.",
        Axis("U"),
        Axis("relative frequency"),
        series,
    )


def diffusion_figure(steps: np.ndarray, samples: Mapping[str, np.ndarray], view: View) -> Figure | None:
    """Mean squared displacement against the number of steps."""
    lags, displacements = mean_squared_displacement(steps, samples)
    if len(lags) == 0:
        return None
    series = []
    for position, temperature in enumerate(view.temperatures):
        if temperature >= len(displacements):
            continue
        key, color = view.style(position)
        y = displacements[temperature]
        series.append(Series(key, view.name(position), color, lags, y))
        series.append(replace(series[-1], mark="points", marker=position % 5))
    return Figure(
        "diffusion",
        "Diffusion of the weights",
        "⟨|w(t₀+t) − w(t₀)|²⟩/N of the kept samples in the second half of the run. Slope 1 is free diffusion; "
        "a plateau is a basin explored.",
        Axis("steps t", log=True),
        Axis("⟨|Δw|²⟩ / N", log=True),
        series,
    )


def _published_series(other: PublishedAverages, variable: str, index: int) -> Series:
    deviation = other.deviations.get(variable)
    return Series(
        f"average-{variable}-published{index}",
        other.label,
        f"c{index + 2}",
        np.asarray(other.temperatures),
        np.asarray(other.values[variable]),
        None if deviation is None else np.asarray(deviation),
        mark="points",
        marker=index + 2,
        hollow=True,
    )


def _average_series(
    key: str, name: str, color: str, marker: int, temperatures: np.ndarray, averages: Sequence[Average]
) -> Series:
    return Series(
        key,
        name,
        color,
        temperatures,
        np.array([average.mean for average in averages]),
        np.array([average.standard_error for average in averages]),
        mark="points",
        marker=marker,
    )
