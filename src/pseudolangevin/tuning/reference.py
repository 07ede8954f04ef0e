"""What biases are judged against: hybrid Monte Carlo where it equilibrates, otherwise 𝒯 → 0 of the candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..types import Weights
from .bench import Bench
from .measure import Estimate, Measured
from .result import Bias

LEAPFROG_STEPS = 100
WARMUP_MOVES = 20
SLACK = 2.0
"""The moves may take this many times their share of the time."""
MIN_EFFECTIVE = 10.0
"""Hybrid Monte Carlo counts as equilibrated with so many effective samples of every observable."""


@dataclass(frozen=True)
class Anchor:
    """The candidate with the smallest 𝒯: the start of the extrapolation."""

    ratio: float
    estimates: Mapping[str, Estimate]
    others: tuple[Any, ...] = ()
    """What it was run with beside 𝒯."""
    lightness: float = 0.0
    """One over its masses, up to a common factor."""


def exact_averages(bench: Bench, equilibrated: Measured, seconds: float) -> tuple[dict[str, Estimate] | None, str]:
    """Averages of hybrid Monte Carlo from the equilibrated weights, and how they came about; None if there are none.

    It moves with the masses of pseudo-Langevin, in whose units all weights oscillate with frequencies alike; δt is
    adapted in a warm-up.
    """
    # One exact gradient costs about as much as a batch of all examples.
    step_seconds = equilibrated.seconds_per_step * (1 - equilibrated.variance_share)
    gradient_seconds = step_seconds * bench.base.dataset.num_examples / _batch_size(equilibrated)
    num_steps = LEAPFROG_STEPS
    while num_steps > 10 and 2 * WARMUP_MOVES * num_steps * gradient_seconds > seconds:
        num_steps //= 2
    if (WARMUP_MOVES + MIN_EFFECTIVE) * num_steps * gradient_seconds > SLACK * seconds:
        return None, f"hMC would need more than {seconds:.0f} s for {WARMUP_MOVES} moves"
    masses = jax.tree.map(
        lambda w, m: jnp.broadcast_to(m[0], w.shape[1:]), equilibrated.states.weights, equilibrated.states.masses
    )
    sampler = bench.hybrid(_positive(masses), num_steps, 10.0, WARMUP_MOVES)
    run = bench.measure_hybrid(sampler, seconds)
    estimates = run.estimates()
    effective = min((e.effective_samples for e in estimates.values()), default=0.0)
    known = all(math.isfinite(e.uncertainty) for e in estimates.values())
    if not known or effective < MIN_EFFECTIVE:
        return None, f"hMC made {run.num_steps} moves and {effective:.0f} effective samples, too few to judge by"
    return estimates, f"hMC of {run.num_steps} moves with {effective:.0f} effective samples"


def against_exact(candidate: Mapping[str, Estimate], exact: Mapping[str, Estimate]) -> dict[str, Bias]:
    """Relative deviations from the reference averages."""
    return {
        name: Bias(c.mean / exact[name].mean - 1, math.hypot(c.uncertainty, exact[name].uncertainty) / abs(c.mean))
        for name, c in candidate.items()
        if name in exact
    }


def against_extrapolation(candidate: Mapping[str, Estimate], anchor: Anchor, partner: Anchor | None) -> dict[str, Bias]:
    """Relative deviations from 𝒯 → 0, on the straight line through the anchor and a candidate with a larger 𝒯.

    The true bias grows more slowly than 𝒯 (0.2 % at 0.01, 1.2 % at 0.1, N = 11 160), so the line errs by a few tenths
    of the anchor's own bias. Without a partner nothing is known of it: the uncertainty is infinite.
    """
    found = {}
    for name, c in candidate.items():
        a = anchor.estimates[name]
        share = 0.0 if partner is None else anchor.ratio / (partner.ratio - anchor.ratio)
        b = a if partner is None else partner.estimates[name]
        limit = a.mean - share * (b.mean - a.mean)
        if partner is None:
            uncertainty = math.inf
        elif candidate is anchor.estimates:  # c − limit is share·(b − a)
            uncertainty = share * math.hypot(a.uncertainty, b.uncertainty)
        elif candidate is partner.estimates:  # and here (1 + share)·(b − a)
            uncertainty = (1 + share) * math.hypot(a.uncertainty, b.uncertainty)
        else:
            uncertainty = math.hypot(c.uncertainty, (1 + share) * a.uncertainty, share * b.uncertainty)
        found[name] = Bias(c.mean / limit - 1, uncertainty / abs(limit))
    return found


def _batch_size(run: Measured) -> int:
    return int(run.sampler.settings["batch_size"])


def _positive(masses: Weights) -> Weights:
    """Masses above zero, as a sampler takes them."""
    return jax.tree.map(lambda m: jnp.maximum(m, jnp.finfo(m.dtype).tiny), masses)
