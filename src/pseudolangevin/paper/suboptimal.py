"""Fig. A.4: both samplers with good and with poor settings, at every size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..samplers.base import Sampler
from ..samplers.hybrid import HybridMonteCarlo
from ..samplers.langevin import PseudoLangevin
from .results import Row, Stage, plot_displacements
from .spins import Case, speed_record, speed_rows


@dataclass(frozen=True)
class Settings:
    """Settings of one scale."""

    cases: tuple[tuple[Case, tuple[int, int]], ...]
    """Every size with its good and poor number of leapfrog steps."""
    temperature_ratios: tuple[float, float] = (0.01, 0.001)
    """Good and poor temperature ratio."""
    seed: int = 0


SETTINGS = {
    "paper": Settings(
        (
            (Case(50, 1e-6, 100_000, equilibration_seconds=10, seconds=2, chunk_size=55_800), (1_000, 30)),
            (Case(500, 1e-6, 20_000, equilibration_seconds=10, seconds=3, chunk_size=55_800), (100, 10)),
            (Case(5_000, 1e-6, 20_000, equilibration_seconds=4, seconds=3, chunk_size=20_480), (2, 1)),
        )
    ),
    "smoke": Settings(
        (
            (Case(4, 4e-4, 5_000, equilibration_seconds=4, seconds=3, chunk_size=9_570), (100, 5)),
            (Case(12, 2e-4, 5_000, equilibration_seconds=4, seconds=3, chunk_size=17_610), (100, 5)),
        )
    ),
}


def reproduce(settings: Settings, out: Path) -> Iterator[Stage]:
    """Measure both samplers with both settings at every size."""
    rows: list[Row] = []
    measured: dict[int, Any] = {}
    curves = {}
    for case, steps in settings.cases:
        task, weights = case.prepare(out)
        system, moves = (
            (task.potential, task.train),
            {"time_step": 0.05, "warmup_moves": 4, "chunk_size": case.chunk_size},
        )
        langevin = {"refresh_every": 1_000, "reset_probability": 0.0}
        ratios = settings.temperature_ratios
        samplers: dict[str, Sampler] = {
            f"pL, ratio {r:g}": PseudoLangevin(*system, temperature_ratio=r, **langevin) for r in ratios
        }
        samplers |= {f"hMC, {n} steps": HybridMonteCarlo(*system, num_leapfrog_steps=n, **moves) for n in steps}
        good, poor, better, worse = samplers
        speeds = case.measure(samplers, weights)
        rows += speed_rows(speeds, [(good, poor), (better, worse)], f" at N = {task.num_weights}")
        measured[task.num_weights] = speed_record(samplers, speeds)
        curves[task.num_weights] = {label: speed.diffusion for label, speed in speeds.items()}
        figure = Figure(figsize=(9, 3.2 * len(curves)), layout="constrained")
        for pair, (num_weights, found) in zip(
            figure.subplots(len(curves), 2, squeeze=False), curves.items(), strict=True
        ):
            for axes, kind in zip(pair, ("hMC", "pL"), strict=True):
                chosen = {label: curve for label, curve in found.items() if label.startswith(kind)}
                plot_displacements(axes, chosen, f"{kind}, N = {num_weights}")
        yield rows, figure, asdict(settings) | {"measured": measured}
