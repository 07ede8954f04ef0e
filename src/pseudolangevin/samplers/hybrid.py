"""Hybrid Monte Carlo, with the exact gradient or with a mini-batch: two rows of one table.

| sampler        | gradient oracle                | Metropolis          |
|----------------|--------------------------------|---------------------|
| hMC            | exact, chunked                 | on the exact energy |
| mini-batch hMC | one batch, frozen for the move | on the exact energy |

Both sample exp(−U/T) exactly, for any time step; the time step and the number of steps decide how fast.
Each function here names one row and checks its numbers; `hybrid_kernel` is what they share.
"""

from __future__ import annotations

from typing import Any

from .. import gradients
from ..checks import check_integer, check_interval, check_positive
from ..data import Dataset
from ..gradients import FrozenOracle
from ..masses import check_given, for_the_record
from ..potential import Potential
from ..types import Weights
from .base import Sampler
from .hybrid_kernel import HybridKernel


def hybrid_monte_carlo(
    potential: Potential,
    dataset: Dataset,
    *,
    num_leapfrog_steps: int,
    time_step: float,
    masses: float | Weights = 1.0,
    warmup_moves: int = 0,
    target_acceptance: float = 0.75,
    chunk_size: int | None = None,
) -> Sampler:
    """Hybrid Monte Carlo with the exact gradient: samples exp(−U/T) exactly, whatever the time step (sec:hMC).

    One step of the sampler is one move: momenta p ~ N(0, M·T), `num_leapfrog_steps` steps of velocity Verlet, and the
    end point accepted with probability min(1, exp(−ΔH/T)), where H = U + Σ p²/(2M) is computed on the whole data set.
    A move costs num_leapfrog_steps + 2 exact gradients and one exact energy.

    Trajectories that return to where they began explore nothing: L·δt should not be a multiple of a period 2π√(M/k)
    of a stiff direction of curvature k.

    Args:
        potential: U.
        dataset: the training set.
        num_leapfrog_steps: steps of a trajectory, L.
        time_step: δt; the start of the adaptation where there is a warm-up.
        masses: one number, or a pytree shaped like the weights (for example from a pseudo-Langevin run).
        warmup_moves: during the first so many moves δt is adapted, in every chain for itself, so that the share
            `target_acceptance` of the moves is accepted; then it stays as it is. Moves of the warm-up are not samples:
            leave them out of averages. Starting within a factor of ten of the right δt, 100 moves are usually enough.
        target_acceptance: see `warmup_moves`.
        chunk_size: examples held at once; bounds memory, not the result.

    Example:
        >>> sampler = hybrid_monte_carlo(potential, train, num_leapfrog_steps=500, time_step=0.01)  # doctest: +SKIP
        >>> result = sample(sampler, weights, temperatures=[3e-5], num_steps=1_000, key=key)  # doctest: +SKIP
    """
    if chunk_size is not None:
        check_integer("chunk_size", chunk_size, minimum=1)
    return _sampler(
        "hybrid_monte_carlo",
        potential,
        dataset,
        gradients.frozen_exact(potential, chunk_size),
        {},
        num_leapfrog_steps=num_leapfrog_steps,
        time_step=time_step,
        masses=masses,
        warmup_moves=warmup_moves,
        target_acceptance=target_acceptance,
        chunk_size=chunk_size,
    )


def minibatch_hybrid_monte_carlo(
    potential: Potential,
    dataset: Dataset,
    *,
    num_leapfrog_steps: int,
    time_step: float,
    batch_size: int | None = None,
    masses: float | Weights = 1.0,
    warmup_moves: int = 0,
    target_acceptance: float = 0.75,
    chunk_size: int | None = None,
    precision: str | None = None,
) -> Sampler:
    """Hybrid Monte Carlo driven by one mini-batch per move ("mb-hMC"): samples exp(−U/T) exactly (sec:hMC).

    The batch is drawn at the beginning of the move and kept to its end, so the trajectory can be run backwards; the
    decision is made on the energy of the whole data set. The trajectory conserves the energy of its batch, not U:
    L·δt must be small for moves to be accepted, which is why the paper calls the method inefficient.

    Args:
        potential: U.
        dataset: the training set.
        num_leapfrog_steps: steps of a trajectory, L.
        time_step: δt; see `hybrid_monte_carlo`.
        batch_size: examples per mini-batch, drawn with replacement; default 1 % of the data set.
        masses: see `hybrid_monte_carlo`.
        warmup_moves: see `hybrid_monte_carlo`.
        target_acceptance: see `hybrid_monte_carlo`.
        chunk_size: examples held at once when the energy is computed; bounds memory, not the result.
        precision: of the matrix products in mini-batch gradients; None is the device's default.
    """
    if batch_size is None:
        batch_size = max(2, round(0.01 * dataset.num_examples))
    if chunk_size is not None:
        check_integer("chunk_size", chunk_size, minimum=1)
    check_integer(
        "batch_size",
        batch_size,
        minimum=1,
        maximum=dataset.num_examples,
        remedy="for the exact gradient of the whole data set use hybrid_monte_carlo",
    )
    return _sampler(
        "minibatch_hybrid_monte_carlo",
        potential,
        dataset,
        gradients.frozen_batch(potential, batch_size, precision),
        {"batch_size": batch_size, "precision": precision},
        num_leapfrog_steps=num_leapfrog_steps,
        time_step=time_step,
        masses=masses,
        warmup_moves=warmup_moves,
        target_acceptance=target_acceptance,
        chunk_size=chunk_size,
    )


def _sampler(
    name: str,
    potential: Potential,
    dataset: Dataset,
    oracle: FrozenOracle,
    own_settings: dict[str, Any],
    *,
    num_leapfrog_steps: int,
    time_step: float,
    masses: float | Weights,
    warmup_moves: int,
    target_acceptance: float,
    chunk_size: int | None,
) -> Sampler:
    check_integer("num_leapfrog_steps", num_leapfrog_steps, minimum=1)
    check_positive("time_step", time_step)
    check_given(masses)
    check_integer("warmup_moves", warmup_moves, minimum=0, remedy="0 keeps time_step as it is")
    check_interval("target_acceptance", target_acceptance, 0, 1, "0.65 to 0.8 is usual", open_ends=True)
    kernel = HybridKernel(
        potential=potential,
        oracle=oracle,
        num_leapfrog_steps=num_leapfrog_steps,
        initial_time_step=float(time_step),
        given_masses=masses,
        warmup_moves=warmup_moves,
        target_acceptance=float(target_acceptance),
        chunk_size=chunk_size,
    )
    settings = own_settings | {
        "num_leapfrog_steps": num_leapfrog_steps,
        "time_step": time_step,
        "masses": for_the_record(masses),
        "warmup_moves": warmup_moves,
        "target_acceptance": target_acceptance,
        "chunk_size": chunk_size,
    }
    return Sampler(name, kernel, potential, dataset, settings)
