"""Hybrid Monte Carlo: a move is a velocity-Verlet trajectory and a Metropolis decision on the exact energy.

With H(w, p) = U(w) + Σ p²/(2M) (eq:Hamiltonian), a move draws p ~ N(0, M·T), follows L steps of `integrator` at c1 = 1,
and accepts the end point with probability min(1, exp(−ΔH/T)). The trajectory is reversible and preserves volume for any
gradient that is a fixed function of the weights during the move, so both samplers sample exp(−U/T) exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .. import _trees as trees
from .. import integrator, masses
from .._trees import Array, Batch, Key, Stream, Weights
from ..gradients import Sum, difference, exact_energy, product, total
from .base import Count, ExactGradient, Natural, Positive


class HybridState(NamedTuple):
    """State of one chain."""

    weights: Weights
    temperature: Array
    key: Key
    step: Array  # number of moves done
    status: Array
    masses: Weights
    energy: Sum  # U on the full data set at `weights`, so that a move computes it once, at its end
    time_step: Array  # δt of the next move: adapted during the warm-up, constant after it
    mean_log_time_step: Array  # mean of ln δt over the second half of the warm-up so far
    energy_error: Array  # ΔH/T of the last trajectory, accepted or not; the largest number if it was not finite
    num_accepted: Array  # moves accepted since the warm-up ended; during the warm-up, since the start
    kinetic_temperature: Array  # ⟨p²/M⟩ at the end of the last move: of its trajectory's start if that was rejected
    tests: Any = ()  # `observables.SteinSums` of a run; empty outside one


def trajectory(
    weights: Weights,
    momentum: Weights,
    gradient_at: Callable[[Weights], Weights],
    mass: Weights,
    time_step: Array | float,
    num_steps: int,
) -> tuple[Weights, Weights]:
    """Return (w, p) at time L·δt after `num_steps` steps of velocity Verlet from (w, p) at time 0."""
    newton = integrator.Thermostat(mass, jnp.zeros(()), 1.0, time_step)  # no noise enters

    def step(carry: tuple[Weights, Weights], _: None) -> tuple[tuple[Weights, Weights], None]:
        return integrator.step(*carry, gradient_at, None, newton), None

    half = integrator.half_step(momentum, gradient_at(weights), None, newton)
    (weights, half), _ = lax.scan(step, (weights, half), length=num_steps)
    return weights, integrator.full_step(half, gradient_at(weights), time_step)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HybridMonteCarlo(ExactGradient):
    """Hybrid Monte Carlo with the exact gradient: samples exp(−U/T) exactly, for any time step (sec:hMC).

    One step of the sampler is one move, at the cost of num_leapfrog_steps + 2 exact gradients and one exact energy.
    L·δt should not be a multiple of the period 2π√(M/k) of a stiff direction: its trajectories would return.

    Args:
        num_leapfrog_steps: steps of a trajectory, L.
        time_step: δt; the start of the adaptation if there is a warm-up.
        warmup_moves: number of first moves during which δt is adapted, separately in every chain; leave them out of
            averages. If δt starts within a factor of ten, 100 moves are usually enough.

    Example:
        >>> sampler = pl.hybrid_monte_carlo(potential, train, num_leapfrog_steps=500, time_step=0.01)
        >>> result = pl.sample(sampler, weights, temperatures=[3e-5], num_steps=1_000, key=key)
    """

    num_leapfrog_steps: Count
    time_step: Positive
    warmup_moves: Natural = 0
    target_acceptance: ClassVar[float] = 0.75  # share of accepted moves that the warm-up aims at
    name: ClassVar[str] = "hybrid_monte_carlo"

    def init(self, key: Key, weights: Weights, temperature: Array | float) -> HybridState:
        common = self.beginning(key, weights, temperature)
        return HybridState(
            masses=masses.given(weights, self.masses),
            energy=exact_energy(self.potential, weights, self.dataset, self.chunk_size),
            time_step=jnp.full_like(common["temperature"], self.time_step),
            mean_log_time_step=jnp.zeros_like(common["temperature"]),
            energy_error=jnp.zeros_like(common["temperature"]),
            num_accepted=jnp.zeros((), jnp.int32),
            kinetic_temperature=common["temperature"],
            **common,
        )

    def step(self, state: HybridState, batch: Batch | None) -> HybridState:
        """Return the state after one move: a trajectory, and the decision on its end."""
        propose_key, metropolis_key = jax.random.split(trees.key_for(state.key, Stream.STEP, state.step))
        momentum, weights, end_momentum = self.propose(propose_key, state, batch)
        energy = exact_energy(self.potential, weights, self.dataset, self.chunk_size)
        kinetic = [self._twice_reduced_kinetic_energy(state, p) for p in (momentum, end_momentum)]
        error = difference(energy, state.energy) / state.temperature + difference(kinetic[1], kinetic[0]) / 2
        error = error.astype(state.temperature.dtype)
        # A trajectory that diverged is one more rejection: NaN and infinity never reach the state.
        usable = jnp.isfinite(error) & trees.all_finite(weights)
        error = jnp.where(usable, error, jnp.finfo(error.dtype).max)
        accepted = usable & (error <= jax.random.exponential(metropolis_key, dtype=error.dtype))
        unit = state.temperature / float(trees.num_weights(weights))
        start_temperature, end_temperature = ((k.high * unit).astype(unit.dtype) for k in kinetic)
        moved = state._replace(
            weights=trees.select(accepted, weights, state.weights),
            energy=trees.select(accepted, energy, state.energy),
            energy_error=error,
            num_accepted=jnp.where(state.step == self.warmup_moves, 0, state.num_accepted) + accepted,
            kinetic_temperature=jnp.where(accepted, end_temperature, start_temperature),
        )
        return self._adapt(moved, jnp.exp(-jnp.maximum(error, 0)))._replace(step=state.step + 1)

    def propose(self, key: Key, state: HybridState, batch: Batch | None) -> tuple[Weights, Weights, Weights]:
        """Draw momenta and follow the trajectory; return them, and the weights and momenta at its end."""
        noise = trees.normal_like(jax.random.split(key)[0], state.weights)
        momentum = integrator.maxwell_boltzmann(noise, state.masses, state.temperature)
        length = state.time_step, self.num_leapfrog_steps
        end = trajectory(state.weights, momentum, lambda w: self.gradient(w, batch), state.masses, *length)
        return momentum, *end

    def _twice_reduced_kinetic_energy(self, state: HybridState, momentum: Weights) -> Sum:
        """Return Σ p²/(M·T), a compensated sum of about N."""
        reduced = jax.tree.map(lambda p, m: p / jnp.sqrt(m * state.temperature), momentum, state.masses)
        flat = trees.ravel(reduced)
        return total(product(flat, flat))

    def continue_from(self, state: HybridState, other: HybridState) -> HybridState:
        """Return `state` at the weights of `other`; U may depend on the temperature, so it is computed."""
        energy = exact_energy(self.potential, other.weights, self.dataset, self.chunk_size)
        return state._replace(weights=other.weights, energy=energy)

    def measure(self, state: HybridState, exact_gradient: Weights) -> dict[str, Array]:
        num_moves = jnp.where(state.step <= self.warmup_moves, state.step, state.step - self.warmup_moves)
        overflow = state.energy_error == jnp.finfo(state.energy_error.dtype).max
        return {
            "acceptance": state.num_accepted / jnp.maximum(num_moves, 1),
            "energy_error": jnp.where(overflow, jnp.inf, state.energy_error),
            "time_step": state.time_step,
            "kinetic_temperature": state.kinetic_temperature,
        }

    def _adapt(self, state: HybridState, acceptance: Array) -> HybridState:
        """Adapt δt by Robbins–Monro during the warm-up: ln δt ← ln δt + 2·m^(−0.6)·(acceptance − target) at move m.

        The average over the second half of the warm-up is what stays (Polyak and Juditsky, 1992). The first gain, 2, is
        about that of a Newton step: the acceptance is erfc(c·δt²), whose slope in ln δt is −0.48 at 0.75.
        """
        if self.warmup_moves == 0:
            return state
        move = state.step + 1
        gain = 2.0 * move.astype(acceptance.dtype) ** -0.6
        log_time_step = jnp.log(state.time_step) + gain * (acceptance - self.target_acceptance)
        share = 1 / jnp.maximum(move - self.warmup_moves // 2, 1).astype(acceptance.dtype)
        mean = state.mean_log_time_step + share * (log_time_step - state.mean_log_time_step)
        time_step = jnp.exp(jnp.where(move < self.warmup_moves, log_time_step, mean))
        adapted = state._replace(time_step=time_step, mean_log_time_step=mean)
        return trees.select(move <= self.warmup_moves, adapted, state)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MinibatchHybridMonteCarlo(HybridMonteCarlo):
    """Hybrid Monte Carlo driven by one mini-batch per move ("mb-hMC"): samples exp(−U/T) exactly (sec:hMC).

    The batch is kept for the move, so the trajectory is reversible. It conserves the energy of its batch, not U:
    L·δt must be small for moves to be accepted.

    Args:
        batch_size: examples per mini-batch, drawn with replacement; default: 1 % of the data set.
        precision: precision of the matrix products in mini-batch gradients; None is the device's default.
    """

    batch_size: int | None = None  # type: ignore[misc]
    precision: str | None = None
    name: ClassVar[str] = "minibatch_hybrid_monte_carlo"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.complete_batch_size(0.01, 1, "hybrid_monte_carlo")
