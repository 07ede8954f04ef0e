"""The hybrid Monte Carlo kernel: a move is a velocity-Verlet trajectory and a Metropolis decision on the exact energy.

With H(w, p) = U(w) + Σ p²/(2M) (eq:Hamiltonian), a move draws p ~ N(0, M·T), follows L steps of `integrator` at c1 = 1,
and accepts the end point with probability min(1, exp(−ΔH/T)). The trajectory is reversible and keeps volumes whatever
function of the weights its gradient is, so any oracle that is frozen during the move leaves exp(−U/T) invariant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .. import compensated, integrator, masses, trees
from ..compensated import Sum
from ..data import Dataset
from ..gradients import FrozenOracle, exact_energy, sum_of_squares
from ..potential import Potential
from ..types import Array, Key, Status, Weights
from .base import Kernel, Measurements, Stream, key_for

ADAPTATION_GAIN = 2.0
"""Gain of the first move. Where the acceptance is erfc(c·δt²), as for many weights, its slope in ln δt at 0.75 is
−0.48, so this is a Newton step."""
ADAPTATION_DECAY = 0.6
"""The gain falls as m^(−0.6) with the number of the move; between 0.5 and 1 the average of the iterates has the
smallest possible error (Polyak and Juditsky, 1992)."""


class HybridState(NamedTuple):
    """One chain."""

    weights: Weights
    temperature: Array
    key: Key
    step: Array
    """Moves done."""
    status: Array
    masses: Weights
    energy: Sum
    """U on the whole data set at `weights`, so that a move computes it once, at its end."""
    time_step: Array
    """δt of the next move: adapted during the warm-up, constant after it."""
    mean_log_time_step: Array
    """Mean of ln δt over the second half of the warm-up so far."""
    energy_error: Array
    """ΔH/T of the last trajectory, accepted or not; the largest number where it was not finite."""
    num_accepted: Array
    """Moves accepted since the warm-up ended; during the warm-up, since the start."""
    kinetic_temperature: Array
    """⟨p²/M⟩ at the end of the last move: of the trajectory's end if accepted, of its start if not."""


class Proposal(NamedTuple):
    """A trajectory and what it costs."""

    weights: Weights
    """Where it ends."""
    momentum: Weights
    end_momentum: Weights
    energy: Sum
    energy_error: Array
    """ΔH/T."""
    start_temperature: Array
    end_temperature: Array
    """⟨p²/M⟩ at both ends."""


def trajectory(
    weights: Weights,
    momentum: Weights,
    gradient_at: Callable[[Weights], Weights],
    mass: Weights,
    time_step: Array | float,
    num_steps: int,
) -> tuple[Weights, Weights]:
    """`num_steps` steps of velocity Verlet: (w, p) at time 0 to (w, p) at time L·δt."""
    # Neither a temperature nor a variance enters where no noise does.
    nothing = jnp.zeros(())

    def step(carry: tuple[Weights, Weights], _: None) -> tuple[tuple[Weights, Weights], None]:
        return integrator.step(*carry, gradient_at, None, mass, None, nothing, 1.0, time_step), None

    half = integrator.half_step(momentum, gradient_at(weights), None, mass, None, nothing, 1.0, time_step)
    (weights, half), _ = lax.scan(step, (weights, half), length=num_steps)
    return weights, integrator.full_step(half, gradient_at(weights), time_step)


@dataclass(frozen=True, eq=False)
class HybridKernel(Kernel):
    """One row of the table in `hybrid`: which oracle drives the trajectory."""

    potential: Potential
    oracle: FrozenOracle
    num_leapfrog_steps: int
    initial_time_step: float
    given_masses: float | Weights
    warmup_moves: int
    target_acceptance: float
    chunk_size: int | None

    def check(self, weights: Weights) -> None:
        """Given masses fit the weights."""
        masses.given(weights, self.given_masses)

    def init(self, key: Key, weights: Weights, temperature: Array, dataset: Dataset) -> HybridState:
        """Compute the energy of the start."""
        return HybridState(
            weights=weights,
            temperature=temperature,
            key=key,
            step=jnp.zeros((), jnp.int32),
            status=jnp.asarray(Status.RUNNING, jnp.int32),
            masses=masses.given(weights, self.given_masses),
            energy=exact_energy(self.potential, weights, dataset, self.chunk_size),
            time_step=jnp.full_like(temperature, self.initial_time_step),
            mean_log_time_step=jnp.zeros_like(temperature),
            energy_error=jnp.zeros_like(temperature),
            num_accepted=jnp.zeros((), jnp.int32),
            kinetic_temperature=temperature,
        )

    def step(self, state: HybridState, dataset: Dataset) -> HybridState:
        """One move: a proposal, and the decision on it."""
        propose_key, metropolis_key = jax.random.split(key_for(state.key, Stream.STEP, state.step))
        proposal = self.propose(propose_key, state, dataset)
        error = proposal.energy_error
        # A trajectory that blew up is one more rejection: NaN and infinity never reach the state.
        usable = jnp.isfinite(error) & trees.all_finite(proposal.weights)
        error = jnp.where(usable, error, jnp.finfo(error.dtype).max)
        accepted = usable & (error <= jax.random.exponential(metropolis_key, dtype=error.dtype))
        moved = state._replace(
            weights=trees.select(accepted, proposal.weights, state.weights),
            energy=trees.select(accepted, proposal.energy, state.energy),
            energy_error=error,
            num_accepted=jnp.where(state.step == self.warmup_moves, 0, state.num_accepted) + accepted,
            kinetic_temperature=jnp.where(accepted, proposal.end_temperature, proposal.start_temperature),
        )
        return self._adapted(moved, jnp.exp(-jnp.maximum(error, 0)))._replace(step=state.step + 1)

    def propose(self, key: Key, state: HybridState, dataset: Dataset) -> Proposal:
        """Fresh momenta and the trajectory from them."""
        momentum_key, batch_key = jax.random.split(key)
        temperature, mass = state.temperature, state.masses
        momentum = integrator.maxwell_boltzmann(trees.normal_like(momentum_key, state.weights), mass, temperature)
        gradient_at = self.oracle(batch_key, dataset)
        weights, end_momentum = trajectory(
            state.weights, momentum, gradient_at, mass, state.time_step, self.num_leapfrog_steps
        )
        energy = exact_energy(self.potential, weights, dataset, self.chunk_size)
        before = twice_reduced_kinetic_energy(momentum, mass, temperature)
        after = twice_reduced_kinetic_energy(end_momentum, mass, temperature)
        error = compensated.difference(energy, state.energy) / temperature + compensated.difference(after, before) / 2
        unit = temperature / float(trees.num_weights(weights))
        return Proposal(
            weights=weights,
            momentum=momentum,
            end_momentum=end_momentum,
            energy=energy,
            energy_error=error.astype(temperature.dtype),
            start_temperature=(before.high * unit).astype(temperature.dtype),
            end_temperature=(after.high * unit).astype(temperature.dtype),
        )

    def measure(self, state: HybridState, exact_gradient: Weights) -> Measurements:
        """Acceptance, energy error, time step, kinetic temperature."""
        del exact_gradient
        in_warmup = state.step <= self.warmup_moves
        num_moves = jnp.where(in_warmup, state.step, state.step - self.warmup_moves)
        overflow = state.energy_error == jnp.finfo(state.energy_error.dtype).max
        return {
            "acceptance": state.num_accepted / jnp.maximum(num_moves, 1),
            "energy_error": jnp.where(overflow, jnp.inf, state.energy_error),
            "time_step": state.time_step,
            "kinetic_temperature": state.kinetic_temperature,
        }

    def _adapted(self, state: HybridState, acceptance: Array) -> HybridState:
        """Robbins–Monro on ln δt during the warm-up, ln δt ← ln δt + 2·m^(−0.6)·(acceptance − target).

        The average over the second half of the warm-up is what stays in force (Polyak–Ruppert): it is far less noisy
        than the last iterate.
        """
        if self.warmup_moves == 0:
            return state
        move = state.step + 1
        gain = ADAPTATION_GAIN * move.astype(acceptance.dtype) ** -ADAPTATION_DECAY
        log_time_step = jnp.log(state.time_step) + gain * (acceptance - self.target_acceptance)
        num_averaged = move - self.warmup_moves // 2
        share = 1 / jnp.maximum(num_averaged, 1).astype(acceptance.dtype)
        mean = state.mean_log_time_step + share * (log_time_step - state.mean_log_time_step)
        adapted = state._replace(
            time_step=jnp.exp(jnp.where(move < self.warmup_moves, log_time_step, mean)), mean_log_time_step=mean
        )
        return trees.select(move <= self.warmup_moves, adapted, state)


def twice_reduced_kinetic_energy(momentum: Weights, mass: Weights, temperature: Array) -> Sum:
    """Σ p²/(M·T), a compensated sum of about N; in these units it needs no unit of its own."""
    return sum_of_squares(jax.tree.map(lambda p, m: p / jnp.sqrt(m * temperature), momentum, mass))
