"""Fig. 5 and A.5: test error, loss and gradient variance against temperature, and sampling compared with Adam.

One chain at a time, since a million weights fill the device. From random weights, the lowest temperature passes the
best test error and then overfits as Adam does; the intermediate one does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
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
from .results import COLORS, Row, Stage, adam_rows, published_numbers, published_table, published_value, rise, row
from .spins import Chains, chains, keep_end, prior_start, spin_task, summary


class Phase(NamedTuple):
    """One chain."""

    name: str
    temperature: float  # 0 for training by Adam
    start: str  # "random" weights, the "prior" at the temperature, or the name of the phase that is continued
    chains: Chains
    scores: float = 1.0  # standard deviation of the scores of a start from the prior
    judged: bool = True  # averages are not judged below the transition, where they depend on the start


def _often(num_steps: int, seconds: float, every: int = 1_024, **settings: Any) -> Chains:
    """Return chains that measure the gradient variance often, as those from the prior must."""
    settings |= {"refresh_every": every, "max_refresh_interval": every, "warmup_refreshes": 7}
    return Chains(num_steps, 512, seconds, settings)


def _small(num_steps: int, seconds: float) -> Chains:
    return chains(num_steps, 100, seconds, refresh_every=1_600, warmup_refreshes=4)


SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        "hidden_units": 5_000,
        "phases": (
            Phase("3e-7", 3e-7, "prior", _often(20_480, 60), 0.55),
            Phase("2e-7", 2e-7, "prior", _often(20_480, 30), 0.75),
            Phase("1e-6", 1e-6, "prior", _often(30_720, 40), 0.2),
            Phase("3e-7 from random weights", 3e-7, "random", chains(6_000, 500, 30, refresh_every=4_000)),
            Phase("1e-7 from random weights", 1e-7, "random", chains(50_000, 500, 90, refresh_every=4_000), 1.0, False),
            Phase("Adam", 0.0, "random", chains(10**6, 1_000, 40, batch_size=1_024, learning_rate=3e-4)),
            Phase("Adam on all", 0.0, "random", chains(10**6, 1_000, 30, batch_size=6_288, learning_rate=1e-3)),
            Phase("1e-7 from Adam", 1e-7, "Adam on all", _often(12_288, 15), judged=False),
            Phase("1e-5", 1e-5, "3e-7 from random weights", _often(8_192, 15)),
            Phase("1e-4", 1e-4, "1e-5", _often(8_192, 20, 256, temperature_ratio=0.003, mass_floor=0.1)),
        ),
        "measuring": {"observe_examples": 150_000, "chunk_size": 25_000},
        "start_steps": 4_000,  # steps of Adam after which a random start must have no dead class
        "flat": 0.001,  # largest accepted rise of the test error after its minimum at the intermediate temperature
        "gap": 0.003,  # largest accepted difference of that test error from the one of Adam, stopped early
        "overfitting": 0.003,  # smallest accepted rise of the test error at the lowest temperature and with Adam
        "seed": 0,
    },
    "smoke": {
        "hidden_units": 50,
        "phases": (
            Phase("3e-5 from random weights", 3e-5, "random", _small(6_000, 60)),
            Phase("6e-5", 6e-5, "prior", _small(3_000, 30)),
            Phase("1e-4", 1e-4, "prior", _small(3_000, 30)),
            Phase("Adam", 0.0, "random", chains(20_000, 500, 40, learning_rate=1e-3)),
            Phase("1e-6 from Adam", 1e-6, "Adam", _small(3_000, 30), judged=False),
        ),
        "measuring": {"observe_examples": 10_000},
        **{"start_steps": 2_000, "flat": 0.01, "gap": 0.015, "overfitting": 0.003, "seed": 0},
    },
}


class Outcome(NamedTuple):
    """One phase with its trace and averages."""

    phase: Phase
    trace: xr.Dataset  # dimensions chain (only one) and draw
    averages: dict[str, Average]  # averages over the second half; empty for Adam
    variances: np.ndarray  # mean gradient variance of each layer over the second half

    @property
    def errors(self) -> np.ndarray:
        """Test error along the chain."""
        return self.trace["test_error"].values[0]

    @property
    def usable(self) -> bool:
        """Whether the chain stayed finite and no class is dead at the end."""
        return bool(np.isfinite(self.errors[-1])) and not self.trace["dead_class"].isel(draw=-1).any()


def reproduce(settings: Mapping[str, Any], out: Path) -> Iterator[Stage]:
    """Run the phases one after the other."""
    task, seed = spin_task(settings["hidden_units"]), settings["seed"]
    ends = {"random": task.starts(settings["start_steps"], seed=seed, untrained=True)}
    sizes = np.array([trees.num_weights(layer) for layer in trees.layers(ends["random"]).values()])
    num_train = round(0.82 * task.train.num_examples)
    held_out = Dataset(task.train.inputs[num_train:], task.train.targets[num_train:])
    outcomes: list[Outcome] = []
    record: dict[str, Any] = {**settings, "num_weights": task.num_weights, "measured": {}}
    for index, phase in enumerate(settings["phases"]):
        options: dict[str, Any] = {**settings["measuring"], "test": task.test, "key": seed + index}
        sampler: Any = adam
        chosen = task
        if phase.temperature > 0:
            sampler, options["temperatures"] = pseudo_langevin, [phase.temperature]
        elif phase.name == "Adam":  # stopped early
            sampler = partial(adam, validation=held_out, validate_every=phase.chains.record_every)
            chosen = replace(task, train=task.train.head(num_train))
        if phase.start == "prior":
            ends["prior"] = prior_start(task, phase.temperature, scores=phase.scores, seed=seed)
        result = phase.chains.sample(sampler, chosen, ends[phase.start], **options)
        ends[phase.name], trace = result.weights, result.trace.isel(temperature=0)
        averages: dict[str, Average] = {}
        variances = np.array([])
        if phase.temperature > 0:
            names = ("loss", "squared_norm", "error", "test_error")
            averages = {name: average(trace[name].values, burn_in=0.5) for name in names}
            variances = kept(trace)["gradient_variance"].mean(("chain", "draw")).values
            first_two = float(np.average(variances[:2], weights=sizes[:2]))
            averages["gradient_variance"] = Average(first_two, np.nan, np.nan)  # constant between measurements
            if phase.start != "random":
                keep_end(out, task, phase.temperature, result.weights)
        outcomes.append(Outcome(phase, trace, averages, variances))
        curves = {name: trace[name].values for name in ("step", "test_error", "loss", "squared_norm")}
        record["measured"][phase.name] = summary(result) | curves
        yield rows_of(outcomes, settings, task.num_weights), draw(outcomes, task.num_weights), record


def equilibria_of(outcomes: list[Outcome]) -> dict[float, Outcome]:
    """Return outcomes by temperature, cold to hot; those from random weights only where there is no other."""
    sampled = [o for o in outcomes if o.phase.temperature > 0]
    found = {o.phase.temperature: o for o in sorted(sampled, key=lambda o: o.phase.start != "random")}
    return {temperature: found[temperature] for temperature in sorted(found)}


def curves_of(outcomes: list[Outcome]) -> list[Outcome]:
    """Return the chains from random weights, hot to cold."""
    found = [o for o in outcomes if o.phase.start == "random" and o.phase.temperature > 0]
    return sorted(found, key=lambda o: -o.phase.temperature)


def rows_of(outcomes: list[Outcome], settings: Mapping[str, Any], num_weights: int) -> list[Row]:
    """Return the rows on averages, the transition, overfitting, and the order parameter."""
    rows: list[Row] = []
    published = partial(published_value, "generalization", num_weights, "pL")
    limits = {"loss": (0.03, True), "squared_norm": (0.03, True), "test_error": (0.002, False)}
    equilibria, curves = equilibria_of(outcomes), curves_of(outcomes)
    for temperature, outcome in equilibria.items():
        for name, measured in outcome.averages.items():
            known = published(temperature, name)
            tolerance, relative = (None, False)
            if outcome.phase.judged and known is not None:
                tolerance, relative = limits.get(name, (None, False))
            quantity = f"{name} at T = {outcome.phase.name}"
            rows.append(row(quantity, measured, published=known, tolerance=tolerance, relative=relative))
    levels = list(equilibria)[:2]
    if len(levels) == 2 and not equilibria[levels[0]].phase.judged:
        low, high = (published(t, "loss") for t in levels)
        known, where = high - low if high and low else None, f"from T = {levels[0]:g} to {levels[1]:g}"
        jump, drop = (np.diff([equilibria[t].averages[n].mean for t in levels])[0] for n in ("loss", "test_error"))
        rows.append(
            row(f"jump of the loss {where}", jump, published=known, tolerance=0.5, relative=True, at_least=0.02)
        )
        rows.append(row(f"drop of the test error {where}", -drop, at_least=0.0))
    numbers = published_numbers()["generalization"]
    numbers = numbers if numbers["num_weights"] == num_weights else {}
    for index, outcome in enumerate(curves):
        name, errors = outcome.phase.name, dict(zip(outcome.trace["step"].values.tolist(), outcome.errors, strict=True))
        for step, known in numbers.get(f"from_random_weights_at_{name.split()[0]}", {"rows": []})["rows"]:
            if step <= outcome.phase.chains.num_steps:  # a point that was not reached is NaN and does not pass
                quantity, tolerance = f"test error after {step} steps, T = {name}", None if index == 0 else 0.004
                rows.append(row(quantity, errors.get(step, np.nan), published=known, tolerance=tolerance))
        limit: dict[str, Any] = {"tolerance": settings["flat"]} if index == 0 else {"at_least": settings["overfitting"]}
        rows.append(row(f"rise of the test error after its minimum, T = {name}", rise(outcome.errors), **limit))
    trained = [o for o in outcomes if o.phase.name == "Adam"]
    if trained:
        best, found = adam_rows(trained[0].trace, numbers, 0.002, settings["overfitting"])
        rows += found
        if curves:
            quantity = f"test error at T = {curves[0].phase.name} minus that of Adam, stopped early"
            rows.append(row(quantity, curves[0].averages["test_error"].mean - best.mean, tolerance=settings["gap"]))
    return rows + _order([o for o in equilibria.values() if o.usable], num_weights)


def _order(usable: list[Outcome], num_weights: int) -> list[Row]:
    """Return the rows on the gradient variance of the first two layers as an order parameter of generalization."""

    def compare(temperatures: Any, errors: Any, variances: Any) -> tuple[float, float]:
        apart = np.log10(temperatures[np.argmin(variances)] / temperatures[np.argmin(errors)])
        return float(stats.spearmanr(errors, variances).statistic), float(apart)

    if len(usable) < 3:
        return []
    names, table = ("test_error", "gradient_variance"), published_table("generalization", num_weights).get("pL")
    measured = ([o.averages[name].mean for o in usable] for name in names)
    correlation, apart = compare([o.phase.temperature for o in usable], *measured)
    known = (None, None) if table is None else compare(table.temperatures, *(table.values[name] for name in names))
    # In a small network the variance goes on falling where the test error rises again: the first row is not judged.
    quantity = "rank correlation of test error and gradient variance over the temperatures"
    first = row(quantity, correlation, published=known[0], at_least=None if table is None else 0.5)
    quantity = "log10 of T at the lowest gradient variance over T at the lowest test error"
    return [first, row(quantity, apart, published=known[1], tolerance=0.7, target=0.0)]


def draw(outcomes: list[Outcome], num_weights: int) -> Figure:
    """Draw Fig. 5 with its inset on the left and A.5, layer by layer, on the right, of the chains that are usable."""
    usable = [o for o in outcomes if o.usable]
    equilibria, table = equilibria_of(usable), published_table("generalization", num_weights).get("pL")
    figure = Figure(figsize=(12, 9), layout="constrained")
    panels = figure.subplots(3, 2)
    for axes, name in zip(panels[:, 0], ("test_error", "loss", "gradient_variance"), strict=True):
        values = np.array([o.averages[name] for o in equilibria.values()]).reshape(-1, 3)
        axes.errorbar(list(equilibria), values[:, 0], np.nan_to_num(values[:, 1]), fmt="o-", color=COLORS[0])
        if table is not None:
            axes.plot(table.temperatures, table.values[name], "D", mfc="none", color=COLORS[1], label="published")
            axes.legend(frameon=False, loc="lower right")
        axes.set(xscale="log", ylabel=name.replace("_", " "), yscale="log" if "variance" in name else "linear")
    for index, axes in enumerate(panels[:, 1]):
        axes.plot(list(equilibria), [o.variances[index] for o in equilibria.values()], "o-", color=COLORS[2])
        axes.set(xscale="log", yscale="log", ylabel=f"gradient variance, layer {index + 1}", xlabel="temperature T")
    inset = panels[0, 0].inset_axes((0.25, 0.45, 0.45, 0.5), xscale="log", xlabel="steps from random weights")
    for color, outcome in zip(
        COLORS, [*curves_of(usable), *(o for o in usable if o.phase.name == "Adam")], strict=False
    ):
        inset.plot(outcome.trace["step"], outcome.errors, color=color, label=outcome.phase.name)
        inset.set_ylim(None, outcome.errors.min() + 0.05)
        inset.legend(frameon=False, fontsize=7)
    return figure
