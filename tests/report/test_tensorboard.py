"""Event files: what is written can be read back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from synthetic import make_trace, stop_chain

from pseudolangevin.adapters.tensorboard import TensorBoardLogger, write_trace


def test_without_the_package_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"pip install 'pseudolangevin\[tensorboard\]'"):
        TensorBoardLogger(tmp_path, [1e-5], 1)


def read_events(folder: Path) -> dict[str, dict[int, float]]:
    """Tags with their values by step; an event file is a row of (length, check, event, check)."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    scalars: dict[str, dict[int, float]] = {}
    for file in folder.glob("events*"):
        data, at = file.read_bytes(), 0
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            at += 16 + length
            for value in event.summary.value:
                scalars.setdefault(value.tag, {})[event.step] = value.simple_value
    return scalars


def test_a_trace_is_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    trace = stop_chain(make_trace(draws=5), 1, 0, 3)
    folder = write_trace(trace, tmp_path / "events")
    whole = read_events(folder / "T=1e-05" / "chain1")
    assert whole["loss"] == pytest.approx(dict(zip([50, 100, 150, 200, 250], trace["loss"].values[0, 1], strict=True)))
    assert whole["gradient_variance/layer2"][50] == pytest.approx(2e-5)
    assert set(whole) >= {"temperature_ratio/0.5", "status", "squared_norm"}
    stopped = read_events(folder / "T=3e-05" / "chain0")
    assert sorted(stopped["loss"]) == [50, 100, 150]
    assert stopped["status"][250] == 1
