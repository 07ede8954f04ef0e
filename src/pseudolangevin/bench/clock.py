"""Timing by repeated blocks of steps, and stopping by the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

MIN_BLOCKS, MAX_BLOCKS = 3, 40
BLOCK_SECONDS = 0.25
"""A block is about that long: launching it and waiting for it are then far below a per cent."""


@dataclass(frozen=True)
class Deadline:
    """A moment to stop at."""

    at: float
    repeat_seconds: float = 2.0
    """How long blocks are repeated where there is time."""

    @staticmethod
    def after(seconds: float, repeat_seconds: float = 2.0) -> Deadline:
        """So many seconds from now."""
        return Deadline(time.monotonic() + seconds, repeat_seconds)

    @property
    def left(self) -> float:
        """Seconds from now, never negative."""
        return max(0.0, self.at - time.monotonic())

    def share(self, part: float, of: float) -> Deadline:
        """The end of this part of the time that is left."""
        return Deadline.after(self.left * part / max(of, part), self.repeat_seconds)


@dataclass(frozen=True)
class Timing:
    """Seconds of one block: median and extremes over repetitions."""

    median: float
    fastest: float
    slowest: float
    num_blocks: int


def time_blocks(block: Callable[[], None], deadline: Deadline, *, warm_up: int = 1) -> Timing:
    """Run `block`, which returns when its work is done, again and again, but not beyond `deadline`.

    It is run at least once after the warm-up, so a block must fit into the time that is left.
    """
    for _ in range(warm_up):
        block()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < MAX_BLOCKS:
        start = time.perf_counter()
        block()
        times.append(time.perf_counter() - start)
        enough = len(times) >= MIN_BLOCKS and time.perf_counter() - began >= deadline.repeat_seconds
        if enough or deadline.left < 2 * times[-1]:
            break
    return Timing(statistics.median(times), min(times), max(times), len(times))


def steps_per_block(seconds_per_step: float, limit: int) -> int:
    """Steps of a block that should take `BLOCK_SECONDS`."""
    return max(1, min(limit, round(BLOCK_SECONDS / max(seconds_per_step, 1e-9))))
