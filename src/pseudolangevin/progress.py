"""A progress bar for long runs: steps per second, current loss, time left. Silent when no one is watching."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from jax import monitoring
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

COMPILATION = "/jax/core/compile/backend_compile_duration"
"""What JAX calls it when a program was compiled."""


class Bar(Protocol):
    """Something that can be told how far a run is."""

    def update(self, step: int, loss: float) -> None:
        """Move to `step`."""


class _Silent:
    def update(self, step: int, loss: float) -> None:
        del step, loss


class _Rich:
    def __init__(self, progress: Progress, total: int, start: int, compilations: list[str]) -> None:
        self._progress = progress
        self._step = start
        self._compilations = compilations
        self._task = progress.add_task("sampling", total=total, completed=start, rate="", loss="")

    def update(self, step: int, loss: float) -> None:
        if self._compilations:
            # A program is compiled once: a time that holds it says nothing of the time left. Speed counts from here on.
            self._compilations.clear()
            self._progress.reset(self._task, completed=self._step)
        self._step = step
        self._progress.update(self._task, completed=step, loss="" if math.isnan(loss) else f"loss {loss:.4f}")
        speed = self._progress.tasks[self._task].speed
        if speed:
            self._progress.update(self._task, rate=f"{speed:,.0f} steps/s")


@contextmanager
def progress_bar(
    num_steps: int, num_chains: int, *, show: bool | None, start: int = 0, console: Console | None = None
) -> Iterator[Bar]:
    """A bar over `num_steps`, `start` of them done; `show` None means: if the error stream is a terminal."""
    console = console or Console(stderr=True)
    if not (console.is_terminal if show is None else show):
        yield _Silent()
        return
    columns = (
        TextColumn(f"{num_chains} chain{'s' if num_chains > 1 else ''}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(compact=True),
    )
    with (
        _noted_compilations() as compilations,
        Progress(*columns, console=console, speed_estimate_period=60) as progress,
    ):
        yield _Rich(progress, num_steps, start, compilations)


@contextmanager
def _noted_compilations() -> Iterator[list[str]]:
    """A list that grows with every program that JAX compiles."""
    noted: list[str] = []

    def note(event: str, duration_secs: float, **details: Any) -> None:
        del duration_secs, details
        if event == COMPILATION:
            noted.append(event)

    monitoring.register_event_duration_secs_listener(note)
    try:
        yield noted
    finally:
        monitoring.unregister_event_duration_listener(note)
