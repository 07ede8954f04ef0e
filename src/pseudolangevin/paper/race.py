"""Samplers side by side: from one equilibrated start, each for some seconds, their displacements on one clock."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from ..diagnostics.diffusion import Diffusion
from ..samplers.base import Sampler
from ..samplers.hybrid_kernel import HybridKernel
from ..samplers.langevin import pseudo_langevin
from ..tuning.bench import Bench, stride_of
from ..tuning.langevin import MAX_RAISES
from ..tuning.measure import Measured, measure
from ..types import Weights
from .results import Row
from .spins import SpinTask, cached_start, kept_end, quick_start, spin_task

REFRESH_EVERY = 1_000
"""Steps between measurements of 𝒱 in a race, which is too short for the paper's 5000."""
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")


@dataclass(frozen=True)
class Course:
    """One system: its size and temperature, and the time for what is done there."""

    hidden_units: int
    temperature: float
    training_seconds: float
    """Of Adam, where the starts of `thermodynamics` (5000 epochs at N = 11 160) are not there."""
    candidates: int
    """Trainings side by side; the best without a dead class is taken."""
    equilibration_seconds: float
    seconds: float
    """For every sampler in turn."""
    chunk_size: int
    num_train: int | None = None
    seed: int = 0
    observe_examples: int | None = None
    """For the loss and error that are watched; default: all."""


def say(text: str) -> None:
    """One line of progress."""
    print(text, flush=True)


def prepare(course: Course, out: Path, task: SpinTask | None = None) -> tuple[SpinTask, Weights, str]:
    """The task, if it is not there already, a start, and where it comes from: the best that is found in `out`."""
    task = task or spin_task(course.hidden_units, num_train=course.num_train)
    end = kept_end(out, task, course.temperature)
    if end is not None:
        return task, end, "the end of an earlier study at this temperature"
    cache = out / "thermodynamics-starts.npz"
    try:
        start = cached_start(cache, task)
    except ValueError:  # of another size
        start = None
    if start is not None:
        return task, start, f"{cache.name}: 5000 epochs of Adam"
    start = quick_start(
        task,
        seconds=course.training_seconds,
        num_candidates=course.candidates,
        record_every=min(2_000, max(100, task.train.num_examples // 1_000)),
        seed=course.seed,
    )
    say(f"N = {task.num_weights}: trained for about {course.training_seconds:g} s")
    return task, start, f"Adam for about {course.training_seconds:g} s, batches of 128, learning rate 1e-3"


def equilibrate(course: Course, task: SpinTask, start: Weights) -> Measured:
    """Pseudo-Langevin with the paper's S and 𝒯, from the start.

    Masses are raised alone: with the paper's chance of a reset, one left a chain of a million weights with masses too
    light for where it went.
    """
    sampler = pseudo_langevin(task.potential, task.train, refresh_every=REFRESH_EVERY, reset_probability=0.0)
    run = run_one(course, sampler, start, seconds=course.equilibration_seconds)
    if run.stopped:
        raise ValueError(
            f"N = {task.num_weights}, T = {course.temperature:g}: the chain that was to equilibrate turned non-finite "
            f"after {run.num_steps} steps; give another start"
        )
    return run


def run_one(course: Course, sampler: Sampler, weights: Weights, *, seconds: float | None = None) -> Measured:
    """One sampler by the clock."""
    seconds = course.seconds if seconds is None else seconds
    kernel = sampler.kernel
    if sampler.name == "pseudo_langevin":
        return _with_raised_masses(course, sampler, weights, seconds)
    hybrid = isinstance(kernel, HybridKernel)
    return measure(
        sampler,
        weights,
        temperature=course.temperature,
        segment=1 if hybrid else stride_of(sampler.settings["momentum_retention"]),
        seconds=seconds,
        discard_steps=kernel.warmup_moves - 1 if isinstance(kernel, HybridKernel) else 0,
        observe=False,
        chunk_size=course.chunk_size,
        key=course.seed,
    )


def _with_raised_masses(course: Course, sampler: Sampler, weights: Weights, seconds: float) -> Measured:
    """Pseudo-Langevin as it is after many measurements of 𝒱.

    Masses that answer to one place alone are too light for others: with a million weights such a chain can turn
    non-finite within some hundred steps.
    """
    bench = Bench(
        sampler,
        weights,
        course.temperature,
        seconds=math.inf,
        max_seconds=math.inf,
        chunk_size=course.chunk_size,
        key=course.seed,
        report=say,
    )
    return bench.measure_langevin(sampler.settings, seconds, num_raises=MAX_RAISES, observe=False)


def race(course: Course, samplers: Mapping[str, Sampler], weights: Weights) -> dict[str, Measured]:
    """Every sampler from the same weights, one after the other."""
    found = {}
    for label, sampler in samplers.items():
        began = time.perf_counter()
        found[label] = run = run_one(course, sampler, weights)
        say(
            f"{label}: D*/N = {run.relative_diffusion:.3g} 1/s, {1e3 * run.seconds_per_step:.4g} ms/step, "
            f"{run.num_steps} steps; {time.perf_counter() - began:.0f} s with compilation"
        )
    return found


def describe(run: Measured) -> dict[str, Any]:
    """For the record."""
    return {
        "sampler": repr(run.sampler),
        "interval_of_variance": "fixed, after ten measurements before the clock ran"
        if run.sampler.name == "pseudo_langevin"
        else None,
        "steps": run.num_steps,
        "seconds": run.seconds,
        "seconds_per_step": run.seconds_per_step,
        "variance_share": run.variance_share,
        "stopped": run.stopped,
        "relative_diffusion": run.relative_diffusion if math.isfinite(run.relative_diffusion) else None,
        "diffusion": None if run.diffusion is None else run.diffusion.to_dict(),
    }


def quotient(left: float, right: float) -> float:
    """NaN where the right one is zero: all of a few moves were rejected, and nothing is known of it."""
    return left / right if right else math.nan


def ratio(left: Diffusion | None, right: Diffusion | None) -> tuple[float, float | None]:
    """D* of one over that of the other, and its standard error where it is known."""
    if left is None or right is None:
        return float("nan"), None
    value = quotient(float(left.coefficient[0]), float(right.coefficient[0]))
    errors = [quotient(float(d.coefficient_error[0]), float(d.coefficient[0])) for d in (left, right)]
    error = value * math.hypot(*errors)
    return value, error if math.isfinite(error) else None


def at_least(quantity: str, limit: float, value: tuple[float, float | None], published: float | None = None) -> Row:
    """A row that passes when the value reaches `limit`."""
    measured, error = value
    return Row(f"{quantity} (at least {limit:g})", published, measured, error, None, bool(measured >= limit))


def plot_displacements(axes: Axes, curves: Mapping[str, Diffusion | None], title: str) -> None:
    """d²/N against wall-clock time."""
    for color, (label, curve) in zip(COLORS * 2, curves.items(), strict=False):
        if curve is not None:
            moved = curve.displacement[0] > 0  # a few moves of hMC may all have been rejected
            axes.plot(curve.seconds[moved], curve.displacement[0][moved], "o-", ms=3, lw=1, color=color, label=label)
    axes.set(xscale="log", yscale="log", xlabel="wall-clock interval Δt [s]", ylabel="d²/N")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())  # those of less than a decade would overlap
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False, fontsize=7)
