"""Balanced Langevin dynamics: friction that matches the covariance of the mini-batch noise.

A mini-batch gradient has noise of covariance Σ(w)/S, with Σ the covariance of the gradient of one example. Its variance
can be subtracted from the injected noise, as pseudo-Langevin does, but not its correlations: a few collective
directions carry hundreds of times the noise of a typical direction and become too hot. Balanced Langevin dynamics
leaves the injected noise complete and adds the friction that belongs to the mini-batch noise:

    w ← w + δt·h/M
    h ← c1²·h − l·g(w) + √((1 − c1⁴)·M·T)·ξ,          l = (1 + c1²)·δt/2
    y ← R(G)·y  with  y = h/√(M·T),  G = n·l²/(S·T)·M^(−1/2)·Σ(w)·M^(−1/2)          (every n-th step)

The contraction R(x) = 1 − a·x/(1 + b·x) gives every direction the right temperature, the ratio of its diffusion
constant to its mobility. For n = 1, R(x) = 1/(1 + x/(1 + c1²)); for n > 1 see `friction_coefficients`. Friction may
depend on the weights without any correction term.

R(G)·y needs products with G only, each one a Jacobian-vector and a vector-Jacobian product on an independent batch; see
`apply_friction`, which never increases |y|: the friction cannot diverge.

Related methods: NOGIN (Matthews and Weare, arXiv 1805.08863), CCAdL (Shang et al., arXiv 1510.08692), SGFS (Ahn et al.,
2012). None of them has masses from the noise or a product without a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from .. import _trees as trees
from .. import integrator, masses, variance
from .._checks import check_integer
from .._random import Stream, draw_indices, key_for, normal_like, stream_key
from .._trees import Array, Batch, Key, Weights
from ..gradients import covariance_product
from .langevin import LangevinState, NoiseMassLangevin


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BalancedLangevin(NoiseMassLangevin):
    """Balanced Langevin dynamics: samples exp(−U/T) with mini-batch gradients, at any temperature ratio.

    The friction matches the full covariance of the mini-batch noise, correlations included; see `samplers.balanced` for
    the update rule. Records are exact on quadratic potentials. What remains elsewhere is the error of the time step,
    with (ω·δt)² proportional to `temperature_ratio`, and of the friction, which is estimated on a batch.

    Masses are set from the gradient variance 𝒱 during a warm-up and are fixed afterwards, so they do not follow the
    weights. Later measurements of 𝒱 only raise masses: those whose ratio exceeds `max_temperature_ratio`, and all of
    them if the friction would be too strong or too noisy; the trace has `raised_share`, `friction_load`, `warmup_end`.
    𝒱 does not enter the noise, so an old 𝒱 does no harm.

    Args:
        temperature_ratio: 𝒯, the ratio of mini-batch noise to thermal noise that masses are set to. Diffusion grows in
            proportion to it.
        max_temperature_ratio: ratio above which a mass is raised after the warm-up; default: 4·`temperature_ratio`.
        momentum_retention: c1. Momenta remember for 1/(1 − c1²) steps; a smaller c1 relaxes energies faster, but the
            friction must then be applied more often.
        friction_every: steps n between two applications of the friction; default: the largest n up to 5 with
            n·(1 − c1²)·𝒯 ≤ 0.002, which was measured to be small enough.
        friction_batch_size: examples B of the batch of the friction; default: a quarter of `batch_size`.
        num_warmup: steps during which masses are set from the noise; default: until two measurements at doubling
            intervals agree within `refresh_tolerance`.

    Example:
        >>> sampler = balanced_langevin(potential, train, batch_size=5_580)  # doctest: +SKIP
        >>> result = sample(sampler, weights, temperatures=[3e-5], num_steps=20_000, key=key)  # doctest: +SKIP
    """

    momentum_retention: float = math.sqrt(0.997)
    temperature_ratio: float = 0.1
    friction_every: int | None = None
    friction_batch_size: int | None = None
    num_warmup: int | None = None
    warmup_refreshes: ClassVar[int] = 6
    default_share: ClassVar[float] = 0.1
    name: ClassVar[str] = "balanced_langevin"

    def __post_init__(self) -> None:
        """Fill in the interval of the friction and validate the settings."""
        super().__post_init__()
        if self.friction_every is None:
            bound = 0.002 / ((1 - self.momentum_retention**2) * self.temperature_ratio)
            object.__setattr__(self, "friction_every", max(1, min(5, math.floor(bound + 1e-6))))
        check_integer("friction_every", self.friction_every, minimum=1)
        check_integer("friction_batch_size", self.friction_size, minimum=2, maximum=self.dataset.num_examples)
        if self.num_warmup is not None:
            check_integer("num_warmup", self.num_warmup, minimum=0)

    @property
    def friction_size(self) -> int:
        """Number of examples B of the batch of the friction."""
        return max(2, (self.batch_size or 2) // 4) if self.friction_batch_size is None else self.friction_batch_size

    @property
    def ratio_limit(self) -> float:
        """Ratio above which a mass is raised after the warm-up."""
        return 4 * self.temperature_ratio if self.max_temperature_ratio is None else self.max_temperature_ratio

    @property
    def cycle(self) -> int:
        """Period of the step: the friction is applied once every `friction_every` steps."""
        return self.friction_every or 1

    def initial_noise(self, key: Key, weights: Weights, temperature: Array) -> tuple[Weights, Weights, Array]:
        """Return 𝒱 and masses that are ten times heavier than nominal, as 𝒱 may grow quickly in the warm-up."""
        current, mass, status = super().initial_noise(key, weights, temperature)
        heavier = 1.0 if self.num_warmup == 0 else 10.0
        return current, jax.tree.map(lambda m: heavier * m, mass), status

    def init(self, key: Key, weights: Weights, temperature: Array | float) -> LangevinState:
        """Start the warm-up."""
        end = 0 if self.num_warmup == 0 else -1
        return super().init(key, weights, temperature)._replace(warmup_end=jnp.asarray(end, jnp.int32))

    def subtracted(self, state: LangevinState) -> None:
        """Return None: the injected noise is complete."""

    def step(self, state: LangevinState, batch: Batch | None) -> LangevinState:
        """Return the state after one step; in the middle of every cycle the friction is applied."""
        moved = super().step(state, batch)
        due = state.step % self.cycle == self.cycle // 2
        momentum = lax.cond(due, self.apply_balance, lambda s: s.half_step_momentum, moved)
        return moved._replace(half_step_momentum=momentum)

    def run_cycle(self, state: LangevinState) -> LangevinState:
        """Return the state after one cycle: steps, the friction in the middle, steps."""

        def plain(state: LangevinState, num: int) -> LangevinState:
            step = super(BalancedLangevin, self).step
            return lax.scan(lambda s, _: (step(s, self.draw(s)), None), state, length=num)[0]

        before = self.cycle // 2 + 1
        state = plain(state, before)
        state = state._replace(half_step_momentum=self.apply_balance(state))
        return plain(state, self.cycle - before) if self.cycle > before else state

    def apply_balance(self, state: LangevinState) -> Weights:
        """Return the momentum h after the friction R(G)."""
        return self.balance(state, state.half_step_momentum, stream_key(state.key, Stream.FRICTION), state.step)[0]

    def balance(self, state: LangevinState, momentum: Weights, key: Key, step: Array) -> tuple[Weights, Array]:
        """Return a momentum after the friction on a batch of its own, and the load of the friction."""
        batch = self.dataset.take(draw_indices(key, self.dataset.num_examples, self.friction_size, step))
        product = covariance_product(self.potential, trees.unpack(state.weights), batch, self.precision)
        kick = 0.5 * (1 + self.momentum_retention**2) * self.time_step
        strength = self.cycle * kick**2 / ((self.batch_size or 1) * state.temperature)
        root = jax.tree.map(jnp.sqrt, state.masses)

        def noise_product(y: Weights) -> tuple[Weights, Array]:
            velocity = jax.tree.map(lambda a, r: a / r, y, root)
            force, slopes = product(trees.unpack(velocity))
            force = trees.pack_like(velocity, force)
            return jax.tree.map(lambda f, r: strength * f / r, force, root), jnp.sqrt(strength) * slopes

        y = jax.tree.map(lambda h, r: h / r, momentum, root)
        y, load = apply_friction(noise_product, y, self.momentum_retention**2, self.cycle)
        return jax.tree.map(lambda a, r: a * r, y, root), load

    def mean_load(self, state: LangevinState, key: Key, num_batches: int = 16) -> Array:
        """Return the load of the friction with thermal momenta, averaged over batches: single ones fluctuate."""

        def load(key: Key) -> Array:
            probe_key, batch_key = jax.random.split(key)
            noise = normal_like(probe_key, state.weights)
            momentum = integrator.maxwell_boltzmann(noise, state.masses, state.temperature)
            return self.balance(state, momentum, batch_key, state.step)[1]

        return jnp.mean(lax.map(load, jax.random.split(key, num_batches)))

    def refresh(self, state: LangevinState) -> LangevinState:
        """Measure 𝒱 again; set the masses during the warm-up, and raise those that are too light afterwards."""
        measured = self.measure_variance(key_for(state.key, Stream.REFRESH, state.step), state.weights)
        old = state.gradient_variance
        agree = variance.agree(variance.tensor_means(old), variance.tensor_means(measured), self.refresh_tolerance)
        state = self.remeasure(state, measured)
        warming_up = state.warmup_end < 0
        if self.num_warmup is None:  # three measurements at least, and a warm-up of two base intervals at most
            ends = (agree & (state.num_refreshes >= 3)) | (state.num_refreshes >= self.warmup_refreshes)
        else:
            ends = state.step >= self.num_warmup
        average = jax.tree.map(lambda a, b: jnp.where(ends, 0.5 * (a + b), b), old, measured)
        heavier = jnp.where(ends, 1.0, 10.0 ** jnp.maximum(1 - state.num_refreshes / self.warmup_refreshes, 0.0))
        nominal = self.nominal_masses(average, state.weights, state.temperature)
        nominal = jax.tree.map(lambda m: (heavier * m).astype(m.dtype), nominal)
        ratios = masses.temperature_ratios(self._guarded(measured), state.masses, state.temperature, **self.dynamics)
        excess = jax.tree.map(lambda r: r / self.ratio_limit, ratios)
        raised = jax.tree.map(lambda m, x: m * jnp.maximum(x, 1.0), state.masses, excess)
        mass = trees.select(warming_up, nominal, raised)
        # All masses are raised if the load of the friction, which goes as 1/M, exceeds 1 in the warm-up, or 2 later.
        load = self.mean_load(state._replace(masses=mass), key_for(state.key, Stream.FRICTION, state.step))
        factor = jnp.where(load > jnp.where(warming_up, 1.0, 2.0), load, 1.0)
        mass = jax.tree.map(lambda m: m * factor.astype(m.dtype), mass)
        # Momenta are rescaled, h·√(M_new/M_old): they stay thermal, and nothing is forgotten.
        momentum = jax.tree.map(lambda h, m, n: h * jnp.sqrt(n / m), state.half_step_momentum, state.masses, mass)
        return state._replace(
            peak_ratio=trees.largest(ratios),
            masses=mass,
            half_step_momentum=momentum,
            raised_share=jnp.where(warming_up, 0.0, trees.mean(jax.tree.map(lambda x: (x > 1) * 1.0, excess))),
            num_resets=state.num_resets + warming_up,
            warmup_end=jnp.where(warming_up & ends, state.step, state.warmup_end),
            friction_load=load.astype(state.friction_load.dtype),
        )

    def at_temperature(self, state: LangevinState, temperature: Array) -> LangevinState:
        """Return the state at another temperature; the next refresh sets the masses, as in the warm-up."""
        end = state.warmup_end if self.num_warmup == 0 else jnp.full_like(state.warmup_end, -1)
        return super().at_temperature(state, temperature)._replace(warmup_end=end)

    def measure(self, state: LangevinState, exact_gradient: Weights) -> dict[str, Array]:
        """Return also the step at which the masses were fixed, and the load of the friction at the last refresh."""
        own = {"warmup_end": state.warmup_end, "friction_load": state.friction_load}
        return super().measure(state, exact_gradient) | own


def apply_friction(
    product: Callable[[Weights], tuple[Weights, Array]], y: Weights, retained: float, cycle: int
) -> tuple[Weights, Array]:
    """Return R(G)·y from two products with G, and the load of the friction.

    The result is p(G)·y, with p the polynomial of degree 2 that equals R at 0 and at the two Gauss nodes of λ·dμ, with
    dμ the spectral measure of y (Lanczos with a Radau node at 0). It is R of a positive semi-definite matrix, so its
    norm is never larger than that of y.

    G is an estimate from B examples, whose square is too large on average, by t·G with t = ⟨|g|⁴⟩/(B·⟨|g|²⟩). The
    friction is made stronger by the factor 1 + (b + a²)·t to compensate; a_i = g_i·y gives ⟨|g|⁴⟩ ≈ ⟨a_i⁴⟩/3.

    The load is the larger of x/2.5, with x the largest Ritz value of G, and (b + a²)·t/0.15. Samples were measured to
    be unbiased up to a load of about 1.

    Args:
        product: maps y to G·y and the slopes a_i = g_i·y of B examples, with G = Σ_i g_i·g_iᵀ/(B − 1).
        y: momenta in units of √(M·T).
        retained: c1².
        cycle: n, the number of kicks that G stands for.
    """
    dot, tiny = trees.dot, jnp.finfo(jax.tree.leaves(y)[0].dtype).tiny
    u, slopes = product(y)
    z, _ = product(u)
    first = jnp.maximum(dot(y, u), tiny)
    alpha = dot(u, u) / first
    shifted = jax.tree.map(lambda a, b: a - alpha * b, u, y)
    residual = jax.tree.map(lambda a, b: a - alpha * b, z, u)
    overlap = jnp.maximum(dot(shifted, residual), 0.0)
    second = jnp.where(overlap > 1e-6 * first * alpha**2, dot(residual, residual) / jnp.maximum(overlap, tiny), alpha)
    gap = jnp.sqrt(0.25 * (alpha - second) ** 2 + overlap / first)
    a, b = friction_coefficients(retained, cycle)
    squares = jnp.mean(slopes**2) * slopes.shape[0] * dot(y, y) / float(trees.num_weights(y))
    excess = (b + a**2) * jnp.mean(slopes**4) / (3 * jnp.maximum(squares, tiny))
    load = jnp.maximum((0.5 * (alpha + second) + gap) / 2.5, excess / 0.15)
    stronger = 1 + excess
    low = stronger * jnp.maximum(0.5 * (alpha + second) - gap, 0.0)
    high = stronger * (0.5 * (alpha + second) + gap)
    linear = -a * stronger / (1 + b * low)
    quadratic = a * b * stronger / ((1 + b * low) * (1 + b * high))
    moved = jax.tree.map(lambda v0, v1, v2: v0 + linear * v1 + quadratic * (stronger * v2 - low * v1), y, u, z)
    return moved, load


def friction_coefficients(retained: float, cycle: int) -> tuple[float, float]:
    """Return a and b of R(x) = 1 − a·x/(1 + b·x) for c = c1² and n kicks between two applications of the friction.

    A free particle with R(x) has the temperature T: the ratio of its diffusion constant to its mobility.
    """
    c, n = float(retained), cycle
    first, second = sum(c**m for m in range(n)), sum(c ** (2 * m) for m in range(n))
    b = (2 - n * second / first**2 - c**n * n / first) / (n * (1 - c**2))
    return 1 / (1 + c), b
