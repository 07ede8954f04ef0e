"""Fig. 4 and Table A1: diffusion in wall-clock time of hybrid Monte Carlo and pseudo-Langevin at three sizes.

Pseudo-Langevin is measured as in the paper (S = 1 % of P, a temperature ratio of 0.01) and tuned on this machine, and
hybrid Monte Carlo with unit masses and moves of several lengths; the paper's have 1000 steps. Where these take too
long, D* is bounded from above: velocities are those of the temperature, so d²/N of L steps is at most T·(L·δt)², with
the time step δt of the longest moves that were measured. Published seconds and D* are of other hardware.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import Sampler, hybrid_monte_carlo, pseudo_langevin
from .._trees import Weights
from ..apps.tune import Tuned, tune
from .results import Row, Stage, published_numbers, row
from .spins import Case, Task, compare_speeds


def _options(gain: float, moves: tuple[int, ...], refresh_every: int = 5_000, **tuning: Any) -> dict[str, Any]:
    """Return the smallest accepted D* of tuned pL over hMC, the leapfrog steps of moves, and arguments of `tune`.

    The gradient variance is measured more often than in the paper where 5000 steps take too long.
    """
    return {"gain": gain, "moves": moves, "refresh_every": refresh_every, "tuning": {"seconds": 40} | tuning}


SETTINGS = {
    "paper": (
        Case(5_000, 1e-6, 20_000, 10, 6, 20_480, _options(1.0, (1,), 1_000, temperature_ratios=(0.003, 0.01, 0.03))),
        Case(500, 1e-6, 20_000, 80, 3, 55_800, _options(1.0, (100, 1_000), 2_000)),
        Case(50, 1e-6, 100_000, 20, 3, 55_800, _options(1.4, (100, 300, 1_000))),
        Case(50, 3e-5, 100_000, 20, 3, 55_800, _options(4.7, (100, 300, 1_000))),
    ),
    "smoke": (Case(4, 4e-4, 5_000, 5, 5, 9_570, _options(1.0, (10, 100, 1_000), seconds=120)),),
}


def reproduce(cases: tuple[Case, ...], out: Path) -> Iterator[Stage]:
    """Tune pL in every case, measure all samplers, and compare with the published ratios."""
    tuned: list[Tuned] = []

    def samplers_of(case: Case, task: Task, weights: Weights) -> dict[str, Sampler]:
        system, chunks = (task.potential, task.train), {"chunk_size": case.chunk_size}
        paper = pseudo_langevin(*system, refresh_every=case.options["refresh_every"])
        options: dict[str, Any] = {"temperature": case.temperature, "key": case.seed, "report": print, **chunks}
        # A million weights are stable with the masses of small batches only.
        shares = (0.001, 0.003, 0.01) if case.hidden_units > 1_000 else (0.01, 0.03, 0.1, 0.3)
        options["batch_sizes"] = [max(2, round(share * task.train.num_examples)) for share in shares]
        options["observe_examples"] = min(200_000, task.train.num_examples)
        tuned.append(tune(paper, weights, **options | case.options["tuning"]))
        found = {"pL as in the paper": paper, "pL, tuned": tuned[-1].sampler}
        for steps in case.options["moves"]:
            moves: dict[str, Any] = {"num_leapfrog_steps": steps, "warmup_moves": 10, **chunks}
            found[f"hMC, {steps} steps"] = hybrid_monte_carlo(*system, time_step=0.03, **moves)
        return found

    def pairs_of(case: Case, labels: Any) -> list[tuple[str, str, float, bool]]:
        return [("pL, tuned", label, case.options["gain"], False) for label in labels[2:]]

    for rows, figure, record in compare_speeds(cases, out, samplers_of, pairs_of):
        found = zip(cases, tuned, record["measured"].items(), strict=False)
        others = [r for case, best, (where, speeds) in found for r in rows_of(case, best, where, speeds)]
        yield [*rows, *others], figure, record | {"tuned": [t.to_dict() for t in tuned]}


def rows_of(case: Case, tuned: Tuned, where: str, speeds: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Return the rows of one case on moves of 1000 steps, on times, and on the biases of tuned pL."""
    longest, bound, paper = max(case.options["moves"]), "", speeds["pL as in the paper"]
    move = speeds[f"hMC, {longest} steps"]
    diffusion, seconds = move["D*/N"], move["seconds_per_step"]
    if longest < 1_000:
        seconds *= 1_000 / (longest + 2)  # a move of L steps computes L + 2 gradients
        diffusion, bound = case.temperature * (1_000 * move["time_step"]) ** 2 / seconds, ", bounded"
    table, known = published_numbers()["performance"], {}
    for lines in zip(table["relative_diffusion"], table["seconds_between_samples"], strict=True):
        (size, hybrid, langevin), (_, published_move, step, variance) = lines
        if (size, table["temperature"]) == (201 * case.hidden_units + 1_110, case.temperature):
            known = {"hMC": hybrid, "ratio": langevin / hybrid, "move": published_move}
            known |= {"step": step + variance, "share": variance / (step + variance)}
    gain = paper["D*/N"] / diffusion if diffusion else math.nan
    values = {
        f"D*/N in 1/s, {where}, hMC as in the paper{bound}": ("hMC", diffusion),
        f"D*, {where}, pL over hMC, both as in the paper{bound}": ("ratio", gain),
        f"seconds per move of 1000 steps, {where}{bound}": ("move", seconds),
        f"seconds per pL step, {where}": ("step", paper["seconds_per_step"]),
        f"share of variance measurements in a pL step, {where}": ("share", paper["variance_share"]),
    }
    rows = [row(quantity, value, published=known.get(name)) for quantity, (name, value) in values.items()]
    if bound:  # short moves alone would flatter pL
        gain = speeds["pL, tuned"]["D*/N"] / diffusion
        rows.append(row(f"D*, {where}, pL, tuned over hMC as in the paper{bound}", gain, at_least=case.options["gain"]))
    biases = tuned.best.bias.items()
    return rows + [row(f"bias of {n}, {where}, pL, tuned", b, tolerance=tuned.bias_budget) for n, b in biases]
