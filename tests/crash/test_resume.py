"""A run that was cut short anywhere continues to the same bits."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr.storage._local as zarr_files

import pseudolangevin as pl
from pseudolangevin import config, provenance, runfiles, runs
from pseudolangevin.config import ConfigError, Settings
from pseudolangevin.config.build import build
from pseudolangevin.store import checkpoints, folder, trace, writer
from pseudolangevin.store.folder import DiskFullError, RunFolder, RunFolderError
from pseudolangevin.store.writer import read_committed

from .conftest import build_once
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

    def at_every_write(self, action: Callable[[], Any], then: Callable[[], None] = lambda: None) -> int:
        """Crash at the first write of `action`, at the second when it is done again, … until it gets through."""
        for number in itertools.count(1):
            self.count, self.at = 0, number
            try:
                action()
            except Crash:
                then()
            else:
                break
        self.at = None
        return number

    def _strikes(self) -> bool:
        self.count += 1
        return self.count == self.at


def go_on(path: Path, first: int = 400) -> runs.Outcome:
    """Resume up to step 400, or start, for the `first` steps, where nothing was begun."""
    if (path / "config.toml").exists():
        return runs.resume(path, ["num_steps=400"], progress=False)
    return runs.start(small_settings(f"num_steps={first}"), path, progress=False)


def assert_readable(path: Path) -> None:
    """Whatever was interrupted, what is committed can be read, and coordinates are whole."""
    records, kept = read_committed(RunFolder(path)) or (0, 0)
    seen = runfiles.read_trace(path)
    assert seen is not None
    assert seen.sizes["draw"] == records
    with xr.open_zarr(path / "trace.zarr", chunks=None, consolidated=True) as stored:
        assert stored["step"].values.tolist() == list(range(10, 10 * stored.sizes["draw"] + 1, 10))
        assert np.isfinite(stored["loss"].values[:, :, :records]).all()
    with xr.open_zarr(path / "weights.zarr", chunks=None, consolidated=True) as stored:
        assert stored["step"].values.tolist() == list(range(40, 40 * stored.sizes["kept_draw"] + 1, 40))
        assert np.isfinite(stored["layer1.bias"].values[:, :, :kept]).all()


def test_crashes_at_any_write(tmp_path, finished, monkeypatch):
    """Thirty crashes, each at a random one of the writes to disk, in runs that are extended half way."""
    faults = Faults(monkeypatch, Crash())
    rng = np.random.default_rng(0)
    path = tmp_path / "run"
    crashes = 0
    while crashes < 30:
        faults.count, faults.at = 0, int(rng.integers(1, 90))
        try:
            outcome = go_on(path, first=200)
        except Crash:
            crashes += 1
            if (path / "committed.json").exists():
                assert np.isfinite(pl.load(path).trace["loss"]).all()
                assert_readable(path)
        else:
            assert outcome.step in (200, 400)
            if outcome.step == 400:
                shutil.rmtree(path)  # it got through: begin another one
    faults.at = None
    assert go_on(path).step == 400
    assert_same_run(path, finished)


def test_crashes_at_every_write_of_an_extension(tmp_path, finished, monkeypatch):
    path = tmp_path / "run"
    go_on(path, first=200)
    faults = Faults(monkeypatch, Crash())
    assert faults.at_every_write(lambda: go_on(path), then=lambda: assert_readable(path)) > 30
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


def test_crashes_while_a_run_is_made_shorter(tmp_path, finished, monkeypatch):
    """The last checkpoint is at step 390 where 400 were recorded; the run is ended at 390."""
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    checkpoints.Checkpoints(path / "checkpoints").clean(newer_than=390)
    faults = Faults(monkeypatch, Crash())
    # None may leave stores that are shorter than what is committed.
    assert faults.at_every_write(lambda: runs.resume(path, ["num_steps=390"], progress=False)) > 15
    assert runs.resume(path, ["num_steps=400"], progress=False).step == 400
    assert_same_run(path, finished)


def test_crashes_while_what_is_beyond_the_checkpoint_is_erased(tmp_path, finished, monkeypatch):
    """The last checkpoint is at step 390 where 400 were recorded and committed."""
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    checkpoints.Checkpoints(path / "checkpoints").clean(newer_than=390)
    faults = Faults(monkeypatch, Crash())
    assert faults.at_every_write(lambda: go_on(path), then=lambda: assert_readable(path)) > 15
    assert_same_run(path, finished)


@pytest.mark.parametrize("name", ["draw/zarr.json", "step/c/0", "zarr.json"])
def test_coordinates_and_lengths_are_repaired(tmp_path, finished, name):
    """What follows from the settings is written again, also where an older version left it of the wrong length."""
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    file = path / "trace.zarr" / name
    if name == "zarr.json":
        file.write_text(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"coordinates": "step"}}))
    else:
        file.write_bytes(b"junk")
    runs.resume(path, progress=False)
    assert_readable(path)
    assert_same_run(path, finished)


def test_extending_a_run_with_coordinates_in_one_file(tmp_path, finished, monkeypatch):
    """As older versions wrote them."""
    with monkeypatch.context() as patch:
        patch.setattr(trace, "LABELS", 20)
        runs.start(small_settings("num_steps=200"), tmp_path / "run", progress=False)
    runs.resume(tmp_path / "run", ["num_steps=400"], progress=False)
    assert_readable(tmp_path / "run")
    assert_same_run(tmp_path / "run", finished)


def test_a_step_is_saved_once(tmp_path, monkeypatch):
    saved, save = [], checkpoints.Checkpoints.save

    def note(self, checkpoint, states):
        saved.append(checkpoint.step)
        save(self, checkpoint, states)

    monkeypatch.setattr(checkpoints.Checkpoints, "save", note)
    runs.start(small_settings("num_steps=60"), tmp_path / "run", progress=False)
    assert saved == [0, 30, 60]
    runs.resume(tmp_path / "run", ["num_steps=100"], progress=False)
    assert saved == [0, 30, 60, 90, 100]


def test_a_checkpoint_that_is_being_replaced_does_not_count(tmp_path, finished, monkeypatch):
    shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints")
    saved = checkpoints.Checkpoints(tmp_path / "checkpoints")
    experiment = build_once(small_settings())
    at, states, _ = saved.newest(experiment.plan.abstract_states(experiment.weights_shape))
    assert at.step == saved.steps()[-1] == 400

    def crash(*_, **__):
        raise Crash

    monkeypatch.setattr(checkpoints.ocp.Checkpointer, "save", crash)
    with pytest.raises(Crash):
        saved.save(at, states)
    assert saved.steps() == [360, 390]


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


class TestFiles:
    """A run whose data and start are files."""

    @pytest.fixture
    def settings(self, tmp_path, monkeypatch) -> Settings:
        monkeypatch.setattr(runs, "build", build)
        rng = np.random.default_rng(0)
        inputs, targets = rng.normal(size=(40, 6)).astype(np.float32), rng.integers(0, 3, 40)
        np.savez(tmp_path / "data.npz", inputs=inputs, targets=targets)
        start: Any = {"layer1.kernel": rng.normal(size=(6, 3)).astype(np.float32), "layer1.bias": np.zeros(3)}
        np.savez(tmp_path / "start.npz", **start)
        return Settings.model_validate(
            {
                "num_steps": 20,
                "record_every": 10,
                "task": {"kind": "files", "file": str(tmp_path / "data.npz")},
                "network": {"sizes": [6, 3]},
                "sampler": {"name": "adam", "batch_size": 10},
                "start": {"kind": "file", "file": str(tmp_path / "start.npz")},
            }
        )

    def test_other_data_are_refused(self, tmp_path, settings):
        runs.start(settings, tmp_path / "run", progress=False)
        with np.load(tmp_path / "data.npz") as data:
            inputs, targets = data["inputs"], data["targets"]
        inputs[7, 3] += 1
        np.savez(tmp_path / "other.npz", inputs=inputs, targets=targets)
        with pytest.raises(RunFolderError, match="the data are not those"):
            runs.resume(tmp_path / "run", ["num_steps=40", f"task.file={tmp_path / 'other.npz'}"])
        (tmp_path / "other.npz").rename(tmp_path / "data.npz")
        with pytest.raises(RunFolderError, match="the data are not those"):
            runs.resume(tmp_path / "run", ["num_steps=40"])

    def test_files_may_move(self, tmp_path, settings):
        """A start is not needed any more; where data lie now is said in config.toml, or once on the command line."""
        path = tmp_path / "run"
        runs.start(settings, path, progress=False)
        (tmp_path / "start.npz").unlink()
        (tmp_path / "data.npz").rename(tmp_path / "moved.npz")
        with pytest.raises(ConfigError, match=r"data.npz cannot be read"):
            runs.resume(path, ["num_steps=40"])
        text = (path / "config.toml").read_text()
        (path / "config.toml").write_text(text.replace("data.npz", "moved.npz"))
        assert runs.resume(path, ["num_steps=40"], progress=False).step == 40
        (tmp_path / "moved.npz").rename(tmp_path / "again.npz")
        assert runs.resume(path, ["num_steps=60", "task.file=../again.npz"], progress=False).step == 60
        assert config.read(path / "config.toml").task.file == str(path / "../again.npz")
        assert pl.load(path).trace.sizes["draw"] == 6

    def test_folders_whose_hash_has_the_paths_are_continued(self, tmp_path, settings):
        path = tmp_path / "run"
        runs.start(settings, path, progress=False)
        noted = json.loads((path / "provenance.json").read_text())
        noted["settings_sha256"] = provenance.settings_hash(settings, paths=True)
        assert noted["settings_sha256"] != provenance.settings_hash(settings)
        (path / "provenance.json").write_text(json.dumps(noted))
        assert runs.resume(path, ["num_steps=40"], progress=False).step == 40

    def test_a_bad_start_leaves_no_folder(self, tmp_path, settings):
        (tmp_path / "start.npz").unlink()
        with pytest.raises(ConfigError, match=r"^start.file: .*start.npz cannot be read: No such file"):
            runs.start(settings, tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()

    def test_a_start_that_went_missing_can_be_put_right(self, tmp_path, settings, monkeypatch):
        """Before the first record the start is needed, and resuming says so, or takes it from elsewhere."""
        path = tmp_path / "run"
        faults = Faults(monkeypatch, Crash())
        faults.at = 3  # after the configuration and where it comes from
        with pytest.raises(Crash):
            runs.start(settings, path, progress=False)
        (tmp_path / "start.npz").rename(tmp_path / "moved.npz")
        with pytest.raises(ConfigError, match=r"^start.file: .* cannot be read"):
            runs.resume(path, progress=False)
        assert runs.resume(path, [f"start.file={tmp_path / 'moved.npz'}"], progress=False).step == 20
