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

import jax
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from .. import _trees as trees
from .._trees import Weights
from ..apps.fit import trained_starts
from ..diagnostics.averages import Average, average
from ..samplers.adam import Adam
from ..samplers.langevin import PseudoLangevin
from .results import COLORS, Row, Stage, published_numbers, published_value, rise, row
from .spins import Chains, SpinTask, end_of, keep, prior_start, spin_task, summary

PUBLISHED = {"gradient_variance": "mean_gradient_variance_first_two_layers", "error": "train_error"}


@dataclass(frozen=True)
class Phase:
    """One chain."""

    name: str
    temperature: float | None
    """None for training by Adam."""
    start: str
    """"random" weights, those of the "prior" at the temperature, or the name of the phase that is continued."""
    chains: Chains
    scores: float = 1.0
    """Standard deviation of the scores of a start from the prior."""
    judged: bool = True
    """Whether averages are compared with the published ones; not where the start decides (glassy)."""


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
    """Largest rise of the test error that is not overfitting at the intermediate temperature."""
    gap: float
    """Largest difference of the test error at the intermediate temperature from that of Adam, stopped early."""
    quick: tuple[int, float] | None = None
    """Steps from random weights at the intermediate temperature, and test error that must be reached by then."""
    seed: int = 0


def _often(num_steps: int, seconds: float, every: int = 1_024, **options: Any) -> Chains:
    """Return chains that measure the gradient variance often, as equilibrium from the prior requires."""
    refresh = {"refresh_every": every, "max_refresh_interval": every, "warmup_refreshes": 7}
    return Chains(num_steps, 512, seconds, refresh | options)


def _adam(num_steps: int, record_every: int, seconds: float, batch_size: int, learning_rate: float) -> Chains:
    return Chains(num_steps, record_every, seconds, {"batch_size": batch_size, "learning_rate": learning_rate})


LARGE = Chains(50_000, 500, 90, {"refresh_every": 4_000, "warmup_refreshes": 3})
SMALL = Chains(3_000, 100, 30, {"refresh_every": 1_600, "warmup_refreshes": 4})
SETTINGS = {
    "paper": Settings(
        hidden_units=5_000,
        phases=(
            Phase("3e-7", 3e-7, "prior", _often(20_480, 60), 0.55),
            Phase("2e-7", 2e-7, "prior", _often(20_480, 30), 0.75),
            Phase("1e-6", 1e-6, "prior", _often(30_720, 40), 0.2),
            Phase("3e-7 from random weights", 3e-7, "random", replace(LARGE, num_steps=6_000)),
            Phase("1e-7 from random weights", 1e-7, "random", LARGE, judged=False),
            Phase("Adam", None, "random", _adam(2_000_000, 1_000, 40, 1_024, 3e-4)),
            Phase("Adam, large batches", None, "random", _adam(2_000_000, 1_000, 30, 6_288, 1e-3)),
            Phase("1e-7 from Adam", 1e-7, "Adam, large batches", _often(12_288, 15), judged=False),
            Phase("1e-5", 1e-5, "3e-7 from random weights", _often(8_192, 15)),
            Phase("1e-4", 1e-4, "1e-5", _often(8_192, 20, 256, temperature_ratio=0.003, mass_floor=0.1)),
        ),
        observe_examples=150_000,
        chunk_size=25_000,
        start_steps=4_000,
        flat=0.001,
        gap=0.003,
        quick=(2_000, 0.1145),
    ),
    "smoke": Settings(
        hidden_units=50,
        phases=(
            Phase("3e-5 from random weights", 3e-5, "random", replace(SMALL, num_steps=6_000, max_seconds=60)),
            Phase("6e-5", 6e-5, "prior", SMALL),
            Phase("1e-4", 1e-4, "prior", SMALL),
            Phase("Adam", None, "random", _adam(20_000, 500, 40, 128, 1e-3)),
            Phase("1e-6 from Adam", 1e-6, "Adam", SMALL, judged=False),
        ),
        observe_examples=10_000,
        chunk_size=4_096,
        start_steps=2_000,
        flat=0.01,
        gap=0.015,
    ),
}


@dataclass(frozen=True)
class Outcome:
    """Records of one phase."""

    phase: Phase
    trace: xr.Dataset
    """Trace of the only chain, along draws."""
    layer_sizes: np.ndarray
    """Number of weights of each layer."""

    @property
    def averages(self) -> dict[str, Average]:
        """Averages over the second half; the gradient variance is that of the first two layers, without error."""
        found = {n: average(self.trace[n].values, burn_in=0.5) for n in ("loss", "squared_norm", "error", "test_error")}
        return found | {"gradient_variance": self.variance(slice(0, 2))}

    def variance(self, layers: slice) -> Average:
        """Return the mean gradient variance of some layers."""
        values = self.trace["gradient_variance"].values[len(self.trace.draw) // 2 :, layers]
        mean = np.average(values.mean(axis=0), weights=self.layer_sizes[layers])
        return Average(float(mean), np.nan, np.nan)

    @property
    def usable(self) -> bool:
        """Whether the chain stayed finite and no class is dead at the end."""
        last = self.trace.isel(draw=-1)
        return bool(np.isfinite(last["loss"])) and not bool(last["dead_class"].any())

    @property
    def best_test_error(self) -> float:
        """Test error at the step with the lowest validation error; NaN where that is the start."""
        at = self.trace["step"].values == int(self.trace["best_step"].values[-1])
        return float(self.trace["test_error"].values[at][0]) if at.any() else np.nan


def reproduce(settings: Settings, out: Path) -> Iterator[Stage]:
    """Run the phases one after the other."""
    task = spin_task(settings.hidden_units)
    short = {"num_steps": settings.start_steps, "key": settings.seed, "untrained": True}
    random = trained_starts(task.potential, task.train, task.network.init, **short)
    ends: dict[str, Weights] = {}
    outcomes: list[Outcome] = []
    record: dict[str, Any] = asdict(settings) | {"num_weights": task.num_weights, "measured": {}}
    for index, phase in enumerate(settings.phases):
        start = random if phase.start == "random" else ends.get(phase.start)
        if phase.start == "prior":
            start = prior_start(task, phase.temperature, scores=phase.scores, seed=settings.seed)
        result = phase.chains.sample(
            _sampler(phase, task),
            task,
            start,
            None if phase.temperature is None else [phase.temperature],
            1,
            key=settings.seed + index,
            test=task.test,
            observe_examples=settings.observe_examples,
            chunk_size=settings.chunk_size,
        )
        ends[phase.name] = jax.tree.map(lambda w: w[0], result.weights)
        if phase.temperature is not None and phase.start != "random":
            keep(end_of(out, task, phase.temperature), result.weights)
        sizes = np.array([trees.num_weights(layer) for layer in trees.layers(random).values()])
        trace = result.trace.isel(temperature=0, chain=0)
        outcomes.append(Outcome(phase, trace, sizes))
        curves = {name: trace[name].values for name in ("step", "test_error", "loss", "squared_norm")}
        record["measured"][phase.name] = summary(result) | curves
        rows = rows_of(outcomes, settings, task.num_weights)
        yield rows, draw(outcomes, task.num_weights), record


def _sampler(phase: Phase, task: SpinTask) -> Any:
    """Return the class of the sampler; Adam that is stopped early trains on 0.82·P examples and validates on the rest."""
    if phase.temperature is not None:
        return PseudoLangevin
    if phase.name != "Adam":
        return Adam
    num_train = round(0.82 * task.train.num_examples)
    held_out = task.train.take(np.arange(num_train, task.train.num_examples))
    return lambda potential, train, **options: Adam(
        potential, train.head(num_train), validation=held_out, validate_every=phase.chains.record_every, **options
    )


class Roles(NamedTuple):
    """Outcomes by their role in the figure; None or absent before their phase has run."""

    equilibria: dict[float, Outcome]
    """Outcomes by temperature, cold to hot; those from random weights only where there is no other."""
    warm: Outcome | None
    """Curve from random weights at the intermediate temperature."""
    cold: Outcome | None
    """Curve from random weights at the lowest temperature."""
    adam: Outcome | None


def roles_of(outcomes: list[Outcome]) -> Roles:
    """Sort the outcomes by their role."""
    sampled = [o for o in outcomes if o.phase.temperature is not None]
    found = {o.phase.temperature: o for o in sorted(sampled, key=lambda o: o.phase.start != "random")}
    curves = sorted((o for o in sampled if o.phase.start == "random"), key=lambda o: o.phase.temperature)
    adam = next((o for o in outcomes if o.phase.name == "Adam"), None)
    equilibria = dict(sorted(found.items()))
    return Roles(equilibria, curves[-1] if curves else None, curves[0] if len(curves) > 1 else None, adam)


def rows_of(outcomes: list[Outcome], settings: Settings, num_weights: int) -> list[Row]:
    """Return the rows on averages, the transition, the curves from random weights, and the order parameter."""
    roles = roles_of(outcomes)
    published = partial(published_value, "generalization", num_weights, "pL")
    tolerances = {"loss": 0.03, "squared_norm": 0.03, "test_error": 0.002}
    rows: list[Row] = []
    for temperature, outcome in roles.equilibria.items():
        for name, measured in outcome.averages.items():
            known = published(temperature, PUBLISHED.get(name, name))
            tolerance = tolerances.get(name) if outcome.phase.judged and known is not None else None
            relative = name != "test_error"
            quantity = f"{name} at T = {outcome.phase.name}"
            rows.append(row(quantity, measured, published=known, tolerance=tolerance, relative=relative))
    if len(roles.equilibria) > 1 and not next(iter(roles.equilibria.values())).phase.judged:
        (below, low), (above, high) = list(roles.equilibria.items())[:2]
        losses = [published(t, "loss") for t in (below, above)]
        known = None if None in losses else losses[1] - losses[0]
        where = f"from T = {below:g} to {above:g}"
        jump = high.averages["loss"].mean - low.averages["loss"].mean
        drop = low.averages["test_error"].mean - high.averages["test_error"].mean
        rows.append(
            row(f"jump of the loss {where}", jump, published=known, tolerance=0.5, relative=True, at_least=0.02)
        )
        rows.append(row(f"drop of the test error {where}", drop, at_least=0.0))
    return [*rows, *_curves(roles, settings, num_weights), *_order(roles, num_weights)]


def _curves(roles: Roles, settings: Settings, num_weights: int) -> list[Row]:
    """Return the rows on overfitting: the intermediate temperature does not, the lowest one and Adam do."""
    rows: list[Row] = []
    numbers = published_numbers()["generalization"]
    known = numbers if numbers["num_weights"] == num_weights else {}
    rising = "rise of the test error after its minimum"
    if roles.warm is not None:
        name, errors = roles.warm.phase.name, roles.warm.trace["test_error"].values
        rows += _points(roles.warm, known, None)
        if settings.quick is not None:
            num_steps, limit = settings.quick
            least = errors[roles.warm.trace["step"].values <= num_steps].min(initial=1.0)
            rows.append(row(f"lowest test error within {num_steps} steps, T = {name}", least, tolerance=limit))
        rows.append(row(f"{rising}, T = {name}", rise(errors), tolerance=settings.flat))
    if roles.cold is not None:
        rows += _points(roles.cold, known, 0.004)
        errors = roles.cold.trace["test_error"].values
        rows.append(row(f"{rising}, T = {roles.cold.phase.name}", rise(errors), at_least=OVERFITTING))
    if roles.adam is not None:
        best, late = roles.adam.best_test_error, float(roles.adam.trace["test_error"].values[-1])
        early_stopped, late_published = known.get("adam_best_test_error"), known.get("adam_late_test_error")
        tolerance = 0.002 if known else None
        rows.append(row("test error of Adam, stopped early", best, published=early_stopped, tolerance=tolerance))
        rows.append(row("test error of Adam at the end of its run", late, published=late_published))
        rows.append(row(f"{rising}, Adam", late - best, at_least=OVERFITTING))
        if roles.warm is not None:
            difference = roles.warm.averages["test_error"].mean - best
            quantity = f"test error at T = {roles.warm.phase.name} minus that of Adam, stopped early"
            rows.append(row(quantity, difference, tolerance=settings.gap))
    return rows


def _points(outcome: Outcome, known: dict[str, Any], tolerance: float | None) -> list[Row]:
    """Return the rows of a published curve from random weights; points that were not reached do not pass."""
    curve = known.get(f"from_random_weights_at_{outcome.phase.name.split()[0]}", {"rows": []})
    errors = dict(zip(outcome.trace["step"].values.tolist(), outcome.trace["test_error"].values, strict=True))
    return [
        row(
            f"test error after {step} steps, T = {outcome.phase.name}",
            errors.get(step, np.nan),
            published=published,
            tolerance=tolerance,
        )
        for step, published in curve["rows"]
        if step <= outcome.phase.chains.num_steps
    ]


def _order(roles: Roles, num_weights: int) -> list[Row]:
    """Return the rows on the gradient variance of the first two layers as order parameter of generalization."""

    def compare(table: np.ndarray) -> tuple[float, float]:
        temperature, error, variance = table.T
        apart = np.log10(temperature[variance.argmin()] / temperature[error.argmin()])
        return float(stats.spearmanr(error, variance).statistic), float(apart)

    names = ("test_error", "gradient_variance")
    usable = {t: o.averages for t, o in roles.equilibria.items() if o.usable}
    if len(usable) < 3:
        return []
    correlation, apart = compare(np.array([[t, *(found[n].mean for n in names)] for t, found in usable.items()]))
    section, known = published_numbers()["generalization"], (None, None)
    if section["num_weights"] == num_weights:
        columns = [section["columns"].index(PUBLISHED.get(name, name)) for name in ("temperature", *names)]
        known = compare(np.array(section["pseudo_langevin"])[:, columns])
    quantity = "rank correlation of test error and gradient variance over the temperatures"
    # In a small network the variance goes on falling where the test error rises again: the row is then not judged.
    return [
        row(quantity, correlation, published=known[0], at_least=None if known[0] is None else 0.5),
        row("log10 of T at the lowest gradient variance over T at the lowest test error", apart, published=known[1],
            tolerance=0.7, target=0.0),
    ]  # fmt: skip


def draw(outcomes: list[Outcome], num_weights: int) -> Figure:
    """Draw Fig. 5 on the left and A.5, layer by layer, on the right; chains that are not usable are left out."""
    roles = roles_of([o for o in outcomes if o.usable])
    figure = Figure(figsize=(12, 9), layout="constrained")
    panels = figure.subplots(3, 2)
    temperatures = list(roles.equilibria)
    section = published_numbers()["generalization"]
    names = {"test_error": "test error", "loss": "mean cross-entropy", "gradient_variance": "gradient variance"}
    for axes, (name, label) in zip(panels[:, 0], names.items(), strict=True):
        values = [o.averages[name] for o in roles.equilibria.values()]
        errors = np.nan_to_num([v.standard_error for v in values])
        axes.errorbar(temperatures, [v.mean for v in values], errors, fmt="o-", ms=4, color=COLORS[0], label="measured")
        if section["num_weights"] == num_weights:
            lines = np.array(sorted(section["pseudo_langevin"]))
            column = section["columns"].index(PUBLISHED.get(name, name))
            axes.plot(lines[:, 0], lines[:, column], "D", mfc="none", color=COLORS[1], label="published")
        axes.set(xscale="log", ylabel=label, yscale="log" if name == "gradient_variance" else "linear")
    for index, axes in enumerate(panels[:, 1]):
        values = [o.variance(slice(index, index + 1)).mean for o in roles.equilibria.values()]
        axes.plot(temperatures, values, "o-", ms=4, color=COLORS[2])
        axes.set(xscale="log", yscale="log", ylabel=f"gradient variance, layer {index + 1}")
    for axes in panels[-1]:
        axes.set_xlabel("temperature T")
    _inset(panels[0, 0].inset_axes((0.25, 0.45, 0.45, 0.5)), roles)
    if roles.adam is not None:
        panels[0, 0].axhline(roles.adam.best_test_error, color="0.5", lw=1, label="Adam, stopped early")
    panels[0, 0].legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _inset(axes: Axes, roles: Roles) -> None:
    """Draw the test error along the runs from random weights."""
    curves = [o for o in (roles.cold, roles.warm, roles.adam) if o is not None]
    for color, outcome in zip(COLORS[1:], curves, strict=False):
        label = "Adam" if outcome.phase.temperature is None else f"T = {outcome.phase.temperature:g}"
        axes.plot(outcome.trace["step"], outcome.trace["test_error"], color=color, lw=1.2, label=label)
    lowest = min((float(o.trace["test_error"].min()) for o in curves), default=0.1)
    axes.set(xscale="log", ylim=(lowest - 0.003, lowest + 0.05))
    axes.set_xlabel("steps from random weights", fontsize=7)
    axes.tick_params(labelsize=7)
    if curves:
        axes.legend(frameon=False, fontsize=7)
