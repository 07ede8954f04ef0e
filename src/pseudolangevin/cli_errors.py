"""What the command line says where a command cannot go on: bad input, files that cannot be used, Ctrl-C."""
# Commands import what they need when they run, so that --help and errors are quick.
# ruff: noqa: PLC0415

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup


class CommandInterruptedError(Exception):
    """Ctrl-C or SIGTERM where no run is there to stop at its next record; the message says how to go on."""


class Commands(TyperGroup):
    """The commands, which say so when they are interrupted: typer ends them with the exit code alone."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise CommandInterruptedError(f"{ctx.invoked_subcommand} did not finish; start it again") from None


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """A command that writes a run: when it is interrupted, say how to continue, if the run has begun."""
    from .store.folder import RunFolder

    try:
        yield
    except KeyboardInterrupt:
        if not RunFolder(path).config.is_file():
            raise
        raise CommandInterruptedError(
            f"what was recorded is safe; continue with `pseudolangevin resume {path}`"
        ) from None


@contextmanager
def terminate_like_interrupt() -> Iterator[None]:
    """Until a run takes over, and stops at its next record, SIGTERM is like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say(label: str, text: str, colour: str) -> None:
    """One line on the error stream."""
    Console(stderr=True, highlight=False).print(f"[{colour}]{label}:[/] {escape(text)}", soft_wrap=True)


def explain(error: Exception) -> list[str] | None:
    """Lines for an error that is the input's or the file system's; None for the program's own."""
    from .config import ConfigError
    from .hosts import OtherProcessError
    from .store.folder import RunFolderError

    if isinstance(error, ConfigError):
        return error.lines
    if isinstance(error, RunFolderError | OtherProcessError):
        return [str(error)]
    if isinstance(error, OSError):
        return _explain_file(error)
    if hasattr(error, "format_message"):  # of the command line's own parser
        message = error.format_message()  # empty where the help was shown instead
        return [f"{message} See `pseudolangevin --help`."] if message else []
    if "RESOURCE_EXHAUSTED" in str(error):
        return ["out of memory on the device; lower num_chains, the number of temperatures, or sampler.batch_size"]
    return None


def _explain_file(error: OSError) -> list[str] | None:
    """The file and what is wrong with it; None where the system names no file, as it is no file's fault then."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"{error.filename}: " if error.filename else ""
        return [f"{where}no space left on the disk; free some space, then try again"]
    name = error.filename2 or error.filename  # the second: what a file should have replaced
    if isinstance(name, str) and error.strerror:
        return [f"{name}: {error.strerror}; check the path and its permissions"]
    return None
