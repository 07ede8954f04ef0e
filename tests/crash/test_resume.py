"""A run that was cut short at any write continues to the same bits."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import stat
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from pseudolangevin.runs import session, store
from pseudolangevin.runs.folder import RunFolderError
from pseudolangevin.runs.store import Checkpoints, Writer, read_trace
from tests.runs.small_runs import assert_same_run, small_settings


class Crash(BaseException):
    """An end like that by a kill, which nothing in the package may catch."""


class Disk:
    """A disk that counts what is done to it, fails at a chosen operation, and remembers what was synchronised.

    After a power cut, a folder has the names that it had when it was last synchronised, and a file its content at its
    last synchronisation; what was appended since may be there, missing, or zeros.
    """

    def __init__(self, monkeypatch, error: BaseException) -> None:
        self.at: int | None = None
        self.count, self.error = 0, error
        self.contents: dict[int, bytes] = {}
        self.names: dict[str, dict[str, int]] = {}
        fsync, pwrite, replace, truncate = os.fsync, os.pwrite, Path.replace, os.ftruncate

        def failing_fsync(descriptor):
            self.strike()
            fsync(descriptor)
            path, found = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                self.names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
            else:
                self.contents[found.st_ino] = Path(path).read_bytes()

        def failing_pwrite(descriptor, data, offset):
            if len(data) > 300:  # not the lock
                self.strike(lambda: pwrite(descriptor, data[: len(data) // 2], offset))
            return pwrite(descriptor, data, offset)

        def failing_replace(path, target):
            self.strike(lambda: os.truncate(path, path.stat().st_size // 2))
            return replace(path, target)

        def failing_truncate(descriptor, length):
            if length:
                self.strike()
            return truncate(descriptor, length)

        monkeypatch.setattr(os, "fsync", failing_fsync)
        monkeypatch.setattr(os, "pwrite", failing_pwrite)
        monkeypatch.setattr(Path, "replace", failing_replace)
        monkeypatch.setattr(os, "ftruncate", failing_truncate)

    def strike(self, half=lambda: None) -> None:
        self.count += 1
        if self.count == self.at:
            half()
            raise self.error

    def cut_power(self, path: Path, rng: random.Random) -> None:
        """Leave only what is certain to be on the disk."""
        real = str(path.resolve())
        kept = {}
        for folder in [folder for folder in self.names if folder == real or folder.startswith(f"{real}/")]:
            for name, inode in self.names[folder].items():
                file = Path(folder, name)
                if str(file) not in self.names and not file.is_dir():
                    content = self.contents.get(inode, b"")
                    same = file.exists() and file.stat().st_ino == inode
                    tail = file.read_bytes()[len(content) :] if same else b""
                    kept[file] = content + rng.choice([b"", bytes(len(tail)), tail])
        shutil.rmtree(path)
        for file, content in kept.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        self.contents, self.names = {file.stat().st_ino: content for file, content in kept.items()}, {}
        for folder in {str(file.parent) for file in kept}:
            self.names[folder] = {entry.name: entry.inode() for entry in os.scandir(folder)}


def go_on(path: Path, first: int = 400) -> session.Outcome:
    """Resume up to step 400, or start, for the `first` steps, if nothing was begun."""
    if (path / "config.toml").exists():
        return session.continue_run(path, ["num_steps=400"], progress=False)
    shutil.rmtree(path, ignore_errors=True)
    return session.start(small_settings(f"num_steps={first}"), path, progress=False)


def assert_readable(path: Path) -> None:
    """Whatever was interrupted, the records that are there can be read."""
    seen = read_trace(path)
    if seen is not None:
        assert seen["step"].values.tolist() == list(range(10, 10 * seen.sizes["draw"] + 1, 10))
        assert np.isfinite(seen["loss"]).all()


@pytest.mark.filterwarnings("ignore:.* is damaged")  # by the power cut, after the last checkpoint
@pytest.mark.parametrize("power_cut", [False, True])
def test_crashes_at_any_operation(tmp_path, finished, monkeypatch, power_cut):
    """Crashes at random operations on the disk, in runs that are extended half way."""
    disk, rng, path, crashes = Disk(monkeypatch, Crash()), random.Random(1), tmp_path / "run", 0
    while crashes < 14:
        disk.count, disk.at = 0, rng.randint(1, 150)
        if not (path / "config.toml").exists():  # begins again
            disk.names.clear()
        try:
            outcome = go_on(path, first=200)
        except Crash:
            crashes += 1
            if power_cut:
                disk.cut_power(path, rng)
            assert_readable(path)
        else:
            assert outcome.step in (200, 400)
            if outcome.step == 400:
                assert_same_run(path, finished)
                shutil.rmtree(path)  # it got through: begin another one
    disk.at = None
    assert go_on(path).step == 400
    assert_same_run(path, finished)


def test_a_finished_run_survives_a_power_cut(tmp_path, finished, monkeypatch):
    disk, path = Disk(monkeypatch, Crash()), tmp_path / "run"
    go_on(path)
    disk.cut_power(path, random.Random(0))
    assert_same_run(path, finished)
    assert session.load(path).trace.sizes["draw"] == 40


@pytest.mark.parametrize("fault_at", [1, 5, 40])
def test_full_disk(tmp_path, finished, monkeypatch, fault_at):
    disk, path = Disk(monkeypatch, OSError(28, "No space left on device")), tmp_path / "run"
    disk.at = fault_at
    with pytest.raises(RunFolderError, match=r"no space left.*free some space, then `pseudolangevin resume"):
        session.start(small_settings(), path, progress=False)
    disk.at = None
    assert_readable(path)
    assert go_on(path).step == 400
    assert_same_run(path, finished)


def at_step(monkeypatch, step: int, action) -> None:
    """Do something when the record of a step has been written."""
    add = Writer.add

    def add_and_act(self: Writer, record, kept):
        add(self, record, kept)
        if record.step == step:
            action()

    monkeypatch.setattr(Writer, "add", add_and_act)


@pytest.mark.parametrize("what", ["folder", "trace.records", "checkpoints"])
def test_a_folder_that_disappears_is_an_error(tmp_path, monkeypatch, what):
    path = tmp_path / "run"
    gone = path if what == "folder" else path / what
    at_step(monkeypatch, 170, lambda: gone.rename(tmp_path / "elsewhere"))
    with pytest.raises(RunFolderError, match=r"^[^\n]*(removed or moved|No such file)[^\n]*resume"):
        session.start(small_settings(), path, progress=False)
    if what == "folder":
        assert_readable(tmp_path / "elsewhere")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed(tmp_path, finished, monkeypatch, number):
    with monkeypatch.context() as patch:
        at_step(patch, 170, lambda: os.kill(os.getpid(), number))
        outcome = session.start(small_settings(), tmp_path / "run", progress=False)
    assert (outcome.step, outcome.interrupted) == (170, True)
    assert session.continue_run(tmp_path / "run", progress=False).step == 400
    assert_same_run(tmp_path / "run", finished)
    (resumed,) = json.loads((tmp_path / "run" / "provenance.json").read_text())["resumed"]
    assert resumed["from_step"] == 170


def test_checkpoints_between_records(tmp_path, finished, monkeypatch):
    def crash() -> None:
        raise Crash

    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_step(patch, 330, crash)
        with pytest.raises(Crash):
            session.start(small_settings("recording.checkpoint_every=7"), path, progress=False)
    assert Checkpoints(path / "checkpoints").steps()[-1] % 10 != 0
    assert session.continue_run(path, progress=False).step == 400
    assert_same_run(path, finished)


def test_balanced_langevin_continues_to_the_same_bits(tmp_path):
    sampler = "name = 'balanced_langevin', batch_size = 10, refresh_every = 20"
    whole, parts, chosen = tmp_path / "whole", tmp_path / "parts", f"sampler={{{sampler}}}"
    session.start(small_settings("num_steps=60", chosen), whole, progress=False)
    session.start(small_settings("num_steps=35", chosen), parts, progress=False)
    session.continue_run(parts, ["num_steps=60"], progress=False)
    assert_same_run(parts, whole)


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "empty"])
def test_damaged_newest_checkpoint(tmp_path, finished, damage):
    path = shutil.copytree(finished, tmp_path / "run")
    newest = path / "checkpoints" / "0000000400.checkpoint"
    content = newest.read_bytes()
    if damage == "remove":
        newest.unlink()
    else:
        flipped = bytes([*content[:-90], content[-90] ^ 1, *content[-89:]])
        newest.write_bytes({"truncate": content[: len(content) // 2], "flip": flipped, "empty": b""}[damage])
        with pytest.warns(UserWarning, match="0000000400.checkpoint is damaged"):
            assert np.all(np.asarray(session.load(path).states.step) == 390)
    noted = nullcontext() if damage == "remove" else pytest.warns(UserWarning, match="is damaged.*falling back")
    with noted:
        outcome = session.continue_run(path, ["num_steps=400"], progress=False)
    assert ("falling back" in (path / "log.txt").read_text()) == (damage != "remove")
    assert (outcome.first_step, outcome.step) == (390, 400)
    assert_same_run(path, finished)


def test_damaged_records_are_named_and_computed_again_where_a_checkpoint_allows_it(tmp_path, finished, monkeypatch):
    with store.RecordFile(finished / "trace.records") as file:
        start, length = file._start, file._length
    monkeypatch.setattr(store, "BUFFER", 3 * length)  # a run that is resumed is read three records at a time
    for record, can_resume in ((38, True), (20, False)):
        path = tmp_path / f"run{record}"
        shutil.copytree(finished, path)
        content = bytearray((path / "trace.records").read_bytes())
        content[start + record * length + 100] ^= 4
        (path / "trace.records").write_bytes(content)
        with pytest.raises(RunFolderError, match=rf"trace.records: record {record} is damaged"):
            session.load(path)
        before = session.load(path, num_records=record)
        assert np.array_equal(before.trace["loss"], session.load(finished).trace["loss"][..., :record])
        if can_resume:  # the checkpoint at step 360 lies before the damage
            with pytest.warns(UserWarning, match="record 38 is damaged"):
                assert session.continue_run(path, progress=False).first_step == 360
            assert_same_run(path, finished)
        else:
            with pytest.raises(RunFolderError, match=rf"no valid checkpoint .*record {record} is damaged"):
                session.continue_run(path, progress=False)


def test_only_files_of_the_run_are_removed(tmp_path, finished):
    """Also if the run is begun again, because nothing was recorded yet."""
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    (path / "checkpoints" / "mine").mkdir()
    (path / "checkpoints" / "mine" / "notes.txt").touch()
    (path / "checkpoints" / ".0000000380.checkpoint.partial").touch()
    session.continue_run(path, progress=False)
    assert not (path / "checkpoints" / ".0000000380.checkpoint.partial").exists()
    for file in (path / "trace.records", *path.glob("checkpoints/*.checkpoint")):
        file.unlink()
    session.continue_run(path, progress=False)
    assert (path / "checkpoints" / "mine" / "notes.txt").exists()
    assert_same_run(path, finished)
