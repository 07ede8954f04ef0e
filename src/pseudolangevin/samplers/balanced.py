"""Balanced Langevin dynamics: friction that matches the full covariance Σ of the mini-batch noise.

Subtracting the variance of the noise, as pseudo-Langevin does, leaves its correlations: a few collective directions are
many times too hot. Here the injected noise is complete, and the friction that belongs to the mini-batch noise is added.
With S examples in a mini-batch and Σ the covariance of the gradient of one example, a step is

    w ← w + δt·h/M
    h ← c1²·h − l·g(w) − l²/((1 + c1²)·S·T)·Σ(w)·h/M + √((1 − c1⁴)·M·T)·ξ,          l = (1 + c1²)·δt/2

The friction acts on the momentum before the kick. On a quadratic potential of curvature H the weights at mid-drift,
w + (δt/2)·h/M, then have the covariance T/H exactly: for any Σ, any masses and any stable time step (docs/method.md has
the proof). Friction may depend on the weights without any correction term.

Σ·v needs no matrix. With the slopes a_i = g_i·v of B examples,

    Σ·v = Σ_i (a_i − ā)·g_i/(B − 1),

which is a gradient with the coefficients a_i − ā. It is computed in the same pass as g, and from the same examples
(docs/method.md explains why, and has related methods). Two numbers control it:

- Gain. The friction is estimated from B examples, so it brings noise of its own, t·G in units of the mini-batch noise
  G = l²/(S·T)·M^(−1/2)·Σ·M^(−1/2), with t = ⟨|ĝ|⁴⟩/⟨|ĝ|²⟩ for ĝ = l·M^(−1/2)·g/√(B·S·T). A friction that is stronger by
  2/(1 + √(1 − 4t/(1 + c1²)²)) balances it.
- Bound. The slopes of thermal momenta have (l/T)²·⟨a²⟩/S = tr G. Where it exceeds 50 plus the trace at which every
  weight has the largest temperature ratio, the friction is reduced in proportion: its impulse is bounded, so it cannot
  diverge. Thermal momenta stay below: five standard deviations along an eigenvector of eigenvalue 2 give 50.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from .. import _trees as trees
from .. import integrator, masses
from .._trees import Array, Batch, Key, Stream, Weights
from ..gradients import Friction, covariance_product, fast_convolutions, minibatch_gradient
from .base import Natural, Positive, Several
from .langevin import LangevinState, NoiseMassLangevin


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BalancedLangevin(NoiseMassLangevin):
    """Balanced Langevin dynamics: samples exp(−U/T) with mini-batch gradients, at any temperature ratio.

    The friction matches the full covariance of the mini-batch noise; see `samplers.balanced` for the update rule.
    Records are exact on quadratic potentials. Other potentials have an error of the time step, with (ω·δt)²
    proportional to `temperature_ratio`, and an error of the friction, which is estimated on a batch.

    Masses are set from the gradient variance 𝒱 during a warm-up and are fixed afterwards, so they do not follow the
    weights. Later measurements of 𝒱 only raise masses: those whose ratio exceeds `max_temperature_ratio`, and all of
    them if the friction would be too strong or too noisy; the trace has `raised_share`, `friction_load`, `warmup_end`.

    Args:
        temperature_ratio: 𝒯, the ratio of mini-batch to thermal noise that masses are set to; diffusion grows with it.
        max_temperature_ratio: ratio above which a mass is raised after the warm-up; default: 4·`temperature_ratio`.
        momentum_retention: c1. Momenta decorrelate in 1/(1 − c1²) steps. A smaller c1 relaxes energies faster; strength
            and noise of the friction go as 1 − c1².
        friction_batch_size: examples B that the friction is computed on; default: a third of `batch_size`, and at least
            100. They are the first ones of the mini-batch, and further examples if B is larger than `batch_size`.
        num_warmup: steps during which masses are set from the noise; default: until two measurements at doubling
            intervals agree within `refresh_tolerance`.

    Example:
        >>> sampler = pl.balanced_langevin(potential, train, batch_size=5_580)
        >>> result = pl.sample(sampler, weights, temperatures=[3e-5], num_steps=20_000, key=key)
    """

    temperature_ratio: Positive = 0.1
    friction_batch_size: Several | None = None
    num_warmup: Natural | None = None
    warmup_refreshes: ClassVar[int] = 7
    default_share: ClassVar[float] = 0.1
    default_limit: ClassVar[float] = 4.0
    name: ClassVar[str] = "balanced_langevin"

    def __post_init__(self) -> None:
        super().__post_init__()
        num = self.dataset.num_examples
        if self.friction_batch_size is None:
            object.__setattr__(self, "friction_batch_size", max(min(100, num), (self.batch_size or 0) // 3))
        trees.check_integer("friction_batch_size", self.friction_batch_size, minimum=2, maximum=num)

    @property
    def examples_per_step(self) -> int:
        return max(self.batch_size or 0, self.friction_batch_size or 0)

    def initial_masses(self, measured: Weights, weights: Weights, temperature: Array) -> Weights:
        # Ten times heavier than nominal, as 𝒱 may grow quickly in the warm-up.
        heavier = 1.0 if self.num_warmup == 0 else 10.0
        return jax.tree.map(lambda m: heavier * m, self.nominal_masses(measured, weights, temperature))

    def init(self, key: Key, weights: Weights, temperature: Array | float) -> LangevinState:
        end, due = jnp.asarray(0 if self.num_warmup == 0 else -1, jnp.int32), jnp.zeros((), jnp.int32)
        return super().init(key, weights, temperature)._replace(warmup_end=end, next_refresh=due)

    def thermostat(self, state: LangevinState) -> integrator.Thermostat:
        """Return the parameters of the step: the injected noise is complete."""
        return super().thermostat(state)._replace(variance=None)

    def force(self, state: LangevinState, weights: Weights, batch: Batch | None) -> Weights:
        """Return the gradient on the first S examples, plus the friction from the first B divided by the kick l."""
        examples: Any = batch
        split, friction = self.dataset.mesh is not None, self.friction(state)
        return minibatch_gradient(self.potential, weights, examples, self.precision, friction=friction, split=split)

    def friction(self, state: LangevinState) -> Friction:
        """Return the friction of one step, bounded as described above."""
        kicked, num, retained = self.batch_size or 1, self.friction_batch_size or 2, self.momentum_retention**2
        largest_trace = (1 + retained) ** 2 * (1 - retained) * self.ratio_limit * trees.num_weights(state.weights)
        return Friction(
            velocity=trees.unpack(jax.tree.map(lambda h, m: h / m, state.half_step_momentum, state.masses)),
            temperature=state.temperature,
            gain=state.friction_gain,
            strength=self.kick / ((1 + retained) * kicked * (num - 1)),
            limit=(50 + largest_trace) * kicked * (num - 1) / self.kick**2,
            num_kicked=kicked,
            num_examples=num,
        )

    def limit_load(self, state: LangevinState, allowed: Array) -> LangevinState:
        """Measure the gain and the load of the friction; raise all masses if the load exceeds what is allowed.

        A step is stable as long as x/(1 + c1²) + l·δt·k/2 < 1 + c1², with x an eigenvalue of G and k of the curvature
        M^(−1/2)·H·M^(−1/2). The load is the largest eigenvalue of the left side, measured on batches by power
        iteration, or twelve times gain − 1, if that is larger. All of these go as 1/M. Momenta are rescaled with √M, so
        they stay thermal.
        """
        size, noise_size = self.batch_size or 1, self.friction_batch_size or 2
        retained, root = 1 + self.momentum_retention**2, jax.tree.map(jnp.sqrt, state.masses)
        unit = self.kick**2 / (size * state.temperature)  # G = unit·M^(−1/2)·Σ·M^(−1/2)

        def on_one_batch(key: Key) -> tuple[Array, Array, Array]:
            keys = jax.random.split(key)
            batch = self.dataset.draw(keys[0], size)
            few = jax.tree.map(lambda rows: rows[: -(-size // 4)], batch)
            product = covariance_product(self.potential, state.weights, batch, self.precision)
            force = jax.grad(lambda weights: self.potential.energy(weights, few))
            curvature_product = fast_convolutions(lambda v: jax.jvp(force, (state.weights,), (v,))[1])

            def iterate(carry: tuple[Weights, Array], _: None) -> tuple[tuple[Weights, Array], Array]:
                scale = jnp.sqrt(jnp.maximum(trees.squared_norm(carry[0]), 1e-30))
                y = jax.tree.map(lambda a: a / scale, carry[0])
                velocity = jax.tree.map(lambda a, r: a / r, y, root)
                (noise, along), half = product(velocity), 0.5 * self.kick * self.time_step
                curved = curvature_product(velocity)
                image = jax.tree.map(lambda g, k, r: (unit / retained * g + half * k) / r, noise, curved, root)
                return (image, jnp.abs(trees.dot(y, image))), along * scale

            probe = trees.normal_like(keys[1], state.weights)  # thermal momenta divided by √(M·T)
            (_, largest), along = lax.scan(iterate, (probe, jnp.zeros(())), length=5)
            return jnp.sum(along[0] ** 4), jnp.sum(along[0] ** 2), largest

        keys = jax.random.split(trees.key_for(state.key, Stream.FRICTION, state.step), 4)
        fourth, second, largest = (jnp.mean(values) for values in lax.map(on_one_batch, keys))
        noise = unit * fourth / (3 * jnp.maximum(second, 1e-30) * (noise_size - 1) * retained**2)
        load = jnp.maximum(largest, 12 * noise)
        factor = jnp.where(load > allowed, load, 1.0)
        gain = 2 / (1 + jnp.sqrt(jnp.maximum(1 - 4 * noise / factor, 0.0)))
        return state._replace(
            masses=jax.tree.map(lambda m: m * factor.astype(m.dtype), state.masses),
            half_step_momentum=jax.tree.map(lambda h: h * jnp.sqrt(factor).astype(h.dtype), state.half_step_momentum),
            friction_gain=gain.astype(state.friction_gain.dtype),
            friction_load=load.astype(state.friction_load.dtype),
        )

    def refresh(self, state: LangevinState) -> LangevinState:
        """Measure 𝒱 again; set the masses during the warm-up, and raise those that are too light afterwards.

        In the warm-up the new masses are means of the nominal and the current ones: a unit may be silent at one
        measurement and active at the next.
        """
        measured = self.measure_variance(trees.key_for(state.key, Stream.REFRESH, state.step), state.weights)
        agree = masses.means_agree(state.gradient_variance, measured, self.refresh_tolerance)
        warming_up, done, before = state.warmup_end < 0, state.num_refreshes, state.masses
        state, _ = self.raise_masses(self.remeasure(state, measured), measured)
        if self.num_warmup is None:  # three measurements at least, and a warm-up of two base intervals at most
            ends = (agree & (done >= 3)) | (done + 1 >= self.warmup_refreshes)
        else:
            ends = state.step >= self.num_warmup

        def heavier(done: Array) -> Array:
            return 10.0 ** jnp.maximum(1 - done / self.warmup_refreshes, 0.0)

        factors = 0.5 / heavier(done), jnp.where(ends, 1.0, heavier(done + 1))
        nominal = self.nominal_masses(measured, state.weights, state.temperature)
        nominal = jax.tree.map(lambda m, n: (factors[0] * m + 0.5 * n) * factors[1], before, nominal)
        mass = jax.tree.map(lambda m, n: jnp.where(warming_up, n, m).astype(m.dtype), state.masses, nominal)
        # Momenta are rescaled, h·√(M_new/M_old): they stay thermal, and nothing is forgotten.
        momentum = jax.tree.map(lambda h, m, n: h * jnp.sqrt(n / m), state.half_step_momentum, before, mass)
        state = state._replace(
            masses=mass,
            half_step_momentum=momentum,
            raised_share=jnp.where(warming_up, 0.0, state.raised_share),
            num_resets=state.num_resets + warming_up,
            warmup_end=jnp.where(warming_up & ends, state.step, state.warmup_end),
        )
        return self.limit_load(state, jnp.where(warming_up, 1.0, 1.5))

    def at_temperature(self, state: LangevinState, temperature: Array) -> LangevinState:
        """Return the state at another temperature; the next refresh sets the masses, as in the warm-up."""
        end = state.warmup_end if self.num_warmup == 0 else jnp.full_like(state.warmup_end, -1)
        return super().at_temperature(state, temperature)._replace(warmup_end=end)

    def measure(self, state: LangevinState, exact_gradient: Weights) -> dict[str, Array]:
        own = {"warmup_end": state.warmup_end, "friction_load": state.friction_load}
        return super().measure(state, exact_gradient) | own
