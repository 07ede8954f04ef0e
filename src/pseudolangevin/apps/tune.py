"""Find the settings with which the weights move fastest on this machine, within a bias budget.

The search follows from what was measured (docs/tuning.md). The displacement per step grows as batch size times
temperature ratio, so the best batch size is the one with the most examples per second: batch sizes are only timed. The
bias depends on the ratio and hardly on the batch size: the ratio is raised while loss, |w|² and error are within the
budget. Masses go as 1/(batch size · ratio): with a million weights, light masses make chains non-finite before the bias
ends the climb, and a smaller batch with a larger ratio was three times as fast.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._trees import Weights, check_interval, check_positive
from ..chains import Run
from ..diagnostics.averages import Average, average, drift, kept, plus_minus
from ..diagnostics.diffusion import MeasuredDiffusion, measure_diffusion
from ..samplers.base import Sampler


@dataclass(frozen=True)
class Tried:
    """One candidate as measured."""

    batch_size: int
    temperature_ratio: float
    seconds_per_step: float
    coefficient: float
    """D*/N in 1/s; NaN where the chain turned non-finite."""
    coefficient_error: float
    bias: Mapping[str, Average]
    """Relative deviations of loss, |w|² and error from the reference."""
    within_budget: bool
    """Whether all biases are within the budget, and known to that precision."""
    note: str
    diffusion: Mapping[str, list[float]] | None
    """Mean squared displacement per weight at several intervals in seconds."""

    def cells(self) -> dict[str, str]:
        """Return the candidate as one row of a table, by column."""
        found = {"batch size": str(self.batch_size), "temperature ratio": f"{self.temperature_ratio:g}"}
        found["ms/step"] = f"{1e3 * self.seconds_per_step:.4g}"
        found["D*/N [1/s]"] = plus_minus(self.coefficient, self.coefficient_error)
        for name, bias in self.bias.items():
            label = "|w|²" if name == "squared_norm" else name
            found[f"bias of {label}"] = plus_minus(bias.mean, bias.standard_error, percent=True)
        return found | {"": self.note}


@dataclass(frozen=True)
class Tuned:
    """Settings with which the weights move fastest within the bias budget; printable."""

    sampler: Sampler
    """Recommended sampler, ready to run."""
    best: Tried
    tried: tuple[Tried, ...]
    temperature: float
    bias_budget: float
    reference: str
    notes: tuple[str, ...]
    seconds: float
    weights: Weights
    """Equilibrated weights of one chain, a start for further runs."""

    @property
    def settings(self) -> dict[str, Any]:
        """Recommended settings, as the sampler's arguments."""
        return self.sampler.settings

    @property
    def within_budget(self) -> bool:
        """Whether the recommendation is within the budget; if not, it is the least biased candidate."""
        return self.best.within_budget

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings, ready for JSON; unknown numbers are None."""
        names = ("settings", "temperature", "bias_budget", "within_budget", "reference", "notes", "seconds")
        found = {"sampler": self.sampler.name} | {name: getattr(self, name) for name in names}
        for name, tried in {"best": [self.best], "tried": self.tried}.items():
            rows = [vars(t) | {"bias": {name: bias._asdict() for name, bias in t.bias.items()}} for t in tried]
            found[name] = rows if name == "tried" else rows[0]
        return json.loads(json.dumps(found), parse_constant=lambda _: None)

    def to_toml(self) -> str:
        """Return the recommendation as the [sampler] section of a configuration file."""
        lines = [f"{name} = {json.dumps(value)}" for name, value in self.settings.items() if value is not None]
        return "\n".join(["[sampler]", f'name = "{self.sampler.name}"', *lines])

    def __str__(self) -> str:
        """Return a table of all candidates, the notes and the verdict."""
        import pandas as pd  # noqa: PLC0415 (slow to import)

        rows = [t.cells() | ({"": f"best {t.note}".strip()} if t is self.best else {}) for t in self.tried]
        table = pd.DataFrame(rows).fillna("").to_string(index=False)
        verdict = f"{'' if self.within_budget else 'NOT '}within {self.bias_budget:.1%} of {self.reference}"
        found = f"{self.sampler.name} at T = {self.temperature:g}: D*/N = {self.best.coefficient:.3g} 1/s"
        return "\n".join([table, *(f"note: {n}" for n in self.notes), f"{found}, {verdict}; {self.seconds:.0f} s"])


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
    report: Callable[[str], None] | None = None,
) -> Tuned:
    """Find the batch size and temperature ratio with the largest D*, diffusion in wall-clock time, on this machine.

    Loss, |w|² and error stay within `bias_budget` of sampling at the smallest ratio. Start from trained weights. Where
    T is far below 1/P nothing equilibrates, and candidates are compared near the start.

    Args:
        sampler: a sampler with `batch_size` and `temperature_ratio`, such as `balanced_langevin(potential, dataset)`;
            settings that are not searched stay. The batch of the friction stays in proportion to the batch size.
        weights: start of one chain.
        temperature: T.
        seconds: time for the search, compilation included; a program that is being compiled then is finished.
        bias_budget: largest accepted relative bias of loss, |w|² and error.
        batch_sizes: batch sizes to try; default: 1, 3, 10, 30 and 100 % of the data set.
        temperature_ratios: temperature ratios to try.
        observe_examples: number of examples for loss and error; default: all. Fewer allow more records.
        key: seed.
        report: called with a line of text for every finding, for example `print`.

    Example:
        >>> tuned = tune(balanced_langevin(potential, train), weights, temperature=3e-5)  # doctest: +SKIP
        >>> result = sample(tuned.sampler, weights, temperatures=[3e-5], num_steps=100_000, key=1)  # doctest: +SKIP
    """
    check_positive("temperature", temperature)
    check_positive("seconds", seconds)
    check_interval("bias_budget", bias_budget, 0, 1, "0.02 allows 2 %", open_ends=True)
    if not {"batch_size", "temperature_ratio"} <= {f.name for f in fields(sampler)}:
        raise ValueError(f"sampler = {sampler.name} has no temperature_ratio to tune; choose balanced_langevin")
    if batch_sizes is None:
        batch_sizes = [max(2, round(share * sampler.dataset.num_examples)) for share in (0.01, 0.03, 0.1, 0.3, 1.0)]
    if not batch_sizes or not temperature_ratios:
        raise ValueError("batch_sizes or temperature_ratios is empty; pass at least one value of each")
    sizes, ratios = sorted(set(batch_sizes)), sorted(set(temperature_ratios))
    for size, ratio in [(size, ratio) for size in sizes for ratio in ratios]:
        _changed(sampler, size, ratio)  # raises for bad settings before anything runs
    options = (observe_examples, key, report, time.perf_counter())
    search = _Search(sampler, weights, temperature, bias_budget, seconds, *options)
    search.run(sizes, ratios)
    best, reference = _best(search.tried), f"sampling at a temperature ratio of {ratios[0]:g}"
    found = (tuple(search.tried), temperature, bias_budget, reference, tuple(search.notes))
    recommended = _changed(sampler, best.batch_size, best.temperature_ratio)
    return Tuned(recommended, best, *found, seconds - search.left(), search.weights)


@dataclass
class _Search:
    """State of one search: the common start of the candidates, the candidates, and the averages they are judged by."""

    sampler: Sampler
    weights: Weights
    temperature: float
    budget: float
    seconds: float
    observe_examples: int | None
    key: int
    report: Callable[[str], None] | None
    began: float
    tried: list[Tried] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reference: dict[str, Average] = field(default_factory=dict)

    def left(self, share: float = 1.0) -> float:
        """Return the seconds until this share of the time is used."""
        return self.began + share * self.seconds - time.perf_counter()

    def run(self, sizes: list[int], ratios: list[float]) -> None:
        """Time batch sizes, equilibrate, sample the reference, and climb in the temperature ratio."""
        sizes, remaining = self.time_batch_sizes(sizes, ratios[0]), len(ratios) + 1
        # A larger ratio equilibrates the start sooner; the smallest one then relaxes it, and is the first candidate.
        for ratio in (ratios[len(ratios) // 2], ratios[0]):
            candidate = _changed(self.sampler, sizes[-1], ratio)
            measured = self.measure(candidate, self.left() / remaining)
            remaining -= 1
            if not measured.stopped:
                self.weights = candidate.position(jax.tree.map(lambda leaf: leaf[0], measured.states))
        if measured.stopped:
            remedy = "lower temperature_ratios, raise mass_floor, or start from trained weights"
            raise ValueError(f"the chain turned non-finite at the smallest temperature ratio, {ratios[0]:g}; {remedy}")
        self.reference = _estimates(measured)
        self.judge(candidate, measured)
        index, size = 1, sizes.pop()
        while index < len(ratios) and self.left() > 0.03 * self.seconds:
            candidate = _changed(self.sampler, size, ratios[index])
            tried = self.judge(candidate, self.measure(candidate, self.left() / max(remaining, 1)))
            remaining -= 1
            if tried.note == "turned non-finite" and sizes:
                size = sizes.pop()  # masses are heavier for smaller batches
            elif tried.within_budget:
                index += 1
            else:
                break
        if all(tried.note for tried in self.tried):
            self.notes.append(f"{self.seconds:g} s were too short to judge any candidate; give more time")

    def time_batch_sizes(self, sizes: list[int], ratio: float) -> list[int]:
        """Return the batch sizes up to the one with the most examples per second, in ascending order."""
        states, found = None, dict[int, float]()
        for size in sizes:
            run = Run(_shared(_changed(self.sampler, size, ratio)), temperatures=[self.temperature])
            # The smallest batch needs the heaviest masses; the other sizes can be timed with them.
            states = run.start(self.weights, self.key) if states is None else states
            options = {"every": 50, "seconds": 0.01 * self.seconds, "discard_steps": 50}
            found[size] = measure_diffusion(run, jax.tree.map(jnp.copy, states), **options).seconds_per_step  # type: ignore[arg-type]
            if self.left(0.2) < 0:
                break
        timings = ", ".join(f"{size}: {1e3 * seconds:.4g}" for size, seconds in found.items())
        self.notes.append(f"time per step in ms by batch size: {timings}")
        best = max(found, key=lambda size: size / found[size])
        return [size for size in found if size <= best]

    def measure(self, sampler: Sampler, seconds: float) -> MeasuredDiffusion:
        """Run a candidate from the common start for some seconds; observables take up to a third of them."""
        run = Run(_shared(sampler), temperatures=[self.temperature], observe_examples=self.observe_examples)
        states, options = run.start(self.weights, self.key), {"seconds": seconds / 1.5, "observe": True}
        every = max(50, round(1 / (1 - getattr(sampler, "momentum_retention", 0.0) ** 2)))  # the memory of the momenta
        return measure_diffusion(run, states, every=every, **options)  # type: ignore[arg-type]

    def judge(self, sampler: Any, measured: MeasuredDiffusion) -> Tried:
        """Add a candidate to those that were tried, with its biases."""
        estimates, bias = _estimates(measured), dict[str, Average]()
        for name, exact in self.reference.items():
            mean, error, effective = estimates.get(name, Average(math.nan, math.inf, 0.0))
            error = math.hypot(error, exact.standard_error) / abs(exact.mean)
            bias[name] = Average(mean / exact.mean - 1, error, effective)
        unsettled = any(not b.standard_error <= self.budget for b in bias.values())
        note = "turned non-finite" if measured.stopped else "averages not settled" if unsettled else ""
        within = not note and all(abs(b.mean) <= self.budget for b in bias.values())
        numbers = (measured.seconds_per_step, measured.coefficient, measured.coefficient_error, bias, within, note)
        curve = None if measured.diffusion is None else measured.diffusion.to_dict()
        self.tried.append(Tried(sampler.batch_size, sampler.temperature_ratio, *numbers, curve))
        if self.report is not None:
            cells = self.tried[-1].cells().items()
            self.report(", ".join(f"{name} {value}".strip() for name, value in cells if value))
        return self.tried[-1]


def _best(tried: Sequence[Tried]) -> Tried:
    """Return the candidate within the budget that moved farthest in equal time; without one, the least biased."""
    curves = [(t, t.diffusion) for t in tried if t.within_budget and t.diffusion is not None]
    if not curves:
        worst = [max((abs(b.mean) + b.standard_error for b in t.bias.values()), default=math.inf) for t in tried]
        return tried[int(np.argmin(np.nan_to_num(worst, nan=math.inf, posinf=math.inf)))]
    # Displacements within the memory of the momenta are ballistic, so the time is that of four intervals.
    interval = 4 * max(curve["seconds"][0] for _, curve in curves)
    moved = [np.interp(interval, curve["seconds"], curve["displacement_per_weight"]) for _, curve in curves]
    return curves[int(np.argmax(moved))][0]


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


def _changed(sampler: Any, batch_size: int, temperature_ratio: float) -> Sampler:
    """Return the sampler with other settings; the batch of its friction keeps its share."""
    changes: dict[str, Any] = {"batch_size": batch_size, "temperature_ratio": temperature_ratio}
    if hasattr(sampler, "max_temperature_ratio"):
        changes["max_temperature_ratio"] = None  # the limit follows the ratio
    if friction := getattr(sampler, "friction_batch_size", None):
        changes["friction_batch_size"] = max(2, round(friction / sampler.batch_size * batch_size))
    return replace(sampler, **changes)


def _shared(sampler: Any) -> Sampler:
    """Return the sampler with its ratio as an array, so that candidates share compiled programs."""
    return replace(sampler, temperature_ratio=jnp.array(sampler.temperature_ratio))
