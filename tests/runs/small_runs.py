"""A run that takes a second, and ways to compare what two runs left on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pseudolangevin.runs import config
from pseudolangevin.runs.config import Settings
from pseudolangevin.runs.store import RecordFile

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
[start]
kind = "random"
[recording]
keep_weights_every = 4
checkpoint_every = 30
"""


def small_settings(*overrides: str) -> Settings:
    return config.parse(SMALL_RUN, overrides)


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Every field of a file of records, (record, ...)."""
    with RecordFile(path) as file:
        values, bad = file.read()
        assert bad == file.recorded
    return values


def assert_same_run(left: Path, right: Path) -> None:
    """Traces and kept weights are equal to the bit."""
    for name in ("trace.records", "weights.records"):
        ours, theirs = arrays_of(left / name), arrays_of(right / name)
        assert ours.keys() == theirs.keys()
        for field in ours.keys() - {"seconds"}:
            assert ours[field].dtype == theirs[field].dtype
            assert ours[field].tobytes() == theirs[field].tobytes(), f"{name}: {field} differs"


def snapshot(path: Path) -> dict[str, bytes]:
    """Every file of a folder, to show that nothing was changed."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
