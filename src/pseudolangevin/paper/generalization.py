"""Fig. 5 and A.5: test error, loss and gradient variance against temperature, and sampling compared with Adam.

One chain at a time, since a million weights fill the device, from random weights as in the paper; hot chains continue
from colder ones, as they lose classes otherwise. Below the transition averages depend on the start: at T = 1e-7 a chain
from random weights passes the best test error and then overfits as Adam does, for more than a million steps, and one
from overfitted weights is elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from .. import Dataset, adam
from .results import (
    COLORS,
    Row,
    adam_rows,
    draw_legend,
    numbers,
    published_numbers,
    published_table,
    published_value,
    read_average,
    rise,
    row,
)
from .spins import SAMPLERS, Chains, Task, chains, described, end_of, keep, often, spin_task, stored


class Phase(NamedTuple):
    """One chain."""

    name: str
    temperature: float  # 0 for training by Adam
    chains: Chains
    start: str = "random"  # weights, or the phase that is continued

    @property
    def sampler(self) -> str:
        """Sampler, by the name of the phase."""
        return next((label for label in ("Adam", "balanced") if label in self.name.partition(" from")[0]), "pL")


_hot = partial(often, refresh=256, temperature_ratio=0.003, mass_floor=0.1)
_small = partial(chains, refresh_every=1_600, warmup_refreshes=4)

SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        "hidden_units": 5_000,
        "phases": (
            Phase("1e-7 from random weights", 1e-7, chains(50_000, 500, 90)),  # the paper's schedule
            Phase("3e-7 from random weights", 3e-7, chains(10_000, 500, 20)),
            Phase("3e-7", 3e-7, often(12_288, 512, 25)),
            Phase("2e-7", 2e-7, often(20_480, 512, 40), "3e-7"),
            Phase("1e-6", 1e-6, often(10_240, 512, 20)),
            Phase("1e-5", 1e-5, often(8_192, 512, 15), "1e-6"),
            Phase("1e-4", 1e-4, _hot(10_240, 512, 20), "1e-5"),
            Phase("1e-3", 1e-3, _hot(10_240, 512, 20), "1e-4"),
            Phase("Adam", 0.0, chains(10**6, 1_000, 25, batch_size=1_024, learning_rate=3e-4)),
            Phase("1e-4, balanced", 1e-4, chains(8_192, 512, 20, batch_size=50_305), "1e-5"),
            Phase("3e-7, balanced", 3e-7, chains(8_192, 512, 20, batch_size=50_305), "3e-7"),
            Phase("Adam on all", 0.0, chains(10**6, 1_000, 25, batch_size=6_288, learning_rate=1e-3)),
            Phase("1e-7 from Adam", 1e-7, often(12_288, 512, 15), "Adam on all"),
        ),
        "start_steps": 4_000,  # steps of Adam after which a random start must have no dead class
        "num_starts": 3,  # starts to try until a chain keeps every class
        "flat": 0.001,  # largest accepted rise of the test error after its minimum at the intermediate temperature
        "gap": 0.003,  # largest accepted difference of that test error from the one of Adam, stopped early
        "overfitting": 0.003,  # smallest accepted rise of the test error at the lowest temperature and with Adam
        "seed": 0,
    },
    "smoke": {
        "hidden_units": 50,
        "phases": (
            Phase("3e-5 from random weights", 3e-5, _small(6_000, 100, 60)),
            Phase("6e-5", 6e-5, _small(3_000, 100, 30)),
            Phase("1e-4", 1e-4, _small(3_000, 100, 30)),
            Phase("Adam", 0.0, chains(20_000, 500, 40, learning_rate=1e-3)),
            Phase("1e-6 from Adam", 1e-6, _small(3_000, 100, 30), "Adam"),
            Phase("6e-5, balanced", 6e-5, chains(2_000, 100, 60)),
        ),
        **{"start_steps": 2_000, "num_starts": 2, "flat": 0.01, "gap": 0.015, "overfitting": 0.003, "seed": 0},
    },
}


def measure(settings: Mapping[str, Any], parts: Any, out: Path) -> None:
    """Run the phases one after the other; a chain that loses a class is run again from another start."""

    def end(task: Task, name: str) -> Path:
        return out / f"phase-{task.num_weights}-{name.replace(' ', '-')}.npz"

    def run(phase: Phase) -> dict[str, Any]:
        chosen = task = spin_task(settings["hidden_units"])
        sampler: Any = SAMPLERS[phase.sampler]
        options: dict[str, Any] = {**task.measuring, "test": task.test.head(200_000)}
        if phase.temperature > 0:
            options["temperatures"] = [phase.temperature]
        elif phase.name == "Adam":  # stopped early
            num_train = round(0.82 * task.train.num_examples)
            held_out = Dataset(task.train.inputs[num_train:], task.train.targets[num_train:])
            sampler = partial(adam, validation=held_out, validate_every=phase.chains.record_every)
            chosen = replace(task, train=task.train.head(num_train))
        random = {"num_starts": settings["num_starts"], "seed": settings["seed"], "untrained": True}
        starts = stored(end(task, "random"), task, lambda: task.starts(settings["start_steps"], **random))
        if phase.start != "random":
            starts = stored(end(task, phase.start), task)
        for attempt in range(jax.tree.leaves(starts)[0].shape[1]):
            start = jax.tree.map(lambda w, i=attempt: w[:, i : i + 1], starts)
            result = phase.chains.sample(sampler, chosen, start, key=settings["seed"] + attempt, **options)
            last = result.trace.isel(draw=-1)
            if np.isfinite(last["test_error"]).all() and not last["dead_class"].any():
                break
        keep(end(task, phase.name), result.weights)
        if phase.name == f"{phase.temperature:g}".replace("e-0", "e-"):
            keep(end_of(out, task, phase.temperature), result.weights)
        return described(result, curves=("test_error",)) | {"attempts": attempt + 1}

    for phase in settings["phases"]:
        if phase.start in ("random", *parts.found):
            parts.measure(phase.name, phase.chains.max_seconds + 5, partial(run, phase))


def rows(found: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Row]:
    """Return the rows on averages, the transition, overfitting, and the order parameter."""
    made, num_weights = list[Row](), 201 * settings["hidden_units"] + 1_110
    published = partial(published_value, "generalization", num_weights, "pL")
    phases = [p for p in settings["phases"] if p.name in found]
    for phase in (p for p in phases if p.temperature > 0):
        reason = _reason(phase, phases, found)
        limits: dict[str, Any] = {"loss": (0.03, True), "squared_norm": (0.03, True), "test_error": (0.002, False)}
        for name in (*limits, "error", "gradient_variance"):
            known = published(phase.temperature, name)
            tolerance, relative = limits.get(name, (None, False)) if known is not None else (None, False)
            options: dict[str, Any] = {"published": known, "tolerance": tolerance, "relative": relative}
            measured = read_average(found[phase.name]["averages"][0][name])
            made.append(row(f"{name} at T = {phase.name}", measured, reason=reason, **options))
    equilibria = equilibria_of(found, settings)
    if len(levels := list(equilibria)[:2]) == 2:
        where, (low, high) = f"from T = {levels[0]:g} to {levels[1]:g}", (published(t, "loss") for t in levels)
        known = high - low if high and low else None
        jump, drop = (np.diff([_mean(equilibria[t], n) for t in levels])[0] for n in ("loss", "test_error"))
        options = {"published": known, "tolerance": 0.5, "relative": True, "at_least": 0.02}
        made.append(row(f"jump of the loss {where}", jump, **options))
        made.append(row(f"drop of the test error {where}", -drop, at_least=0.0))
    table = published_numbers()["generalization"]
    table = table if table["num_weights"] == num_weights else {}
    flat = max((p.temperature for p in settings["phases"] if "random" in p.name), default=0.0)
    curves = [p for p in phases if "random" in p.name]
    for phase in curves:
        below = phase.temperature < flat  # the transition
        errors = numbers(found[phase.name]["test_error"][0][0])
        at = dict(zip(found[phase.name]["step"], errors, strict=True))
        for step, known in table.get(f"from_random_weights_at_{phase.name.split()[0]}", {"rows": []})["rows"]:
            if step <= phase.chains.num_steps:  # a point that was not reached is NaN and does not pass
                quantity, tolerance = f"test error after {step} steps, T = {phase.name}", 0.004 if below else None
                made.append(row(quantity, at.get(step, math.nan), published=known, tolerance=tolerance))
        limit: dict[str, Any] = {"at_least": settings["overfitting"]} if below else {"tolerance": settings["flat"]}
        made.append(row(f"rise of the test error after its minimum, T = {phase.name}", rise(errors), **limit))
    if "Adam" in found:
        best, rows_of_adam = adam_rows(found["Adam"], table, 0.002, settings["overfitting"])
        made += rows_of_adam
        for phase in (p for p in curves if p.temperature == flat):
            gap = _mean(found[phase.name], "test_error") - best.mean
            quantity = f"test error at T = {phase.name} minus that of Adam, stopped early"
            made.append(row(quantity, gap, tolerance=settings["gap"]))
    return made + _order(equilibria, num_weights)


def _mean(value: Mapping[str, Any], name: str) -> float:
    return read_average(value["averages"][0][name]).mean


def _reason(phase: Phase, phases: list[Phase], found: Mapping[str, Any]) -> str | None:
    """Return why averages may differ from the published ones, as far as other phases show it."""
    if np.any(found[phase.name]["dead"]):
        return f"The chain lost a class from each of {found[phase.name]['attempts']} starts: the ReLU on the scores."
    steps = found[phase.name]["steps"]
    if "random" in phase.name and phase.temperature < 1.5e-7 and steps < 1_140_000:
        return f"The chain has {steps} steps, and the published average at this temperature is that after 1 140 000."
    same = [p.name for p in phases if p.temperature == phase.temperature]
    losses = [_mean(found[name], "loss") for name in same]
    if max(losses) > 1.05 * min(losses):
        text = " and ".join(f"{loss:.3f} ({name})" for name, loss in zip(same, losses, strict=True))
        return f"The average depends on the start, in {steps} steps: the loss is {text}."
    return None


def equilibria_of(found: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[float, Any]:
    """Return, by temperature from cold to hot, the chains of pL that kept every class; chains of averages first."""
    sampled = [p for p in settings["phases"] if p.name in found and p.sampler == "pL"]
    alive = [p for p in sampled if not np.any(found[p.name]["dead"]) and math.isfinite(_mean(found[p.name], "loss"))]
    chosen = {p.temperature: found[p.name] for p in sorted(alive, key=lambda p: "random" not in p.name)}
    return {temperature: chosen[temperature] for temperature in sorted(chosen)}


def _order(equilibria: Mapping[float, Any], num_weights: int) -> list[Row]:
    """Return the rows on the gradient variance of the first two layers as an order parameter of generalization."""

    def compare(temperatures: Any, errors: Any, variances: Any) -> tuple[float, float]:
        apart = np.log10(temperatures[np.argmin(variances)] / temperatures[np.argmin(errors)])
        return float(stats.spearmanr(errors, variances).statistic), float(apart)

    if len(equilibria) < 3:
        return []
    names, table = ("test_error", "gradient_variance"), published_table("generalization", num_weights).get("pL")
    measured = ([_mean(value, name) for value in equilibria.values()] for name in names)
    correlation, apart = compare(list(equilibria), *measured)
    known = (None, None) if table is None else compare(table.temperatures, *(table.values[name] for name in names))
    # In a small network the variance goes on falling where the test error rises again: the first row is not judged.
    quantity = "rank correlation of test error and gradient variance over the temperatures"
    first = row(quantity, correlation, published=known[0], at_least=None if table is None else 0.5)
    quantity = "log10 of T at the lowest gradient variance over T at the lowest test error"
    return [first, row(quantity, apart, published=known[1], tolerance=0.7)]


def draw(found: Mapping[str, Any], settings: Mapping[str, Any]) -> Figure:
    """Draw Fig. 5 and A.5 against temperature, and the test error along chains from several starts."""
    num_weights = 201 * settings["hidden_units"] + 1_110
    equilibria, table = equilibria_of(found, settings), published_table("generalization", num_weights).get("pL")
    alive = [p for p in settings["phases"] if p.name in found and not np.any(found[p.name]["dead"])]
    balanced = {p.temperature: found[p.name] for p in alive if p.sampler == "balanced"}
    figure = Figure(figsize=(12, 6.5), layout="constrained")
    panels = figure.subplots(2, 3)
    for axes, name in zip(panels.flat, ("test_error", "loss", "squared_norm", "gradient_variance"), strict=False):
        for label, style, values in (("pL", "o-", equilibria), ("balanced", "s", balanced)):
            color = {"pL": COLORS[0], "balanced": COLORS[2]}[label]
            if values:
                axes.plot(
                    list(values), [_mean(v, name) for v in values.values()], style, ms=4, color=color, label=label
                )
        if table is not None:
            axes.plot(table.temperatures, table.values[name], "D", mfc="none", color="k", ms=8, label="published")
        scale = "linear" if name == "test_error" else "log"
        axes.set(xscale="log", yscale=scale, ylabel=name.replace("_", " "), xlabel="temperature T")
    for index in range(3):
        layer = [_mean(value, f"gradient_variance_{index + 1}") for value in equilibria.values()]
        label = f"variance, layer {index + 1}"
        panels[1, 1].plot(list(equilibria), layer, "o-", ms=4, color=COLORS[3 + index], label=label)
    panels[1, 1].set(xscale="log", yscale="log", ylabel="gradient variance by layer", xlabel="temperature T")
    curves = [p for p in alive if p.temperature == 0 or "from" in p.name]
    for color, phase in zip(COLORS[1:], curves, strict=False):
        errors = numbers(found[phase.name]["test_error"][0][0])
        panels[1, 2].plot(found[phase.name]["step"], errors, lw=1.2, color=color, label=f"chain: {phase.name}")
    panels[1, 2].set(xscale="log", ylabel="test error along the chain", xlabel="steps")
    if curves:
        errors = np.concatenate([numbers(found[p.name]["test_error"]).ravel() for p in curves])
        lowest, highest = np.nanmin(errors), np.nanmax(errors)
        panels[1, 2].set_ylim(lowest - 0.002, min(lowest + 0.05, highest + 0.002))
    draw_legend(figure)
    return figure
