"""What a reproduction leaves: rows beside the published numbers, a picture, and where they come from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from ..diagnostics.averages import Average
from ..provenance import PACKAGES, version_of
from ..tuning.result import plain


@dataclass(frozen=True)
class Row:
    """One quantity, as measured and as published."""

    quantity: str
    published: float | None
    measured: float
    standard_error: float | None
    tolerance: float | None
    """Largest accepted |measured − published|, or |measured| where nothing is published; in the quantity's own unit."""
    passed: bool


def row(
    quantity: str,
    measured: float,
    *,
    standard_error: float | None = None,
    published: float | None = None,
    tolerance: float | None = None,
    relative: bool = False,
) -> Row:
    """A row that passes when the deviation is within the tolerance (a share of the published value if `relative`)."""
    target = published if published is not None else 0.0
    if tolerance is not None and relative:
        tolerance = tolerance * abs(target)
    measured = float(measured)
    passed = math.isfinite(measured) and (tolerance is None or abs(measured - target) <= tolerance)
    error = standard_error if standard_error is not None and math.isfinite(standard_error) else None
    return Row(quantity, published, measured, error, tolerance, passed)


def relative_difference(measured: Average, reference: Average) -> tuple[float, float]:
    """measured/reference − 1, and its standard error."""
    errors = (measured.standard_error / measured.mean, reference.standard_error / reference.mean)
    return measured.mean / reference.mean - 1, math.hypot(*errors)


@dataclass(frozen=True)
class Reproduction:
    """One figure or table of the paper."""

    name: str
    scale: str
    rows: list[Row]
    figure: Figure
    settings: Mapping[str, Any]
    seed: int
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every row does."""
        return all(r.passed for r in self.rows)

    def write(self, out: Path) -> None:
        """NAME.json and NAME.png."""
        out.mkdir(parents=True, exist_ok=True)
        content = {
            "name": self.name,
            "scale": self.scale,
            "rows": [asdict(r) for r in self.rows],
            "provenance": {
                "device": jax.devices()[0].device_kind,
                "versions": {name: version_of(name) for name in PACKAGES},
                "seed": self.seed,
                "settings": dict(self.settings),
                "seconds": round(self.seconds, 1),
            },
        }
        text = json.dumps(plain(content), indent=1, allow_nan=False)
        (out / f"{self.name}.json").write_text(text + "\n")
        self.figure.savefig(out / f"{self.name}.png", dpi=150)

    def print(self, console: Console | None = None) -> None:
        """The rows as a table."""
        table = Table(title=f"{self.name}, {self.scale} scale")
        for heading in ("quantity", "published", "measured", "± s.e.", "tolerance", ""):
            table.add_column(heading, justify="left" if heading == "quantity" else "right")
        for r in self.rows:
            numbers = (r.published, r.measured, r.standard_error, r.tolerance)
            table.add_row(
                r.quantity, *("–" if x is None else f"{x:.4g}" for x in numbers), "ok" if r.passed else "FAILS"
            )
        (console or Console()).print(table)
