"""Processes with simulated devices, forked from one that has imported everything and started nothing."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import warnings
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple


class Started(NamedTuple):
    process: BaseProcess
    output: Path


def _forks() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.placement.preloaded"])
    return context


def _run(module: str, arguments: Sequence[str], environment: dict[str, str], output: Path) -> None:
    """What `python -W error -m module arguments…` does, on the CPU."""
    import jax

    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the fork server ignores it
    gc.disable()  # nearly all of a short process is tracing, which leaves no garbage worth looking for
    os.environ.update(environment)
    jax.config.update("jax_platforms", "cpu")
    warnings.simplefilter("error")
    sys.argv = [module, *arguments]
    importlib.import_module(module).main()


def start(module: str, arguments: Sequence[object], output: Path, *, devices: int, **environment: str) -> Started:
    """`main()` of a module with those arguments and so many CPU devices; what it prints goes to a file."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip()
    process = _forks().Process(
        target=_run, args=(module, [*map(str, arguments)], environment | {"XLA_FLAGS": flags}, output)
    )
    process.start()
    return Started(process, output)


def finish(started: Started, code: int = 0, seconds: float = 900) -> str:
    """What it printed, once it has ended with that exit code."""
    started.process.join(seconds)
    started.process.kill()
    started.process.join()
    found, output = started.process.exitcode, started.output.read_text()
    assert found == code, f"exit code {found}, not {code}\n{output}"
    return output


def free_address() -> str:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"
