"""The order in which a run is written: records, then their count, then, now and then, a checkpoint.

Whatever moment a process dies at, the newest checkpoint is whole, and the records up to `committed.json` are whole.
A run continues from the checkpoint; the records after it are computed again, to the bit.
"""

from __future__ import annotations

import json
import time
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from ..chains import Plan, Record
from . import samples
from .checkpoints import Checkpoint, Checkpoints
from .folder import RunFolder, RunFolderError, read_json, write_atomically
from .samples import SamplesWriter
from .trace import CHUNK, TraceWriter

FLUSH_SECONDS = 1.0
MAX_SHARE = 0.01
"""Of the run's time, for flushing and for checkpoints each: what is slow is done less often."""


class Needs(IntEnum):
    """What of the chains is written with a record."""

    NOTHING = 0
    WEIGHTS = 1
    STATES = 2


class Pace:
    """Says when something is due: after an interval, or later where it would take more than its share of the time."""

    def __init__(self, interval: float) -> None:
        """Start counting."""
        self._interval = interval
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether it is time."""
        return time.monotonic() - self._last >= self._interval

    def done(self, seconds: float) -> None:
        """It was just done and took so long."""
        self._last = time.monotonic()
        self._interval = max(self._interval, seconds / MAX_SHARE)


class RunWriter:
    """Writes the records of one session."""

    def __init__(
        self, folder: RunFolder, plan: Plan, states: Any, recording: Any, at: Checkpoint, *, written: int
    ) -> None:
        """Open the stores at a checkpoint; `written` records were on disk."""
        num_records = plan.num_steps // plan.record_every
        if written > at.records:  # first say so: what is beyond the checkpoint is erased file by file
            _write_committed(folder, at.records, at.kept)
        self._folder, self._plan, self._at = folder, plan, at
        self._trace = TraceWriter(
            folder.trace, plan.empty_trace(states), num_records, recorded=at.records, written=written
        )
        self._keep_every = recording.keep_weights_every
        self._samples = None
        if self._keep_every:
            schema = samples_schema(plan, states, recording)
            steps = self._keep_every * plan.record_every
            self._samples = SamplesWriter(folder.weights, schema, num_records // self._keep_every, steps, kept=at.kept)
        self._checkpoints = Checkpoints(folder.checkpoints, recording.keep_checkpoints)
        self._checkpoint_every = recording.checkpoint_every
        self._checkpoint_pace = Pace(recording.checkpoint_seconds)
        self._flush_pace = Pace(FLUSH_SECONDS)
        self._records, self._lines = at.records, list[str]()
        self.saved_step = at.step  # that of the newest checkpoint
        self._due: bool | None = None
        self._began = time.monotonic()
        self._last_record = (at.step, self._began)
        _truncate_metrics(folder.metrics, at.step)
        _write_committed(folder, at.records, at.kept)

    @staticmethod
    def create(folder: RunFolder, plan: Plan, states: Any, recording: Any) -> Checkpoint:
        """Make the stores of a new run, and its first checkpoint."""
        num_records = plan.num_steps // plan.record_every
        at = Checkpoint(step=0, records=0, kept=0, seconds=0.0)
        Checkpoints(folder.checkpoints, recording.keep_checkpoints).save(at, states)
        TraceWriter.create(folder.trace, plan.empty_trace(states), num_records)
        if recording.keep_weights_every:
            schema = samples_schema(plan, states, recording)
            steps = recording.keep_weights_every * plan.record_every
            SamplesWriter.create(folder.weights, schema, num_records // recording.keep_weights_every, steps)
        folder.metrics.touch()
        _write_committed(folder, 0, 0)
        return at

    @property
    def seconds(self) -> float:
        """Time spent sampling, over all sessions."""
        return self._at.seconds + time.monotonic() - self._began

    def needs(self) -> Needs:
        """What of the chains goes to disk with the next record."""
        next_record = self._records + 1
        self._due = self._checkpoint_due(next_record)
        kept = self._samples is not None and next_record % self._keep_every == 0
        return Needs.STATES if self._due else Needs.WEIGHTS if kept else Needs.NOTHING

    def add(self, record: Record) -> None:
        """Take a record; write it, and a checkpoint, when they are due (if asked, as `needs` said)."""
        assert record.observables is not None
        self._trace.append(record.observables)
        self._records += 1
        if self._samples is not None and self._records % self._keep_every == 0:
            self._samples.append(record.states.weights)
        self._lines.append(self._metrics_line(record))
        due, self._due = self._due, None
        if self._checkpoint_due(self._records) if due is None else due:
            self.checkpoint(record)
        elif self._flush_pace.due() or self._records % CHUNK == 0:
            self.flush()

    def _checkpoint_due(self, record: int) -> bool:
        if self._checkpoint_every is not None:
            return record % self._checkpoint_every == 0
        return self._checkpoint_pace.due()

    def flush(self) -> None:
        """Put all records on disk, then say so."""
        began = time.monotonic()
        self._trace.flush()
        if self._samples is not None:
            self._samples.flush()
        with self._folder.metrics.open("a", encoding="utf-8") as file:
            file.write("".join(self._lines))
        self._lines = []
        _write_committed(self._folder, self._records, self._kept)
        self._flush_pace.done(time.monotonic() - began)

    def checkpoint(self, record: Record) -> None:
        """Write all records, and the states after them."""
        self.flush()
        began = time.monotonic()
        at = Checkpoint(record.step, self._records, self._kept, self.seconds)
        self._checkpoints.save(at, record.states)
        self.saved_step = record.step
        self._checkpoint_pace.done(time.monotonic() - began)

    @property
    def _kept(self) -> int:
        return self._samples.kept if self._samples is not None else 0

    def _metrics_line(self, record: Record) -> str:
        assert record.observables is not None
        layout = self._plan.layout
        loss = layout.unflatten(record.observables["loss"])
        status = layout.unflatten(record.observables["status"])
        counts = np.sum(~np.isnan(loss), axis=1)
        means = np.nansum(loss, axis=1) / np.maximum(counts, 1)
        step, now = self._last_record
        self._last_record = (record.step, time.monotonic())
        speed = (record.step - step) / max(self._last_record[1] - now, 1e-9)
        line = {
            "step": record.step,
            "seconds": round(self.seconds, 3),
            "steps_per_second": float(f"{speed:.4g}"),
            "loss": [float(mean) if count else None for mean, count in zip(means, counts, strict=True)],
            "status": status.tolist(),
        }
        return json.dumps(line) + "\n"


def samples_schema(plan: Plan, states: Any, recording: Any) -> Any:
    """What weights.zarr looks like, from the chains' states or their shapes."""
    one = samples.one_chain(states.weights)
    return samples.schema_of(one, plan.layout.shape, recording.weights_dtype, plan.layout.temperatures)


def read_committed(folder: RunFolder) -> tuple[int, int] | None:
    """How many records and kept weights are whole; None where the run has not begun."""
    if not folder.committed.exists():
        return None
    value = read_json(folder.committed)
    counts = value.get("records"), value.get("kept")
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts):
        raise RunFolderError(f"{folder.committed} is damaged (it says {value}); restore it from a copy")
    return counts  # type: ignore[return-value]


def _write_committed(folder: RunFolder, records: int, kept: int) -> None:
    write_atomically(folder.committed, json.dumps({"records": records, "kept": kept}) + "\n")


def _truncate_metrics(path: Path, step: int) -> None:
    """Drop the lines after a step, and a last line that was not finished."""
    size = 0
    path.touch()
    with path.open("rb+") as file:
        for line in file:
            try:
                if not line.endswith(b"\n") or json.loads(line)["step"] > step:
                    break
            except (ValueError, TypeError, KeyError):
                break
            size += len(line)
        file.truncate(size)
