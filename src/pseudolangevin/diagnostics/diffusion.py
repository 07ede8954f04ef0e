"""Mean squared displacement of the weights against steps and wall-clock time, and the paper's D*.

    d²(Δt) = ⟨|w(t + Δt) − w(t)|²⟩,        D* = d²(Δt)/Δt  at the shortest Δt between sampled vectors

(section "Better performance of the pL algorithm"), quoted per weight, D*/N, in 1/s. Within the memory of the momenta,
1/(1 − c1²) steps, weights move ballistically and d²/Δt still grows; beyond the relaxation time it falls. D* is meant
for intervals between these two times.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _trees as trees
from .._trees import Array, Weights, check_integer, check_positive
from ..gradients import exact_sums
from ..samplers.base import HEALTHY
from .averages import Average, Floats, kept

if TYPE_CHECKING:
    from ..chains import Result, Run


@dataclass(frozen=True)
class Diffusion:
    """Mean squared displacement per weight, d²/N, at several intervals Δt."""

    steps: Floats  # intervals Δt in steps, (lag,)
    seconds: Floats  # intervals Δt in seconds of sampling at the mean time per step, (lag,)
    displacement: Floats  # mean of d²/N over chains and starting points, (temperature, lag)
    standard_error: Floats  # of `displacement`, from the scatter over chains and starting points; NaN for one pair

    @property
    def coefficient(self) -> Floats:
        """D*/N of every temperature in 1/s, at the shortest interval."""
        return self.displacement[:, 0] / self.seconds[0]

    @property
    def coefficient_error(self) -> Floats:
        """Standard error of `coefficient`."""
        return self.standard_error[:, 0] / self.seconds[0]


class Displacements:
    """Accumulator of d² along a run; reference point k is renewed every 2ᵏ records, and gives intervals of 1 … 2ᵏ."""

    def __init__(self, num_references: int = 10) -> None:
        self._num_references, self._num_records = num_references, 0
        self._references: dict[int, tuple[int, Weights]] = {}  # step and weights by k
        self._pairs: dict[int, list[np.ndarray]] = defaultdict(list)  # d²/N of the chains by interval

    def observe(self, step: int, weights: Weights) -> None:
        """Add one record: the step, and the weights with one leading axis over chains."""
        for earlier, reference in dict(self._references.values()).items():
            self._pairs[step - earlier].append(np.asarray(_mean_squared_distance(reference, weights), np.float64))
        new = (step, jax.tree.map(jnp.copy, weights))
        self._references |= {k: new for k in range(self._num_references) if self._num_records % 2**k == 0}
        self._num_records += 1

    def diffusion(self, seconds_per_step: float, num_temperatures: int = 1) -> Diffusion:
        """Return the displacements; the chains are ordered temperature by temperature."""
        if not self._pairs:
            raise ValueError("a displacement needs two records; run longer or record more often")
        lags = np.array(sorted(self._pairs), np.float64)
        pairs = [np.stack(self._pairs[int(lag)], axis=-1).reshape(num_temperatures, -1) for lag in lags]
        means = np.stack([values.mean(axis=1) for values in pairs], axis=-1)
        with np.errstate(invalid="ignore"):  # one pair has no scatter
            errors = [np.sqrt(v.var(axis=1) / np.float64(v.shape[1] - 1)) for v in pairs]
        return Diffusion(lags, lags * seconds_per_step, means, np.stack(errors, axis=-1))


def diffusion(result: Result, *, seconds_per_step: float = 1.0, burn_in: float = 0.0) -> Diffusion:
    """Return the displacements between the kept weights of a run after the share `burn_in`, by default in steps."""
    check_positive("seconds_per_step", seconds_per_step)
    if result.samples is None:
        raise ValueError("the result holds no kept weights; sample with keep_weights_every=1")
    num_temperatures, _, num_kept = jax.tree.leaves(result.samples)[0].shape[:3]
    every = result.trace.attrs["keep_weights_every"]
    steps = np.asarray(result.trace["step"])[every - 1 :: every]
    displacements = Displacements(max(1, num_kept.bit_length()))
    for draw in kept(np.arange(num_kept), burn_in):
        weights = jax.tree.map(lambda w, draw=draw: np.asarray(w[:, :, draw]).reshape(-1, *w.shape[3:]), result.samples)
        displacements.observe(int(steps[draw]), weights)
    return displacements.diffusion(seconds_per_step, num_temperatures)


@dataclass(frozen=True)
class MeasuredDiffusion:
    """Displacements, time per step and observables of a timed run."""

    diffusion: Diffusion | None  # displacements; None where a chain failed
    num_steps: int
    seconds: float  # time of these steps, measurements of the gradient variance included
    refresh_seconds: float  # time of the measurements of the gradient variance
    observables: dict[str, Floats]  # loss, squared_norm and error, (chain, observation)
    states: Any  # states of the chains at the end

    @property
    def stopped(self) -> bool:
        """Whether a chain failed."""
        return self.diffusion is None

    @property
    def seconds_per_step(self) -> float:
        """Mean time per step, measurements of the gradient variance included."""
        return self.seconds / self.num_steps if self.num_steps else math.nan

    @property
    def coefficient(self) -> Average:
        """D*/N of the first temperature in 1/s; NaN where a chain failed."""
        if self.diffusion is None:
            return Average(math.nan, math.nan, math.nan)
        return Average(float(self.diffusion.coefficient[0]), float(self.diffusion.coefficient_error[0]), math.nan)


def measure_diffusion(
    run: Run,
    states: Any,
    *,
    every: int,
    seconds: float,
    discard_steps: int | None = None,
    max_steps: int = 2**30,
    observe: bool = False,
) -> MeasuredDiffusion:
    """Run chains for some time and measure at least one displacement in wall-clock time.

    The clock stands still during compilation and while observables are computed.

    Args:
        run, states: the chains, and states from `run.start` or an earlier measurement, whose buffers are reused.
        every: steps between records, the shortest interval Δt; it should exceed 1/(1 − c1²).
        seconds: time on the clock.
        discard_steps: steps before the clock starts; default: until after the first refresh, which compiles.
        max_steps: largest number of steps.
        observe: compute loss, |w|² and error on the examples observed by `run`, for up to half of the sampling time.
    """
    check_integer("every", every, minimum=1)
    if not _all_healthy(states):
        return MeasuredDiffusion(None, 0, 0.0, 0.0, {}, states)
    origin = int(np.max(np.asarray(states.step)))
    if discard_steps is None:
        discard_steps = int(np.min(np.asarray(getattr(states, "next_refresh", origin)))) - origin
    stop = origin + max(2, max_steps // every) * every
    records = run.records(states, first=origin, stop=stop, every=stop + 1, pause_every=every)  # nothing is recorded
    record = next(record for record in records if record.step > origin + discard_steps)  # compiles
    displacements, observations = Displacements(), list[dict[str, np.ndarray]]()
    durations: tuple[list[float], list[float]] = ([], [])  # of intervals without and with a refresh
    first, clock, observing = record.step, 0.0, 0.0
    weights = jax.vmap(run.sampler.position)(record.states)
    displacements.observe(first, weights)
    if observe:  # compiles
        jax.block_until_ready(_observe(run.sampler, weights, run.observed, run.chunk_size))
    while _all_healthy(record.states) and record.step < stop and (record.step == first or clock < seconds):
        before, began = _last_refresh(record.states), time.perf_counter()
        record = next(records)
        jax.block_until_ready(record.states)
        duration = time.perf_counter() - began
        durations[_last_refresh(record.states) != before].append(duration)
        clock += duration
        weights = jax.vmap(run.sampler.position)(record.states)
        displacements.observe(record.step, weights)
        if observe and observing <= 0.5 * clock and _all_healthy(record.states):
            began = time.perf_counter()
            observations.append(jax.device_get(_observe(run.sampler, weights, run.observed, run.chunk_size)))
            observing += time.perf_counter() - began
    without, refreshed = map(np.array, durations)
    refresh_seconds = float(max(0.0, np.sum(refreshed - np.median(without)))) if without.size else 0.0
    observables = jax.tree.map(lambda *o: np.stack(o, -1).astype(np.float64), *observations) if observations else {}
    num_steps, healthy = record.step - first, _all_healthy(record.states)
    found = displacements.diffusion(clock / num_steps, len(run.temperatures)) if healthy else None
    return MeasuredDiffusion(found, num_steps, clock, refresh_seconds, observables, record.states)


def _all_healthy(states: Any) -> bool:
    return bool(np.isin(np.asarray(states.status), HEALTHY).all())


def _last_refresh(states: Any) -> int:
    """Return the step of the latest measurement of the gradient variance by any chain; 0 for other samplers."""
    return int(np.max(np.asarray(getattr(states, "last_refresh", 0))))


@jax.jit
def _mean_squared_distance(left: Weights, right: Weights) -> Array:
    """Return |a − b|²/N of every chain."""
    difference = jax.tree.map(jnp.subtract, left, right)
    return jax.vmap(lambda chain: trees.squared_norm(chain) / trees.num_weights(chain))(difference)


@partial(jax.jit, static_argnames="chunk_size")
def _observe(sampler: Any, weights: Weights, dataset: Any, chunk_size: int | None) -> dict[str, Array]:
    """Return loss, |w|² and error of every chain by forward passes."""

    def one(chain: Weights) -> dict[str, Array]:
        sums = exact_sums(sampler.potential, chain, dataset, chunk_size, with_gradient=False)
        found = {"loss": sums.loss.high + sums.loss.low, "squared_norm": trees.squared_norm(chain)}
        return found | ({} if sampler.potential.per_example_error is None else {"error": sums.error})

    return jax.vmap(one)(weights)
