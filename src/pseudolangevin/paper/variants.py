"""Fig. A.1: pseudo-Langevin and hybrid Monte Carlo compared with their naive and mini-batch variants.

The paper does not state whether naive pL subtracts the gradient variance; both are measured. The time step of naive pL
gives the weight with the largest gradient variance the temperature ratio of pL.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import jax

from .. import Sampler, hybrid_monte_carlo, minibatch_hybrid_monte_carlo, naive_pseudo_langevin, pseudo_langevin
from .._trees import Weights
from .results import Stage
from .spins import Case, Task, compare_speeds

SETTINGS = {
    "paper": (Case(5_000, 1e-6, 20_000, 4, 4, 20_480, {"num_leapfrog_steps": 3}),),
    "smoke": (Case(10, 2e-4, 5_000, 8, 6, 15_600, {"num_leapfrog_steps": 20}),),
}


def reproduce(cases: tuple[Case, ...], out: Path) -> Iterator[Stage]:
    """Measure five samplers from the same weights; pL must be faster than the others."""
    return compare_speeds(cases, out, samplers_of, lambda _, labels: [("pL", x, 1.0, False) for x in labels[1:]])


def samplers_of(case: Case, task: Task, weights: Weights) -> dict[str, Sampler]:
    """Return the samplers by label."""
    system, moves = (task.potential, task.train), {"chunk_size": case.chunk_size, **case.options}
    langevin = pseudo_langevin(*system, refresh_every=1_000, reset_probability=0.0)
    state = jax.jit(langevin.init)(jax.random.key(case.seed), weights, case.temperature)
    largest = max(float(v.max()) for v in jax.tree.leaves(state.gradient_variance))
    # With a mass of one the temperature ratio is 𝒯 = δt²·𝒱/(4·(1 − c1²)·T).
    friction = 1 - langevin.momentum_retention**2
    time_step = math.sqrt(4 * friction * case.temperature * langevin.temperature_ratio / largest)
    return {
        "pL": langevin,
        "naive pL, variance subtracted": naive_pseudo_langevin(*system, time_step=time_step, refresh_every=1_000),
        "naive pL": naive_pseudo_langevin(*system, time_step=time_step, subtract_variance=False),
        "hMC": hybrid_monte_carlo(*system, time_step=0.05, warmup_moves=4, **moves),
        "mb-hMC": minibatch_hybrid_monte_carlo(*system, time_step=0.01, warmup_moves=20, **moves),
    }
