"""Figures against steps: observables, temperature ratios, gradient variance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import xarray as xr

from .figure import POINTS_PER_FIGURE, Axis, Figure, Reference, Series, thin
from .view import View

STEPS = Axis("steps", tight=True)
_DASHES = ("solid", "dash", "dot")

# variable, title, axis label, whether it is shown in units of T, caption
_TRACES = [
    ("loss", "Loss", "loss", False, "Mean loss over the training set, without the regulariser."),
    ("squared_norm", "Squared norm |w|²", "|w|²", False, "Sum of the squares of all weights."),
    ("error", "Training error", "error", False, "Share of misclassified training examples."),
    ("test_error", "Test error", "test error", False, "Share of misclassified test examples."),
    (
        "kinetic_temperature",
        "Kinetic temperature",
        "kinetic temperature / T",
        True,
        "⟨p²/M⟩/T; equipartition asks for 1. The axis fits the kept records.",
    ),
    (
        "virial_temperature",
        "Virial temperature",
        "virial temperature / T",
        True,
        "⟨w·∇U⟩/(N·T) with the exact gradient; 1 at equilibrium, far from it while the weights drift. "
        "The axis fits the kept records.",
    ),
]


def trace_figures(trace: xr.Dataset, view: View, shade: tuple[float, float] | None) -> list[Figure]:
    """One figure for each observable that was recorded, a curve for each chain."""
    figures = []
    for variable, title, label, over_temperature, caption in _TRACES:
        if variable not in trace or (over_temperature and not all(value > 0 for value in view.values)):
            continue
        values = _values(trace, variable)
        series = []
        for position, temperature in enumerate(view.temperatures):
            scale = view.values[position] if over_temperature else 1.0
            for chain in view.chains:
                series.append(_curve(trace, view, position, chain, values[temperature, chain] / scale))
        references = [Reference(1.0, "equipartition")] if over_temperature else []
        identity = f"trace-{variable.replace('_', '-')}"
        curves = _thinned(series)
        figures.append(
            Figure(identity, title, caption, STEPS, Axis(label), curves, references, shade, fit_kept=over_temperature)
        )
    return figures


def ratio_figures(trace: xr.Dataset, view: View, maximum: float | None, limit: float | None) -> list[Figure]:
    """Temperature ratios 𝒯_i against 𝒯max and against the limit 1/(1+c1²); what each refresh found and did.

    Chains of a temperature are drawn as one: quantiles by their median, the largest by its maximum.
    """
    references = [Reference(maximum, "𝒯max")] if maximum is not None and np.isfinite(maximum) else []
    if limit is not None:
        references.append(Reference(limit, "limit 1/(1+c1²)"))
    figures = []
    if "temperature_ratio" in trace and "max_temperature_ratio" in trace:
        quantiles = _over_chains(np.nanmedian, _values(trace, "temperature_ratio"))
        largest = _over_chains(np.nanmax, _values(trace, "max_temperature_ratio"))
        series = []
        for position, temperature in enumerate(view.temperatures):
            low, middle, high = (quantiles[temperature, :, i] for i in (0, quantiles.shape[-1] // 2, -1))
            band = _merged(trace, view, position, middle)
            series.append(replace(band, mark="band", low=low, high=high))
            series.append(_merged(trace, view, position, middle, suffix=", median"))
            series.append(_merged(trace, view, position, largest[temperature], dash="dot", suffix=", largest"))
        names = [f"{q:.0%}" for q in np.asarray(trace["quantile"].values)] if "quantile" in trace.coords else ["", ""]
        figures.append(
            Figure(
                "ratios",
                "Temperature ratios 𝒯_i",
                "𝒯_i, the mini-batch share of the noise, over all weights: median (line), "
                f"{names[0]} to {names[-1]} (band) and largest (dotted).",
                STEPS,
                Axis("𝒯_i", log=True),
                _thinned(series),
                references,
            )
        )
    singles = [
        (
            "peak_temperature_ratio",
            "Largest 𝒯_i at refresh",
            "largest 𝒯_i",
            "Largest 𝒯_i at the last measurement of 𝒱, before masses were raised: how far the noise had drifted.",
            references,
            True,
        ),
        ("raised_share", "Masses raised", "share raised", "Share of masses that the last refresh raised.", [], False),
        (
            "refresh_interval",
            "Refresh interval",
            "interval, steps",
            "Steps between measurements of 𝒱: grows while they agree, falls back when they do not.",
            [],
            False,
        ),
    ]
    for variable, title, label, caption, lines, log in singles:
        if variable in trace:
            values = _values(trace, variable)
            series = [
                _curve(trace, view, position, chain, values[temperature, chain])
                for position, temperature in enumerate(view.temperatures)
                for chain in view.chains
            ]
            axis = Axis(label, log=log)
            figures.append(Figure(variable.replace("_", "-"), title, caption, STEPS, axis, _thinned(series), lines))
    return figures


def variance_figure(trace: xr.Dataset, view: View) -> Figure | None:
    """Mean 𝒱 of each layer along the run, chains averaged; a line style for each layer."""
    if "gradient_variance" not in trace or trace.sizes["layer"] == 0:
        return None
    values = _over_chains(np.nanmean, _values(trace, "gradient_variance"))
    layers = [str(name) for name in trace["layer"].values]
    shown = layers[: len(_DASHES)] if len(layers) > len(_DASHES) else layers
    series = []
    for position, temperature in enumerate(view.temperatures):
        for index, layer in enumerate(shown):
            curve = _merged(trace, view, position, values[temperature, :, index], _DASHES[index], f", {layer}")
            series.append(curve)
    styles = ", ".join(f"{layer} ({style})" for layer, style in zip(shown, ("solid", "dashed", "dotted"), strict=False))
    left_out = f" The first {len(shown)} of {len(layers)} layers." if len(shown) < len(layers) else ""
    caption = f"Mean variance 𝒱 of the mini-batch gradient within a layer: {styles}.{left_out}"
    return Figure(
        "variance-trace",
        "𝒱 along the run",
        caption,
        STEPS,
        Axis("mean 𝒱", log=True),
        _thinned(series),
    )


def _values(trace: xr.Dataset, variable: str) -> np.ndarray:
    """As float64, the dimensions in order: (temperature, chain, draw, …)."""
    array = trace[variable].transpose("temperature", "chain", "draw", ...)
    return np.asarray(array.values, np.float64)


def _steps(trace: xr.Dataset) -> np.ndarray:
    if "step" in trace.coords:
        return np.asarray(trace["step"].values, np.float64)
    return np.arange(1, trace.sizes["draw"] + 1, dtype=np.float64)


def _over_chains(reduce: Callable[..., np.ndarray], values: np.ndarray) -> np.ndarray:
    """Reduce over the chain axis; NaN where every chain is NaN, without NumPy's warning about it."""
    empty = np.isnan(values).all(axis=1, keepdims=True)
    reduced = reduce(np.where(empty, 0.0, values), axis=1)
    return np.where(empty.squeeze(axis=1), np.nan, reduced)


def _curve(trace: xr.Dataset, view: View, position: int, chain: int, values: np.ndarray) -> Series:
    key, color = view.style(position, chain)
    return Series(key, view.name(position, chain), color, _steps(trace), values)


def _merged(
    trace: xr.Dataset, view: View, position: int, values: np.ndarray, dash: str = "solid", suffix: str = ""
) -> Series:
    key, color = view.style(position)
    return Series(key, view.name(position) + suffix, color, _steps(trace), values, dash=dash)


def _thinned(series: list[Series]) -> list[Series]:
    """Keep the figure within its number of points; bands keep every so many-th value."""
    limit = max(40, POINTS_PER_FIGURE // max(len(series), 1))
    thinned = []
    for curve in series:
        if curve.low is not None and curve.high is not None:
            stride = -(-len(curve.x) // limit)
            x, y, low, high = (values[::stride] for values in (curve.x, curve.y, curve.low, curve.high))
            thinned.append(replace(curve, x=x, y=y, low=low, high=high))
        else:
            x, y = thin(curve.x, curve.y, limit)
            thinned.append(replace(curve, x=x, y=y))
    return thinned
