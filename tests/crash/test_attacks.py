"""Attacks of benchmarks/attack.py, few of each: nothing is lost, nothing is silently wrong, nothing else is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ATTACKS = import_module("benchmarks.attack").ATTACKS


@pytest.mark.slow
def test_kills(tmp_path):
    """In a process of its own, from which the runs are forked."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "benchmarks.attack", "kills", "--count", "4", "--seed", "1"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["kills"] >= 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("attack", "count"), [("mutations", 6), ("configurations", 60), ("calls", 15)])
def test_attacks(tmp_path, attack, count):
    found = ATTACKS[attack](count, 1, 1e6, tmp_path)
    assert found[attack] >= count
    assert not found["wrong"], found
    assert not found.get("touched"), found
