"""A run that takes a second, and ways to compare what two runs left on disk."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import zarr

from pseudolangevin.runs import config
from pseudolangevin.runs.config import Settings

SMALL_RUN = """
temperatures = [1e-3, 2e-3]
num_chains = 2
num_steps = 400
record_every = 10
seed = 5
[task]
num_train = 60
num_test = 20
dimension = 6
num_classes = 3
[network]
sizes = [6, 3]
output_activation = "identity"
[potential]
weight_decay = 1.0
[sampler]
name = "pseudo_langevin"
batch_size = 10
refresh_every = 40
warmup_refreshes = 0
variance_block = 4
variance_max_batches = 8
[start]
kind = "random"
[recording]
keep_weights_every = 4
checkpoint_every = 30
"""


def small_settings(*overrides: str) -> Settings:
    return config.parse(SMALL_RUN, overrides)


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Every array of a Zarr group."""
    group = zarr.open_group(path, mode="r", use_consolidated=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a file that a killed process left is no array, which Zarr warns of
        return {name: np.asarray(array[...]) for name, array in group.arrays()}


def assert_same_run(left: Path, right: Path) -> None:
    """Traces and kept weights are equal to the bit."""
    assert (left / "committed.json").read_text() == (right / "committed.json").read_text()
    for store in ("trace.zarr", "weights.zarr"):
        ours, theirs = arrays_of(left / store), arrays_of(right / store)
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"seconds"}:
            assert ours[name].dtype == theirs[name].dtype
            text = ours[name].dtype.kind in "OT"
            same = (
                ours[name].tolist() == theirs[name].tolist() if text else ours[name].tobytes() == theirs[name].tobytes()
            )
            assert same, f"{store}/{name} differs"


def snapshot(path: Path) -> dict[str, bytes]:
    """Every file of a folder, to show that nothing was changed."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
