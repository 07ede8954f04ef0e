"""Run folders that were damaged or edited: one clear line, and nothing is changed."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import zarr

import pseudolangevin as pl
from pseudolangevin.runs import session
from pseudolangevin.runs.config import ConfigError
from pseudolangevin.runs.folder import RunFolder, RunFolderError, locked
from tests.runs.small_runs import snapshot


def put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(content)


def cut(name: str) -> Callable[[Path], object]:
    return lambda path: os.truncate(path / name, (path / name).stat().st_size // 2)


def drop(name: str) -> Callable[[Path], object]:
    return lambda path: shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()


def reshape(store: str, name: str, shape: tuple[int, ...], dtype: str) -> Callable[[Path], object]:
    return lambda path: zarr.open_group(path / store, mode="r+").create_array(
        name, shape=shape, dtype=dtype, overwrite=True
    )


def edit(old: str, new: str) -> Callable[[Path], object]:
    def action(path: Path) -> None:
        text = (path / "config.toml").read_text()
        assert old in text
        (path / "config.toml").write_text(text.replace(old, new, 1))

    return action


JUNK = random.Random(0).randbytes(64)
LOSS, KERNEL = "trace.zarr/loss/c/0/0/0", "weights.zarr/layer1.kernel/c/0/0/3/0/0"
BOTH = [
    put("config.toml", b""),  # the defaults: another network, so nothing fits
    put("config.toml", JUNK),
    drop("config.toml"),
    cut("config.toml"),
    edit("num_chains = 2", "num_chains = 3"),
    edit("sizes = [6, 3]", "sizes = [6, 5, 3]"),
    edit("record_every = 10", "record_every = 20"),
    edit("keep_weights_every = 4", "keep_weights_every = 5"),
    edit('name = "pseudo_langevin"', 'name = "adam"'),
    put("committed.json", b""),
    put("committed.json", JUNK),
    put("committed.json", b"[40, 10]"),
    put("committed.json", b'{"records": -1, "kept": 0}'),
    put("committed.json", b'{"records": "40", "kept": 10}'),
    put("committed.json", b'{"records": 1000000000000, "kept": 250000000000}'),
    put("committed.json", b'{"records": 40, "kept": 3}'),
    put("committed.json", b'{"records": 8, "kept": 2}'),
    drop("committed.json"),
    drop("trace.zarr"),
    drop("trace.zarr/loss"),
    drop("trace.zarr/loss/zarr.json"),
    put("trace.zarr/zarr.json", JUNK),
    put("trace.zarr/loss/zarr.json", JUNK),
    cut("trace.zarr/loss/zarr.json"),
    put(LOSS, JUNK),
    cut(LOSS),
    put("trace.zarr/step/c/0", JUNK),
    reshape("trace.zarr", "loss", (2, 2, 30), "float64"),
    reshape("trace.zarr", "loss", (2, 40), "float64"),
    reshape("trace.zarr", "loss", (2, 2, 40), "float32"),
    drop("weights.zarr"),
    reshape("weights.zarr", "layer1.kernel", (2, 2, 10, 6, 4), "float32"),
    drop("checkpoints"),
]
LOAD_ONLY = [put(KERNEL, JUNK), cut(KERNEL)]
RESUME_ONLY = [
    drop("provenance.json"),
    put("provenance.json", JUNK),
    put("provenance.json", b"{}"),
    edit("seed = 5", "seed = 6"),
    edit("batch_size = 10", "batch_size = 11"),
    put("lock", b'{"pid": 1, "host": "elsewhere"}'),
]


@pytest.mark.parametrize("action", [pl.load, session.resume])
def test_damaged_folders(finished, tmp_path, action):
    damages = BOTH + (LOAD_ONLY if action is pl.load else RESUME_ONLY)
    for number, damage in enumerate(damages):
        path = tmp_path / f"run{number}"
        shutil.copytree(finished, path)
        damage(path)
        before = snapshot(path)
        with pytest.raises((RunFolderError, ConfigError)) as caught:
            action(path)
        lines = caught.value.lines if isinstance(caught.value, ConfigError) else [str(caught.value)]
        assert all("\n" not in line and len(line) > 30 for line in lines), f"damage {number}: {lines}"
        assert snapshot(path) == before, f"damage {number}"


def test_a_locked_folder_is_not_changed(finished, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    with locked(RunFolder(path)):
        before = snapshot(path)
        with pytest.raises(RunFolderError, match=f"in use by process {os.getpid()}"):
            session.resume(path, ["num_steps=500"])
        assert snapshot(path) == before
