"""Reading a run folder that may still be written, half written or incomplete: what cannot be read counts as absent."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr


def check_run_folder(run_dir: str | Path) -> Path:
    """The folder as a path; refuse what is not one."""
    path = Path(run_dir)
    if not path.is_dir():
        raise ValueError(f"run_dir = {str(run_dir)!r} is not a folder; pass the folder that `sample --out` wrote")
    return path


def read_config(run_dir: Path) -> dict[str, Any]:
    """`config.toml`; empty when it is absent or cannot be read."""
    try:
        return tomllib.loads((run_dir / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def read_provenance(run_dir: Path) -> dict[str, Any]:
    """`provenance.json`; empty when it is absent or cannot be read."""
    return _as_mapping(_text(run_dir / "provenance.json"))


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The records of `metrics.jsonl`, without lines that are not whole: the last one may be half written."""
    records = [_as_mapping(line) for line in _text(run_dir / "metrics.jsonl").splitlines()]
    return [record for record in records if isinstance(record.get("step"), int | float)]


def read_trace(run_dir: Path, *, last: int | None = None) -> xr.Dataset | None:
    """The records of `trace.zarr` so far (or the `last` ones), in memory; None when it cannot be read.

    The store may be as long as the run will be: draws whose status is below zero are not recorded yet.
    """
    try:
        with _opened(run_dir / "trace.zarr") as lazy:
            if not {"temperature", "chain", "draw"} <= set(lazy.dims):
                return None
            recorded = lazy.sizes["draw"]
            if "status" in lazy:
                status = lazy["status"].transpose("draw", "temperature", "chain").values
                recorded = int((status >= 0).any(axis=(1, 2)).sum())
            recorded = min(recorded, _committed(run_dir, "records", recorded))
            return lazy.isel(draw=slice(0 if last is None else max(0, recorded - last), recorded)).load()
    except Exception:  # zarr and its stores raise many kinds of error on a store that is being created
        return None


def read_samples(run_dir: Path) -> tuple[np.ndarray, dict[str, np.ndarray]] | None:
    """Steps and arrays (temperature, chain, kept draw, …) of `weights.zarr`, or None when there are none to read."""
    path = run_dir / "weights.zarr"
    if not path.exists():
        return None
    try:
        with _opened(path) as lazy:
            kept = lazy.sizes["kept_draw"]
            samples = lazy.isel(kept_draw=slice(0, _committed(run_dir, "kept", kept))).load()
        steps = np.asarray(samples["step"].values)
        leaves = {
            str(name): np.asarray(array.values)
            for name, array in samples.data_vars.items()
            if name != "step" and array.dims[:2] == ("temperature", "chain")
        }
    except Exception:  # see read_trace
        return None
    return (steps, leaves) if leaves and steps.ndim == 1 and len(steps) else None


def _opened(path: Path) -> xr.Dataset:
    """A store at the lengths that its consolidated metadata say, which agree also while it is made longer."""
    try:
        return xr.open_zarr(path, chunks=None, consolidated=True)
    except Exception:  # there are none, or an older version was killed before it had written them
        return xr.open_zarr(path, chunks=None, consolidated=False)


def _committed(run_dir: Path, what: str, default: int) -> int:
    """How many records or kept weights the writer has declared whole, where it does."""
    count = _as_mapping(_text(run_dir / "committed.json")).get(what)
    return count if isinstance(count, int) and count >= 0 else default


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted names: {"sampler": {"batch_size": 558}} gives {"sampler.batch_size": 558}."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def find_setting(settings: Mapping[str, Any], name: str) -> Any:
    """The setting of this name in the outermost table that has it; None when there is none."""
    found = [(path.count("."), value) for path, value in flatten(settings).items() if path.rsplit(".", 1)[-1] == name]
    return min(found, key=lambda entry: entry[0])[1] if found else None


def find_number(settings: Mapping[str, Any], name: str) -> float | None:
    """The setting of this name in the outermost table that has it, if it is a number."""
    value = find_setting(settings, name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _as_mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
