"""The demo: what it prints, and that it never takes a folder for its own that is not."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from pseudolangevin import cli, config, demo, runs
from pseudolangevin.diagnostics.averages import Average
from pseudolangevin.published import published_averages
from pseudolangevin.store.folder import RunFolder
from pseudolangevin.store.lock import locked

from .store.small_runs import SMALL_RUN, snapshot
from .test_cli import assert_one_clear_line


@pytest.fixture
def small(monkeypatch) -> None:
    """A demo that takes seconds."""
    monkeypatch.setattr(demo, "SETTINGS", tomllib.loads(SMALL_RUN))


def make_run(path: Path, command: list[str], num_steps: int = demo.NUM_STEPS) -> Path:
    """What a run leaves, as far as it matters here."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.toml").write_text(f"num_steps = {num_steps}\n[start]\nnum_steps = 3\n")
    (path / "provenance.json").write_text(json.dumps({"command": command, "number": len(list(path.parent.iterdir()))}))
    return path


@pytest.mark.slow
def test_a_demo_and_another_in_its_place(small, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["demo"]) == 0
    printed = capsys.readouterr().out
    assert "kinetic/T" in printed
    assert "0.002" in printed
    assert "-m pseudolangevin check demo\n" in printed
    assert (tmp_path / "demo" / "demo.png").stat().st_size > 10_000
    assert (tmp_path / "demo" / "report.html").is_file()
    assert {entry.name for entry in (tmp_path / "demo").iterdir()} <= demo.FILES

    first = snapshot(tmp_path / "demo")

    def start(settings: config.Settings, path: Path, *, command: list[str]) -> runs.Outcome:
        make_run(RunFolder.fresh(path).path, command)  # the folder is taken for a new one
        return runs.Outcome(path, 0, 400, True, 0, 0.0, ())

    monkeypatch.setattr(runs, "start", start)
    assert cli.run(["demo"]) == 130
    printed = capsys.readouterr().out
    assert f"the demo of before is now in {tmp_path / 'demo-before'}\n" in printed
    assert "-m pseudolangevin resume demo`" in printed
    assert snapshot(tmp_path / "demo-before") == first
    assert cli.run(["demo"]) == 130  # in place of the first
    assert snapshot(tmp_path / "demo-before").keys() == {"config.toml", "provenance.json"}


def test_a_demo_that_cannot_write_its_files_says_so(small, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.run(["demo", "--out", str(tmp_path / "file" / "demo")]) == 2
    assert "Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("which", ["run", "run-before"])
@pytest.mark.parametrize("kind", ["sampled", "extended", "notes", "unknown", "empty file"])
def test_what_is_not_a_demo_is_left_alone(tmp_path, capsys, which, kind):
    out, other = tmp_path / "run", tmp_path / ("run-before" if which == "run" else "run")
    make_run(other, demo.COMMAND)
    path = tmp_path / which
    if kind == "sampled":
        make_run(path, ["pseudolangevin", "sample", "run.toml"])
    elif kind == "extended":
        make_run(path, demo.COMMAND, num_steps=10 * demo.NUM_STEPS)
    elif kind == "notes":
        (make_run(path, demo.COMMAND) / "notes.txt").write_text("weeks of work")
    elif kind == "unknown":
        (make_run(path, demo.COMMAND) / "provenance.json").unlink()
    else:
        path.write_text("")
    before = snapshot(tmp_path)
    assert cli.run(["demo", "--out", str(out)]) == 2
    assert f"{path} holds something other than a plain demo" in assert_one_clear_line(capsys)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("which", ["run", "run-before"])
def test_a_demo_that_is_being_written_is_left_alone(tmp_path, capsys, which):
    for name in ("run", "run-before"):
        make_run(tmp_path / name, demo.COMMAND)
    with locked(RunFolder(tmp_path / which)):
        assert cli.run(["demo", "--out", str(tmp_path / "run")]) == 2
        assert f"{tmp_path / which} is in use by process {os.getpid()}" in assert_one_clear_line(capsys)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "run-before"}
    assert json.loads((tmp_path / "run-before" / "provenance.json").read_text())["number"] == 2


@pytest.mark.parametrize("out", [".", "..", "/", "inside/.."])
def test_the_folder_one_is_in_stays(tmp_path, capsys, monkeypatch, out):
    run = make_run(tmp_path / "here", demo.COMMAND)
    (run / "inside").mkdir()
    monkeypatch.chdir(run)
    before = snapshot(tmp_path)
    assert cli.run(["demo", "--out", out]) == 2
    assert "is the folder you are in, or above it" in assert_one_clear_line(capsys)
    assert snapshot(tmp_path) == before


def test_room_is_made_behind_a_link_too(tmp_path):
    real = make_run(tmp_path / "disk" / "demo", demo.COMMAND)
    (tmp_path / "demo").symlink_to(real)
    demo._make_room(tmp_path / "demo", Console(quiet=True))
    assert not list((tmp_path / "demo").iterdir())
    assert demo._is_demo(tmp_path / "disk" / "demo-before")
    assert not (tmp_path / "disk" / "demo-before" / "lock").exists()


def test_an_empty_folder_needs_no_room(tmp_path):
    (tmp_path / "lock").write_text("")  # of a process that was killed before its run began
    demo._make_room(tmp_path, Console(quiet=True))
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_commands_are_printed_as_they_can_be_typed(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "pseudolangevin"
    program.parent.mkdir()
    shutil.copy(shutil.which("true") or "/bin/true", program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bin/pseudolangevin", "demo"])  # as `make demo` calls it
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert demo._command("check", Path("demo")) == "bin/pseudolangevin check demo"
    monkeypatch.setenv("PATH", str(program.parent))  # installed, or after `. .venv/bin/activate`
    assert demo._command("check", Path("my demo")) == "pseudolangevin check 'my demo'"
    monkeypatch.setattr(sys, "argv", ["/somewhere/pseudolangevin/__main__.py"])
    assert demo._command("check", Path("demo")) == f"{sys.executable} -m pseudolangevin check demo"


def test_the_settings_of_the_demo_are_those_it_is_known_by():
    settings = config.Settings.model_validate(demo.SETTINGS)
    assert settings.num_steps == demo.NUM_STEPS


def test_averages_stand_above_the_published_ones():
    temperatures, draws = [3e-5, 4.5e-5], np.ones((2, 2, 40))
    factors = {"loss": 0.25, "squared_norm": 512.0, "error": 0.125}
    trace = xr.Dataset(
        {name: (("temperature", "chain", "draw"), factor * draws) for name, factor in factors.items()}
        | {
            name: (("temperature", "chain", "draw"), draws * np.reshape(temperatures, (2, 1, 1)))
            for name in ("kinetic_temperature", "virial_temperature")
        },
        coords={"temperature": temperatures},
    )
    trace["loss"][:, :, :20] = 9.0  # discarded
    published = published_averages(11_160, {"weight_decay": 10.0611, "num_train": 55_800})
    table = demo.averages_table(trace, published)
    rows = list(zip(*(list(column.cells) for column in table.columns), strict=True))
    assert ("3e-5", "measured", "0.25", "512", "0.125", "1", "1") in rows
    assert rows[-1][0] == "4.5e-5"  # nothing was published there
    beside = [row for row in rows if row[1] == "published pL"]
    assert len(beside) == 1
    value = next(p for p in published if p.label == "published pL").at(3e-5, "loss")
    assert beside[0][2] == f"{value:.5g}"


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (0.32617, 0.00068, "0.3262(7)"),
        (0.32617, 0.02, "0.33(2)"),
        (512.3, 14.0, "512(14)"),
        (512.34, 3.0, "512(3)"),
        (0.25, 0.0, "0.25"),
        (0.25, float("nan"), "0.25"),
    ],
)
def test_numbers_with_errors(mean, error, text):
    assert demo.with_error(Average(mean, error, 10.0)) == text
