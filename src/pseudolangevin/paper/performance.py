"""Fig. 4 and Table A1: diffusion in wall-clock time of hybrid Monte Carlo and pseudo-Langevin at three sizes.

Both are measured as the paper runs them (pL with S = 1 % of P and a temperature ratio of 0.01; hMC with unit masses and
1000 steps a move) and tuned on this machine, one chain each, from the same weights. Where a move of 1000 steps takes
too long, D* is bounded from above: velocities are those of the temperature, so d²/N of L steps is at most T·(L·δt)²,
with the time step δt of the longest moves that were measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..apps.tune import Tuned, tune
from ..diagnostics.averages import Average
from ..diagnostics.diffusion import MeasuredDiffusion
from ..samplers.hybrid import HybridMonteCarlo
from ..samplers.langevin import PseudoLangevin
from .results import COLORS, Row, Stage, plot_displacements, published_numbers, row
from .spins import Case, ratio


@dataclass(frozen=True)
class TunedCase(Case):
    """One size and temperature at which both samplers are tuned."""

    langevin_seconds: float = 40
    """Time to tune pseudo-Langevin."""
    hybrid_seconds: float = 20
    """Time to tune hybrid Monte Carlo."""
    leapfrog_steps: tuple[int, ...] = (100, 300, 1_000)
    time_step: float = 0.03
    """First time step of hybrid Monte Carlo, which adapts it."""
    gain: float = 1.0
    """Smallest accepted D* of tuned pL over tuned hMC."""
    percentages: tuple[float, ...] = (3, 10, 30)
    """Batch sizes to try, in percent of the training set."""
    temperature_ratios: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    refresh_every: int = 5_000
    """Steps between measurements of the gradient variance as in the paper, or fewer where these take too long."""
    observe_examples: int | None = None


@dataclass(frozen=True)
class Settings:
    """Settings of one scale."""

    cases: tuple[TunedCase, ...]
    bias_budget: float = 0.02
    seed: int = 0


SETTINGS = {
    "paper": Settings(
        (
            TunedCase(
                5_000,
                1e-6,
                training_steps=20_000,
                equilibration_seconds=10,
                seconds=6,
                chunk_size=20_480,
                leapfrog_steps=(1,),
                percentages=(0.1, 0.3, 1),
                temperature_ratios=(0.003, 0.01, 0.03),
                refresh_every=1_000,
                observe_examples=204_800,
            ),
            TunedCase(
                500,
                1e-6,
                training_steps=20_000,
                equilibration_seconds=80,
                seconds=3,
                chunk_size=55_800,
                hybrid_seconds=120,
                leapfrog_steps=(100, 1_000),
                percentages=(1, 3, 10),
                refresh_every=2_000,
                observe_examples=111_600,
            ),
            TunedCase(50, 1e-6, 100_000, equilibration_seconds=20, seconds=3, chunk_size=55_800, gain=1.4),
            TunedCase(50, 3e-5, 100_000, equilibration_seconds=20, seconds=3, chunk_size=55_800, gain=4.7),
        )
    ),
    "smoke": Settings(
        (
            TunedCase(
                4,
                4e-4,
                training_steps=5_000,
                equilibration_seconds=5,
                seconds=5,
                chunk_size=9_570,
                langevin_seconds=120,
                hybrid_seconds=30,
                leapfrog_steps=(10, 100, 300, 1_000),
                time_step=0.1,
                percentages=(1, 3, 10),
            ),
        )
    ),
}


@dataclass(frozen=True)
class Outcome:
    """Both samplers in one case."""

    case: TunedCase
    num_weights: int
    published: MeasuredDiffusion
    """pL as in the paper."""
    langevin: Tuned
    hybrid: Tuned

    def long_move(self, num_steps: int = 1_000) -> tuple[float, float, bool]:
        """Return D*/N and seconds of a move of the paper's length, and whether these are measured, not bounded."""
        longest = max(self.hybrid.tried, key=lambda tried: tried.settings["num_leapfrog_steps"])
        length, seconds = longest.settings["num_leapfrog_steps"], longest.milliseconds_per_step / 1e3
        if length >= num_steps:
            return longest.relative_diffusion, seconds, True
        seconds *= num_steps / (length + 2)  # a move of L steps computes L + 2 gradients
        return self.case.temperature * (num_steps * longest.settings["time_step"]) ** 2 / seconds, seconds, False

    @property
    def best_hybrid(self) -> float:
        """D*/N of tuned hMC, or the upper bound where that is larger."""
        best, (move, _, measured) = self.hybrid.best.relative_diffusion, self.long_move()
        return best if measured else float(np.fmax(best, move))


def reproduce(settings: Settings, out: Path) -> Iterator[Stage]:
    """Compare both samplers in every case."""
    outcomes: list[Outcome] = []
    rows: list[Row] = []
    record: dict[str, Any] = asdict(settings) | {"measured": []}
    for case in settings.cases:
        outcome = compare(case, settings, out)
        outcomes.append(outcome)
        rows += rows_of(outcome, settings)
        tuned = {"pL": outcome.langevin.to_dict(), "hMC": outcome.hybrid.to_dict()}
        record["measured"].append({"num_weights": outcome.num_weights, "temperature": case.temperature} | tuned)
        yield rows, draw(outcomes), record


def compare(case: TunedCase, settings: Settings, out: Path) -> Outcome:
    """Tune pL, then run pL as in the paper and tune hMC from the weights that tuning has equilibrated."""
    task, weights = case.prepare(out)
    system = (task.potential, task.train)
    common = {"temperature": case.temperature, "chunk_size": case.chunk_size, "key": case.seed, "report": print}
    langevin = tune(
        PseudoLangevin(*system),
        weights,
        bias_budget=settings.bias_budget,
        seconds=case.langevin_seconds,
        batch_sizes=[max(2, round(p / 100 * task.train.num_examples)) for p in case.percentages],
        temperature_ratios=case.temperature_ratios,
        observe_examples=case.observe_examples,
        **common,
    )
    published = case.measure({"pL": PseudoLangevin(*system, refresh_every=case.refresh_every)}, langevin.weights)["pL"]
    moves = {"num_leapfrog_steps": case.leapfrog_steps[0], "time_step": case.time_step, "chunk_size": case.chunk_size}
    hybrid = tune(
        HybridMonteCarlo(*system, **moves),
        langevin.weights,
        seconds=case.hybrid_seconds,
        num_leapfrog_steps=case.leapfrog_steps,
        **common,
    )
    return Outcome(case, task.num_weights, published, langevin, hybrid)


def published_of(num_weights: int, temperature: float) -> dict[str, float]:
    """Return the published D*/N and seconds at this size; they are of other hardware, so only ratios compare."""
    table = published_numbers()["performance"]
    found: dict[str, float] = {}
    for names, lines in (
        (("hMC", "pL"), table["relative_diffusion"]),
        (("move", "step", "variance"), table["seconds_between_samples"]),
    ):
        for size, *values in lines:
            if size == num_weights and np.isclose(temperature, table["temperature"], atol=0):
                found |= zip(names, values, strict=True)
    return found


def rows_of(outcome: Outcome, settings: Settings) -> list[Row]:
    """Return the rows of one case: D*/N, ratios, biases and times."""
    case, best, paper = outcome.case, outcome.langevin.best, outcome.published
    known = published_of(outcome.num_weights, case.temperature)
    move, seconds, measured = outcome.long_move()
    bound, least = ("", "") if measured else (", upper bound", ", lower bound")
    gain = ratio(best.diffusion, outcome.hybrid.best.diffusion)
    if not measured:
        gain = Average(best.relative_diffusion / outcome.best_hybrid, np.nan, np.nan)
    same = ratio(best.diffusion, outcome.hybrid.best.diffusion, same_interval=True)
    slowdown = known["pL"] / known["hMC"] if known else None
    step = known["step"] + known["variance"] if known else None
    share = paper.num_refreshes * paper.refresh_seconds / paper.seconds
    where = f"at N = {outcome.num_weights}, T = {case.temperature:g}"
    rows = [
        row(f"D*/N {where}, hMC, 1000 steps{bound}", move, published=known.get("hMC")),
        row(f"D*/N {where}, hMC, tuned{bound}", outcome.best_hybrid),
        row(f"D*/N {where}, pL, S = 1 %, ratio 0.01", paper.coefficient, published=known.get("pL")),
        row(f"D*/N {where}, pL, tuned", best.relative_diffusion, standard_error=best.standard_error),
        row(f"D* {where}, pL over hMC, both as in the paper{least}", paper.coefficient / move, published=slowdown),
        row(f"D* {where}, pL over hMC, both tuned{least}", gain, at_least=case.gain),
        row(f"D* {where}, pL over hMC, both tuned, at the same interval", same),
        row(
            f"seconds per hMC move of 1000 steps {where}{bound and ', extrapolated'}",
            seconds,
            published=known.get("move"),
        ),
        row(f"seconds per pL step {where}", paper.seconds_per_step, published=step),
        row(
            f"share of variance measurements in a pL step {where}",
            share,
            published=known["variance"] / step if step else None,
        ),
    ]
    return rows + [
        row(
            f"bias of {name} {where}, pL, tuned",
            bias.value,
            standard_error=bias.uncertainty,
            tolerance=settings.bias_budget,
        )
        for name, bias in best.bias.items()
    ]


def draw(outcomes: list[Outcome]) -> Figure:
    """Draw D*/N against N above, displacements against time below."""
    figure = Figure(figsize=(4 * max(2, len(outcomes)), 7), layout="constrained")
    grid = figure.add_gridspec(2, len(outcomes))
    axes = figure.add_subplot(grid[0, :])
    for style, temperature in zip(("o-", "s--", "D:"), sorted({o.case.temperature for o in outcomes}), strict=False):
        chosen = [o for o in outcomes if o.case.temperature == temperature]
        series = {
            "hMC, tuned": [o.best_hybrid for o in chosen],
            "pL as in the paper": [o.published.coefficient for o in chosen],
            "pL, tuned": [o.langevin.best.relative_diffusion for o in chosen],
        }
        for color, (label, values) in zip(COLORS, series.items(), strict=False):
            axes.plot(
                [o.num_weights for o in chosen], values, style, color=color, label=f"{label}, T = {temperature:g}"
            )
    bounded = [o for o in outcomes if not o.long_move()[2]]
    axes.plot([o.num_weights for o in bounded], [o.best_hybrid for o in bounded], "v", ms=9, mfc="white", mec=COLORS[0])
    axes.set(xscale="log", yscale="log", xlabel="N (triangles: upper bounds)", ylabel="D*/N [1/s]")
    axes.legend(frameon=False, fontsize=8)
    for index, outcome in enumerate(outcomes):
        moves = outcome.hybrid.best.settings["num_leapfrog_steps"]
        curves = {
            f"hMC, {moves} steps": outcome.hybrid.best.diffusion,
            "pL as in the paper": outcome.published.diffusion,
        }
        curves["pL, tuned"] = outcome.langevin.best.diffusion
        title = f"N = {outcome.num_weights}, T = {outcome.case.temperature:g}"
        plot_displacements(figure.add_subplot(grid[1, index]), curves, title)
    return figure
