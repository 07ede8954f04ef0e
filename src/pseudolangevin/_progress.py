"""Progress of a run: a bar on a terminal, a line now and then elsewhere; and its warnings."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import monitoring

from .samplers.base import HEALTHY, Status

if TYPE_CHECKING:
    from rich.console import Console

    from .chains import Run


class ChainStoppedWarning(UserWarning):
    """A chain stopped; the others continue."""


class ClippedNoiseWarning(UserWarning):
    """The mini-batch noise of some weights alone exceeds the thermal noise, so they are too hot."""


class DeadClassWarning(UserWarning):
    """The score of a class is the same for nearly every example, so the class cannot be predicted."""


@contextmanager
def progress_bar(
    num_steps: int, num_chains: int, *, show: bool | None, start: int = 0, console: Console | None = None
) -> Iterator[Callable[..., None]]:
    """Show a bar from step `start` to `num_steps`, and give the function `update(step, loss, share)` that moves it.

    `share` is the share of the time that records have taken; it is shown if it is above 5 %. If `show` is None, the bar
    is shown if the error stream is a terminal; otherwise a line is printed to it now and then.
    """
    if show is None and not (console.is_terminal if console else sys.stderr.isatty()):
        yield _lines(num_steps)
        return
    if show is False:
        yield lambda step, loss, share=0.0: None
        return
    from rich.console import Console  # noqa: PLC0415  rich is slow to import, and most runs show no bar
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (
        TextColumn(f"{num_chains} chain{'s' if num_chains > 1 else ''}"),
        BarColumn(),
        MofNCompleteColumn(),
        *(TextColumn(f"{{task.fields[{name}]}}") for name in ("rate", "loss", "cost")),
        TimeRemainingColumn(compact=True),
    )
    step_before, compiled = start, False

    def note(event: str, duration_secs: float, **details: Any) -> None:
        nonlocal compiled
        compiled = compiled or event == "/jax/core/compile/backend_compile_duration"

    with Progress(*columns, console=console or Console(stderr=True), speed_estimate_period=60) as progress:
        task = progress.add_task("sampling", total=num_steps, completed=start, rate="", loss="", cost="")

        def update(step: int, loss: float, share: float = 0.0) -> None:
            nonlocal step_before, compiled
            if compiled:  # programs are compiled once, so the speed is measured without the time of compilation
                progress.reset(task, completed=step_before)
            step_before, compiled = step, False
            progress.update(task, completed=step, loss=_loss(loss), cost=_cost(share))
            if speed := progress.tasks[task].speed:
                progress.update(task, rate=f"{speed:,.0f} steps/s")

        monitoring.register_event_duration_secs_listener(note)
        try:
            yield update
        finally:
            monitoring.unregister_event_duration_listener(note)


def _loss(loss: float) -> str:
    return "" if math.isnan(loss) else f"loss {loss:.4f}"


def _cost(share: float) -> str:
    return f"records {share:.0%} of the time: raise record_every" if share > 0.05 else ""


def _lines(num_steps: int, first: float = 20.0, interval: float = 60.0) -> Callable[..., None]:
    """Return a function that prints a line to the error stream after `first` seconds, and then every `interval`."""
    began = time.monotonic()
    due = began + first

    def update(step: int, loss: float, share: float = 0.0) -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            due = now + interval
            parts = (f"step {step} of {num_steps}", _loss(loss), f"{now - began:.0f} s", _cost(share))
            print(", ".join(filter(None, parts)), file=sys.stderr, flush=True)

    return update


class Reporter:
    """Warnings of a run: once for each chain that stopped, once for each dead class, once for clipped noise."""

    def __init__(self, run: Run) -> None:
        """Start without warnings."""
        self._run = run
        self._stopped = np.zeros(run.size, bool)
        self._clipping_reported = False
        self._dead_reported: np.ndarray | bool = False
        self._dead_before: np.ndarray | bool = False

    @property
    def all_stopped(self) -> bool:
        """Whether no chain is left running."""
        return bool(self._stopped.all())

    def mask_stopped(self, record: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the record with NaN for chains that failed; a chain that was done keeps its values."""
        failed = ~np.isin(record["status"], HEALTHY)
        if not failed.any():
            return record
        return {
            name: np.where(failed.reshape(-1, *[1] * (values.ndim - 1)), np.nan, values)
            if np.issubdtype(values.dtype, np.floating)
            else values
            for name, values in record.items()
        }

    def report(self, record: dict[str, np.ndarray], *, step: int, last: bool) -> None:
        """Warn about what is new in this record.

        A class may be dead for a moment, above all in training from random weights; it is reported if it was dead in
        the record before as well, or at the end.
        """
        for index in map(int, np.flatnonzero((record["status"] != Status.RUNNING) & ~self._stopped)):
            self._stopped[index] = True
            status = Status(int(record["status"][index]))
            if not status.healthy:
                self._warn(index, f" stopped by step {step}: {status.explanation}", ChainStoppedWarning)
        if "clipped_share" in record and not self._clipping_reported:
            share = np.where(self._stopped, 0.0, record["clipped_share"])
            worst = int(np.argmax(share))  # one chain speaks for all
            if share[worst] > 0:
                self._clipping_reported = True
                self._warn(
                    worst,
                    f": at step {step} the mini-batch noise of {share[worst]:.1%} of the weights alone exceeds the "
                    "thermal noise, so no noise is injected and they are too hot (clipped_share in the trace). Lower "
                    "time_step or raise batch_size",
                    ClippedNoiseWarning,
                )
        if "dead_class" in record:
            persistent = record["dead_class"] if last else record["dead_class"] & self._dead_before
            new = persistent & ~np.asarray(self._dead_reported)
            self._dead_before, self._dead_reported = record["dead_class"], self._dead_reported | persistent
            for index in map(int, np.flatnonzero(new.any(axis=-1))):
                classes = ", ".join(str(c) for c in np.flatnonzero(new[index]))
                self._warn(
                    index,
                    f": class {classes} is dead: its score is the same for nearly every example, so it hardly learns. "
                    'Start from other weights, or use output_activation="identity"',
                    DeadClassWarning,
                )

    def _warn(self, index: int, message: str, category: type[Warning]) -> None:
        warnings.warn(self._run.chain_name(index) + message, category, stacklevel=4)
