"""The view in the terminal, of runs in every state."""

from __future__ import annotations

import io
import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from synthetic import make_trace, stop_chain, write_run

from pseudolangevin import watch as module
from pseudolangevin.sparkline import sparkline
from pseudolangevin.types import Status
from pseudolangevin.watch import Snapshot, render, watch


def printed(run: Path, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    watch(run, console=console)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def test_a_finished_run_is_printed_once(tmp_path: Path) -> None:
    text = printed(write_run(tmp_path / "first"))
    assert "first  pseudo langevin · network 100–50–100–10 · 2 temperature(s) × 2 chain(s) · on cpu" in text
    assert "4,000/4,000 steps" in text
    assert "50 steps/s" in text
    assert "finished" in text
    rows = [line.split() for line in text.splitlines() if line.startswith(("1e-05", "3e-05"))]
    trace = make_trace()
    for row, temperature in zip(rows, range(2), strict=True):
        assert float(row[1]) == pytest.approx(float(trace["loss"].values[temperature, :, -1].mean()), rel=1e-3)
        kinetic = (
            trace["kinetic_temperature"].values[temperature, :, -1].mean() / trace["temperature"].values[temperature]
        )
        assert float(row[5]) == pytest.approx(float(kinetic), rel=1e-3)
        assert row[-1] == "ok"


def test_a_running_run_tells_the_time_left(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", make_trace(draws=20), room=60)
    text = printed(run)
    assert "1,000/4,000 steps" in text
    assert "1:00 left" in text  # 3000 steps at 50 steps/s
    assert "finished" not in text
    assert "no news for 2:00" in _text(render(Snapshot.of(run), quiet_seconds=120))


def test_a_narrow_terminal_keeps_the_digits(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert max(map(len, printed(run, 80).splitlines())) <= 80
    assert "…" not in printed(run, 80)
    assert "test error" not in printed(run, 80)
    assert "test error" in printed(run)


def test_stopped_chains_are_told(tmp_path: Path) -> None:
    one = stop_chain(make_trace(draws=10), 1, 0, 4)
    text = printed(write_run(tmp_path / "one", one))
    assert "1 of 2 stopped: non finite" in text
    everyone = one
    for temperature, chain in ((0, 0), (0, 1), (1, 1)):
        everyone = stop_chain(everyone, temperature, chain, 4)
    run = write_run(tmp_path / "all", everyone)
    assert "all chains stopped" in printed(run)
    assert Snapshot.of(run).finished


def test_chains_that_ended_as_asked_are_not_failures(tmp_path: Path) -> None:
    trace = make_trace(draws=10)
    trace["status"][:, 0, 4:] = int(Status.EARLY_STOPPED)
    text = printed(write_run(tmp_path / "run", trace))
    assert "ok, 1 of 2 ended early" in text
    assert "stopped:" not in text


def test_hundreds_of_temperatures_fit_a_screen(tmp_path: Path) -> None:
    text = printed(write_run(tmp_path / "many", make_trace(temperatures=200, chains=1, draws=3)))
    assert "… and 176 more" in text
    assert len(text.splitlines()) < 30


@pytest.mark.parametrize(
    "damage", ["config.toml", "provenance.json", "metrics.jsonl", "trace.zarr/zarr.json", "trace.zarr/loss/zarr.json"]
)
@pytest.mark.parametrize("how", ["gone", "half", "empty"])
def test_half_written_and_missing_files(tmp_path: Path, damage: str, how: str) -> None:
    run = write_run(tmp_path / "run", make_trace(draws=10), room=30)
    path = run / damage
    content = path.read_bytes()
    path.unlink()
    if how != "gone":
        path.write_bytes(content[: len(content) // 2 - 3] if how == "half" else b"")
    assert "run" in printed(run)


def test_an_empty_folder_and_no_folder(tmp_path: Path) -> None:
    assert "nothing recorded yet" in printed(tmp_path)
    with pytest.raises(ValueError, match=r"run_dir = .* is not a folder; pass"):
        watch(tmp_path / "nothere")


def test_the_live_view_follows_a_run_to_its_end(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", make_trace(draws=20), room=60)

    def finish() -> None:
        time.sleep(0.3)
        later = write_run(tmp_path / "later")
        shutil.rmtree(run / "trace.zarr")
        shutil.copytree(later / "trace.zarr", run / "trace.zarr")
        shutil.copy(later / "metrics.jsonl", run / "metrics.jsonl")

    console = Console(file=io.StringIO(), width=140, force_terminal=True)
    writer = threading.Thread(target=finish)
    writer.start()
    watch(run, interval=0.05, console=console)
    writer.join()
    output = console.file
    assert isinstance(output, io.StringIO)
    assert "1,000/4,000" in output.getvalue()
    assert "4,000/4,000" in output.getvalue().split("1,000/4,000")[-1]
    assert "finished" in output.getvalue()


def test_once_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", make_trace(draws=20), room=60)
    waits: list[float] = []
    monkeypatch.setattr(module.time, "sleep", waits.append)
    screen = io.StringIO()
    watch(run, once=True, console=Console(file=screen, width=140, force_terminal=True))
    assert not waits
    assert "steps" in screen.getvalue()


def test_ctrl_c_leaves_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", make_trace(draws=20), room=60)

    interrupted = []

    def interrupt(seconds: float) -> None:
        interrupted.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", interrupt)
    watch(run, console=Console(file=io.StringIO(), width=140, force_terminal=True))
    assert len(interrupted) == 1  # it waited, was interrupted, and came back


def test_speed_is_that_of_the_recent_records(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", make_trace(draws=20), room=60)
    lines = [{"step": 10 * i, "seconds": 2.0 * i, "steps_per_second": 99} for i in range(1, 100)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 1')
    assert Snapshot.of(run).speed == pytest.approx(5.0)


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, np.nan, 2.0]) == "▁ █"
    assert sparkline([5, 5, 5]) == "▁▁▁"
    assert sparkline([]) == ""
    assert sparkline([np.nan, np.nan]) == "  "
    assert len(sparkline(list(range(1000)), 12)) == 12


def _text(renderable: object) -> str:
    stream = io.StringIO()
    Console(file=stream, width=140).print(renderable)
    return stream.getvalue()
