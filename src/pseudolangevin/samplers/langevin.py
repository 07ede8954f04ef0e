"""Langevin samplers: pseudo-Langevin, naive pseudo-Langevin and full-batch Langevin, three rows of one table.

| sampler             | gradient oracle | masses                                | noise subtracted |
|---------------------|-----------------|---------------------------------------|------------------|
| pseudo-Langevin     | mini-batch      | from the measured noise, kept current | yes              |
| naive pL            | mini-batch      | uniform, with a small time step       | by choice        |
| full-batch Langevin | exact           | uniform, or given                     | there is none    |

Each function here names one row and checks its numbers; `langevin_kernel` is what they share.
"""

from __future__ import annotations

import math

from .. import gradients
from ..checks import check_integer, check_interval, check_positive
from ..data import Dataset
from ..masses import Granularity, check_given, for_the_record
from ..potential import Potential
from ..types import Weights
from .base import Sampler
from .langevin_kernel import LangevinKernel, NoiseControl, VarianceSource

DEFAULT_MOMENTUM_RETENTION = math.sqrt(0.99)
"""c1 with √(1 − c1²) = 0.1, the paper's friction."""


def pseudo_langevin(
    potential: Potential,
    dataset: Dataset,
    *,
    batch_size: int | None = None,
    temperature_ratio: float = 0.01,
    max_temperature_ratio: float | None = None,
    momentum_retention: float = DEFAULT_MOMENTUM_RETENTION,
    time_step: float = 1.0,
    reset_probability: float = 0.1,
    refresh_every: int = 5_000,
    warmup_refreshes: int = 3,
    max_refresh_interval: int = 50_000,
    refresh_tolerance: float = 0.1,
    variance_from: VarianceSource = "auto",
    variance_examples: int | None = None,
    variance_block: int = 100,
    variance_max_batches: int = 1_000,
    variance_tolerance: float = 0.1,
    mass_floor: float = 0.01,
    max_regularizer_frequency: float = 0.1,
    masses_per: Granularity = "weight",
    precision: str | None = None,
) -> Sampler:
    """Pseudo-Langevin dynamics: samples exp(−U/T) with mini-batch gradients.

    Masses are chosen from the measured variance 𝒱 of the mini-batch gradient, so that the mini-batch noise is the share
    𝒯 = `temperature_ratio` of the thermal noise of every component (eq:LTRLimit); the injected noise is reduced by
    just that share (eq:PseudoLangevinIntegrator). The right distribution is reached for 𝒯 → 0, c1 → 1; the bias at
    finite 𝒯 comes from the correlations between components of the mini-batch noise, which are left uncorrected, and,
    about a third of it at 𝒯 = 0.1, from the time step.

    Every `refresh_every` steps 𝒱 is measured again: masses whose 𝒯_i exceeds `max_temperature_ratio` are raised to it
    and their momenta redrawn, or, with probability `reset_probability`, all masses and momenta start anew. As long
    as successive measurements agree the interval grows: 1×, 2×, 3×… `refresh_every`.

    Args:
        potential: U, from `classification`, `regression` or `Potential`.
        dataset: the training set.
        batch_size: examples per mini-batch, S; default 1 % of the data set. Diffusion per step grows as S,
            so the best value is what the device computes at no extra cost.
        temperature_ratio: 𝒯, the ratio that masses are set to; at most 1/(1 + c1²).
        max_temperature_ratio: 𝒯max, the ratio above which a mass is raised; default: `temperature_ratio`.
        momentum_retention: c1 = exp(−γδt/2).
        time_step: δt. Scaling it by s scales masses by s²: the dynamics are the same.
        reset_probability: ρ_reset, the chance that a refresh starts masses and momenta anew. Resets more frequent than
            the relaxation time bias the samples towards a large 𝒱; with 0, masses are only ever raised.
        refresh_every: base interval between measurements of 𝒱, in steps; rounded down to a multiple of 2ᵏ, k the number
            of warm-up refreshes.
        warmup_refreshes: k early refreshes, after 2⁻ᵏ, 2⁻ᵏ⁺¹… of `refresh_every`; each starts masses and momenta
            anew. A trained start is quiet, and 𝒱 grows by orders of magnitude while it thermalises; masses chosen
            at the start would be far too light by the first regular refresh. 0 is the paper's scheme.
        max_refresh_interval: the interval grows no further than this.
        refresh_tolerance: successive measurements agree when the standard deviation of every tensor (root of its mean
            𝒱) changed by no more than this share.
        variance_from: where 𝒱 comes from: "examples", the gradients of single examples in one pass, or "minibatches",
            the paper's way; "auto" is "examples" for feed-forward networks, where the pass is cheap. The results agree
            within the error of the second.
        variance_examples: how many examples that pass visits; default 100 000 or 20 batches, whichever is more. All of
            them, if there are no more: 𝒱 is then exact.
        variance_block: mini-batches per block when 𝒱 is measured from mini-batches.
        variance_max_batches: most mini-batches for one measurement.
        variance_tolerance: 𝒱 has converged when another block changes no component's standard deviation by more.
        mass_floor: masses are at least those of this share of the tensor's mean 𝒱. It keeps the chain finite when a
            unit that was silent for every example wakes up; a larger floor slows the diffusion of quiet weights.
        max_regularizer_frequency: masses are at least such that the regulariser alone oscillates with ω·δt ≤ this.
        masses_per: "weight", or "row" or "tensor" to save memory; a group's mass is that of its noisiest weight.
        precision: of the matrix products in mini-batch gradients; None is the device's default; on an NVIDIA GPU,
            for feed-forward classifiers of spins or bytes, kernels with bfloat16 factors.

    Example:
        >>> sampler = pseudo_langevin(potential, train, batch_size=558, temperature_ratio=0.01)  # doctest: +SKIP
        >>> result = sample(sampler, weights, temperatures=[3e-5], num_steps=20_000, key=key)  # doctest: +SKIP
    """
    if batch_size is None:
        batch_size = max(2, round(0.01 * dataset.num_examples))
    if max_temperature_ratio is None:
        max_temperature_ratio = temperature_ratio
    _check_dynamics(momentum_retention, time_step)
    _check_batch_size(batch_size, dataset)
    limit = 1 / (1 + momentum_retention**2)
    for name, ratio in [("temperature_ratio", temperature_ratio), ("max_temperature_ratio", max_temperature_ratio)]:
        check_positive(name, ratio)
        if ratio > limit:
            raise ValueError(
                f"{name} = {ratio:g} exceeds 1/(1+c1²) = {limit:.4g}, where mini-batch noise alone is hotter than T; "
                "lower it (0.01 is the paper's value); to move faster raise batch_size instead"
            )
    if max_temperature_ratio < temperature_ratio:
        raise ValueError(
            f"max_temperature_ratio = {max_temperature_ratio:g} is below temperature_ratio = {temperature_ratio:g}: "
            "every mass would be raised at once; raise the first or lower the second"
        )
    check_interval("reset_probability", reset_probability, 0, 1, "it is a probability")
    if mass_floor == 0 and not potential.holds_every_weight:
        raise ValueError(
            "mass_floor = 0 with weight_decay = 0 leaves weights without noise without a mass; "
            "keep mass_floor at 0.01 or give the potential a weight_decay"
        )
    control = NoiseControl(
        temperature_ratio=float(temperature_ratio),
        max_temperature_ratio=float(max_temperature_ratio),
        reset_probability=float(reset_probability),
        refresh_every=refresh_every,
        warmup_refreshes=warmup_refreshes,
        max_refresh_interval=max_refresh_interval,
        refresh_tolerance=refresh_tolerance,
        variance_from=variance_from,
        variance_examples=_variance_examples(variance_examples, batch_size),
        variance_block=variance_block,
        variance_max_batches=variance_max_batches,
        variance_tolerance=variance_tolerance,
        batch_size=batch_size,
        mass_floor=mass_floor,
        max_regularizer_frequency=max_regularizer_frequency,
        masses_per=masses_per,
        control_masses=True,
    )
    oracle = gradients.minibatch(potential, batch_size, precision)
    kernel = LangevinKernel(potential, oracle, momentum_retention, time_step, control=control, batch_size=batch_size)
    settings = {
        "batch_size": batch_size,
        "momentum_retention": momentum_retention,
        "time_step": time_step,
        "precision": precision,
    } | {name: value for name, value in vars(control).items() if name != "control_masses"}
    return Sampler("pseudo_langevin", kernel, potential, dataset, settings)


def naive_pseudo_langevin(
    potential: Potential,
    dataset: Dataset,
    *,
    time_step: float,
    batch_size: int | None = None,
    mass: float = 1.0,
    momentum_retention: float = DEFAULT_MOMENTUM_RETENTION,
    subtract_variance: bool = True,
    refresh_every: int = 5_000,
    max_refresh_interval: int = 50_000,
    refresh_tolerance: float = 0.1,
    variance_from: VarianceSource = "auto",
    variance_examples: int | None = None,
    variance_block: int = 100,
    variance_max_batches: int = 1_000,
    variance_tolerance: float = 0.1,
    precision: str | None = None,
) -> Sampler:
    """Mini-batch Langevin dynamics with one mass for all weights and a small time step ("naive-pL").

    It samples exp(−U/T) in the limit δt → 0 with the masses fixed; the noisiest component decides how small δt must be.
    It is the paper's point of comparison (Fig. A.1). The paper leaves open whether 𝒱 is subtracted: choose.

    Args:
        potential: U.
        dataset: the training set.
        time_step: δt.
        batch_size: examples per mini-batch; default 1 % of the data set.
        mass: M of every weight.
        momentum_retention: c1.
        subtract_variance: reduce the injected noise by 𝒱 as pseudo-Langevin does, or leave it whole.
        refresh_every: base interval between measurements of 𝒱, in steps (only where it is subtracted).
        max_refresh_interval: the interval grows no further than this.
        refresh_tolerance: see `pseudo_langevin`.
        variance_from: see `pseudo_langevin`.
        variance_examples: see `pseudo_langevin`.
        variance_block: see `pseudo_langevin`.
        variance_max_batches: see `pseudo_langevin`.
        variance_tolerance: see `pseudo_langevin`.
        precision: of the matrix products in mini-batch gradients.
    """
    if batch_size is None:
        batch_size = max(2, round(0.01 * dataset.num_examples))
    _check_dynamics(momentum_retention, time_step)
    _check_batch_size(batch_size, dataset)
    check_positive("mass", mass)
    control = None
    if subtract_variance:
        control = NoiseControl(
            temperature_ratio=math.inf,
            max_temperature_ratio=math.inf,
            reset_probability=0.0,
            refresh_every=refresh_every,
            warmup_refreshes=0,
            max_refresh_interval=max_refresh_interval,
            refresh_tolerance=refresh_tolerance,
            variance_from=variance_from,
            variance_examples=_variance_examples(variance_examples, batch_size),
            variance_block=variance_block,
            variance_max_batches=variance_max_batches,
            variance_tolerance=variance_tolerance,
            batch_size=batch_size,
            mass_floor=0.0,
            max_regularizer_frequency=1.0,
            masses_per="weight",
            control_masses=False,
        )
    oracle = gradients.minibatch(potential, batch_size, precision)
    kernel = LangevinKernel(
        potential, oracle, momentum_retention, time_step, control=control, fixed_masses=mass, batch_size=batch_size
    )
    settings = {
        "batch_size": batch_size,
        "time_step": time_step,
        "mass": mass,
        "momentum_retention": momentum_retention,
        "subtract_variance": subtract_variance,
        "refresh_every": refresh_every,
        "max_refresh_interval": max_refresh_interval,
        "refresh_tolerance": refresh_tolerance,
        "variance_from": variance_from,
        "variance_examples": _variance_examples(variance_examples, batch_size),
        "variance_block": variance_block,
        "variance_max_batches": variance_max_batches,
        "variance_tolerance": variance_tolerance,
        "precision": precision,
    }
    return Sampler("naive_pseudo_langevin", kernel, potential, dataset, settings)


def full_batch_langevin(
    potential: Potential,
    dataset: Dataset,
    *,
    time_step: float,
    masses: float | Weights = 1.0,
    momentum_retention: float = DEFAULT_MOMENTUM_RETENTION,
    chunk_size: int | None = None,
) -> Sampler:
    """Langevin dynamics with the exact gradient, integrated as by Bussi and Parrinello (eq:BussiParrinello).

    It samples exp(−U/T) for δt → 0; on a quadratic potential of frequency ω the variance of a weight is too large by
    1/(1 − (ωδt)²/4), and nothing else is wrong.

    Args:
        potential: U.
        dataset: the training set.
        time_step: δt.
        masses: one number, or a pytree shaped like the weights (for example from a pseudo-Langevin run).
        momentum_retention: c1.
        chunk_size: examples held at once; bounds memory, not the result.
    """
    _check_dynamics(momentum_retention, time_step)
    if chunk_size is not None:
        check_integer("chunk_size", chunk_size, minimum=1)
    check_given(masses)
    oracle = gradients.exact(potential, chunk_size)
    kernel = LangevinKernel(potential, oracle, momentum_retention, time_step, fixed_masses=masses)
    settings = {
        "time_step": time_step,
        "masses": for_the_record(masses),
        "momentum_retention": momentum_retention,
        "chunk_size": chunk_size,
    }
    return Sampler("full_batch_langevin", kernel, potential, dataset, settings)


def _variance_examples(variance_examples: int | None, batch_size: int) -> int:
    return max(100_000, 20 * batch_size) if variance_examples is None else variance_examples


def _check_dynamics(momentum_retention: float, time_step: float) -> None:
    check_interval(
        "momentum_retention",
        momentum_retention,
        0,
        1,
        f"it is c1 = exp(−γδt/2); the paper's is {DEFAULT_MOMENTUM_RETENTION:.5f}",
        open_ends=True,
    )
    check_positive("time_step", time_step)


def _check_batch_size(batch_size: int, dataset: Dataset) -> None:
    check_integer(
        "batch_size",
        batch_size,
        minimum=2,
        maximum=dataset.num_examples,
        remedy="for the exact gradient of the whole data set use full_batch_langevin",
    )
