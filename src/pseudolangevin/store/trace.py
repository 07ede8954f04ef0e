"""The trace on disk: a Zarr group, as long as the run will be from the start, filled as the run goes.

What is not recorded yet holds NaN (status: −1), so the group opens with `xarray.open_zarr` at any moment. A block of
`CHUNK` records is kept in memory and written as a whole, file by file; each file is replaced atomically, so nothing
that was on disk can be lost to a crash.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from .folder import RunFolderError

CHUNK = 128
"""Records per file of each observable."""

DRAW = 2
"""The axis of the draws."""

LABELS = 1 << 14
"""Entries per file of a coordinate along the draws."""


def fill_value(dtype: np.dtype) -> Any:
    """What stands for a number that is not recorded yet."""
    if np.issubdtype(dtype, np.floating):
        return np.nan
    return False if dtype == np.bool_ else -1


class TraceWriter:
    """Appends records to a trace."""

    def __init__(self, path: Path, schema: xr.Dataset, num_records: int, *, recorded: int, written: int) -> None:
        """Open a trace at record `recorded`; what was `written` beyond it is put back to "not recorded"."""
        self._group = open_group(path, "r+")
        self._arrays = checked_arrays(self._group, path, schema, recorded)
        set_length(self._group, self._arrays, _draws(schema, num_records))
        self._length = num_records
        block = _last_block(recorded)
        self._first, self._count = block.start, block.stop - block.start
        self._blocks = {name: self._empty_block(array) for name, array in self._arrays.items()}
        for name, array in self._arrays.items():
            self._blocks[name][:, :, : self._count] = _read(array, path, block)
        if written > recorded:
            self._erase(min(num_records, written + CHUNK))

    @staticmethod
    def create(path: Path, schema: xr.Dataset, num_records: int) -> None:
        """Make a trace of `num_records` records, none of them recorded. `schema` is a trace without draws."""
        group = zarr.open_group(path, mode="w", zarr_format=3, attributes={"coordinates": "step"})
        for name, variable in schema.data_vars.items():
            shape = (*variable.shape[:DRAW], num_records, *variable.shape[DRAW + 1 :])
            chunks = (*variable.shape[:DRAW], CHUNK, *variable.shape[DRAW + 1 :])
            group.create_array(
                str(name),
                shape=shape,
                chunks=tuple(max(1, size) for size in chunks),
                dtype=variable.dtype,
                fill_value=fill_value(variable.dtype),
                dimension_names=[str(dim) for dim in variable.dims],
                attributes=dict(variable.attrs),
            )
        for name, coordinate in schema.coords.items():
            if "draw" not in coordinate.dims:
                write_coordinate(group, str(name), coordinate.dims, coordinate.values)
        write_labels(group, _draws(schema, num_records))
        consolidate(group)

    def append(self, record: Mapping[str, np.ndarray]) -> None:
        """Take one record (leading axis over all chains); it is on disk after `flush`."""
        for name, block in self._blocks.items():
            block[:, :, self._count] = record[name].reshape(block.shape[:DRAW] + block.shape[DRAW + 1 :])
        self._count += 1
        if self._count == CHUNK:
            self.flush()
            self._first, self._count = self._first + CHUNK, 0
            self._blocks = {name: self._empty_block(array) for name, array in self._arrays.items()}

    def flush(self) -> None:
        """Write the current block."""
        stop = min(self._first + CHUNK, self._length)
        if self._count == 0:
            return
        for name, block in self._blocks.items():
            self._arrays[name][:, :, self._first : stop] = block[:, :, : stop - self._first]

    def _erase(self, stop: int) -> None:
        for name, array in self._arrays.items():
            first = min(self._first + CHUNK, stop)
            array[:, :, self._first : first] = self._blocks[name][:, :, : first - self._first]
            if stop > first:
                array[:, :, first:stop] = fill_value(array.dtype)

    @staticmethod
    def _empty_block(array: zarr.Array) -> np.ndarray:
        shape = (*array.shape[:DRAW], CHUNK, *array.shape[DRAW + 1 :])
        return np.full(shape, fill_value(array.dtype), array.dtype)


def read_trace(path: Path, schema: xr.Dataset, recorded: int) -> dict[str, np.ndarray]:
    """The first `recorded` records of every observable, in the order of `schema`."""
    arrays = checked_arrays(open_group(path, "r"), path, schema, recorded)
    return {name: _read(array, path, slice(0, recorded)) for name, array in arrays.items()}


def check_trace(path: Path, schema: xr.Dataset, recorded: int, resume_at: int) -> None:
    """Refuse a trace that a run cannot be continued with; only reads."""
    for array in checked_arrays(open_group(path, "r"), path, schema, recorded).values():
        _read(array, path, _last_block(resume_at))


def open_group(path: Path, mode: Any) -> zarr.Group:
    """A Zarr group of the run folder."""
    try:
        return zarr.open_group(path, mode=mode, zarr_format=3, use_consolidated=False)
    except Exception as error:
        raise _damaged(path, error) from error


def checked_arrays(group: zarr.Group, path: Path, schema: xr.Dataset, recorded: int) -> dict[str, zarr.Array]:
    """The arrays named by `schema`; refuse those of another shape or type."""
    arrays = {}
    for key, variable in schema.data_vars.items():
        name = str(key)
        try:
            array = group[name]
            shape, dtype = array.shape, array.dtype  # type: ignore[union-attr]
        except Exception as error:
            raise _damaged(path / name, error) from error
        wanted = variable.shape
        fits = len(shape) == len(wanted) and (*shape[:DRAW], *shape[DRAW + 1 :]) == (
            *wanted[:DRAW],
            *wanted[DRAW + 1 :],
        )
        if not fits or shape[DRAW] < recorded or dtype != variable.dtype:
            expected = (*wanted[:DRAW], f"{recorded} or more", *wanted[DRAW + 1 :])
            raise RunFolderError(
                f"{path / name} has shape {shape} and type {dtype}, not {expected} and {variable.dtype} as config.toml "
                "says; restore both from a copy"
            )
        arrays[name] = array
    return arrays  # type: ignore[return-value]


def write_coordinate(group: zarr.Group, name: str, dims: Any, values: np.ndarray) -> None:
    """A coordinate, as one array of the group."""
    if values.dtype.kind == "U":
        # Zarr 3 has no settled fixed-length text; xarray reads variable-length text as well.
        values = values.astype(np.dtypes.StringDType())
    chunks = tuple(max(1, size) for size in values.shape)
    array = group.create_array(
        name, shape=values.shape, chunks=chunks, dtype=values.dtype, dimension_names=list(dims), overwrite=True
    )
    array[...] = values


def write_labels(group: zarr.Group, labels: Mapping[str, np.ndarray]) -> None:
    """The coordinates along the draws, that of the dimension first, in files of one size: they may grow while read."""
    dims = [next(iter(labels))]
    for name, values in labels.items():
        array = _growing(group, name)
        if array is None:
            array = group.create_array(
                name, shape=values.shape, chunks=(LABELS,), dtype=values.dtype, dimension_names=dims, overwrite=True
            )
        array.resize(values.shape)
        array[...] = values


def _growing(group: zarr.Group, name: str) -> zarr.Array | None:
    """A coordinate that can grow; None where it cannot be read, or is of before and lies in one file."""
    try:
        array = group[name]
    except Exception:
        return None
    return array if isinstance(array, zarr.Array) and array.chunks == (LABELS,) else None


def set_length(group: zarr.Group, arrays: Mapping[str, zarr.Array], labels: Mapping[str, np.ndarray]) -> None:
    """Make a store as long as its coordinates along the draws; also where a process was killed while it did so.

    The consolidated metadata come last. Until then they say the old lengths, at which all can still be read.
    """
    length = len(next(iter(labels.values())))
    if _has_length(group, arrays, labels, length):
        return
    for array in arrays.values():
        array.resize((*array.shape[:DRAW], length, *array.shape[DRAW + 1 :]))
    write_labels(group, labels)
    consolidate(group)


def _has_length(group: zarr.Group, arrays: Iterable[str], labels: Mapping[str, np.ndarray], length: int) -> bool:
    """Whether the arrays and the consolidated metadata have this length, and the coordinates are whole."""
    try:
        stores: list[Any] = [group, zarr.open_group(group.store, mode="r", zarr_format=3, use_consolidated=True)]
        return all(store[name].shape[DRAW] == length for store in stores for name in arrays) and all(
            np.array_equal(store[name][...], values) for store in stores for name, values in labels.items()
        )
    except Exception:  # what is missing, or half old and half new, fails in many ways
        return False


def consolidate(group: zarr.Group) -> None:
    """Put the shapes of all arrays into one file, so that a reader sees either all old lengths or all new ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata is an extension of the Zarr 3 specification
        zarr.consolidate_metadata(group.store)


def _draws(schema: xr.Dataset, num_records: int) -> dict[str, np.ndarray]:
    draws = np.arange(num_records)
    return {"draw": draws, "step": (draws + 1) * int(schema.attrs["record_every"])}


def _last_block(recorded: int) -> slice:
    """The records of the block that is not full yet."""
    return slice(recorded - recorded % CHUNK, recorded)


def _read(array: zarr.Array, path: Path, draws: slice) -> np.ndarray:
    try:
        return np.asarray(array[:, :, draws])
    except Exception as error:
        raise _damaged(path / array.basename, error) from error


def _damaged(path: Path, error: Exception) -> RunFolderError:
    why = " ".join(str(error).split())[:200] or type(error).__name__
    return RunFolderError(f"{path} is damaged ({why}); restore it from a copy, or sample again into a new folder")
