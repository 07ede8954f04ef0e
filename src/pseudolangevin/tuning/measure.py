"""A sampler at work, by the clock: seconds per step, displacement of the weights, and averages on the whole data set.

The clock runs while the sampler does (steps, and measurements of 𝒱 where it needs them) and stands still while programs
compile and observables are computed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from .. import trees
from ..chains import MAX_STEPS, make_plan
from ..data import Dataset
from ..diagnostics.averages import Floats, average, discard
from ..diagnostics.diffusion import Diffusion, Displacements
from ..diagnostics.stationarity import drift
from ..gradients import DEFAULT_CHUNK_SIZE, exact_means
from ..potential import Potential
from ..samplers.base import Sampler
from ..types import Array, Status, Weights

OBSERVING_SHARE = 0.5
"""Observables are computed at a record unless that has already taken this share of the sampler's own time."""
BURN_IN = 0.4
"""Share of the observations discarded before averages are taken."""
DRIFT_SIGNIFICANCE = 3.0
"""A drift of so many standard errors counts as part of an average's uncertainty."""


@dataclass(frozen=True)
class Estimate:
    """An equilibrium average."""

    mean: float
    uncertainty: float
    """Standard error, autocorrelation included, and the drift where there is a significant one; infinite if unknown."""
    effective_samples: float


@dataclass(frozen=True)
class Measured:
    """What one sampler did."""

    sampler: Sampler
    num_steps: int
    """Steps on the clock."""
    seconds: float
    """On the clock."""
    refresh_seconds: float
    """One measurement of 𝒱; 0 where there was none."""
    variance_share: float
    """Of the time, spent on measuring 𝒱."""
    diffusion: Diffusion | None
    """None where a chain stopped."""
    observables: dict[str, Floats]
    """Loss, |w|² and error (chain, observation)."""
    states: Any
    stopped: bool
    """Whether a chain turned non-finite."""
    preparation_seconds: float
    """Before the clock ran: compilation, and what was discarded."""

    @property
    def seconds_per_step(self) -> float:
        """Measurements of 𝒱 included."""
        return self.seconds / self.num_steps if self.num_steps else math.nan

    @property
    def weights(self) -> Weights:
        """Where the chains are now, leading axes (1, chain)."""
        return jax.tree.map(lambda w: w[None], self.states.weights)

    @property
    def relative_diffusion(self) -> float:
        """D*/N in 1/s of one chain."""
        return math.nan if self.diffusion is None else float(self.diffusion.coefficient[0])

    def estimates(self) -> dict[str, Estimate]:
        """Averages over the second part of the run."""
        return {name: estimate(values) for name, values in self.observables.items()}


def estimate(values: Floats) -> Estimate:
    """The average of (chain, observation) after burn-in, honest about a drift."""
    if values.shape[-1] == 0:
        return Estimate(math.nan, math.inf, 0.0)
    mean, error, effective = average(values, burn_in=BURN_IN)
    if not math.isfinite(error):
        return Estimate(mean, math.inf, 0.0)
    drifted = [_drifted(chain) for chain in discard(values, BURN_IN)]
    return Estimate(mean, math.hypot(error, max(drifted)), effective)


def _drifted(chain: Floats) -> float:
    """By how much, where it is significant; where there are too few values to say so, the way between the halves."""
    found = drift(chain)
    if math.isfinite(found.standard_error):
        return abs(found.change) if abs(found.change) > DRIFT_SIGNIFICANCE * found.standard_error else 0.0
    half = len(chain) // 2
    return abs(float(np.mean(chain[-half:]) - np.mean(chain[:half])))


def measure(
    sampler: Sampler,
    weights: Weights,
    *,
    temperature: float,
    segment: int,
    seconds: float,
    num_chains: int = 1,
    discard_steps: int = 0,
    observe: bool = True,
    observe_examples: int | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    num_references: int = 10,
    key: int = 0,
) -> Measured:
    """Run a sampler for some time, watching it every `segment` steps.

    Args:
        sampler: any sampler with a temperature.
        weights: the start, as for `sample`.
        temperature: T.
        segment: steps between records: the shortest interval of the displacements. It should exceed the memory of the
            momenta, and divide or be divided by the interval between measurements of 𝒱.
        seconds: wall-clock time, compilation excluded; there is at least one displacement.
        num_chains: chains side by side; D* is then that of each, slowed by its company.
        discard_steps: leave out so many steps at the start.
        observe: compute loss, |w|² and error.
        observe_examples: the first so many examples only, for loss and error; default: all.
        chunk_size: examples held at once when observing.
        num_references: see `diagnostics.Displacements`.
        key: seed.
    """
    plan = make_plan(
        sampler, temperatures=[temperature], num_chains=num_chains, num_steps=MAX_STEPS, record_every=MAX_STEPS
    )
    began = time.perf_counter()
    records = plan.run(plan.init(weights, key), segment=segment, progress=False)
    initialisation = time.perf_counter() - began
    run = watch(
        sampler,
        ((record.step, record.states) for record in records),
        seconds=seconds,
        # The first segment, and the first refresh, compile.
        discard_steps=max(discard_steps, sampler.kernel.refresh_every or 0, segment - 1),
        observe=observe,
        observe_examples=observe_examples,
        chunk_size=chunk_size,
        num_references=num_references,
    )
    return replace(run, preparation_seconds=run.preparation_seconds + initialisation)


def watch(
    sampler: Sampler,
    records: Iterator[tuple[int, Any]],
    *,
    seconds: float,
    discard_steps: int = 0,
    displacement_every: int = 1,
    observe: bool = True,
    observe_examples: int | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    num_references: int = 10,
) -> Measured:
    """`measure` for chains that are moved by `records`: an iterator over (step, states), asked under the clock.

    Displacements are those over multiples of `displacement_every` steps, where a record falls there.
    """
    observed = sampler.dataset
    if observe_examples is not None:
        observed = observed.head(min(observe_examples, observed.num_examples))
    began = time.perf_counter()
    first, states = next(records)
    while first <= discard_steps:
        first, states = next(records)
    jax.block_until_ready(states)
    displacements = Displacements(num_references)
    observations: list[dict[str, np.ndarray]] = []
    step, clock, observing = first, 0.0, 0.0
    displacements.observe(first, clock, states.weights)
    if observe:  # compiles
        jax.block_until_ready(_observe(sampler.potential, chunk_size, states.weights, observed))
    durations: dict[bool, list[float]] = {True: [], False: []}
    refreshed_at = _last_refresh(states)
    preparation_seconds = time.perf_counter() - began
    began = time.perf_counter()
    stopped = False
    while not stopped and (not displacements.num_pairs or time.perf_counter() - began <= seconds):
        started = time.perf_counter()
        step, states = next(records)
        jax.block_until_ready(states)
        duration = time.perf_counter() - started
        clock += duration
        last = _last_refresh(states)
        durations[last != refreshed_at].append(duration)
        refreshed_at = last
        stopped = bool(np.any(np.asarray(states.status) != Status.RUNNING))
        if stopped:
            continue
        if (step - first) % displacement_every == 0:
            displacements.observe(step, clock, states.weights)
        if observe and observing <= OBSERVING_SHARE * clock:
            started = time.perf_counter()
            values = _observe(sampler.potential, chunk_size, states.weights, observed)
            observations.append({name: np.asarray(value, np.float64) for name, value in values.items()})
            observing += time.perf_counter() - started
    refresh_seconds = 0.0
    if durations[True] and durations[False]:
        refresh_seconds = max(0.0, float(np.mean(durations[True]) - np.median(durations[False])))
    names = observations[0] if observations else {}
    return Measured(
        sampler=sampler,
        num_steps=step - first,
        seconds=clock,
        refresh_seconds=refresh_seconds,
        variance_share=min(1.0, refresh_seconds * len(durations[True]) / clock),
        diffusion=displacements.diffusion() if displacements.num_pairs and not stopped else None,
        observables={name: np.stack([o[name] for o in observations], axis=-1) for name in names},
        states=states,
        stopped=stopped,
        preparation_seconds=preparation_seconds,
    )


def _last_refresh(states: Any) -> int:
    """Step of the latest measurement of 𝒱 by any chain; 0 for samplers that make none."""
    return int(np.max(np.asarray(states.last_refresh))) if hasattr(states, "last_refresh") else 0


@partial(jax.jit, static_argnames=("potential", "chunk_size"))
def _observe(potential: Potential, chunk_size: int, weights: Weights, dataset: Dataset) -> dict[str, Array]:
    """Loss, |w|² and error of every chain, forward passes only; the same program for every sampler."""

    def one(chain: Weights) -> dict[str, Array]:
        quantities = {"loss": potential.per_example_loss}
        if potential.per_example_error is not None:
            quantities["error"] = potential.per_example_error
        means = exact_means(list(quantities.values()), chain, dataset, chunk_size)
        values = {name: mean.high + mean.low for name, mean in zip(quantities, means, strict=True)}
        return values | {"squared_norm": trees.squared_norm(chain)}

    return jax.vmap(one)(weights)
