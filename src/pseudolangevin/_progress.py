"""Progress bar of a run: steps per second, current loss, remaining time."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jax import monitoring

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def progress_bar(
    num_steps: int, num_chains: int, *, show: bool | None, start: int = 0, console: Console | None = None
) -> Iterator[Callable[[int, float], None]]:
    """Show a bar from step `start` to `num_steps`, and give the function `update(step, loss)` that moves it.

    If `show` is None, the bar is shown if the error stream is a terminal.
    """
    if show is None:
        show = console.is_terminal if console else sys.stderr.isatty()
    if not show:
        yield lambda step, loss: None
        return
    from rich.console import Console  # noqa: PLC0415  rich is slow to import, and most runs show no bar
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (
        TextColumn(f"{num_chains} chain{'s' if num_chains > 1 else ''}"),
        BarColumn(),
        MofNCompleteColumn(),
        *(TextColumn(f"{{task.fields[{name}]}}") for name in ("rate", "loss")),
        TimeRemainingColumn(compact=True),
    )
    step_before, compiled = start, False

    def note(event: str, duration_secs: float, **details: Any) -> None:
        nonlocal compiled
        compiled = compiled or event == "/jax/core/compile/backend_compile_duration"

    with Progress(*columns, console=console or Console(stderr=True), speed_estimate_period=60) as progress:
        task = progress.add_task("sampling", total=num_steps, completed=start, rate="", loss="")

        def update(step: int, loss: float) -> None:
            nonlocal step_before, compiled
            if compiled:  # programs are compiled once, so the speed is measured without the time of compilation
                progress.reset(task, completed=step_before)
            step_before, compiled = step, False
            progress.update(task, completed=step, loss="" if math.isnan(loss) else f"loss {loss:.4f}")
            if speed := progress.tasks[task].speed:
                progress.update(task, rate=f"{speed:,.0f} steps/s")

        monitoring.register_event_duration_secs_listener(note)
        try:
            yield update
        finally:
            monitoring.unregister_event_duration_listener(note)
