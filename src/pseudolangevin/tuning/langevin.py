"""Tuning pseudo-Langevin: batch size S, temperature ratio 𝒯, friction c1 and the reset of the masses.

What theory and experience say saves most of the work. Displacement per step grows as S·𝒯, so the best S is the one with
the most examples per second, which needs timing alone. The bias depends on 𝒯 and hardly on S. So: time the batch sizes
(the chain equilibrates meanwhile), then climb in 𝒯 as long as the bias stays within the budget, and see whether another
c1, S or reset does better there. Heavier masses (a larger c1) have less of the one part of the bias that the time step
makes, and that goes as S·𝒯·(1 − c1²).

Where the weights forget their start within the memory of the momenta, a step need not be that large, and smaller
batches are tried as long as they are better.

With a million weights it is not the bias that ends the climb. Masses go as 1/(S·𝒯·(1 − c1²)), and a chain whose masses
are too light for the steepest directions turns non-finite: what is as light as one that did, with a 𝒯 as large, is not
tried again, and a smaller S, whose steps are cheaper, is tried with the 𝒯 that makes its masses as light as the best's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..diagnostics.diffusion import Diffusion
from ..samplers.base import Sampler
from . import reference
from .bench import Bench, segment_of, stride_of
from .measure import Estimate, Measured
from .reference import Anchor
from .result import Bias, Tried

TIMING_SECONDS = 1.0
TIMING_SHARE, EQUILIBRATION_SHARE, REFERENCE_SHARE = 0.2, 0.45, 0.6
"""The shares of the time by which these parts have ended."""
SATURATED = 0.7
"""A larger S is not tried once the examples per second have fallen to this share of the best."""
VARIANCE_SHARE = 0.1
"""𝒱 is measured at most so often that it costs this share of the time."""
RELAXATION_SHARE = 0.5
"""𝒱 is measured after this share of the relaxation time 1/(4·S·T·𝒯), where that is affordable."""
MAX_INTERVAL = 5_000
MAX_RAISES = 10
"""Measurements of 𝒱 before a candidate is judged; fewer where they take long."""
MIN_STRIDES = 4
"""Displacements, one after the other, that a candidate is given time for."""
FORGOTTEN = 0.5
"""Candidates are compared over at most this share of the largest d² that was seen, which may be that of equilibrium."""
AT_ONCE = 0.25
"""Weights that come this share of the largest d² within the first interval could do with smaller batches."""
LIGHTER = 1.1
"""Masses may be lighter by this factor and still count as equally light."""
TIMING_TICKS = 5
"""Segments between measurements of 𝒱 while batch sizes are timed."""


@dataclass(frozen=True)
class Grid:
    """What is searched."""

    batch_sizes: Sequence[int]
    temperature_ratios: Sequence[float]
    momentum_retentions: Sequence[float]
    reset_probabilities: Sequence[float]


@dataclass
class LangevinSearch:
    """One search."""

    bench: Bench
    grid: Grid
    budget: float
    notes: list[str] = field(default_factory=list)
    step_seconds: dict[int, float] = field(default_factory=dict)
    refresh_seconds: dict[int, float] = field(default_factory=dict)
    """Of one measurement of 𝒱, by batch size, where it was seen."""
    runs: list[tuple[dict[str, Any], Measured, dict[str, Estimate]]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    """Settings of chains that turned non-finite."""
    exact: dict[str, Estimate] | None = None
    reference: str = "𝒯 → 0"

    def run(self) -> tuple[list[Tried], Tried]:
        """All candidates, and the best."""
        sizes = self._time_batch_sizes()
        anchor_run = self._anchor(sizes[0])
        if not anchor_run.stopped:
            limit = self.bench.left(REFERENCE_SHARE)
            self.exact, how = reference.exact_averages(self.bench, anchor_run, max(limit, 0.1 * self.bench.seconds))
            self.reference = "full-batch sampling" if self.exact else "𝒯 → 0"
            self.notes.append(f"biases are against {self.reference}: {how}")
            self.bench.report(self.notes[-1])
        self._climb(self._middle(), sizes[0])
        for variant in self._variants(sizes):
            best = self._best(self._judged())
            names = ("batch_size", "momentum_retention", "reset_probability")
            settings = {name: best.settings[name] for name in names} | variant
            self._climb(start=self._start(settings, best), **settings)
        tried = self._judged()
        if all(candidate.note for candidate in tried):
            self.notes.append(f"{self.bench.seconds:g} s were too short to judge any candidate by: give it more time")
        return tried, self._best(tried)

    def _variants(self, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Changes to the best so far; which are worth trying shows on the way."""
        own, *others = self.grid.momentum_retentions
        smaller = sorted((size for size in sizes if size < sizes[0]), reverse=True)
        if self.failed:
            yield from ({"batch_size": size} for size in smaller)
        elif _forgets_at_once(self._best(self._judged())):
            for size in smaller:
                yield {"batch_size": size}
                if self._best(self._judged()).settings["batch_size"] != size:
                    break
        yield from ({"reset_probability": p} for p in self.grid.reset_probabilities[1:])  # compiles nothing
        best = self._best(self._judged())
        if not best.within_budget or _ratio(best) < self.grid.temperature_ratios[-1]:
            # Heavier masses make room for a larger 𝒯.
            yield from ({"momentum_retention": c} for c in others if c > own)
        if not self.failed:
            yield from ({"batch_size": size} for size in sizes[1:2])
        yield from ({"momentum_retention": c} for c in others if c < own)

    def sampler(self, best: Tried) -> Sampler:
        """The recommendation as a sampler: refreshes during the warm-up as in the base, since users start cold."""
        return self.bench.langevin(**_sampler_settings(best.settings))

    def _time_batch_sizes(self) -> list[int]:
        """Batch sizes by examples per second, best first; the chain moves on from one to the next."""
        speeds: dict[int, float] = {}
        ratio = self.grid.temperature_ratios[0]
        seconds = min(TIMING_SECONDS, TIMING_SHARE * self.bench.seconds / len(self.grid.batch_sizes))
        last = 0
        for size in sorted(self.grid.batch_sizes):
            if len(speeds) > 1 and self.bench.left(TIMING_SHARE) <= 0:
                self.notes.append(f"time ran out before S = {size} was timed")
                break
            settings = self._settings(size, ratio)
            settings["refresh_every"] = TIMING_TICKS * segment_of(settings["momentum_retention"])
            if not speeds:
                self._thaw(settings, seconds)
                run = self.bench.measure_langevin(settings, seconds)
                self.refresh_seconds[size] = run.refresh_seconds
            else:
                run = self.bench.time_langevin(settings, last, seconds)
            if run.stopped:
                self.notes.append(f"S = {size}, 𝒯 = {ratio:g}: the chain turned non-finite")
                continue
            self.bench.adopt(run)
            last = size
            self.step_seconds[size] = run.seconds_per_step * (1 - run.variance_share)
            speeds[size] = size / self.step_seconds[size]
            self.bench.report(f"S = {size}: {1e3 * self.step_seconds[size]:.4g} ms/step without 𝒱")
            if speeds[size] < SATURATED * max(speeds.values()):
                break
        if not speeds:
            raise ValueError(
                f"no batch size kept the chain finite at 𝒯 = {ratio:g}; raise mass_floor, lower temperature_ratios, "
                "or start from trained weights"
            )
        return sorted(speeds, key=lambda size: -speeds[size])

    def _thaw(self, settings: dict[str, Any], seconds: float) -> None:
        """𝒱 grows by orders of magnitude while a trained start warms up: measure it after every segment."""
        segment = segment_of(settings["momentum_retention"])
        run = self.bench.measure_langevin(settings | {"refresh_every": segment, "reset_probability": 1.0}, seconds)
        if not run.stopped:
            self.bench.adopt(run)

    def _anchor(self, size: int) -> Measured:
        """Stir with a middling 𝒯, in which slow directions arrive sooner, then relax with the smallest."""
        stirring = self._settings(size, self.grid.temperature_ratios[self._middle()])
        stirred = self.bench.measure_langevin(stirring, 0.5 * self.bench.left(EQUILIBRATION_SHARE))
        if not stirred.stopped:
            self.bench.adopt(stirred)
        settings = self._settings(size, self.grid.temperature_ratios[0])
        run = self.bench.measure_langevin(settings, self.bench.left(EQUILIBRATION_SHARE))
        self._keep(settings, run)
        if not run.stopped:
            self.bench.adopt(run)
        return run

    def _start(self, settings: dict[str, Any], best: Tried) -> int:
        """Where to begin with other settings: at the best 𝒯 or, where stability decides, with masses as light."""
        ratios = self.grid.temperature_ratios
        if not self.failed:
            return ratios.index(_ratio(best))
        limit, retention = LIGHTER * _lightness(best.settings), settings["momentum_retention"]
        alike = [t for t in self._judged() if t.settings["momentum_retention"] == retention and not t.note]
        biased = [_ratio(tried) for tried in alike if not tried.within_budget]  # settled, finite, and off
        light = [i for i, ratio in enumerate(ratios) if _lightness(settings | {"temperature_ratio": ratio}) <= limit]
        return max((i for i in light if ratios[i] < min(biased, default=math.inf)), default=0)

    def _climb(self, start: int, batch_size: int, **options: Any) -> None:
        """Upwards in 𝒯 while the budget is kept, downwards while it is not."""
        ratios = self.grid.temperature_ratios
        index, direction = start, 0
        while 0 <= index < len(ratios):
            settings = self._settings(batch_size, ratios[index], **options)
            if not self._time_for(settings):
                return
            if any(_same_but_interval(known, settings) for known, _, _ in self.runs):
                return
            step = -1
            if not self._sure_to_fail(settings):
                self._try(settings)
                step = 1 if self._judged()[-1].within_budget else -1
            if direction and step != direction:
                return
            direction = step
            index += step

    def _try(self, settings: dict[str, Any]) -> None:
        seconds = self._seconds_for(settings)
        steps = self._refresh_cost(settings["batch_size"]) + segment_of(settings["momentum_retention"])
        cost = steps * self.step_seconds[settings["batch_size"]]
        num_raises = MAX_RAISES if cost == 0 else min(MAX_RAISES, max(1, int(0.5 * seconds / cost)))
        self._keep(settings, self.bench.measure_langevin(settings, seconds, num_raises=num_raises))

    def _keep(self, settings: dict[str, Any], run: Measured) -> None:
        self.runs.append((settings, run, run.estimates()))
        if run.stopped:
            self.failed.append(settings)
        if run.refresh_seconds:
            self.refresh_seconds[settings["batch_size"]] = run.refresh_seconds
        tried = self._judged()[-1]
        self.bench.report(
            f"S = {settings['batch_size']}, 𝒯 = {settings['temperature_ratio']:g}, c1 = "
            f"{settings['momentum_retention']:.4f}, ρ = {settings['reset_probability']:g}: "
            f"{tried.milliseconds_per_step:.4g} ms/step, D*/N = {tried.relative_diffusion:.3g} 1/s, "
            + ", ".join(f"{name} {bias.value:+.2%}" for name, bias in tried.bias.items())
            + (f" ({tried.note})" if tried.note else "")
        )

    def _sure_to_fail(self, settings: dict[str, Any]) -> bool:
        """Whether a chain with a 𝒯 no larger and masses no lighter turned non-finite."""
        light, ratio = LIGHTER * _lightness(settings), settings["temperature_ratio"]
        return any(light >= _lightness(f) and ratio >= f["temperature_ratio"] for f in self.failed)

    def _judged(self) -> list[Tried]:
        """Every candidate with its bias, by what is known now."""
        return [_tried(settings, run, self._bias(estimates), self.budget) for settings, run, estimates in self.runs]

    def _bias(self, estimates: dict[str, Estimate]) -> dict[str, Bias]:
        if self.exact is not None:
            return reference.against_exact(estimates, self.exact)
        healthy = [
            Anchor(settings["temperature_ratio"], values, _others(settings), _lightness(settings))
            for settings, run, values in self.runs
            if not run.stopped and values
        ]
        if not healthy or not estimates:
            return {}
        anchor = min(healthy, key=lambda a: a.ratio)
        above = [a for a in healthy if a.ratio > anchor.ratio]
        # The line is that of one c1, S and ρ; failing that, of masses no heavier, so that no part of the bias falls.
        alike = [a for a in above if a.others == anchor.others] or [a for a in above if a.lightness >= anchor.lightness]
        return reference.against_extrapolation(estimates, anchor, min(alike, key=lambda a: a.ratio, default=None))

    def _best(self, tried: list[Tried]) -> Tried:
        """The fastest within the budget over one and the same distance; if none is within it, the least biased."""
        curves = {id(t): t.diffusion for t in tried if t.within_budget and t.diffusion is not None}
        if not curves:
            return min(tried, key=_badness)
        distance = _common_distance(list(curves.values()))
        return max((t for t in tried if id(t) in curves), key=lambda t: _speed(curves[id(t)], distance))

    def _middle(self) -> int:
        return len(self.grid.temperature_ratios) // 2

    @property
    def _candidate_seconds(self) -> float:
        return max(1.0, 0.08 * self.bench.seconds)

    def _seconds_for(self, settings: Mapping[str, Any]) -> float:
        """Of a candidate: its share, or some displacements where they take longer."""
        stride = stride_of(settings["momentum_retention"]) * self.step_seconds[settings["batch_size"]]
        return max(self._candidate_seconds, MIN_STRIDES * stride)

    def _time_for(self, settings: Mapping[str, Any]) -> bool:
        """Always, for the first after the anchor: one candidate is no choice."""
        return len(self.runs) < 2 or self.bench.left() > 0.5 * self._seconds_for(settings)

    def _settings(self, size: int, ratio: float, **options: Any) -> dict[str, Any]:
        retention = options.get("momentum_retention", self.grid.momentum_retentions[0])
        return {
            "batch_size": size,
            "temperature_ratio": ratio,
            "momentum_retention": retention,
            "reset_probability": options.get("reset_probability", self.grid.reset_probabilities[0]),
            "refresh_every": self._refresh_interval(size, ratio, retention),
        }

    def _refresh_interval(self, size: int, ratio: float, retention: float) -> int:
        """Half a relaxation time, but not so often that 𝒱 costs more than its share; in whole segments."""
        relaxation = 1 / (4 * size * self.bench.temperature * ratio)
        affordable = self._refresh_cost(size) * (1 - VARIANCE_SHARE) / VARIANCE_SHARE
        steps = max(affordable, min(MAX_INTERVAL, RELAXATION_SHARE * relaxation))
        segment = segment_of(retention)
        return segment * max(1, math.ceil(steps / segment))

    def _refresh_cost(self, size: int) -> float:
        """Steps in the time of one measurement of 𝒱; if not seen with this S, as with the largest that was."""
        seen = [s for s in self.refresh_seconds if s in self.step_seconds]
        if not seen:
            return 0.0
        known = size if size in seen else max(seen)
        return self.refresh_seconds[known] / self.step_seconds[known]


def _forgets_at_once(tried: Tried) -> bool:
    """Whether much of the way to equilibrium is over by the first record, which free diffusion would go on from."""
    if tried.diffusion is None:
        return False
    displacement = tried.diffusion.displacement[0]
    return bool(displacement[0] > max(AT_ONCE, 2 / len(displacement)) * np.max(displacement))


def _common_distance(curves: Sequence[Diffusion]) -> float:
    """d²/N over which candidates are compared: far enough for all, but not so far that they have forgotten the start.

    At the memory of its momenta a free weight has come 0.37 of the way that diffusion alone would have taken it, and a
    step of many examples takes so long that stiff directions have stopped moving by its first record: so it is four
    times the first interval, of the one for which that is furthest. Where all directions have stopped, though, every
    sampler is as far as any other.
    """
    behind = [np.interp(min(MIN_STRIDES * c.seconds[0], c.seconds[-1]), c.seconds, c.displacement[0]) for c in curves]
    furthest = max(float(np.max(c.displacement[0])) for c in curves)
    return min(float(max(behind)), FORGOTTEN * furthest)


def _speed(curve: Diffusion, distance: float) -> float:
    """d²/(N·Δt) where the distance is reached; at the first or last interval where it is passed or not reached."""
    reached = np.maximum.accumulate(curve.displacement[0])
    if distance > reached[-1]:
        return float(reached[-1] / curve.seconds[-1])
    first = np.flatnonzero(np.diff(reached, prepend=-np.inf) > 0)  # each distance where it is first reached
    distance = max(distance, float(reached[0]))
    return distance / float(np.interp(distance, reached[first], curve.seconds[first]))


def _others(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is searched beside 𝒯."""
    return tuple(settings[name] for name in ("batch_size", "momentum_retention", "reset_probability"))


def _ratio(tried: Tried) -> float:
    return tried.settings["temperature_ratio"]


def _lightness(settings: Mapping[str, Any]) -> float:
    """One over the masses, up to factors that all candidates share."""
    return settings["batch_size"] * settings["temperature_ratio"] * (1 - settings["momentum_retention"] ** 2)


def _same_but_interval(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name] == other[name] for name in one if name != "refresh_every")


def _sampler_settings(settings: Any) -> dict[str, Any]:
    """As arguments: 𝒯max is 𝒯, and the interval between measurements of 𝒱 does not grow.

    Growth is judged on the mean 𝒱 of each tensor, which stays the same while that of single weights moves on.
    """
    return dict(settings) | {
        "max_temperature_ratio": settings["temperature_ratio"],
        "max_refresh_interval": settings["refresh_every"],
    }


def _tried(settings: dict[str, Any], run: Measured, bias: dict[str, Bias], budget: float) -> Tried:
    error = math.nan if run.diffusion is None else float(run.diffusion.coefficient_error[0])
    usable = run.diffusion is not None and bool(bias)
    unsettled = any(not b.uncertainty <= budget for b in bias.values())
    return Tried(
        settings=settings,
        relative_diffusion=run.relative_diffusion,
        standard_error=error,
        milliseconds_per_step=1e3 * run.seconds_per_step,
        variance_share=run.variance_share,
        bias=bias,
        within_budget=usable and all(b.within(budget) for b in bias.values()),
        note="turned non-finite" if run.stopped else "averages not settled" if unsettled else "",
        diffusion=run.diffusion,
    )


def _badness(tried: Tried) -> tuple[float, float]:
    """The worst bias with its uncertainty and, where that is unknown, by itself."""
    if not math.isfinite(tried.relative_diffusion) or not tried.bias:
        return math.inf, math.inf
    biases = tried.bias.values()
    return max(_known(abs(b.value) + b.uncertainty) for b in biases), max(_known(abs(b.value)) for b in biases)


def _known(value: float) -> float:
    return value if math.isfinite(value) else math.inf
