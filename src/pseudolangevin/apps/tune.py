"""Find the settings with which the weights move fastest on this machine, within a bias budget (docs/tuning.md).

The displacement per step grows as batch size times temperature ratio, so batch sizes are only timed. The bias depends
on the ratio: it is raised while loss, |w|² and error are within the budget. Masses go as 1/(batch size · ratio): where
light masses make a chain non-finite, a smaller batch takes a larger ratio.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd

from .._trees import Weights, check_interval, check_positive
from ..chains import Run
from ..diagnostics.averages import Average, average, drift, kept
from ..diagnostics.diffusion import MeasuredDiffusion, measure_diffusion
from ..samplers.base import Sampler


@dataclass(frozen=True)
class Tuned:
    """Settings with which the weights move fastest within the bias budget; printable."""

    sampler: Sampler  # recommended, ready to run
    settings: dict[str, Any]  # those of the sampler
    best: dict[str, Any]  # the recommendation as measured; without one within the budget, the smallest ratio
    tried: list[dict[str, Any]]  # all candidates: time, D*/N in 1/s, and biases relative to the first one
    within_budget: bool  # whether all biases of the recommendation are within the budget, and known to that precision
    temperature: float
    bias_budget: float
    notes: list[str]
    seconds: float
    weights: Weights  # equilibrated weights of one chain, a start for further runs

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings, ready for JSON; unknown numbers are None."""
        found = {name: value for name, value in vars(self).items() if name not in ("sampler", "weights")}
        rows = [{n: v._asdict() if isinstance(v, Average) else v for n, v in row.items()} for row in self.tried]
        found |= {"sampler": self.sampler.name, "best": rows[self.tried.index(self.best)], "tried": rows}
        return json.loads(json.dumps(found), parse_constant=lambda _: None)

    def to_toml(self) -> str:
        """Return the recommendation as the [sampler] section of a configuration file."""
        lines = [f"{name} = {json.dumps(value)}" for name, value in self.settings.items() if value is not None]
        return "\n".join(["[sampler]", f'name = "{self.sampler.name}"', *lines])

    def __str__(self) -> str:
        """Return a table of all candidates, the notes and the verdict."""
        table = pd.DataFrame([{n: _text(v) for n, v in row.items()} for row in self.tried]).to_string(index=False)
        settings = "batch size {batch_size}, temperature ratio {temperature_ratio:g}".format(**self.best)
        verdict = f"{'' if self.within_budget else 'NOT '}within {self.bias_budget:.1%} of"
        reference = f"sampling at a temperature ratio of {self.tried[0]['temperature_ratio']:g}"
        found = f"{self.sampler.name} at T = {self.temperature:g}: {settings}, {verdict} {reference}"
        return "\n".join([table, *(f"note: {note}" for note in self.notes), found])


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def tune(
    sampler: Sampler,
    weights: Weights,
    *,
    temperature: float,
    seconds: float = 120.0,
    bias_budget: float = 0.02,
    batch_sizes: Sequence[int] | None = None,
    temperature_ratios: Sequence[float] = (0.01, 0.03, 0.1, 0.3),
    observe_examples: int | None = None,
    key: int = 0,
    report: Callable[[str], None] = lambda line: None,
) -> Tuned:
    """Find the batch size and temperature ratio with the largest D*, diffusion in wall-clock time, on this machine.

    Loss, |w|² and error stay within `bias_budget` of sampling at the smallest ratio. Start from trained weights. Where
    T is far below 1/P nothing equilibrates, and candidates are compared near the start.

    Args:
        sampler: a sampler with `batch_size` and `temperature_ratio`, such as `balanced_langevin(potential, dataset)`;
            settings that are not searched stay. The batch of the friction stays in proportion to the batch size.
        weights, temperature: start of one chain, and T.
        seconds: time for the search, compilation included; a program that is being compiled then is finished.
        bias_budget: largest accepted relative bias of loss, |w|² and error.
        batch_sizes, temperature_ratios: values to try; default: batches of 1, 3, 10, 30 and 100 % of the data set.
        observe_examples: number of examples for loss and error; default: all. Fewer allow more records.
        key: seed.
        report: called with a line of text for every finding, for example `print`.

    Example:
        >>> tuned = pl.tune(pl.balanced_langevin(potential, train), weights, temperature=3e-5)
        >>> result = pl.sample(tuned.sampler, weights, temperatures=[3e-5], num_steps=100_000, key=1)
    """
    check_positive("temperature", temperature)
    check_positive("seconds", seconds)
    check_interval("bias_budget", bias_budget, 0, 1, "0.02 allows 2 %", open_ends=True)
    if not {"batch_size", "temperature_ratio"} <= {f.name for f in fields(sampler)}:
        raise ValueError(f"sampler = {sampler.name} has no temperature_ratio to tune; choose balanced_langevin")
    shares = [max(2, round(share * sampler.dataset.num_examples)) for share in (0.01, 0.03, 0.1, 0.3, 1.0)]
    sizes, ratios = sorted(set(shares if batch_sizes is None else batch_sizes)), sorted(set(temperature_ratios))
    if not sizes or not ratios:
        raise ValueError("batch_sizes or temperature_ratios is empty; pass at least one value of each")
    for size, ratio in product(sizes, ratios):
        _changed(sampler, size, ratio)  # raises where the sampler cannot have these settings
    began, tried = time.perf_counter(), list[dict[str, Any]]()

    def left() -> float:
        return began + seconds - time.perf_counter()

    def measure(size: int, ratio: float, num_left: int) -> MeasuredDiffusion:
        """Run a candidate from the start for its part of the time left; observables take up to a third of it."""
        # The ratio is an array, so that candidates share compiled programs.
        candidate = _changed(sampler, size, jnp.array(ratio))
        run = Run(candidate, temperatures=[temperature], observe_examples=observe_examples)
        memory = round(1 / (1 - getattr(sampler, "momentum_retention", 0.0) ** 2))  # of the momenta, in steps
        lengths = {"every": max(50, memory), "seconds": left() / num_left / 1.5}
        return measure_diffusion(run, run.start(weights, key), observe=True, **lengths)  # type: ignore[arg-type]

    timings = _timed(sampler, weights, temperature, key, sizes, ratios[0], seconds)
    notes = [f"time per step in ms by batch size: {', '.join(f'{n}: {1e3 * t:.4g}' for n, t in timings.items())}"]
    most = max(timings, key=lambda size: size / timings[size])
    sizes = [size for size in timings if size <= most]

    # A larger ratio equilibrates the start sooner; the smallest one then relaxes it, and is the first candidate.
    size = sizes.pop()
    for num_left, ratio in [(len(ratios) + 1, ratios[len(ratios) // 2]), (len(ratios), ratios[0])]:
        measured = measure(size, ratio, num_left)
        if not measured.stopped:
            weights = sampler.position(jax.tree.map(lambda leaf: leaf[0], measured.states))
    if measured.stopped:
        remedy = "lower temperature_ratios, raise mass_floor, or start from trained weights"
        raise ValueError(f"the chain turned non-finite at the smallest temperature ratio, {ratios[0]:g}; {remedy}")
    reference, index = {name: found for name, found in _estimates(measured).items() if found.mean != 0}, 0
    while True:
        row = {"batch_size": size, "temperature_ratio": ratios[index]} | _judged(measured, reference, bias_budget)
        tried.append(row)
        report(", ".join(f"{name} {_text(value)}" for name, value in row.items() if value != ""))
        if measured.stopped and sizes:
            size = sizes.pop()  # masses are heavier for smaller batches
        elif row["within_budget"]:
            index += 1
        else:
            break
        if index == len(ratios) or left() < 0.03 * seconds:
            break
        measured = measure(size, ratios[index], len(ratios) - index)
    if all(row["note"] for row in tried):
        notes.append(f"{seconds:g} s were too short to judge any candidate; give more time")
    best = max((row for row in tried if row["within_budget"]), key=lambda row: row["coefficient"], default=tried[0])
    recommended = _changed(sampler, best["batch_size"], best["temperature_ratio"])
    numbers = (best["within_budget"], temperature, bias_budget, notes, time.perf_counter() - began)
    return Tuned(recommended, recommended.settings, best, tried, *numbers, weights)


def _timed(
    sampler: Sampler, weights: Weights, temperature: float, key: int, sizes: list[int], ratio: float, seconds: float
) -> dict[int, float]:
    """Return the time per step by batch size, of those that a fifth of the time allows."""
    began, states, found = time.perf_counter(), None, dict[int, float]()
    for size in sizes:
        run = Run(_changed(sampler, size, jnp.array(ratio)), temperatures=[temperature])
        # The smallest batch needs the heaviest masses; the other sizes can be timed with them.
        states = states or run.start(weights, key)
        copies = jax.tree.map(jnp.copy, states)
        measured = measure_diffusion(run, copies, every=50, seconds=0.01 * seconds, discard_steps=50)
        found[size] = measured.seconds_per_step
        if time.perf_counter() - began > 0.2 * seconds:
            break
    return found


def _judged(measured: MeasuredDiffusion, reference: Mapping[str, Average], budget: float) -> dict[str, Any]:
    """Return time per step, D*/N and biases of a candidate."""
    estimates, bias = _estimates(measured), dict[str, Average]()
    for name, exact in reference.items():
        mean, error, effective = estimates.get(name, Average(math.nan, math.inf, 0.0))
        error = math.hypot(error, exact.standard_error) / abs(exact.mean)
        bias[f"bias_{name}"] = Average(mean / exact.mean - 1, error, effective)
    settled = all(b.standard_error <= budget for b in bias.values())
    return {
        "seconds_per_step": measured.seconds_per_step,
        "coefficient": measured.coefficient,
        **bias,
        "within_budget": settled and all(abs(b.mean) <= budget for b in bias.values()),
        "note": "turned non-finite" if measured.stopped else "" if settled else "averages not settled",
    }


def _estimates(measured: MeasuredDiffusion) -> dict[str, Average]:
    """Return averages over the last 60 % of the observations; a significant drift is part of the standard error."""
    found = {}
    for name, values in measured.observables.items():
        mean, error, effective = average(values, burn_in=0.4)
        drifts = [drift(chain) for chain in kept(values, 0.4)]
        moved = max(abs(d.change) if abs(d.change) > 3 * d.standard_error else 0.0 for d in drifts)
        known = math.isfinite(error) and all(math.isfinite(d.standard_error) for d in drifts)
        found[name] = Average(mean, math.hypot(error, moved) if known else math.inf, effective if known else 0.0)
    return found


def _changed(sampler: Any, batch_size: int, temperature_ratio: Any) -> Sampler:
    """Return the sampler with other settings; the batch of its friction keeps its share."""
    changes: dict[str, Any] = {"batch_size": batch_size, "temperature_ratio": temperature_ratio}
    if hasattr(sampler, "max_temperature_ratio"):
        changes["max_temperature_ratio"] = None  # the limit follows the ratio
    if friction := getattr(sampler, "friction_batch_size", None):
        in_proportion = max(2, round(friction / sampler.batch_size * batch_size))
        changes["friction_batch_size"] = min(in_proportion, sampler.dataset.num_examples)
    return replace(sampler, **changes)
