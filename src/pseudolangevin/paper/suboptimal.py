"""Fig. A.4: both samplers with good and with poor settings, at every size."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..samplers.hybrid import hybrid_monte_carlo
from ..samplers.langevin import pseudo_langevin
from ..tuning.measure import Measured
from .race import REFRESH_EVERY, Course, at_least, describe, equilibrate, plot_displacements, prepare, race, ratio, say
from .results import Reproduction, Row, row


@dataclass(frozen=True)
class Settings:
    """One size: leapfrog steps and temperature ratios, each good and poor."""

    course: Course
    leapfrog_steps: tuple[int, int]
    temperature_ratios: tuple[float, float] = (0.01, 0.001)


SETTINGS = {
    "paper": (
        Settings(Course(50, 1e-6, 6, 6, 2, 2, 55_800), (1_000, 30)),
        Settings(Course(500, 1e-6, 6, 2, 2, 3, 55_800), (100, 10)),
        Settings(Course(5_000, 1e-6, 8, 1, 3, 3, 20_480), (2, 1)),
    ),
    "smoke": (
        Settings(Course(4, 4e-4, 4, 6, 4, 3, 9_570), (100, 5)),
        Settings(Course(12, 2e-4, 4, 6, 4, 3, 17_610), (100, 5)),
    ),
}
TIME_LIMIT = {"paper": 150.0, "smoke": 400.0}
"""No further size is begun after this many seconds."""


def reproduce(scale: str, out: Path) -> Reproduction:
    """Four runs at every size."""
    started = time.perf_counter()
    found: list[tuple[int, Settings, dict[str, Measured], dict[str, Any]]] = []
    for settings in SETTINGS[scale]:
        if found and time.perf_counter() - started > TIME_LIMIT[scale]:
            say(f"time is up: L1 = {settings.course.hidden_units} is left out")
            break
        found.append(compare(settings, out))
        rows = [r for num_weights, chosen, runs, _ in found for r in rows_of(num_weights, chosen, runs)]
        record = {"sizes": [r for *_, r in found], "sizes_left_out": len(SETTINGS[scale]) - len(found)}
        seconds = time.perf_counter() - started
        figure = draw([(n, runs) for n, _, runs, _ in found])
        reproduction = Reproduction("suboptimal", scale, rows, figure, record, settings.course.seed, seconds)
        reproduction.write(out)  # the next size takes longer
    return reproduction


def compare(settings: Settings, out: Path) -> tuple[int, Settings, dict[str, Measured], dict[str, Any]]:
    """Both samplers with both settings from one start."""
    course = settings.course
    task, start, origin = prepare(course, out)
    equilibrated = equilibrate(course, task, start)
    samplers = {
        f"pL, ratio {value:g}": pseudo_langevin(
            task.potential, task.train, temperature_ratio=value, refresh_every=REFRESH_EVERY, reset_probability=0.0
        )
        for value in settings.temperature_ratios
    }
    samplers |= {
        f"hMC, {steps} steps": hybrid_monte_carlo(
            task.potential,
            task.train,
            num_leapfrog_steps=steps,
            time_step=0.05,
            warmup_moves=4,
            chunk_size=course.chunk_size,
        )
        for steps in settings.leapfrog_steps
    }
    runs = race(course, samplers, equilibrated.weights)
    record = asdict(settings) | {
        "num_weights": task.num_weights,
        "start": origin,
        "runs": {label: describe(run) for label, run in runs.items()},
    }
    return task.num_weights, settings, runs, record


def rows_of(num_weights: int, settings: Settings, runs: dict[str, Measured]) -> list[Row]:
    """D* of all four, and that the good settings are better."""
    rows = [row(f"D*/N in 1/s at N = {num_weights}, {label}", run.relative_diffusion) for label, run in runs.items()]
    for good, poor in (
        [f"pL, ratio {value:g}" for value in settings.temperature_ratios],
        [f"hMC, {steps} steps" for steps in settings.leapfrog_steps],
    ):
        gain = ratio(runs[good].diffusion, runs[poor].diffusion)
        rows.append(at_least(f"D* at N = {num_weights}: {good}, over {poor}", 1.0, gain))
    return rows


def draw(found: list[tuple[int, dict[str, Measured]]]) -> Figure:
    """A row of panels per size: hMC, pL."""
    figure = Figure(figsize=(9, 3.2 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), 2, squeeze=False)
    for (num_weights, runs), pair in zip(found, panels, strict=True):
        for axes, kind in zip(pair, ("hMC", "pL"), strict=True):
            curves = {label: run.diffusion for label, run in runs.items() if label.startswith(kind)}
            plot_displacements(axes, curves, f"{kind}, N = {num_weights}")
    return figure
