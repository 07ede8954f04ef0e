"""Fig. A.4: both samplers with good and with poor settings, at every size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .. import Sampler, hybrid_monte_carlo, pseudo_langevin
from .._trees import Weights
from .results import Stage
from .spins import Case, Task, compare_speeds

# Good and poor temperature ratio of pL, good and poor number of leapfrog steps of hMC.
SETTINGS = {
    "paper": (
        Case(50, 1e-6, 100_000, 10, 2, 55_800, {"ratios": (0.01, 0.001), "steps": (1_000, 30)}),
        Case(500, 1e-6, 20_000, 10, 3, 55_800, {"ratios": (0.01, 0.001), "steps": (100, 10)}),
        Case(5_000, 1e-6, 20_000, 4, 3, 20_480, {"ratios": (0.01, 0.001), "steps": (2, 1)}),
    ),
    "smoke": (
        Case(4, 4e-4, 5_000, 4, 3, 9_570, {"ratios": (0.01, 0.001), "steps": (100, 5)}),
        Case(12, 2e-4, 5_000, 4, 3, 17_610, {"ratios": (0.01, 0.001), "steps": (100, 5)}),
    ),
}


def reproduce(cases: tuple[Case, ...], out: Path) -> Iterator[Stage]:
    """Measure both samplers with both settings at every size; good settings must be faster than poor ones."""
    pairs = ((0, 1), (2, 3))
    return compare_speeds(
        cases, out, samplers_of, lambda _, labels: [(labels[i], labels[j], 1.0, False) for i, j in pairs]
    )


def samplers_of(case: Case, task: Task, weights: Weights) -> dict[str, Sampler]:
    """Return the samplers by label."""
    system = (task.potential, task.train)
    found: dict[str, Sampler] = {}
    for value in case.options["ratios"]:
        sampler = pseudo_langevin(*system, temperature_ratio=value, refresh_every=1_000, reset_probability=0.0)
        found[f"pL, ratio {value:g}"] = sampler
    for steps in case.options["steps"]:
        moves = {"num_leapfrog_steps": steps, "warmup_moves": 4, "chunk_size": case.chunk_size}
        found[f"hMC, {steps} steps"] = hybrid_monte_carlo(*system, time_step=0.05, **moves)
    return found
