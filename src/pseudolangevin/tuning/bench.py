"""The bench on which candidates are tried: one system at one temperature, one clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..samplers.base import Sampler
from ..samplers.hybrid import hybrid_monte_carlo
from ..samplers.hybrid_kernel import HybridKernel
from ..samplers.langevin import pseudo_langevin
from ..types import Weights
from .measure import Measured, measure

MIN_SEGMENT = 200
"""Steps between records of a Langevin sampler, unless its momenta remember longer."""


@dataclass
class Bench:
    """Where candidates are measured, and when time is up."""

    base: Sampler
    """Its settings hold wherever a candidate does not change them."""
    weights: Weights
    """Where the next candidate starts."""
    temperature: float
    seconds: float
    chunk_size: int
    key: int
    report: Callable[[str], None]
    started: float = field(default_factory=time.perf_counter)

    @property
    def elapsed(self) -> float:
        """Seconds since tuning began."""
        return time.perf_counter() - self.started

    def left(self, share: float = 1.0) -> float:
        """Seconds until this share of the time is used."""
        return share * self.seconds - self.elapsed

    def langevin(self, **changes: Any) -> Sampler:
        """The base with some settings changed."""
        return pseudo_langevin(self.base.potential, self.base.dataset, **(dict(self.base.settings) | changes))

    def hybrid(self, masses: float | Weights, num_leapfrog_steps: int, time_step: float, warmup_moves: int) -> Sampler:
        """Hybrid Monte Carlo on the same system."""
        return hybrid_monte_carlo(
            self.base.potential,
            self.base.dataset,
            num_leapfrog_steps=num_leapfrog_steps,
            time_step=time_step,
            masses=masses,
            warmup_moves=warmup_moves,
            chunk_size=self.chunk_size,
        )

    def measure(
        self, sampler: Sampler, seconds: float, *, observe: bool = True, segment: int | None = None
    ) -> Measured:
        """One candidate, from the common start, for at most what is left of the time."""
        kernel = sampler.kernel
        warmup = kernel.warmup_moves if isinstance(kernel, HybridKernel) else 0
        return measure(
            sampler,
            self.weights,
            temperature=self.temperature,
            segment=segment_of(sampler),
            seconds=max(0.0, min(seconds, self.left())),
            discard_steps=warmup,
            observe=observe,
            chunk_size=self.chunk_size,
            key=self.key,
        )


def segment_of(sampler: Sampler) -> int:
    """Steps between records: twice the memory of the momenta, or one move."""
    if isinstance(sampler.kernel, HybridKernel):
        return 1
    retention = sampler.settings["momentum_retention"]
    return max(MIN_SEGMENT, math.ceil(2 / (1 - retention**2)))
