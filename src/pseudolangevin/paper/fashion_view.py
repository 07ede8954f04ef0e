"""The rows and the picture of `fashion`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..diagnostics.averages import Average, average
from ..published import published_numbers
from .generalization_view import OVERFITTING, rise
from .results import Row, row
from .thermodynamics import published_value

TOLERANCE = 0.006
"""Of test errors, three times the standard error of 10 000 images over four starts."""
ADAM = "Adam"


@dataclass(frozen=True)
class Curves:
    """All starts of one temperature, or of Adam."""

    temperature: float | None
    """None: Adam."""
    steps: np.ndarray
    test_errors: np.ndarray
    """(start, record)."""
    errors: np.ndarray
    """Of the training images, (start, record)."""
    seconds_per_step: float
    """Of the whole group side by side."""
    best: np.ndarray
    """Test error of every start at its least validation error, for Adam; empty otherwise."""
    alive: np.ndarray
    """Whether every class of a start still shows a signal at the end."""
    suffix: str = ""

    @property
    def label(self) -> str:
        """For rows and panels."""
        return (ADAM if self.temperature is None else f"T = {self.temperature:g}") + self.suffix

    @property
    def living(self) -> np.ndarray:
        """Indices of the starts to average over: those alive, or all where none is."""
        return np.flatnonzero(self.alive) if self.alive.any() else np.arange(len(self.alive))


def rows_of(curves: list[Curves], scale: str) -> list[Row]:
    """Equilibrium errors, no overfitting at any temperature, and Adam's best and later rise."""
    rows: list[Row] = []
    for curve in curves:
        rows += _adam_rows(curve, scale) if curve.temperature is None else _sampled_rows(curve, scale)
    trained = next((curve for curve in curves if curve.temperature is None), None)
    if trained is not None:
        same = [curve for curve in curves if curve.temperature is not None and not curve.suffix]  # the same λ
        rows += [_beside_adam(curve, trained, scale) for curve in same]
    return rows


def _beside_adam(curve: Curves, trained: Curves, scale: str) -> Row:
    """Projections differ by ±0.01 in how much they leave to learn; the difference depends less on that."""
    measured = average(curve.test_errors[curve.living], burn_in=0.5).mean - trained.best[trained.living].mean()
    published = _published(curve, "test_error", scale)
    if published is not None:
        published -= published_numbers()["fashion"]["adam_best_test_error"]
    tolerance = TOLERANCE if published is not None else 0.01 if scale == "paper" else 0.02
    quantity = f"test error at {curve.label} less that of Adam, stopped early"
    return row(quantity, measured, published=published, tolerance=tolerance)


def _published(curve: Curves, name: str, scale: str) -> float | None:
    if scale != "paper" or curve.temperature is None:
        return None
    return published_value("pseudo_langevin", curve.temperature, f"equilibrium_{name}", "fashion")


def _sampled_rows(curve: Curves, scale: str) -> list[Row]:
    rows = []
    for name, values in (("test_error", curve.test_errors), ("train_error", curve.errors)):
        measured = average(values[curve.living], burn_in=0.5)
        reference = _published(curve, name, scale)
        tolerance = TOLERANCE if reference is not None and name == "test_error" else None
        quantity = f"{name} at {curve.label}"
        error = measured.standard_error
        rows.append(row(quantity, measured.mean, standard_error=error, published=reference, tolerance=tolerance))
    # Averaged over the starts, which leaves little but what they have in common.
    rising = rise(curve.test_errors[curve.living].mean(axis=0))
    rows.append(row(f"rise of the test error after its least, {curve.label}", rising, tolerance=OVERFITTING))
    return [*rows, _dead_row(curve)]


def _dead_row(curve: Curves) -> Row:
    """Most starts must be alive for the averages to mean anything."""
    dead = int((~curve.alive).sum())
    return row(f"starts with a dead class, {curve.label}", dead, tolerance=len(curve.alive) // 2)


def _adam_rows(curve: Curves, scale: str) -> list[Row]:
    section = published_numbers()["fashion"]
    known = (section["adam_best_test_error"], section["adam_late_test_error"]) if scale == "paper" else (None, None)
    best, late = _over_starts(curve.best[curve.living]), _over_starts(curve.test_errors[curve.living, -1])
    climb = late.mean - best.mean
    return [
        row(
            "test error of Adam, stopped early",
            best.mean,
            standard_error=best.standard_error,
            published=known[0],
            tolerance=TOLERANCE if known[0] is not None else None,
        ),
        row(
            "test error of Adam at the end of its run",
            late.mean,
            standard_error=late.standard_error,
            published=known[1],
        ),
        Row(
            "rise of the test error after its best, Adam",
            known[1] - known[0] if known[0] is not None and known[1] is not None else None,
            climb,
            None,
            None,
            # The network of the smoke scale hardly overfits under this regulariser: shown, not judged.
            bool(np.isfinite(climb) if scale == "smoke" else climb > OVERFITTING),
        ),
        _dead_row(curve),
    ]


def _over_starts(values: np.ndarray) -> Average:
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return Average(float(values.mean()), error, float(len(values)))


def draw(curves: list[Curves], images: np.ndarray, projections: np.ndarray) -> Figure:
    """a) images and what the network sees of them; b) test error against time, a colour for every start."""
    figure = Figure(figsize=(13, 6), layout="constrained")
    grid = figure.add_gridspec(1, 2, width_ratios=(1, 2))
    left, right = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    for column, pair in zip(left.subplots(len(images), 2), zip(images, projections, strict=True), strict=True):
        for axes, picture in zip(column, (pair[0], pair[1].reshape(10, 10)), strict=True):
            axes.imshow(picture, cmap="gray")
            axes.set(xticks=[], yticks=[])
    ordered = sorted(curves, key=lambda c: (c.suffix, c.temperature or 0.0))
    panels = right.subplots(-(-len(ordered) // 2), 2, sharey=True, squeeze=False).ravel()
    low = min(float(np.nanmin(c.test_errors)) for c in curves)
    for axes, curve in zip(panels, ordered, strict=False):
        _panel(axes, curve)
        axes.set(title=curve.label, ylim=(low - 0.005, low + 0.065))
    for axes in panels[len(ordered) :]:
        axes.set_axis_off()
    for axes in panels[::2]:
        axes.set_ylabel("test error")
    return figure


def _panel(axes: Axes, curve: Curves) -> None:
    for index, values in enumerate(curve.test_errors):
        axes.plot(curve.steps * curve.seconds_per_step, values, lw=1, color=f"C{index}")
    axes.set_xlabel("seconds of wall-clock time, all chains of the group side by side", fontsize=8)
