"""The demo: the paper's network of 11 160 weights at three temperatures, two chains each, on a CPU, in minutes.

It writes a run folder like any other (`resume`, `check`, `watch` and `pl.load` work on it), a picture and a report, and
prints the averages alongside the published ones.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from itertools import count
from pathlib import Path

import xarray as xr
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from .diagnostics import certificate
from .diagnostics.averages import Average, average_by_temperature, kept
from .paper.results import published_value
from .runs import session
from .runs.config import ConfigError, Settings
from .runs.folder import RunFolder, RunFolderError, locked, read_json
from .runs.report import write_report

SETTINGS = {
    "temperatures": [3e-5, 3.5e-5, 4e-5],
    "num_chains": 2,
    "num_steps": 14_000,
    "record_every": 350,
    # Twice the usual batch size of the paper, 1 % of P, and twice its temperature ratio: the chains diffuse four times
    # as fast. The variance is measured about as often as the chains relax, every 1/(4 S T ratio) steps.
    "sampler": {
        "name": "pseudo_langevin",
        "batch_size": 1_116,
        "temperature_ratio": 0.02,
        "refresh_every": 350,
        "max_refresh_interval": 350,
    },
    "start": {"kind": "adam", "num_steps": 4_000},
}


def run_demo(out: Path, *, console: Console | None = None) -> int:
    """Sample, print the averages, draw the picture, write the report; return the exit code."""
    console = console or Console(highlight=False, soft_wrap=True)
    move_aside(out, console)
    started = time.perf_counter()
    settings = Settings.model_validate(SETTINGS)
    temperatures = ", ".join(f"{temperature:g}" for temperature in settings.temperatures or [])
    console.print(
        f"{settings.num_chains} chains at each of T = {temperatures}, {settings.num_steps:,} steps, from Adam."
    )
    outcome = session.start(settings, out, command=["pseudolangevin", "demo"])
    if outcome.interrupted:
        console.print(f"interrupted; continue with `{shell_command('resume', out)}`")
        return 130
    result = session.load(out)
    averages = demo_averages(result.trace)
    console.print(averages_table(averages, result.trace["temperature"].values.tolist(), result.num_weights))
    console.print("Kinetic and virial temperature are divided by T: one at equilibrium.")
    console.print("The published data set is another draw of the same task: data sets differ by a few per cent.")
    draw(result.trace, averages).savefig(out / "demo.png", dpi=150)
    verdict = certificate(result)
    report = write_report(out, verdict)
    console.print(f"done in {time.perf_counter() - started:.0f} s")
    console.print(f"  picture  {out / 'demo.png'}\n  report   {report}   (open it in a browser)")
    console.print(f"  check    the certificate: {verdict.verdict}; line by line: {shell_command('check', out)}")
    console.print("           (a few minutes are too short to pass; its last line gives the time that is missing)")
    return 1 if outcome.stopped_chains else 0


def demo_averages(trace: xr.Dataset) -> dict[str, list[Average]]:
    """Return averages over the second half of the records, by name and temperature."""
    columns = {name: trace[name] for name in ("loss", "squared_norm", "error")}
    for name in ("kinetic", "virial"):
        columns[f"{name}/T"] = trace[f"{name}_temperature"] / trace["temperature"]
    return {name: average_by_temperature(kept(values), trace) for name, values in columns.items()}


def averages_table(averages: dict[str, list[Average]], temperatures: list[float], num_weights: int) -> Table:
    """Return a table with one row per average, and the published value of pseudo-Langevin after the measured one."""
    table = Table("", title="averages over the second half of the records", box=box.SIMPLE_HEAD)
    rows: dict[str, list[str]] = {name: [] for name in averages}
    for index, temperature in enumerate(temperatures):
        table.add_column(f"T = {temperature:g}".replace("e-0", "e-"), justify="right")
        for name, row in rows.items():
            row.append(str(averages[name][index]))
        known = {
            name: published_value("thermodynamics", num_weights, "pL", temperature, name)
            for name in ("loss", "squared_norm", "error")
        }
        if None not in known.values():
            table.add_column("published", justify="right", style="dim")
            for name, row in rows.items():
                row.append(f"{known[name]:.4g}" if name in known else "")
    for name, row in rows.items():
        table.add_row("|w|²" if name == "squared_norm" else name, *row)
    return table


def draw(trace: xr.Dataset, averages: dict[str, list[Average]]) -> Figure:
    """Return a picture of loss, |w|² and error against temperature, above their traces."""
    figure = Figure(figsize=(12, 6.5), layout="constrained")
    axes = figure.subplots(2, 3)
    for (above, below), name in zip(axes.T, ("loss", "squared_norm", "error"), strict=True):
        means, errors, _ = zip(*averages[name], strict=True)
        above.errorbar(trace["temperature"], means, errors, fmt="o-", capsize=2)
        above.set(xlabel="temperature T", ylabel=f"mean {trace[name].attrs.get('label', name)}")
        for temperature in trace["temperature"].values:
            lines = below.plot(trace["step"], trace[name].sel(temperature=temperature).transpose("draw", "chain"), lw=1)
            for line in lines:
                line.set(color=lines[0].get_color())
            lines[0].set_label(f"T = {temperature:g}")
        below.set(xlabel="steps", ylabel=trace[name].attrs.get("label", name))
    axes[1, 0].legend(frameon=False)
    return figure


def shell_command(name: str, path: Path) -> str:
    """Return a command on a run folder as it can be typed here."""
    program = shlex.join([sys.executable, "-m", "pseudolangevin"])
    if Path(sys.argv[0]).name == "pseudolangevin":
        on_path = shutil.which("pseudolangevin")
        is_plain = on_path is not None and Path(on_path).resolve() == Path(sys.argv[0]).resolve()
        program = "pseudolangevin" if is_plain else shlex.quote(sys.argv[0])
    return f"{program} {name} {shlex.quote(str(path))}"


def move_aside(out: Path, console: Console) -> None:
    """Rename the folder of an earlier demo; raise a ConfigError if the folder contains something else."""
    if not out.exists() or (out.is_dir() and {entry.name for entry in out.iterdir()} <= {"lock", "log.txt"}):
        return
    place = out.resolve()
    if Path.cwd().is_relative_to(place):
        raise ConfigError([f"{place} is the current folder, or contains it; choose another folder with --out"])
    try:
        is_demo = read_json(RunFolder(place).provenance).get("command") == ["pseudolangevin", "demo"]
    except RunFolderError:
        is_demo = False
    if not is_demo:
        raise ConfigError([f"{place} contains something other than a demo; choose another folder with --out"])
    aside = next(path for number in count(1) if not (path := Path(f"{place}-{number}")).exists())
    with locked(RunFolder(place)):
        place.rename(aside)
        RunFolder(aside).lock.unlink()
    place.mkdir()  # `out` may be a link to it
    console.print(f"the earlier demo is now in {aside}")
