"""Attacks of benchmarks/attack.py, few of each: nothing is lost, nothing is silently wrong, nothing else is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(("attack", "count"), [("kills", 10), ("mutations", 12), ("configurations", 60), ("calls", 30)])
def test_attacks(tmp_path, attack, count):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "benchmarks.attack", attack, "--count", str(count), "--seed", "1"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)[attack] >= count
