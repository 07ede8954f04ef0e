"""Results of a reproduction: rows compared with the published numbers, a picture, and the files that hold both."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .. import __version__
from ..diagnostics.averages import Average, plus_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"loss": "mean cross-entropy", "squared_norm": "|w|²", "error": "training error"}
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#b8860b")


@dataclass(frozen=True)
class Row:
    """One measured quantity and its published value."""

    quantity: str
    published: float | None
    published_scaled: float | None  # published value times the ratio of the ideal losses of the two data sets
    measured: float
    standard_error: float | None
    tolerance: float | None  # largest accepted deviation from the (scaled) published value, or from zero
    passed: bool
    reason: str | None = None  # why the row fails, one sentence


def row(
    quantity: str,
    measured: float | Average,
    *,
    published: float | None = None,
    scaled: float = math.nan,
    tolerance: float | None = None,
    relative: bool = False,
    at_least: float | None = None,
    reason: str | None = None,
) -> Row:
    """Return a row with its verdict; a measured value that is not finite never passes.

    The tolerance is the largest accepted deviation from the (scaled) published value, as a fraction of it if it is
    `relative`; a row whose published value is NaN is not judged. Without `published` it is the largest deviation from
    zero. The smallest accepted value, `at_least`, is added to the name. The reason is kept if the row fails.
    """
    value, error = (measured.mean, measured.standard_error) if isinstance(measured, Average) else (measured, math.nan)
    value, known = float(value), published if math.isnan(scaled) else scaled
    if tolerance is not None and known is not None:
        tolerance = None if math.isnan(known) else tolerance * (abs(known) if relative else 1)
    passed = math.isfinite(value) and (tolerance is None or abs(value - (known or 0.0)) <= tolerance)
    if at_least is not None:
        quantity, passed = f"{quantity} (at least {at_least:g})", passed and value >= at_least
    if not math.isfinite(value):
        reason = "There is no value: the chain stopped, lost a class, or was too short."
    given, given_scaled, given_error = (None if x is None or math.isnan(x) else x for x in (published, scaled, error))
    return Row(quantity, given, given_scaled, value, given_error, tolerance, passed, None if passed else reason)


def difference(quantity: str, value: Average, reference: Average, limit: float | None, **options: Any) -> Row:
    """Return the row of a relative difference between two samplers."""
    error = math.hypot(value.standard_error / value.mean, reference.standard_error / reference.mean)
    found = Average(value.mean / reference.mean - 1, error, math.nan)
    return row(f"{quantity}, minus one", found, tolerance=limit, **options)


def scatter(values: np.ndarray) -> Average:
    """Return the mean of independent values with its standard error."""
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Average(float(values.mean()), float(error), float(len(values)))


def rise(curve: np.ndarray) -> float:
    """Return the mean of the last tenth of a curve minus that of its lowest tenth."""
    blocks = [block.mean() for block in np.array_split(curve, min(10, len(curve)))]
    return float(blocks[-1] - min(blocks))


def alive_at(found: Mapping[str, Any], index: int = 0) -> np.ndarray:
    """Return which chains of one temperature kept every class, or all chains if none did."""
    dead = found["dead"][index]
    return dead | True if dead.all() else ~dead


def adam_rows(
    found: Mapping[str, Any], published: Mapping[str, Any], tolerance: float, overfitting: float | None
) -> list[Row]:
    """Return rows of the test error of Adam, if it was trained: the smallest, the last, and the rise between them.

    `found` are parts, `published` the published numbers; the tolerance is that of the smallest error.
    """
    if "Adam" not in found:
        return []
    errors = found["Adam"]["test_error"][0][alive_at(found["Adam"])]
    best, late = scatter(errors.min(axis=1)), scatter(errors[:, -1])
    known, known_late = (published.get(f"adam_{name}_test_error", math.nan) for name in ("best", "late"))
    return [
        row("best test error of Adam", best, published=known, tolerance=tolerance),
        row("test error of Adam at the end of its run", late, published=known_late),
        row("rise of the test error after its minimum, Adam", late.mean - best.mean, at_least=overfitting),
    ]


class Reproduction:
    """One figure or table of the paper: its measured parts, rows and picture, kept in NAME.json and NAME.png."""

    def __init__(self, name: str, scale: str, module: Any, out: Path, max_seconds: float = math.inf) -> None:
        """Read the parts that are already in NAME.json."""
        self.name, self.scale, self.remaining, self.left = name, scale, max_seconds, list[str]()
        self._module, self._path, self._settings = module, out / f"{name}.json", module.SETTINGS[scale]
        old = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}
        self._parts: dict[str, Any] = old.get("parts", {})
        self._reasons = {r["quantity"]: r.get("reason") for r in old.get("rows", [])}
        versions = {"pseudolangevin": __version__, **{n: metadata.version(n) for n in ("jax", "jaxlib", "numpy")}}
        new = {"device": jax.devices()[0].device_kind, "versions": versions, "seed": self._settings["seed"]}
        new["settings"] = _plain(self._settings)
        self._provenance = old["provenance"] if self._parts else new
        self._other = (old.get("scale", scale), self._provenance["settings"]) != (scale, new["settings"])

    def measure(self, part: str, seconds: float, make: Callable[[], Any]) -> None:
        """Measure a part and write it, unless it is in the file or would take more seconds than are left."""
        if part in self._parts:
            return
        if seconds > self.remaining:
            self.left.append(part)
            return
        if self._other:
            problem = f"{self._path} was measured at another scale or with other settings"
            raise ValueError(f"{problem}; choose another folder, or remove the file to measure again")
        started = time.perf_counter()
        value = _plain(make(), digits=7)
        taken = time.perf_counter() - started
        self._parts[part] = {"seconds": round(taken, 1), "value": value}
        self.remaining -= taken
        print(f"{self.name}, {part}: {taken:.0f} s", flush=True)
        self.write()

    @property
    def found(self) -> dict[str, Any]:
        """Values of the measured parts by name: arrays, averages, and NaN for null."""
        return {name: _read(part["value"]) for name, part in self._parts.items()}

    @property
    def rows(self) -> list[Row]:
        """Rows of the measured parts; a failing row without a reason has that of the file, where one was added."""
        made = self._module.rows(self.found, self._settings) if self._parts else []
        return [r if r.passed or r.reason else replace(r, reason=self._reasons.get(r.quantity)) for r in made]

    def write(self) -> None:
        """Write NAME.json, with one line for each part."""
        seconds = round(sum(part["seconds"] for part in self._parts.values()), 1)
        provenance = self._provenance | {"seconds": seconds, "parts_left": self.left}
        content = {"name": self.name, "scale": self.scale, "rows": self.rows, "provenance": provenance}
        text = json.dumps(_plain(content), indent=1, allow_nan=False).removesuffix("\n}")
        lines = [f"  {json.dumps(name)}: {json.dumps(part, allow_nan=False)}" for name, part in self._parts.items()]
        new = self._path.with_suffix(".new")  # an interrupted write leaves the old file
        new.write_text(text + ',\n "parts": {\n' + ",\n".join(lines) + "\n }\n}\n", encoding="utf-8")
        new.replace(self._path)

    def run(self, out: Path) -> None:
        """Measure the parts that are left, write NAME.json and NAME.png, and print the rows."""
        self._module.measure(self._settings, self, out)
        picture = self._path.with_suffix(".png")
        if self._parts:  # or else rows of a file without parts would be lost
            self.write()
            self._module.draw(self.found, self._settings).savefig(picture, dpi=150)
        print(f"{self}\n{self._path}, {picture}", flush=True)

    def __str__(self) -> str:
        """Return the rows as text, one a line."""
        lines = [f"{self.name}, {self.scale} scale"]
        for r in self.rows:
            known = (("published", r.published), ("scaled", r.published_scaled), ("tolerance", r.tolerance))
            value = plus_minus(r.measured, math.nan if r.standard_error is None else r.standard_error)
            values = ", ".join([value, *(f"{n} {v:.4g}" for n, v in known if v is not None)])
            lines.append(f"{'ok   ' if r.passed else 'FAILS'}  {r.quantity}: {values}")
        return "\n".join([*lines, *(f"not measured in this time: {part}" for part in self.left)])


def _plain(value: Any, digits: int = 17) -> Any:
    """Return a value as JSON gives it back: arrays as lists, objects as their fields, None for NaN and infinity."""

    def fields(item: Any) -> Any:
        return item.tolist() if hasattr(item, "tolist") else vars(item)

    def number(text: str) -> float:
        return float(f"{float(text):.{digits}g}")

    return json.loads(json.dumps(value, default=fields), parse_float=number, parse_constant=lambda _: None)


def _read(value: Any) -> Any:
    """Return a value of `_plain` with averages, arrays in place of lists of numbers, and NaN in place of None."""
    if isinstance(value, Mapping):
        items = {name: _read(item) for name, item in value.items()}
        return Average(**items) if tuple(items) == Average._fields else items
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return [_read(item) for item in value]
    if isinstance(value, list):
        array = np.array(value)
        return array.astype(np.float64) if array.dtype == object else array
    return math.nan if value is None else value


@cache
def published_numbers(section: str, num_weights: int | None = None) -> dict[str, Any]:
    """Return a section of `published.json`, the published figure data; empty for a network of another size."""
    table = json.loads(resources.files(__package__).joinpath("published.json").read_text(encoding="utf-8"))[section]
    return table if num_weights is None or num_weights == table["num_weights"] else {}


def published_average(
    num_weights: int,
    label: str,
    temperature: float,
    name: str,
    sections: Sequence[str] = ("thermodynamics", "generalization"),
) -> float:
    """Return the published average of hMC or pL in some sections; NaN if there is none. U is computed from others."""
    tables = (published_numbers(section, num_weights).get(label, {}) for section in sections)
    at = f"{temperature:g}"
    found: dict[str, float] = next((table[at] for table in tables if at in table), {})
    if name == "potential" and found:
        return found["loss"] + 10.0611 / (2 * num_weights) * found["squared_norm"]
    return found.get(name, math.nan)


def draw_legend(figure: Figure) -> None:
    """Draw one legend of all panels to the right of them, away from the data."""
    lines = {text: h for axes in figure.axes for h, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(lines.values(), lines, loc="outside right upper", frameon=False, fontsize=8)
