"""Temperature as a tool: free energy and entropy, the evidence, and the learning coefficient.

Runs at several temperatures give Z(T) = ∫exp(−E(w)/T)·π(w)dw up to a constant. ln Z(T)/Z(T') is estimated from the
energies sampled at both temperatures by Bennett's acceptance ratio (J. Comput. Phys. 22, 245, 1976), which has no
quadrature error and the smallest variance. Then, with U the mean energy,

    entropy S = U/T + ln Z,    free energy F = U − T·S,    heat capacity C = Var(E)/T².

Errors come from the effective samples at each temperature. They take the temperatures as independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from scipy import optimize, special

from .. import _trees as trees
from .._trees import Array, Key, Weights, as_key, check_integer
from ..data.dataset import Dataset
from ..diagnostics.averages import DEFAULT_DISCARD, Average, Floats, average, average_by_temperature, chains_at, kept
from ..gradients import exact_means
from ..potential import Potential, Prior
from ..results import Result


def free_energy(results: Result | Sequence[Result], *, discard: float = DEFAULT_DISCARD) -> xr.Dataset:
    """Return energy, entropy, free energy and heat capacity of exp(−U/T) against temperature, with standard errors.

    The entropy is measured from that of the hottest temperature. `overlap` is the share of swaps with the next hotter
    temperature that replica exchange would accept; where it is below a few per cent, add a temperature between.

    Give a run at several temperatures, or several runs of the same potential. `discard` is the share of the records at
    the start of each run that is left out.
    """
    levels = _levels(results, discard)
    if len(levels) < 2:
        raise ValueError(f"results has the temperature {levels[0][0]:g} alone; free energies need at least two")
    table = _table(levels).rename(log_partition="free_energy", log_partition_error="free_energy_error")
    table["free_energy"] *= -table["temperature"]
    table["free_energy_error"] *= table["temperature"]
    return table


def evidence(
    results: Result | Sequence[Result], *, num_prior_draws: int = 10_000, key: Key | int = 0, discard: float = 0.5
) -> xr.Dataset:
    """Return ln ∫exp(−L(w)/T)·prior(w)dw against temperature: the log marginal likelihood, with its standard error.

    L is the mean loss. If it is minus a log-likelihood, `log_evidence` at T = 1/P is the log marginal likelihood of the
    P examples. For `pl.regression` with noise of standard deviation s it is that at T = s²/P, but for the constant
    −(P/2)·ln(2π·s²) per output. Minus the entropy is the information gained from the data, in nats.

    Temperatures should reach up to one whose `overlap` with the prior, which is sampled directly, is some per cent.
    Arguments are those of `free_energy`, for a potential with `prior=pl.gaussian(scale)` or `pl.laplace(scale)`, and
    the number of draws from the prior with their random key.
    """
    check_integer("num_prior_draws", num_prior_draws, minimum=4)
    levels = _levels(results, discard)
    first = results if isinstance(results, Result) else results[0]
    potential, dataset = first.sampler.potential, first.sampler.dataset
    if potential.tempered_energy != "loss" or not isinstance(potential.prior, Prior | Mapping):
        raise ValueError(
            f"prior = {potential.prior!r}, weight_decay = {potential.weight_decay!r}: the evidence needs a normalised "
            "prior that is the same at all temperatures; pass prior=pl.gaussian(scale) to the potential"
        )
    one = jax.tree.map(lambda w: w[0, 0], first.weights)
    keys = jax.random.split(as_key(key), num_prior_draws)
    losses = np.asarray(_prior_losses(dataset, keys, one, potential), np.float64).sum(axis=-1)
    table = _table([(math.inf, np.nan_to_num(losses, nan=1e30, posinf=1e30)[None]), *levels])
    names = {"log_partition": "log_evidence", "log_partition_error": "log_evidence_error"}
    return table.isel(temperature=slice(1, None)).rename(names)


@partial(jax.jit, static_argnames="potential")
def _prior_losses(dataset: Dataset, keys: Key, weights: Weights, potential: Potential) -> Array:
    """Return the mean loss of draws from the prior, each as a compensated pair."""
    table: Any = potential.prior if isinstance(potential.prior, Mapping) else {"*": potential.prior}
    priors = jax.tree.leaves(trees.looked_up(weights, table.items(), "prior"))
    parts = list(zip(trees.named_leaves(weights), priors, strict=True))

    def loss(key: Key) -> Array:
        drawn = []
        for own, ((name, leaf), prior) in zip(jax.random.split(key, len(parts)), parts, strict=True):
            draw = jax.random.normal if prior.kind == "gaussian" else jax.random.laplace
            center = -prior.deviation(name, jnp.zeros_like(leaf))
            drawn.append(prior.scale * (draw(own, leaf.shape, leaf.dtype) + center))
        sample = jax.tree.unflatten(jax.tree.structure(weights), drawn)
        return jnp.stack(exact_means([potential.per_example_loss], sample, dataset, None)[0])

    return jax.lax.map(loss, keys, batch_size=16)


def learning_coefficient(result: Result, center: Weights, *, discard: float = DEFAULT_DISCARD) -> xr.Dataset:
    """Return the local learning coefficient (⟨L⟩ − L(w*))/T against temperature, with its standard error.

    In singular learning theory T = 1/(n·β), usually with β = 1/ln n for n examples. The run starts at `center`, w*, for
    example trained weights of one chain, and should stay close: give the potential a prior around it (Lau et al.,
    arXiv 2308.12108). The coefficient is N/2 for a regular model of N weights and smaller for a singular one.
    """
    sampler = result.sampler
    sampler.potential.check(center, sampler.dataset)
    dataset = sampler.dataset.head(result.trace.attrs["observed_examples"])
    (loss,) = exact_means([sampler.potential.per_example_loss], center, dataset, None)
    lowest = float(np.float64(loss.high) + np.float64(loss.low))
    trace = kept(result.trace, discard)
    temperatures = trace["temperature"].values
    mean, error, effective = np.transpose(average_by_temperature(trace["loss"], trace))
    columns = {"learning_coefficient": (mean - lowest) / temperatures}
    columns |= {"learning_coefficient_error": error / temperatures, "effective_samples": effective}
    return _dataset(temperatures, columns)


def _levels(results: Result | Sequence[Result], discard: float) -> list[tuple[float, Floats]]:
    """Return temperatures and energies E (chain, draw) of the factor exp(−E/T), hottest first."""
    levels: list[tuple[float, Floats]] = []
    for result in [results] if isinstance(results, Result) else results:
        trace = kept(result.trace, discard)
        for index, temperature in enumerate(trace["temperature"].values):
            energies = chains_at(trace[result.sampler.potential.tempered_energy], trace, index)
            if not math.isfinite(average(energies).effective_samples):
                raise ValueError(
                    f"temperature {temperature:g} has {energies.size} finite energies in {trace.sizes['draw']} records "
                    "that are kept; at least four different ones are needed: run longer, or record more often"
                )
            levels.append((float(temperature), energies))
    if len({temperature for temperature, _ in levels}) < len(levels) or not levels:
        remedy = "pass one run at several temperatures, or runs at different ones"
        raise ValueError(f"results has the temperatures {[temperature for temperature, _ in levels]}; {remedy}")
    return sorted(levels, key=lambda level: -level[0])


def _table(levels: list[tuple[float, Floats]]) -> xr.Dataset:
    """Return the thermodynamics of levels (temperature, energies), hottest first; the entropy of the hottest is 0.

    Every estimate is a sum over levels of the mean of one series per level, so its variance is the sum of theirs.
    """
    energies = [average(draws) for _, draws in levels]
    energy, energy_error, effective = np.transpose(energies)
    temperature, overlaps = np.asarray([t for t, _ in levels]), [math.nan]
    log_z = [-energy[0] / temperature[0]]
    series = [-levels[0][1] / temperature[0]]
    errors, entropy_errors = [_error(series)], [0.0]
    for (hot_t, hot), (cold_t, cold), *averages in zip(levels, levels[1:], energies, energies[1:], strict=False):
        gap = 1 / cold_t - 1 / hot_t
        change, hot_series, cold_series = _bennett(gap * hot, gap * cold, *averages)
        series = [*series[:-1], series[-1] + hot_series, cold_series]
        log_z.append(log_z[-1] + change)
        errors.append(_error(series))
        entropy_errors.append(_error([*series[:-1], cold_series + cold / cold_t]))
        thin = [np.ravel(draws)[:: max(1, draws.size // 1000)] for draws in (hot, cold)]
        overlaps.append(np.exp(np.minimum(0.0, gap * (thin[1][:, None] - thin[0]))).mean())  # acceptance of a swap
    columns = {
        "energy": energy,
        "energy_error": energy_error,
        "log_partition": log_z,
        "log_partition_error": errors,
        "entropy": log_z + energy / temperature,
        "entropy_error": entropy_errors,
        "heat_capacity": [draws.var() / t**2 for t, draws in levels],
        "effective_samples": effective,
        "overlap": overlaps,
    }
    return _dataset(temperature, columns)


def _bennett(hot: Floats, cold: Floats, hot_average: Average, cold_average: Average) -> tuple[float, Floats, Floats]:
    """Return ln Z_cold/Z_hot, and the series whose means have its statistical error.

    With u = (1/T_cold − 1/T_hot)·E, f(x) = 1/(1 + eˣ) and effective samples n, ln Z_cold/Z_hot = D solves

        n_hot·⟨f(u + D + ln n_hot/n_cold)⟩_hot = n_cold·⟨f(−u − D − ln n_hot/n_cold)⟩_cold.
    """
    n_hot, n_cold = hot_average.effective_samples, cold_average.effective_samples
    offset = math.log(n_hot / n_cold)

    def shares(change: float) -> tuple[Floats, Floats]:
        return n_hot * special.expit(-(hot + change + offset)), n_cold * special.expit(cold + change + offset)

    def excess(change: float) -> float:
        from_hot, from_cold = shares(change)
        return float(from_hot.mean() - from_cold.mean())

    reach = 50 + abs(offset)
    low = -max(hot.max(), cold.max()) - reach
    change = optimize.brentq(excess, max(low, -1e300), -min(hot.min(), cold.min()) + reach, xtol=1e-10, maxiter=1_000)
    from_hot, from_cold = shares(change)
    slope = (from_hot * (1 - from_hot / n_hot)).mean() + (from_cold * (1 - from_cold / n_cold)).mean()
    return change, from_hot / slope, -from_cold / slope


def _error(series: Sequence[Floats]) -> float:
    return math.sqrt(sum(average(draws).standard_error ** 2 for draws in series if np.ptp(draws) > 0))


def _dataset(temperatures: Floats, columns: dict[str, Any]) -> xr.Dataset:
    series = {name: ("temperature", np.asarray(values, np.float64)) for name, values in columns.items()}
    return xr.Dataset(series, {"temperature": temperatures})
