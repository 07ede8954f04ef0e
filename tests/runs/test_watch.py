"""The view in the terminal, of runs in every state."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from pseudolangevin.runs import watch as module
from pseudolangevin.runs.store import Header, RecordFile, read_trace
from pseudolangevin.runs.watch import render, watch
from pseudolangevin.samplers import Status

from . import report_data

CONFIG = 'num_steps = 4000\n[sampler]\nname = "pseudo_langevin"\n[network]\nsizes = [100, 50, 10]\n'


def make_trace(draws: int = 80) -> xr.Dataset:
    """Records every 50 steps, at a speed of 50 steps per second."""
    names = ["loss", "squared_norm", "error", "margin", "kinetic_temperature", "status"]
    trace = report_data.make_trace(draws=draws)[names]
    return trace.assign_coords(chain=[0, 1], seconds=("draw", trace["step"].values / 50))


def write_run(path: Path, trace: xr.Dataset) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.toml").write_text(CONFIG)
    (path / "provenance.json").write_text(json.dumps({"device": "cpu"}))
    columns = {"step": trace["step"].values, "seconds": trace["seconds"].values}
    columns |= {str(name): np.moveaxis(array.values, 2, 0) for name, array in trace.data_vars.items()}
    about = {"observed_examples": 10, "variables": {n: [list(a.dims), a.attrs] for n, a in trace.data_vars.items()}}
    about["coords"] = {name: trace[name].values.tolist() for name in ("temperature", "chain")}
    records = [{name: column[draw] for name, column in columns.items()} for draw in range(trace.sizes["draw"])]
    RecordFile.create(path / "trace.records", Header.of({}, records[0].items(), **about), *records)
    return path


@pytest.fixture
def running(tmp_path) -> Path:
    """A run that is a quarter done."""
    return write_run(tmp_path / "run", make_trace(draws=20))


def printed(run: Path, width: int = 140, terminal: bool = False, once: bool = False) -> str:
    stream = io.StringIO()
    watch(run, once, console=Console(file=stream, width=width, force_terminal=terminal))
    return stream.getvalue()


def test_a_finished_run_is_printed_once(tmp_path):
    run, trace = tmp_path / "first", make_trace()
    text = printed(write_run(run, trace))
    assert "first  pseudo langevin, 100-50-10, 2 temperature(s) x 2 chain(s), cpu" in text
    assert "4,000/4,000 steps  finished" in text
    assert "margin" in text  # an observable of the user
    rows = [line.split() for line in text.splitlines() if line.startswith(("1e-05", "3e-05"))]
    for row, index in zip(rows, range(2), strict=True):
        last = trace.isel(temperature=index, draw=-1).mean("chain")
        assert float(row[1]) == pytest.approx(float(last["loss"]), rel=1e-3)
        assert float(row[4]) == pytest.approx(float(last["kinetic_temperature"] / last["temperature"]), rel=1e-3)
        assert row[-1] == "ok"
    narrow = printed(run, 60)  # fewer columns, with all their digits
    assert max(map(len, narrow.splitlines())) <= 60
    assert "…" not in narrow
    assert "margin" not in narrow


def test_a_running_run_shows_speed_and_time_left(running, tmp_path):
    text = printed(running)
    for shown in ("1,000/4,000 steps", "50 steps/s", "0:01:00 left"):  # 3000 steps at 50 steps/s
        assert shown in text
    assert "finished" not in text
    trace = make_trace(draws=20)
    trace["seconds"] = trace["seconds"] + 100 * (np.arange(20) >= 3)  # the programs of a new session
    assert "50 steps/s" in printed(write_run(tmp_path / "compiled", trace))


def test_stopped_chains_are_shown(tmp_path):
    trace = make_trace(draws=10)
    trace["status"][1, 0, 4:] = int(Status.NON_FINITE)
    assert "1 of 2 stopped: non finite" in printed(write_run(tmp_path / "one", trace))
    trace["status"][...] = int(Status.NON_FINITE)
    run = write_run(tmp_path / "all", trace)
    assert "all chains stopped" in printed(run)
    assert render(run)[1]


def test_incomplete_and_missing_files(running):
    trace = running / "trace.records"
    os.truncate(trace, trace.stat().st_size - 3)
    last = read_trace(running, 4)
    assert last is not None
    assert last["step"].values.tolist() == [800, 850, 900, 950]
    for file in (running / "config.toml", running / "provenance.json", trace):
        os.truncate(file, file.stat().st_size // 2 - 3)
        assert "run" in printed(running)
        file.unlink()
        assert "run" in printed(running)
    assert "nothing recorded yet" in printed(running)


def test_forged_labels_stay_text_and_a_trace_without_status_is_none(tmp_path):
    trace = make_trace()
    trace["loss"].attrs["label"] = "[/x]\x1b[2J"
    text = printed(write_run(tmp_path / "label", trace))
    assert "[/x]" in text
    assert "\x1b" not in text
    assert "nothing recorded yet" in printed(write_run(tmp_path / "status", make_trace().drop_vars("status")))


def test_the_live_view_follows_a_run_to_its_end_or_to_ctrl_c(running, tmp_path, monkeypatch):
    waits = []

    def interrupt(seconds: float) -> None:
        waits.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", interrupt)
    for once, expected in ((True, 0), (False, 1)):
        printed(running, terminal=True, once=once)
        assert len(waits) == expected
    later = write_run(tmp_path / "later", make_trace())
    monkeypatch.setattr(module.time, "sleep", lambda _: (later / "trace.records").replace(running / "trace.records"))
    text = printed(running, terminal=True)
    assert "4,000/4,000" in text
    assert "finished" in text
