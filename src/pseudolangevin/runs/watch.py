"""A running or finished run in the terminal: steps, speed, time left, and the last record of every temperature.

The folder is only read; a file that is incomplete or missing counts as one that does not exist yet.
"""

from __future__ import annotations

import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..samplers.base import HEALTHY, Status
from .folder import RunFolder, printable, read_or_empty
from .store import in_order, read_trace


def watch(path: str | Path, once: bool = False, console: Console | None = None) -> None:
    """Show a run until it is finished or Ctrl-C is pressed; print it once if the output is not a terminal."""
    console = console or Console()
    view, finished = render(path, console.width)
    if once or not console.is_terminal:
        console.print(view)
        return
    with Live(view, console=console, refresh_per_second=4) as live:
        while not finished:
            try:
                time.sleep(1)
            except KeyboardInterrupt:
                return
            view, finished = render(path, console.width)
            live.update(view)


def render(path: str | Path, width: int = 120) -> tuple[Group, bool]:
    """Return the view for a terminal of this width, and whether the run is finished."""
    folder = RunFolder(path)
    config, trace = read_or_empty(folder.config), read_trace(path, last=50)
    heading = Text(printable(folder.path.resolve().name), style="bold")
    words = [_get(config, "sampler", "name").replace("_", " "), _get(config, "network", "sizes")]
    words += [] if trace is None else [f"{trace.sizes['temperature']} temperature(s) x {trace.sizes['chain']} chain(s)"]
    words += [_get(read_or_empty(folder.provenance), "device")]
    heading.append("  " + printable(", ".join(word for word in words if word)), style="not bold dim")
    if trace is None or not trace.sizes["draw"]:
        return Group(heading, Text("nothing recorded yet", style="dim")), False
    step, total = int(trace["step"].values[-1]), int("0" + re.sub(r"\D", "", _get(config, "num_steps")))
    rates = np.diff(trace["step"].values) / np.maximum(np.diff(trace["seconds"].values), 1e-9)
    done = 0 < total < step + trace.attrs.get("record_every", 1)
    stopped = bool((trace["status"].values[..., -1] > Status.RUNNING).all())
    line = Text(f"{step:,}/{total:,} steps  ")
    if done or stopped:
        line.append("finished" if done else "all chains stopped", style="green" if done else "red")
    elif len(rates) and (speed := float(np.median(rates))) > 0:  # the median: compilation takes long, once
        left = timedelta(seconds=max(0, round((total - step) / speed)))
        line.append(f"{speed:,.{0 if speed >= 10 else 2}f} steps/s  {left} left")
    return Group(heading, line, _table(trace.isel(draw=-1), width)), done or stopped


def _table(last: xr.Dataset, width: int) -> Table:
    """Return as many observables of the last record as fit, averaged over chains; temperatures in units of T."""
    table = Table("T", box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    columns, room = list[list[str]](), width - 18
    for name in in_order(last):
        if last[name].ndim == 2 and last[name].dtype.kind == "f":
            heading, values = str(last[name].attrs.get("label", name)), last[name].mean("chain")
            if last[name].attrs.get("unit") == "loss":  # the unit of T
                heading, values = f"{heading} / T", values / last["temperature"]
            column = max(9, *map(len, heading.split()))
            room -= column + 2
            if room < 0 and columns:
                break
            table.add_column(Text(printable(heading)), justify="right", max_width=column)
            columns.append([f"{value:.4g}".replace("nan", "-") for value in values.values])
    table.add_column("status")
    for index, temperature in enumerate(last["temperature"].values):
        cells = [column[index] for column in columns]
        table.add_row(f"{temperature:g}", *cells, _status(last["status"].values[index]))
    return table


def _status(codes: np.ndarray) -> Text:
    if failed := [Status(code).name.lower().replace("_", " ") for code in codes if code not in HEALTHY]:
        return Text(f"{len(failed)} of {len(codes)} stopped: {', '.join(sorted(set(failed)))}", style="red")
    return Text("ok", style="green")


def _get(table: Any, *keys: str) -> str:
    """Return an entry of nested tables as text; empty if there is none."""
    for key in keys:
        table = table.get(key, "") if isinstance(table, dict) else ""
    return "-".join(map(str, table)) if isinstance(table, list) else str(table)
