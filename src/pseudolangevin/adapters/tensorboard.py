"""Traces as TensorBoard scalars.

Needs tensorboardX (`pip install 'pseudolangevin[tensorboard]'`) and neither torch nor tensorflow.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xarray as xr


class TensorBoardLogger:
    """Streams records into event files, one run of TensorBoard for each chain.

    A chain is the folder `T=1e-05/chain0` below `log_dir`, so that TensorBoard draws the chains of one observable as
    curves of one plot. Values that are not finite are left out.

    Args:
        log_dir: folder of the event files; it is made where it is missing.
        temperatures: T of each group of chains.
        num_chains: chains per temperature.

    Example:
        >>> with TensorBoardLogger("events", [1e-5, 3e-5], num_chains=2) as logger:  # doctest: +SKIP
        ...     logger.record(step=200, values={"loss": losses})
    """

    def __init__(self, log_dir: str | Path, temperatures: list[float], num_chains: int) -> None:
        """Open a writer for each chain."""
        writer = _writer_class()
        self._writers = [
            [writer(str(Path(log_dir) / f"T={temperature:g}" / f"chain{chain}")) for chain in range(num_chains)]
            for temperature in temperatures
        ]

    def record(self, step: int, values: dict[str, np.ndarray], labels: dict[str, list[str]] | None = None) -> None:
        """Write one record.

        Args:
            step: the step it was taken at.
            values: observables with leading axes (temperature, chain), and at most one axis more.
            labels: names along that axis, by observable; default: its numbers.
        """
        for name, array in values.items():
            for temperature, chain, tag, value in _scalars(name, np.asarray(array), (labels or {}).get(name)):
                if math.isfinite(value):
                    self._writers[temperature][chain].add_scalar(tag, value, step)

    def close(self) -> None:
        """Write what is left and close the files."""
        for writers in self._writers:
            for writer in writers:
                writer.close()

    def __enter__(self) -> TensorBoardLogger:
        """The logger itself."""
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()


def write_trace(trace: xr.Dataset, log_dir: str | Path) -> Path:
    """Write a whole trace as event files and return their folder; look at it with `tensorboard --logdir`."""
    ordered = trace.transpose("draw", "temperature", "chain", ...)
    names = [
        str(name)
        for name, variable in trace.data_vars.items()
        if {"temperature", "chain", "draw"} <= set(variable.dims)
    ]
    extra = {name: [dim for dim in trace[name].dims if dim not in ("temperature", "chain", "draw")] for name in names}
    labels = {
        name: [str(value) for value in trace[dims[0]].values]
        for name, dims in extra.items()
        if dims and dims[0] in trace.coords
    }
    steps = trace["step"].values if "step" in trace.coords else np.arange(1, trace.sizes["draw"] + 1)
    arrays = {name: ordered[name].values for name in names}
    temperatures = [float(value) for value in trace["temperature"].values]
    with TensorBoardLogger(log_dir, temperatures, trace.sizes["chain"]) as logger:
        for draw, step in enumerate(steps):
            logger.record(int(step), {name: array[draw] for name, array in arrays.items()}, labels)
    return Path(log_dir)


def _scalars(name: str, array: np.ndarray, labels: list[str] | None) -> Iterator[tuple[int, int, str, float]]:
    for index in np.ndindex(array.shape):
        suffix = "".join(f"/{labels[i] if labels else i}" for i in index[2:])
        yield index[0], index[1], name + suffix, float(array[index])


def _writer_class() -> Any:
    try:
        return importlib.import_module("tensorboardX").SummaryWriter
    except ImportError:
        raise ImportError(
            "TensorBoard logging needs the package tensorboardX: pip install 'pseudolangevin[tensorboard]'"
        ) from None
