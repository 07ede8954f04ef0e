"""A run that is killed, terminated and interrupted again and again ends with the bits of one that never was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .small_runs import SMALL_RUN, assert_same_run

ROOT = Path(__file__).parents[2]


def run_children(config: Path, out: Path, signals: list[signal.Signals], cache: Path) -> list[dict]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-m", "tests.store.fork_runs", str(config), str(out), *map(str, map(int, signals))]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_signals_at_random_moments(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        SMALL_RUN.replace("num_steps = 400", "num_steps = 1600").replace("checkpoint_every = 3", "checkpoint_every = 2")
    )
    run_children(config, tmp_path / "whole", [], tmp_path / "cache")
    signals = [signal.SIGINT, signal.SIGTERM, *[signal.SIGKILL] * 20, signal.SIGTERM, signal.SIGINT]
    children = run_children(config, tmp_path / "stopped", signals, tmp_path / "cache")
    assert [one["code"] for one in children if one["signal"] == "SIGKILL"] == [-signal.SIGKILL] * 20
    assert [one["code"] for one in children if one["signal"] in ("SIGINT", "SIGTERM")] == [130] * 4
    assert children[-1]["code"] == 0
    assert children[-1]["records"] == 160
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
