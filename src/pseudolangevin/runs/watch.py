"""A running or finished run in the terminal: steps, speed, time left, and the last record of every temperature.

The folder is only read; a file that is incomplete or missing counts as one that does not exist yet.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..observables import OBSERVABLES
from ..samplers.base import HEALTHY, Status
from .folder import RunFolder, RunFolderError, read_or_empty
from .store import read_trace


def watch(path: str | Path, once: bool = False, *, interval: float = 1.0, console: Console | None = None) -> None:
    """Show a run until it is finished or Ctrl-C is pressed; print it once if the output is not a terminal.

    Args:
        path: the run folder.
        once: print the current state and return.
        interval: seconds between two readings of the files.
        console: where to show it; default: the standard output.
    """
    if not Path(path).is_dir():
        raise RunFolderError(f"{path} is not a folder; give the run folder that `pseudolangevin sample` made")
    console = console or Console()
    if once or not console.is_terminal:
        console.print(render(path, width=console.width)[0])
        return
    step, since = -1, time.monotonic()
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            view, now, finished = render(path, time.monotonic() - since, console.width)
            live.update(view)
            if finished:
                return
            step, since = now, since if now == step else time.monotonic()
            try:
                time.sleep(interval)
            except KeyboardInterrupt:
                return


def render(path: str | Path, quiet_seconds: float = 0.0, width: int = 120) -> tuple[Group, int, bool]:
    """Return the view for a terminal of this width, the step of the last record, and whether the run is finished."""
    folder = RunFolder(Path(path))
    config, trace = read_or_empty(folder.config), read_trace(path, last=240)
    heading = Text(folder.path.resolve().name, style="bold")
    words = [_get(config, "sampler", "name").replace("_", " "), _get(config, "network", "sizes")]
    words += [] if trace is None else [f"{trace.sizes['temperature']} temperature(s) x {trace.sizes['chain']} chain(s)"]
    words += [_get(read_or_empty(folder.provenance), "device")]
    heading.append("  " + ", ".join(word for word in words if word), style="not bold dim")
    if trace is None or not trace.sizes["draw"]:
        return Group(heading, Text("nothing recorded yet", style="dim")), 0, False
    step, total = int(trace["step"].values[-1]), int("0" + re.sub(r"\D", "", _get(config, "num_steps")))
    steps, seconds = (trace[name].values[-50:] for name in ("step", "seconds"))
    rates = np.diff(steps) / np.maximum(np.diff(seconds), 1e-9)
    speed = float(np.median(rates)) if len(rates) else math.nan  # the median: compilation takes long, once
    done = 0 < total < step + trace.attrs.get("record_every", 1)
    stopped = bool((trace["status"].values[..., -1] > Status.RUNNING).all())
    line = Table.grid(padding=(0, 2))
    cells: list[Any] = [ProgressBar(total=max(total, step), completed=step, width=30), f"{step:,}/{total:,} steps"]
    if done or stopped:
        cells.append(Text("finished", style="green") if done else Text("all chains stopped", style="red"))
    elif speed > 0:
        cells += [f"{speed:,.{0 if speed >= 10 else 2}f} steps/s", f"{_clock((total - step) / speed)} left"]
    if quiet_seconds > 60 and not (done or stopped):
        cells.append(Text(f"no new record for {_clock(quiet_seconds)}", style="yellow"))
    line.add_row(*cells)
    return Group(heading, line, _table(trace, width)), step, done or stopped


def _table(trace: xr.Dataset, width: int) -> Table:
    """Return the last values of as many observables as fit, averaged over chains; temperatures in units of T."""
    order = list(OBSERVABLES)
    names = [str(name) for name, values in trace.data_vars.items() if values.ndim == 3 and values.dtype.kind == "f"]
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    in_units_of_temperature = [name for name in names if trace[name].attrs.get("unit") == "loss"]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("T", justify="right", no_wrap=True)
    room = width - 36  # without the columns T, recent and status
    for name in list(names):
        heading = trace[name].attrs.get("label", name) + (" / T" if name in in_units_of_temperature else "")
        column = max(9, *map(len, heading.split()))
        room -= column + 2
        if room < 0 and name != names[0]:
            names = names[: names.index(name)]
            break
        table.add_column(heading, justify="right", max_width=column)
    table.add_column(f"{trace[names[0]].attrs.get('label', names[0])}, recent", no_wrap=True)
    table.add_column("status")
    for index, temperature in enumerate(trace["temperature"].values[:24]):
        here = trace.isel(temperature=index).transpose("chain", "draw", ...)
        cells = []
        for name in names:
            value = _mean(here[name].values[:, -1]) / (temperature if name in in_units_of_temperature else 1)
            cells.append("-" if math.isnan(value) else f"{value:.4g}")
        spark = Text(sparkline([_mean(column) for column in here[names[0]].values.T]), style="cyan")
        table.add_row(f"{temperature:g}", *cells, spark, _status(here["status"].values[:, -1]))
    if trace.sizes["temperature"] > 24:
        table.add_row(Text(f"and {trace.sizes['temperature'] - 24} more", style="dim"))
    return table


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """Return values as a row of blocks from the lowest to the highest, with a gap for NaN."""
    means = np.array([_mean(part) for part in np.array_split(np.asarray(values, float), min(width, len(values)) or 1)])
    low, span = np.nanmin(means, initial=math.inf), np.ptp(means[np.isfinite(means)]) if np.isfinite(means).any() else 0
    heights = 7 * (means - low) / span + 0.5 if span > 0 else 0 * means
    return "".join("▁▂▃▄▅▆▇█"[int(height)] if math.isfinite(height) else " " for height in heights)


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


def _status(codes: np.ndarray) -> Text:
    failed = [Status(code).name.lower().replace("_", " ") for code in codes if code not in HEALTHY]
    if failed:
        return Text(f"{len(failed)} of {len(codes)} stopped: {', '.join(sorted(set(failed)))}", style="red")
    early = int((codes == Status.EARLY_STOPPED).sum())
    return Text(f"ok, {early} of {len(codes)} ended early" if early else "ok", style="green")


def _get(table: Any, *keys: str) -> str:
    """Return an entry of nested tables as text; empty if there is none."""
    for key in keys:
        table = table.get(key, "") if isinstance(table, dict) else ""
    return "-".join(map(str, table)) if isinstance(table, list) else str(table)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
