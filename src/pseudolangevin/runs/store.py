"""Records, kept weights and checkpoints on disk, and the order in which they are written.

Records come first, then their number in committed.json, then, now and then, a checkpoint. At whatever moment a process
ends, the newest checkpoint and the records up to that number are complete. A run continues from the checkpoint; the
records after it are computed again, with the same bits.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
import zarr

from .._trees import Weights, named_leaves
from ..chains import Record, Run
from .config import Settings
from .folder import RunFolder, RunFolderError, read_json, replaced, write_atomically

CHUNK = 128  # records per file of an observable
LARGE_CHUNK = 1 << 27  # bytes above which every chain has files of its own
BUFFER = 1 << 26  # bytes of draws that wait in memory, or a single draw if that is larger
FILL = {"f": np.nan, "b": False}  # values that stand for no record; integers: -1
MAX_SHARE = 0.01  # of the time of a run for writing records, and as much for checkpoints: slow writes become rarer


@dataclass(frozen=True)
class Checkpoint:
    """The position of a run: steps done, records and kept weights written, and seconds of sampling in all sessions."""

    step: int = 0
    records: int = 0
    kept: int = 0
    seconds: float = 0.0


class Checkpoints:
    """The newest checkpoints of a run: STEP.npz, and its checksum STEP.sha256, without which it is incomplete."""

    def __init__(self, path: Path, keep: int = 3) -> None:
        """Use the folder `path`, with at most `keep` checkpoints."""
        self._path, self._keep = path, keep

    def steps(self) -> list[int]:
        """Return the steps of complete checkpoints, oldest first."""
        return sorted(int(file.stem) for file in self._files() if file.suffix == ".sha256")

    def save(self, at: Checkpoint, states: Any) -> None:
        """Write a checkpoint, then remove the oldest ones."""
        file, checksum = self._pair(at.step)
        meta = json.dumps(asdict(at) | {"prng": str(jax.random.key_impl(states.key))}).encode()
        arrays: dict[str, Any] = {"meta": np.frombuffer(meta, np.uint8)}
        for name, leaf in named_leaves(states):
            arrays[f"states.{name}"] = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        self._path.mkdir(exist_ok=True)
        checksum.unlink(missing_ok=True)  # so that a checkpoint that is being replaced does not count
        with replaced(file) as stream:
            np.savez(stream, **arrays)
        write_atomically(checksum, f"{_sha256(file)}  {file.name}\n")
        for step in self.steps()[: -self._keep]:
            self._remove(step)

    def newest(self, like: Any) -> tuple[Checkpoint, Any, list[str]]:
        """Return the newest valid checkpoint, with states in the structure of `like`, and notes on damaged ones."""
        notes: list[str] = []
        for step in reversed(self.steps()):
            try:
                return *self._restore(step, like), notes
            except Exception as error:  # damaged files fail in many ways
                why = " ".join(str(error).split())[:160] or type(error).__name__
                notes.append(f"checkpoint {self._pair(step)[0]} is damaged ({why}); falling back to the one before")
        why = notes[0] if notes else "there is none"
        raise RunFolderError(f"{self._path} has no valid checkpoint ({why}); sample again into a new folder")

    def clean(self, newer_than: int) -> None:
        """Remove the checkpoints after a step, and incomplete ones."""
        complete = self.steps()
        for step in {int(file.stem) for file in self._files()}:
            if step > newer_than or step not in complete:
                self._remove(step)

    def _restore(self, step: int, like: Any) -> tuple[Checkpoint, Any]:
        file, checksum = self._pair(step)
        if checksum.read_text().split()[:1] != [_sha256(file)]:
            raise ValueError("its checksum is wrong")
        with np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
        meta = json.loads(arrays["meta"].tobytes())
        prng, leaves = meta.pop("prng"), []
        for name, leaf in named_leaves(like):  # on the host: the placement decides which device gets which part
            value: Any = arrays[f"states.{name}"]
            value = jax.random.wrap_key_data(jnp.asarray(value), impl=prng) if _is_key(leaf) else value
            if (value.shape, value.dtype) != (leaf.shape, leaf.dtype):
                raise ValueError(f"{name} has shape {value.shape} and type {value.dtype}, not those of this run")
            leaves.append(value)
        return Checkpoint(**meta), jax.tree.unflatten(jax.tree.structure(like), leaves)

    def _remove(self, step: int) -> None:
        file, checksum = self._pair(step)
        checksum.unlink(missing_ok=True)  # first, so that an incomplete checkpoint never counts
        file.unlink(missing_ok=True)

    def _pair(self, step: int) -> tuple[Path, Path]:
        return self._path / f"{step:010d}.npz", self._path / f"{step:010d}.sha256"

    def _files(self) -> list[Path]:
        files = self._path.iterdir() if self._path.is_dir() else ()
        return [file for file in files if re.fullmatch(r"\d{10}\.(npz|sha256)", file.name)]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class Store:
    """Arrays of a Zarr group that are filled draw by draw.

    They have their final length from the start, with NaN (integers: -1) where nothing is recorded yet, so the group
    opens with `xarray.open_zarr` at any time. Zarr replaces files atomically: a crash loses nothing that was on disk.
    """

    def __init__(self, path: Path, schema: xr.Dataset, recorded: int, mode: Literal["r", "r+"] = "r") -> None:
        """Open the arrays of `schema`, an example without draws, behind the first `recorded` draws."""
        self.path, self.recorded, self._pending = path, recorded, list[dict[str, np.ndarray]]()
        self._arrays: dict[str, tuple[Any, int]] = {}
        with _damage(path):
            self._group = zarr.open_group(path, mode=mode, zarr_format=3, use_consolidated=False)
        for key, variable in schema.data_vars.items():
            name, axis = str(key), _draw_axis(variable)
            with _damage(path / name):
                array: Any = self._group[name]
                length = array.shape[axis] if array.ndim == variable.ndim else -1
            if array.shape != _with_length(variable, length) or length < recorded or array.dtype != variable.dtype:
                wanted = f"{_with_length(variable, recorded)} or longer, and type {variable.dtype}"
                why = f"has shape {array.shape} and type {array.dtype}, where config.toml requires {wanted}"
                raise RunFolderError(f"{path / name} {why}; restore both from a copy")
            self._arrays[name] = (array, axis)

    @staticmethod
    def create(path: Path, schema: xr.Dataset, length: int, chunk: int) -> None:
        """Make the arrays with `chunk` draws per file, and the coordinates; single draws are not compressed."""
        encoding: dict[Any, Any] = {}
        for name, variable in schema.data_vars.items():
            chunks = [max(1, size) for size in _with_length(variable, chunk)]
            if math.prod(chunks) * variable.dtype.itemsize > LARGE_CHUNK:
                chunks[:2] = 1, 1
            encoding[name] = {"chunks": tuple(chunks), "fill_value": FILL.get(variable.dtype.kind, -1)}
            if chunk == 1:
                encoding[name]["compressors"] = ()  # weights are noise, which compression does not shorten
        text = {name: values.astype(object) for name, values in schema.coords.items() if values.dtype.kind == "U"}
        schema = schema.drop_vars("draw", errors="ignore").assign_attrs(coordinates="step seconds")
        schema.assign_coords(text).to_zarr(path, mode="w", zarr_format=3, consolidated=False, encoding=encoding)
        Store(path, schema, 0, "r+").set_length(length)

    def set_length(self, length: int) -> None:
        """Set the length of all arrays; until the end, the consolidated metadata have the old one, which is valid."""
        if any(array.shape[axis] != length for array, axis in self._arrays.values()):
            for array, axis in self._arrays.values():
                array.resize((*array.shape[:axis], length, *array.shape[axis + 1 :]))
        _consolidate(self._group)

    def append(self, draw: Mapping[str, Any]) -> None:
        """Take one draw, with one leading axis over all chains; it is on disk after `flush`."""
        copy = {}  # in the final type: the buffers of the chains are used again by the next segment
        for name, (array, axis) in self._arrays.items():
            copy[name] = np.array(draw[name], array.dtype).reshape((*array.shape[:axis], *array.shape[axis + 1 :]))
        self._pending.append(copy)
        if len(self._pending) * sum(value.nbytes for value in copy.values()) > BUFFER:
            self.flush()

    def flush(self) -> None:
        """Write the draws that were taken."""
        stop = self.recorded + len(self._pending)
        for name, (array, axis) in self._arrays.items() if self._pending else ():
            values = np.stack([draw[name] for draw in self._pending], axis)
            array[(slice(None),) * axis + (slice(self.recorded, stop),)] = values
        self.recorded, self._pending = stop, []

    def read(self, start: int = 0, stop: int | None = None, without: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """Return the draws from `start` to `stop`, or to the last one, of the arrays in the order of the schema."""
        values, draws = {}, slice(start, self.recorded if stop is None else stop)
        for name, (array, axis) in self._arrays.items():
            if name not in without:
                with _damage(self.path / name):
                    values[name] = np.asarray(array[(slice(None),) * axis + (draws,)])
        return values


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Turn any error in reading a Zarr file into one line with the remedy."""
    try:
        yield
    except Exception as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        remedy = "restore it from a copy, or sample again into a new folder"
        raise RunFolderError(f"{path} is damaged ({why}); {remedy}") from error


def _draw_axis(variable: xr.DataArray) -> int:
    """Return the axis of the draws, or -1 if there is none."""
    return next((axis for axis, dim in enumerate(variable.dims) if dim in ("draw", "kept_draw")), -1)


def _with_length(variable: xr.DataArray, length: int) -> tuple[int, ...]:
    axis = _draw_axis(variable)
    return (*variable.shape[:axis], length, *variable.shape[axis + 1 :])


def _consolidate(group: zarr.Group) -> None:
    """Copy the shapes of all arrays into one file, so that a reader sees either all old lengths or all new ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata are an extension of the Zarr 3 specification
        zarr.consolidate_metadata(group.store)


def open_stores(
    folder: RunFolder, run: Run, states: Any, settings: Settings, counts: Sequence[int], mode: Literal["r", "r+"] = "r"
) -> tuple[Store, Store]:
    """Open the trace and the kept weights; `states` are those of the chains, or their shapes."""
    trace, weights = _schemas(run, states, settings)
    return Store(folder.trace, trace, counts[0], mode), Store(folder.weights, weights, counts[1], mode)


def _schemas(run: Run, states: Any, settings: Settings) -> tuple[xr.Dataset, xr.Dataset]:
    """Return trace.zarr and weights.zarr without draws."""
    trace = run.empty_trace(states, settings.record_every).reset_coords("step")
    trace = trace.assign(seconds=("draw", np.zeros(0), {"long_name": "seconds of sampling, in all sessions"}))
    weights: dict[str, Any] = {"step": ("kept_draw", np.zeros(0, np.int64))}
    for name, leaf in named_leaves(states.weights):
        dims = ("temperature", "chain", "kept_draw", *(f"{name}_{axis}" for axis in range(leaf.ndim - 1)))
        weights[name] = (dims, np.zeros((*run.shape, 0, *leaf.shape[1:]), settings.recording.weights_dtype))
    coords = {"temperature": list(run.temperatures), "chain": np.arange(run.num_chains)}
    return trace, xr.Dataset(weights, coords)


class Writer:
    """Writes the records and checkpoints of one session."""

    def __init__(self, folder: RunFolder, run: Run, states: Any, settings: Settings, at: Checkpoint) -> None:
        """Open the files of a run at a checkpoint; what was written after it will be written again."""
        self._folder, self._at, self._recording = folder, at, settings.recording
        _write_committed(folder, at.records, at.kept)  # first, since draws beyond may be cut off
        self._trace, self._weights = open_stores(folder, run, states, settings, (at.records, at.kept), "r+")
        self._trace.set_length(settings.num_records)
        self._weights.set_length(settings.num_kept)
        self._flushing, self._saving = _Pace(1.0), _Pace(self._recording.checkpoint_seconds)
        self._began, self._records, self.saved_step = time.monotonic(), at.records, at.step

    @staticmethod
    def create(folder: RunFolder, run: Run, states: Any, settings: Settings) -> None:
        """Make the files of a new run, committed.json last."""
        trace, weights = _schemas(run, states, settings)
        Checkpoints(folder.checkpoints).save(Checkpoint(), states)
        Store.create(folder.trace, trace, settings.num_records, CHUNK)
        Store.create(folder.weights, weights, settings.num_kept, 1)
        _write_committed(folder, 0, 0)

    @property
    def seconds(self) -> float:
        """Seconds of sampling, in all sessions."""
        return self._at.seconds + time.monotonic() - self._began

    def checkpoint_due(self, step: int) -> bool:
        """Return whether a checkpoint is due at this step."""
        every = self._recording.checkpoint_every
        return self._saving.due() if every is None else step % every == 0

    def add(self, record: Record, kept: Weights | None) -> None:
        """Take a record, and weights to keep; they are on disk after at most a second or so."""
        if record.observables is None:
            return
        self._trace.append(record.observables | {"step": record.step, "seconds": self.seconds})
        if kept is not None:
            self._weights.append(dict(named_leaves(kept)) | {"step": record.step})
        self._records += 1
        if self._flushing.due() or self._records % CHUNK == 0:
            self.flush()

    def flush(self) -> None:
        """Write all records, then their number."""
        with self._flushing.timed():
            self._trace.flush()
            self._weights.flush()
            _write_committed(self._folder, self._trace.recorded, self._weights.recorded)

    def checkpoint(self, step: int, states: Any) -> None:
        """Write all records, then the states."""
        self.flush()
        with self._saving.timed():
            at = Checkpoint(step, self._trace.recorded, self._weights.recorded, self.seconds)
            Checkpoints(self._folder.checkpoints, self._recording.keep_checkpoints).save(at, states)
        self.saved_step = step


class _Pace:
    """Timer of something that is done again and again, and less often if it takes more than its share of the time."""

    def __init__(self, interval: float) -> None:
        self._interval, self._last = interval, time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self._last >= self._interval

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._last = time.monotonic()
        self._interval = max(self._interval, (self._last - began) / MAX_SHARE)


def read_committed(folder: RunFolder) -> tuple[int, int]:
    """Return the numbers of complete records and kept weights; raise if the run has not begun."""
    if not folder.committed.exists():
        raise RunFolderError(f"{folder.path} has no records yet; begin with `pseudolangevin resume {folder.path}`")
    value = read_json(folder.committed)
    counts = value.get("records"), value.get("kept")
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts):
        raise RunFolderError(f"{folder.committed} is damaged (it contains {value}); restore it from a copy")
    return counts  # type: ignore[return-value]


def _write_committed(folder: RunFolder, records: int, kept: int) -> None:
    write_atomically(folder.committed, json.dumps({"records": records, "kept": kept}) + "\n")


def read_trace(path: str | Path, last: int | None = None) -> xr.Dataset | None:
    """Return the records (or the `last` ones) of a run that may still be written; None if they cannot be read."""
    folder = RunFolder(Path(path))
    try:
        consolidated = "consolidated_metadata" in (folder.trace / "zarr.json").read_text()
        with xr.open_zarr(folder.trace, chunks=None, consolidated=consolidated) as lazy:
            count = read_committed(folder)[0] if folder.committed.exists() else lazy.sizes["draw"]
            return lazy.isel(draw=slice(max(0, count - (last or count)), count)).load()
    except Exception:  # a store that is being made fails in many ways
        return None
