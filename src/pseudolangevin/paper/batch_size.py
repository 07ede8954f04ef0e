"""Fig. A.2: pseudo-Langevin with smaller mini-batches and, beyond the paper, with larger ones.

The paper's batch size, 1 % of P, must be faster than smaller ones at the same interval, and than hybrid Monte Carlo.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import Sampler, hybrid_monte_carlo, pseudo_langevin
from .._trees import Weights
from .results import Stage
from .spins import Case, Task, compare_speeds

SETTINGS = {
    "paper": (Case(5_000, 1e-6, 20_000, 4, 4, 20_480, {"percentages": (1, 0.5, 0.1), "num_leapfrog_steps": 1}),),
    "smoke": (Case(10, 2e-4, 5_000, 8, 6, 15_600, {"percentages": (1, 0.5, 0.1, 10), "num_leapfrog_steps": 20}),),
}


def reproduce(cases: tuple[Case, ...], out: Path) -> Iterator[Stage]:
    """Measure every batch size, and hybrid Monte Carlo, from the same weights."""
    return compare_speeds(cases, out, samplers_of, pairs_of)


def samplers_of(case: Case, task: Task, weights: Weights) -> dict[str, Sampler]:
    """Return the samplers by label."""
    system = (task.potential, task.train)
    found: dict[str, Sampler] = {}
    for percentage in case.options["percentages"]:
        size = max(2, round(percentage / 100 * task.train.num_examples))
        sampler = pseudo_langevin(*system, batch_size=size, refresh_every=1_000, reset_probability=0.0)
        found[f"pL, S = {percentage:g} % of P"] = sampler
    steps = case.options["num_leapfrog_steps"]
    moves = {"num_leapfrog_steps": steps, "warmup_moves": 4, "chunk_size": case.chunk_size}
    return {**found, "hMC": hybrid_monte_carlo(*system, time_step=0.05, **moves)}


def pairs_of(case: Case, labels: Sequence[str]) -> list[tuple[str, str, float, bool]]:
    """Return the pairs to judge."""
    sizes = zip(labels, case.options["percentages"], strict=False)
    return [(labels[0], label, 1.0, True) for label, size in sizes if size < 1] + [(labels[0], "hMC", 1.0, False)]
