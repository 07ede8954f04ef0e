"""A run that was cut short at any write continues to the same bits."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr.storage._local as zarr_files

import pseudolangevin as pl
from pseudolangevin.runs import folder, session, store
from pseudolangevin.runs.folder import RunFolder, RunFolderError
from pseudolangevin.runs.store import Checkpoints, Writer, read_committed, read_trace
from tests.runs.conftest import build_once
from tests.runs.small_runs import assert_same_run, small_settings, snapshot


class Crash(BaseException):
    """An end like that by a kill, which nothing in the package may catch."""


class Faults:
    """Counts writes to disk, and fails at a chosen one, half way through it."""

    def __init__(self, monkeypatch, error: BaseException) -> None:
        self.at: int | None = None
        self.count = 0
        self.error = error
        put, replace = zarr_files._put, Path.replace

        def failing_put(path, value, exclusive=False):
            if self._strikes():
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(str(path) + ".deadbeef.partial").write_bytes(b"half")
                raise self.error
            return put(path, value, exclusive)

        def failing_replace(path, target):
            # Every other file, checkpoints included, is written under another name and then renamed.
            if not path.name.startswith("."):
                return replace(path, target)
            if self._strikes():
                os.truncate(path, path.stat().st_size // 2)
                raise self.error
            return replace(path, target)

        monkeypatch.setattr(zarr_files, "_put", failing_put)
        monkeypatch.setattr(Path, "replace", failing_replace)

    def at_every_write(self, base: Path, path: Path, finished: Path, *overrides: str, stride: int = 1) -> int:
        """Resume copies of `base`, with a crash at the first write, at the second, ... until one gets through.

        What is committed can be read after every crash; one in sixteen is continued to the end.
        """
        for number in itertools.count(1, stride):
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(base, path)
            self.count, self.at = 0, number
            try:
                session.resume(path, overrides, progress=False)
            except Crash:
                assert_readable(path)
            self.at, through = None, self.count < number
            if through or number % 16 == 1:
                go_on(path)
                assert_same_run(path, finished)
            if through:
                break
        return number - 1

    def _strikes(self) -> bool:
        self.count += 1
        return self.count == self.at


def go_on(path: Path, first: int = 400) -> session.Outcome:
    """Resume up to step 400, or start, for the `first` steps, if nothing was begun."""
    if (path / "config.toml").exists():
        return session.resume(path, ["num_steps=400"], progress=False)
    return session.start(small_settings(f"num_steps={first}"), path, progress=False)


def assert_readable(path: Path) -> None:
    """Whatever was interrupted, what is committed can be read."""
    records, kept = read_committed(RunFolder(path))
    seen = read_trace(path)
    assert seen is not None
    assert seen["step"].values.tolist() == list(range(10, 10 * records + 1, 10))
    with xr.open_zarr(path / "trace.zarr", chunks=None, consolidated=True) as stored:
        assert np.isfinite(stored["loss"].values[:, :, :records]).all()
    with xr.open_zarr(path / "weights.zarr", chunks=None, consolidated=True) as stored:
        assert stored["step"].values[:kept].tolist() == list(range(40, 40 * kept + 1, 40))
        assert np.isfinite(stored["layer1.bias"].values[:, :, :kept]).all()


def test_crashes_at_any_write(tmp_path, finished, monkeypatch):
    """Thirty crashes, each at a random one of the writes to disk, in runs that are extended half way."""
    faults = Faults(monkeypatch, Crash())
    rng = np.random.default_rng(0)
    path = tmp_path / "run"
    crashes = 0
    while crashes < 30:
        faults.count, faults.at = 0, int(rng.integers(1, 120))
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
    go_on(tmp_path / "short", first=390)
    faults = Faults(monkeypatch, Crash())
    assert faults.at_every_write(tmp_path / "short", tmp_path / "run", finished, "num_steps=400") > 45


@pytest.mark.parametrize("num_steps", [390, 400])
def test_crashes_while_records_beyond_the_checkpoint_are_written_again(tmp_path, finished, monkeypatch, num_steps):
    """The last checkpoint is at step 390, and 400 were recorded and committed; also if the run is ended at 390."""
    shutil.copytree(finished, tmp_path / "base")
    Checkpoints(tmp_path / "base" / "checkpoints").clean(newer_than=390)
    faults = Faults(monkeypatch, Crash())
    assert faults.at_every_write(tmp_path / "base", tmp_path / "run", finished, f"num_steps={num_steps}", stride=4) > 25


@pytest.mark.parametrize("fault_at", [1, 2, 3, 4, 5, 30, 100, 200])
def test_full_disk(tmp_path, finished, monkeypatch, fault_at):
    faults = Faults(monkeypatch, OSError(28, "No space left on device"))
    path = tmp_path / "run"
    faults.at = fault_at
    with pytest.raises(RunFolderError, match=r"no space left.*free some space, then `pseudolangevin resume"):
        session.start(small_settings(), path, progress=False)
    faults.at = None
    if (path / "committed.json").exists():
        assert np.isfinite(pl.load(path).trace["loss"]).all()
    assert go_on(path).step == 400
    assert_same_run(path, finished)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
def test_full_file_system(tmp_path, finished):
    """If a small file system can be mounted: the run stops with one line, and resumes."""
    disk = tmp_path / "tmpfs"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount a file system here")
    try:
        (disk / "ballast").write_bytes(bytes(200_000))
        with pytest.raises(RunFolderError, match="no space left"):
            session.start(small_settings(), disk / "run", progress=False)
        (disk / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
        assert go_on(disk / "run").step == 400
        assert_same_run(disk / "run", finished)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed(tmp_path, finished, monkeypatch, number):
    add = Writer.add

    def add_and_interrupt(self: Writer, record, kept):
        add(self, record, kept)
        if record.step == 170:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "add", add_and_interrupt)
        outcome = session.start(small_settings(), tmp_path / "run", progress=False)
    assert (outcome.step, outcome.interrupted) == (170, True)
    assert session.resume(tmp_path / "run", progress=False).step == 400
    assert_same_run(tmp_path / "run", finished)
    (resumed,) = json.loads((tmp_path / "run" / "provenance.json").read_text())["resumed"]
    assert resumed["from_step"] == 170


@pytest.mark.parametrize("checkpoint_every", [25, 7])
def test_checkpoints_between_records(tmp_path, finished, monkeypatch, checkpoint_every):
    def crash(self: Writer, record, kept) -> None:
        if record.step == 330:
            raise Crash
        add(self, record, kept)

    add, path = Writer.add, tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "add", crash)
        with pytest.raises(Crash):
            session.start(small_settings(f"recording.checkpoint_every={checkpoint_every}"), path, progress=False)
    assert Checkpoints(path / "checkpoints").steps()[-1] % 10 != 0
    assert session.resume(path, progress=False).step == 400
    assert_same_run(path, finished)


@pytest.mark.parametrize(
    "sampler",
    [
        "name = 'balanced_langevin', batch_size = 10, refresh_every = 20",
        "name = 'hybrid_monte_carlo', time_step = 0.1, num_leapfrog_steps = 3",
    ],
)
def test_other_samplers_continue_to_the_same_bits(tmp_path, sampler):
    for name, steps in [("whole", [60]), ("parts", [35, 60])]:
        session.start(
            small_settings(f"num_steps={steps[0]}", f"sampler={{{sampler}}}"), tmp_path / name, progress=False
        )
        for more in steps[1:]:
            session.resume(tmp_path / name, [f"num_steps={more}"], progress=False)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_consolidated_metadata_are_repaired(tmp_path, finished):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    group = {"zarr_format": 3, "node_type": "group", "attributes": {"coordinates": "step seconds"}}
    (path / "trace.zarr" / "zarr.json").write_text(json.dumps(group))
    session.resume(path, progress=False)
    assert_readable(path)
    assert_same_run(path, finished)


def test_a_checkpoint_that_is_being_replaced_does_not_count(tmp_path, finished, monkeypatch):
    shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints")
    saved = Checkpoints(tmp_path / "checkpoints")
    experiment = build_once(small_settings())
    at, states, _ = saved.newest(experiment.run.abstract_states(experiment.weights_shape))
    assert at.step == saved.steps()[-1] == 400

    def crash(*_, **__):
        raise Crash

    monkeypatch.setattr(store.np, "savez", crash)
    with pytest.raises(Crash):
        saved.save(at, states)
    assert saved.steps() == [360, 390]


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "empty", "checksum"])
def test_damaged_newest_checkpoint(tmp_path, finished, damage):
    path = tmp_path / "run"
    session.start(small_settings("num_steps=200"), path, progress=False)
    newest = path / "checkpoints" / "0000000200.npz"
    content = newest.read_bytes()
    if damage == "remove":
        newest.unlink()
    elif damage == "checksum":
        newest.with_suffix(".sha256").write_text("")
    else:
        flipped = bytes([*content[:-900], content[-900] ^ 1, *content[-899:]])
        newest.write_bytes({"truncate": content[: len(content) // 2], "flip": flipped, "empty": b""}[damage])
    with pytest.warns(UserWarning, match="is damaged"):
        assert np.isfinite(pl.load(path).trace["loss"]).all()
    outcome = session.resume(path, ["num_steps=400"], progress=False)
    assert any("is damaged" in note and "falling back" in note for note in outcome.notes)
    assert "falling back" in (path / "log.txt").read_text()
    assert_same_run(path, finished)


def test_no_valid_checkpoint_at_all(tmp_path, finished):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    for file in (path / "checkpoints").iterdir():
        file.write_bytes(b"")
    before = snapshot(path)
    for action in (pl.load, session.resume):
        with pytest.raises(RunFolderError, match="no valid checkpoint"):
            action(path)
    assert snapshot(path) == before


def test_only_checkpoints_of_the_run_are_removed(tmp_path, finished):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    (path / "checkpoints" / "mine").mkdir()
    (path / "checkpoints" / "mine" / "notes.txt").touch()
    (path / "checkpoints" / "0000000380.npz").touch()  # incomplete
    session.resume(path, progress=False)
    assert (path / "checkpoints" / "mine" / "notes.txt").exists()
    assert not (path / "checkpoints" / "0000000380.npz").exists()
    assert folder.read_json(path / "committed.json")["records"] == 40
