"""A running or finished run in the terminal: how far, how fast, and the state of every temperature.

It only reads, and takes a file that is half written or missing for one that is not there yet.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .runfiles import (
    check_run_folder,
    find_number,
    find_setting,
    read_config,
    read_metrics,
    read_provenance,
    read_trace,
)
from .sparkline import sparkline
from .types import HEALTHY, Status

RECENT_RECORDS = 240
"""What the sparklines look back on."""
MAX_ROWS = 24
NARROW = 100
"""Columns of a terminal below which the table leaves some out."""
QUIET_SECONDS = 60
"""Without a new record for so long, the view says so."""

_COLUMNS = [
    # variable, heading, in units of T, how chains are joined
    ("loss", "loss", False, "mean"),
    ("squared_norm", "|w|²", False, "mean"),
    ("error", "error", False, "mean"),
    ("test_error", "test error", False, "mean"),
    ("kinetic_temperature", "kin/T", True, "mean"),
    ("virial_temperature", "vir/T", True, "mean"),
    ("max_temperature_ratio", "max 𝒯", False, "max"),
]
_LEFT_OUT = ("test_error",)
"""Columns that a narrow terminal does without."""


@dataclass(frozen=True)
class Snapshot:
    """What the files said at one moment."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    trace: xr.Dataset | None = None

    @classmethod
    def of(cls, run_dir: Path) -> Snapshot:
        """Read the folder."""
        return cls(
            run_dir.resolve().name,
            read_config(run_dir),
            read_provenance(run_dir),
            read_metrics(run_dir),
            read_trace(run_dir, last=RECENT_RECORDS),
        )

    @property
    def step(self) -> int:
        """The last step on record."""
        recorded = int(self.metrics[-1]["step"]) if self.metrics else 0
        if self.trace is not None and "step" in self.trace.coords and self.trace.sizes["draw"]:
            recorded = max(recorded, int(self.trace["step"].values[-1]))
        return recorded

    @property
    def num_steps(self) -> int | None:
        """Steps of the whole run, if the configuration says."""
        number = find_number(self.config, "num_steps")
        return int(number) if number is not None and number >= 1 else None

    @property
    def speed(self) -> float | None:
        """Steps per second over the recent records; single records are too short to time."""
        recent = [(m["step"], m["seconds"]) for m in self.metrics[-50:] if isinstance(m.get("seconds"), int | float)]
        if len(recent) > 1 and recent[-1][1] > recent[0][1]:
            return (recent[-1][0] - recent[0][0]) / (recent[-1][1] - recent[0][1])
        last = self.metrics[-1].get("steps_per_second") if self.metrics else None
        return float(last) if isinstance(last, int | float) and last > 0 else None

    @property
    def finished(self) -> bool:
        """Whether nothing more will come: all steps done, or every chain stopped."""
        if self.num_steps is not None and self.step >= self.num_steps:
            return True
        status = self._last("status")
        return status is not None and status.size > 0 and bool((status > Status.RUNNING).all())

    def _last(self, variable: str) -> np.ndarray | None:
        if self.trace is None or variable not in self.trace or self.trace.sizes["draw"] == 0:
            return None
        return self.trace[variable].transpose("temperature", "chain", "draw", ...).values[:, :, -1]


def watch(run_dir: str | Path, once: bool = False, *, interval: float = 1.0, console: Console | None = None) -> None:
    """Show a run until it is finished or Ctrl-C is pressed; print it once where the output is not a terminal.

    Args:
        run_dir: the run folder.
        once: print the present state and return.
        interval: seconds between looks at the files.
        console: where to show it; default: the standard output.
    """
    path = check_run_folder(run_dir)
    console = console or Console()
    snapshot = Snapshot.of(path)
    if once or not console.is_terminal:
        console.print(render(snapshot, width=console.width))
        return
    with Live(render(snapshot, width=console.width), console=console, refresh_per_second=4, transient=False) as live:
        _follow(path, lambda shot, quiet: live.update(render(shot, quiet, console.width)), interval)


def _follow(path: Path, show: Callable[[Snapshot, float], None], interval: float) -> None:
    """Look again and again until the run is finished."""
    step, since = -1, time.monotonic()
    try:
        while True:
            snapshot = Snapshot.of(path)
            if snapshot.step != step:
                step, since = snapshot.step, time.monotonic()
            show(snapshot, time.monotonic() - since)
            if snapshot.finished:
                return
            time.sleep(interval)
    except KeyboardInterrupt:
        return  # the watcher leaves; the run does not notice


def render(snapshot: Snapshot, quiet_seconds: float = 0.0, width: int = 120) -> Group:
    """A snapshot for a terminal of this width."""
    parts: list[Any] = [_heading(snapshot), _progress(snapshot, quiet_seconds)]
    if snapshot.trace is not None and snapshot.trace.sizes["draw"] and "loss" in snapshot.trace:
        parts.append(_table(snapshot.trace, width))
    else:
        parts.append(Text("nothing recorded yet", style="dim"))
    return Group(*parts)


def _heading(snapshot: Snapshot) -> Text:
    text = Text(snapshot.name, style="bold")
    sampler = find_setting({"sampler": snapshot.config.get("sampler") or {}}, "name")
    words = [str(sampler).replace("_", " ")] if sampler else []
    sizes = find_setting(snapshot.config, "sizes")
    words += [f"network {'–'.join(map(str, sizes))}"] if isinstance(sizes, list) else []
    if snapshot.trace is not None:
        sizes_of = snapshot.trace.sizes
        words.append(f"{sizes_of['temperature']} temperature(s) × {sizes_of['chain']} chain(s)")
    device = find_setting(snapshot.provenance, "device")
    words += [f"on {device}"] if device else []
    return text.append("  " + " · ".join(words), style="not bold dim") if words else text


def _progress(snapshot: Snapshot, quiet_seconds: float) -> Table:
    grid = Table.grid(padding=(0, 2))
    total, step, speed = snapshot.num_steps, snapshot.step, snapshot.speed
    cells: list[Any] = []
    if total:
        cells += [ProgressBar(total=total, completed=min(step, total), width=30), f"{step:,}/{total:,} steps"]
    else:
        cells.append(f"{step:,} steps")
    if speed:
        cells.append(f"{speed:,.3g} steps/s" if speed < 100 else f"{speed:,.0f} steps/s")
    if snapshot.finished:
        cells.append(
            Text(
                "finished" if total and step >= total else "all chains stopped",
                style="green" if total and step >= total else "red",
            )
        )
    elif speed and total:
        cells.append(f"{_clock((total - step) / speed)} left")
    if quiet_seconds > QUIET_SECONDS and not snapshot.finished:
        cells.append(Text(f"no news for {_clock(quiet_seconds)}", style="yellow"))
    grid.add_row(*cells)
    return grid


def _table(trace: xr.Dataset, width: int) -> Table:
    narrow = width < NARROW
    columns = [column for column in _COLUMNS if column[0] in trace and not (narrow and column[0] in _LEFT_OUT)]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1 if narrow else 2, 0, 0))
    for heading in ("T", *(column[1] for column in columns)):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("loss" if narrow else "loss, recent", no_wrap=True)
    table.add_column("status", no_wrap=True)
    temperatures = [float(value) for value in trace["temperature"].values]
    shown = temperatures[:MAX_ROWS]
    for index, temperature in enumerate(shown):
        here = trace.isel(temperature=index)
        cells = [f"{temperature:g}"]
        for variable, _, over_temperature, join in columns:
            values = here[variable].values[..., -1].astype(float)
            value = _join(values, join) / (temperature if over_temperature and temperature > 0 else 1.0)
            cells.append("–" if math.isnan(value) else f"{value:.4g}")
        losses = here["loss"].transpose("chain", "draw").values
        spark = sparkline([_join(column, "mean") for column in losses.T], 8 if narrow else 24)
        table.add_row(*cells, Text(spark, style="cyan"), _status(here))
    if len(shown) < len(temperatures):
        table.add_row(Text(f"… and {len(temperatures) - len(shown)} more", style="dim"))
    return table


def _join(values: np.ndarray, how: str) -> float:
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return math.nan
    return float(finite.max() if how == "max" else finite.mean())


def _status(here: xr.Dataset) -> Text:
    if "status" not in here:
        return Text("")
    codes = [int(code) for code in here["status"].transpose("chain", "draw").values[:, -1]]
    # Negative: not recorded yet.
    failed = [code for code in codes if code >= 0 and code not in HEALTHY]
    if not failed:
        early = codes.count(Status.EARLY_STOPPED)
        return Text(f"ok, {early} of {len(codes)} ended early" if early else "ok", style="green")
    names = sorted(
        {Status(code).name.lower().replace("_", " ") if code in set(Status) else str(code) for code in failed}
    )
    return Text(f"{len(failed)} of {len(codes)} stopped: {', '.join(names)}", style="red")


def _clock(seconds: float) -> str:
    hours, rest = divmod(max(0, round(seconds)), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
