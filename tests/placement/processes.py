"""Starting Python in processes of its own, with simulated devices."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(module: str, arguments: Sequence[object], *, devices: int, **environment: str) -> subprocess.Popen:
    """`python -m module arguments…` with so many CPU devices; warnings are errors there as well."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    settings = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags.strip(),
    }
    command = [sys.executable, "-W", "error", "-m", module, *map(str, arguments)]
    return subprocess.Popen(
        command,
        env=os.environ | settings | environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen, code: int = 0, seconds: float = 900) -> str:
    """What it printed, once it has ended with that exit code."""
    try:
        output = process.communicate(timeout=seconds)[0]
    finally:
        process.kill()
    assert process.returncode == code, f"exit code {process.returncode}, not {code}\n{output}"
    return output


def free_address() -> str:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"
