"""The published numbers that a run of the same system may be compared with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

# What must agree, where a run's settings state it, for a comparison to make sense.
_SYSTEMS = {
    "thermodynamics": {"weight_decay": 10.0611, "num_train": 55_800, "flip_probability": 0.355},
    "generalization": {"weight_decay": 10.0611, "flip_probability": 0.355},
}
_METHODS = {"hybrid_monte_carlo": "published hMC", "pseudo_langevin": "published pL"}
_COLUMN_NAMES = {"train_error": "error"}


@dataclass(frozen=True)
class PublishedAverages:
    """Equilibrium averages of one method by temperature, with their thermal standard deviations where published."""

    label: str
    temperatures: list[float]
    values: dict[str, list[float]]
    deviations: dict[str, list[float]]

    def at(self, temperature: float, observable: str) -> float | None:
        """The value at a temperature, if it was published."""
        for index, published in enumerate(self.temperatures):
            if observable in self.values and math.isclose(temperature, published, rel_tol=1e-3):
                return self.values[observable][index]
        return None


def published_numbers() -> dict[str, Any]:
    """All of `published.json`."""
    text = resources.files(__package__).joinpath("published.json").read_text(encoding="utf-8")
    return json.loads(text)


def published_averages(num_weights: int | None, settings: Mapping[str, Any]) -> list[PublishedAverages]:
    """What was published of a system of this size, if the settings do not contradict it.

    Args:
        num_weights: N; only the published sizes have numbers.
        settings: flat names and values of the run; `weight_decay`, `num_train` and `flip_probability` are looked at.
    """
    if isinstance(settings.get("weight_decay"), Mapping):
        return []  # one λ for all weights was published
    numbers = published_numbers()
    for system, expected in _SYSTEMS.items():
        table = numbers[system]
        if num_weights != table["num_weights"]:
            continue
        stated = {name: settings[name] for name in expected if isinstance(settings.get(name), int | float)}
        if all(math.isclose(value, expected[name], rel_tol=1e-3) for name, value in stated.items()):
            columns = [_COLUMN_NAMES.get(name, name) for name in table["columns"]]
            return [_averages(label, columns, table[method]) for method, label in _METHODS.items() if method in table]
    return []


def _averages(label: str, columns: list[str], rows: list[list[float]]) -> PublishedAverages:
    by_column = dict(zip(columns, zip(*sorted(rows), strict=True), strict=True))
    return PublishedAverages(
        label=label,
        temperatures=list(by_column["temperature"]),
        values={n: list(v) for n, v in by_column.items() if n != "temperature" and not n.endswith("_std")},
        deviations={n.removesuffix("_std"): list(v) for n, v in by_column.items() if n.endswith("_std")},
    )
