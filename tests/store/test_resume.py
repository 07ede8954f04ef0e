"""A run that was cut short anywhere continues to the same bits."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr.storage._local as zarr_files

import pseudolangevin as pl
from pseudolangevin import runs
from pseudolangevin.config import ConfigError, Settings
from pseudolangevin.store import checkpoints, folder, writer
from pseudolangevin.store.folder import DiskFullError, RunFolderError

from .small_runs import assert_same_run, small_settings, snapshot


class Crash(BaseException):
    """Like a kill: nothing in the package may catch it."""


class Faults:
    """Counts writes to disk, and fails at a chosen one, before it or half way through it."""

    def __init__(self, monkeypatch, error: BaseException) -> None:
        self.at: int | None = None
        self.count = 0
        self.error = error
        put, write, save = zarr_files._put, folder.write_atomically, checkpoints.Checkpoints.save

        def failing_put(path, value, exclusive=False):
            if self._strikes():
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(str(path) + ".deadbeef.partial").write_bytes(b"half")
                raise self.error
            return put(path, value, exclusive)

        def failing_write(path, text):
            if self._strikes():
                path.with_name(f".{path.name}.1.partial").write_text(text[: len(text) // 2])
                raise self.error
            write(path, text)

        def failing_save(self_, checkpoint, states):
            if self._strikes():
                half = self_._path / f"{checkpoint.step:010d}.orbax-checkpoint-tmp-1"
                half.mkdir(parents=True)
                (half / "manifest.ocdbt").write_bytes(b"half")
                raise self.error
            save(self_, checkpoint, states)

        monkeypatch.setattr(zarr_files, "_put", failing_put)
        monkeypatch.setattr(writer, "write_atomically", failing_write)
        monkeypatch.setattr(runs, "write_atomically", failing_write)
        monkeypatch.setattr(checkpoints, "write_atomically", failing_write)
        monkeypatch.setattr(checkpoints.Checkpoints, "save", failing_save)

    def _strikes(self) -> bool:
        self.count += 1
        return self.count == self.at


def go_on(path: Path) -> runs.Outcome:
    """Resume, or start where nothing was begun."""
    if (path / "config.toml").exists():
        return runs.resume(path, progress=False)
    return runs.start(small_settings(), path, progress=False)


def test_crashes_at_any_write(tmp_path, finished, monkeypatch):
    """Thirty crashes, each at a random one of the writes to disk, in one run."""
    faults = Faults(monkeypatch, Crash())
    rng = np.random.default_rng(0)
    path = tmp_path / "run"
    crashes = 0
    while crashes < 30:
        faults.count, faults.at = 0, int(rng.integers(1, 90))
        try:
            outcome = go_on(path)
        except Crash:
            crashes += 1
            if (path / "committed.json").exists():
                trace = pl.load(path).trace
                assert np.isfinite(trace["loss"]).all()
        else:
            assert outcome.step == 400
            shutil.rmtree(path)  # it got through: begin another one
    faults.at = None
    assert go_on(path).step == 400
    assert_same_run(path, finished)


@pytest.mark.parametrize("fault_at", [1, 2, 3, 4, 20, 100, 150])
def test_full_disk(tmp_path, finished, monkeypatch, fault_at):
    faults = Faults(monkeypatch, OSError(28, "No space left on device"))
    path = tmp_path / "run"
    faults.at = fault_at
    with pytest.raises(DiskFullError, match=r"no space left.*free some space, then `pseudolangevin resume"):
        runs.start(small_settings(), path, progress=False)
    faults.at = None
    if (path / "committed.json").exists():
        assert np.isfinite(pl.load(path).trace["loss"]).all()
    assert go_on(path).step == 400
    assert_same_run(path, finished)


def test_checkpoint_writer_reports_a_full_disk_as_text(tmp_path, monkeypatch):
    def no_room(*_):
        raise ValueError('RESOURCE_EXHAUSTED: Error writing "manifest.ocdbt": No space left on device')

    monkeypatch.setattr(checkpoints.Checkpoints, "save", no_room)
    with pytest.raises(DiskFullError, match="no space left"):
        runs.start(small_settings(), tmp_path / "run", progress=False)


@pytest.mark.parametrize("first", [200, 130])
def test_extending_a_finished_run(tmp_path, finished, first):
    path = tmp_path / "run"
    runs.start(small_settings(f"num_steps={first}"), path, progress=False)
    outcome = runs.resume(path, ["num_steps=400"], progress=False)
    assert (outcome.step, outcome.interrupted) == (400, False)
    assert_same_run(path, finished)


def test_extending_past_a_block_of_records(tmp_path):
    for name, steps in [("whole", [1500]), ("parts", [1200, 1350, 1500])]:
        runs.start(
            small_settings(f"num_steps={steps[0]}", "recording.checkpoint_every=40"), tmp_path / name, progress=False
        )
        for more in steps[1:]:
            runs.resume(tmp_path / name, [f"num_steps={more}"], progress=False)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_resuming_a_finished_run_changes_no_result(tmp_path, finished):
    shutil.copytree(finished, tmp_path / "run")
    assert runs.resume(tmp_path / "run", progress=False).step == 400
    assert_same_run(tmp_path / "run", finished)


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "empty"])
def test_damaged_newest_checkpoint(tmp_path, finished, damage):
    path = tmp_path / "run"
    runs.start(small_settings("num_steps=200"), path, progress=False)
    newest = path / "checkpoints" / "0000000200"
    for file in [file for file in newest.rglob("*") if file.is_file()]:
        content = file.read_bytes()
        if damage == "truncate":
            file.write_bytes(content[: len(content) // 2])
        elif damage == "flip" and "/d/" in str(file):
            file.write_bytes(bytes([*content[:-20], *(255 - byte for byte in content[-20:])]))
        elif damage == "remove":
            file.unlink()
        elif damage == "empty":
            file.write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged"):
        assert np.isfinite(pl.load(path).trace["loss"]).all()
    outcome = runs.resume(path, ["num_steps=400"], progress=False)
    assert any("is damaged" in note and "falling back" in note for note in outcome.notes)
    assert "falling back" in (path / "log.txt").read_text()
    assert_same_run(path, finished)


def test_no_sound_checkpoint_at_all(tmp_path, finished):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    for file in (path / "checkpoints").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    before = snapshot(path)
    for action in (pl.load, runs.resume):
        with pytest.raises(RunFolderError, match="no sound checkpoint"):
            action(path)
    assert snapshot(path) == before


def test_only_some_settings_may_change(tmp_path, finished):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    before = snapshot(path)
    with pytest.raises(ConfigError, match=r"keeps its seed; only num_steps"):
        runs.resume(path, ["seed=3"])
    with pytest.raises(ConfigError, match="below the 400 steps already done"):
        runs.resume(path, ["num_steps=100"])
    assert snapshot(path) == before
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text.replace("seed = 5", "seed = 6"))
    with pytest.raises(RunFolderError, match="was changed since the run began"):
        runs.resume(path)


def test_other_data_are_refused(tmp_path, monkeypatch):
    from pseudolangevin.config.build import build

    monkeypatch.setattr(runs, "build", build)
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(40, 6)).astype(np.float32), rng.integers(0, 3, 40)
    np.savez(tmp_path / "data.npz", inputs=inputs, targets=targets)
    settings = Settings.model_validate(
        {
            "num_steps": 20,
            "record_every": 10,
            "task": {"kind": "files", "file": str(tmp_path / "data.npz")},
            "network": {"sizes": [6, 3]},
            "sampler": {"name": "adam", "batch_size": 10},
            "start": {"kind": "random"},
        }
    )
    runs.start(settings, tmp_path / "run", progress=False)
    inputs[7, 3] += 1
    np.savez(tmp_path / "data.npz", inputs=inputs, targets=targets)
    with pytest.raises(RunFolderError, match="the data are not those"):
        runs.resume(tmp_path / "run", ["num_steps=40"])
