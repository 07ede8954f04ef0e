"""The demo: its output and its continuation."""

from __future__ import annotations

import tomllib

import pytest

from pseudolangevin import cli, demo
from pseudolangevin.runs import session
from tests.runs.conftest import _share_programs  # noqa: F401
from tests.runs.small_runs import SMALL_RUN


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
