"""The main job, small: the paper's N = 11 160 network at three temperatures, two chains each, on a CPU, in minutes.

It writes a run folder like any other (`resume`, `check`, `watch` and `load` work on it), a picture and a report, and
prints the averages beside the published ones.
"""

from __future__ import annotations

import math
import shlex
import shutil
import sys
import time
from pathlib import Path

import xarray as xr
from rich import box
from rich.console import Console
from rich.table import Table

from . import figures, runs
from .config import ConfigError, Settings
from .diagnostics.averages import Average, average
from .diagnostics.certificate import certificate
from .published import PublishedAverages, published_averages
from .report import write_report
from .runfiles import find_number, read_config, read_provenance
from .store.folder import HARMLESS, RunFolder
from .store.lock import locked

BURN_IN = 0.5
NUM_STEPS = 14_000
SETTINGS = {
    "temperatures": [3e-5, 3.5e-5, 4e-5],
    "num_chains": 2,
    "num_steps": NUM_STEPS,
    "record_every": 350,
    # Twice the paper's usual batch, 1 % of P, and twice its temperature ratio: the chains diffuse four times as fast. 𝒱
    # is measured about as often as they relax, every 1/(4·S·T·𝒯) steps.
    "sampler": {
        "name": "pseudo_langevin",
        "batch_size": 1_116,
        "temperature_ratio": 0.02,
        "refresh_every": 350,
        "max_refresh_interval": 350,
    },
    "start": {"kind": "adam", "num_steps": 4_000},
}
COMMAND = ["pseudolangevin", "demo"]
"""What a demo's provenance notes, by which it is known again."""
FILES = {"config.toml", "provenance.json", "trace.zarr", "weights.zarr", "checkpoints", "committed.json"}
FILES |= {"metrics.jsonl", "log.txt", "lock", "demo.png", "report.html"}
"""What a demo leaves."""


def run_demo(out: Path, *, console: Console | None = None) -> int:
    """Sample, print, draw; the exit code."""
    console = console or Console()
    _make_room(out, console)
    started = time.perf_counter()
    settings = Settings.model_validate(SETTINGS)
    console.print(
        f"The paper's network of 11 160 weights: {settings.num_chains} chains at each of T = "
        f"{', '.join(f'{t:g}' for t in settings.temperatures or [])}, {settings.num_steps:,} steps, from Adam."
    )
    outcome = runs.start(settings, out, command=COMMAND)
    if outcome.interrupted:
        console.print(f"interrupted; continue with `{_command('resume', out)}`", highlight=False, soft_wrap=True)
        return 130
    result = runs.load(out)
    published = published_averages(
        result.num_weights, {"weight_decay": settings.potential.weight_decay, "num_train": 55_800}
    )
    console.print(averages_table(result.trace, published))
    console.print(
        "Kinetic and virial temperature are in units of T: one at equilibrium. In brackets: the standard error "
        "of the last digits.\n"
        "The published data set is another draw of the same task: data sets differ by a few per cent."
    )
    figures.summary_figure(result.trace, published, discard=BURN_IN).savefig(out / "demo.png", dpi=150)
    verdict = certificate(result)
    report = write_report(out, verdict)
    console.print(f"done in {time.perf_counter() - started:.0f} s", highlight=False)
    console.print(f"  picture  {out / 'demo.png'}\n  report   {report}   (open it in a browser)", soft_wrap=True)
    console.print(
        f"  check    the certificate: {verdict.verdict}; line by line: {_command('check', out)}\n"
        "           (a few minutes are too short for one that passes; its last line says how much longer it takes)",
        soft_wrap=True,
    )
    return 1 if outcome.stopped_chains else 0


def averages_table(trace: xr.Dataset, published: list[PublishedAverages]) -> Table:
    """Averages by temperature, each published value below its own."""
    table = Table(
        title=f"averages over the last {1 - BURN_IN:.0%} of the records",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for heading in ("T", "", "loss", "|w|²", "error", "kinetic/T", "virial/T"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True, min_width=5)
    for temperature in trace["temperature"].values:
        here = trace.sel(temperature=temperature)
        scaled = {"loss": 1.0, "squared_norm": 1.0, "error": 1.0}
        scaled |= {"kinetic_temperature": temperature, "virial_temperature": temperature}
        numbers = [with_error(average(here[name].values / unit, burn_in=BURN_IN)) for name, unit in scaled.items()]
        table.add_row(f"{temperature:g}".replace("e-0", "e-"), "measured", *numbers)
        for other in published:
            values = [other.at(float(temperature), name) for name in ("loss", "squared_norm", "error")]
            if None not in values:
                table.add_row("", other.label, *(f"{value:.5g}" for value in values), "", "", style="dim")
    return table


def with_error(value: Average) -> str:
    """A number with its standard error in units of the last digits: 0.3262(7) means 0.3262 ± 0.0007."""
    error = value.standard_error
    if not math.isfinite(error) or error <= 0:
        return f"{value.mean:.4g}"
    digits = max(0, -math.floor(math.log10(error)))
    return f"{value.mean:.{digits}f}({round(error * 10**digits)})"


def _command(name: str, path: Path) -> str:
    """A command on a run folder as it can be typed here: by the program's plain name only where that finds it."""
    called = Path(sys.argv[0])
    program = shlex.join([sys.executable, "-m", "pseudolangevin"])
    if called.name == "pseudolangevin":
        found = shutil.which(called.name)
        plain = found is not None and Path(found).resolve() == called.resolve()
        program = called.name if plain else shlex.quote(sys.argv[0])
    return f"{program} {name} {shlex.quote(str(path))}"


def _make_room(out: Path, console: Console) -> None:
    """Put an older demo aside, in place of the one before it; leave anything else alone."""
    if not out.exists() or (out.is_dir() and not {entry.name for entry in out.iterdir()} - HARMLESS):
        return
    place = out.resolve()
    aside = place.parent / f"{place.name}-before"
    for folder in (place, aside):
        if not folder.exists() and not folder.is_symlink():
            continue
        if Path.cwd().is_relative_to(folder):
            raise ConfigError([f"{folder} is the folder you are in, or above it; choose another folder with --out"])
        if not _is_demo(folder):
            raise ConfigError(
                [f"{folder} holds something other than a plain demo; move it away, or choose another folder with --out"]
            )
    with locked(RunFolder(place)):
        if aside.exists():
            with locked(RunFolder(aside)):
                shutil.rmtree(aside)
        place.rename(aside)
        RunFolder(aside).lock.unlink()
    place.mkdir()
    console.print(f"the demo of before is now in {aside}", highlight=False, soft_wrap=True)


def _is_demo(path: Path) -> bool:
    """Whether a folder holds what this command leaves: no run made otherwise, no longer one, no files of anyone's."""
    if path.is_symlink() or not path.is_dir() or read_provenance(path).get("command") != COMMAND:
        return False
    num_steps = find_number(read_config(path), "num_steps")
    if num_steps is None or num_steps > NUM_STEPS:
        return False
    return all(entry.name in FILES or entry.name.endswith(".partial") for entry in path.iterdir())
