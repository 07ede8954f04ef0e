"""Kept weights on disk: one Zarr array per tensor, one file per kept draw."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr
import zarr

from ..trees import named_leaves
from ..types import Weights
from .trace import (
    DRAW,
    checked_arrays,
    consolidate,
    fill_value,
    open_group,
    read_trace,
    set_length,
    write_coordinate,
    write_labels,
)

LARGE_CHUNK = 1 << 27
"""Bytes above which every chain has files of its own."""

BUFFER = 1 << 26
"""Bytes of kept weights held in memory at most, where a single draw is smaller."""


def schema_of(weights: Weights, layout_shape: tuple[int, int], dtype: str, temperatures: Any) -> xr.Dataset:
    """What the store of these weights looks like, without any draw; `weights` are those of one chain."""
    variables = {}
    for name, leaf in named_leaves(weights):
        dims = ("temperature", "chain", "kept_draw", *(f"{name}_{axis}" for axis in range(len(leaf.shape))))
        variables[name] = (dims, np.zeros((*layout_shape, 0, *leaf.shape), dtype))
    coords = {"temperature": np.asarray(temperatures, np.float64), "chain": np.arange(layout_shape[1])}
    return xr.Dataset(variables, coords)


def one_chain(weights: Weights) -> Weights:
    """Shapes and types of one chain's weights, from those of all chains."""
    return jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape[1:], w.dtype), weights)


class SamplesWriter:
    """Appends kept weights."""

    def __init__(self, path: Path, schema: xr.Dataset, num_kept: int, steps_per_kept: int, *, kept: int) -> None:
        """Open at kept draw `kept`; later ones will be written over."""
        group = open_group(path, "r+")
        self._arrays = checked_arrays(group, path, schema, kept)
        set_length(group, self._arrays, _draws(num_kept, steps_per_kept))
        self.kept = kept
        self._pending: list[list[np.ndarray]] = []

    @staticmethod
    def create(path: Path, schema: xr.Dataset, num_kept: int, steps_per_kept: int) -> None:
        """Make room for `num_kept` draws."""
        group = zarr.open_group(path, mode="w", zarr_format=3, attributes={"coordinates": "step"})
        for name, variable in schema.data_vars.items():
            tensor = variable.shape[DRAW + 1 :]
            chains = variable.shape[:DRAW]
            large = math.prod((*chains, *tensor)) * variable.dtype.itemsize > LARGE_CHUNK
            group.create_array(
                str(name),
                shape=(*chains, num_kept, *tensor),
                chunks=(*((1, 1) if large else chains), 1, *tensor),
                dtype=variable.dtype,
                fill_value=fill_value(variable.dtype),
                compressors=None,  # weights are noise: compression costs time and saves nothing
                dimension_names=[str(dim) for dim in variable.dims],
            )
        for name, coordinate in schema.coords.items():
            write_coordinate(group, str(name), coordinate.dims, coordinate.values)
        write_labels(group, _draws(num_kept, steps_per_kept))
        consolidate(group)

    def append(self, weights: Weights) -> None:
        """Take the weights of all chains (one leading axis); they are on disk after `flush`."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(weights)]
        arrays = self._arrays.values()
        # A copy in the wanted type: the chains' own buffers are used again by the next segment.
        draws = [
            np.array(leaf, array.dtype).reshape(*array.shape[:DRAW], *array.shape[DRAW + 1 :])
            for leaf, array in zip(leaves, arrays, strict=True)
        ]
        self._pending.append(draws)
        if len(self._pending) * sum(draw.nbytes for draw in draws) > BUFFER:
            self.flush()

    def flush(self) -> None:
        """Write what was taken."""
        if not self._pending:
            return
        stop = self.kept + len(self._pending)
        for index, array in enumerate(self._arrays.values()):
            array[:, :, self.kept : stop] = np.stack([draws[index] for draws in self._pending], axis=DRAW)
        self.kept, self._pending = stop, []


def read_samples(path: Path, schema: xr.Dataset, weights: Weights, kept: int) -> Weights | None:
    """Kept weights as a pytree like `weights`, leading axes (temperature, chain, kept draw); None without any."""
    if kept == 0:
        return None
    leaves = read_trace(path, schema, kept)
    return jax.tree.unflatten(jax.tree.structure(weights), list(leaves.values()))


def _draws(num_kept: int, steps_per_kept: int) -> dict[str, np.ndarray]:
    draws = np.arange(num_kept)
    return {"kept_draw": draws, "step": (draws + 1) * steps_per_kept}
