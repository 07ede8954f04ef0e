"""The demo: its output, and folders that are not an earlier demo stay as they are."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from pseudolangevin import cli, demo
from pseudolangevin.runs import session
from pseudolangevin.runs.folder import RunFolder, locked
from tests.runs.small_runs import SMALL_RUN, snapshot
from tests.test_cli import assert_one_clear_line

DEMO = ["pseudolangevin", "demo"]


@pytest.fixture
def small(monkeypatch) -> None:
    """A demo that takes seconds."""
    monkeypatch.setattr(demo, "SETTINGS", tomllib.loads(SMALL_RUN))


def make_run(path: Path, command: list[str]) -> Path:
    """The files of a run by which a demo is recognised."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.toml").write_text("num_steps = 3\n")
    (path / "provenance.json").write_text(json.dumps({"command": command}))
    return path


@pytest.mark.slow
def test_a_demo_and_another_in_its_place(small, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["demo"]) == 0
    printed = capsys.readouterr().out
    assert "kinetic/T" in printed
    assert "T = 0.002" in printed
    assert "python -m pseudolangevin check demo\n" in printed
    assert (tmp_path / "demo" / "demo.png").stat().st_size > 10_000
    assert (tmp_path / "demo" / "report.html").is_file()
    first = snapshot(tmp_path / "demo")

    def start(settings, path, *, command):
        make_run(path, command)
        return session.Outcome(path, 0, 400, True, 0, 0.0, ())

    monkeypatch.setattr(session, "start", start)
    for number in (1, 2):
        assert cli.run(["demo"]) == 130
        printed = capsys.readouterr().out
        assert f"the earlier demo is now in {tmp_path / f'demo-{number}'}\n" in printed
        assert "python -m pseudolangevin resume demo`" in printed
    kept = snapshot(tmp_path / "demo-1")
    assert {name: kept[name] for name in first if name != "lock"} == {n: b for n, b in first.items() if n != "lock"}


def test_a_demo_that_cannot_write_its_files(small, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.run(["demo", "--out", str(tmp_path / "file" / "demo")]) == 2
    assert "Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["sampled", "unknown", "notes", "file"])
def test_folders_of_another_kind_stay(tmp_path, capsys, kind):
    path = tmp_path / "run"
    if kind == "file":
        path.write_text("")
    elif kind == "notes":
        path.mkdir()
        (path / "notes.txt").write_text("weeks of work")
    else:
        make_run(path, ["pseudolangevin", "sample", "run.toml"])
        if kind == "unknown":
            (path / "provenance.json").unlink()
    before = snapshot(tmp_path)
    assert cli.run(["demo", "--out", str(path)]) == 2
    assert f"{path} contains something other than a demo" in assert_one_clear_line(capsys)
    assert snapshot(tmp_path) == before


def test_a_demo_that_is_being_written_stays(tmp_path, capsys):
    path = make_run(tmp_path / "run", DEMO)
    with locked(RunFolder(path)):
        assert cli.run(["demo", "--out", str(path)]) == 2
        assert f"{path} is in use by process {os.getpid()}" in assert_one_clear_line(capsys)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("out", [".", "..", "/", "inside/.."])
def test_the_current_folder_stays(tmp_path, capsys, monkeypatch, out):
    run = make_run(tmp_path / "here", DEMO)
    (run / "inside").mkdir()
    monkeypatch.chdir(run)
    before = snapshot(tmp_path)
    assert cli.run(["demo", "--out", out]) == 2
    assert "is the current folder, or contains it" in assert_one_clear_line(capsys)
    assert snapshot(tmp_path) == before


def test_a_demo_behind_a_link_is_moved_and_the_link_stays_valid(tmp_path):
    real = make_run(tmp_path / "disk" / "demo", DEMO)
    (tmp_path / "demo").symlink_to(real)
    demo.move_aside(tmp_path / "demo")
    assert not list((tmp_path / "demo").iterdir())
    assert (tmp_path / "disk" / "demo-1" / "config.toml").is_file()


def test_a_folder_without_a_run_stays(tmp_path):
    (tmp_path / "lock").write_text("")  # of a process that was killed before its run began
    demo.move_aside(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_averages_are_those_of_the_second_half():
    temperatures, draws = [3e-5, 4.5e-5], np.ones((2, 2, 40))
    units: dict[str, Any] = {"loss": 0.25, "squared_norm": 512.0, "error": 0.125}
    units |= dict.fromkeys(("kinetic_temperature", "virial_temperature"), np.reshape(temperatures, (2, 1, 1)))
    dims = ("temperature", "chain", "draw")
    trace = xr.Dataset({name: (dims, unit * draws) for name, unit in units.items()}, {"temperature": temperatures})
    trace["status"] = (dims, np.zeros(draws.shape, int))
    trace["loss"][:, :, :20] = 9.0  # discarded
    table = demo.averages_table(trace)
    assert [column.header for column in table.columns] == ["", "T = 3e-05", "T = 4.5e-05"]
    rows = list(zip(*(list(column.cells) for column in table.columns), strict=True))
    assert rows[0] == ("loss", "0.25", "0.25")
    assert rows[1] == ("|w|²", "512", "512")
    assert rows[3] == ("kinetic/T", "1", "1")
