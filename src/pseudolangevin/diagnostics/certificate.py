"""The certificate: evidence that the chains of a run sample exp(−U/T), line by line.

To add a line, write a function of a `Subject` that yields measurements, and add it to `LINES`. A function may also
yield a string: a note on what could not be examined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

import jax
import numpy as np
import xarray as xr

from .. import _trees as trees
from .._checks import check_integer, check_interval, check_positive
from ..samplers.base import Status
from . import noise as minibatch
from .averages import Floats, average, chains_at, drift, effective_samples, healthy_chains, kept, rhat
from .ensemble import two_temperature_check
from .verdicts import MIN_EFFECTIVE_SAMPLES, Certificate, Measurement, RunLength, independent, judge

if TYPE_CHECKING:
    from ..chains import Result


@dataclass(frozen=True)
class Evidence:
    """A result, and the arguments of `certificate`."""

    result: Result
    tolerance: float
    layer_tolerance: float
    ks_tolerance: float
    rhat_tolerance: float
    ensemble_error: float
    burn_in: float
    noise_draws: int
    key: int

    @cached_property
    def retained(self) -> xr.Dataset:
        """Draws after burn-in and warm-up, without variables that no line may use."""
        trace = kept(self.result.trace, self.burn_in)
        # While the time step is adapted a Metropolis chain has no stationary distribution.
        trace = trace.isel(draw=np.asarray(trace["step"].values) > self.warmup)
        unused = [] if self.observes_everything else ["virial_temperature"]
        subtracted = getattr(self.result.sampler, "subtracted", None)
        if subtracted is not None and subtracted(self.result.states) is None:  # 𝒱 does not enter the noise
            unused += ["temperature_ratio", "stale_excess_temperature"]
        return trace.drop_vars(unused, errors="ignore")

    @property
    def warmup(self) -> int:
        """Moves during which the sampler adapts its time step."""
        return int(self.result.sampler.settings.get("warmup_moves") or 0)

    @property
    def observes_everything(self) -> bool:
        """Whether the trace was measured on the full training set, on which U is defined."""
        num_examples = self.result.sampler.dataset.num_examples
        return bool(self.result.trace.attrs.get("observed_examples", num_examples) >= num_examples)

    @cached_property
    def healthy(self) -> np.ndarray:
        """Whether each chain did not fail, (temperature, chain)."""
        return healthy_chains(self.result.trace)

    @cached_property
    def length(self) -> RunLength:
        """Length of the run."""
        trace = self.result.trace
        every = trace.attrs.get("record_every", trace["step"].values[0])
        return RunLength(trace.sizes["draw"], int(every), self.noise_draws)


Measured: TypeAlias = Iterator[Measurement | str]


@dataclass(frozen=True)
class Subject:
    """One chain, or all healthy chains at a temperature."""

    run: Evidence
    position: int  # index of the temperature
    chain: int | None  # index of the chain; None for all chains

    @property
    def temperature(self) -> float | None:
        """Temperature T; None for a sampler without temperature."""
        result = self.run.result
        return float(result.trace["temperature"].values[self.position]) if result.sampler.uses_temperature else None

    @property
    def momentum_retention(self) -> float:
        """Setting c1 of the sampler."""
        return float(self.run.result.sampler.settings["momentum_retention"])

    def values(self, name: str) -> Floats:
        """Return the retained draws of a variable: (draw, …) of one chain, or (chain, draw) of all healthy chains."""
        trace = self.run.retained
        if self.chain is None:
            return chains_at(trace[name], trace, self.position)
        return np.asarray(trace[name].isel(temperature=self.position, chain=self.chain).values, np.float64)

    @cached_property
    def noise(self) -> minibatch.NoiseDraws:
        """Mini-batch noise drawn at the chain's final weights."""
        index = self.position * self.run.healthy.shape[1] + (self.chain or 0)
        state = jax.tree.map(lambda leaf: leaf[index], self.run.result.states)
        key = jax.random.fold_in(jax.random.key(self.run.key), index)
        return minibatch.draw(self.run.result.sampler, state, key, num_draws=self.run.noise_draws)

    @cached_property
    def collective(self) -> minibatch.CollectiveNoise:
        """Collective directions of `noise`."""
        noise, ratios, _, num_noisy, *_ = self.noise
        return minibatch.collective_noise(noise, ratios, self.momentum_retention, num_components=num_noisy)

    def measurements(self) -> Measured:
        """Yield the measurements of all lines that apply, and notes."""
        trace, everyone = self.run.retained, self.chain is None
        healthy = np.any(self.run.healthy[self.position, slice(None) if everyone else self.chain])
        for kind in ("temperature",) if everyone else ("chain", "noise"):
            for measure, variable in LINES[kind]:
                if variable and not (healthy and variable in trace and trace.sizes["draw"]):
                    continue
                if kind == "noise" and not self.run.noise_draws:
                    yield "mini-batch noise was not examined: noise_draws = 0"
                else:
                    yield from measure(self, variable)


def _status(chain: Subject, variable: str) -> Measured:
    status = Status(int(chain.run.result.trace["status"].values[chain.position, chain.chain, -1]))
    expected = status if status.healthy else Status.RUNNING
    yield Measurement("status", float(status), 0.0, float(expected), 0.0, remedy=status.explanation)


def _mean(name: str, values: Floats, tolerance: float, remedy: str) -> Measurement:
    """Return the mean of draws that should be 1."""
    mean, error, samples = average(values)
    number = partial(Measurement, effective_samples=samples, num_draws=len(values), remedy=remedy)
    return number(name, mean, error, 1.0, tolerance)


def _kinetic_temperature(chain: Subject, variable: str) -> Measured:
    remedy = (
        "momenta are not at T: the current gradient variance is not that of the mini-batch noise, or the temperature "
        "ratio or the time step is too large; lower temperature_ratio or refresh_every"
    )
    if chain.temperature is not None:
        yield _mean("kinetic temperature", chain.values(variable) / chain.temperature, chain.run.tolerance, remedy)


def _virial_temperature(chain: Subject, variable: str) -> Measured:
    remedy = "weights are not at T: not equilibrated, heated by mini-batch noise, or the gradient is wrong"
    if chain.temperature is not None:
        yield _mean("virial temperature", chain.values(variable) / chain.temperature, chain.run.tolerance, remedy)
        names = chain.run.retained["layer"].values
        layers = chain.values("layer_virial_temperature").T / chain.temperature
        for name, values in zip(names, layers, strict=True) if len(names) > 1 else ():
            yield _mean(f"virial temperature, {name}", values, chain.run.layer_tolerance, remedy)


def _temperature_ratio(chain: Subject, variable: str) -> Measured:
    """Current ratios against the largest allowed one."""
    limit = 1 / (1 + chain.momentum_retention**2)
    allowed = min(getattr(chain.run.result.sampler, "ratio_limit", math.inf), limit)
    quantiles = chain.values(variable)
    low, middle, high = np.median(quantiles, axis=0)[[0, quantiles.shape[1] // 2, -1]]
    comment = f"5 % of the ratios are below {low:.2g}, half below {middle:.2g}, 95 % below {high:.2g}"
    remedy = f"masses are too small for the noise: ratios may not exceed {allowed:.3g}; raise the masses or batch_size"
    largest = {"95 %": (quantiles[:, -1], comment), "largest": (chain.values("max_temperature_ratio"), "")}
    for name, (values, words) in largest.items():
        number = partial(Measurement, side="above", remedy=remedy, comment=words)
        yield number(f"temperature ratio, {name}", float(values.max()), 0.0, allowed, 1e-3 * allowed)


def _clipped_noise(chain: Subject, variable: str) -> Measured:
    value = float(chain.values(variable).max())
    remedy = (
        f"the mini-batch noise of {value:.3g} of the weights is alone hotter than T, temperature ratio > 1/(1+c1²): no "
        "noise was injected there, and they are too hot; lower time_step or raise batch_size"
    )
    yield Measurement("clipped noise", value, 0.0, 0.0, 0.0, "above", remedy=remedy)


def _stale_variance(chain: Subject, variable: str) -> Measured:
    excess = chain.values(variable)  # (draw, layer), as found by the last refresh
    changed = np.flatnonzero((excess[1:] != excess[:-1]).any(axis=1))
    if not len(changed):
        yield "no refresh after the warm-up among the retained draws: the stale excess temperature is not known"
        return
    excess = excess[changed[0] + 1 :]  # what was found before belongs to discarded draws
    remedy = "between refreshes the noise grew beyond the current variance; lower refresh_every or temperature_ratio"
    sizes = np.array([trees.num_weights(layer) for layer in trees.layers(chain.run.result.weights).values()])
    everywhere, worst = float((excess @ sizes).max() / sizes.sum()), int(excess.max(axis=0).argmax())
    number, name = partial(Measurement, side="above", remedy=remedy), "stale excess temperature"
    yield number(name, everywhere, 0.0, 0.0, chain.run.tolerance)
    if len(sizes) > 1:
        number = partial(number, comment=f"layer {chain.run.retained['layer'].values[worst]}")
        yield number(f"{name}, worst layer", float(excess[:, worst].max()), 0.0, 0.0, chain.run.layer_tolerance)


def _stationarity(chain: Subject, variable: str) -> Measured:
    """Change of U in units of N·T/2, or relative change of |w|², from the first third of the draws to the last.

    An error is known beforehand: a change far beyond the thermal fluctuations is relaxation, however few the draws. The
    variance of U is N·T²/2 for independent oscillators. With k = λ/N the smallest curvature of the regulariser, that of
    |w|² is at most 4·⟨|w|²⟩·T/k for a convex loss (Brascamp and Lieb). Both are multiplied by 4, for other losses.
    """
    values, num_weights, known_error = chain.values(variable), chain.run.result.num_weights, math.inf
    unit = abs(float(values.mean()))
    if chain.temperature is not None and variable == "potential":
        unit, known_error = 0.5 * num_weights * chain.temperature, math.sqrt(2 * 4 * 2 / num_weights)
    elif chain.temperature is not None:
        energy = chain.run.result.sampler.potential.smallest_stiffness(num_weights) * unit
        known_error = math.sqrt(2 * 4 * 4 * chain.temperature / energy) if energy > 0 else math.inf
    change, error, fluctuation, samples = drift(values / unit if unit > 0 else values)
    # In a small system thermal fluctuations exceed the tolerance; a drift within them is acceptable.
    tolerance = float(np.fmax(chain.run.tolerance, fluctuation))
    remedy = "the chain still drifts: run it longer, or discard more with burn_in"
    number = partial(Measurement, effective_samples=samples, num_draws=len(values), known_error=known_error)
    yield number(f"stationarity of {_symbol(variable)}", change, error, 0.0, tolerance, settles=True, remedy=remedy)


def _symbol(variable: str) -> str:
    return {"potential": "U", "squared_norm": "|w|²"}[variable]


def _acceptance(chain: Subject, variable: str) -> Measured:
    value = float(chain.values(variable)[-1])  # the trace holds the share since the warm-up
    steps = np.asarray(chain.run.retained["step"].values)
    num_moves = max(1.0, float(steps[-1] - steps[0]))
    error = math.sqrt(max(value * (1 - value), 1 / num_moves) / num_moves)
    remedy = "moves are rejected too often for the averages to be trusted; shorten the time step"
    yield Measurement("acceptance", value, error, 0.2, 0.0, "below", num_draws=len(steps), remedy=remedy)


def _misplaced_energy(chain: Subject, variable: str) -> Measured:
    """Energy in the wrong components: over all of them, and in the layer where it is largest."""
    draws, name = chain.noise, "noise, misplaced energy"

    def share(chosen: np.ndarray | slice) -> tuple[float, float]:
        return minibatch.misplaced_energy(draws.noise[:, chosen], draws.ratios[chosen], chain.momentum_retention)

    found = {draws.layer_names[layer]: share(draws.layers == layer) for layer in np.unique(draws.layers)}
    remedy = "the subtracted variance is wrong in some components; lower refresh_every, or variance_tolerance"
    number = partial(Measurement, side="above", effective_samples=min(20, len(draws.noise)), remedy=remedy)
    yield number(name, *share(slice(None)), 0.0, chain.run.tolerance)
    if len(found) > 1:
        worst = max(found, key=lambda layer: found[layer][0])
        number = partial(number, comment=f"layer {worst}")
        yield number(f"{name}, worst layer", *found[worst], 0.0, chain.run.layer_tolerance)


def _gaussian_noise(chain: Subject, variable: str) -> Measured:
    """Share of Kolmogorov–Smirnov tests with p > 0.05, 0.95 for Gaussian noise.

    A test has 250 draws, as in the paper; more would find deviations from a normal distribution that do not matter.
    Components share their mini-batches, so as many tests count as there are independent components. The variance is
    that of the expected fraction, or of the measured one if that is larger.
    """
    noise, num_silent = chain.noise.noise, chain.noise.num_silent
    sets = np.array_split(noise, max(1, len(noise) // 250))
    fraction = float(np.mean([minibatch.ks_shape_fraction(part) for part in sets]))
    variance = max(0.95 * 0.05, fraction * (1 - fraction))
    error = math.sqrt(variance / (len(sets) * chain.collective.independent_components))
    comment = f"{num_silent:,} silent components left out" if num_silent else ""
    remedy = "the noise is not Gaussian: batches are small; raise batch_size"
    number = partial(Measurement, side="below", remedy=remedy, comment=comment)
    yield number("noise, KS fraction of shape", fraction, error, 0.95, chain.run.ks_tolerance)


def _noise_excess(chain: Subject, variable: str) -> Measured:
    squares = chain.noise.noise**2
    excess = (1 + chain.momentum_retention**2) * np.mean(chain.noise.ratios * (squares - 1), axis=1)
    mean, error = float(excess.mean()), float(excess.std(ddof=1)) / math.sqrt(len(excess))
    remedy = "the subtracted variance differs from that of the noise; lower refresh_every or temperature_ratio"
    comment = f"variance of the noise over the current one: {squares.mean():.3f}"
    number = partial(Measurement, effective_samples=len(excess), remedy=remedy, comment=comment)
    yield number("noise, excess temperature", mean, error, 0.0, chain.run.tolerance)


def _collective_share(chain: Subject, variable: str) -> Measured:
    share, error, bound, eigenvalues, _ = chain.collective
    hottest = float(chain.noise.ratios.mean()) * (float(eigenvalues[0]) if len(eigenvalues) else 1.0)
    seen = f"{len(eigenvalues)} directions seen, with temperature ratios up to {hottest:.2g}"
    remedy = "correlated mini-batch noise heats collective directions; lower temperature_ratio"
    number = partial(Measurement, upper=bound, remedy=remedy, comment=f"at most {bound:.2%} of the energy; {seen}")
    yield number("noise, collective share", share, error, 0.0, chain.run.tolerance, "above")


def _observed_examples(group: Subject, variable: str) -> Measured:
    if group.temperature is not None and not group.run.observes_everything:
        observed, num = group.run.result.trace.attrs["observed_examples"], group.run.result.sampler.dataset.num_examples
        comment = "no virial temperature and no ensemble check: record without observe_examples"
        number = partial(Measurement, comment=comment, longer=0.0)
        yield number("observed examples", float(observed), 0.0, float(num), 0.0, "below", "enough")


def _retained_draws(group: Subject, variable: str) -> Measured:
    if not group.run.retained.sizes["draw"]:
        longer = group.run.warmup / group.run.length.num_steps + 1
        comment = f"all records are from the warm-up of {group.run.warmup} moves"
        number = partial(Measurement, num_draws=0, longer=longer, comment=comment)
        yield number("retained draws", 0.0, 0.0, 1.0, 0.0, "below", "enough")


def _effective_samples(group: Subject, variable: str) -> Measured:
    chains = group.values(variable)
    found, name = effective_samples(chains, bulk=True), f"effective samples of {_symbol(variable)}"
    number = partial(Measurement, num_draws=chains.shape[1], longer=100 / found if found > 0 else math.inf)
    yield number(name, found, 0.0, 100, 0.0, "below", "enough")


def _rhat(group: Subject, variable: str) -> Measured:
    """R-hat, which fails only where the means of the chains differ beyond their own errors.

    A large R-hat from few samples may be chance: R-hat² − 1 is about χ²/(effective samples) for chains that agree.
    """
    from scipy import stats  # noqa: PLC0415

    chains, p_value = group.values(variable), 1.0
    if len(chains) < 2:
        yield "R-hat needs at least two chains"
        return
    means, errors, effective = np.array([average(chain) for chain in chains]).T
    samples, freedom = float(effective.min()), len(chains) - 1
    if samples >= MIN_EFFECTIVE_SAMPLES:
        # Errors from few samples are uncertain; Hotelling's bound on their ratio is an F distribution.
        statistic = float(np.sum(((means - chains.mean()) / errors) ** 2)) / freedom
        p_value = float(stats.f.sf(statistic, freedom, independent(samples) - 1))
    remedy = "chains disagree: each explores a region of its own; run longer"
    number = partial(Measurement, effective_samples=samples, num_draws=chains.shape[1], p_value=p_value, remedy=remedy)
    yield number(f"R-hat of {_symbol(variable)}", rhat(chains), 0.0, 1.0, group.run.rhat_tolerance, "above")


def _ensemble(group: Subject, variable: str) -> Measured:
    """Two-temperature check with the next higher temperature."""
    run, first = group.run, group.temperature
    if first is None or not run.observes_everything:
        return
    temperatures = run.result.trace["temperature"].values
    if len(temperatures) < 2:
        yield "the ensemble check needs two temperatures close to each other"
    order = [int(t) for t in np.argsort(temperatures) if run.healthy[t].any()]
    hotter = order[order.index(group.position) + 1 :]
    if not hotter:
        return
    second, energies = float(temperatures[hotter[0]]), group.values(variable)
    check = two_temperature_check(energies, Subject(run, hotter[0], None).values(variable), (first, second))
    comment = f"{check.num_samples[0]:.0f} and {check.num_samples[1]:.0f} independent samples"
    longer = 2 * MIN_EFFECTIVE_SAMPLES / max(1.0, min(check.num_samples))
    if not check.overlap:
        longer, apart = 0.0, f"no overlap: mean energies are {check.separation:.0f} standard deviations apart"
        comment = f"{apart}; add a temperature between, next to {first:g}: {check.suggested_temperature:.4g}"
    elif math.isfinite(check.standard_error):
        comment = f"{check.deviation:+.1f} standard errors off; {comment}"
    remedy = "the energies at the two temperatures are not both Boltzmann-distributed"
    number = partial(Measurement, required=check.overlap, comment=comment, remedy=remedy, longer=longer)
    number = partial(number, num_draws=energies.shape[1], needed_error=run.ensemble_error, rule="consistent")
    name = f"ensemble, T = {first:g} and {second:g}"
    yield number(name, check.ratio, check.standard_error, 1.0, run.tolerance)


# Functions and the variable of the trace without which, as for failed chains, their lines are left out.
LINES = {
    "chain": (
        (_status, ""),
        (_kinetic_temperature, "kinetic_temperature"),
        (_virial_temperature, "virial_temperature"),
        (_temperature_ratio, "temperature_ratio"),
        (_clipped_noise, "clipped_share"),
        (_stale_variance, "stale_excess_temperature"),
        (_stationarity, "potential"),
        (_stationarity, "squared_norm"),
        (_acceptance, "acceptance"),
    ),
    "noise": tuple(
        (measure, "temperature_ratio")
        for measure in (_misplaced_energy, _gaussian_noise, _noise_excess, _collective_share)
    ),
    "temperature": (
        (_observed_examples, ""),
        (_retained_draws, ""),
        *product((_effective_samples, _rhat), ["potential"]),
        *product((_effective_samples, _rhat), ["squared_norm"]),
        (_ensemble, "potential"),
    ),
}


def certificate(
    result: Result,
    *,
    tolerance: float = 0.03,
    layer_tolerance: float = 0.1,
    ks_tolerance: float = 0.1,
    rhat_tolerance: float = 0.05,
    ensemble_error: float = 0.07,
    burn_in: float = 0.5,
    noise_draws: int = 1_000,
    key: int = 0,
) -> Certificate:
    """Judge, with errors, whether the chains of a run sample exp(−U/T).

    Every line checks whether a bias is within a tolerance, and is passed, failed or undecided (see `verdicts` for the
    rule). Too few samples leave a line undecided, with the number of additional steps; only a drift far beyond thermal
    fluctuations fails earlier.

    A correct pseudo-Langevin run is biased: with 𝒯 = 0.01 temperatures may be off by up to 2𝒯 = 2 %, because
    correlations of the mini-batch noise are not corrected. The default tolerance of 3 % leaves room for this bias, and
    none for a temperature that is wrong by 5 %.

    Args:
        result: from `sample`.
        tolerance: bias budget on temperatures, relative: kinetic and virial temperature, excess temperature and
            misplaced energy of a wrong or stale 𝒱, energy moved by collective noise, drifts of U/(N·T/2) and of |w|².
        layer_tolerance: the same for single layers, where collective noise concentrates.
        ks_tolerance: how far below 0.95 the share of Kolmogorov–Smirnov tests of the noise with p > 0.05 may fall.
        rhat_tolerance: how far above 1 R-hat may be.
        ensemble_error: largest relative standard error of the slope of ln[P2(U)/P1(U)] with which that line passes.
        burn_in: share of the records discarded at the start of every chain.
        noise_draws: mini-batch gradients drawn at the final weights of every chain, 2 or more; 0: no lines about noise.
        key: seed of these draws.

    Example:
        >>> cert = certificate(result)  # doctest: +SKIP
        >>> print(cert.verdict, [line.name for line in cert.failed_lines])  # doctest: +SKIP
    """
    tolerances = {"tolerance": tolerance, "layer_tolerance": layer_tolerance, "ks_tolerance": ks_tolerance}
    tolerances |= {"rhat_tolerance": rhat_tolerance, "ensemble_error": ensemble_error}
    for name, value in tolerances.items():
        check_positive(name, value)
    check_interval("burn_in", burn_in, 0.0, 0.95, "it is the share of the records to discard")
    check_integer("noise_draws", noise_draws, minimum=0)
    if noise_draws == 1:
        raise ValueError("noise_draws = 1 has no spread; pass 2 or more, or 0 to leave the noise out")
    run = Evidence(result, **tolerances, burn_in=burn_in, noise_draws=noise_draws, key=key)
    found: list[tuple[Measurement, float | None, int | None]] = []
    notes: dict[str, None] = {}  # a set in order
    num_temperatures, num_chains = run.healthy.shape
    for position, chain in product(range(num_temperatures), [*range(num_chains), None]):
        subject = Subject(run, position, chain)
        for measured in subject.measurements():
            if isinstance(measured, str):
                notes[measured] = None
            else:
                found.append((measured, subject.temperature, chain))
    # All lines that can fail by chance share the false alarms.
    num_lines = max(1, sum(m.required and m.rule != "enough" and m.name != "status" for m, *_ in found))
    lines = tuple(judge(measured, num_lines, run.length, *where) for measured, *where in found)
    return Certificate(lines, tuple(notes), result.sampler.name, result.num_weights, burn_in, run.length)
