"""Fig. 5 and A.5: test error, loss and gradient variance against temperature, and sampling compared with Adam.

One chain at a time, since a million weights fill the device, from random weights as in the paper; hot chains continue
from colder ones, as they lose classes otherwise. Below the transition averages depend on the start: at T = 1e-7 a chain
from random weights passes the best test error and then overfits as Adam does, for more than a million steps, and one
from overfitted weights is elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from .results import COLORS, Row, adam_rows, draw_legend, published_average, published_numbers, rise, row
from .spins import OFTEN, Chains, Phase, chains, measure_phases, num_weights, spin_task

_often: Callable[..., Chains] = partial(chains, **OFTEN)
_hot: Callable[..., Chains] = partial(
    _often, refresh_every=256, max_refresh_interval=256, temperature_ratio=0.003, mass_floor=0.1
)
_small = partial(chains, refresh_every=1_600, warmup_refreshes=4)

SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        "hidden_units": 5_000,
        "phases": (
            Phase("1e-7 from random weights", (1e-7,), chains(50_000, 500, 90)),  # the paper's schedule
            Phase("3e-7 from random weights", (3e-7,), chains(10_000, 500, 40)),
            Phase("3e-7", (3e-7,), _often(61_440, 512, 120)),
            Phase("2e-7", (2e-7,), _often(20_480, 512, 60), "3e-7"),
            Phase("1e-6", (1e-6,), _often(10_240, 512, 40), "3e-7"),
            Phase("1e-5", (1e-5,), _often(8_192, 512, 30), "1e-6"),
            Phase("1e-4", (1e-4,), _hot(10_240, 512, 40), "1e-5"),
            Phase("1e-3", (1e-3,), _hot(10_240, 512, 40), "1e-4"),
            Phase("Adam", (), chains(10**6, 1_000, 25, batch_size=1_024, learning_rate=3e-4)),
            Phase("1e-4, balanced", (1e-4,), chains(8_192, 512, 40, batch_size=50_305), "1e-5"),
            Phase("3e-7, balanced", (3e-7,), chains(8_192, 512, 40, batch_size=50_305), "3e-7"),
            Phase("Adam on all", (), chains(10**6, 1_000, 25, batch_size=6_288, learning_rate=1e-3)),
            Phase("1e-7 from Adam", (1e-7,), _often(12_288, 512, 30), "Adam on all"),
        ),
        "start_steps": 4_000,  # steps of Adam after which a random start must have no dead class
        "num_starts": 3,  # starts to try until a chain keeps every class
        "flat": 0.001,  # largest accepted rise of the test error after its minimum at the intermediate temperature
        "gap": 0.003,  # largest accepted difference of that test error from the best of Adam
        "overfitting": 0.003,  # smallest accepted rise of the test error at the lowest temperature and with Adam
        "seed": 0,
    },
    "smoke": {
        "hidden_units": 50,
        "phases": (
            Phase("3e-5 from random weights", (3e-5,), _small(6_000, 100, 60)),
            Phase("6e-5", (6e-5,), _small(3_000, 100, 30)),
            Phase("1e-4", (1e-4,), _small(3_000, 100, 30)),
            Phase("Adam", (), chains(20_000, 500, 40, learning_rate=1e-3)),
            Phase("1e-6 from Adam", (1e-6,), _small(3_000, 100, 30), "Adam"),
            Phase("6e-5, balanced", (6e-5,), chains(2_000, 100, 60)),
        ),
        **{"start_steps": 2_000, "num_starts": 2, "flat": 0.01, "gap": 0.015, "overfitting": 0.003, "seed": 0},
    },
}


def measure(settings: Mapping[str, Any], parts: Any, out: Path) -> None:
    """Run the phases one after the other; a chain that loses a class is run again from another start."""
    phases, units = settings["phases"], settings["hidden_units"]
    measure_phases(phases, settings, parts, out, lambda _: spin_task(units), together=False)


def rows(found: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Row]:
    """Return the rows on averages, the transition, overfitting, and the order parameter."""
    size = num_weights(settings["hidden_units"])
    published = partial(published_average, size, "pL", sections=["generalization"])
    table = published_numbers("generalization", size)
    phases, made = [p for p in settings["phases"] if p.name in found], list[Row]()
    for phase in (p for p in phases if p.temperatures):
        reason, averages = _reason(phase, phases, found), found[phase.name]["averages"][0]
        limits = {"loss": 0.03, "squared_norm": 0.03, "test_error": 0.002, "error": None, "gradient_variance": None}
        for name, limit in limits.items():
            options: dict[str, Any] = {"published": published(phase.temperatures[0], name), "tolerance": limit}
            options |= {"relative": name != "test_error", "reason": reason}
            made.append(row(f"{name} at T = {phase.name}", averages[name], **options))
    equilibria = equilibria_of(found, settings)
    if len(levels := list(equilibria)[:2]) == 2:
        where = f"from T = {levels[0]:g} to {levels[1]:g}"
        jump, rising = (np.diff(_means(equilibria, name))[0] for name in ("loss", "test_error"))
        options = {"published": published(levels[1], "loss") - published(levels[0], "loss"), "at_least": 0.02}
        made.append(row(f"jump of the loss {where}", jump, tolerance=0.5, relative=True, **options))
        made.append(row(f"drop of the test error {where}", -rising, at_least=0.0))
    curves = [p for p in phases if "random" in p.name]
    flat = max((p.temperatures for p in settings["phases"] if "random" in p.name), default=())
    for phase in curves:
        below, errors = phase.temperatures < flat, found[phase.name]["test_error"][0][0]  # below the transition
        at = dict(zip(found[phase.name]["step"], errors, strict=True))
        for step, known in table.get(f"from_random_weights_at_{phase.name.split()[0]}", []):
            if step <= phase.chains.num_steps:  # a point that was not reached is NaN and does not pass
                quantity, limit = f"test error after {step} steps, T = {phase.name}", 0.004 if below else None
                made.append(row(quantity, at.get(step, math.nan), published=known, tolerance=limit))
        options = {"at_least": settings["overfitting"]} if below else {"tolerance": settings["flat"]}
        made.append(row(f"rise of the test error after its minimum, T = {phase.name}", rise(errors), **options))
    trained = adam_rows(found, table, 0.002, settings["overfitting"])
    made += trained
    for phase in (p for p in curves if trained and p.temperatures == flat):
        gap = found[phase.name]["averages"][0]["test_error"].mean - trained[0].measured
        quantity = f"test error at T = {phase.name} minus the best of Adam"
        made.append(row(quantity, gap, tolerance=settings["gap"], reason=_reason(phase, phases, found)))
    return made + _order(equilibria, table.get("pL"))


def _means(equilibria: Mapping[float, Any], name: str) -> list[float]:
    return [value["averages"][0][name].mean for value in equilibria.values()]


def _reason(phase: Phase, phases: list[Phase], found: Mapping[str, Any]) -> str | None:
    """Return why averages may differ from the published ones, as far as other phases show it."""
    if found[phase.name]["dead"].any():
        if phase.start in found and found[phase.start]["dead"].any():
            return f"The chain continues from {phase.start}, which lost a class."
        return f"The chain lost a class from each of {found[phase.name]['attempts']} starts: the ReLU on the scores."
    steps = found[phase.name]["steps"]
    if "random" in phase.name and phase.temperatures[0] < 1.5e-7 and steps < 1_140_000:
        return f"The chain has {steps} steps, and the published average at this temperature is that after 1 140 000."
    same = [p for p in phases if p.temperatures == phase.temperatures and not found[p.name]["dead"].any()]
    for name, label in {"loss": "the loss", "squared_norm": "|w|²"}.items():
        values = {p.name: found[p.name]["averages"][0][name].mean for p in same}
        if max(values.values()) > 1.05 * min(values.values()):
            text = " and ".join(f"{value:.5g} ({where})" for where, value in values.items())
            return f"The average depends on the start and the length of the chain: {label} is {text}."
    return None


def equilibria_of(found: Mapping[str, Any], settings: Mapping[str, Any], sampler: str = "pL") -> dict[float, Any]:
    """Return the chains of a sampler that kept every class, from cold to hot; chains of averages come first."""
    sampled = [(p, found[p.name]) for p in settings["phases"] if p.name in found and p.sampler == sampler]
    alive = [(p, v) for p, v in sampled if not v["dead"].any() and math.isfinite(v["averages"][0]["loss"].mean)]
    chosen = {p.temperatures[0]: value for p, value in sorted(alive, key=lambda pair: "random" not in pair[0].name)}
    return dict(sorted(chosen.items()))


def _order(equilibria: Mapping[float, Any], published: Mapping[str, Any] | None) -> list[Row]:
    """Return the rows on the gradient variance of the first two layers as an order parameter of generalization."""

    def compare(temperatures: list[float], errors: list[float], variances: list[float]) -> tuple[float, float]:
        apart = np.log10(temperatures[int(np.argmin(variances))] / temperatures[int(np.argmin(errors))])
        return float(stats.spearmanr(errors, variances).statistic), float(apart)

    if len(equilibria) < 3:
        return []
    names, known = ("test_error", "gradient_variance"), None
    correlation, apart = compare(list(equilibria), *(_means(equilibria, name) for name in names))
    if published is not None:
        known = compare(list(map(float, published)), *([v[name] for v in published.values()] for name in names))
    # In a small network the variance goes on falling where the test error rises again: the first row is not judged.
    quantity = "rank correlation of test error and gradient variance over the temperatures"
    first = row(quantity, correlation, published=known and known[0], at_least=None if published is None else 0.5)
    quantity = "log10 of T at the lowest gradient variance over T at the lowest test error"
    return [first, row(quantity, apart, published=known and known[1], tolerance=0.7)]


def draw(found: Mapping[str, Any], settings: Mapping[str, Any]) -> Figure:
    """Draw Fig. 5 and A.5 against temperature, and the test error along chains from several starts."""
    published = published_numbers("generalization", num_weights(settings["hidden_units"])).get("pL", {})
    equilibria, balanced = (equilibria_of(found, settings, sampler) for sampler in ("pL", "balanced"))
    figure = Figure(figsize=(12, 6.5), layout="constrained")
    panels = figure.subplots(2, 3)
    for axes, name in zip(panels.flat, ("test_error", "loss", "squared_norm", "gradient_variance"), strict=False):
        axes.plot(list(equilibria), _means(equilibria, name), "o-", ms=4, color=COLORS[0], label="pL")
        label = "balanced" if balanced else None
        axes.plot(list(balanced), _means(balanced, name), "s", ms=4, color=COLORS[2], label=label)
        if published:
            known = [averages[name] for averages in published.values()]
            axes.plot(list(map(float, published)), known, "D", mfc="none", color="k", ms=8, label="published")
        scale = "linear" if name == "test_error" else "log"
        axes.set(xscale="log", yscale=scale, ylabel=name.replace("_", " "), xlabel="temperature T")
    for index in range(3):
        layer, label = _means(equilibria, f"gradient_variance_{index + 1}"), f"variance, layer {index + 1}"
        panels[1, 1].plot(list(equilibria), layer, "o-", ms=4, color=COLORS[3 + index], label=label)
    panels[1, 1].set(xscale="log", yscale="log", ylabel="gradient variance by layer", xlabel="temperature T")
    alive = [p for p in settings["phases"] if p.name in found and not found[p.name]["dead"].any()]
    curves = {p.name: found[p.name] for p in alive if not p.temperatures or "from" in p.name}
    for color, (name, value) in zip(COLORS[1:], curves.items(), strict=False):
        panels[1, 2].plot(value["step"], value["test_error"][0][0], lw=1.2, color=color, label=f"chain: {name}")
    panels[1, 2].set(xscale="log", ylabel="test error along the chain", xlabel="steps")
    if curves:
        errors = np.concatenate([value["test_error"].ravel() for value in curves.values()])
        lowest, highest = np.nanmin(errors), np.nanmax(errors)
        panels[1, 2].set_ylim(lowest - 0.002, min(lowest + 0.05, highest + 0.002))
    draw_legend(figure)
    return figure
