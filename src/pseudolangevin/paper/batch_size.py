"""Fig. A.2: pseudo-Langevin with smaller mini-batches and, beyond the paper, with larger ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ..samplers.base import Sampler
from ..samplers.hybrid import HybridMonteCarlo
from ..samplers.langevin import PseudoLangevin
from .results import Stage, plot_displacements, row
from .spins import Case, ratio, speed_record, speed_rows


@dataclass(frozen=True)
class Settings(Case):
    """Settings of one scale."""

    percentages: tuple[float, ...] = (1.0, 0.5, 0.1)
    """Batch sizes in percent of the training set; the first is the paper's choice."""
    num_leapfrog_steps: int = 1


SETTINGS = {
    "paper": Settings(5_000, 1e-6, 20_000, equilibration_seconds=4, seconds=4, chunk_size=20_480),
    "smoke": Settings(
        10,
        2e-4,
        5_000,
        equilibration_seconds=8,
        seconds=6,
        chunk_size=15_600,
        percentages=(1.0, 0.1, 0.5, 10.0),
        num_leapfrog_steps=20,
    ),
}


def reproduce(settings: Settings, out: Path) -> Iterator[Stage]:
    """Measure every batch size, and hybrid Monte Carlo, from the same weights."""
    task, weights = settings.prepare(out)
    system = (task.potential, task.train)
    samplers: dict[str, Sampler] = {
        f"pL, S = {percentage:g} % of P": PseudoLangevin(
            *system,
            batch_size=max(2, round(percentage / 100 * task.train.num_examples)),
            refresh_every=1_000,
            reset_probability=0.0,
        )
        for percentage in settings.percentages
    }
    first, *others = samplers
    moves = {"num_leapfrog_steps": settings.num_leapfrog_steps, "chunk_size": settings.chunk_size}
    samplers["hMC"] = HybridMonteCarlo(*system, time_step=0.05, warmup_moves=4, **moves)
    speeds = settings.measure(samplers, weights)
    rows = speed_rows(speeds, [(first, "hMC")])
    for label in others:
        rows.append(row(f"D*, {label} over {first}", ratio(speeds[label].diffusion, speeds[first].diffusion)))
        value = ratio(speeds[first].diffusion, speeds[label].diffusion, same_interval=True)
        rows.append(row(f"d² at the same interval, {first} over {label}", value))
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    title = f"N = {task.num_weights}, T = {settings.temperature:g}"
    plot_displacements(figure.subplots(), {label: speed.diffusion for label, speed in speeds.items()}, title)
    record = {"num_weights": task.num_weights, "measured": speed_record(samplers, speeds)}
    yield rows, figure, asdict(settings) | record
