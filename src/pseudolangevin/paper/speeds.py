"""Fig. 4 and Table A1, A.1, A.2 and A.4: diffusion of samplers in wall-clock time, from the same weights.

Published seconds and D* are of other hardware; ratios compare. Balanced Langevin is measured in all figures.
The paper does not state whether naive pL subtracts the gradient variance; both are measured.

Performance: pseudo-Langevin as in the paper (S = 1 % of P, a temperature ratio of 0.01), and hybrid Monte Carlo with
unit masses and moves of 1000 steps. With a million weights these take twelve minutes each, and D* is bounded from
above: velocities are those of the temperature, so d²/N of L steps is at most T·(L·δt)², with the time step δt of the
longest moves that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from .. import Run, Sampler, minibatch_hybrid_monte_carlo, naive_pseudo_langevin
from .._trees import Weights
from ..diagnostics.averages import Average
from ..diagnostics.diffusion import MeasuredDiffusion, measure_diffusion
from .results import COLORS, Row, draw_legend, published_numbers, row
from .spins import SAMPLERS, Task, near_equilibrium, num_weights, spin_task


@dataclass(frozen=True)
class Case:
    """One size and temperature at which samplers are compared by the clock."""

    hidden_units: int
    temperature: float
    equilibration_seconds: float  # unless the output folder has the end of a longer chain
    seconds: float  # measured time of every sampler
    chunk_size: int
    options: Mapping[str, Any] = field(default_factory=dict)  # settings of one reproduction
    seed: int = 0

    @property
    def where(self) -> str:
        """Size and temperature, for names of rows and parts."""
        return f"N = {num_weights(self.hidden_units)}, T = {self.temperature:g}"

    def measure(self, sampler: Any, weights: Weights) -> MeasuredDiffusion:
        """Return the speed of a sampler.

        The shortest interval is one move, or the memory of the momenta, 1/(1 - c1²) steps. Before the clock starts,
        hybrid Monte Carlo adapts its time step, and the other samplers measure the gradient variance ten times, so that
        their masses are those of a long run.
        """
        options: dict[str, Any] = {"temperatures": [self.temperature], "chunk_size": self.chunk_size}
        run, every, discard = Run(sampler, **options), 1, getattr(sampler, "warmup_moves", None)
        if not sampler.refreshes:
            states = run.start(weights, self.seed)
        else:
            every = max(50, round(1 / (1 - sampler.momentum_retention**2)))
            often = Run(replace(sampler, refresh_every=every, max_refresh_interval=every), **options)
            states = often.start(weights, self.seed)
            states = measure_diffusion(often, states, every=every, seconds=0, discard_steps=9 * every).states
        return measure_diffusion(run, states, every=every, seconds=self.seconds, discard_steps=discard)

    def speed(self, make: Callable[..., Sampler], out: Path) -> dict[str, Any]:
        """Return what is kept of a sampler's speed; `make` returns the sampler from the task, the weights, the case."""
        task = spin_task(self.hidden_units)
        ends = near_equilibrium(task, self.temperature, out, self.equilibration_seconds, self.seed)
        weights = jax.tree.map(lambda w: w[0, 0], ends)
        sampler = make(task, weights, self)
        found = self.measure(sampler, weights)
        return {
            "sampler": sampler.name,
            "settings": sampler.settings,
            "curve": {} if found.diffusion is None else vars(found.diffusion),
            "coefficient": found.coefficient._asdict(),
            "seconds_per_step": found.seconds_per_step,
            "variance_share": found.refresh_seconds / found.seconds if found.seconds else math.nan,
            "time_step": np.mean(getattr(found.states, "time_step", math.nan)),
        }

    def measured(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the speeds that were measured in this case by label."""
        start = f"{self.where}, "
        return {part.removeprefix(start): value for part, value in found.items() if part.startswith(start)}


def ratio(left: Mapping[str, Any], right: Mapping[str, Any], *, same_interval: bool = False) -> Average:
    """Return the ratio of two D*, each at its own shortest interval or both at the longer one; NaN if unknown."""
    one, two = left["coefficient"], right["coefficient"]
    if not (math.isfinite(one.mean) and two.mean > 0):
        return Average(math.nan, math.nan, math.nan)
    if same_interval:
        curves = [speed["curve"] for speed in (left, right)]
        interval = max(curve["seconds"][0] for curve in curves)
        first, second = (np.interp(interval, curve["seconds"], curve["displacement"][0]) for curve in curves)
        return Average(float(first / second), math.nan, math.nan)
    value = one.mean / two.mean
    error = value * math.hypot(one.standard_error / one.mean, two.standard_error / two.mean) if one.mean else math.nan
    return Average(value, error, math.nan)


def pseudo(task: Task, _: Weights, case: Case, *, share: float = 1, **options: Any) -> Sampler:
    """Return pseudo-Langevin with batches of a share of the examples, in percent."""
    size = max(2, round(share / 100 * task.train.num_examples))
    options = {"refresh_every": 1_000, "reset_probability": 0.0} | options
    return SAMPLERS["pL"](task.potential, task.train, batch_size=size, **options)


def balanced(task: Task, _: Weights, case: Case, *, ratio: float = 0.1) -> Sampler:
    """Return balanced Langevin with batches of 10 % of the examples, or 1 % for a million weights."""
    size = max(2, task.train.num_examples // (100 if case.hidden_units > 1_000 else 10))
    return SAMPLERS["balanced"](task.potential, task.train, batch_size=size, temperature_ratio=ratio)


def hybrid(task: Task, _: Weights, case: Case, *, steps: int, minibatch: bool = False) -> Sampler:
    """Return hybrid Monte Carlo, or its mini-batch variant, with moves of some leapfrog steps and unit masses."""
    first = {"time_step": 0.005, "warmup_moves": 4} if case.hidden_units > 1_000 else {"time_step": 0.05}
    options = {"warmup_moves": 10} | first | case.options.get("hybrid", {})
    options |= {"num_leapfrog_steps": steps, "chunk_size": case.chunk_size}
    if minibatch:
        options |= {"time_step": 0.01, "warmup_moves": 20}
        return minibatch_hybrid_monte_carlo(task.potential, task.train, **options)
    return SAMPLERS["hMC"](task.potential, task.train, **options)


def naive(task: Task, weights: Weights, case: Case, *, subtract: bool) -> Sampler:
    """Return naive pL, with unit masses; for the largest 𝒱, 𝒯 = δt²·𝒱/(4·(1 − c1²)·T) is that of pL."""
    langevin: Any = pseudo(task, weights, case)
    state = jax.jit(langevin.init)(jax.random.key(case.seed), weights, case.temperature)
    largest = max(float(v.max()) for v in jax.tree.leaves(state.gradient_variance))
    friction = 1 - langevin.momentum_retention**2
    time_step = math.sqrt(4 * friction * case.temperature * langevin.temperature_ratio / largest)
    options = {"refresh_every": 1_000} if subtract else {"subtract_variance": False}
    return naive_pseudo_langevin(task.potential, task.train, time_step=time_step, **options)


class Comparison(NamedTuple):
    """One figure: its settings, the samplers of a case by label, and the pairs that are judged.

    `pairs_of(case)` returns pairs of labels, faster and slower, and whether their D* are taken at the same interval,
    as the shortest one of each favours small batches. Pairs of which one was not measured are left out.
    """

    SETTINGS: dict[str, dict[str, Any]]
    samplers_of: Callable[[Case], dict[str, Callable[..., Sampler]]]
    pairs_of: Callable[[Case], list[tuple[Any, ...]]]
    more_rows: Callable[[Case, Mapping[str, Any]], list[Row]] = lambda case, speeds: []

    def measure(self, settings: Mapping[str, Any], parts: Any, out: Path) -> None:
        """Measure the samplers one after the other; the time of the first includes the equilibration."""
        for case in settings["cases"]:
            extra = case.equilibration_seconds
            for label, make in self.samplers_of(case).items():
                parts.measure(f"{case.where}, {label}", 2 * case.seconds + 5 + extra, partial(case.speed, make, out))
                extra = 0.0

    def rows(self, found: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Row]:
        """Return D* of every sampler, and ratios."""
        made: list[Row] = []
        for case in settings["cases"]:
            speeds = case.measured(found)
            made += [row(f"D*/N in 1/s, {case.where}, {label}", s["coefficient"]) for label, s in speeds.items()]
            for faster, slower, same in self.pairs_of(case):
                if faster in speeds and slower in speeds:
                    value = ratio(speeds[faster], speeds[slower], same_interval=same)
                    quantity = f"D*{' at the same interval' * same}, {case.where}, {faster} over {slower}"
                    made.append(row(quantity, value, at_least=1.0))
            made += self.more_rows(case, speeds)
        return made

    def draw(self, found: Mapping[str, Any], settings: Mapping[str, Any]) -> Figure:
        """Draw d²/N against wall-clock time, one panel for each case; a sampler has the same colour everywhere."""
        cases = [case for case in settings["cases"] if case.measured(found)]
        labels = list(dict.fromkeys(label for case in cases for label in case.measured(found)))
        figure = Figure(figsize=(4 * len(cases) + 2.2, 4), layout="constrained")
        for axes, case in zip(figure.subplots(1, len(cases), squeeze=False)[0], cases, strict=True):
            curves = {label: speed["curve"] for label, speed in case.measured(found).items()}
            tops = {label: np.max(curve["displacement"]) if curve else 0.0 for label, curve in curves.items()}
            for label, curve in curves.items():
                style, top = {"ms": 3, "color": COLORS[labels.index(label) % len(COLORS)]}, tops[label]
                if top > 1e-5 * max(tops.values()):
                    axes.plot(curve["seconds"], curve["displacement"][0], "o-", label=label, **style)
                else:  # all moves were rejected, or decades below the others
                    text = f"below, {top:.0e} in {curve['seconds'][-1]:.0f} s" if top else "no value"
                    axes.plot([], [], "o-", label=f"{label}: {text}", **style)
            axes.set(xlabel="wall-clock interval [s]", title=case.where)
            if any(tops.values()):
                axes.set(xscale="log", yscale="log")
        figure.axes[0].set_ylabel("d²/N")
        draw_legend(figure)
        return figure


def _settings(paper: tuple[Case, ...], smoke: tuple[Case, ...]) -> dict[str, dict[str, Any]]:
    return {"paper": {"cases": paper, "seed": 0}, "smoke": {"cases": smoke, "seed": 0}}


def compared_with_published(case: Case, speeds: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Return the rows of one case of Fig. 4 and Table A1: moves of 1000 steps, and times."""
    longest, bound, where, made = max(case.options["moves"]), "", case.where, list[Row]()
    paper, move = (speeds.get(label) for label in ("pL as in the paper", f"hMC, {longest} steps"))
    table, known = published_numbers("performance"), dict.fromkeys(("hMC", "pL", "move", "step", "variance"), math.nan)
    if case.temperature == table["temperature"]:
        known |= table["sizes"].get(str(num_weights(case.hidden_units)), {})
    if move is not None:
        diffusion, seconds = move["coefficient"].mean, move["seconds_per_step"]
        if longest < 1_000:
            seconds *= 1_000 / (longest + 2)  # a move of L steps computes L + 2 gradients
            diffusion, bound = case.temperature * (1_000 * move["time_step"]) ** 2 / seconds, ", bounded"
        hybrid = f"hMC as in the paper{bound}"
        judged: dict[str, Any] = {"pL as in the paper": {"published": known["pL"] / known["hMC"]}}
        judged["balanced"] = {"at_least": 1.0}
        for label in (label for label in judged if label in speeds):
            gain = speeds[label]["coefficient"].mean / diffusion if diffusion else math.nan
            made.append(row(f"D*, {where}, {label} over {hybrid}", gain, **judged[label]))
        made.append(row(f"D*/N in 1/s, {where}, {hybrid}", diffusion, published=known["hMC"]))
        made.append(row(f"seconds per move of 1000 steps, {where}{bound}", seconds, published=known["move"]))
    if paper is not None:
        seconds = known["step"] + known["variance"]
        made.append(row(f"seconds per pL step, {where}", paper["seconds_per_step"], published=seconds))
        quantity, share = f"share of variance measurements in a pL step, {where}", known["variance"] / seconds
        made.append(row(quantity, paper["variance_share"], published=share))
    return made


# In PERFORMANCE the gradient variance is measured more often than in the paper where 5000 steps take too long. A move
# of 1000 steps takes 12 s with N = 101 610: its time step is the one that moves of 300 steps adapted to.
PERFORMANCE = Comparison(
    _settings(
        (
            Case(500, 1e-6, 15, 13, 55_800, {"moves": (1_000,), "hybrid": {"time_step": 0.09, "warmup_moves": 0}}),
            Case(5_000, 1e-6, 25, 5, 20_480, {"moves": (1,), "refresh_every": 1_000}),
            Case(50, 1e-6, 15, 3, 55_800, {"moves": (1_000, 100)}),
            Case(50, 3e-5, 10, 3, 55_800, {"moves": (1_000, 100)}),
        ),
        (Case(4, 4e-4, 10, 5, 9_570, {"moves": (10, 100, 1_000)}),),
    ),
    lambda case: {
        "pL as in the paper": partial(
            pseudo, reset_probability=0.1, refresh_every=case.options.get("refresh_every", 5_000)
        ),
        "balanced": balanced,
        **{f"hMC, {steps} steps": partial(hybrid, steps=steps) for steps in case.options["moves"]},
    },
    lambda case: [("balanced", f"hMC, {steps} steps", False) for steps in case.options["moves"]],
    compared_with_published,
)
VARIANTS = Comparison(
    _settings((Case(5_000, 1e-6, 25, 4, 20_480, {"steps": 3}),), (Case(10, 2e-4, 20, 6, 15_600, {"steps": 20}),)),
    lambda case: {
        "pL": pseudo,
        "naive pL, variance subtracted": partial(naive, subtract=True),
        "naive pL": partial(naive, subtract=False),
        "hMC": partial(hybrid, steps=case.options["steps"]),
        "mb-hMC": partial(hybrid, steps=case.options["steps"], minibatch=True),
        "balanced": balanced,
    },
    lambda _: [("pL", x, False) for x in ("naive pL, variance subtracted", "naive pL", "hMC", "mb-hMC")],
)
BATCH_SIZE = Comparison(
    _settings((Case(5_000, 1e-6, 25, 4, 20_480, {"steps": 1}),), (Case(10, 2e-4, 20, 6, 15_600, {"steps": 20}),)),
    lambda case: {
        **{f"pL, S = {share:g} % of P": partial(pseudo, share=share) for share in (1, 0.5, 0.1)},
        "balanced": balanced,
        "hMC": partial(hybrid, steps=case.options["steps"]),
    },
    lambda _: [
        *(("pL, S = 1 % of P", f"pL, S = {share:g} % of P", True) for share in (0.5, 0.1)),
        ("pL, S = 1 % of P", "hMC", False),
    ],
)
SUBOPTIMAL = Comparison(
    _settings(
        (
            Case(5_000, 1e-6, 25, 3, 20_480, {"steps": (2, 1)}),
            Case(500, 1e-6, 15, 3, 55_800, {"steps": (100, 10)}),
            Case(50, 1e-6, 15, 2, 55_800, {"steps": (1_000, 30)}),
        ),
        (Case(4, 4e-4, 10, 3, 9_570, {"steps": (100, 5)}), Case(12, 2e-4, 10, 3, 17_610, {"steps": (100, 5)})),
    ),
    lambda case: {
        **{f"pL, ratio {value:g}": partial(pseudo, temperature_ratio=value) for value in (0.01, 0.001)},
        **{f"hMC, {steps} steps": partial(hybrid, steps=steps) for steps in case.options["steps"]},
        **{f"balanced, ratio {value:g}": partial(balanced, ratio=value) for value in (0.1, 0.01)},
    },
    lambda case: [
        ("pL, ratio 0.01", "pL, ratio 0.001", False),
        (*(f"hMC, {steps} steps" for steps in case.options["steps"]), False),
        ("balanced, ratio 0.1", "balanced, ratio 0.01", False),
    ],
)
