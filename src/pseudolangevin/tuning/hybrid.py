"""Tuning hybrid Monte Carlo: the time step by its acceptance, then the number of leapfrog steps by diffusion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..samplers.base import Sampler
from ..samplers.hybrid_kernel import HybridKernel
from .bench import Bench
from .measure import Estimate
from .result import Tried

WARMUP_MOVES, MIN_WARMUP_MOVES = 20, 5
"""Moves that adapt δt at every number of leapfrog steps, since long moves need a smaller one; fewer of long moves."""
MIN_MOVES = 3
"""After the warm-up: a length for fewer is not tried. Long moves have more of the time, in proportion to √L."""
WARMUP_SHARE = 0.4
"""Of the time for a number of steps, at most, unless the least number of moves takes more."""


@dataclass
class HybridSearch:
    """One search. Every move is exact, so there is no bias to watch."""

    bench: Bench
    leapfrog_steps: Sequence[int]
    notes: list[str] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    reference: str = "itself: hMC is exact"

    def run(self) -> tuple[list[Tried], Tried]:
        """All numbers of steps that fit into the time, shortest first, and the best."""
        kernel = self.bench.base.kernel
        assert isinstance(kernel, HybridKernel)
        time_step, step_seconds = kernel.initial_time_step, 0.0
        lengths = sorted(self.leapfrog_steps)
        for index, num_steps in enumerate(lengths):
            move_seconds = num_steps * step_seconds
            least = MIN_WARMUP_MOVES * move_seconds  # the warm-up is not counted in the time, but there is an end to it
            no_time = self.bench.left() < MIN_MOVES * move_seconds
            if self.tried and (no_time or self.bench.elapsed + least > self.bench.max_seconds):
                self.notes.append(f"L = {num_steps} was not tried: a move takes about {move_seconds:.3g} s")
                break
            share = self.bench.left() * math.sqrt(num_steps) / sum(math.sqrt(n) for n in lengths[index:])
            seconds = max(share, MIN_MOVES * move_seconds)
            warmup = WARMUP_MOVES
            if move_seconds:
                warmup = int(np.clip(WARMUP_SHARE * seconds / move_seconds, MIN_WARMUP_MOVES, WARMUP_MOVES))
            sampler = self.bench.hybrid(kernel.given_masses, num_steps, time_step, warmup)
            run = self.bench.measure_hybrid(sampler, seconds, observe=False)
            time_step = float(np.mean(np.asarray(run.states.time_step)))
            step_seconds = run.seconds_per_step / num_steps
            moves = max(1, int(np.asarray(run.states.step)[0]) - warmup)
            accepted = float(np.mean(np.asarray(run.states.num_accepted)))
            acceptance = accepted / moves
            tried = Tried(
                settings={"num_leapfrog_steps": num_steps, "time_step": time_step},
                relative_diffusion=run.relative_diffusion,
                standard_error=math.nan if run.diffusion is None else float(run.diffusion.coefficient_error[0]),
                milliseconds_per_step=1e3 * run.seconds_per_step,
                variance_share=0.0,
                bias={},
                within_budget=run.diffusion is not None,
                note=f"acceptance {acceptance:.2f} of {moves} moves",
                diffusion=run.diffusion,
                acceptance=Estimate(acceptance, _share_error(accepted, moves), float(moves)),
            )
            self.tried.append(tried)
            self.bench.weights = run.weights
            self.bench.report(
                f"L = {num_steps}, δt = {time_step:.4g}: {tried.milliseconds_per_step:.4g} ms/move, "
                f"D*/N = {tried.relative_diffusion:.3g} 1/s ({tried.note})"
            )
        return self.tried, max(self.tried, key=lambda t: np.nan_to_num(t.relative_diffusion))

    def sampler(self, best: Tried) -> Sampler:
        """The recommendation as a sampler, its δt still adapted by the base's warm-up."""
        kernel = self.bench.base.kernel
        assert isinstance(kernel, HybridKernel)
        settings: dict[str, Any] = dict(best.settings)
        return self.bench.hybrid(
            kernel.given_masses, settings["num_leapfrog_steps"], settings["time_step"], kernel.warmup_moves
        )


def _share_error(accepted: float, moves: int) -> float:
    """Standard error of an accepted share; with Jeffreys' prior, so that all or none of a few moves prove little."""
    share = (accepted + 0.5) / (moves + 1)
    return math.sqrt(share * (1 - share) / (moves + 2))
