"""The demo: its output, its continuation, and folders that contain something else stay as they are."""

from __future__ import annotations

import re
import tomllib

import pytest

from pseudolangevin import cli, demo
from pseudolangevin.runs import session
from tests.runs.conftest import _share_programs  # noqa: F401
from tests.runs.small_runs import SMALL_RUN, snapshot


@pytest.mark.slow
def test_a_demo_is_written_and_continued(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "SETTINGS", tomllib.loads(SMALL_RUN))
    monkeypatch.chdir(tmp_path)
    assert cli.run(["demo"]) == 0
    printed = capsys.readouterr().out
    assert "2 chains at each of T = 0.001, 0.002; 400 steps" in printed
    assert "kinetic_temperature" in printed
    assert "`pseudolangevin check demo`\n" in printed
    assert (tmp_path / "demo" / "demo.png").stat().st_size > 10_000
    assert (tmp_path / "demo" / "report.html").is_file()

    monkeypatch.setattr(session, "continue_run", lambda path, **_: session.Outcome(path, 0, 400, interrupted=True))
    assert cli.run(["demo"]) == 130
    printed = capsys.readouterr().out
    assert "continuing the demo in demo\n" in printed
    assert "`pseudolangevin resume demo`" in printed


@pytest.mark.parametrize("kind", ["sampled", "notes", "file", "below a file"])
def test_folders_of_another_kind_stay(tmp_path, capsys, kind):
    path = tmp_path / "run"
    if "file" in kind:
        path.write_text("")
    else:
        path.mkdir()
        (path / ("config.toml" if kind == "sampled" else "notes.txt")).write_text("weeks of work")
    before = snapshot(tmp_path)
    assert cli.run(["demo", "--out", str(path / "demo" if kind == "below a file" else path)]) == 2
    assert re.search("--out|another folder", capsys.readouterr().err.splitlines()[-1])
    assert snapshot(tmp_path) == before
