"""The commands on run folders: what they print, their exit codes, and folders that are damaged."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zarr

from pseudolangevin import cli, runs
from pseudolangevin.report import write
from pseudolangevin.store.folder import RunFolder
from pseudolangevin.store.lock import locked
from pseudolangevin.store.writer import RunWriter
from tests.test_cli import assert_one_clear_line

from .small_runs import SMALL_RUN, assert_same_run, snapshot

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_sample_interrupt_resume(tmp_path, finished, capsys, monkeypatch):
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(SMALL_RUN)
    add = RunWriter.add

    def add_and_interrupt(self: RunWriter, record):
        add(self, record)
        if record.step == 170:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunWriter, "add", add_and_interrupt)
    assert cli.run(["sample", str(file), "--out", str(out)]) == 130
    assert f"interrupted: at step 170 of 400; continue with `pseudolangevin resume {out}`" in capsys.readouterr().err
    assert cli.run(["resume", str(out)]) == 0
    assert "400 of 400 steps done" in capsys.readouterr().out
    assert_same_run(out, finished)
    assert cli.run(["sample", str(file), "--out", str(out)]) == 2
    assert "already holds a run" in assert_one_clear_line(capsys)


def test_a_chain_that_stops_is_reported_by_the_exit_code(tmp_path, capsys):
    file, out = tmp_path / "run.toml", tmp_path / "out"
    text = SMALL_RUN[: SMALL_RUN.index("[sampler]")].replace("temperatures = [1e-3, 2e-3]", "")
    file.write_text(
        text + '[sampler]\nname = "adam"\nbatch_size = 10\nlearning_rate = 1e38\n[start]\nkind = "random"\n'
    )
    assert cli.run(["sample", str(file), "--out", str(out)]) == 1
    assert "2 chains ended early" in capsys.readouterr().err
    assert "turned non-finite" in (out / "log.txt").read_text()
    assert cli.run(["resume", str(out), "--steps", "500"]) == 1


def test_check(copy, capsys):
    code = cli.run(["check", str(copy), "--json", "--noise-draws", "50"])
    verdict = json.loads(capsys.readouterr().out)
    assert code == (0 if verdict["passed"] else 1)
    assert {line["name"] for line in verdict["lines"]}


def test_check_needs_two_draws_or_none(copy, capsys):
    assert cli.run(["check", str(copy), "--noise-draws", "1"]) == 2
    assert "noise_draws = 1 has no spread; pass 2 or more, or 0" in assert_one_clear_line(capsys)
    for draws in ("0", "2"):
        assert cli.run(["check", str(copy), "--noise-draws", draws]) in (0, 1)


def test_a_report_that_cannot_be_written(copy, capsys, monkeypatch):
    (copy / "report.html").mkdir()
    monkeypatch.setattr(write, "report_html", lambda *arguments, **more: "a page")
    monkeypatch.setattr(write, "_certificate", lambda path: (None, "not looked at"))
    assert cli.run(["report", str(copy)]) == 2
    assert f"{copy}/report.html: Is a directory; check the path" in assert_one_clear_line(capsys)
    assert not list(copy.glob("*.partial"))

    def refuse(dir: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(dir / "tmp123"))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(write, "_certificate", lambda path: pytest.fail("made for nothing"))
    assert cli.run(["report", str(copy)]) == 2
    assert f"{copy} cannot be written: Permission denied; make it writable" in assert_one_clear_line(capsys)


@pytest.mark.usefixtures("_answers_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_before_or_after_the_run(tmp_path, copy, capsys, monkeypatch, number):
    """A run that has begun is resumable, and only that."""
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(SMALL_RUN)
    for name in ("start", "resume"):
        monkeypatch.setattr(runs, name, lambda *arguments, **more: os.kill(os.getpid(), number))
    for command, words in [
        (["sample", str(file), "--out", str(out)], "sample did not finish; start it again"),
        (["demo", "--out", str(out)], "demo did not finish; start it again"),
        (["sample", str(file), "--out", str(copy)], f"continue with `pseudolangevin resume {copy}`"),
        (["resume", str(copy)], f"continue with `pseudolangevin resume {copy}`"),
    ]:
        assert cli.run(command) == 130
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("interrupted: ")
        assert line.endswith(words)


def test_locked_folder(copy, capsys):
    before = snapshot(copy)
    with locked(RunFolder(copy)):
        assert cli.run(["resume", str(copy), "--steps", "500"]) == 2
        assert f"in use by process {os.getpid()}" in assert_one_clear_line(capsys)
    assert snapshot(copy) == before


def test_resume_a_stale_lock(copy, capsys):
    (copy / "lock").write_text(json.dumps({"pid": 99999999, "host": os.uname().nodename, "started": "yesterday"}))
    assert cli.run(["resume", str(copy)]) == 0
    assert "took over the stale lock of process 99999999" in capsys.readouterr().err


def test_resume_a_run_that_has_its_steps(copy, capsys):
    noted = (copy / "provenance.json").read_bytes()
    for steps in (["--steps", "400"], []):
        assert cli.run(["resume", str(copy), *steps]) == 0
        assert capsys.readouterr().out == f"{copy}: the run already has 400 steps; nothing is to be done\n"
    assert (copy / "provenance.json").read_bytes() == noted  # it was not resumed
    before = snapshot(copy)
    assert cli.run(["resume", str(copy), "--steps", "390"]) == 2
    assert "below the 400 steps already done" in assert_one_clear_line(capsys)
    assert snapshot(copy) == before


def put(name: str, content: bytes) -> Callable[[Path], None]:
    def action(path: Path) -> None:
        (path / name).write_bytes(content)

    return action


def cut(name: str) -> Callable[[Path], None]:
    return lambda path: os.truncate(path / name, (path / name).stat().st_size // 2)


def drop(name: str) -> Callable[[Path], None]:
    def action(path: Path) -> None:
        target = path / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return action


def reshape(store: str, name: str, shape: tuple[int, ...], dtype: str) -> Callable[[Path], None]:
    def action(path: Path) -> None:
        zarr.open_group(path / store, mode="r+").create_array(name, shape=shape, dtype=dtype, overwrite=True)

    return action


def edit(old: str, new: str) -> Callable[[Path], None]:
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


@pytest.mark.parametrize("command", ["check", "resume"])
def test_damaged_folders(finished, tmp_path, capsys, command):
    """Exit code 2, one clear line, nothing changed: with the mutated configurations these are more than two hundred."""
    damages = BOTH + (LOAD_ONLY if command == "check" else RESUME_ONLY)
    assert len(damages) > 30
    for number, damage in enumerate(damages):
        path = tmp_path / f"run{number}"
        shutil.copytree(finished, path)
        damage(path)
        before = snapshot(path)
        assert cli.run([command, str(path)]) == 2, f"damage {number} was not noticed"
        assert_one_clear_line(capsys)
        assert snapshot(path) == before, f"damage {number}"


def can_mount(tmp_path: Path) -> bool:
    target = tmp_path / "tmpfs"
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(target)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
def test_full_file_system(tmp_path, finished, capsys):
    """The real thing where a small file system can be mounted: the run stops with one line, and resumes."""
    if not can_mount(tmp_path):
        pytest.skip("cannot mount a file system here")
    disk = tmp_path / "tmpfs"
    try:
        file, out, ballast = tmp_path / "run.toml", disk / "run", disk / "ballast"
        file.write_text(SMALL_RUN)
        ballast.write_bytes(bytes(150_000))
        assert cli.run(["sample", str(file), "--out", str(out)]) == 2
        assert "no space left" in assert_one_clear_line(capsys)
        ballast.unlink()
        subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
        command = ["resume", str(out)] if (out / "config.toml").exists() else ["sample", str(file), "--out", str(out)]
        assert cli.run(command) == 0
        assert_same_run(out, finished)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
