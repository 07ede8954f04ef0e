"""Progress of a run: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jax import monitoring

if TYPE_CHECKING:
    from rich.console import Console


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
