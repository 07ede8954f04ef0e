"""Sampling by the clock: as many records as fit into a given time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import xarray as xr

from ..chains import make_plan
from ..diagnostics.diffusion import Displacements
from ..samplers.base import Sampler
from ..types import Weights


@dataclass(frozen=True)
class TimedRun:
    """What was recorded before time ran out."""

    trace: xr.Dataset
    weights: Weights
    states: Any
    num_steps: int
    seconds: float


def sample_for(
    seconds: float,
    sampler: Sampler,
    weights: Weights,
    *,
    temperatures: Sequence[float] | None,
    num_chains: int,
    record_every: int,
    max_steps: int,
    key: int,
    displacements: Displacements | None = None,
) -> TimedRun:
    """Run for `max_steps` or until `seconds` have passed, whichever comes first; at least one record is made.

    The records themselves do not depend on the clock: the run is the beginning of the one that `sample` would make.
    `displacements` is shown every record, with the time since the first (the making of records included).
    """
    plan = make_plan(
        sampler, temperatures=temperatures, num_chains=num_chains, num_steps=max_steps, record_every=record_every
    )
    started = time.perf_counter()
    states = plan.init(weights, key)
    records = []
    step = 0
    for record in plan.run(states):
        states, step = record.states, record.step
        if record.observables is not None:
            records.append(record.observables)
            if displacements is not None:
                displacements.observe(step, time.perf_counter() - started, states.weights)
        if records and time.perf_counter() - started > seconds:
            break
    stacked = {name: np.stack([r[name] for r in records], axis=1) for name in records[0]}
    one = jax.tree.map(lambda w: w[0], states.weights)
    trace = plan.trace(plan.layout.unflatten(stacked), one)
    return TimedRun(trace, plan.layout.unflatten(states.weights), states, step, time.perf_counter() - started)
