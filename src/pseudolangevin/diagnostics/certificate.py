"""The certificate: evidence that the chains of a run sample exp(−U/T), line by line.

A line is a `Measurement` that one of the functions below yields for a chain, or for all chains at a temperature. A
function may also yield a string: a note on what could not be examined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
import xarray as xr

from .. import _trees as trees
from .._checks import check_integer, check_interval, check_positive
from ..samplers.base import Status
from . import averages
from . import noise as minibatch
from .averages import Floats, average, chains_at, drift, effective_samples, healthy_chains, kept, rhat
from .ensemble import two_temperature_check
from .verdicts import Certificate, Measurement, RunLength, independent, judge

if TYPE_CHECKING:
    from ..chains import Result

Measured: TypeAlias = Iterator[Measurement | str]


@dataclass(frozen=True)
class Subject:
    """One chain, or all healthy chains at a temperature, and the arguments of `certificate`."""

    result: Result
    tolerance: float
    layer_tolerance: float
    ks_tolerance: float
    rhat_tolerance: float
    ensemble_error: float
    burn_in: float
    noise_draws: int
    key: int
    position: int = 0  # index of the temperature
    chain: int | None = None  # index of the chain; None for all chains

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

    @property
    def length(self) -> RunLength:
        """Length of the run."""
        trace = self.result.trace
        every = trace.attrs.get("record_every", trace["step"].values[0])
        return RunLength(trace.sizes["draw"], int(every), self.noise_draws)

    @property
    def temperature(self) -> float | None:
        """Temperature T; None for a sampler without temperature."""
        temperatures = self.result.trace["temperature"].values
        return float(temperatures[self.position]) if self.result.sampler.uses_temperature else None

    def has(self, name: str) -> bool:
        """Return whether there are retained draws of a variable, from chains that did not fail."""
        healthy = healthy_chains(self.result.trace)[self.position]
        usable = healthy.any() if self.chain is None else healthy[self.chain]
        return bool(usable and name in self.retained and self.retained.sizes["draw"])

    def values(self, name: str) -> Floats:
        """Return the retained draws of a variable: (draw, …) of one chain, or (chain, draw) of all healthy chains."""
        if self.chain is None:
            return chains_at(self.retained[name], self.retained, self.position)
        return np.asarray(self.retained[name].isel(temperature=self.position, chain=self.chain).values, np.float64)


def _temperatures(chain: Subject) -> Measured:
    status = Status(int(chain.result.trace["status"].values[chain.position, chain.chain, -1]))
    expected = status if status.healthy else Status.RUNNING
    yield Measurement("status", float(status), 0.0, float(expected), 0.0, remedy=status.explanation)

    def mean(name: str, values: Floats, tolerance: float, remedy: str) -> Measurement:
        value, error, samples = average(values / (chain.temperature or math.nan))
        number = partial(Measurement, effective_samples=samples, num_draws=len(values), remedy=remedy)
        return number(name, value, error, 1.0, tolerance)

    if chain.temperature is not None and chain.has("kinetic_temperature"):
        remedy = (
            "momenta are not at T: the current gradient variance is not that of the mini-batch noise, or the "
            "temperature ratio or the time step is too large; lower temperature_ratio or refresh_every"
        )
        yield mean("kinetic temperature", chain.values("kinetic_temperature"), chain.tolerance, remedy)
    if chain.temperature is not None and chain.has("virial_temperature"):
        remedy = "weights are not at T: not equilibrated, heated by mini-batch noise, or the gradient is wrong"
        yield mean("virial temperature", chain.values("virial_temperature"), chain.tolerance, remedy)
        names = chain.retained["layer"].values
        for name, values in zip(names, chain.values("layer_virial_temperature").T, strict=True):
            if len(names) > 1:
                yield mean(f"virial temperature, {name}", values, chain.layer_tolerance, remedy)


def _subtracted_variance(chain: Subject) -> Measured:
    """Current temperature ratios against the largest allowed one, and the excess temperature of a stale 𝒱."""
    exact = partial(Measurement, standard_error=0.0, side="above")
    if chain.has("temperature_ratio"):
        sampler: Any = chain.result.sampler
        allowed = min(getattr(sampler, "ratio_limit", math.inf), 1 / (1 + sampler.momentum_retention**2))
        quantiles, largest = chain.values("temperature_ratio"), chain.values("max_temperature_ratio")
        low, middle, high = np.median(quantiles, axis=0)[[0, quantiles.shape[1] // 2, -1]]
        comment = f"5 % of the ratios are below {low:.2g}, half below {middle:.2g}, 95 % below {high:.2g}"
        remedy = f"ratios may not exceed {allowed:.3g}; raise the masses or batch_size"
        remedy = f"masses are too small for the noise: {remedy}"
        ratio = partial(exact, expected=allowed, tolerance=1e-3 * allowed, remedy=remedy)
        yield ratio("temperature ratio, 95 %", float(quantiles[:, -1].max()), comment=comment)
        yield ratio("temperature ratio, largest", float(largest.max()))
    exact = partial(exact, expected=0.0)
    if chain.has("clipped_share"):
        value = float(chain.values("clipped_share").max())
        remedy = (
            f"the mini-batch noise of {value:.3g} of the weights is alone hotter than T, temperature ratio > "
            "1/(1+c1²): no noise was injected there, and they are too hot; lower time_step or raise batch_size"
        )
        yield exact("clipped noise", value, tolerance=0.0, remedy=remedy)
    if chain.has("stale_excess_temperature"):
        excess = chain.values("stale_excess_temperature")  # (draw, layer), as found by the last refresh
        changed = np.flatnonzero((excess[1:] != excess[:-1]).any(axis=1))
        if not len(changed):
            yield "no refresh after the warm-up among the retained draws: the stale excess temperature is not known"
            return
        excess = excess[changed[0] + 1 :]  # what was found before belongs to discarded draws
        remedy = (
            "between refreshes the noise grew beyond the current variance; lower refresh_every or temperature_ratio"
        )
        sizes = np.array([trees.num_weights(layer) for layer in trees.layers(chain.result.weights).values()])
        everywhere, worst = float((excess @ sizes).max() / sizes.sum()), int(excess.max(axis=0).argmax())
        yield exact("stale excess temperature", everywhere, tolerance=chain.tolerance, remedy=remedy)
        if len(sizes) > 1:
            layer = partial(exact, tolerance=chain.layer_tolerance, remedy=remedy)
            comment, value = f"layer {chain.retained['layer'].values[worst]}", float(excess[:, worst].max())
            yield layer("stale excess temperature, worst layer", value, comment=comment)


def _stationarity(chain: Subject) -> Measured:
    """Change of U in units of N·T/2, and relative change of |w|², from the first third of the draws to the last.

    An error is known beforehand: a change far beyond the thermal fluctuations is relaxation, however few the draws. The
    variance of U is N·T²/2 for independent oscillators. With k = λ/N the smallest curvature of the regulariser, that of
    |w|² is at most 4·⟨|w|²⟩·T/k for a convex loss (Brascamp and Lieb). Both are multiplied by 4, for other losses.
    """
    num_weights, temperature = chain.result.num_weights, chain.temperature
    for name, variable in (("U", "potential"), ("|w|²", "squared_norm")):
        if not chain.has(variable):
            continue
        values, known_error = chain.values(variable), math.inf
        unit = abs(float(values.mean()))
        if temperature is not None and variable == "potential":
            unit, known_error = 0.5 * num_weights * temperature, math.sqrt(2 * 4 * 2 / num_weights)
        elif temperature is not None:
            energy = chain.result.sampler.potential.smallest_stiffness(num_weights) * unit
            known_error = math.sqrt(2 * 4 * 4 * temperature / energy) if energy > 0 else math.inf
        change, error, fluctuation, samples = drift(values / unit if unit > 0 else values)
        # In a small system thermal fluctuations exceed the tolerance; a drift within them is acceptable.
        tolerance = float(np.fmax(chain.tolerance, fluctuation))
        remedy = "the chain still drifts: run it longer, or discard more with burn_in"
        number = partial(Measurement, effective_samples=samples, num_draws=len(values), known_error=known_error)
        yield number(f"stationarity of {name}", change, error, 0.0, tolerance, settles=True, remedy=remedy)


def _acceptance(chain: Subject) -> Measured:
    if chain.has("acceptance"):
        value = float(chain.values("acceptance")[-1])  # the trace holds the share since the warm-up
        steps = np.asarray(chain.retained["step"].values)
        num_moves = max(1.0, float(steps[-1] - steps[0]))
        error = math.sqrt(max(value * (1 - value), 1 / num_moves) / num_moves)
        remedy = "moves are rejected too often for the averages to be trusted; shorten the time step"
        yield Measurement("acceptance", value, error, 0.2, 0.0, "below", num_draws=len(steps), remedy=remedy)


def _noise(chain: Subject) -> Measured:
    """Mini-batch noise drawn at the chain's final weights."""
    if not chain.has("temperature_ratio"):
        return
    if not chain.noise_draws:
        yield "mini-batch noise was not examined: noise_draws = 0"
        return
    index = chain.position * chain.result.trace.sizes["chain"] + (chain.chain or 0)
    state = jax.tree.map(lambda leaf: leaf[index], chain.result.states)
    key = jax.random.fold_in(jax.random.key(chain.key), index)
    sampler: Any = chain.result.sampler
    draws = minibatch.draw(sampler, state, key, num_draws=chain.noise_draws)
    noise, ratios, num_silent, num_noisy, layers, layer_names = draws
    retention = float(sampler.momentum_retention)
    remedy = "the subtracted variance is wrong in some components; lower refresh_every, or variance_tolerance"
    number = partial(Measurement, side="above", effective_samples=min(20, len(noise)), remedy=remedy)
    everywhere = minibatch.misplaced_energy(noise, ratios, retention)
    yield number("noise, misplaced energy", *everywhere, 0.0, chain.tolerance)
    found = {
        layer_names[layer]: minibatch.misplaced_energy(noise[:, layers == layer], ratios[layers == layer], retention)
        for layer in np.unique(layers)
    }
    if len(found) > 1:
        worst = max(found, key=lambda layer: found[layer][0])
        number = partial(number, comment=f"layer {worst}")
        yield number("noise, misplaced energy, worst layer", *found[worst], 0.0, chain.layer_tolerance)

    # A test has 250 draws, as in the paper; more would find deviations from a normal distribution that do not matter.
    # Components share their mini-batches, so as many tests count as there are independent components. The variance is
    # that of the expected fraction, 0.95, or of the measured one if that is larger.
    collective = minibatch.collective_noise(noise, ratios, retention, num_components=num_noisy)
    sets = np.array_split(noise, max(1, len(noise) // 250))
    fraction = float(np.mean([minibatch.ks_shape_fraction(part) for part in sets]))
    variance = max(0.95 * 0.05, fraction * (1 - fraction))
    error = math.sqrt(variance / (len(sets) * collective.independent_components))
    comment = f"{num_silent:,} silent components left out" if num_silent else ""
    remedy = "the noise is not Gaussian: batches are small; raise batch_size"
    number = partial(Measurement, side="below", remedy=remedy, comment=comment)
    yield number("noise, KS fraction of shape", fraction, error, 0.95, chain.ks_tolerance)

    squares = noise**2
    excess = (1 + retention**2) * np.mean(ratios * (squares - 1), axis=1)
    mean, error = float(excess.mean()), float(excess.std(ddof=1)) / math.sqrt(len(excess))
    remedy = "the subtracted variance differs from that of the noise; lower refresh_every or temperature_ratio"
    comment = f"variance of the noise over the current one: {squares.mean():.3f}"
    number = partial(Measurement, effective_samples=len(excess), remedy=remedy, comment=comment)
    yield number("noise, excess temperature", mean, error, 0.0, chain.tolerance)

    share, error, bound, eigenvalues, _ = collective
    hottest = float(ratios.mean()) * (float(eigenvalues[0]) if len(eigenvalues) else 1.0)
    seen = f"{len(eigenvalues)} directions seen, with temperature ratios up to {hottest:.2g}"
    remedy = "correlated mini-batch noise heats collective directions; lower temperature_ratio"
    number = partial(Measurement, upper=bound, remedy=remedy, comment=f"at most {bound:.2%} of the energy; {seen}")
    yield number("noise, collective share", share, error, 0.0, chain.tolerance, "above")


def _samples(group: Subject) -> Measured:
    """Numbers of draws and of effective samples, and R-hat.

    R-hat fails only where the means of the chains differ beyond their own errors, because it is also large by chance.
    """
    from scipy import stats  # noqa: PLC0415

    enough = partial(Measurement, standard_error=0.0, tolerance=0.0, side="below", rule="enough")
    if group.temperature is not None and not group.observes_everything:
        observed, num = group.result.trace.attrs["observed_examples"], group.result.sampler.dataset.num_examples
        comment = "no virial temperature and no ensemble check: record without observe_examples"
        yield enough("observed examples", float(observed), expected=float(num), comment=comment, longer=0.0)
    if not group.retained.sizes["draw"]:
        longer = group.warmup / group.length.num_steps + 1
        comment = f"all records are from the warm-up of {group.warmup} moves"
        yield enough("retained draws", 0.0, expected=1.0, num_draws=0, longer=longer, comment=comment)
    for name, variable in (("U", "potential"), ("|w|²", "squared_norm")):
        if not group.has(variable):
            continue
        chains, p_value = group.values(variable), 1.0
        found, num_draws = effective_samples(chains, bulk=True), chains.shape[1]
        longer = 100 / found if found > 0 else math.inf
        yield enough(f"effective samples of {name}", found, expected=100, num_draws=num_draws, longer=longer)
        if len(chains) < 2:
            yield "R-hat needs at least two chains"
            continue
        means, errors, effective = np.array([average(chain) for chain in chains]).T
        samples, freedom = float(effective.min()), len(chains) - 1
        if samples >= averages.MIN_EFFECTIVE_SAMPLES:
            # Errors from few samples are uncertain; Hotelling's bound on their ratio is an F distribution.
            statistic = float(np.sum(((means - chains.mean()) / errors) ** 2)) / freedom
            p_value = float(stats.f.sf(statistic, freedom, independent(samples) - 1))
        remedy = "chains disagree: each explores a region of its own; run longer"
        number = partial(Measurement, effective_samples=samples, num_draws=num_draws, p_value=p_value, remedy=remedy)
        yield number(f"R-hat of {name}", rhat(chains), 0.0, 1.0, group.rhat_tolerance, "above")


def _ensemble(group: Subject) -> Measured:
    """Two-temperature check with the next higher temperature."""
    first, temperatures = group.temperature, group.result.trace["temperature"].values
    if first is None or not group.observes_everything or not group.has("potential"):
        return
    if len(temperatures) < 2:
        yield "the ensemble check needs two temperatures close to each other"
    hotter = [replace(group, position=int(t)) for t in np.argsort(temperatures) if temperatures[t] > first]
    hotter = [other for other in hotter if other.has("potential")]
    if not hotter:
        return
    second, energies = float(hotter[0].temperature or 0.0), group.values("potential")
    check = two_temperature_check(energies, hotter[0].values("potential"), (first, second))
    comment = f"{check.num_samples[0]:.0f} and {check.num_samples[1]:.0f} independent samples"
    longer = 2 * averages.MIN_EFFECTIVE_SAMPLES / max(1.0, min(check.num_samples))
    if not check.overlap:
        longer, apart = 0.0, f"no overlap: mean energies are {check.separation:.0f} standard deviations apart"
        comment = f"{apart}; add a temperature between, next to {first:g}: {check.suggested_temperature:.4g}"
    elif math.isfinite(check.standard_error):
        comment = f"{(check.ratio - 1) / check.standard_error:+.1f} standard errors off; {comment}"
    remedy = "the energies at the two temperatures are not both Boltzmann-distributed"
    number = partial(Measurement, rule="consistent", required=check.overlap, comment=comment, remedy=remedy)
    number = partial(number, num_draws=energies.shape[1], needed_error=group.ensemble_error, longer=longer)
    measured = (check.ratio, check.standard_error)
    yield number(f"ensemble, T = {first:g} and {second:g}", *measured, 1.0, group.tolerance)


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

    Every line checks whether a bias is within a tolerance, and is passed, failed or, with too few samples, undecided
    (see `verdicts`). A correct pseudo-Langevin run is biased: with 𝒯 = 0.01 temperatures may be off by up to 2𝒯 = 2 %,
    because correlations of the mini-batch noise are not corrected. The default tolerance leaves room for this bias.

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
    tolerances: dict[str, Any] = {
        "tolerance": tolerance,
        "layer_tolerance": layer_tolerance,
        "ks_tolerance": ks_tolerance,
    }
    tolerances |= {"rhat_tolerance": rhat_tolerance, "ensemble_error": ensemble_error}
    for name, value in tolerances.items():
        check_positive(name, value)
    check_interval("burn_in", burn_in, 0.0, 0.95, "it is the share of the records to discard")
    check_integer("noise_draws", noise_draws, minimum=0)
    if noise_draws == 1:
        raise ValueError("noise_draws = 1 has no spread; pass 2 or more, or 0 to leave the noise out")
    everything = Subject(result, **tolerances, burn_in=burn_in, noise_draws=noise_draws, key=key)
    found: list[tuple[Measurement, float | None, int | None]] = []
    notes: dict[str, None] = {}  # a set in order
    num_temperatures, num_chains = (result.trace.sizes[name] for name in ("temperature", "chain"))
    for position, chain in product(range(num_temperatures), [*range(num_chains), None]):
        subject = replace(everything, position=position, chain=chain)
        of_chain = (_temperatures, _subtracted_variance, _stationarity, _acceptance, _noise)
        measures = (_samples, _ensemble) if chain is None else of_chain
        for measured in (m for measure in measures for m in measure(subject)):
            if isinstance(measured, str):
                notes[measured] = None
            else:
                found.append((measured, subject.temperature, chain))
    # All lines that can fail by chance share the false alarms.
    num_lines = max(1, sum(m.required and m.rule != "enough" and m.name != "status" for m, *_ in found))
    length = everything.length
    lines = tuple(judge(m, num_lines, length, temperature, chain) for m, temperature, chain in found)
    return Certificate(lines, tuple(notes), result.sampler.name, result.num_weights, burn_in, length)
