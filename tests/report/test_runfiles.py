"""Reading run folders that are incomplete or still growing."""

from __future__ import annotations

import json
from pathlib import Path

from synthetic import make_trace, write_run, write_samples

from pseudolangevin.runfiles import find_number, find_setting, flatten, read_metrics, read_samples, read_trace


def test_only_what_is_recorded_is_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", make_trace(draws=12), room=88)
    trace = read_trace(run)
    assert trace is not None
    assert trace.sizes["draw"] == 12
    assert trace["step"].values[-1] == 600
    (run / "committed.json").write_text(json.dumps({"records": 9, "kept": 2}))
    shorter = read_trace(run)
    assert shorter is not None
    assert shorter.sizes["draw"] == 9
    recent = read_trace(run, last=4)
    assert recent is not None
    assert recent["step"].values.tolist() == [300, 350, 400, 450]
    write_samples(run)
    samples = read_samples(run)
    assert samples is not None
    assert samples[0].tolist() == [200, 400]
    assert samples[1]["layer1.bias"].shape == (2, 2, 2, 50)


def test_what_is_not_there_is_absent(tmp_path: Path) -> None:
    assert read_trace(tmp_path) is None
    assert read_samples(tmp_path) is None
    assert read_metrics(tmp_path) == []
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n[1]\n{"step": "x"}\nnull\n{"step": 2}\n{"st')
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2]


def test_settings_are_found_in_the_outermost_table() -> None:
    settings = {"start": {"num_steps": 5, "deep": {"only": True}}, "num_steps": 100, "name": "x"}
    assert flatten(settings)["start.deep.only"] is True
    assert find_number(settings, "num_steps") == 100
    assert find_number(settings, "only") is None
    assert find_number(settings, "name") is None
    assert find_setting(settings, "name") == "x"
    assert find_setting(settings, "nowhere") is None
