"""A figure as data: what the script in the page draws. Plain numbers and words, ready for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SIGNIFICANT_DIGITS = 6
POINTS_PER_FIGURE = 8_000
"""Long traces are thinned to about this many points a figure, which keeps a page under two megabytes."""


@dataclass(frozen=True)
class Axis:
    """One axis. `categories` name the positions 0, 1, 2… in place of numbers; `tight` leaves no margin at the ends."""

    label: str
    log: bool = False
    categories: list[str] | None = None
    tight: bool = False


@dataclass(frozen=True)
class Series:
    """One curve or one set of points.

    Args:
        key: what a legend entry switches; series with the same key go together, in every figure of the page.
        name: what the readout says.
        color: a colour of the page's palette: t0, t1… by temperature, c0, c1… by category, ink.
        x, y: the points.
        error: half length of the error bars.
        low, high: a band in place of a line.
        mark: "line", "points" or "band".
        dash: "solid", "dash" or "dot".
        marker: number of the marker's shape.
        hollow: markers without filling, for what others measured.
    """

    key: str
    name: str
    color: str
    x: np.ndarray
    y: np.ndarray
    error: np.ndarray | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    mark: str = "line"
    dash: str = "solid"
    marker: int = 0
    hollow: bool = False


@dataclass(frozen=True)
class Reference:
    """A horizontal line: a limit, or what theory says."""

    value: float
    label: str


@dataclass(frozen=True)
class Figure:
    """One figure of the page."""

    id: str
    title: str
    caption: str
    x: Axis
    y: Axis
    series: list[Series]
    references: list[Reference] = field(default_factory=list)
    shade: tuple[float, float] | None = None
    """A range of x that averages leave out."""
    fit_kept: bool = False
    """Fit the y axis to what averages keep; the start of the run may leave the frame."""
    legend: list[tuple[str, str]] = field(default_factory=list)
    """(key, label) of what this figure alone shows; temperatures have one legend for the whole page."""

    def drawable(self) -> bool:
        """Whether there is anything to see."""
        return any(np.isfinite(series.y).any() for series in self.series)

    def to_json(self) -> dict[str, Any]:
        """Plain data; equal abscissae are stored once."""
        abscissae: dict[bytes, int] = {}
        arrays: list[list[float | None]] = []
        curves = []
        for series in self.series:
            x = np.ascontiguousarray(series.x, np.float64)
            if x.tobytes() not in abscissae:
                abscissae[x.tobytes()] = len(arrays)
                arrays.append(numbers(x))
            curve: dict[str, Any] = {"x": abscissae[x.tobytes()], "y": numbers(series.y)}
            for name in ("key", "name", "color", "mark", "dash", "marker", "hollow"):
                curve[name] = getattr(series, name)
            for name in ("error", "low", "high"):
                values = getattr(series, name)
                if values is not None:
                    curve[name] = numbers(values)
            curves.append(curve)
        return {
            "id": self.id,
            "title": self.title,
            "xAxis": _axis(self.x),
            "yAxis": _axis(self.y),
            "abscissae": arrays,
            "series": curves,
            "references": [{"value": r.value, "label": r.label} for r in self.references if math.isfinite(r.value)],
            "shade": list(self.shade) if self.shade else None,
            "fitKept": self.fit_kept,
            "legend": [{"key": key, "label": label} for key, label in self.legend],
        }


def _axis(axis: Axis) -> dict[str, Any]:
    return {"label": axis.label, "log": axis.log, "categories": axis.categories, "tight": axis.tight}


def numbers(values: np.ndarray | Sequence[float]) -> list[float | None]:
    """Values for JSON: six digits, and null for what is not finite."""
    return [number(value) for value in np.asarray(values, np.float64).ravel().tolist()]


def number(value: float) -> float | None:
    """One value for JSON."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded


def thin(x: np.ndarray, y: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `limit` of the points: the lowest and the highest of each stretch, so that no excursion is lost."""
    if len(x) <= limit or limit < 2:
        return x, y
    chosen: list[int] = []
    for stretch in np.array_split(np.arange(len(x)), limit // 2):
        finite = stretch[np.isfinite(y[stretch])]
        if len(finite) == 0:
            chosen.append(int(stretch[0]))  # keeps the gap visible
        else:
            chosen.extend(sorted({int(finite[np.argmin(y[finite])]), int(finite[np.argmax(y[finite])])}))
    return x[chosen], y[chosen]
