"""Langevin samplers: pseudo-Langevin, naive pseudo-Langevin and full-batch Langevin.

`Langevin` is the step they share, `MinibatchLangevin` adds the measurement of the gradient variance 𝒱, and
`NoiseMassLangevin` the masses that are set from it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from .. import _trees as trees
from .. import integrator, masses
from .._trees import Array, Batch, Key, Stream, Weights
from .base import RATIO_QUANTILES, Count, ExactGradient, Positive, Sampler, Several, Share, Status

PAPER_RETENTION = math.sqrt(0.99)  # c1 with √(1 − c1²) = 0.1, the paper's friction
Retention: TypeAlias = Annotated[
    float,
    partial(
        trees.check_interval,
        low=0,
        high=1,
        remedy=f"it is c1 = exp(−γδt/2); the paper's is {PAPER_RETENTION:.5f}",
        open_ends=True,
    ),
]


class LangevinState(NamedTuple):
    """State of one chain."""

    weights: Weights
    temperature: Array
    key: Key
    step: Array
    status: Array
    half_step_momentum: Weights
    masses: Weights
    gradient_variance: Weights  # current 𝒱, which the injected noise is reduced by; the mean of each group of masses
    last_refresh: Array  # step of the last measurement of 𝒱
    next_refresh: Array  # step of the next measurement of 𝒱
    raised_share: Array  # share of the masses that the last refresh raised
    num_refreshes: Array
    num_resets: Array
    warmup_end: Array  # step at which the masses were fixed; -1 before, and 0 for samplers without such a warm-up
    friction_gain: Array  # factor of the friction that compensates for the noise of its batch; see `balanced`
    friction_load: Array  # load of the friction at the last refresh, before masses were raised for it; see `balanced`
    tests: Any = ()  # `observables.SteinSums` of a run; empty outside one


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Langevin(Sampler):
    """Langevin dynamics by the step of `integrator`.

    Args:
        time_step: δt. Scaling it by s scales masses set from the noise by s²: the dynamics are then the same.
        momentum_retention: c1 = exp(−γδt/2).
    """

    time_step: Positive
    momentum_retention: Retention = PAPER_RETENTION
    packs: ClassVar[bool] = True
    masses_per: ClassVar[masses.Granularity] = "weight"

    @property
    def dynamics(self) -> dict[str, float]:
        """The two numbers that the integrator takes."""
        return {"momentum_retention": self.momentum_retention, "time_step": self.time_step}

    @property
    def kick(self) -> float:
        """Length l = (1 + c1²)·δt/2 of the kick, in time."""
        return 0.5 * (1 + self.momentum_retention**2) * self.time_step

    @abstractmethod
    def initial_masses(self, measured: Weights, weights: Weights, temperature: Array) -> Weights:
        """Return the masses of a chain at its start, given 𝒱."""

    def measure_variance(self, key: Key, weights: Weights) -> Weights:
        """Return 𝒱 at these weights, or zero if it is not needed."""
        return jax.tree.map(jnp.zeros_like, weights)

    def init(self, key: Key, weights: Weights, temperature: Array | float) -> LangevinState:
        common = self.beginning(key, weights, temperature)
        variance_key, momentum_key = jax.random.split(trees.key_for(key, Stream.INIT, 0))
        measured = self.measure_variance(variance_key, weights)
        counts = ("last_refresh", "next_refresh", "num_refreshes", "num_resets", "warmup_end")
        state = LangevinState(
            half_step_momentum=weights,
            masses=self.initial_masses(measured, weights, common["temperature"]),
            gradient_variance=masses.by_group(jnp.mean, measured, self.masses_per),
            raised_share=jnp.zeros(()),
            friction_gain=jnp.ones(()),
            friction_load=jnp.zeros(()),
            **common,
            **{name: jnp.zeros((), jnp.int32) for name in counts},
        )
        return state._replace(half_step_momentum=self.draw_momentum(momentum_key, state))

    def step(self, state: LangevinState, batch: Batch | None) -> LangevinState:
        weights, momentum = integrator.step(
            state.weights,
            state.half_step_momentum,
            lambda w: trees.pack_like(w, self.force(state, trees.unpack(w), batch)),
            trees.normal_like(trees.stream_key(state.key, Stream.NOISE), state.weights, state.step),
            self.thermostat(state),
        )
        return state._replace(weights=weights, half_step_momentum=momentum, step=state.step + 1)

    def force(self, state: LangevinState, weights: Weights, batch: Batch | None) -> Weights:
        """Return the force of the step: the gradient at the weights, to which a sampler may add a friction."""
        return self.gradient(weights, batch)

    def thermostat(self, state: LangevinState) -> integrator.Thermostat:
        """Return the parameters of the step: the injected noise is reduced by 𝒱."""
        numbers = self.momentum_retention, self.time_step
        return integrator.Thermostat(state.masses, state.temperature, *numbers, state.gradient_variance)

    def draw_momentum(self, key: Key, state: LangevinState) -> Weights:
        """Return Maxwell–Boltzmann momenta, taken half a step forward."""
        momentum_key, gradient_key, noise_key = jax.random.split(key, 3)
        noise, xi = (trees.normal_like(k, state.weights) for k in (momentum_key, noise_key))
        momentum = integrator.maxwell_boltzmann(noise, state.masses, state.temperature)
        batch = None if self.batch_size is None else self.dataset.draw(gradient_key, self.batch_size)
        return integrator.half_step(momentum, self.gradient(state.weights, batch), xi, self.thermostat(state))

    def position(self, state: LangevinState) -> Weights:
        """Return w + (δt/2)·h/M, the weights in the middle of the next drift.

        On a quadratic potential their covariance is T/k for any stable δt; at the end of a drift it is larger.
        """
        return integrator.drift(state.weights, state.half_step_momentum, state.masses, 0.5 * self.time_step)

    def continue_from(self, state: LangevinState, other: LangevinState) -> LangevinState:
        """Return `state` at the position of `other`, with momenta rescaled as √(M·T): both stay at equilibrium."""

        def rescaled(h: Array, old: Array, new: Array) -> Array:
            return h * jnp.sqrt(new * state.temperature / (old * other.temperature))

        momentum = jax.tree.map(rescaled, other.half_step_momentum, other.masses, state.masses)
        weights = integrator.drift(self.position(other), momentum, state.masses, -0.5 * self.time_step)
        return state._replace(weights=weights, half_step_momentum=momentum)

    def temperature_ratios(self, state: LangevinState, current: Weights) -> Weights:
        """Return 𝒯_i of every component with the variance `current`, at the masses of the state."""
        return masses.temperature_ratios(current, state.masses, state.temperature, **self.dynamics)

    def measure(self, state: LangevinState, exact_gradient: Weights) -> dict[str, Array]:
        """Return the kinetic temperature ⟨h·(h + h')/M⟩/((1 + c1²)·N), with h' the mean of the next momentum.

        On a quadratic potential it is T for any stable time step and any friction. h' is measured with a mini-batch of
        its own, whose noise averages to zero: the exact gradient belongs to another time.
        """
        retained, h = self.momentum_retention**2, state.half_step_momentum
        batch = self.draw(state, Stream.MEASURE)
        force = self.force(state, integrator.drift(state.weights, h, state.masses, self.time_step), batch)
        products = jax.tree.map(lambda h, f, m: h * ((1 + retained) * h - self.kick * f) / m, h, force, state.masses)
        return {"kinetic_temperature": trees.mean(products) / (1 + retained)}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FullBatchLangevin(ExactGradient, Langevin):
    """Langevin dynamics with the exact gradient, integrated as by Bussi and Parrinello (eq:BussiParrinello).

    It samples exp(−U/T) for δt → 0. On a quadratic potential, records are exact for any stable δt; see `position`.
    """

    name: ClassVar[str] = "full_batch_langevin"

    def initial_masses(self, measured: Weights, weights: Weights, temperature: Array) -> Weights:
        return jax.tree.map(lambda w, m: jnp.broadcast_to(m, w.shape), weights, masses.given(weights, self.masses))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MinibatchLangevin(Langevin):
    """Langevin dynamics with mini-batch gradients whose variance 𝒱 is measured from time to time.

    Args:
        batch_size: examples per mini-batch, S, the most that cost nothing extra; default: 1 % of the data set, 10 % for
            balanced Langevin. Diffusion per step grows as S.
        refresh_every: steps between measurements of 𝒱; as long as they agree, the interval grows: 1×, 2×, 3×…
        max_refresh_interval: longest interval between measurements of 𝒱, in steps.
        refresh_tolerance: largest change of the root of the mean 𝒱 of a tensor for measurements that agree, a share.
        variance_from: source of 𝒱: "examples", the gradients of single examples in one pass, or "minibatches", as in
            the paper: 100 to 1 000 of them, until another 100 change no component's standard deviation by 10 %.
        variance_examples: number of examples that the pass visits, all of them if there are fewer; default: 100 000 or
            20 batches, whichever is more, and 2 048 for a network that is not feed-forward.
        precision: precision of the matrix products in mini-batch gradients; None is the device's default, and on an
            NVIDIA GPU, for feed-forward classifiers of spins or bytes, kernels with bfloat16 factors.
    """

    batch_size: int | None = None  # type: ignore[misc]
    refresh_every: Count = 5_000
    max_refresh_interval: Count = 50_000
    refresh_tolerance: Positive = 0.1
    variance_from: Literal["examples", "minibatches"] = "examples"
    variance_examples: Several | None = None
    precision: str | None = None
    warmup_refreshes: ClassVar[int] = 0
    default_share: ClassVar[float] = 0.01  # of the data set, for the batch size
    steps_per_block: ClassVar[int] = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        self.complete_batch_size(self.default_share, 2, "full_batch_langevin")
        trees.check_integer("max_refresh_interval", self.max_refresh_interval, minimum=self.refresh_every)

    def init(self, key: Key, weights: Weights, temperature: Array | float) -> LangevinState:
        first = max(1, self.refresh_every >> self.warmup_refreshes)
        return super().init(key, weights, temperature)._replace(next_refresh=jnp.asarray(first, jnp.int32))

    def next_refresh(self, state: LangevinState) -> Array:
        return state.next_refresh

    def measure_variance(self, key: Key, weights: Weights) -> Weights:
        batch_size = self.batch_size or 0
        if self.variance_from == "minibatches":

            def gradient(key: Key) -> Weights:
                return self.gradient(weights, self.dataset.draw(key, batch_size))

            return masses.variance_from_minibatches(gradient, key, weights)[0]
        cheap = self.potential.gradient_moments is not None
        num = self.variance_examples or (max(100_000, 20 * batch_size) if cheap else 2_048)
        sizes = {"batch_size": batch_size, "num_examples": num}
        return masses.variance_from_examples(self.potential, key, weights, self.dataset, **sizes)

    def remeasure(self, state: LangevinState, measured: Weights) -> LangevinState:
        """Make a new measurement the current 𝒱 and set the time of the next: later as long as measurements agree.

        During the warm-up intervals double from one measurement to the next.
        """
        current = masses.by_group(jnp.mean, measured, self.masses_per)
        num_refreshes = state.num_refreshes + 1
        agree = masses.means_agree(state.gradient_variance, current, self.refresh_tolerance)
        longest = max(1, self.max_refresh_interval // self.refresh_every)
        longer = jnp.minimum((state.next_refresh - state.last_refresh) // self.refresh_every + 1, longest)
        multiple = jnp.where(agree & (num_refreshes > self.warmup_refreshes), longer, 1)
        halvings = jnp.maximum(self.warmup_refreshes - num_refreshes, 0)
        interval = jnp.maximum(jnp.right_shift(self.refresh_every, halvings), 1) * multiple
        timing = {"last_refresh": state.step, "next_refresh": state.step + interval, "num_refreshes": num_refreshes}
        return state._replace(gradient_variance=current, **timing)

    def measure(self, state: LangevinState, exact_gradient: Weights) -> dict[str, Array]:
        found = super().measure(state, exact_gradient)
        if not self.refreshes:
            return found
        ratios = self.temperature_ratios(state, state.gradient_variance)
        per_weight = jax.tree.map(lambda v, w: jnp.broadcast_to(v, w.shape), state.gradient_variance, state.weights)
        return found | {
            "temperature_ratio": trees.quantiles(ratios, RATIO_QUANTILES),
            "max_temperature_ratio": trees.largest(ratios),
            "gradient_variance": trees.by_layer(trees.mean, per_weight),
            "raised_share": state.raised_share,
            "refresh_interval": state.next_refresh - state.last_refresh,
            "num_resets": state.num_resets,
        }


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class NaivePseudoLangevin(MinibatchLangevin):
    """Mini-batch Langevin dynamics with one mass for all weights and a small time step ("naive-pL").

    It samples exp(−U/T) for δt → 0; the noisiest component decides how small δt must be. It is the paper's comparison
    (Fig. A.1), which leaves open whether 𝒱 is subtracted.

    Args:
        mass: M of every weight.
        subtract_variance: whether the injected noise is reduced by 𝒱, as in pseudo-Langevin.
    """

    mass: Positive = 1.0
    subtract_variance: bool = True
    name: ClassVar[str] = "naive_pseudo_langevin"

    def initial_masses(self, measured: Weights, weights: Weights, temperature: Array) -> Weights:
        return jax.tree.map(lambda w: jnp.full_like(w, self.mass), weights)

    def measure_variance(self, key: Key, weights: Weights) -> Weights:
        if not self.subtract_variance:
            return jax.tree.map(jnp.zeros_like, weights)
        return super().measure_variance(key, weights)

    @property
    def refreshes(self) -> bool:
        return self.subtract_variance

    def refresh(self, state: LangevinState) -> LangevinState:
        key = jax.random.split(trees.key_for(state.key, Stream.REFRESH, state.step), 3)[0]
        return self.remeasure(state, self.measure_variance(key, state.weights))

    def measure(self, state: LangevinState, exact_gradient: Weights) -> dict[str, Array]:
        """Return also the share of the weights whose mini-batch noise alone exceeds the thermal noise.

        These have 𝒯_i > 1/(1 + c1²): the variance to be injected would be negative and is clipped at zero.
        """
        found = super().measure(state, exact_gradient)
        if not self.subtract_variance:
            return found
        limit = (1 + 1e-3) / (1 + self.momentum_retention**2)  # a smaller excess is rounding
        ratios = self.temperature_ratios(state, state.gradient_variance)
        return found | {"clipped_share": trees.mean(jax.tree.map(lambda r: (r > limit).astype(r.dtype), ratios))}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class NoiseMassLangevin(MinibatchLangevin):
    """Mini-batch Langevin dynamics whose masses are set from the measured noise.

    Args:
        mass_floor: masses are at least those of this share of the tensor's mean 𝒱. The floor keeps the chain finite
            when a unit that was silent for every example becomes active; a larger floor slows quiet weights.
        masses_per: "weight", or "row" or "tensor" to save memory; a group's mass is that of its noisiest weight.
    """

    time_step: Positive = 1.0
    temperature_ratio: Positive
    max_temperature_ratio: Positive | None = None
    mass_floor: Share = 0.01
    masses_per: masses.Granularity = "weight"  # type: ignore[misc]
    max_regularizer_frequency: ClassVar[float] = 0.1  # of the oscillation by the regulariser alone, as ω·δt
    default_limit: ClassVar[float] = 1.0  # of `max_temperature_ratio`, in units of `temperature_ratio`

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio_limit < self.temperature_ratio:
            why = f"is below temperature_ratio = {self.temperature_ratio:g}: every mass would be raised at once"
            remedy = "raise the first or lower the second"
            raise ValueError(f"max_temperature_ratio = {self.ratio_limit:g} {why}; {remedy}")

    @property
    def ratio_limit(self) -> float:
        """𝒯max, the ratio above which a mass is raised."""
        return self.max_temperature_ratio or self.default_limit * self.temperature_ratio

    def init(self, key: Key, weights: Weights, temperature: Array | float) -> LangevinState:
        state = super().init(key, weights, temperature)
        silent = trees.largest(state.gradient_variance) == 0
        return state._replace(status=jnp.where(silent, Status.NO_NOISE, Status.RUNNING).astype(jnp.int32))

    def _guarded(self, measured: Weights) -> Weights:
        """Return the variance that masses are set from: floored, and that of the noisiest weight of each group."""
        return masses.by_group(jnp.max, masses.floor_variance(measured, self.mass_floor), self.masses_per)

    def _stable(self, mass: Weights, weights: Weights) -> Weights:
        stiffness = self.potential.stiffness(weights)
        return masses.stabilized(mass, stiffness, self.time_step, self.max_regularizer_frequency)

    def nominal_masses(self, measured: Weights, weights: Weights, temperature: Array) -> Weights:
        """Return the masses that give every component the temperature ratio, or larger ones for stability."""
        nominal = masses.from_noise(self._guarded(measured), temperature, self.temperature_ratio, **self.dynamics)
        return self._stable(nominal, weights)

    initial_masses = nominal_masses

    def raise_masses(self, state: LangevinState, measured: Weights) -> tuple[LangevinState, Weights]:
        """Raise the masses whose 𝒯_i exceeds 𝒯max; return also 𝒯_i/𝒯max before that."""
        ratios = self.temperature_ratios(state, self._guarded(measured))
        excess = jax.tree.map(lambda r: r / self.ratio_limit, ratios)
        raised = state._replace(
            masses=jax.tree.map(lambda m, x: m * jnp.maximum(x, 1.0), state.masses, excess),
            raised_share=trees.mean(jax.tree.map(lambda x: (x > 1).astype(x.dtype), excess)),
        )
        return raised, excess

    def at_temperature(self, state: LangevinState, temperature: Array) -> LangevinState:
        """Return the state at another temperature, with the same temperature ratios: M·T is constant."""
        mass = self._stable(jax.tree.map(lambda m: m * (state.temperature / temperature), state.masses), state.weights)
        # A refresh is due, and intervals start again from the shortest.
        changed = state._replace(temperature=temperature, masses=mass, next_refresh=state.last_refresh)
        return self.continue_from(changed, state)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PseudoLangevin(NoiseMassLangevin):
    """Pseudo-Langevin dynamics, the paper's sampler: samples exp(−U/T) with mini-batch gradients.

    Masses are set from the variance 𝒱 of the mini-batch gradient, so that the mini-batch noise is the share 𝒯 of the
    thermal noise of every component (eq:LTRLimit); the injected noise is reduced by it (eq:PseudoLangevinIntegrator).
    The distribution is exact for 𝒯 → 0, c1 → 1. Most of the bias at finite 𝒯 comes from correlations between
    components of the mini-batch noise, which are not corrected.

    At every refresh 𝒱 is measured again. Masses whose 𝒯_i exceeds `max_temperature_ratio` are raised to it and their
    momenta redrawn, or, with probability `reset_probability`, all masses are set and all momenta redrawn.

    Args:
        temperature_ratio: 𝒯, the ratio that masses are set to; at most 1/(1 + c1²).
        max_temperature_ratio: 𝒯max, the ratio above which a mass is raised; default: `temperature_ratio`.
        reset_probability: ρ_reset. Resets more frequent than the relaxation time bias the samples towards a large 𝒱;
            with 0, masses are only raised.
        warmup_refreshes: number k of early refreshes, after 2⁻ᵏ, 2⁻ᵏ⁺¹… of `refresh_every`, each of them a reset: 𝒱
            grows by orders of magnitude while a trained start thermalises. 0 is the paper's scheme.

    Example:
        >>> sampler = pl.pseudo_langevin(potential, train, batch_size=558, temperature_ratio=0.01)
        >>> result = pl.sample(sampler, weights, temperatures=[3e-5], num_steps=20_000, key=key)
    """

    temperature_ratio: Positive = 0.01
    reset_probability: Share = 0.1
    warmup_refreshes: int = 3  # type: ignore[misc]
    name: ClassVar[str] = "pseudo_langevin"

    def __post_init__(self) -> None:
        super().__post_init__()
        limit = 1 / (1 + self.momentum_retention**2)
        for name, ratio in (("temperature_ratio", self.temperature_ratio), ("max_temperature_ratio", self.ratio_limit)):
            if ratio > limit:
                why = f"exceeds 1/(1+c1²) = {limit:.4g}, where mini-batch noise alone exceeds the thermal noise"
                remedy = "lower it (0.01 is the paper's value); to move faster raise batch_size instead"
                raise ValueError(f"{name} = {ratio:g} {why}; {remedy}")
        trees.check_integer("warmup_refreshes", self.warmup_refreshes, minimum=0, maximum=10)

    def refresh(self, state: LangevinState) -> LangevinState:
        """Measure 𝒱 again; raise masses that have become too light, or reset all masses and momenta."""
        key = trees.key_for(state.key, Stream.REFRESH, state.step)
        variance_key, momentum_key, reset_key = jax.random.split(key, 3)
        measured = self.measure_variance(variance_key, state.weights)
        state, excess = self.raise_masses(self.remeasure(state, measured), measured)
        warming_up = state.num_refreshes <= self.warmup_refreshes
        reset = warming_up | jax.random.bernoulli(reset_key, self.reset_probability)
        nominal = self.nominal_masses(measured, state.weights, state.temperature)
        state = state._replace(
            masses=trees.select(reset, nominal, state.masses),
            raised_share=jnp.where(reset, 0.0, state.raised_share),
            num_resets=state.num_resets + reset,
        )
        momenta = self.draw_momentum(momentum_key, state), state.half_step_momentum
        momentum = jax.tree.map(lambda x, new, old: jnp.where(reset | (x > 1), new, old), excess, *momenta)
        return state._replace(half_step_momentum=momentum)
