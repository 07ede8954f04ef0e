"""Mean squared displacement of the weights against steps and wall-clock time, and the paper's D*.

    d²(Δt) = ⟨|w(t + Δt) − w(t)|²⟩,        D* = d²(Δt)/Δt  at the shortest Δt between sampled vectors

(section "Better performance of the pL algorithm"), quoted per weight, D*/N, in 1/s. Within the memory of the momenta,
1/(1 − c1²) steps, weights move ballistically and d²/Δt still grows; beyond the relaxation time it falls. D* is meant
for intervals longer than the first time; two samplers may also be compared at the same Δt (`Diffusion.at`).

`Displacements` accumulates d² from weights shown to it at records of any kind; `diffusion` uses it on kept weights, and
`measure_diffusion` on a run whose steps are timed.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from .. import _trees as trees
from .._checks import check_integer, check_positive
from .._trees import Array, Weights
from ..chains import Result, Run
from ..data import Dataset
from ..gradients import exact_means
from ..samplers.base import HEALTHY, Sampler
from .averages import Floats, average, kept


@dataclass(frozen=True)
class Diffusion:
    """Mean squared displacement per weight, d²/N, at several intervals Δt."""

    steps: Floats
    """Intervals Δt in steps, (lag,)."""
    seconds: Floats
    """Intervals Δt in seconds of sampling at the mean time per step, (lag,)."""
    displacement: Floats
    """Mean of d²/N over chains and starting points, (temperature, lag)."""
    standard_error: Floats
    """Standard error of `displacement` from the scatter over chains and starting points; NaN for a single pair."""

    @property
    def coefficient(self) -> Floats:
        """D*/N of every temperature in 1/s, at the shortest interval."""
        return self.displacement[:, 0] / self.seconds[0]

    @property
    def coefficient_error(self) -> Floats:
        """Standard error of `coefficient`."""
        return self.standard_error[:, 0] / self.seconds[0]

    def at(self, seconds: float) -> Floats:
        """Return d²(Δt)/(N·Δt) at Δt = `seconds`, interpolated; NaN outside of the measured intervals."""
        inside = self.seconds[0] * (1 - 1e-9) <= seconds <= self.seconds[-1] * (1 + 1e-9)
        if not inside:
            return np.full(len(self.displacement), math.nan)
        return np.array([np.interp(seconds, self.seconds, row) for row in self.displacement]) / seconds

    def to_dict(self) -> dict[str, list[float]]:
        """Return the curve of the first temperature, ready for JSON."""
        return {"seconds": self.seconds.tolist(), "displacement_per_weight": self.displacement[0].tolist()}


class Displacements:
    """Accumulator of d² along a run that stores no samples.

    A few copies of the weights serve as reference points; reference k is renewed every 2ᵏ records and contributes the
    intervals of 1 … 2ᵏ records.

    Args:
        num_references: number m of references; the longest interval is 2^(m−1) records.

    Example:
        >>> displacements = Displacements()
        >>> for step in range(1, 9):
        ...     displacements.observe(step, 0.5 * step, jnp.full((1, 4), 3.0 * step))
        >>> float(displacements.diffusion().coefficient[0])
        18.0
    """

    def __init__(self, num_references: int = 8) -> None:
        """Start without records."""
        check_integer("num_references", num_references, minimum=1, maximum=30)
        self._references: dict[int, tuple[int, Weights]] = {}
        self._num_references = num_references
        self._times: list[tuple[int, float]] = []
        self._pairs: dict[int, list[np.ndarray]] = defaultdict(list)

    def observe(self, step: int, seconds: float, weights: Weights) -> None:
        """Add the weights of all chains at one record.

        Args:
            step: number of steps done.
            seconds: time that these steps took, from any origin.
            weights: weights of all chains with one leading axis; copied where they become a reference.
        """
        distinct = dict(self._references.values())  # one reference may serve for several k
        for reference_step, reference in distinct.items():
            distance = np.asarray(_mean_squared_distance(reference, weights), np.float64)
            self._pairs[step - reference_step].append(distance)
        renewed = (step, jax.tree.map(jnp.copy, weights))
        for k in range(self._num_references):
            if len(self._times) % 2**k == 0:
                self._references[k] = renewed
        self._times.append((step, seconds))

    @property
    def num_pairs(self) -> int:
        """Number of pairs of records compared so far."""
        return sum(map(len, self._pairs.values()))

    def diffusion(self, num_temperatures: int = 1) -> Diffusion:
        """Return the displacements; the chains are ordered temperature by temperature."""
        if not self._pairs:
            raise ValueError("a displacement needs two records; run longer or record more often")
        (first_step, first), *_, (last_step, last) = self._times
        lags = np.array(sorted(self._pairs), np.float64)
        pairs = [np.stack(self._pairs[int(lag)], axis=-1).reshape(num_temperatures, -1) for lag in lags]
        errors = [
            values.std(axis=1, ddof=1) / math.sqrt(values.shape[1])
            if values.shape[1] > 1
            else np.full(num_temperatures, np.nan)
            for values in pairs
        ]
        seconds_per_step = (last - first) / (last_step - first_step)
        means = np.stack([values.mean(axis=1) for values in pairs], axis=-1)
        return Diffusion(lags, lags * seconds_per_step, means, np.stack(errors, axis=-1))


def diffusion(result: Result, *, seconds_per_step: float = 1.0, burn_in: float = 0.0) -> Diffusion:
    """Return the displacements between the kept weights of a run (`keep_weights_every`).

    Args:
        result: from `sample` or `load`.
        seconds_per_step: time per step of the sampler, to express Δt in seconds; by default Δt is in steps.
        burn_in: share of the kept draws to discard at the start.

    Example:
        >>> result = sample(sampler, weights, num_steps=1_000, keep_weights_every=1, …)  # doctest: +SKIP
        >>> diffusion(result, seconds_per_step=5e-5).coefficient  # doctest: +SKIP
    """
    check_positive("seconds_per_step", seconds_per_step)
    if result.samples is None:
        raise ValueError("the result holds no kept weights; sample with keep_weights_every=1")
    num_temperatures, num_chains, num_kept = jax.tree.leaves(result.samples)[0].shape[:3]
    kept_every = result.trace.attrs["keep_weights_every"]
    steps = np.asarray(result.trace["step"])[kept_every - 1 :: kept_every]
    displacements = Displacements(max(1, num_kept.bit_length()))
    for draw in kept(np.arange(num_kept, dtype=np.float64), burn_in).astype(int):
        weights = jax.tree.map(
            lambda w, draw=draw: jnp.asarray(w[:, :, draw]).reshape(num_temperatures * num_chains, *w.shape[3:]),
            result.samples,
        )
        displacements.observe(int(steps[draw]), float(steps[draw]) * seconds_per_step, weights)
    return displacements.diffusion(num_temperatures)


@dataclass(frozen=True)
class MeasuredDiffusion:
    """Displacements, time per step and observables of a timed run."""

    diffusion: Diffusion | None
    """Displacements; None where a chain failed."""
    num_steps: int
    """Steps on the clock."""
    seconds: float
    """Time of these steps, measurements of the gradient variance included."""
    refresh_seconds: float
    """Time of one measurement of the gradient variance; 0 where there was none."""
    num_refreshes: int
    """Intervals on the clock with such a measurement."""
    observables: dict[str, Floats]
    """Loss, squared_norm and error, (chain, observation)."""
    states: Any
    """States of the chains at the end."""
    preparation_seconds: float
    """Time before the clock started: compilation and discarded steps."""

    @property
    def stopped(self) -> bool:
        """Whether a chain failed."""
        return self.diffusion is None

    @property
    def seconds_per_step(self) -> float:
        """Mean time per step, measurements of the gradient variance included."""
        return self.seconds / self.num_steps if self.num_steps else math.nan

    @property
    def coefficient(self) -> float:
        """D*/N of the first temperature in 1/s; NaN where a chain failed."""
        return math.nan if self.diffusion is None else float(self.diffusion.coefficient[0])

    @property
    def coefficient_error(self) -> float:
        """Standard error of `coefficient`."""
        return math.nan if self.diffusion is None else float(self.diffusion.coefficient_error[0])


def measure_diffusion(
    run: Run,
    states: Any,
    *,
    every: int,
    seconds: float,
    discard_steps: int | None = None,
    max_steps: int = 2**30,
    observe: bool = False,
    observing_share: float = 0.5,
    chunk_size: int | None = None,
    num_references: int = 10,
) -> MeasuredDiffusion:
    """Run the chains for some time and measure their displacement in wall-clock time.

    The clock runs during steps and measurements of the gradient variance. It stands still during compilation and while
    observables are computed. At least one displacement is measured.

    Args:
        run: the chains, from `Run`.
        states: where they start, from `run.start` or an earlier measurement. The buffers are reused.
        every: steps between records, which is the shortest interval Δt. It should exceed the memory of the momenta,
            1/(1 − c1²) steps.
        seconds: time on the clock.
        discard_steps: steps before the clock starts; default: until after the first refresh, which compiles.
        max_steps: longest run.
        observe: compute loss, |w|² and error of every chain along the way, on the examples observed by `run`.
        observing_share: observables are computed at a record unless they already took this share of the sampling time.
        chunk_size: examples held at once when observing.
        num_references: see `Displacements`.
    """
    check_integer("every", every, minimum=1)
    began = time.perf_counter()
    sampler = run.sampler
    origin = int(np.max(np.asarray(states.step)))
    if discard_steps is None:
        discard_steps = int(np.min(np.asarray(getattr(states, "next_refresh", origin)))) - origin
    stop = origin + max(2, max_steps // every) * every
    records = run.records(states, first=origin, stop=stop, every=stop, pause_every=every)
    record = next(records)  # compiles
    while record.step <= origin + discard_steps:
        record = next(records)
    displacements = Displacements(num_references)
    observations: list[dict[str, Array]] = []
    durations: dict[bool, list[float]] = {True: [], False: []}  # with and without a refresh
    first, clock, observing, healthy = record.step, 0.0, 0.0, _healthy(record.states)
    displacements.observe(first, clock, _positions(sampler, record.states))
    if observe:
        jax.block_until_ready(_observe(sampler, _positions(sampler, record.states), run.observed, chunk_size))
    refreshed_at = _last_refresh(record.states)
    preparation_seconds = time.perf_counter() - began
    while healthy and record.step < stop and (record.step == first or clock < seconds):
        started = time.perf_counter()
        record = next(records)
        jax.block_until_ready(record.states)
        duration = time.perf_counter() - started
        clock += duration
        last_refresh = _last_refresh(record.states)
        durations[last_refresh != refreshed_at].append(duration)
        refreshed_at = last_refresh
        healthy = _healthy(record.states)
        if not healthy:
            break
        weights = _positions(sampler, record.states)
        displacements.observe(record.step, clock, weights)
        if observe and observing <= observing_share * clock:
            started = time.perf_counter()
            observations.append(jax.device_get(_observe(sampler, weights, run.observed, chunk_size)))
            observing += time.perf_counter() - started
    refresh_seconds = 0.0
    if durations[True] and durations[False]:
        refresh_seconds = max(0.0, float(np.mean(durations[True]) - np.median(durations[False])))
    names = observations[0] if observations else {}
    return MeasuredDiffusion(
        diffusion=displacements.diffusion(len(run.temperatures)) if healthy else None,
        num_steps=record.step - first,
        seconds=clock,
        refresh_seconds=refresh_seconds,
        num_refreshes=len(durations[True]),
        observables={name: np.stack([o[name] for o in observations], -1).astype(np.float64) for name in names},
        states=record.states,
        preparation_seconds=preparation_seconds,
    )


def effective_samples_per_second(
    trace: xr.Dataset,
    seconds_per_step: float,
    *,
    burn_in: float = 0.5,
    names: Iterable[str] = ("loss", "squared_norm", "error"),
) -> dict[str, Floats]:
    """Return the independent samples of each observable that all chains of a temperature produce per second.

    Args:
        trace: from `sample`.
        seconds_per_step: time per step of all chains together.
        burn_in: share of the records to discard.
        names: observables; those that the trace does not have are left out.
    """
    check_positive("seconds_per_step", seconds_per_step)
    retained = kept(trace, burn_in)
    seconds = retained.sizes["draw"] * float(trace["step"].values[0]) * seconds_per_step
    return {
        name: np.array([average(chains).effective_samples for chains in retained[name].values]) / seconds
        for name in names
        if name in retained
    }


def _healthy(states: Any) -> bool:
    return bool(np.isin(np.asarray(states.status), HEALTHY).all())


def _last_refresh(states: Any) -> int:
    """Return the step of the latest measurement of the gradient variance by any chain; 0 for other samplers."""
    return int(np.max(np.asarray(getattr(states, "last_refresh", 0))))


@jax.jit
def _positions(sampler: Sampler, states: Any) -> Weights:
    return jax.vmap(sampler.position)(states)


@jax.jit
def _mean_squared_distance(left: Weights, right: Weights) -> Array:
    """Return |a − b|²/N of every chain."""

    def one(a: Weights, b: Weights) -> Array:
        return trees.squared_norm(jax.tree.map(jnp.subtract, a, b)) / trees.num_weights(a)

    return jax.vmap(one)(left, right)


@partial(jax.jit, static_argnames="chunk_size")
def _observe(sampler: Sampler, weights: Weights, dataset: Dataset, chunk_size: int | None) -> dict[str, Array]:
    """Return loss, |w|² and error of every chain by forward passes."""
    potential = sampler.potential
    quantities = {"loss": potential.per_example_loss, "error": potential.per_example_error}
    quantities = {name: quantity for name, quantity in quantities.items() if quantity is not None}

    def one(chain: Weights) -> dict[str, Array]:
        means = exact_means(list(quantities.values()), chain, dataset, chunk_size)
        values = {name: mean.high + mean.low for name, mean in zip(quantities, means, strict=True)}
        return values | {"squared_norm": trees.squared_norm(chain)}

    return jax.vmap(one)(weights)
