"""Fig. 4 and Table A1: diffusion in wall-clock time of hybrid Monte Carlo and pseudo-Langevin at three sizes.

Both are measured as the paper runs them (pL with S = 1 % of P and 𝒯 = 0.01; hMC with unit masses and 1000 steps a move)
and tuned on this machine, one chain each, from one start. Where a move of 1000 steps does not fit into the time, what
any move of up to 1000 could reach is bounded from above, in equilibrium, where every piece of a flight is like any
other. The root mean square of its displacement is at most the sum of those of its pieces: of pieces as long as the
longest move that was measured, and of single steps, √T·δt each, since the speed is always that of T. And the mean
square is at most 4·|w|², from one side of the sphere of equilibrium to the other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.special import erfcinv

from .. import trees
from ..diagnostics.diffusion import Diffusion
from ..published import published_numbers
from ..samplers.hybrid import hybrid_monte_carlo
from ..samplers.langevin import pseudo_langevin
from ..tuning import Measured, Tried, Tuned, tune
from ..types import Weights
from .race import Course, at_least, describe, plot_displacements, prepare, quotient, ratio, run_one, say
from .results import Reproduction, Row, row
from .spins import SpinTask, keep_end

BIAS_BUDGET = 0.02
PAPER_MOVE = 1_000
"""Leapfrog steps of the paper's moves."""
STIRRING_SHARE, STIRRING_RATIOS, STIRRING_INTERVAL = 0.1, (0.1, 0.01), 500
"""S as a share of P, 𝒯 and the steps between measurements of 𝒱 of the chain that comes before tuning: fast first, then
with less bias."""
LARGEST_PRODUCT = 0.2404
"""The largest x·erfc(x). With the acceptance A = erfc(c·δt²), c·A·δt² is at most that."""


@dataclass(frozen=True)
class Case:
    """One size at one temperature."""

    course: Course
    tuning_seconds: float
    hybrid_seconds: float
    leapfrog_steps: tuple[int, ...]
    time_step: float
    """Of hMC with unit masses, adapted from here."""
    required_gain: float
    """D* of tuned pL over tuned hMC."""
    batch_shares: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    refresh_every: int = 5_000
    """Between measurements of 𝒱 with the paper's settings; shorter where 5000 steps do not fit into the time."""
    temperature_ratios: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    """𝒯 that tuning may try."""


LARGE_RATIOS = (0.003, 0.01, 0.03)
"""With a million weights chains at 𝒯 = 0.1 turn non-finite."""
CASES = {
    "paper": (
        Case(
            Course(5_000, 1e-6, 10, 1, 0, 6, 20_480, observe_examples=204_800),
            28,
            18,
            (1,),
            0.03,
            1.0,
            (0.001, 0.003, 0.01),
            1_000,
            LARGE_RATIOS,
        ),
        Case(
            Course(500, 1e-6, 8, 2, 80, 3, 55_800, observe_examples=111_600),
            40,
            60,
            (10, 100, 300),
            0.03,
            1.0,
            (0.01, 0.03, 0.1),
            2_000,
        ),
        Case(Course(50, 1e-6, 10, 6, 0, 3, 55_800), 36, 14, (100, 300, 1_000), 0.03, 1.4, (0.03, 0.1, 0.3)),
        Case(Course(50, 3e-5, 10, 6, 0, 3, 55_800), 36, 20, (100, 300, 1_000), 0.03, 4.7, (0.03, 0.1, 0.3)),
    ),
    "smoke": (Case(Course(4, 4e-4, 5, 6, 0, 5, 9_570), 120, 30, (10, 100, 300, 1_000), 0.1, 1.0, (0.01, 0.03, 0.1)),),
}
TIME_LIMIT = {"paper": 900.0, "smoke": 600.0}
"""No further case is begun after this many seconds."""


@dataclass(frozen=True)
class Outcome:
    """Both samplers in one case."""

    case: Case
    num_weights: int
    paper: Measured
    langevin: Tuned
    hybrid: Tuned
    squared_norm: float
    """|w|² where hMC starts or ends, or that of the prior, N²·T/λ: the largest."""
    record: dict[str, Any]

    @property
    def hybrid_move(self) -> tuple[float, float, bool]:
        """D*/N and seconds of a move of 1000 steps, and whether they were measured; if not, the most it could be."""
        longest, step_seconds = self._longest
        if longest.settings["num_leapfrog_steps"] == PAPER_MOVE:
            return longest.relative_diffusion, 1e-3 * longest.milliseconds_per_step, True
        return self._most(PAPER_MOVE), PAPER_MOVE * step_seconds, False

    @property
    def best_hybrid(self) -> float:
        """D*/N of tuned hMC: the best measured, or the most that moves of up to 1000 steps could reach, if longer."""
        best = self.hybrid.best.relative_diffusion
        longest = self._longest[0].settings["num_leapfrog_steps"]
        if longest == PAPER_MOVE:
            return best
        return float(np.nanmax([best, *(self._most(steps) for steps in np.geomspace(longest, PAPER_MOVE, 50))]))

    @property
    def _longest(self) -> tuple[Tried, float]:
        """The longest move that was measured, and the seconds of a step: what one more adds to a move, or, where one
        length alone was measured, a share of it: a move of L steps has L + 2 gradients."""
        *others, longest = sorted(self.hybrid.tried, key=lambda t: t.settings["num_leapfrog_steps"])
        steps, milliseconds = longest.settings["num_leapfrog_steps"], longest.milliseconds_per_step
        if not others:
            steps += 2
        else:
            steps -= others[-1].settings["num_leapfrog_steps"]
            milliseconds -= others[-1].milliseconds_per_step
        return longest, 1e-3 * milliseconds / steps

    def _most(self, num_steps: float) -> float:
        """The most that D*/N of moves of so many steps can be, with any time step; what is measured counts with one
        standard error more."""
        longest, step_seconds = self._longest
        speed = math.sqrt(self.case.course.temperature) * longest.settings["time_step"]
        bounds = [4 * self.squared_norm / self.num_weights, (num_steps * speed) ** 2]
        accepted = longest.acceptance
        if accepted is not None:
            factor = _best_acceptance(accepted.mean + accepted.uncertainty)
            piece, reach = longest.settings["num_leapfrog_steps"], _reach(longest)
            counts = (math.floor(num_steps / piece), math.ceil(num_steps / piece))
            flight = min(k * reach + abs(num_steps - k * piece) * speed for k in counts)
            bounds[1] *= factor
            bounds.append(max(1.0, factor) * flight**2)  # a flight that turns goes as far with a smaller δt
        return min(bounds) / (num_steps * step_seconds)


def _reach(move: Tried) -> float:
    """The root of d²/N of a flight, of which rejected moves count as none."""
    assert move.acceptance is not None
    if move.acceptance.mean == 0:
        return math.inf
    upper = move.relative_diffusion + (move.standard_error if math.isfinite(move.standard_error) else math.inf)
    return math.sqrt(1e-3 * move.milliseconds_per_step * upper / move.acceptance.mean)


def _best_acceptance(acceptance: float) -> float:
    """The most that another time step makes of A·δt², over the δt² that had this acceptance A; at 1 there is no end."""
    return LARGEST_PRODUCT / float(erfcinv(max(acceptance, 0.05))) if acceptance < 1 else math.inf


def reproduce(scale: str, out: Path) -> Reproduction:
    """Every case; what is done is on disk before the next begins."""
    started = time.perf_counter()
    outcomes: list[Outcome] = []
    tasks: dict[int, SpinTask] = {}
    for case in CASES[scale]:
        if outcomes and time.perf_counter() - started > TIME_LIMIT[scale]:
            say(f"time is up: L1 = {case.course.hidden_units} at T = {case.course.temperature:g} is left out")
            break
        outcomes.append(compare(case, out, tasks))
        settings = {"cases": [o.record for o in outcomes], "cases_left_out": len(CASES[scale]) - len(outcomes)}
        rows = [r for outcome in outcomes for r in rows_of(outcome, scale)]
        seconds = time.perf_counter() - started
        reproduction = Reproduction("performance", scale, rows, draw(outcomes), settings, case.course.seed, seconds)
        reproduction.write(out)
    return reproduction


def compare(case: Case, out: Path, tasks: dict[int, SpinTask]) -> Outcome:
    """Tune pL (which equilibrates the start), then run the paper's pL and tune hMC from there."""
    course = case.course
    task, start, origin = prepare(course, out, tasks.get(course.hidden_units))
    if course.hidden_units not in tasks:
        tasks.clear()  # one size at a time in memory
        tasks[course.hidden_units] = task
    system = (task.potential, task.train)
    if course.equilibration_seconds:
        start = stir(course, task, start)
    where = f"N = {task.num_weights}, T = {course.temperature:g}"
    say(f"{where}: tuning pL")
    langevin = tune(
        pseudo_langevin(*system),
        start,
        temperature=course.temperature,
        bias_budget=BIAS_BUDGET,
        seconds=case.tuning_seconds,
        batch_sizes=[max(2, round(share * task.train.num_examples)) for share in case.batch_shares],
        temperature_ratios=case.temperature_ratios,
        observe_examples=course.observe_examples,
        chunk_size=course.chunk_size,
        key=course.seed,
        report=say,
    )
    if origin.startswith("Adam"):
        keep_end(out, task, course.temperature, langevin.weights)  # other studies start there
    say(f"{where}: pL as in the paper")
    as_published = pseudo_langevin(*system, refresh_every=case.refresh_every)
    paper = run_one(course, as_published, langevin.weights)
    say(f"{where}: tuning hMC")
    hybrid = tune(
        hybrid_monte_carlo(
            *system,
            num_leapfrog_steps=case.leapfrog_steps[0],
            time_step=case.time_step,
            chunk_size=course.chunk_size,
        ),
        langevin.weights,
        temperature=course.temperature,
        seconds=case.hybrid_seconds,
        num_leapfrog_steps=case.leapfrog_steps,
        chunk_size=course.chunk_size,
        key=course.seed,
        report=say,
    )
    record = asdict(case) | {
        "num_weights": task.num_weights,
        "start": origin,
        "paper_settings": describe(paper),
        "tuned_langevin": langevin.to_dict(),
        "tuned_hybrid": hybrid.to_dict(),
    }
    prior = task.num_weights * course.temperature / task.potential.smallest_stiffness(task.num_weights)
    ends = (float(trees.squared_norm(tuned.weights)) for tuned in (langevin, hybrid))
    squared_norm = max(prior, *ends)
    return Outcome(case, task.num_weights, paper, langevin, hybrid, squared_norm, record)


def stir(course: Course, task: SpinTask, start: Weights) -> Weights:
    """Towards an equilibrium that candidates can be judged in; where a chain breaks, the start as it was."""
    weights = start
    for value in STIRRING_RATIOS:
        sampler = pseudo_langevin(
            task.potential,
            task.train,
            batch_size=round(STIRRING_SHARE * task.train.num_examples),
            temperature_ratio=value,
            refresh_every=STIRRING_INTERVAL,
        )
        run = run_one(course, sampler, weights, seconds=course.equilibration_seconds / len(STIRRING_RATIOS))
        end = ", which turned non-finite: not stirred" if run.stopped else ""
        say(f"N = {task.num_weights}: {run.num_steps} steps with 𝒯 = {value:g} first{end}")
        if run.stopped:
            return start
        weights = run.weights
    return weights


def rows_of(outcome: Outcome, scale: str) -> list[Row]:
    """D*/N, ratios, biases, times."""
    case, best = outcome.case, outcome.langevin.best
    where = f"at N = {outcome.num_weights}, T = {case.course.temperature:g}"
    published = _published(outcome.num_weights, case.course.temperature) if scale == "paper" else {}
    move, move_seconds, move_measured = outcome.hybrid_move
    bound, least = ("", "") if move_measured else (", upper bound", ", lower bound")
    rows = [
        row(f"D*/N {where}, hMC, 1000 steps{bound}", move, published=published.get("hMC")),
        row(f"D*/N {where}, hMC, tuned{bound}", outcome.best_hybrid),
        row(f"D*/N {where}, pL, S = 1 %, ratio 0.01", outcome.paper.relative_diffusion, published=published.get("pL")),
        row(f"D*/N {where}, pL, tuned", best.relative_diffusion, standard_error=best.standard_error),
        row(
            f"D* {where}, pL over hMC, both as in the paper{least}",
            quotient(outcome.paper.relative_diffusion, move),
            published=published["pL"] / published["hMC"] if published else None,
        ),
        at_least(
            f"D* {where}, pL over hMC, both tuned{least}",
            case.required_gain,
            (quotient(best.relative_diffusion, outcome.best_hybrid), _gain_error(outcome)),
        ),
    ]
    if move_measured:
        rows.append(_at_equal_intervals(where, best, outcome.hybrid.best))
    for name, bias in best.bias.items():
        error = bias.uncertainty if math.isfinite(bias.uncertainty) else None
        passed = bias.within(BIAS_BUDGET)
        rows.append(Row(f"bias of {name} {where}, pL, tuned", None, bias.value, error, BIAS_BUDGET, passed))
    rows += [
        row(
            f"seconds per hMC move of 1000 steps {where}" + ("" if move_measured else ", extrapolated"),
            move_seconds,
            published=published.get("move"),
        ),
        row(f"seconds per pL step {where}", outcome.paper.seconds_per_step, published=published.get("step")),
        row(
            f"share of measuring V in a pL step {where} (every {case.refresh_every} steps)",
            outcome.paper.variance_share,
            published=published.get("variance_share"),
        ),
    ]
    return rows


def _gain_error(outcome: Outcome) -> float | None:
    """Of the gain over what was measured; a gain over a bound has none."""
    if not outcome.hybrid_move[2]:
        return None
    return ratio(outcome.langevin.best.diffusion, outcome.hybrid.best.diffusion)[1]


def _at_equal_intervals(where: str, langevin: Tried, hybrid: Tried) -> Row:
    """d²/Δt of both at one Δt, that of a move: pL gets no credit for directions that stop moving before.

    Where all of them have stopped it says nothing, and is not judged.
    """
    if langevin.diffusion is None or hybrid.diffusion is None:
        return row(f"d² {where}, pL over hMC, both tuned, at the interval of a move", float("nan"))
    interval = float(hybrid.diffusion.seconds[0])
    longest = langevin.diffusion.seconds
    interval = float(np.clip(interval, longest[0], longest[-1]))
    other = hybrid.diffusion
    there = other.at(interval)[0] if interval >= other.seconds[0] else other.coefficient[0]
    value = quotient(float(langevin.diffusion.at(interval)[0]), float(there))
    label = f"d² {where}, pL over hMC, both tuned, after {interval:.3g} s"
    came = interval * float(langevin.diffusion.at(interval)[0])
    if came > 0.5 * float(np.max(langevin.diffusion.displacement[0])):
        return row(f"{label}, by when the start is forgotten", value)  # d² is then that of equilibrium, with both
    return at_least(label, 1.0, (value, None))


def _published(num_weights: int, temperature: float) -> dict[str, float]:
    """Table and figure at this size; the values are of other hardware, only ratios compare."""
    table = published_numbers()["performance"]
    if not np.isclose(temperature, table["temperature"], atol=0):
        return {}
    diffusion = {line[0]: line[1:] for line in table["relative_diffusion"]}
    seconds = {line[0]: line[1:] for line in table["seconds_between_samples"]}
    if num_weights not in diffusion:
        return {}
    hybrid, langevin = diffusion[num_weights]
    move, step, variance = seconds[num_weights]
    return {
        "hMC": hybrid,
        "pL": langevin,
        "move": move,
        "step": step + variance,
        "variance_share": variance / (step + variance),
    }


def draw(outcomes: list[Outcome]) -> Figure:
    """D*/N against N above, displacements against time below."""
    figure = Figure(figsize=(4 * max(2, len(outcomes)), 7), layout="constrained")
    grid = figure.add_gridspec(2, len(outcomes))
    axes = figure.add_subplot(grid[0, :])
    for index, temperature in enumerate(sorted({o.case.course.temperature for o in outcomes})):
        chosen = [o for o in outcomes if o.case.course.temperature == temperature]
        sizes = [o.num_weights for o in chosen]
        series: Mapping[str, list[float]] = {
            "hMC, tuned": [o.best_hybrid for o in chosen],
            "pL as in the paper": [o.paper.relative_diffusion for o in chosen],
            "pL, tuned": [o.langevin.best.relative_diffusion for o in chosen],
        }
        marker = ("o-", "s--", "D:")[index % 3]
        for color, (label, values) in zip(("#0072b2", "#e69f00", "#009e73"), series.items(), strict=True):
            axes.plot(sizes, values, marker, color=color, label=f"{label}, T = {temperature:g}")
    bounds = [o for o in outcomes if not o.hybrid_move[2]]
    if bounds:
        points = [o.num_weights for o in bounds], [o.best_hybrid for o in bounds]
        axes.plot(*points, "v", ms=9, mfc="white", mec="#0072b2", label="hMC, at most")
    axes.set(xscale="log", yscale="log", xlabel="N", ylabel="D*/N [1/s]")
    axes.margins(0.2)
    axes.legend(frameon=False, fontsize=8)
    for index, outcome in enumerate(outcomes):
        curves: dict[str, Diffusion | None] = {
            f"hMC, L = {outcome.hybrid.best.settings['num_leapfrog_steps']}": outcome.hybrid.best.diffusion,
            "pL as in the paper": outcome.paper.diffusion,
            "pL, tuned": outcome.langevin.best.diffusion,
        }
        title = f"N = {outcome.num_weights}, T = {outcome.case.course.temperature:g}"
        plot_displacements(figure.add_subplot(grid[1, index]), curves, title)
    return figure
