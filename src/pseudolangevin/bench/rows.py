"""What a measurement leaves: rows of plain numbers, for the file, the terminal and the ratios between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from .clock import Timing
from .problem import Problem

Row: TypeAlias = dict[str, Any]

OWN = "pseudolangevin"


def row(
    problem: Problem,
    implementation: str,
    sampler: str,
    *,
    num_chains: int,
    timing: Timing,
    steps_per_block: int,
    gradients_per_step: int = 1,
    flops_per_chain_step: float | None = None,
    **more: Any,
) -> Row:
    """The times of one sampler at one size and number of chains; a step moves every chain once."""
    flops = problem.batch_size * problem.gradient_flops * gradients_per_step
    flops = flops if flops_per_chain_step is None else flops_per_chain_step
    step = timing.median / steps_per_block
    return {
        "num_weights": problem.num_weights,
        "num_examples": problem.num_examples,
        "batch_size": problem.batch_size,
        "implementation": implementation,
        "sampler": sampler,
        "num_chains": num_chains,
        "seconds_per_step": step,
        "fastest_seconds_per_step": timing.fastest / steps_per_block,
        "slowest_seconds_per_step": timing.slowest / steps_per_block,
        "seconds_per_chain_step": step / num_chains,
        "gradients_per_step": gradients_per_step,
        "seconds_per_gradient": step / num_chains / gradients_per_step,
        "flops_per_second": num_chains * flops / step,
        "steps_per_block": steps_per_block,
        "num_blocks": timing.num_blocks,
        **more,
    }


def skipped(
    num_weights: int | None, implementation: str, sampler: str, reason: str, num_chains: int | None = None
) -> Row:
    """What was not measured, and why."""
    return {
        "num_weights": num_weights,
        "implementation": implementation,
        "sampler": sampler,
        "num_chains": num_chains,
        "reason": reason,
    }


def ratios(rows: Iterable[Row]) -> list[Row]:
    """How many times faster pseudo-Langevin is than each peer: per gradient, same size, batch and number of chains.

    The refresh of 𝒱 is counted in for pseudo-Langevin, here and in PyTorch, where there was time to measure it; the
    other peers have nothing like it.
    """
    rows = list(rows)
    own = {
        (r["num_weights"], r["num_chains"]): r
        for r in rows
        if r["implementation"] == OWN and r["sampler"] == "pseudo_langevin"
    }
    found = []
    for r in rows:
        place = (r["num_weights"], r["num_chains"])
        if r["implementation"] == OWN or place not in own:
            continue
        whole = own[place].get("seconds_per_step_with_refresh")
        ours = (whole or own[place]["seconds_per_step"]) / r["num_chains"]
        theirs = (whole and r.get("seconds_per_step_with_refresh")) or r["seconds_per_gradient"]
        found.append(
            {
                "num_weights": r["num_weights"],
                "num_chains": r["num_chains"],
                "peer": f"{r['implementation']} {r['sampler']}",
                "peer_seconds_per_gradient": theirs,
                "pseudo_langevin_seconds_per_gradient": ours,
                "refresh_included": whole is not None,
                "times_faster": theirs / ours,
            }
        )
    return found
