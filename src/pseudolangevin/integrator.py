"""The one step that all samplers share (eq:PseudoLangevinIntegrator).

State: the weights w and the half-step momentum h (the paper's Π). With masses M, temperature T, gradient variance 𝒱,
c1 = `momentum_retention` and δt = `time_step`, one step is

    w ← w + δt·h/M
    h ← c1²·h − (1 + c1²)·(δt/2)·g(w) + √((1 − c1⁴)·M·T − ((1 + c1²)·δt/2)²·𝒱)·ξ,        ξ ~ N(0, 1)

- 𝒱 = 0 and an exact gradient g: Bussi–Parrinello Langevin dynamics (eq:BussiParrinello).
- 𝒱 the variance of g: pseudo-Langevin; mini-batch and injected noise add up to the thermal noise.
- c1 = 1, 𝒱 = 0, entered by `half_step` and left by `full_step`: velocity Verlet.

`half_step` turns a momentum p at time t into h (eq:ExtendedMomenta_pL); `full_step` undoes the half kick.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ._trees import Array, Weights


class Thermostat(NamedTuple):
    """Parameters of a step."""

    masses: Weights
    temperature: Array
    momentum_retention: float
    time_step: float | Array
    variance: Weights | None = None  # 𝒱; None if the injected noise is complete


def step(
    weights: Weights,
    half_step_momentum: Weights,
    gradient_at: Callable[[Weights], Weights],
    noise: Weights | None,
    thermostat: Thermostat,
) -> tuple[Weights, Weights]:
    """Return weights and momentum after one step: drift, one gradient, kick. `noise` is ξ; None is for c1 = 1."""
    weights = drift(weights, half_step_momentum, thermostat.masses, thermostat.time_step)
    # The formula of a half step, with c1² in place of c1 and (1 + c1²)·δt in place of δt.
    retained = thermostat.momentum_retention**2
    kick = thermostat._replace(momentum_retention=retained, time_step=(1 + retained) * thermostat.time_step)
    return weights, half_step(half_step_momentum, gradient_at(weights), noise, kick)


def drift(weights: Weights, half_step_momentum: Weights, masses: Weights, time_step: float | Array) -> Weights:
    """Return w + δt·h/M."""
    return jax.tree.map(lambda w, h, m: w + time_step * h / m, weights, half_step_momentum, masses)


def half_step(momentum: Weights, gradient: Weights, noise: Weights | None, thermostat: Thermostat) -> Weights:
    """Return h = c1·p − (δt/2)·g + √((1 − c1²)·M·T − (δt/2)²·𝒱)·ξ (eq:ExtendedMomenta_pL)."""
    masses, temperature, retention, time_step, variance = thermostat
    length = 0.5 * time_step
    kicked = jax.tree.map(lambda p, g: retention * p - length * g, momentum, gradient)
    if noise is None:
        return kicked

    def thermalize(h: Array, m: Array, xi: Array, v: Array | float = 0.0) -> Array:
        # At the limit 𝒯 = 1/(1 + c1²) the injected noise vanishes; rounding must not make its variance negative.
        injected = jnp.maximum((1 - retention**2) * m * temperature - length**2 * v, 0.0)
        return h + jnp.sqrt(injected) * xi

    subtracted = () if variance is None else (variance,)
    return jax.tree.map(thermalize, kicked, masses, noise, *subtracted)


def full_step(half_step_momentum: Weights, gradient: Weights, time_step: float | Array) -> Weights:
    """Return p = h + (δt/2)·g, the momentum at the time of the weights.

    With the exact gradient, p is the thermalised momentum: N(0, M·T) at equilibrium for any δt on a quadratic
    potential. h itself is wider by the half kick. Kinetic temperatures are measured with p.
    """
    return jax.tree.map(lambda h, g: h + 0.5 * time_step * g, half_step_momentum, gradient)


def maxwell_boltzmann(noise: Weights, masses: Weights, temperature: Array) -> Weights:
    """Return momenta √(M·T)·ξ."""
    return jax.tree.map(lambda xi, m: jnp.sqrt(m * temperature) * xi, noise, masses)
