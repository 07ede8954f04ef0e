"""Records, kept weights and checkpoints on disk, and the order in which they are written.

A file of records is a line of JSON, the header, a line with its SHA-256, and then records of equal length. A record is
its arrays, one after the other, and a checksum of the header, the number of the record and the arrays. So a damaged,
moved or foreign record is found, and the records before it can be read. A checkpoint is a file of one record.

A checkpoint follows the records now and then, when all records before it are on disk. At
whatever moment a process or the machine ends, the newest checkpoint and the records up to it are complete. A run
continues from there; the records after it are computed again, with the same bits.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from pydantic import BaseModel, Field

from .._trees import Weights, named_leaves
from ..chains import Record
from ..observables import OBSERVABLES
from . import RunFolderError
from .folder import MAX_BYTES, RunFolder, check_own, damaged, open_own, replaced

if TYPE_CHECKING:
    from .build import Experiment

CHECKSUM = 16  # bytes of the SHA-256 that follow a record
BUFFER = 1 << 26  # bytes of records that are checked at a time, or a single record
MAX_SHARE = 0.01  # of the time of a run for checkpoints: slow ones become rarer

Size = Annotated[int, Field(ge=0, lt=2**48)]
Type = Annotated[str, Field(pattern=r"^(bool|u?int(8|16|32|64)|b?float(16|32|64))$")]


class Header(BaseModel):
    """The hashes of the run, the type and shape of every field of a record, and attributes that describe them."""

    format: Literal["pseudolangevin records 2"] = "pseudolangevin records 2"
    run: dict[str, str]
    fields: tuple[tuple[str, Type, tuple[Size, ...]], ...]
    about: dict[str, Any]

    @classmethod
    def of(cls, run: dict[str, str], arrays: Iterable[tuple[str, Any]], **about: Any) -> Header:
        """Return the header of records like these arrays, or their shapes and types."""
        fields = tuple((name, np.dtype(a.dtype).name, tuple(a.shape)) for name, a in arrays)
        return cls(run=run, fields=fields, about=about)

    @classmethod
    def read(cls, path: Path, stream: BinaryIO) -> Header:
        """Read the header of a file, and check it."""
        line, checksum = stream.readline(MAX_BYTES), stream.readline(66)
        if checksum != hashlib.sha256(line).hexdigest().encode() + b"\n":
            raise damaged(path, "its header is incomplete, or its checksum is wrong")
        try:
            return cls.model_validate_json(line, strict=True)
        except ValueError as error:
            raise damaged(path, f"its header is not one of a run: {error}") from None

    @cached_property
    def lines(self) -> bytes:
        """The two lines at the start of the file."""
        line = json.dumps(self.model_dump()).encode() + b"\n"
        return line + hashlib.sha256(line).hexdigest().encode() + b"\n"

    @cached_property
    def _hasher(self) -> Any:
        return hashlib.sha256(self.lines)

    def _begin(self, index: int) -> Any:
        """Return the checksum of a record before its arrays."""
        hasher = self._hasher.copy()
        hasher.update(index.to_bytes(8, "little"))
        return hasher

    def write(self, stream: BinaryIO, index: int, arrays: Mapping[str, Any]) -> None:
        """Write one record."""
        hasher = self._begin(index)
        for name, dtype, shape in self.fields:
            part = np.ascontiguousarray(arrays[name], dtype).reshape(shape).reshape(-1).view(np.uint8).data
            hasher.update(part)
            stream.write(part)
        stream.write(hasher.digest()[:CHECKSUM])

    def is_valid(self, index: int, record: memoryview) -> bool:
        """Return whether the checksum of a record is right."""
        hasher = self._begin(index)
        hasher.update(record[:-CHECKSUM])
        return hasher.digest()[:CHECKSUM] == record[-CHECKSUM:]


class RecordFile(AbstractContextManager["RecordFile"]):
    """A file of records, to read or to extend."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        """Open a file; raise if it is not there or damaged."""
        self.path = path
        try:
            self._stream: Any = os.fdopen(open_own(path, os.O_RDWR if writable else os.O_RDONLY), "rb")
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read: {error.strerror}; restore it from a copy") from None
        try:
            self.header = Header.read(path, self._stream)
        except RunFolderError:
            self._stream.close()
            raise
        sizes = [np.dtype(dtype).itemsize * math.prod(shape) for _, dtype, shape in self.header.fields]
        self._start, self._ends = len(self.header.lines), list(itertools.accumulate(sizes, initial=0))
        self._length = self._ends[-1] + CHECKSUM
        self.recorded = max(0, os.fstat(self._stream.fileno()).st_size - self._start) // self._length

    @staticmethod
    def create(path: Path, header: Header, *records: Mapping[str, Any]) -> None:
        """Write a file with these records."""
        with replaced(path) as stream:
            stream.write(header.lines)
            for index, record in enumerate(records):
                header.write(stream, index, record)

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def truncate(self, recorded: int) -> None:
        """Cut off the records from number `recorded` on."""
        os.ftruncate(self._stream.fileno(), self._start + recorded * self._length)
        self.recorded = recorded

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record after the others."""
        content, end = io.BytesIO(), self._start + self.recorded * self._length
        self.header.write(content, self.recorded, record)
        left = content.getbuffer()
        while left:  # a disk that is nearly full takes a part
            done = os.pwrite(self._stream.fileno(), left, end)
            left, end = left[done:], end + done
        self.recorded += 1

    def sync(self) -> None:
        """Wait until all records are on disk; raise if the file is gone."""
        if not os.path.samestat(os.fstat(self._stream.fileno()), os.lstat(self.path)):
            raise RunFolderError(f"{self.path} was replaced while the run wrote to it; put it back, then resume")
        os.fsync(self._stream.fileno())

    def read(self, first: int = 0, stop: int | None = None) -> tuple[dict[str, np.ndarray], int]:
        """Return the fields of the valid records from `first` to `stop`, and the number where they end."""
        stop = self.recorded if stop is None else min(stop, self.recorded)
        raw = np.zeros((max(0, stop - first), self._length), np.uint8)
        self._stream.seek(self._start + first * self._length)
        found = self._stream.readinto(raw.data) // self._length  # fewer if the file was cut meanwhile
        raw = raw[: next((n for n in range(found) if not self.header.is_valid(first + n, raw[n].data)), found)]
        parts = zip(self.header.fields, itertools.pairwise(self._ends), strict=True)
        fields = {name: raw[:, low:high].view(d).reshape(len(raw), *shape) for (name, d, shape), (low, high) in parts}
        return fields, first + len(raw)

    def num_valid(self) -> int:
        """Return the number of valid records before the first bad one; no more than `BUFFER` is in memory at a time."""
        valid, many = 0, max(1, BUFFER // self._length)
        while valid < self.recorded:
            stop = min(valid + many, self.recorded)
            if (valid := self.read(valid, stop)[1]) < stop:
                break
        return valid


@dataclass(frozen=True)
class Checkpoint:
    """The position of a run: steps done, records and kept weights written, and seconds of sampling in all sessions."""

    step: int = 0
    records: int = 0
    kept: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Checkpoints:
    """The newest checkpoints of a run, STEP.checkpoint; other files in their folder are left alone."""

    path: Path  # of the folder
    keep: int = 3

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, oldest first."""
        names = os.listdir(self.path) if check_own(self.path, stat.S_ISDIR) else []
        return sorted(int(name[:10]) for name in names if re.fullmatch(r"[0-9]{10}\.checkpoint", name))

    def file(self, step: int) -> Path:
        """Return the path of a checkpoint."""
        return self.path / f"{step:010d}.checkpoint"

    def save(self, at: Checkpoint, states: Any, run: dict[str, str]) -> None:
        """Write a checkpoint of the run with these hashes, then remove the oldest ones."""
        arrays = {name: jax.random.key_data(leaf) if _is_key(leaf) else leaf for name, leaf in numbered(states)}
        header = Header.of(run, arrays.items(), at=asdict(at), prng=str(jax.random.key_impl(states.key)))
        RecordFile.create(self.file(at.step), header, arrays)
        for step in self.steps()[: -self.keep]:
            _remove(self.file(step))

    def restore(self, step: int, like: Any, run: dict[str, str]) -> tuple[Checkpoint, Any]:
        """Return a checkpoint with its states in the structure of `like`; raise if it is damaged or of another run."""
        path, leaves = self.file(step), []
        try:
            with RecordFile(path) as file:
                about, (arrays, bad) = file.header.about, file.read(0, 1)
            if bad != 1 or file.header.run != run:
                raise ValueError("its checksum is wrong" if bad != 1 else "it is of a run with other settings or data")
            for name, leaf in numbered(like):  # on the host: the placement decides which device gets which part
                value: Any = arrays[name][0] if name in arrays else np.zeros(0)
                value = jax.random.wrap_key_data(jnp.asarray(value), impl=about["prng"]) if _is_key(leaf) else value
                if (value.shape, value.dtype) != (leaf.shape, leaf.dtype):
                    raise ValueError(f"{name} is missing or has another shape")
                leaves.append(value)
            return Checkpoint(**about["at"]), jax.tree.unflatten(jax.tree.structure(like), leaves)
        except RunFolderError:
            raise
        except Exception as error:  # a foreign header fails in many ways
            raise damaged(path, error) from None

    def clean(self, newer_than: int = -1) -> None:
        """Remove the checkpoints after a step, and what a killed process left of others."""
        newer = [self.file(step) for step in self.steps() if step > newer_than]
        for file in (*newer, *self.path.glob(".??????????.checkpoint.partial")):
            _remove(file)


def _remove(file: Path) -> None:
    if check_own(file):
        file.unlink()


def numbered(tree: Any) -> Iterator[tuple[str, Any]]:
    """Return the leaves of a tree with names that are all different."""
    return ((f"{index} {name}", leaf) for index, (name, leaf) in enumerate(named_leaves(tree)))


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def headers(experiment: Experiment, states: Any) -> tuple[Header, Header]:
    """Return the headers of the trace and of the kept weights; `states` are those of the chains, or their shapes."""
    run, empty = experiment.run, experiment.run.trace(states, [], 1)
    variables = {str(name): array for name, array in empty.data_vars.items()}
    fields = [(name, jax.ShapeDtypeStruct((*a.shape[:2], *a.shape[3:]), a.dtype)) for name, a in variables.items()]
    labels: dict[str, Any] = {"observed_examples": run.observed.num_examples}
    labels["variables"] = {name: [list(array.dims), array.attrs] for name, array in variables.items()}
    labels["coords"] = {str(c): a.values.tolist() for c, a in empty.coords.items() if c not in ("draw", "step")}
    dtype = experiment.settings.recording.weights_dtype
    kept = [(n, jax.ShapeDtypeStruct((*run.shape, *w.shape[1:]), dtype)) for n, w in numbered(states.weights)]
    step, seconds = ("step", np.int64()), ("seconds", np.float64())
    hashes = experiment.hashes
    return Header.of(hashes, [step, seconds, *fields], **labels), Header.of(hashes, [step, *kept])


class Writer:
    """Writes the records and checkpoints of one session."""

    def __init__(self, folder: RunFolder, experiment: Experiment, at: Checkpoint) -> None:
        """Open the files of a run at a checkpoint; what was written after it will be written again."""
        self._at, self._experiment, self._recording = at, experiment, experiment.settings.recording
        self._checkpoints = Checkpoints(folder.checkpoints, self._recording.keep_checkpoints)
        with ExitStack() as stack:
            self._trace = stack.enter_context(RecordFile(folder.trace, writable=True))
            self._weights = stack.enter_context(RecordFile(folder.weights, writable=True))
            self._trace.truncate(at.records)
            self._weights.truncate(at.kept)
            self.close = stack.pop_all().close
        self._began = time.monotonic()
        self._next_checkpoint, self.saved_step = self._began + self._recording.checkpoint_seconds, at.step

    @staticmethod
    def create(folder: RunFolder, experiment: Experiment, states: Any) -> None:
        """Make the files of a new run, the trace last: a run with a trace has begun."""
        checkpoints = Checkpoints(folder.checkpoints)
        _remove(folder.trace)
        _remove(folder.weights)
        folder.checkpoints.mkdir(exist_ok=True)
        checkpoints.clean()  # raises if the folder is a link
        trace, weights = headers(experiment, states)
        checkpoints.save(Checkpoint(), states, experiment.hashes)
        RecordFile.create(folder.weights, weights)
        RecordFile.create(folder.trace, trace)

    @property
    def seconds(self) -> float:
        """Seconds of sampling, in all sessions."""
        return self._at.seconds + time.monotonic() - self._began

    def checkpoint_due(self, step: int) -> bool:
        """Return whether a checkpoint is due at this step."""
        every = self._recording.checkpoint_every
        return time.monotonic() >= self._next_checkpoint if every is None else step % every == 0

    def add(self, record: Record, kept: Weights | None) -> None:
        """Write a record, and weights to keep."""
        values = {name: self._experiment.run.split(value) for name, value in record.observables.items()}  # type: ignore[union-attr]
        self._trace.append(values | {"step": record.step, "seconds": self.seconds})
        if kept is not None:
            self._weights.append(dict(numbered(kept)) | {"step": record.step})

    def checkpoint(self, step: int, states: Any) -> None:
        """Wait until all records are on disk, then write the states."""
        began = time.monotonic()
        self._trace.sync()
        self._weights.sync()
        at = Checkpoint(step, self._trace.recorded, self._weights.recorded, self.seconds)
        self._checkpoints.save(at, states, self._experiment.hashes)
        self.saved_step, ended = step, time.monotonic()
        self._next_checkpoint = ended + max(self._recording.checkpoint_seconds, (ended - began) / MAX_SHARE)


def to_dataset(header: Header, values: Mapping[str, np.ndarray]) -> xr.Dataset:
    """Return records of a trace as a labelled data set, with `seconds` as a coordinate."""
    variables = {
        name: (dims, np.ascontiguousarray(np.moveaxis(values[name], 0, 2)), attrs)
        for name, (dims, attrs) in header.about["variables"].items()
    }
    coords = header.about["coords"] | {"draw": np.arange(len(values["step"]))}
    coords |= {name: ("draw", values[name]) for name in ("step", "seconds")}
    every = int(np.diff(values["step"][-2:], prepend=0)[-1]) if len(values["step"]) else 1
    observed = header.about["observed_examples"]
    return xr.Dataset(variables, coords, {"observed_examples": observed, "record_every": every})


def read_trace(path: str | Path, last: int | None = None) -> xr.Dataset | None:
    """Return the records (or the `last` ones) of a run that may still be written; None if they cannot be read."""
    try:
        with RecordFile(RunFolder(path).trace) as file:
            trace = to_dataset(file.header, file.read(max(0, file.recorded - (last or file.recorded)))[0])
        trace["status"].transpose("temperature", "chain", "draw")  # raises if they are not its dimensions
        return trace.assign_coords(temperature=trace["temperature"].astype(float))
    except Exception:  # a foreign header fails in many ways
        return None


def in_order(trace: xr.Dataset) -> list[str]:
    """Return the names of the variables of a trace: built-in ones in the order of their table, then the user's own."""
    known = [*OBSERVABLES]
    return sorted(map(str, trace.data_vars), key=lambda name: known.index(name) if name in known else len(known))
