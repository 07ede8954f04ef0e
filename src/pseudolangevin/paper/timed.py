"""Sampling by the clock: as many records as fit into a given time, and a budget that phases share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import xarray as xr

from ..chains import make_plan
from ..data import Dataset
from ..diagnostics.diffusion import Displacements
from ..gradients import DEFAULT_CHUNK_SIZE
from ..samplers.base import Sampler
from ..types import Weights

SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class TimedRun:
    """What was recorded before time ran out."""

    trace: xr.Dataset
    weights: Weights
    states: Any
    num_steps: int
    seconds: float
    times: np.ndarray
    """Seconds since the start at every record, compilation included."""


class Budget:
    """Seconds dealt out to phases in turn: each gets its share of what is left, so none is lost when one ends early."""

    def __init__(self, seconds: float, shares: Mapping[str, float]) -> None:
        """The clock starts now."""
        self._end = time.perf_counter() + seconds
        self._shares = dict(shares)

    def take(self, phase: str) -> float:
        """Seconds for this phase, which is then done with."""
        left = max(0.0, self._end - time.perf_counter())
        seconds = left * self._shares[phase] / sum(self._shares.values())
        del self._shares[phase]
        return seconds


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
    test: Dataset | None = None,
    observe_examples: int | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    label: str | None = None,
    displacements: Displacements | None = None,
) -> TimedRun:
    """Run for `max_steps` or until `seconds` have passed, whichever comes first; at least one record is made.

    The records themselves do not depend on the clock: the run is the beginning of the one that `sample` would make.
    With a `label`, lines of progress are printed; `displacements` is shown every record, with the time since the first
    (the making of records included); the other arguments are those of `sample`.
    """
    plan = make_plan(
        sampler,
        temperatures=temperatures,
        num_chains=num_chains,
        num_steps=max_steps,
        record_every=record_every,
        test=test,
        observe_examples=observe_examples,
        chunk_size=chunk_size,
    )
    started = time.perf_counter()
    states = plan.init(weights, key)
    records: list[dict[str, np.ndarray]] = []
    times: list[float] = []
    step, said = 0, 0.0
    for record in plan.run(states):
        states, step = record.states, record.step
        if record.observables is not None:
            records.append(record.observables)
            times.append(time.perf_counter() - started)
            if displacements is not None:
                displacements.observe(step, times[-1], states.weights)
        elapsed = time.perf_counter() - started
        over = bool(records) and elapsed > seconds
        if label is not None and records and (over or step == max_steps or elapsed > said + SECONDS_BETWEEN_LINES):
            said = elapsed
            print(
                f"{label}: step {step} of {max_steps}, {elapsed:.0f} of {seconds:.0f} s, {_summary(records[-1])}",
                flush=True,
            )
        if over:
            break
    stacked = {name: np.stack([r[name] for r in records], axis=1) for name in records[0]}
    one = jax.tree.map(lambda w: w[0], states.weights)
    trace = plan.trace(plan.layout.unflatten(stacked), one)
    return TimedRun(
        trace,
        plan.layout.unflatten(states.weights),
        states,
        step,
        time.perf_counter() - started,
        np.asarray(times),
    )


def _summary(record: Mapping[str, np.ndarray]) -> str:
    names = [name for name in ("loss", "squared_norm", "error", "test_error") if name in record]
    return ", ".join(f"{name} {np.nanmean(record[name]):.4g}" for name in names)
