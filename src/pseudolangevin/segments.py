"""How the way from one stop of a run to the next is cut into segments.

Every length of a segment is a program of its own, and compiling one takes as long as thousands of steps of a small
network. Stops come from intervals that know nothing of each other, records and refreshes say, so that the ways between
them can be of very many lengths; cut into doublings of a common unit they are of few. Cuts depend on the settings and
on the two stops alone: a run that is resumed makes the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Segments:
    """Cuts for a run that stops at multiples of some intervals."""

    unit: int
    """All ways are multiples of this, but for one to the end of the run."""
    whole: int
    """The usual way, which is not cut."""

    @classmethod
    def of(cls, intervals: Sequence[int], longest: int) -> Segments:
        """For these intervals; those not shorter than `longest`, the run itself, stop nothing before its end."""
        met = [interval for interval in intervals if interval < longest] or [longest]
        return cls(math.gcd(*met), min(met))

    def cut(self, length: int) -> list[int]:
        """The lengths of the segments, largest first."""
        if length == self.whole:
            return [length]
        count, rest = divmod(length, self.unit)
        doublings = [self.unit << bit for bit in reversed(range(count.bit_length())) if count >> bit & 1]
        return doublings + [rest] * (rest > 0)
