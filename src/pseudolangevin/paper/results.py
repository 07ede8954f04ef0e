"""Results of a reproduction: rows compared with the published numbers, a picture, and the files that hold both."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
import xarray as xr

from ..diagnostics.averages import Average, plus_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {"hMC": "hybrid_monte_carlo", "pL": "pseudo_langevin"}
LABELS = {"loss": "mean cross-entropy", "squared_norm": "|w|²", "error": "training error"}
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")

# Rows, picture and record of all that was measured so far; a reproduction yields one stage after each of its parts.
Stage: TypeAlias = "tuple[list[Row], Figure, dict[str, Any]]"


@dataclass(frozen=True)
class Row:
    """One measured quantity and its published value."""

    quantity: str
    published: float | None
    measured: float
    standard_error: float | None
    tolerance: float | None  # largest accepted deviation from the published value, or from zero; None: not judged
    passed: bool


def row(
    quantity: str,
    measured: float | Average,
    *,
    published: float | None = None,
    tolerance: float | None = None,
    relative: bool = False,
    target: float | None = None,
    at_least: float | None = None,
) -> Row:
    """Return a row with its verdict; a measured value that is not finite never passes.

    The tolerance is the largest accepted deviation from `target`, by default the published value, or zero where there
    is none. A `relative` tolerance is a fraction of the published value; a row without one is then not judged. The
    smallest accepted value, `at_least`, is added to the name.
    """
    value, error = (measured.mean, measured.standard_error) if isinstance(measured, Average) else (measured, math.nan)
    value, published = float(value), None if published is None or math.isnan(published) else published
    if tolerance is not None and relative:
        tolerance = None if published is None else tolerance * abs(published)
    target = target if target is not None else published or 0.0
    passed = math.isfinite(value) and (tolerance is None or abs(value - target) <= tolerance)
    if at_least is not None:
        quantity, passed = f"{quantity} (at least {at_least:g})", passed and value >= at_least
    return Row(quantity, published, value, error if math.isfinite(error) else None, tolerance, passed)


def scatter(values: np.ndarray) -> Average:
    """Return the mean of independent values with its standard error."""
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Average(float(values.mean()), float(error), float(len(values)))


def rise(curve: np.ndarray) -> float:
    """Return the mean of the last tenth of a curve minus that of its lowest tenth."""
    blocks = [block.mean() for block in np.array_split(curve, min(10, len(curve)))]
    return float(blocks[-1] - min(blocks))


def alive(trace: xr.Dataset) -> xr.Dataset:
    """Return the chains without a dead class at the end, or all if every one has one; dimensions chain and draw."""
    dead = trace["dead_class"].isel(draw=-1).any("class").values
    return trace.isel(chain=np.flatnonzero(dead if dead.all() else ~dead))


def adam_rows(trace: xr.Dataset, numbers: Mapping[str, Any], tolerance: float, overfitting: float | None) -> Any:
    """Return the test error of Adam, stopped early, and its rows: early, late, and the rise between them.

    `numbers` are the published ones; the tolerance is that of the early-stopped error where this is published.
    """
    trace = alive(trace)
    errors, steps = trace["test_error"].values, trace["step"].values
    at = [np.flatnonzero(steps == step) for step in trace["best_step"].values[:, -1]]
    best = scatter(np.array([e[i[0]] if len(i) else math.nan for e, i in zip(errors, at, strict=True)]))
    late, known = scatter(errors[:, -1]), numbers.get("adam_best_test_error")
    judged = None if known is None else tolerance
    return best, [
        row("test error of Adam, stopped early", best, published=known, tolerance=judged),
        row("test error of Adam at the end of its run", late, published=numbers.get("adam_late_test_error")),
        row("rise of the test error after its minimum, Adam", late.mean - best.mean, at_least=overfitting),
    ]


@dataclass(frozen=True)
class Reproduction:
    """One figure or table of the paper."""

    name: str
    scale: str
    rows: list[Row]
    figure: Figure
    record: Mapping[str, Any]  # settings and everything else that was measured
    seed: int
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every row passes."""
        return all(r.passed for r in self.rows)

    def write(self, out: Path) -> None:
        """Write NAME.json and NAME.png."""
        provenance = {
            "device": jax.devices()[0].device_kind,
            "versions": {name: metadata.version(name) for name in ("pseudolangevin", "jax", "jaxlib", "numpy")},
            "seed": self.seed,
            "settings": self.record,
            "seconds": round(self.seconds, 1),
        }
        content = {"name": self.name, "scale": self.scale, "rows": [asdict(r) for r in self.rows]}
        text = json.dumps(_plain(content | {"provenance": provenance}), indent=1, allow_nan=False)
        (out / f"{self.name}.json").write_text(text + "\n")
        self.figure.savefig(out / f"{self.name}.png", dpi=150)

    def __str__(self) -> str:
        """Return the rows as text, one a line."""
        lines = [f"{self.name}, {self.scale} scale"]
        for r in self.rows:
            known = [
                f"{n} {v:.4g}" for n, v in (("published", r.published), ("tolerance", r.tolerance)) if v is not None
            ]
            value = plus_minus(r.measured, math.nan if r.standard_error is None else r.standard_error)
            lines.append(f"{'ok   ' if r.passed else 'FAILS'}  {r.quantity}: {', '.join([value, *known])}")
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    """Return numbers, strings, lists and dictionaries ready for JSON; numbers that are not finite become None."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    value = value._asdict() if hasattr(value, "_asdict") else value
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int | str | None) else str(value)


@cache
def published_numbers() -> dict[str, Any]:
    """Return the content of `published.json`, the figure data published with the paper."""
    return json.loads(resources.files(__package__).joinpath("published.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class PublishedAverages:
    """Published equilibrium averages of one sampler by temperature."""

    label: str
    temperatures: list[float]
    values: dict[str, list[float]]
    deviations: dict[str, list[float]]  # thermal standard deviations, where they were published

    def at(self, temperature: float, observable: str) -> float | None:
        """Return the value at a temperature, if it was published."""
        for known, value in zip(self.temperatures, self.values.get(observable, ()), strict=False):
            if math.isclose(temperature, known, rel_tol=1e-3):
                return value
        return None


def published_table(section: str, num_weights: int | None) -> dict[str, PublishedAverages]:
    """Return the published averages of a section by sampler ("hMC", "pL"); none for a network of another size.

    Columns have the names of our observables; `gradient_variance` is the mean over the first two layers.
    """
    table = published_numbers()[section]
    names = {"train_error": "error", "mean_gradient_variance_first_two_layers": "gradient_variance"}
    names |= {"equilibrium_test_error": "test_error", "equilibrium_train_error": "error"}
    found = {}
    for label, method in METHODS.items():
        if num_weights == table["num_weights"] and method in table:
            lines = [list(column) for column in zip(*sorted(table[method]), strict=True)]
            columns = dict(zip([names.get(name, name) for name in table["columns"]], lines, strict=True))
            temperatures = columns.pop("temperature")
            values = {name: column for name, column in columns.items() if not name.endswith("_std")}
            deviations = {name[:-4]: column for name, column in columns.items() if name.endswith("_std")}
            found[label] = PublishedAverages(f"published {label}", temperatures, values, deviations)
    return found


def published_value(section: str, num_weights: int, label: str, temperature: float, name: str) -> float | None:
    """Return the published average of hMC or pL for a network of this size at a temperature, if there is one."""
    table = published_table(section, num_weights).get(label)
    return None if table is None else table.at(temperature, name)


def published_averages(num_weights: int | None, settings: Mapping[str, Any]) -> list[PublishedAverages]:
    """Return the averages published for the spin system of a run; none if the run is of another system.

    `settings` are flat names and values of the run; `weight_decay`, `num_train` and `flip_probability` must be the
    published ones where they are stated.
    """
    system = {"weight_decay": 10.0611, "flip_probability": 0.355, "num_train": 5.0 * (num_weights or 0)}
    for name, value in system.items():
        stated = settings.get(name, value)
        if not isinstance(stated, int | float) or not math.isclose(stated, value, rel_tol=1e-3):
            return []
    return [a for s in ("thermodynamics", "generalization") for a in published_table(s, num_weights).values()]


@dataclass(frozen=True)
class Point:
    """Averages by sampler ("hMC", "pL") and observable for one size and temperature; the first is the reference."""

    num_weights: int
    temperature: float
    averages: Mapping[str, Mapping[str, Average]]

    def published(self, label: str, name: str) -> float:
        """Return the published average; NaN if there is none."""
        sections = ("thermodynamics", "generalization")
        found = [published_value(s, self.num_weights, label, self.temperature, name) for s in sections]
        return next((value for value in found if value is not None), math.nan)

    def rows(self, where: str, tolerance: float, limit: float) -> list[Row]:
        """Return the rows, judged by the relative deviation from the published values and from the reference."""
        rows, (first, *others) = [], self.averages
        for name in LABELS:
            for label, found in self.averages.items():
                known = self.published(label, name)
                quantity = f"{name} at {where}, {label}"
                rows.append(row(quantity, found[name], published=known, tolerance=tolerance, relative=True))
            for label in others:
                value, reference = (self.averages[chosen][name] for chosen in (label, first))
                error = math.hypot(value.standard_error / value.mean, reference.standard_error / reference.mean)
                difference = Average(value.mean / reference.mean - 1, error, math.nan)
                known = self.published(label, name) / self.published(first, name) - 1
                quantity = f"{name} at {where}, {label} over {first}, minus one"
                rows.append(row(quantity, difference, published=known, tolerance=limit, target=0.0))
        return rows


def draw_points(points: Sequence[Point], x: Sequence[float], xlabel: str) -> Figure:
    """Draw measured averages, hollow published ones, and dotted relative deviations from the reference."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(6, 8.5), layout="constrained")
    panels = figure.subplots(len(LABELS), 1)
    for axes, (name, ylabel) in zip(panels, LABELS.items(), strict=True):
        right, reference = axes.twinx(), np.array([next(iter(p.averages.values()))[name].mean for p in points])
        for color, marker, label in zip(COLORS, "sD^vo", points[0].averages, strict=False):
            means, errors, _ = np.array([point.averages[label][name] for point in points]).T
            axes.errorbar(x, means, np.nan_to_num(errors), fmt="o-", ms=5, color=color, label=f"{label}, measured")
            known = [point.published(label, name) for point in points]
            axes.plot(x, known, marker, mfc="none", ms=9, color=color, label=f"{label}, published")
            right.plot(x, np.abs(means / reference - 1), ":", color="0.5")
        axes.set(xscale="log", ylabel=ylabel)
        right.set(ylabel="relative difference", ylim=(0, max(0.05, right.get_ylim()[1])))
    panels[0].legend(frameon=False, fontsize=8)
    panels[-1].set_xlabel(xlabel)
    return figure
