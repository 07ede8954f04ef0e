"""What recording costs: the default run as `pseudolangevin sample` makes it, against the same steps without records.

Both go through the same trajectory, record by record in turns, so that a busy machine slows both alike. What does not
come with every record is timed apart and counted as the whole run has it: the making of the stores, checkpoints (one at
the start, one at the end, and those between), and putting records on disk.
"""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from .. import chains
from ..chains import Plan, Record
from ..config import Settings
from ..config.build import build
from ..reports import DeadClassWarning
from ..store.folder import RunFolder
from ..store.writer import FLUSH_SECONDS, MAX_SHARE, Pace, RunWriter
from .clock import Deadline

NEVER = 2**30
"""A `record_every` beyond any run."""
MIN_RECORDS, SHORT_SECONDS = 6, 3.0
"""Records that are compared in any case, where one does not take longer than this."""


def measure(deadline: Deadline, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Shares of the run's time at the default settings, or with `changes` to them (for tests)."""
    settings = Settings.model_validate({"start": {"kind": "random"}} | (changes or {}))
    experiment = build(settings)
    plan = experiment.plan
    weights = experiment.starting_weights()
    with tempfile.TemporaryDirectory() as parent, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadClassWarning)
        # The first folder of a process waits for imports, which are no more part of a run than compilation.
        RunWriter.create(RunFolder.fresh(Path(parent) / "first"), plan, plan.init(weights, 0), settings.recording)
        return _compare(settings, plan, weights, RunFolder.fresh(Path(parent) / "run"), deadline)


def _compare(settings: Settings, plan: Plan, weights: Any, folder: RunFolder, deadline: Deadline) -> dict[str, Any]:
    states = plan.init(weights, 0)
    without_checkpoints = settings.recording.model_copy(update={"checkpoint_every": NEVER})
    began = time.perf_counter()
    at = RunWriter.create(folder, plan, states, settings.recording)
    creation = time.perf_counter() - began  # the first checkpoint included
    writer = RunWriter(folder, plan, states, without_checkpoints, at, written=0)
    writer._flush_pace = Pace(math.inf)
    recorded = plan.run(states, progress=True)
    bare = _bare(plan, plan.init(weights, 0))
    times: dict[str, list[float]] = {"recorded": [], "bare": [], "write": []}
    last: Record | None = None
    for _ in range(plan.num_steps // plan.record_every):
        began = time.perf_counter()
        last = next(recorded)
        measured = time.perf_counter()
        writer.add(last)
        ended = time.perf_counter()
        jax.block_until_ready(next(bare).states)
        done = time.perf_counter()
        for name, seconds in zip(times, (ended - began, done - ended, ended - measured), strict=True):
            times[name].append(seconds)
        enough = len(times["bare"]) > (MIN_RECORDS if done - began < SHORT_SECONDS else 1)
        if enough and deadline.left < 3 * (done - began):
            break
    assert last is not None
    began = time.perf_counter()
    writer.flush()
    flush = time.perf_counter() - began
    checkpoint = _seconds(lambda: writer.checkpoint(last))
    observe = _observe_seconds(plan, last.states)
    recorded.close()  # type: ignore[attr-defined]
    # The first record of each kind waits for the compiler.
    counted = {name: sum(values[1:]) for name, values in times.items()}
    if len(times["bare"]) < 2:
        return {"skipped": f"{len(times['bare'])} records fit into the time; two are needed"}
    num_records = len(times["bare"]) - 1
    step = counted["bare"] / num_records / plan.record_every
    run_seconds = step * plan.num_steps
    between = max(settings.recording.checkpoint_seconds, checkpoint / MAX_SHARE)
    num_checkpoints = 2 + int(run_seconds / between)
    num_flushes = run_seconds / max(FLUSH_SECONDS, flush / MAX_SHARE)
    rarely = (creation + (num_checkpoints - 1) * checkpoint + num_flushes * flush) / run_seconds
    return {
        "settings": {
            "num_chains": plan.layout.size,
            "num_steps": plan.num_steps,
            "record_every": plan.record_every,
            "num_examples_measured": plan.observed.num_examples + (plan.test.num_examples if plan.test else 0),
        },
        "num_records": num_records,
        "seconds_per_step": step,
        "observe_seconds_per_record": observe,
        "write_seconds_per_record": counted["write"] / num_records,
        "checkpoint_seconds": checkpoint,
        "observe_share": observe / (plan.record_every * step),
        "write_share": counted["write"] / counted["bare"],
        "num_checkpoints": num_checkpoints,
        "creation_seconds": creation,
        "flush_seconds": flush,
        "flush_share": num_flushes * flush / run_seconds,
        "checkpoint_share": (creation + (num_checkpoints - 1) * checkpoint) / run_seconds,
        "share": counted["recorded"] / counted["bare"] - 1 + rarely,
    }


def _bare(plan: Plan, states: Any) -> Iterator[Record]:
    """The run without records, cut where there would be one."""
    return chains.run(
        plan.sampler,
        plan.observer,
        states,
        plan.observed,
        plan.test,
        stop=plan.num_steps,
        record_every=NEVER,
        segment=plan.record_every,
    )


def _observe_seconds(plan: Plan, states: Any) -> float:
    """One record's observables, on the host."""

    def observe() -> None:
        record = chains._observe(plan.sampler.kernel, plan.observer, states, plan.observed, plan.test)
        chains.observables.to_host(record)

    return _seconds(observe)


def _seconds(work: Callable[[], Any]) -> float:
    """The median of three times."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return sorted(times)[1]
