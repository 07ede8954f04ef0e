"""Fig. A.4: both samplers with good and with poor settings, at every size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import Sampler, hybrid_monte_carlo, pseudo_langevin
from .._trees import Weights
from .results import Stage
from .spins import Case, Task, compare_speeds


@dataclass(frozen=True)
class Size(Case):
    """One size with its settings, each good and poor."""

    leapfrog_steps: tuple[int, int] = (100, 5)
    temperature_ratios: tuple[float, float] = (0.01, 0.001)


@dataclass(frozen=True)
class Settings:
    """Settings of one scale."""

    sizes: tuple[Size, ...]
    seed: int = 0


SETTINGS = {
    "paper": Settings(
        (
            Size(50, 1e-6, 100_000, 10, seconds=2, chunk_size=55_800, leapfrog_steps=(1_000, 30)),
            Size(500, 1e-6, 20_000, 10, seconds=3, chunk_size=55_800, leapfrog_steps=(100, 10)),
            Size(5_000, 1e-6, 20_000, 4, seconds=3, chunk_size=20_480, leapfrog_steps=(2, 1)),
        )
    ),
    "smoke": Settings(
        (
            Size(4, 4e-4, 5_000, 4, seconds=3, chunk_size=9_570),
            Size(12, 2e-4, 5_000, 4, seconds=3, chunk_size=17_610),
        )
    ),
}


def reproduce(settings: Settings, out: Path) -> Iterator[Stage]:
    """Measure both samplers with both settings at every size; good settings must be faster than poor ones."""
    pairs = ((0, 1), (2, 3))
    return compare_speeds(
        settings.sizes, out, samplers_of, lambda _, labels: [(labels[i], labels[j], 1.0, False) for i, j in pairs]
    )


def samplers_of(size: Size, task: Task, weights: Weights) -> dict[str, Sampler]:
    """Return the samplers by label."""
    system = (task.potential, task.train)
    moves: dict[str, Any] = {"time_step": 0.05, "warmup_moves": 4, "chunk_size": size.chunk_size}
    found: dict[str, Sampler] = {}
    for value in size.temperature_ratios:
        options: dict[str, Any] = {"temperature_ratio": value, "refresh_every": 1_000, "reset_probability": 0.0}
        found[f"pL, ratio {value:g}"] = pseudo_langevin(*system, **options)
    for steps in size.leapfrog_steps:
        found[f"hMC, {steps} steps"] = hybrid_monte_carlo(*system, num_leapfrog_steps=steps, **moves)
    return found
