"""Fig. 5 and A.5: test error, loss and gradient variance against temperature, and sampling compared with Adam.

One chain at a time, since a million weights fill the device. From random weights, the lowest temperature passes the
best test error and then overfits as Adam does; the intermediate one does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy import stats

from .. import Dataset, adam, pseudo_langevin
from .. import _trees as trees
from ..diagnostics.averages import Average, average, kept
from .results import COLORS, Row, Stage, published_numbers, published_table, published_value, rise, row
from .spins import Chains, keep_end, prior_start, spin_task, summary


@dataclass(frozen=True)
class Phase:
    """One chain."""

    name: str
    temperature: float | None
    """None for training by Adam."""
    start: str
    """"random" weights, the "prior" at the temperature, or the name of the phase that is continued."""
    chains: Chains
    scores: float = 1.0
    """Standard deviation of the scores of a start from the prior."""
    judged: bool = True
    """Whether averages are compared with the published ones; not below the transition, where the start decides."""


@dataclass(frozen=True)
class Settings:
    """Settings of one scale."""

    hidden_units: int
    phases: tuple[Phase, ...]
    observe_examples: int
    chunk_size: int
    start_steps: int
    """Steps of Adam after which a random start must have no dead class."""
    flat: float
    """Largest accepted rise of the test error after its minimum at the intermediate temperature."""
    gap: float
    """Largest accepted difference of that test error from the one of Adam, stopped early."""
    overfitting: float = 0.003
    """Smallest accepted rise of the test error after its minimum at the lowest temperature and with Adam."""
    seed: int = 0


def _often(num_steps: int, seconds: float, every: int = 1_024, **settings: Any) -> Chains:
    """Return chains that measure the gradient variance often, as those from the prior must."""
    refresh = {"refresh_every": every, "max_refresh_interval": every, "warmup_refreshes": 7}
    return Chains(num_steps, 512, seconds, refresh | settings)


LARGE = {"refresh_every": 4_000, "warmup_refreshes": 3}
SMALL = Chains(3_000, 100, 30, {"refresh_every": 1_600, "warmup_refreshes": 4})
HOT = {"temperature_ratio": 0.003, "mass_floor": 0.1}
SETTINGS = {
    "paper": Settings(
        hidden_units=5_000,
        phases=(
            Phase("3e-7", 3e-7, "prior", _often(20_480, 60), 0.55),
            Phase("2e-7", 2e-7, "prior", _often(20_480, 30), 0.75),
            Phase("1e-6", 1e-6, "prior", _often(30_720, 40), 0.2),
            Phase("3e-7 from random weights", 3e-7, "random", Chains(6_000, 500, 30, LARGE)),
            Phase("1e-7 from random weights", 1e-7, "random", Chains(50_000, 500, 90, LARGE), judged=False),
            Phase("Adam", None, "random", Chains(10**6, 1_000, 40, {"batch_size": 1_024, "learning_rate": 3e-4})),
            Phase(
                "Adam on all", None, "random", Chains(10**6, 1_000, 30, {"batch_size": 6_288, "learning_rate": 1e-3})
            ),
            Phase("1e-7 from Adam", 1e-7, "Adam on all", _often(12_288, 15), judged=False),
            Phase("1e-5", 1e-5, "3e-7 from random weights", _often(8_192, 15)),
            Phase("1e-4", 1e-4, "1e-5", _often(8_192, 20, 256, **HOT)),
        ),
        observe_examples=150_000,
        chunk_size=25_000,
        start_steps=4_000,
        flat=0.001,
        gap=0.003,
    ),
    "smoke": Settings(
        hidden_units=50,
        phases=(
            Phase("3e-5 from random weights", 3e-5, "random", replace(SMALL, num_steps=6_000, max_seconds=60)),
            Phase("6e-5", 6e-5, "prior", SMALL),
            Phase("1e-4", 1e-4, "prior", SMALL),
            Phase("Adam", None, "random", Chains(20_000, 500, 40, {"learning_rate": 1e-3})),
            Phase("1e-6 from Adam", 1e-6, "Adam", SMALL, judged=False),
        ),
        observe_examples=10_000,
        chunk_size=4_096,
        start_steps=2_000,
        flat=0.01,
        gap=0.015,
    ),
}


class Outcome(NamedTuple):
    """One phase with its averages."""

    phase: Phase
    trace: xr.Dataset
    """Trace of the only chain, along draws."""
    averages: dict[str, Average]
    """Averages over the second half; empty for Adam."""
    variances: np.ndarray
    """Mean gradient variance of each layer over the second half."""

    @property
    def errors(self) -> np.ndarray:
        """Test error along the chain."""
        return self.trace["test_error"].values

    @property
    def usable(self) -> bool:
        """Whether the chain stayed finite and no class is dead at the end."""
        return bool(np.isfinite(self.errors[-1])) and not self.trace["dead_class"].isel(draw=-1).any()


def reproduce(settings: Settings, out: Path) -> Iterator[Stage]:
    """Run the phases one after the other."""
    task = spin_task(settings.hidden_units)
    ends = {"random": task.starts(settings.start_steps, seed=settings.seed, untrained=True)}
    layers = np.array([trees.num_weights(layer) for layer in trees.layers(ends["random"]).values()])
    num_train = round(0.82 * task.train.num_examples)
    held_out = Dataset(task.train.inputs[num_train:], task.train.targets[num_train:])
    options = {"test": task.test, "observe_examples": settings.observe_examples, "chunk_size": settings.chunk_size}
    outcomes: list[Outcome] = []
    record: dict[str, Any] = asdict(settings) | {"num_weights": task.num_weights, "measured": {}}
    for index, phase in enumerate(settings.phases):
        sampler, chosen, temperatures = adam, task, None
        if phase.temperature is not None:
            sampler, temperatures = pseudo_langevin, [phase.temperature]
        elif phase.name == "Adam":
            sampler = partial(adam, validation=held_out, validate_every=phase.chains.record_every)
            chosen = replace(task, train=task.train.head(num_train))
        if phase.start == "prior":
            ends["prior"] = prior_start(task, phase.temperature, scores=phase.scores, seed=settings.seed)
        start = ends[phase.start]
        key = settings.seed + index
        result = phase.chains.sample(sampler, chosen, start, temperatures=temperatures, key=key, **options)
        ends[phase.name] = result.weights
        trace, averages, variances = result.trace.isel(temperature=0, chain=0), {}, np.array([])
        if phase.temperature is not None:
            names = ("loss", "squared_norm", "error", "test_error")
            averages = {name: average(trace[name].values, burn_in=0.5) for name in names}
            variances = kept(trace["gradient_variance"]).mean("draw").values
            mean = float(np.average(variances[:2], weights=layers[:2]))
            averages["gradient_variance"] = Average(mean, np.nan, np.nan)  # constant between measurements
            if phase.start != "random":
                keep_end(out, task, phase.temperature, result.weights)
        outcomes.append(Outcome(phase, trace, averages, variances))
        curves = {name: trace[name].values for name in ("step", "test_error", "loss", "squared_norm")}
        record["measured"][phase.name] = summary(result) | curves
        rows = rows_of(outcomes, settings, task.num_weights)
        yield rows, draw(outcomes, task.num_weights), record


class Roles(NamedTuple):
    """Outcomes by their role in the figure; None or absent before their phase has run."""

    equilibria: dict[float, Outcome]
    """Outcomes by temperature, cold to hot; those from random weights only where there is no other."""
    warm: Outcome | None
    """Chain from random weights at the intermediate temperature."""
    cold: Outcome | None
    """Chain from random weights at the lowest temperature."""
    adam: Outcome | None


def roles_of(outcomes: list[Outcome]) -> Roles:
    """Return the outcomes by role."""
    sampled = [o for o in outcomes if o.phase.temperature is not None]
    equilibria = {o.phase.temperature: o for o in sorted(sampled, key=lambda o: o.phase.start != "random")}
    curves = sorted((o for o in sampled if o.phase.start == "random"), key=lambda o: o.phase.temperature)
    trained = next((o for o in outcomes if o.phase.name == "Adam"), None)
    warm, cold = curves[-1] if curves else None, curves[0] if len(curves) > 1 else None
    return Roles(dict(sorted(equilibria.items())), warm, cold, trained)


def rows_of(outcomes: list[Outcome], settings: Settings, num_weights: int) -> list[Row]:
    """Return the rows on averages, the transition, curves from random weights, and the order parameter."""
    roles = roles_of(outcomes)
    rows: list[Row] = []
    published = partial(published_value, "generalization", num_weights, "pL")
    tolerances = {"loss": (0.03, True), "squared_norm": (0.03, True), "test_error": (0.002, False)}
    for temperature, outcome in roles.equilibria.items():
        for name, measured in outcome.averages.items():
            known = published(temperature, name)
            judged = outcome.phase.judged and known is not None
            tolerance, relative = tolerances.get(name, (None, False)) if judged else (None, False)
            quantity = f"{name} at T = {outcome.phase.name}"
            rows.append(row(quantity, measured, published=known, tolerance=tolerance, relative=relative))
    levels = list(roles.equilibria.items())[:2]
    if len(levels) == 2 and not levels[0][1].phase.judged:
        (below, low), (above, high) = levels
        losses, where = [published(t, "loss") for t in (below, above)], f"from T = {below:g} to {above:g}"
        known = None if None in losses else losses[1] - losses[0]
        jump, drop = (high.averages[n].mean - low.averages[n].mean for n in ("loss", "test_error"))
        rows.append(
            row(f"jump of the loss {where}", jump, published=known, tolerance=0.5, relative=True, at_least=0.02)
        )
        rows.append(row(f"drop of the test error {where}", -drop, at_least=0.0))
    return [*rows, *_curves(roles, settings, num_weights), *_order(roles, num_weights)]


def _curves(roles: Roles, settings: Settings, num_weights: int) -> list[Row]:
    """Return the rows on overfitting: the intermediate temperature does not, the lowest one and Adam do."""
    numbers = published_numbers()["generalization"]
    known = numbers if numbers["num_weights"] == num_weights else {}
    rows: list[Row] = []
    limits = ((roles.warm, None, {"tolerance": settings.flat}), (roles.cold, 0.004, {"at_least": settings.overfitting}))
    for outcome, tolerance, limit in limits:
        if outcome is not None:
            name = outcome.phase.name
            curve = known.get(f"from_random_weights_at_{name.split()[0]}", {"rows": []})["rows"]
            errors = dict(zip(outcome.trace["step"].values.tolist(), outcome.errors, strict=True))
            for step, value in curve:
                if step <= outcome.phase.chains.num_steps:  # a point that was not reached is NaN and does not pass
                    quantity = f"test error after {step} steps, T = {name}"
                    rows.append(row(quantity, errors.get(step, np.nan), published=value, tolerance=tolerance))
            rows.append(row(f"rise of the test error after its minimum, T = {name}", rise(outcome.errors), **limit))
    if roles.adam is not None:
        at = roles.adam.trace["step"].values == int(roles.adam.trace["best_step"].values[-1])
        best, late = roles.adam.errors[at].mean(), roles.adam.errors[-1]
        tolerance = 0.002 if known else None
        published = known.get("adam_best_test_error"), known.get("adam_late_test_error")
        rows.append(row("test error of Adam, stopped early", best, published=published[0], tolerance=tolerance))
        rows.append(row("test error of Adam at the end of its run", late, published=published[1]))
        quantity = "rise of the test error after its minimum, Adam"
        rows.append(row(quantity, late - best, at_least=settings.overfitting))
        if roles.warm is not None:
            quantity = f"test error at T = {roles.warm.phase.name} minus that of Adam, stopped early"
            rows.append(row(quantity, roles.warm.averages["test_error"].mean - best, tolerance=settings.gap))
    return rows


def _order(roles: Roles, num_weights: int) -> list[Row]:
    """Return the rows on the gradient variance of the first two layers as an order parameter of generalization."""

    def compare(temperatures: Any, errors: Any, variances: Any) -> tuple[float, float]:
        apart = np.log10(temperatures[np.argmin(variances)] / temperatures[np.argmin(errors)])
        return float(stats.spearmanr(errors, variances).statistic), float(apart)

    usable = [o for o in roles.equilibria.values() if o.usable]
    if len(usable) < 3:
        return []
    names = ("test_error", "gradient_variance")
    measured = ([o.averages[name].mean for o in usable] for name in names)
    correlation, apart = compare([o.phase.temperature for o in usable], *measured)
    known, table = (None, None), published_table("generalization", num_weights).get("pL")
    if table is not None:
        known = compare(table.temperatures, *(table.values[name] for name in names))
    # In a small network the variance goes on falling where the test error rises again: the first row is not judged.
    least = None if table is None else 0.5
    first = "rank correlation of test error and gradient variance over the temperatures"
    second = "log10 of T at the lowest gradient variance over T at the lowest test error"
    return [
        row(first, correlation, published=known[0], at_least=least),
        row(second, apart, published=known[1], tolerance=0.7, target=0.0),
    ]


def draw(outcomes: list[Outcome], num_weights: int) -> Figure:
    """Draw Fig. 5 with its inset on the left and A.5, layer by layer, on the right, of the chains that are usable."""
    roles = roles_of([o for o in outcomes if o.usable])
    figure = Figure(figsize=(12, 9), layout="constrained")
    panels = figure.subplots(3, 2, sharex=True)
    temperatures, table = list(roles.equilibria), published_table("generalization", num_weights).get("pL")
    for axes, name in zip(panels[:, 0], ("test_error", "loss", "gradient_variance"), strict=True):
        values = [o.averages[name] for o in roles.equilibria.values()]
        errors = np.nan_to_num([v.standard_error for v in values])
        axes.errorbar(temperatures, [v.mean for v in values], errors, fmt="o-", ms=4, color=COLORS[0], label="measured")
        if table is not None:
            axes.plot(table.temperatures, table.values[name], "D", mfc="none", color=COLORS[1], label="published")
        axes.set(xscale="log", ylabel=name.replace("_", " "), yscale="log" if "variance" in name else "linear")
    for index, axes in enumerate(panels[:, 1]):
        axes.plot(temperatures, [o.variances[index] for o in roles.equilibria.values()], "o-", ms=4, color=COLORS[2])
        axes.set(yscale="log", ylabel=f"gradient variance, layer {index + 1}", xlabel="temperature T")
    inset = panels[0, 0].inset_axes((0.25, 0.45, 0.45, 0.5), xscale="log", xlabel="steps from random weights")
    for color, outcome in zip(COLORS[1:], (roles.cold, roles.warm, roles.adam), strict=False):
        if outcome is not None:
            inset.plot(outcome.trace["step"], outcome.errors, color=color, lw=1.2, label=outcome.phase.name)
            inset.set_ylim(None, outcome.errors.min() + 0.05)
            inset.legend(frameon=False, fontsize=7)
    panels[0, 0].legend(frameon=False, fontsize=8, loc="lower right")
    return figure
