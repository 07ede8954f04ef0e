"""Fig. A.2: pseudo-Langevin with smaller mini-batches and, beyond the paper, with larger ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import Sampler, hybrid_monte_carlo, pseudo_langevin
from .._trees import Weights
from .results import Stage
from .spins import Case, Task, compare_speeds


@dataclass(frozen=True)
class Settings(Case):
    """Settings of one scale."""

    percentages: tuple[float, ...] = (1.0, 0.5, 0.1)
    """Batch sizes in percent of the training set; the first is the paper's choice."""
    num_leapfrog_steps: int = 1


SMOKE: dict[str, Any] = {"percentages": (1.0, 0.5, 0.1, 10.0), "num_leapfrog_steps": 20}
SETTINGS = {
    "paper": Settings(5_000, 1e-6, 20_000, equilibration_seconds=4, seconds=4, chunk_size=20_480),
    "smoke": Settings(10, 2e-4, 5_000, equilibration_seconds=8, seconds=6, chunk_size=15_600, **SMOKE),
}


def reproduce(settings: Settings, out: Path) -> Iterator[Stage]:
    """Measure every batch size, and hMC; the paper's batch size must be faster than smaller ones and than hMC."""
    return compare_speeds([settings], out, samplers_of, pairs_of)


def pairs_of(settings: Settings, labels: Sequence[str]) -> list[tuple[str, str, float, bool]]:
    """Return the pairs to judge: smaller batches at the same interval, as in the paper's figure."""
    first, *sizes = settings.percentages
    smaller = [label for label, size in zip(labels[1:], sizes, strict=False) if size < first]
    return [(labels[0], label, 1.0, True) for label in smaller] + [(labels[0], "hMC", 1.0, False)]


def samplers_of(settings: Settings, task: Task, weights: Weights) -> dict[str, Sampler]:
    """Return the samplers by label."""
    moves: dict[str, Any] = {"num_leapfrog_steps": settings.num_leapfrog_steps, "chunk_size": settings.chunk_size}
    found: dict[str, Sampler] = {}
    for percentage in settings.percentages:
        options: dict[str, Any] = {
            "batch_size": max(2, round(percentage / 100 * task.train.num_examples)),
            "refresh_every": 1_000,
        }
        sampler = pseudo_langevin(task.potential, task.train, reset_probability=0.0, **options)
        found[f"pL, S = {percentage:g} % of P"] = sampler
    return found | {"hMC": hybrid_monte_carlo(task.potential, task.train, time_step=0.05, warmup_moves=4, **moves)}
