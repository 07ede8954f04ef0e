"""The demo: four chains of a small network on the paper's task, on a CPU, in two minutes, with their certificate.

It writes a run folder like any other (`resume`, `check`, `watch` and `pl.load` work on it), a picture and a report, and
prints the averages.
"""

from __future__ import annotations

import shlex
import sys
import time
from itertools import count
from pathlib import Path

import xarray as xr
from rich import box
from rich.console import Console
from rich.table import Table

from .diagnostics import certificate
from .diagnostics.averages import average_by_temperature, kept
from .runs import session
from .runs.config import ConfigError, Settings
from .runs.folder import RunFolder, locked, read_or_empty
from .runs.report import summary_figure, write_report

SETTINGS = {
    "temperatures": [3e-4],  # 1.7/P, a little above the transition, as T = 3e-5 is for the paper's small network
    "num_chains": 4,
    "num_steps": 150_000,
    "record_every": 250,
    "task": {"num_train": 5_600, "num_test": 1_000},
    "network": {"sizes": [100, 10, 10]},
    "sampler": {"name": "balanced_langevin"},
    "start": {"kind": "adam", "num_steps": 3_000},
}


def run_demo(out: Path) -> int:
    """Sample, print the averages, draw the picture, write the report; return the exit code."""
    console = Console(highlight=False, soft_wrap=True)
    if aside := move_aside(out):
        console.print(f"the earlier demo is now in {aside}")
    started = time.perf_counter()
    settings = Settings.model_validate(SETTINGS)
    temperatures = ", ".join(f"{temperature:g}" for temperature in settings.temperatures or [])
    console.print(
        f"{settings.num_chains} chains at each of T = {temperatures}; {settings.num_steps:,} steps after Adam"
    )
    outcome = session.start(settings, out, command=["pseudolangevin", "demo"])
    if outcome.interrupted:
        console.print(f"interrupted; continue with `{_command('resume', out)}`")
        return 130
    result = session.load(out)
    console.print(averages_table(result.trace))
    console.print("Kinetic and virial temperature are divided by T: one at equilibrium.")
    summary_figure(result.trace).savefig(out / "demo.png", dpi=150)
    verdict = certificate(result)
    report = write_report(out, certificate=verdict)
    console.print(f"done in {time.perf_counter() - started:.0f} s")
    console.print(f"  picture  {out / 'demo.png'}\n  report   {report}   (open it in a browser)")
    console.print(f"  check    the certificate: {verdict.verdict}; line by line: {_command('check', out)}")
    return 1 if outcome.stopped_chains else 0


def averages_table(trace: xr.Dataset) -> Table:
    """Return a row for every average over the second half of the records."""
    trace = kept(trace)
    columns = {name.replace("squared_norm", "|w|²"): trace[name] for name in ("loss", "squared_norm", "error")}
    columns |= {f"{name}/T": trace[f"{name}_temperature"] / trace["temperature"] for name in ("kinetic", "virial")}
    table = Table("", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for temperature in trace["temperature"].values.tolist():
        table.add_column(f"T = {temperature:g}", justify="right")
    for name, values in columns.items():
        table.add_row(name, *map(str, average_by_temperature(values, trace)))
    return table


def _command(name: str, path: Path) -> str:
    """Return a command on a run folder as it can be typed here."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "pseudolangevin" else "python -m pseudolangevin"
    return f"{program} {name} {shlex.quote(str(path))}"


def move_aside(out: Path) -> Path | None:
    """Rename the folder of an earlier demo and return its new path; raise if the folder contains something else."""
    if not out.exists() or (out.is_dir() and {entry.name for entry in out.iterdir()} <= {"lock", "log.txt"}):
        return None
    place = out.resolve()
    if Path.cwd().is_relative_to(place):
        raise ConfigError([f"{place} is the current folder, or contains it; choose another folder with --out"])
    if read_or_empty(RunFolder(place).provenance).get("command") != ["pseudolangevin", "demo"]:
        raise ConfigError([f"{place} contains something other than a demo; choose another folder with --out"])
    aside = next(path for number in count(1) if not (path := Path(f"{place}-{number}")).exists())
    with locked(RunFolder(place)):
        place.rename(aside)
        place.mkdir()  # `out` may be a link to it
    return aside
