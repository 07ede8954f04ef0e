"""Processes with simulated devices, forked from one that has imported everything and started nothing.

The package is also the module that the fork server imports first: `tests.devices.processes` imports what they run.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple


class Started(NamedTuple):
    process: BaseProcess
    output: Path


def _run(main: Callable[[], object], arguments: Sequence[str], environment: dict[str, str], output: Path) -> None:
    """Call `main` as `python -W error` would, on the CPU."""
    import jax

    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the fork server ignores it
    gc.disable()  # nearly all of a short process is tracing, which leaves little garbage
    os.environ.update(environment)
    jax.config.update("jax_platforms", "cpu")
    warnings.simplefilter("error")
    sys.argv = ["pseudolangevin", *arguments]
    main()


def start(
    main: Callable[[], object], arguments: Sequence[object], output: Path, *, devices: int, **environment: str
) -> Started:
    """Call `main()` with these arguments and simulated CPU devices; its output goes to a file."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.devices.placed"])
    process = context.Process(
        target=_run, args=(main, [*map(str, arguments)], environment | {"XLA_FLAGS": flags}, output)
    )
    process.start()
    return Started(process, output)


def finish(started: Started, code: int = 0, seconds: float = 900) -> str:
    """Return the output of a process after it has ended with this exit code."""
    started.process.join(seconds)
    started.process.kill()
    started.process.join()
    found, output = started.process.exitcode, started.output.read_text()
    assert found == code, f"exit code {found}, not {code}\n{output}"
    return output


def free_address() -> str:
    """Return a free port of this machine."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"
