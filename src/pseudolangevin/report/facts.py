"""The words and numbers of a page: the strip at its top, its tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from ..diagnostics.averages import Average
from ..published import PublishedAverages
from ..runfiles import find_setting, flatten
from ..types import HEALTHY, Status
from .verdict import ALL, format_number, with_error
from .view import scientific

_COLUMNS = [
    ("loss", "loss"),
    ("squared_norm", "|w|²"),
    ("error", "error"),
    ("test_error", "test error"),
    ("kinetic_temperature", "kinetic / T"),
    ("virial_temperature", "virial / T"),
]
_MAX_LISTED = 12


def key_numbers(trace: xr.Dataset, info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what, how much) for the strip at the top."""
    config, metrics = info.get("config") or {}, info.get("metrics") or []
    facts: list[tuple[str, str]] = []
    sampler = find_setting({"sampler": config.get("sampler") or {}}, "name") or find_setting(config, "method")
    if isinstance(sampler, str):
        facts.append(("sampler", sampler.replace("_", " ")))
    if isinstance(info.get("num_weights"), int | np.integer):
        facts.append(("weights N", _grouped(int(info["num_weights"]))))
    positive = (
        [float(value) for value in trace["temperature"].values if value > 0] if "temperature" in trace.coords else []
    )
    if positive:
        low, high = scientific(min(positive)), scientific(max(positive))
        facts.append(("temperature T" if low == high else "temperatures T", low if low == high else f"{low} – {high}"))
    num_temperatures, num_chains = trace.sizes.get("temperature", 0), trace.sizes.get("chain", 0)
    facts.append(("chains", f"{num_temperatures} × {num_chains}" if num_temperatures > 1 else str(num_chains)))
    if "step" in trace.coords and trace.sizes["step" if "step" in trace.sizes else "draw"]:
        facts.append(("steps", _grouped(int(trace["step"].values[-1]))))
    facts.append(("records", _grouped(trace.sizes.get("draw", 0))))
    last = metrics[-1] if metrics else {}
    if isinstance(last.get("steps_per_second"), int | float):
        facts.append(("steps/s", _speed(last["steps_per_second"])))
    if isinstance(last.get("seconds"), int | float) and math.isfinite(last["seconds"]):
        facts.append(("time", duration(last["seconds"])))
    return facts


def origin(info: Mapping[str, Any]) -> list[str]:
    """Where the numbers come from, in a line."""
    provenance = info.get("provenance") or {}
    facts = []
    for names, words in [
        (("started", "started_at"), "started {}"),
        (("device",), "on {}"),
        (("seed",), "seed {}"),
        (("data_sha256", "data_hash"), "data {:.19}…"),
    ]:
        value = next((found for name in names if (found := find_setting(provenance, name)) is not None), None)
        if value is not None:
            facts.append(words.format(shown(value)))
    return facts


def stopped_chains(trace: xr.Dataset) -> list[str]:
    """A sentence for every chain that failed; one that ended as asked is no news."""
    if "status" not in trace or trace.sizes.get("draw", 0) == 0:
        return []
    status = trace["status"].transpose("temperature", "chain", "draw").values
    steps = trace["step"].values if "step" in trace.coords else np.arange(1, status.shape[-1] + 1)
    sentences = []
    for temperature, chain in np.argwhere(~np.isin(status[..., -1], HEALTHY)).tolist():
        codes = status[temperature, chain]
        code = int(codes[-1])
        reason = Status(code).explanation if code in set(Status) else f"status {code}"
        first = int(steps[int(np.argmax(~np.isin(codes, HEALTHY)))])
        where = f"Chain {chain} at T = {scientific(float(trace['temperature'].values[temperature]))}"
        sentences.append(f"{where} stopped before step {_grouped(first)}: {reason}.")
    if len(sentences) > _MAX_LISTED:
        sentences = [*sentences[:_MAX_LISTED], f"… and {len(sentences) - _MAX_LISTED} more chains stopped."]
    return sentences


def dead_classes(trace: xr.Dataset) -> list[str]:
    """A sentence for every chain in which a class had no signal at the last record."""
    if "dead_class" not in trace or trace.sizes.get("draw", 0) == 0:
        return []
    dead = trace["dead_class"].transpose("temperature", "chain", "draw", "class").values[:, :, -1] > 0
    sentences = []
    for temperature, chain in np.argwhere(dead.any(axis=-1)).tolist():
        classes = ", ".join(str(index) for index in np.flatnonzero(dead[temperature, chain]))
        where = f"chain {chain} at T = {scientific(float(trace['temperature'].values[temperature]))}"
        sentences.append(f"Dead class {classes} in {where}: its score is the same for nearly every example.")
    if len(sentences) > _MAX_LISTED:
        sentences = [*sentences[:_MAX_LISTED], f"… and in {len(sentences) - _MAX_LISTED} more chains."]
    return sentences


def averages_table(
    trace: xr.Dataset,
    averages: Mapping[str, Sequence[Average]],
    published: Sequence[PublishedAverages],
    effective: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """Header and rows; a cell is the average, and below it what was published for that temperature.

    `effective` are the certificate's numbers of effective samples: one number by one estimator on the whole page.
    """
    temperatures = [float(value) for value in trace["temperature"].values] if "temperature" in trace.coords else []
    columns = [(name, label) for name, label in _COLUMNS if name in averages]
    rows = []
    for index, temperature in enumerate(temperatures):
        cells = []
        for name, _ in columns:
            average = averages[name][index]
            scale = temperature if name.endswith("_temperature") and temperature > 0 else 1.0
            others = [(other.label, other.at(temperature, name)) for other in published]
            cells.append(
                {
                    "value": with_error(average.mean / scale, average.standard_error / scale),
                    "published": [
                        _comparison(label, value, average.mean) for label, value in others if value is not None
                    ],
                }
            )
        name = scientific(temperature) if temperature > 0 else "—"
        where = f"T = {name}" if temperature > 0 else ALL
        numbers = [by_temperature.get(where, "—") for by_temperature in effective.values()]
        rows.append({"temperature": name, "cells": cells, "effective": numbers})
    labels = [label for _, label in columns]
    return {"labels": labels, "effective": list(effective), "rows": rows if columns else []}


def _comparison(label: str, value: float, measured: float) -> str:
    difference = (
        f" ({100 * (measured / value - 1):+.1f} %)".replace("-", "−") if math.isfinite(measured) and value else ""
    )
    return f"{label.removeprefix('published ')} {value:g}{difference}"


def settings_tables(info: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What was run: a table for each part of the configuration, and one for where it came from."""
    tables: list[tuple[str, list[tuple[str, str]]]] = []
    loose: list[tuple[str, str]] = []
    for name, value in (info.get("config") or {}).items():
        if isinstance(value, Mapping):
            rows = [(path, shown(entry)) for path, entry in flatten(value).items()]
            if rows:
                tables.append((str(name), rows))
        else:
            loose.append((str(name), shown(value)))
    if loose:
        tables.insert(0, ("general", loose))
    noted = flatten(info.get("provenance") or {}).items()
    origin = [(path, shown(entry)) for path, entry in noted if entry != []]  # a run that was never resumed says nothing
    if origin:
        tables.append(("provenance", origin))
    return tables


def shown(value: Any) -> str:
    """A setting as a short text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "—"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, list | tuple):
        listed = ", ".join(shown(entry) for entry in value[:_MAX_LISTED])
        return listed + (f", … ({len(value)} in all)" if len(value) > _MAX_LISTED else "")
    return str(value)


def duration(seconds: float) -> str:
    """Seconds as 1 h 02 min, 3 min 20 s or 12 s."""
    seconds = max(0, round(seconds))
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    return f"{seconds // 60} min {seconds % 60:02d} s" if seconds >= 60 else f"{seconds} s"


def _speed(value: float) -> str:
    return _grouped(round(value)) if math.isfinite(value) and value >= 1000 else format_number(value, 3)


def _grouped(value: int) -> str:
    return f"{value:,}".replace(",", "\u202f")
