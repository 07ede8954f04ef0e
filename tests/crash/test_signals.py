"""A run that is killed, terminated and interrupted again and again ends with the same bits as an undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from pseudolangevin.runs import config
from tests.runs.small_runs import SMALL_RUN, assert_same_run

ROOT = Path(__file__).parents[2]
NUM_RECORDS = 100


def run_children(file: Path, folder: Path, signals: list[signal.Signals]) -> list[dict]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-m", "tests.crash.fork_runs", str(file), str(folder), *map(str, map(int, signals))]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def write_config(folder: Path) -> Path:
    """Write the small run, longer, and with its data in a file, which children read faster than they draw them."""
    rng = np.random.default_rng(0)
    np.savez(
        folder / "data.npz", inputs=rng.normal(size=(60, 6)).astype(np.float32), targets=rng.integers(0, 3, size=60)
    )
    sections = tomllib.loads(SMALL_RUN) | {"num_steps": NUM_RECORDS * 10}
    sections["task"] = {"kind": "files", "file": str(folder / "data.npz")}
    sections["recording"] |= {"checkpoint_every": 20}
    file = folder / "run.toml"
    file.write_text(config.to_toml(config.Settings.model_validate(sections)))
    return file


@pytest.mark.slow
def test_signals_at_random_moments(tmp_path):
    signals = [signal.SIGINT, signal.SIGTERM, *[signal.SIGKILL] * 20, signal.SIGTERM, signal.SIGINT]
    whole, *children = run_children(write_config(tmp_path), tmp_path, signals)
    assert [one["code"] for one in children if one["signal"] == "SIGKILL"] == [-signal.SIGKILL] * 20
    assert [one["code"] for one in children if one["signal"] in ("SIGINT", "SIGTERM")] == [130] * 4
    assert whole["code"] == children[-1]["code"] == 0
    assert whole["records"] == children[-1]["records"] == NUM_RECORDS
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
