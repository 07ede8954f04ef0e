"""Find the settings with which the weights move fastest on this machine, within a bias budget.

The search follows from what was measured (docs/tuning.md). The displacement per step grows as batch size times
temperature ratio, so the best batch size is the one with the most examples per second: batch sizes are only timed. The
bias depends on the ratio and hardly on the batch size: the ratio is raised while loss, |w|² and error are within the
budget. Masses go as 1/(batch size · ratio): with a million weights, light masses make chains non-finite before the bias
ends the climb, and a smaller batch with a larger ratio was three times as fast. Masses that are reset shift |w|² by 5 %
at a ratio of 0.1, masses that are only raised by 0.2 %: `reset_probability=0` is tried as a variant.
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

from .._checks import check_interval, check_positive
from .._trees import Weights
from ..chains import Run
from ..diagnostics.averages import Average, average, drift, kept, plus_minus
from ..diagnostics.diffusion import Diffusion, MeasuredDiffusion, measure_diffusion
from ..samplers.base import MAX_STEPS, Sampler


@dataclass(frozen=True)
class Tried:
    """One candidate as measured."""

    sampler: Sampler
    settings: Mapping[str, Any]
    """Settings in which the candidates differ."""
    measured: MeasuredDiffusion
    """Displacements (`diffusion`; `coefficient` is D*/N in 1/s) and time per step; without states."""
    bias: Mapping[str, Average]
    """Relative deviations of loss, |w|² and error from the reference."""
    within_budget: bool
    """Whether all biases are within the budget, and known to that precision."""
    note: str

    def cells(self) -> dict[str, str]:
        """Return the candidate as one row of a table, by column."""
        found = {name.replace("_", " "): f"{value:.6g}" for name, value in self.settings.items()}
        found["ms/step"] = f"{1e3 * self.measured.seconds_per_step:.4g}"
        found["D*/N [1/s]"] = plus_minus(self.measured.coefficient, self.measured.coefficient_error)
        for name, bias in self.bias.items():
            label = "|w|²" if name == "squared_norm" else name
            found[f"bias of {label}"] = plus_minus(bias.mean, bias.standard_error, percent=True)
        return found | {"": self.note}

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, ready for JSON; unknown numbers are None."""
        found = {name: getattr(self, name) for name in ("settings", "within_budget", "note")}
        names = ("seconds_per_step", "coefficient", "coefficient_error")
        found |= {name: getattr(self.measured, name) for name in names}
        found["bias"] = {name: bias._asdict() for name, bias in self.bias.items()}
        found["diffusion"] = None if self.measured.diffusion is None else self.measured.diffusion.to_dict()
        return json.loads(json.dumps(found), parse_constant=lambda _: None)


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
        """Return plain numbers and strings, ready for JSON."""
        names = ("settings", "temperature", "bias_budget", "within_budget", "reference", "notes", "seconds")
        found = {"sampler": self.sampler.name} | {name: getattr(self, name) for name in names}
        return found | {"best": self.best.to_dict(), "tried": [tried.to_dict() for tried in self.tried]}

    def to_toml(self) -> str:
        """Return the recommendation as the [sampler] section of a configuration file."""
        lines = [f"{name} = {json.dumps(value)}" for name, value in self.settings.items() if value is not None]
        return "\n".join(["[sampler]", f'name = "{self.sampler.name}"', *lines])

    def __str__(self) -> str:
        """Return a table of all candidates, the notes and the verdict."""
        rows = [t.cells() | ({"": f"best {t.note}".strip()} if t is self.best else {}) for t in self.tried]
        table = [list(rows[0]), *(list(row.values()) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
        verdict = f"{'' if self.within_budget else 'NOT '}within {self.bias_budget:.1%} of {self.reference}"
        found = f"{self.sampler.name} at T = {self.temperature:g}: D*/N = {self.best.measured.coefficient:.3g} 1/s"
        return "\n".join([*lines, *(f"note: {n}" for n in self.notes), f"{found}, {verdict}; {self.seconds:.0f} s"])


def tune(
    sampler: Sampler,
    weights: Weights,
    *,
    temperature: float,
    seconds: float = 120.0,
    bias_budget: float = 0.02,
    batch_sizes: Sequence[int] | None = None,
    temperature_ratios: Sequence[float] = (0.01, 0.03, 0.1, 0.3),
    variants: Sequence[Mapping[str, Any]] | None = None,
    observe_examples: int | None = None,
    chunk_size: int | None = None,
    key: int = 0,
    report: Callable[[str], None] | None = None,
) -> Tuned:
    """Find the batch size and temperature ratio with the largest D*, diffusion in wall-clock time, on this machine.

    Loss, |w|² and error stay within `bias_budget` of sampling at the smallest ratio, which was itself 0.2 to 0.4 % off
    at 0.01 (N = 11 160, against hybrid Monte Carlo). Start from trained weights. Where T is far below 1/P nothing
    equilibrates, and candidates are compared near the start.

    Args:
        sampler: a sampler with `batch_size` and `temperature_ratio`; settings that are not searched stay.
        weights: start of one chain.
        temperature: T.
        seconds: time for the search, compilation included; a program that is being compiled then is finished.
        bias_budget: largest accepted relative bias of loss, |w|² and error.
        batch_sizes: batch sizes to try; default: 1, 3, 10, 30 and 100 % of the data set.
        temperature_ratios: temperature ratios to try.
        variants: changes of other settings to try on the best candidate, such as ``[{"momentum_retention": 0.9995}]``;
            default: `reset_probability` = 0, where the sampler has another one.
        observe_examples: number of examples for loss and error; default: all. Fewer allow more records.
        chunk_size: examples held at once when visiting all of them.
        key: seed.
        report: called with a line of text for every finding, for example `print`.

    Example:
        >>> tuned = tune(pseudo_langevin(potential, train), weights, temperature=3e-5)  # doctest: +SKIP
        >>> result = sample(tuned.sampler, weights, temperatures=[3e-5], num_steps=100_000, key=1)  # doctest: +SKIP
    """
    check_positive("temperature", temperature)
    check_positive("seconds", seconds)
    check_interval("bias_budget", bias_budget, 0, 1, "0.02 allows 2 %", open_ends=True)
    if not {"batch_size", "temperature_ratio"} <= {f.name for f in fields(sampler)}:
        raise ValueError(f"sampler = {sampler.name} has no temperature_ratio to tune; choose pseudo_langevin")
    if getattr(sampler, "max_temperature_ratio", None) is not None:
        sampler = _changed(sampler, max_temperature_ratio=None)  # the limit follows the ratio
    if batch_sizes is None:
        batch_sizes = [max(2, round(share * sampler.dataset.num_examples)) for share in (0.01, 0.03, 0.1, 0.3, 1.0)]
    if variants is None:
        variants = [{"reset_probability": 0.0}] if getattr(sampler, "reset_probability", 0.0) else []
    if not batch_sizes or not temperature_ratios:
        raise ValueError("batch_sizes or temperature_ratios is empty; pass at least one value of each")
    sizes, ratios = sorted(set(batch_sizes)), sorted(set(temperature_ratios))
    for change in [*({"batch_size": size} for size in sizes), *variants]:
        for ratio in ratios:  # raise for bad settings before anything runs
            _changed(sampler, temperature_ratio=ratio, **change)
    names = tuple(dict.fromkeys(["batch_size", "temperature_ratio", *(name for v in variants for name in v)]))
    options = (observe_examples, chunk_size, key, names, report, time.perf_counter())
    search = _Search(weights, temperature, bias_budget, seconds, *options)
    search.run(sampler, sizes, ratios, variants)
    best, reference = _best(search.tried), f"sampling at a temperature ratio of {ratios[0]:g}"
    found = (tuple(search.tried), temperature, bias_budget, reference, tuple(search.notes))
    return Tuned(best.sampler, best, *found, seconds - search.left(), search.weights)


@dataclass
class _Search:
    """State of one search: the common start of the candidates, the candidates, and the averages they are judged by."""

    weights: Weights
    temperature: float
    budget: float
    seconds: float
    observe_examples: int | None
    chunk_size: int | None
    key: int
    names: tuple[str, ...]
    """Settings in which candidates differ."""
    report: Callable[[str], None] | None
    began: float
    tried: list[Tried] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reference: dict[str, Average] = field(default_factory=dict)
    step_seconds: dict[int | None, float] = field(default_factory=dict)
    """Time per step by batch size."""
    overheads: dict[int | None, float] = field(default_factory=dict)
    """Time of the latest candidate beyond its steps (compilation, start, discarded steps), by batch size."""

    def left(self, share: float = 1.0) -> float:
        """Return the seconds until this share of the time is used."""
        return self.began + share * self.seconds - time.perf_counter()

    def run(self, base: Sampler, sizes: list[int], ratios: list[float], variants: Sequence[Mapping[str, Any]]) -> None:
        """Time batch sizes until 20 % of the time, equilibrate until 55 %, climb in the temperature ratio."""
        sizes = self.time_batch_sizes(base, sizes, ratios[0])
        base, middle = _changed(base, batch_size=sizes[-1]), len(ratios) // 2
        # A larger ratio equilibrates the start sooner; the smallest one then relaxes it, and is the first candidate.
        for ratio, share in [(ratios[middle], 0.35), (ratios[0], 0.55)]:
            candidate = _changed(base, temperature_ratio=ratio)
            measured = self.measure(candidate, share)
            if not measured.stopped:
                self.weights = candidate.position(jax.tree.map(lambda leaf: leaf[0], measured.states))
        if measured.stopped:
            remedy = "lower temperature_ratios, raise mass_floor, or start from trained weights"
            raise ValueError(f"the chain turned non-finite at the smallest temperature ratio, {ratios[0]:g}; {remedy}")
        self.reference = _estimates(measured)
        self.judge(candidate, measured)
        self.climb(base, ratios, middle)
        failed = any(tried.measured.stopped for tried in self.tried)
        smaller: list[Mapping[str, Any]] = [{"batch_size": size} for size in reversed(sizes[:-1])]
        for change in [*smaller, *variants] if failed else [*variants, *smaller]:
            best = _best(self.tried)
            start = ratios.index(best.settings["temperature_ratio"]) + (failed and change in smaller)
            self.climb(_changed(best.sampler, **change), ratios, min(start, len(ratios) - 1))
            if change in smaller and _best(self.tried) is best:
                break  # smaller batches are not faster
        if all(tried.note for tried in self.tried):
            self.notes.append(f"{self.seconds:g} s were too short to judge any candidate; give more time")

    def time_batch_sizes(self, base: Sampler, sizes: list[int], ratio: float) -> list[int]:
        """Return the batch sizes up to the one with the most examples per second, in ascending order."""
        states, speeds = None, list[float]()
        for size in sizes:
            candidate = _shared(_changed(base, batch_size=size, temperature_ratio=ratio))
            run = Run(candidate, temperatures=[self.temperature])
            # The smallest batch needs the heaviest masses; the other sizes can be timed with them.
            states = run.start(self.weights, self.key) if states is None else states
            times: list[float] = []
            for num_steps in (50, 50, 200, 600):
                began, copied = time.perf_counter(), jax.tree.map(jnp.copy, states)
                (record,) = run.records(copied, stop=num_steps, every=MAX_STEPS, progress=False)
                jax.block_until_ready(record.states)
                times.append((time.perf_counter() - began) / num_steps)
                if len(times) > 1 and times[-1] * num_steps > 0.1:
                    break
            self.step_seconds[size] = min(times)  # the first time compiles, and a refresh does
            if speeds and size / self.step_seconds[size] < 1.05 * speeds[-1]:
                break  # larger batches no longer pay
            speeds.append(size / self.step_seconds[size])
            if self.left(0.2) < 0:
                break
        timings = ", ".join(f"{size}: {1e3 * seconds:.4g}" for size, seconds in self.step_seconds.items())
        self.notes.append(f"time per step in ms by batch size: {timings}")
        return sizes[: len(speeds)]

    def climb(self, base: Sampler, ratios: list[float], index: int) -> None:
        """Raise the temperature ratio while the bias is within the budget, lower it while it is not."""
        direction = 0
        while 0 <= index < len(ratios):
            sampler = _changed(base, temperature_ratio=ratios[index])
            tried = next((t for t in self.tried if t.sampler.settings == sampler.settings), None)
            if tried is None:
                if self.left() < self.overhead(sampler) + 0.03 * self.seconds:
                    return
                tried = self.judge(sampler, self.measure(sampler))
            step = 1 if tried.within_budget else -1
            if direction and step != direction:
                return
            direction, index = step, index + step

    def measure(self, sampler: Sampler, share: float = 0.0) -> MeasuredDiffusion:
        """Run a candidate from the common start until this share of the time is used, at least for 6 % of the time."""
        began, seconds = time.perf_counter(), max(0.06 * self.seconds, self.left(share) - self.overhead(sampler))
        run = Run(_shared(sampler), temperatures=[self.temperature], observe_examples=self.observe_examples)
        states = run.start(self.weights, self.key)
        options: dict[str, Any] = {"observe": True, "chunk_size": self.chunk_size}
        every = max(50, round(1 / (1 - getattr(sampler, "momentum_retention", 0.0) ** 2)))  # the memory of the momenta
        # The first refresh compiles; steps before it are discarded, unless that takes too long. Observables take up to
        # half of the time of the steps.
        discard = int(np.min(getattr(states, "next_refresh", 0)))
        discard = min(discard, int(seconds / self.step_seconds[sampler.batch_size]))
        found = measure_diffusion(run, states, every=every, seconds=seconds / 1.5, discard_steps=discard, **options)
        self.overheads[sampler.batch_size] = max(0.0, time.perf_counter() - began - 1.5 * found.seconds)
        return found

    def overhead(self, sampler: Sampler) -> float:
        """Return the expected time of a candidate beyond its steps; another batch size has to be compiled."""
        return self.overheads.get(sampler.batch_size, max(self.overheads.values(), default=0.0))

    def judge(self, sampler: Sampler, measured: MeasuredDiffusion) -> Tried:
        """Add a candidate to those that were tried, with its biases."""
        estimates, bias = _estimates(measured), dict[str, Average]()
        for name, exact in self.reference.items():
            mean, error, effective = estimates.get(name, Average(math.nan, math.inf, 0.0))
            error = math.hypot(error, exact.standard_error) / abs(exact.mean)
            bias[name] = Average(mean / exact.mean - 1, error, effective)
        unsettled = any(not b.standard_error <= self.budget for b in bias.values())
        note = "turned non-finite" if measured.stopped else "averages not settled" if unsettled else ""
        within = not note and all(abs(b.mean) <= self.budget for b in bias.values())
        settings = {name: getattr(sampler, name) for name in self.names}
        tried = Tried(sampler, settings, replace(measured, states=None), bias, within, note)
        self.tried.append(tried)
        if self.report is not None:
            self.report(", ".join(f"{name} {value}".strip() for name, value in tried.cells().items() if value))
        return tried


def _best(tried: Sequence[Tried]) -> Tried:
    """Return the candidate within the budget that covers one distance soonest; without one, the least biased."""
    curves = [(t, t.measured.diffusion) for t in tried if t.within_budget and t.measured.diffusion is not None]
    if not curves:
        worst = [max((abs(b.mean) + b.standard_error for b in t.bias.values()), default=math.inf) for t in tried]
        return tried[int(np.argmin(np.nan_to_num(worst, nan=math.inf, posinf=math.inf)))]
    # Displacements within the memory of the momenta are ballistic, so the distance is that of four intervals. Beyond
    # half of the largest one the weights have forgotten the start, and are as far from it with any sampler.
    distance = max(float(np.interp(4 * c.seconds[0], c.seconds, c.displacement[0])) for _, c in curves)
    distance = min(distance, 0.5 * max(float(np.max(c.displacement[0])) for _, c in curves))

    def seconds_to(candidate: tuple[Tried, Diffusion]) -> float:
        curve = candidate[1]
        reached = np.maximum.accumulate(curve.displacement[0])
        beyond = curve.seconds[-1] * max(1.0, distance / reached[-1])
        return float(np.interp(distance, [0.0, *reached], [0.0, *curve.seconds], right=beyond))

    return min(curves, key=seconds_to)[0]


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


def _changed(sampler: Sampler, **settings: Any) -> Sampler:
    return replace(sampler, **settings)


def _shared(sampler: Sampler) -> Sampler:
    """Return the sampler with its ratio and reset probability as arrays, so that candidates share compiled programs."""
    names = {"temperature_ratio", "reset_probability"} & sampler.settings.keys()
    return _changed(sampler, **{name: jnp.array(getattr(sampler, name)) for name in names})
