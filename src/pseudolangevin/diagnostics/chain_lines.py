"""Lines of a certificate about one chain, from its trace: temperatures, temperature ratios, stationarity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from ..samplers.base import Sampler
from ..samplers.langevin_kernel import RATIO_ROUNDING, LangevinKernel
from .averages import Floats, average
from .stationarity import drift
from .verdicts import Measurement, Side

STEADY = 1.0
"""A drift smaller than this many standard deviations of the thermal fluctuations is of no consequence."""
HEAT_CAPACITY = 4.0
"""No system is expected to have a larger heat capacity than this many times that of N oscillators, N/2, nor a variance
of |w|² larger than this many times the bound for a convex loss."""
MIN_ACCEPTANCE = 0.2
"""A Metropolis sampler that accepts less than this moves too rarely for its averages to be trusted."""


@dataclass(frozen=True)
class Tolerances:
    """The bias budget; see `certificate`."""

    temperature: float
    layer: float
    ks_fraction: float
    rhat: float
    ensemble_error: float


@dataclass(frozen=True)
class Chain:
    """One chain's retained draws."""

    trace: xr.Dataset
    """Dimensions (draw, …)."""
    temperature: float | None
    index: int
    num_weights: int
    layer_sizes: tuple[int, ...]
    """Weights of each layer."""
    sampler: Sampler

    def values(self, name: str) -> Floats:
        """A variable's draws."""
        return np.asarray(self.trace[name].values, np.float64)


def chain_lines(chain: Chain, tolerances: Tolerances) -> Iterator[Measurement]:
    """Everything the trace of one chain says."""
    if chain.temperature is not None:
        yield from _temperatures(chain, chain.temperature, tolerances)
    yield from _temperature_ratios(chain, tolerances)
    yield from _stationarity(chain, tolerances)
    if "acceptance" in chain.trace:
        yield _acceptance(chain)


def _mean_line(
    chain: Chain, name: str, values: Floats, expected: float, tolerance: float, side: Side, remedy: str
) -> Measurement:
    mean = average(values)
    return Measurement(
        name,
        chain.temperature,
        chain.index,
        mean.mean,
        mean.standard_error,
        expected,
        tolerance,
        side,
        effective_samples=mean.effective_samples,
        num_draws=len(values),
        remedy=remedy,
    )


def _acceptance(chain: Chain) -> Measurement:
    """The share of accepted moves at the end of the run; the trace holds the share so far."""
    value = float(chain.values("acceptance")[-1])
    steps = chain.values("step")
    num_moves = max(1.0, float(steps[-1] - steps[0]))
    return Measurement(
        "acceptance",
        chain.temperature,
        chain.index,
        value,
        math.sqrt(max(value * (1 - value), 1 / num_moves) / num_moves),
        MIN_ACCEPTANCE,
        0.0,
        "below",
        num_draws=len(steps),
        remedy="moves are rejected too often for the averages to be trusted; shorten the time step",
    )


def _temperatures(chain: Chain, temperature: float, tolerances: Tolerances) -> Iterator[Measurement]:
    """⟨p²/M⟩/T and ⟨w·∇U⟩/(N·T), both 1 at equilibrium."""
    if "kinetic_temperature" in chain.trace:
        remedy = (
            "momenta are not at T: the noise in force differs from the mini-batch noise, or 𝒯 or the time step is too "
            "large; lower temperature_ratio or refresh_every"
        )
        kinetic = chain.values("kinetic_temperature") / temperature
        yield _mean_line(chain, "kinetic temperature", kinetic, 1.0, tolerances.temperature, "both", remedy)
    if "virial_temperature" not in chain.trace:
        return
    remedy = "weights are not at T: not equilibrated, heated by mini-batch noise, or the gradient is wrong"
    virial = chain.values("virial_temperature") / temperature
    yield _mean_line(chain, "virial temperature", virial, 1.0, tolerances.temperature, "both", remedy)
    names = [str(name) for name in chain.trace["layer"].values]
    if len(names) > 1:
        layers = chain.values("layer_virial_temperature") / temperature
        for name, values in zip(names, layers.T, strict=True):
            yield _mean_line(chain, f"virial temperature, {name}", values, 1.0, tolerances.layer, "both", remedy)


def _temperature_ratios(chain: Chain, tolerances: Tolerances) -> Iterator[Measurement]:
    """𝒯_i in force against 𝒯max; as found by refreshes against 1/(1 + c1²), where the noise alone is hotter than T."""
    kernel = chain.sampler.kernel
    if "temperature_ratio" not in chain.trace or not isinstance(kernel, LangevinKernel) or kernel.control is None:
        return
    limit = 1 / (1 + kernel.momentum_retention**2)
    allowed = min(kernel.control.max_temperature_ratio, limit)
    quantiles = chain.trace["temperature_ratio"]
    low, middle, high = (float(q) for q in quantiles.median("draw").values[[0, len(quantiles["quantile"]) // 2, -1]])
    remedy = f"masses are too small for the noise: 𝒯_i may not exceed {allowed:.3g}; raise the masses or batch_size"
    yield _limit_line(
        chain,
        "temperature ratio, 95 %",
        float(quantiles.isel(quantile=-1).max()),
        allowed,
        remedy,
        f"𝒯_i: 5 % below {low:.2g}, half below {middle:.2g}, 95 % below {high:.2g}",
    )
    largest = float(np.max(chain.values("max_temperature_ratio")))
    yield _limit_line(chain, "temperature ratio, largest", largest, allowed, remedy, "")
    peak = float(np.max(chain.values("peak_temperature_ratio")))
    # One unit that wakes up between refreshes is enough for a high peak; what counts is the heat it brings.
    remedy = f"between refreshes 𝒯_i passed 1/(1+c1²) = {limit:.3g}; lower refresh_every or raise mass_floor"
    yield replace(_limit_line(chain, "temperature ratio, peak", peak, limit, remedy, ""), required=False)
    if "clipped_share" in chain.trace:
        yield _clipped_noise(chain, limit)
    yield from _stale_heat(chain, tolerances)


def _clipped_noise(chain: Chain, limit: float) -> Measurement:
    """The largest share of weights that were too hot whatever noise was injected; none may be."""
    value = float(np.max(chain.values("clipped_share")))
    remedy = (
        f"the mini-batch noise of {value:.3g} of the weights is alone hotter than T, 𝒯_i > 1/(1+c1²) = {limit:.3g}: no "
        "noise was injected there, and they are too hot; lower time_step or raise batch_size"
    )
    return Measurement("clipped noise", chain.temperature, chain.index, value, 0.0, 0.0, 0.0, "above", remedy=remedy)


def _stale_heat(chain: Chain, tolerances: Tolerances) -> Iterator[Measurement]:
    """The largest heat that a refresh found, over all weights and in single layers."""
    heat = refreshed(chain.values("stale_heat"))
    if not len(heat):
        return
    remedy = "between refreshes the noise grew beyond the 𝒱 in force; lower refresh_every or temperature_ratio"
    everywhere = float((heat @ np.asarray(chain.layer_sizes)).max()) / sum(chain.layer_sizes)
    found = [("heat of stale 𝒱", everywhere, tolerances.temperature, "")]
    if len(chain.layer_sizes) > 1:
        worst = int(heat.max(axis=0).argmax())
        comment = f"layer {chain.trace['layer'].values[worst]}"
        found.append(("heat of stale 𝒱, worst layer", float(heat[:, worst].max()), tolerances.layer, comment))
    for name, value, tolerance, comment in found:
        yield Measurement(
            name, chain.temperature, chain.index, value, 0.0, 0.0, tolerance, "above", remedy=remedy, comment=comment
        )


def refreshed(heat: Floats) -> Floats:
    """The records (draw, layer) from the first refresh among them on: what is older belongs to discarded draws."""
    changed = np.flatnonzero((heat[1:] != heat[:-1]).any(axis=1))
    return heat[changed[0] + 1 :] if len(changed) else heat[:0]


def _limit_line(chain: Chain, name: str, value: float, limit: float, remedy: str, comment: str) -> Measurement:
    """A number without statistical error, against a limit it may not exceed."""
    return Measurement(
        name,
        chain.temperature,
        chain.index,
        value,
        0.0,
        limit,
        RATIO_ROUNDING * limit,
        "above",
        remedy=remedy,
        comment=comment,
    )


def _stationarity(chain: Chain, tolerances: Tolerances) -> Iterator[Measurement]:
    """Change of U in units of N·T/2 and relative change of |w|², from the first third of the draws to the last."""
    for variable, title in [("potential", "U"), ("squared_norm", "|w|²")]:
        values = chain.values(variable)
        unit = abs(float(values.mean()))
        known_error = _thermal_error(chain, variable, unit)
        if variable == "potential" and chain.temperature is not None:
            unit = 0.5 * chain.num_weights * chain.temperature
        moved = drift(values / unit if unit > 0 else values)
        # In a small system thermal fluctuations are larger than the tolerance, and a drift within them does not matter.
        tolerance = max(tolerances.temperature, STEADY * moved.fluctuation)
        yield Measurement(
            f"stationarity of {title}",
            chain.temperature,
            chain.index,
            moved.change,
            moved.standard_error,
            0.0,
            tolerances.temperature if math.isnan(tolerance) else tolerance,
            effective_samples=moved.effective_samples,
            num_draws=len(values),
            known_error=known_error,
            settles=True,
            remedy="the chain still drifts: run it longer, or discard more with burn_in",
        )


def _thermal_error(chain: Chain, variable: str, mean: float) -> float | None:
    """Error of the difference of two independent draws at equilibrium, at most, in units of the stationarity lines.

    A change far beyond it is relaxation, however few and smooth the draws. The variance of U is T² times the heat
    capacity, N/2 for independent oscillators. With k = λ/N the curvature of the regulariser (the smallest, where groups
    differ), the variance of |w|² is at most 4·⟨|w|²⟩·T/k where the loss is convex (Brascamp and Lieb), twice that of N
    weights that feel nothing else. Both are multiplied by `HEAT_CAPACITY`, for losses that are not.
    """
    if chain.temperature is None:
        return None
    if variable == "potential":
        return math.sqrt(2 * HEAT_CAPACITY * 2 / chain.num_weights)
    stiffness = chain.sampler.potential.smallest_stiffness(chain.num_weights)
    return math.sqrt(2 * HEAT_CAPACITY * 4 * chain.temperature / (stiffness * mean)) if stiffness * mean > 0 else None
