"""The command line's part in a run of several processes: its flags, and an end that leaves nobody waiting."""
# What these functions need is imported when they run, so that --help and errors are quick.
# ruff: noqa: PLC0415

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Annotated

import typer

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130

Coordinator = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Of process 0, where a run has several processes.", show_default=False),
]
NumProcesses = Annotated[int | None, typer.Option(help="How many processes the run has.", show_default=False)]
ProcessId = Annotated[int | None, typer.Option(help="Which of them this is, from 0.", show_default=False)]
Distributed = Annotated[
    bool, typer.Option("--distributed", help="Several processes, as the environment of Slurm or Open MPI says.")
]


def join(coordinator: str | None, num_processes: int | None, process_id: int | None, distributed: bool) -> None:
    """Join the other processes of the run, if it has any."""
    from . import hosts
    from .config import ConfigError

    if distributed or (coordinator, num_processes, process_id) != (None, None, None):
        try:
            hosts.connect(coordinator, num_processes, process_id)
        except ValueError as error:
            raise ConfigError([str(error)]) from error


def end_if_alone(error: Exception, lines: list[str] | None, say: Callable[[str, str, str], None]) -> None:
    """Where one process of several failed by itself: say so and end at once, as the others wait for it.

    Errors that all processes know of end in the ordinary way. `lines` explain an error that is the input's.
    """
    from .config import ConfigError
    from .hosts import OtherProcessError, leave, several
    from .store.folder import RunFolderError

    if isinstance(error, ConfigError | OtherProcessError | RunFolderError) or not several():
        return
    if lines is not None:
        say("error", lines[0] if lines else str(error), "red")
        leave(BAD_INPUT)
    if type(error).__name__ == "JaxRuntimeError":  # the runtime's own words differ from one network to the next
        why = " ".join(str(error).split())[:120]
        remedy = "what was recorded is safe; start all processes again with `pseudolangevin resume DIR`"
        say("interrupted", f"another process is gone ({why}); {remedy}", "yellow")
        leave(INTERRUPTED)
    traceback.print_exception(error)
    leave(FAILED)
