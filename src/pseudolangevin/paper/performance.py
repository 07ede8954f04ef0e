"""Fig. 4 and Table A1: diffusion in wall-clock time of hybrid Monte Carlo and pseudo-Langevin at three sizes.

Pseudo-Langevin is measured as in the paper (S = 1 % of P, a temperature ratio of 0.01) and tuned on this machine, and
hybrid Monte Carlo with unit masses and moves of several lengths; the paper's have 1000 steps. Where these take too
long, D* is bounded from above: velocities are those of the temperature, so d²/N of L steps is at most T·(L·δt)², with
the time step δt of the longest moves that were measured. Published seconds and D* are of other hardware.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import Sampler, hybrid_monte_carlo, pseudo_langevin
from .._trees import Weights
from ..apps.tune import Tuned, tune
from .results import Row, Stage, published_numbers, row
from .spins import Case, Task, compare_speeds

PAPER, TUNED = "pL, S = 1 %, ratio 0.01", "pL, tuned"


@dataclass(frozen=True)
class TunedCase(Case):
    """One size and temperature at which pL is tuned."""

    gain: float = 1.0  # smallest accepted D* of tuned pL over hMC
    leapfrog_steps: tuple[int, ...] = (100, 300, 1_000)
    tuning: Mapping[str, Any] = field(default_factory=lambda: {"seconds": 40})  # arguments of `tune`
    refresh_every: int = 5_000  # between measurements of the gradient variance; less where 5000 steps take too long


@dataclass(frozen=True)
class Settings:
    """Settings of one scale."""

    cases: tuple[TunedCase, ...]
    bias_budget: float = 0.02
    seed: int = 0


# Batch sizes from 0.1 to 1 % and from 1 to 10 % of the training set.
LARGE = {"seconds": 40, "batch_sizes": (5_030, 15_090, 50_300), "temperature_ratios": (0.003, 0.01, 0.03)}
MIDDLE = {"seconds": 40, "batch_sizes": (5_080, 15_240, 50_800)}
SETTINGS = {
    "paper": Settings(
        (
            TunedCase(5_000, 1e-6, 20_000, 10, 6, 20_480, 0, 1.0, (1,), LARGE | {"observe_examples": 204_800}, 1_000),
            TunedCase(500, 1e-6, 20_000, 80, 3, 55_800, 0, 1.0, (100, 1_000), MIDDLE, 2_000),
            TunedCase(50, 1e-6, 100_000, 20, 3, 55_800, gain=1.4),
            TunedCase(50, 3e-5, 100_000, 20, 3, 55_800, gain=4.7),
        )
    ),
    "smoke": Settings(
        (TunedCase(4, 4e-4, 5_000, 5, 5, 9_570, leapfrog_steps=(10, 100, 1_000), tuning={"seconds": 120}),)
    ),
}


def reproduce(settings: Settings, out: Path) -> Iterator[Stage]:
    """Tune pL in every case, measure all samplers, and compare with the published ratios."""
    tuned: list[Tuned] = []

    def samplers_of(case: TunedCase, task: Task, weights: Weights) -> dict[str, Sampler]:
        system, chunks = (task.potential, task.train), {"chunk_size": case.chunk_size}
        paper = pseudo_langevin(*system, refresh_every=case.refresh_every)
        options: dict[str, Any] = {
            "temperature": case.temperature,
            "key": case.seed,
            "report": print,
            **chunks,
            **case.tuning,
        }
        tuned.append(tune(paper, weights, bias_budget=settings.bias_budget, **options))
        moves: dict[str, Any] = {"time_step": 0.03, "warmup_moves": 10, **chunks}
        hybrid = {
            f"hMC, {n} steps": hybrid_monte_carlo(*system, num_leapfrog_steps=n, **moves) for n in case.leapfrog_steps
        }
        return {PAPER: paper, TUNED: tuned[-1].sampler, **hybrid}

    def pairs_of(case: TunedCase, labels: Sequence[str]) -> list[tuple[str, str, float, bool]]:
        return [(TUNED, label, case.gain, False) for label in labels[2:]]

    for rows, figure, record in compare_speeds(settings.cases, out, samplers_of, pairs_of):
        found = zip(settings.cases, tuned, record["measured"].items(), strict=False)
        others = [r for case, best, (where, speeds) in found for r in rows_of(case, best, where, speeds)]
        yield [*rows, *others], figure, record | {"tuned": [t.to_dict() for t in tuned]}


def rows_of(case: TunedCase, tuned: Tuned, where: str, speeds: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Return the rows of one case on moves of 1000 steps, on times, and on the biases of tuned pL."""
    longest, bound = max(case.leapfrog_steps), ""
    move = speeds[f"hMC, {longest} steps"]
    diffusion, seconds = move["D*/N"], move["seconds_per_step"]
    if longest < 1_000:
        seconds *= 1_000 / (longest + 2)  # a move of L steps computes L + 2 gradients
        diffusion, bound = case.temperature * (1_000 * move["time_step"]) ** 2 / seconds, ", bounded"
    table = published_numbers()["performance"]
    same = np.isclose(case.temperature, table["temperature"], atol=0)
    known: dict[str, float] = {}
    for lines in zip(table["relative_diffusion"], table["seconds_between_samples"], strict=True):
        (size, hybrid, langevin), (_, published_move, step, variance) = lines
        if same and size == 201 * case.hidden_units + 1_110:
            known = {"hMC": hybrid, "ratio": langevin / hybrid, "move": published_move}
            known |= {"step": step + variance, "share": variance / (step + variance)}
    paper = speeds[PAPER]
    values = {
        f"D*/N in 1/s, {where}, hMC as in the paper{bound}": ("hMC", diffusion),
        f"D*, {where}, pL over hMC, both as in the paper{bound}": (
            "ratio",
            paper["D*/N"] / diffusion if diffusion else math.nan,
        ),
        f"seconds per move of 1000 steps, {where}{bound}": ("move", seconds),
        f"seconds per pL step, {where}": ("step", paper["seconds_per_step"]),
        f"share of variance measurements in a pL step, {where}": ("share", paper["variance_share"]),
    }
    rows = [row(quantity, value, published=known.get(name)) for quantity, (name, value) in values.items()]
    biases = tuned.best.bias.items()
    limit: dict[str, Any] = {"tolerance": tuned.bias_budget}
    return rows + [row(f"bias of {name}, {where}, {TUNED}", bias, **limit) for name, bias in biases]
