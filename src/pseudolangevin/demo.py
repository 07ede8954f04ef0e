"""The demo: four chains of a small network on the paper's task, on a CPU, in two minutes, with their certificate.

It writes a run folder like any other (`resume`, `check`, `watch` and `pl.load` work on it), a picture and a report, and
prints the averages. In the folder of an earlier demo it continues that run, and makes the picture and the report again.
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from .diagnostics import certificate
from .runs import session
from .runs.config import Settings
from .runs.folder import RunFolder, read_or_empty
from .runs.report import summary_figure, write_report

SETTINGS = {
    "temperatures": [3e-4],  # 1.7/P, a little above the transition, as T = 3e-5 is for the paper's small network
    "num_chains": 4,
    "num_steps": 150_000,
    "record_every": 300,
    "task": {"num_train": 5_600, "num_test": 1_000},
    "network": {"sizes": [100, 10, 10]},
    "sampler": {"name": "balanced_langevin"},
    "start": {"kind": "adam", "num_steps": 3_000},
}


def run_demo(out: Path) -> int:
    """Sample, print the averages, draw the picture, write the report; return the exit code."""
    console = Console(highlight=False, soft_wrap=True)
    started, command = time.perf_counter(), ["pseudolangevin", "demo"]
    if read_or_empty(RunFolder(out).provenance).get("command") == command:
        console.print(f"continuing the demo in {out}")
        outcome = session.continue_run(out, command=command)
    else:
        settings = Settings.model_validate(SETTINGS)
        temperatures, steps = (f"{t:g}" for t in settings.temperatures or []), f"{settings.num_steps:,} steps"
        console.print(f"{settings.num_chains} chains at each of T = {', '.join(temperatures)}; {steps} after Adam")
        outcome = session.start(settings, out, command=command)
    if outcome.interrupted:
        console.print(f"interrupted; continue with `pseudolangevin resume {out}`")
        return 130
    result = session.load(out)
    shown = ["loss", "squared_norm", "error", "kinetic_temperature", "virial_temperature"]
    averages = result.averages().loc[(slice(None), shown), ["mean", "standard_error"]]
    console.print(averages.to_string(float_format="{:.4g}".format))
    console.print("At equilibrium the kinetic and the virial temperature are T.")
    summary_figure(result.trace).savefig(out / "demo.png", dpi=150)
    verdict = certificate(result)
    report = write_report(out, certificate=verdict)
    console.print(f"done in {time.perf_counter() - started:.0f} s")
    console.print(f"  picture  {out / 'demo.png'}\n  report   {report}   (open it in a browser)")
    console.print(f"  check    the certificate: {verdict.verdict}; line by line: `pseudolangevin check {out}`")
    return 1 if outcome.stopped_chains else 0
