"""Fig. A.2: pseudo-Langevin with smaller mini-batches, and, beyond the paper, with larger ones."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from ..samplers.hybrid import hybrid_monte_carlo
from ..samplers.langevin import pseudo_langevin
from ..tuning.langevin import MIN_STRIDES
from ..tuning.measure import Measured
from .race import (
    REFRESH_EVERY,
    Course,
    at_least,
    describe,
    equilibrate,
    plot_displacements,
    prepare,
    quotient,
    race,
    ratio,
)
from .results import Reproduction, Row, row

SETTINGS = {
    "paper": (Course(5_000, 1e-6, 12, 1, 4, 4, 20_480), (0.001, 0.005, 0.01), 1),
    "smoke": (Course(10, 2e-4, 8, 6, 8, 6, 15_600), (0.001, 0.005, 0.01, 0.1), 20),
}
"""The course, the batch sizes as shares of P (0.01 is the paper's), and the leapfrog steps of hMC."""


def reproduce(scale: str, out: Path) -> Reproduction:
    """Every batch size from the same start, and hybrid Monte Carlo."""
    started = time.perf_counter()
    course, shares, leapfrog_steps = SETTINGS[scale]
    task, start, origin = prepare(course, out)
    equilibrated = equilibrate(course, task, start)
    samplers = {
        _label(share): pseudo_langevin(
            task.potential,
            task.train,
            batch_size=max(2, round(share * task.train.num_examples)),
            refresh_every=REFRESH_EVERY,
            reset_probability=0.0,
        )
        for share in shares
    }
    samplers["hMC"] = hybrid_monte_carlo(
        task.potential,
        task.train,
        num_leapfrog_steps=leapfrog_steps,
        time_step=0.05,
        warmup_moves=4,
        chunk_size=course.chunk_size,
    )
    runs = race(course, samplers, equilibrated.weights)
    reference = runs[_label(0.01)]
    rows = [
        row(f"D*/N in 1/s, {label}", run.relative_diffusion, standard_error=_error(run)) for label, run in runs.items()
    ]
    for share in shares:
        if share != 0.01:
            value, error = ratio(runs[_label(share)].diffusion, reference.diffusion)
            rows.append(row(f"D* of {_label(share)} over S = 1 % of P", value, standard_error=error))
    rows.append(at_least("D* of pL, S = 1 % of P, over hMC", 1.0, ratio(reference.diffusion, runs["hMC"].diffusion)))
    if scale == "paper":
        rows.append(_after_the_same_time(reference, runs[_label(0.001)]))
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    curves = {label: run.diffusion for label, run in runs.items()}
    plot_displacements(figure.subplots(), curves, f"N = {task.num_weights}, T = {course.temperature:g}")
    settings = asdict(course) | {
        "num_weights": task.num_weights,
        "start": origin,
        "runs": {label: describe(run) for label, run in runs.items()},
    }
    return Reproduction("batch-size", scale, rows, figure, settings, course.seed, time.perf_counter() - started)


def _after_the_same_time(larger: Measured, smaller: Measured) -> Row:
    """As in the paper's figure: d² of both after one and the same time, some intervals of the slower steps."""
    value, seconds = math.nan, math.nan
    if larger.diffusion is not None and smaller.diffusion is not None:
        ends = [float(curve.seconds[-1]) for curve in (larger.diffusion, smaller.diffusion)]
        seconds = min(MIN_STRIDES * float(larger.diffusion.seconds[0]), *ends)
        value = quotient(float(larger.diffusion.at(seconds)[0]), float(smaller.diffusion.at(seconds)[0]))
    return at_least(f"d² of S = 1 % of P over S = 0.1 %, after {seconds:.2g} s", 1.0, (value, None))


def _label(share: float) -> str:
    return f"pL, S = {100 * share:g} % of P"


def _error(run: object) -> float | None:
    diffusion = getattr(run, "diffusion", None)
    return None if diffusion is None else float(diffusion.coefficient_error[0])
