"""The demo: four chains of a small network on the paper's task, on a CPU, in two minutes, with their certificate.

It writes a run folder like any other (`resume`, `check`, `watch` and `pl.load` work on it), a picture and a report, and
prints the averages, alongside the published ones if the network is one of the paper's.
"""

from __future__ import annotations

import shlex
import shutil
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
from .paper.results import PublishedAverages, published_averages
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
        console.print(f"interrupted; continue with `{shell_command('resume', out)}`")
        return 130
    result = session.load(out)
    published = published_averages(result.num_weights, {"weight_decay": settings.potential.weight_decay})
    console.print(averages_table(result.trace, published))
    console.print("Kinetic and virial temperature are divided by T: one at equilibrium.")
    if published:
        console.print("The published data set is another draw of the same task: data sets differ by a few per cent.")
    summary_figure(result.trace, published).savefig(out / "demo.png", dpi=150)
    verdict = certificate(result)
    report = write_report(out, certificate=verdict)
    console.print(f"done in {time.perf_counter() - started:.0f} s")
    console.print(f"  picture  {out / 'demo.png'}\n  report   {report}   (open it in a browser)")
    console.print(f"  check    the certificate: {verdict.verdict}; line by line: {shell_command('check', out)}")
    return 1 if outcome.stopped_chains else 0


def averages_table(trace: xr.Dataset, published: list[PublishedAverages]) -> Table:
    """Return a row for every average over the second half of the records, with published values after measured ones."""
    trace = kept(trace)
    columns = {name: trace[name] for name in ("loss", "squared_norm", "error")}
    columns |= {f"{name}/T": trace[f"{name}_temperature"] / trace["temperature"] for name in ("kinetic", "virial")}
    rows = {name: [name.replace("squared_norm", "|w|²")] for name in columns}
    table = Table("", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    averages = {name: average_by_temperature(values, trace) for name, values in columns.items()}
    for index, temperature in enumerate(trace["temperature"].values.tolist()):
        table.add_column(f"T = {temperature:g}", justify="right")
        for name, row in rows.items():
            row.append(str(averages[name][index]))
        for other in published:
            if other.at(temperature, "loss") is not None:
                table.add_column(other.label.replace(" ", "\n"), justify="right", style="dim")
                for name, row in rows.items():
                    value = other.at(temperature, name)
                    row.append("" if value is None else f"{value:.4g}")
    for row in rows.values():
        table.add_row(*row)
    return table


def shell_command(name: str, path: Path) -> str:
    """Return a command on a run folder as it can be typed here."""
    program = shlex.join([sys.executable, "-m", "pseudolangevin"])
    if Path(sys.argv[0]).name == "pseudolangevin":
        found = shutil.which("pseudolangevin")
        is_found = found is not None and Path(found).resolve() == Path(sys.argv[0]).resolve()
        program = "pseudolangevin" if is_found else shlex.quote(sys.argv[0])
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
