"""The Langevin kernel: one step of `integrator`, and the control of the mini-batch noise between segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp

from .. import flat, integrator, masses, moments, noise, trees
from ..checks import check_integer, check_interval, check_positive
from ..data import Dataset
from ..gradients import DEFAULT_CHUNK_SIZE, Oracle
from ..masses import Granularity
from ..potential import Potential
from ..types import Array, Key, Status, Weights
from .base import Kernel, Measurements, Stream, key_for, stream_key

RATIO_QUANTILES = (0.05, 0.5, 0.95)
"""The quantiles of 𝒯_i that are recorded."""
PER_WEIGHT = ("weights", "half_step_momentum", "masses", "gradient_variance")
"""What a state has for every weight."""
RATIO_ROUNDING = 1e-3
"""A relative excess of a ratio over its limit that is rounding, not a fault."""


VarianceSource: TypeAlias = Literal["auto", "examples", "minibatches"]
VARIANCE_SOURCES = get_args(VarianceSource)


class LangevinState(NamedTuple):
    """One chain."""

    weights: Weights
    temperature: Array
    key: Key
    step: Array
    status: Array
    half_step_momentum: Weights
    masses: Weights
    gradient_variance: Weights
    """𝒱 in force: what the injected noise is reduced by; the mean of each group that shares a mass."""
    last_refresh: Array
    """Step at which 𝒱 was measured."""
    next_refresh: Array
    """Step at which it is measured again."""
    refresh_multiple: Array
    """The current refresh interval in units of the base interval."""
    peak_ratio: Array
    """Largest 𝒯_i found by the last refresh, before masses were raised."""
    stale_heat: Array
    """Relative excess of temperature that noise above the old 𝒱 had brought by the last refresh, (layer,); 0 until the
    first refresh after the warm-up."""
    raised_share: Array
    """Share of the masses that the last refresh raised."""
    num_refreshes: Array
    num_resets: Array


@dataclass(frozen=True)
class NoiseControl:
    """How 𝒱 and the masses are kept in step with the weights (the scheme of the paper's section on pL)."""

    temperature_ratio: float
    max_temperature_ratio: float
    reset_probability: float
    refresh_every: int
    warmup_refreshes: int
    max_refresh_interval: int
    refresh_tolerance: float
    variance_from: VarianceSource
    variance_examples: int
    variance_block: int
    variance_max_batches: int
    variance_tolerance: float
    batch_size: int
    mass_floor: float
    max_regularizer_frequency: float
    masses_per: Granularity
    control_masses: bool
    """False for naive pL: 𝒱 is measured and subtracted, but the masses stay as they are."""

    @property
    def ticks(self) -> int:
        """The base interval in ticks: 2^k, so that k warm-up intervals fit below it; fewer if it is that short."""
        return 2 ** min(self.warmup_refreshes, int(self.refresh_every).bit_length() - 1)

    @property
    def tick(self) -> int:
        """The first, shortest interval; rounded down, so that no interval is longer than asked for."""
        return self.refresh_every // self.ticks

    def __post_init__(self) -> None:
        """Check every number."""
        check_integer("refresh_every", self.refresh_every, minimum=1)
        check_integer("warmup_refreshes", self.warmup_refreshes, minimum=0, maximum=10)
        check_integer("max_refresh_interval", self.max_refresh_interval, minimum=self.refresh_every)
        if self.variance_from not in VARIANCE_SOURCES:
            raise ValueError(f"variance_from = {self.variance_from!r}: choose one of {list(VARIANCE_SOURCES)}")
        check_integer("variance_examples", self.variance_examples, minimum=2)
        check_integer("variance_block", self.variance_block, minimum=2)
        check_integer("variance_max_batches", self.variance_max_batches, minimum=self.variance_block)
        check_positive("variance_tolerance", self.variance_tolerance)
        check_positive("refresh_tolerance", self.refresh_tolerance)
        check_interval("mass_floor", self.mass_floor, 0, 1, "it is a share of the tensor's mean variance")
        check_interval("max_regularizer_frequency", self.max_regularizer_frequency, 1e-6, 1, "0.1 is a safe value")
        masses.check_granularity(self.masses_per)


@dataclass(frozen=True, eq=False)
class LangevinKernel(Kernel):
    """One row of the table in `langevin`: which oracle, which masses, whether the noise is controlled."""

    potential: Potential
    oracle: Oracle
    momentum_retention: float
    time_step: float
    control: NoiseControl | None = None
    """None: 𝒱 is neither measured nor subtracted."""
    fixed_masses: float | Weights | None = None
    """Used where the control does not set them."""
    batch_size: int | None = None

    @property
    def refresh_every(self) -> int | None:  # type: ignore[override]
        """The shortest interval between measurements of 𝒱, of which all others are multiples."""
        return self.control.tick if self.control else None

    @property
    def regular_refresh_interval(self) -> int:  # type: ignore[override]
        """The base interval."""
        return self.control.tick * self.control.ticks if self.control else 0

    @property
    def _dynamics(self) -> dict[str, float]:
        return {"momentum_retention": self.momentum_retention, "time_step": self.time_step}

    def check(self, weights: Weights) -> None:
        """Fixed masses fit the weights."""
        if self.fixed_masses is not None:
            masses.given(weights, self.fixed_masses)

    def init(self, key: Key, weights: Weights, temperature: Array, dataset: Dataset) -> LangevinState:
        """Measure 𝒱, choose the masses, draw the momenta."""
        variance_key, momentum_key = jax.random.split(key_for(key, Stream.INIT, 0))
        status = jnp.asarray(Status.RUNNING, jnp.int32)
        variance = masses.uniform(weights, 0.0)
        given = masses.given(weights, 1.0 if self.fixed_masses is None else self.fixed_masses)
        mass = jax.tree.map(lambda w, m: jnp.broadcast_to(m, w.shape), weights, given)
        if self.control is not None:
            measured = self._measure_variance(variance_key, weights, dataset, self.control)
            variance = masses.by_group(jnp.mean, measured, self.control.masses_per)
            if self.control.control_masses:
                mass = self._nominal_masses(measured, weights, temperature, self.control)
                status = jnp.where(trees.largest(variance) == 0, Status.NO_NOISE, status)
        ratios = masses.temperature_ratios(variance, mass, temperature, **self._dynamics)
        return LangevinState(
            weights=weights,
            temperature=temperature,
            key=key,
            step=jnp.zeros((), jnp.int32),
            status=status,
            half_step_momentum=self._draw_momentum(momentum_key, weights, mass, variance, temperature, dataset),
            masses=mass,
            gradient_variance=variance,
            last_refresh=jnp.zeros((), jnp.int32),
            next_refresh=jnp.asarray(self.refresh_every or 0, jnp.int32),
            refresh_multiple=jnp.ones((), jnp.int32),
            peak_ratio=trees.largest(ratios),
            stale_heat=jnp.zeros_like(trees.by_layer(trees.mean, weights)),
            raised_share=jnp.zeros(()),
            num_refreshes=jnp.zeros((), jnp.int32),
            num_resets=jnp.zeros((), jnp.int32),
        )

    def noise(self, state: LangevinState) -> Weights:
        """ξ of the next step."""
        return trees.normal_like(stream_key(state.key, Stream.NOISE), state.weights, state.step)

    def pack(self, state: LangevinState, dataset: Dataset) -> LangevinState:
        """Weights, momenta, masses and 𝒱 as a vector each, where they fit and are not spread over devices."""
        parts = {name: getattr(state, name) for name in PER_WEIGHT}
        if dataset.mesh is not None or not flat.fits(*parts.values()):
            return state
        packed: dict[str, Any] = {name: flat.pack(part) for name, part in parts.items()}
        return state._replace(**packed)

    def unpack(self, state: LangevinState) -> LangevinState:
        """Tensors again."""
        return state._replace(**{name: flat.unpack(getattr(state, name)) for name in PER_WEIGHT})

    def step(self, state: LangevinState, dataset: Dataset) -> LangevinState:
        """eq:PseudoLangevinIntegrator, with a batch and noise of its own."""
        key, drawn = key_for(state.key, Stream.STEP, state.step), self.with_batch(state, dataset)
        weights, momentum = integrator.step(
            state.weights,
            state.half_step_momentum,
            lambda w: flat.pack_like(w, self.oracle(key, flat.unpack(w), drawn)),
            self.noise(state),
            state.masses,
            state.gradient_variance,
            state.temperature,
            **self._dynamics,
        )
        return state._replace(weights=weights, half_step_momentum=momentum, step=state.step + 1)

    def next_refresh(self, state: LangevinState) -> Array:
        """When the interval since the last measurement will have passed."""
        return state.next_refresh

    def refresh(self, state: LangevinState, dataset: Dataset) -> LangevinState:
        """Measure 𝒱 again; raise masses that have become too light, or start masses and momenta anew."""
        control = self.control
        assert control is not None
        variance_key, momentum_key, reset_key = jax.random.split(key_for(state.key, Stream.REFRESH, state.step), 3)
        measured = self._measure_variance(variance_key, state.weights, dataset, control)
        variance = masses.by_group(jnp.mean, measured, control.masses_per)
        stale_heat = self._stale_heat(state, variance)
        state = self._adopt_variance(state, variance, control)
        warming_up = state.num_refreshes <= control.warmup_refreshes
        state = state._replace(stale_heat=jnp.where(warming_up, 0.0, stale_heat))
        answered = self._guarded(measured, control) if control.control_masses else state.gradient_variance
        ratios = masses.temperature_ratios(answered, state.masses, state.temperature, **self._dynamics)
        state = state._replace(peak_ratio=trees.largest(ratios))
        if not control.control_masses:
            return state

        reset = warming_up | jax.random.bernoulli(reset_key, control.reset_probability)
        excess = jax.tree.map(lambda r: r / control.max_temperature_ratio, ratios)
        raised = jax.tree.map(lambda m, x: m * jnp.maximum(x, 1.0), state.masses, excess)
        nominal = self._nominal_masses(measured, state.weights, state.temperature, control)
        mass = trees.select(reset, nominal, raised)
        fresh = self._draw_momentum(
            momentum_key, state.weights, mass, state.gradient_variance, state.temperature, dataset
        )
        momentum = jax.tree.map(
            lambda x, new, old: jnp.where(reset | (x > 1), new, old), excess, fresh, state.half_step_momentum
        )
        return state._replace(
            masses=mass,
            half_step_momentum=momentum,
            raised_share=jnp.where(reset, 0.0, trees.mean(jax.tree.map(lambda x: (x > 1).astype(x.dtype), excess))),
            num_resets=state.num_resets + reset,
        )

    def measure(self, state: LangevinState, exact_gradient: Weights) -> Measurements:
        """Kinetic temperature, temperature ratios, gradient variance."""
        momentum = integrator.full_step(state.half_step_momentum, exact_gradient, self.time_step)
        measurements = {"kinetic_temperature": integrator.kinetic_temperature(momentum, state.masses)}
        if self.control is None:
            return measurements
        ratios = masses.temperature_ratios(state.gradient_variance, state.masses, state.temperature, **self._dynamics)
        per_weight = jax.tree.map(lambda v, w: jnp.broadcast_to(v, w.shape), state.gradient_variance, state.weights)
        if not self.control.control_masses:
            measurements["clipped_share"] = self._clipped_share(ratios)
        return measurements | {
            "temperature_ratio": trees.quantiles(ratios, RATIO_QUANTILES),
            "max_temperature_ratio": trees.largest(ratios),
            "peak_temperature_ratio": state.peak_ratio,
            "stale_heat": state.stale_heat,
            "gradient_variance": trees.by_layer(trees.mean, per_weight),
            "raised_share": state.raised_share,
            "refresh_interval": state.next_refresh - state.last_refresh,
            "num_resets": state.num_resets,
        }

    def _measure_variance(self, key: Key, weights: Weights, dataset: Dataset, control: NoiseControl) -> Weights:
        if control.variance_from == "examples" or (control.variance_from == "auto" and self.potential.layered):
            return moments.variance(
                self.potential,
                key,
                weights,
                dataset,
                batch_size=control.batch_size,
                num_examples=control.variance_examples,
                chunk_size=DEFAULT_CHUNK_SIZE,
            )
        return noise.from_minibatches(
            self.oracle,
            key,
            weights,
            dataset,
            block_size=control.variance_block,
            max_batches=control.variance_max_batches,
            tolerance=control.variance_tolerance,
        ).variance

    def _adopt_variance(self, state: LangevinState, variance: Weights, control: NoiseControl) -> LangevinState:
        """Put a new 𝒱 in force and set the time of the next measurement: later as long as measurements agree.

        While warming up, the interval doubles from one measurement to the next. Afterwards agreement is judged on the
        mean 𝒱 of each tensor: single components carry the statistical error of the estimate, of the order of the
        tolerance itself.
        """
        old, new = noise.tensor_means(state.gradient_variance), noise.tensor_means(variance)
        longest = max(1, control.max_refresh_interval // control.refresh_every)
        longer = jnp.minimum(state.refresh_multiple + 1, longest)
        multiple = jnp.where(noise.agree(old, new, control.refresh_tolerance), longer, 1)
        num_refreshes = state.num_refreshes + 1
        warming_up = num_refreshes <= control.warmup_refreshes
        multiple = jnp.where(warming_up, 1, multiple)
        num_ticks = jnp.where(
            warming_up,
            jnp.minimum(2 ** jnp.minimum(num_refreshes, control.warmup_refreshes), control.ticks),
            multiple * control.ticks,
        )
        return state._replace(
            gradient_variance=variance,
            refresh_multiple=multiple,
            last_refresh=state.step,
            next_refresh=state.step + num_ticks * control.tick,
            num_refreshes=num_refreshes,
        )

    def _clipped_share(self, ratios: Weights) -> Array:
        """Share of the weights with 𝒯_i > 1/(1 + c1²), that is (1 − c1⁴)·M·T < ((1 + c1²)·δt/2)²·𝒱_i.

        Their mini-batch noise alone is hotter than T: what is to be injected would be negative, and is clipped at none.
        """
        limit = (1 + RATIO_ROUNDING) / (1 + self.momentum_retention**2)
        return trees.mean(jax.tree.map(lambda r: (r > limit).astype(r.dtype), ratios))

    def _stale_heat(self, state: LangevinState, variance: Weights) -> Array:
        """(1 + c1²)·⟨max(𝒯_i[new 𝒱] − 𝒯_i[old 𝒱], 0)⟩ of each layer, with the masses in force.

        Noise that grew since 𝒱 was measured heats its weight by that much. Where both 𝒱 are
        estimates from n mini-batches, 0.56·(1 + c1²)·𝒯·√(2/n) of it is chance: 0.1 % at 𝒯 = 0.01 and n = 200.
        """
        new, old = (
            masses.temperature_ratios(v, state.masses, state.temperature, **self._dynamics)
            for v in (variance, state.gradient_variance)
        )
        growth = jax.tree.map(
            lambda a, b, w: jnp.broadcast_to(jnp.maximum(a - b, 0.0), w.shape), new, old, state.weights
        )
        return (1 + self.momentum_retention**2) * trees.by_layer(trees.mean, growth)

    def _guarded(self, variance: Weights, control: NoiseControl) -> Weights:
        """The variance that masses answer to: floored, and that of the noisiest weight where several share a mass."""
        return masses.by_group(jnp.max, masses.floor_variance(variance, control.mass_floor), control.masses_per)

    def _nominal_masses(
        self, variance: Weights, weights: Weights, temperature: Array, control: NoiseControl
    ) -> Weights:
        nominal = masses.from_noise(
            self._guarded(variance, control), temperature, control.temperature_ratio, **self._dynamics
        )
        stiffness = self.potential.stiffness(weights)
        minimum = masses.stable_minimum(stiffness, self.time_step, control.max_regularizer_frequency)
        return masses.at_least(nominal, minimum)

    def _draw_momentum(
        self,
        key: Key,
        weights: Weights,
        mass: Weights,
        variance: Weights,
        temperature: Array,
        dataset: Dataset,
    ) -> Weights:
        """Maxwell–Boltzmann momenta, taken half a step forward."""
        momentum_key, gradient_key, noise_key = jax.random.split(key, 3)
        momentum = integrator.maxwell_boltzmann(trees.normal_like(momentum_key, weights), mass, temperature)
        gradient = self.oracle(gradient_key, weights, dataset)
        xi = trees.normal_like(noise_key, weights)
        return integrator.half_step(momentum, gradient, xi, mass, variance, temperature, **self._dynamics)
