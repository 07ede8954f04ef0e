"""Langevin samplers: pseudo-Langevin, naive pseudo-Langevin and full-batch Langevin.

| sampler             | gradient   | masses                                | variance subtracted |
|---------------------|------------|---------------------------------------|---------------------|
| pseudo-Langevin     | mini-batch | from the measured noise, kept current | yes                 |
| naive pL            | mini-batch | uniform, with a small time step       | by choice           |
| full-batch Langevin | exact      | uniform, or given                     | no noise            |

`Langevin` is the step they share, `MinibatchLangevin` adds the measurement of the gradient variance 𝒱.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from .. import _trees as trees
from .. import integrator, masses
from .._trees import (
    Array,
    Batch,
    Key,
    Stream,
    Weights,
    check_choice,
    check_integer,
    check_interval,
    check_positive,
    key_for,
    normal_like,
    stream_key,
)
from ..gradients import exact_sums, minibatch_gradient
from .base import RATIO_QUANTILES, ExactGradient, Sampler, Status

PER_WEIGHT = ("weights", "half_step_momentum", "masses", "gradient_variance")  # fields with one number per weight
PAPER_RETENTION = math.sqrt(0.99)  # c1 with √(1 − c1²) = 0.1, the paper's friction


class LangevinState(NamedTuple):
    """State of one chain."""

    weights: Weights
    temperature: Array
    key: Key
    step: Array
    status: Array
    half_step_momentum: Weights
    masses: Weights
    gradient_variance: Weights
    """Current 𝒱, which the injected noise is reduced by; the mean of each group that shares a mass."""
    last_refresh: Array
    """Step of the last measurement of 𝒱."""
    next_refresh: Array
    """Step of the next measurement of 𝒱."""
    refresh_multiple: Array
    """Current refresh interval in units of the base interval."""
    peak_ratio: Array
    """Largest 𝒯_i found by the last refresh, before masses were raised."""
    raised_share: Array
    """Share of the masses that the last refresh raised."""
    num_refreshes: Array
    num_resets: Array
    warmup_end: Array
    """Step at which the masses were fixed; -1 before, and 0 for samplers without such a warm-up."""
    friction_gain: Array
    """Factor of the friction that compensates for the noise of its batch; see `balanced`."""
    friction_load: Array
    """Load of the friction at the last refresh, before masses were raised for it; see `balanced`."""
    tests: Any = ()
    """`observables.SteinSums` of a run; empty outside one."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Langevin(Sampler):
    """Langevin dynamics by the step of `integrator`.

    Args:
        time_step: δt. Scaling it by s scales masses set from the noise by s²: the dynamics are then the same.
        momentum_retention: c1 = exp(−γδt/2).
    """

    time_step: float
    momentum_retention: float = PAPER_RETENTION

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        remedy = f"it is c1 = exp(−γδt/2); the paper's is {PAPER_RETENTION:.5f}"
        check_interval("momentum_retention", self.momentum_retention, 0, 1, remedy, open_ends=True)
        check_positive("time_step", self.time_step)

    @property
    def dynamics(self) -> dict[str, float]:
        """The two numbers that the integrator takes."""
        return {"momentum_retention": self.momentum_retention, "time_step": self.time_step}

    def temperature_ratios(self, state: LangevinState, current: Weights) -> Weights:
        """Return 𝒯_i of every component with the variance `current`, at the masses of the state."""
        return masses.temperature_ratios(current, state.masses, state.temperature, **self.dynamics)

    @abstractmethod
    def gradient(self, weights: Weights, batch: Batch | None) -> Weights:
        """Return the gradient that drives the step."""

    @abstractmethod
    def initial_noise(self, key: Key, weights: Weights, temperature: Array) -> tuple[Weights, Weights, Array]:
        """Return 𝒱, the masses and the status of a chain at its start."""

    def init(self, key: Key, weights: Weights, temperature: Array | float) -> LangevinState:
        """Measure 𝒱, set the masses, draw the momenta."""
        temperature = jnp.asarray(temperature, jax.tree.leaves(weights)[0].dtype)
        variance_key, momentum_key = jax.random.split(key_for(key, Stream.INIT, 0))
        current, mass, status = self.initial_noise(variance_key, weights, temperature)
        ratios = masses.temperature_ratios(current, mass, temperature, **self.dynamics)
        integers = ("step", "last_refresh", "next_refresh", "num_refreshes", "num_resets", "warmup_end")
        state = LangevinState(
            weights=weights,
            temperature=temperature,
            key=key,
            status=status,
            half_step_momentum=weights,
            masses=mass,
            gradient_variance=current,
            refresh_multiple=jnp.ones((), jnp.int32),
            peak_ratio=trees.largest(ratios),
            raised_share=jnp.zeros(()),
            friction_gain=jnp.ones(()),
            friction_load=jnp.zeros(()),
            **{name: jnp.zeros((), jnp.int32) for name in integers},
        )
        return state._replace(half_step_momentum=self.draw_momentum(momentum_key, state))

    def step(self, state: LangevinState, batch: Batch | None) -> LangevinState:
        """Return the state after one step of eq:PseudoLangevinIntegrator."""
        weights, momentum = integrator.step(
            state.weights,
            state.half_step_momentum,
            lambda w: trees.pack_like(w, self.force(state, trees.unpack(w), batch)),
            normal_like(stream_key(state.key, Stream.NOISE), state.weights, state.step),
            state.masses,
            self.subtracted(state),
            state.temperature,
            **self.dynamics,
        )
        return state._replace(weights=weights, half_step_momentum=momentum, step=state.step + 1)

    def force(self, state: LangevinState, weights: Weights, batch: Batch | None) -> Weights:
        """Return what drives the step: the gradient at the weights, to which a sampler may add a friction."""
        del state
        return self.gradient(weights, batch)

    def subtracted(self, state: LangevinState) -> Weights | None:
        """Return the variance that the injected noise is reduced by; None for no reduction."""
        return state.gradient_variance

    def draw_momentum(self, key: Key, state: LangevinState) -> Weights:
        """Return Maxwell–Boltzmann momenta, taken half a step forward."""
        momentum_key, gradient_key, noise_key = jax.random.split(key, 3)
        noise, xi = (normal_like(k, state.weights) for k in (momentum_key, noise_key))
        momentum = integrator.maxwell_boltzmann(noise, state.masses, state.temperature)
        batch = None if self.batch_size is None else self.dataset.draw(gradient_key, self.batch_size)
        gradient, current = self.gradient(state.weights, batch), self.subtracted(state)
        return integrator.half_step(momentum, gradient, xi, state.masses, current, state.temperature, **self.dynamics)

    def pack(self, state: LangevinState) -> LangevinState:
        """Return the state with one vector each for weights, momenta, masses and 𝒱, if they fit on one device."""
        parts: dict[str, Any] = {name: getattr(state, name) for name in PER_WEIGHT}
        if self.dataset.mesh is not None or not trees.is_packable(*parts.values()):
            return state
        packed: dict[str, Any] = {name: trees.pack(part) for name, part in parts.items()}
        return state._replace(**packed)

    def unpack(self, state: LangevinState) -> LangevinState:
        """Return the state with tensors."""
        return state._replace(**{name: trees.unpack(getattr(state, name)) for name in PER_WEIGHT})

    def position(self, state: LangevinState) -> Weights:
        """Return w + (δt/2)·h/M, the weights in the middle of the next drift.

        On a quadratic potential their covariance is T/k for any stable time step, mass and friction; the covariance of
        the weights at the end of a drift is too large by 1/(1 − (ωδt)²/4).
        """
        return integrator.drift(state.weights, state.half_step_momentum, state.masses, 0.5 * self.time_step)

    def continue_from(self, state: LangevinState, other: LangevinState) -> LangevinState:
        """Return `state` at the position of `other`, with momenta h·√(M·T) in its own masses and temperature.

        Position and h are independent at mid-drift on a quadratic potential, so both stay at equilibrium.
        """

        def rescaled(h: Array, old: Array, new: Array) -> Array:
            return h * jnp.sqrt(new * state.temperature / (old * other.temperature))

        momentum = jax.tree.map(rescaled, other.half_step_momentum, other.masses, state.masses)
        weights = integrator.drift(self.position(other), momentum, state.masses, -0.5 * self.time_step)
        return state._replace(weights=weights, half_step_momentum=momentum)

    def measure(self, state: LangevinState, exact_gradient: Weights) -> dict[str, Array]:
        """Return the kinetic temperature ⟨h·(h + h')/M⟩/((1 + c1²)·N), with h' the mean of the next momentum.

        On a quadratic potential it is T for any stable time step and any friction. h' is measured with a mini-batch of
        its own, whose noise averages to zero, so no pass over all examples is needed.
        """
        del exact_gradient  # it belongs to another time
        retained, h = self.momentum_retention**2, state.half_step_momentum
        batch = self.draw(state, Stream.MEASURE)
        force = self.force(state, integrator.drift(state.weights, h, state.masses, self.time_step), batch)
        length = (1 + retained) * self.time_step / 2
        products = jax.tree.map(lambda h, f, m: h * ((1 + retained) * h - length * f) / m, h, force, state.masses)
        return {"kinetic_temperature": trees.mean(products) / (1 + retained)}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FullBatchLangevin(ExactGradient, Langevin):
    """Langevin dynamics with the exact gradient, integrated as by Bussi and Parrinello (eq:BussiParrinello).

    It samples exp(−U/T) for δt → 0. On a quadratic potential, records are exact for any stable δt; see `position`.
    """

    name: ClassVar[str] = "full_batch_langevin"

    def gradient(self, weights: Weights, batch: Batch | None) -> Weights:
        """Return ∇U on the full data set."""
        return exact_sums(self.potential, weights, self.dataset, self.chunk_size).gradient

    def initial_noise(self, key: Key, weights: Weights, temperature: Array) -> tuple[Weights, Weights, Array]:
        """Return no variance and the given masses."""
        mass = masses.given(weights, self.masses)
        mass = jax.tree.map(lambda w, m: jnp.broadcast_to(m, w.shape), weights, mass)
        return masses.uniform(weights, 0.0), mass, jnp.asarray(Status.RUNNING, jnp.int32)


VarianceSource = Literal["auto", "examples", "minibatches"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MinibatchLangevin(Langevin):
    """Langevin dynamics with mini-batch gradients whose variance 𝒱 is measured from time to time.

    Args:
        batch_size: examples per mini-batch, S; default: 1 % of the data set, 10 % for balanced Langevin. Diffusion
            per step grows as S, so the best value is the largest that the device computes at no extra cost.
        refresh_every: base interval between measurements of 𝒱, in steps. As long as successive measurements agree the
            interval grows: 1×, 2×, 3×… `refresh_every`.
        max_refresh_interval: longest interval between measurements of 𝒱, in steps.
        refresh_tolerance: successive measurements agree if the standard deviation of every tensor (root of its mean 𝒱)
            changed by no more than this share.
        variance_from: source of 𝒱: "examples", the gradients of single examples in one pass, or "minibatches", as in
            the paper; "auto" is "examples" with fewer of them unless the network is feed-forward, where the pass is
            cheap. The results agree within their errors.
        variance_examples: number of examples that the pass visits; default: 100 000 or 20 batches, whichever is more,
            and 2 048 for "auto" and a network that is not feed-forward. If it is at least the size of the data set, 𝒱
            is exact.
        variance_block: mini-batches per block when 𝒱 is measured from mini-batches.
        variance_max_batches: largest number of mini-batches for one measurement.
        variance_tolerance: 𝒱 has converged when another block changes no component's standard deviation by more.
        precision: precision of the matrix products in mini-batch gradients; None is the device's default, and on an
            NVIDIA GPU, for feed-forward classifiers of spins or bytes, kernels with bfloat16 factors.
    """

    batch_size: int | None = None  # type: ignore[misc]
    refresh_every: int = 5_000
    max_refresh_interval: int = 50_000
    refresh_tolerance: float = 0.1
    variance_from: VarianceSource = "auto"
    variance_examples: int | None = None
    variance_block: int = 100
    variance_max_batches: int = 1_000
    variance_tolerance: float = 0.1
    precision: str | None = None
    warmup_refreshes: ClassVar[int] = 0
    default_share: ClassVar[float] = 0.01  # of the data set, for the batch size
    masses_per: ClassVar[masses.Granularity] = "weight"
    steps_per_block: ClassVar[int] = 50

    def __post_init__(self) -> None:
        """Fill in the batch size and validate the settings."""
        super().__post_init__()
        self.complete_batch_size(self.default_share, 2, "full_batch_langevin")
        check_integer("refresh_every", self.refresh_every, minimum=1)
        check_integer("max_refresh_interval", self.max_refresh_interval, minimum=self.refresh_every)
        check_choice("variance_from", self.variance_from, get_args(VarianceSource))
        if self.variance_examples is not None:
            check_integer("variance_examples", self.variance_examples, minimum=2)
        check_integer("variance_block", self.variance_block, minimum=2)
        check_integer("variance_max_batches", self.variance_max_batches, minimum=self.variance_block)
        check_positive("variance_tolerance", self.variance_tolerance)
        check_positive("refresh_tolerance", self.refresh_tolerance)

    @property
    def refreshes(self) -> bool:
        """Whether 𝒱 is measured."""
        return True

    def next_refresh(self, state: LangevinState) -> Array:
        """Return the step of the next measurement of 𝒱."""
        return state.next_refresh

    def gradient(self, weights: Weights, batch: Batch | None) -> Weights:
        """Return ∇U on a mini-batch."""
        split = self.dataset.mesh is not None
        return minibatch_gradient(self.potential, weights, batch, self.precision, split=split)  # type: ignore[arg-type]

    def init(self, key: Key, weights: Weights, temperature: Array | float) -> LangevinState:
        """Measure 𝒱, set the masses, draw the momenta, and set the time of the first refresh."""
        first = max(1, self.refresh_every >> self.warmup_refreshes)
        return super().init(key, weights, temperature)._replace(next_refresh=jnp.asarray(first, jnp.int32))

    def measure_variance(self, key: Key, weights: Weights) -> Weights:
        """Return 𝒱 at these weights."""
        batch_size = self.batch_size or 0
        if self.variance_from == "minibatches":
            return masses.variance_from_minibatches(
                lambda draw_key: self.gradient(weights, self.dataset.draw(draw_key, batch_size)),
                key,
                weights,
                block_size=self.variance_block,
                max_batches=self.variance_max_batches,
                tolerance=self.variance_tolerance,
            )[0]
        cheap = self.variance_from == "examples" or self.potential.gradient_moments is not None
        default = max(100_000, 20 * batch_size) if cheap else 2_048
        num = default if self.variance_examples is None else self.variance_examples
        return masses.variance_from_examples(
            self.potential, key, weights, self.dataset, batch_size=batch_size, num_examples=num
        )

    def remeasure(self, state: LangevinState, measured: Weights) -> LangevinState:
        """Make a new measurement the current 𝒱 and set the time of the next: later as long as measurements agree.

        During the warm-up the interval doubles from one measurement to the next. Afterwards agreement is judged on the
        mean 𝒱 of each tensor, as single components have a large statistical error.
        """
        current = masses.by_group(jnp.mean, measured, self.masses_per)
        old, new = masses.tensor_means(state.gradient_variance), masses.tensor_means(current)
        longer = jnp.minimum(state.refresh_multiple + 1, max(1, self.max_refresh_interval // self.refresh_every))
        num_refreshes = state.num_refreshes + 1
        agree = masses.variances_agree(old, new, self.refresh_tolerance) & (num_refreshes > self.warmup_refreshes)
        multiple = jnp.where(agree, longer, 1)
        halvings = jnp.maximum(self.warmup_refreshes - num_refreshes, 0)
        interval = jnp.maximum(jnp.right_shift(self.refresh_every, halvings), 1) * multiple
        return state._replace(
            gradient_variance=current,
            refresh_multiple=multiple,
            last_refresh=state.step,
            next_refresh=state.step + interval,
            num_refreshes=num_refreshes,
        )

    def measure(self, state: LangevinState, exact_gradient: Weights) -> dict[str, Array]:
        """Return the kinetic temperature, temperature ratios and the gradient variance."""
        if not self.refreshes:
            return super().measure(state, exact_gradient)
        ratios = self.temperature_ratios(state, state.gradient_variance)
        per_weight = jax.tree.map(lambda v, w: jnp.broadcast_to(v, w.shape), state.gradient_variance, state.weights)
        return super().measure(state, exact_gradient) | {
            "temperature_ratio": trees.quantiles(ratios, RATIO_QUANTILES),
            "max_temperature_ratio": trees.largest(ratios),
            "peak_temperature_ratio": state.peak_ratio,
            "gradient_variance": trees.by_layer(trees.mean, per_weight),
            "raised_share": state.raised_share,
            "refresh_interval": state.next_refresh - state.last_refresh,
            "num_resets": state.num_resets,
        }


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class NaivePseudoLangevin(MinibatchLangevin):
    """Mini-batch Langevin dynamics with one mass for all weights and a small time step ("naive-pL").

    It samples exp(−U/T) in the limit δt → 0; the noisiest component decides how small δt must be. It is the paper's
    point of comparison (Fig. A.1), which leaves open whether 𝒱 is subtracted, so that is a choice.

    Args:
        mass: M of every weight.
        subtract_variance: whether the injected noise is reduced by 𝒱, as in pseudo-Langevin.
    """

    mass: float = 1.0
    subtract_variance: bool = True
    name: ClassVar[str] = "naive_pseudo_langevin"

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_positive("mass", self.mass)

    @property
    def refreshes(self) -> bool:
        """Whether 𝒱 is measured."""
        return self.subtract_variance

    def initial_noise(self, key: Key, weights: Weights, temperature: Array) -> tuple[Weights, Weights, Array]:
        """Return 𝒱, if it is subtracted, and one mass for all weights."""
        zero = masses.uniform(weights, 0.0)
        current = self.measure_variance(key, weights) if self.subtract_variance else zero
        return current, masses.uniform(weights, self.mass), jnp.asarray(Status.RUNNING, jnp.int32)

    def refresh(self, state: LangevinState) -> LangevinState:
        """Measure 𝒱 again."""
        key = jax.random.split(key_for(state.key, Stream.REFRESH, state.step), 3)[0]
        state = self.remeasure(state, self.measure_variance(key, state.weights))
        ratios = self.temperature_ratios(state, state.gradient_variance)
        return state._replace(peak_ratio=trees.largest(ratios))

    def measure(self, state: LangevinState, exact_gradient: Weights) -> dict[str, Array]:
        """Return also the share of the weights whose mini-batch noise alone exceeds the thermal noise.

        These have 𝒯_i > 1/(1 + c1²), that is (1 − c1⁴)·M·T < ((1 + c1²)·δt/2)²·𝒱_i: the variance to be injected would
        be negative and is clipped at zero. A relative excess of 1e-3 is rounding.
        """
        found = super().measure(state, exact_gradient)
        if not self.subtract_variance:
            return found
        limit = (1 + 1e-3) / (1 + self.momentum_retention**2)
        ratios = self.temperature_ratios(state, state.gradient_variance)
        return found | {"clipped_share": trees.mean(jax.tree.map(lambda r: (r > limit).astype(r.dtype), ratios))}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class NoiseMassLangevin(MinibatchLangevin):
    """Mini-batch Langevin dynamics whose masses are set from the measured noise.

    Args:
        mass_floor: masses are at least those of this share of the tensor's mean 𝒱. The floor keeps the chain finite
            when a unit that was silent for every example becomes active; a larger floor slows quiet weights.
        max_regularizer_frequency: masses are at least such that the regulariser alone oscillates with ω·δt ≤ this.
        masses_per: "weight", or "row" or "tensor" to save memory; a group's mass is that of its noisiest weight.
    """

    time_step: float = 1.0
    temperature_ratio: float
    max_temperature_ratio: float | None = None
    mass_floor: float = 0.01
    max_regularizer_frequency: float = 0.1
    masses_per: masses.Granularity = "weight"  # type: ignore[misc]

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        check_positive("temperature_ratio", self.temperature_ratio)
        check_positive("max_temperature_ratio", self.ratio_limit)
        if self.ratio_limit < self.temperature_ratio:
            raise ValueError(
                f"max_temperature_ratio = {self.ratio_limit:g} is below temperature_ratio = "
                f"{self.temperature_ratio:g}: every mass would be raised at once; raise the first or lower the second"
            )
        check_interval("mass_floor", self.mass_floor, 0, 1, "it is a share of the tensor's mean variance")
        if self.mass_floor == 0 and not self.potential.regularizes_every_weight:
            raise ValueError(
                "mass_floor = 0 with weight_decay = 0 leaves weights without noise without a mass; "
                "keep mass_floor at 0.01 or give the potential a weight_decay"
            )
        check_interval("max_regularizer_frequency", self.max_regularizer_frequency, 1e-6, 1, "0.1 is stable enough")
        check_choice("masses_per", self.masses_per, get_args(masses.Granularity))

    @property
    def ratio_limit(self) -> float:
        """𝒯max, the ratio above which a mass is raised."""
        return self.temperature_ratio if self.max_temperature_ratio is None else self.max_temperature_ratio

    def initial_noise(self, key: Key, weights: Weights, temperature: Array) -> tuple[Weights, Weights, Array]:
        """Return 𝒱 and the masses set from it."""
        measured = self.measure_variance(key, weights)
        current = masses.by_group(jnp.mean, measured, self.masses_per)
        status = jnp.where(trees.largest(current) == 0, Status.NO_NOISE, Status.RUNNING).astype(jnp.int32)
        return current, self.nominal_masses(measured, weights, temperature), status

    def nominal_masses(self, measured: Weights, weights: Weights, temperature: Array) -> Weights:
        """Return the masses that give every component the temperature ratio, or larger ones for stability."""
        nominal = masses.from_noise(self._guarded(measured), temperature, self.temperature_ratio, **self.dynamics)
        return self._stable(nominal, weights)

    def _stable(self, mass: Weights, weights: Weights) -> Weights:
        stiffness = self.potential.stiffness(weights)
        return masses.stabilized(mass, stiffness, self.time_step, self.max_regularizer_frequency)

    def at_temperature(self, state: LangevinState, temperature: Array) -> LangevinState:
        """Return the state at another temperature, with the same temperature ratios: M·T is constant."""
        mass = self._stable(jax.tree.map(lambda m: m * (state.temperature / temperature), state.masses), state.weights)
        changed = state._replace(temperature=temperature, masses=mass, refresh_multiple=jnp.zeros((), jnp.int32))
        return self.continue_from(changed, state)

    def _guarded(self, measured: Weights) -> Weights:
        """Return the variance that masses are set from: floored, and that of the noisiest weight of each group."""
        return masses.by_group(jnp.max, masses.floor_variance(measured, self.mass_floor), self.masses_per)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PseudoLangevin(NoiseMassLangevin):
    """Pseudo-Langevin dynamics, the paper's sampler: samples exp(−U/T) with mini-batch gradients.

    Masses are set from the measured variance 𝒱 of the mini-batch gradient, so that the mini-batch noise is the share
    𝒯 = `temperature_ratio` of the thermal noise of every component (eq:LTRLimit). The injected noise is reduced by
    that share (eq:PseudoLangevinIntegrator). The distribution is right in the limit 𝒯 → 0, c1 → 1; most of the bias at
    finite 𝒯 comes from correlations between components of the mini-batch noise, which are not corrected.

    At every refresh 𝒱 is measured again. Masses whose 𝒯_i exceeds `max_temperature_ratio` are raised to it and their
    momenta redrawn, or, with probability `reset_probability`, all masses are set and all momenta redrawn.

    Args:
        temperature_ratio: 𝒯, the ratio that masses are set to; at most 1/(1 + c1²).
        max_temperature_ratio: 𝒯max, the ratio above which a mass is raised; default: `temperature_ratio`.
        reset_probability: ρ_reset, the probability that a refresh sets all masses and redraws all momenta. Resets more
            frequent than the relaxation time bias the samples towards a large 𝒱; with 0, masses are only raised.
        warmup_refreshes: number k of early refreshes, after 2⁻ᵏ, 2⁻ᵏ⁺¹… of `refresh_every`; each of them is a reset, as
            𝒱 grows by orders of magnitude while a trained start thermalises. 0 is the paper's scheme.

    Example:
        >>> sampler = pseudo_langevin(potential, train, batch_size=558, temperature_ratio=0.01)  # doctest: +SKIP
        >>> result = sample(sampler, weights, temperatures=[3e-5], num_steps=20_000, key=key)  # doctest: +SKIP
    """

    temperature_ratio: float = 0.01
    reset_probability: float = 0.1
    warmup_refreshes: int = 3  # type: ignore[misc]
    name: ClassVar[str] = "pseudo_langevin"

    def __post_init__(self) -> None:
        """Validate the settings."""
        super().__post_init__()
        limit = 1 / (1 + self.momentum_retention**2)
        for name, ratio in (("temperature_ratio", self.temperature_ratio), ("max_temperature_ratio", self.ratio_limit)):
            if ratio > limit:
                raise ValueError(
                    f"{name} = {ratio:g} exceeds 1/(1+c1²) = {limit:.4g}, where mini-batch noise alone exceeds the "
                    "thermal noise; lower it (0.01 is the paper's value); to move faster raise batch_size instead"
                )
        check_interval("reset_probability", self.reset_probability, 0, 1, "it is a probability")
        check_integer("warmup_refreshes", self.warmup_refreshes, minimum=0, maximum=10)

    def refresh(self, state: LangevinState) -> LangevinState:
        """Measure 𝒱 again; raise masses that have become too light, or reset all masses and momenta."""
        variance_key, momentum_key, reset_key = jax.random.split(key_for(state.key, Stream.REFRESH, state.step), 3)
        measured = self.measure_variance(variance_key, state.weights)
        state = self.remeasure(state, measured)
        ratios = self.temperature_ratios(state, self._guarded(measured))
        warming_up = state.num_refreshes <= self.warmup_refreshes
        reset = warming_up | jax.random.bernoulli(reset_key, self.reset_probability)
        excess = jax.tree.map(lambda r: r / self.ratio_limit, ratios)
        raised = jax.tree.map(lambda m, x: m * jnp.maximum(x, 1.0), state.masses, excess)
        mass = trees.select(reset, self.nominal_masses(measured, state.weights, state.temperature), raised)
        drawn = self.draw_momentum(momentum_key, state._replace(masses=mass)), state.half_step_momentum
        momentum = jax.tree.map(lambda x, new, old: jnp.where(reset | (x > 1), new, old), excess, *drawn)
        return state._replace(
            peak_ratio=trees.largest(ratios),
            masses=mass,
            half_step_momentum=momentum,
            raised_share=jnp.where(reset, 0.0, trees.mean(jax.tree.map(lambda x: (x > 1).astype(x.dtype), excess))),
            num_resets=state.num_resets + reset,
        )
