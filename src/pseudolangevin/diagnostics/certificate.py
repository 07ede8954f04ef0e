"""The certificate: evidence that the chains of a run sample exp(−U/T), line by line.

To add a line, write a function of a `Subject` that yields measurements, and add one row to `LINES`. A function may also
yield a string: a note on what could not be examined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import numpy as np
import xarray as xr

from .. import _trees as trees
from .._checks import check_integer, check_interval, check_positive
from ..chains import Result
from ..samplers.base import Status
from . import noise as minibatch
from . import verdicts
from .averages import Floats, average, chains_at, drift, effective_samples, healthy_chains, kept, rhat
from .ensemble import two_temperature_check
from .verdicts import Certificate, Measurement, Rule, RunLength, consistent, enough, judge, within_tolerance


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
        unused = [] if self.observes_everything else ["virial_temperature", "layer_virial_temperature"]
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
    def healthy(self) -> bool:
        """Whether the chain, or any of the chains, did not fail."""
        return bool(np.any(self.run.healthy[self.position, slice(None) if self.chain is None else self.chain]))

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


Measured: TypeAlias = Iterator[Measurement | str]


def _status(chain: Subject, variable: str) -> Measured:
    status = Status(int(chain.run.result.trace["status"].values[chain.position, chain.chain, -1]))
    expected = status if status.healthy else Status.RUNNING
    yield Measurement(float(status), 0.0, float(expected), 0.0, remedy=status.explanation)


def _mean(values: Floats, tolerance: float, remedy: str, name: str = "") -> Measurement:
    """Return the mean of draws that should be 1."""
    mean, error, samples = average(values)
    number = partial(Measurement, effective_samples=samples, num_draws=len(values), remedy=remedy)
    return number(mean, error, 1.0, tolerance, name=name)


def _kinetic_temperature(chain: Subject, variable: str) -> Measured:
    remedy = (
        "momenta are not at T: the current gradient variance is not that of the mini-batch noise, or the temperature "
        "ratio or the time step is too large; lower temperature_ratio or refresh_every"
    )
    if chain.temperature is not None:
        yield _mean(chain.values(variable) / chain.temperature, chain.run.tolerance, remedy)


def _virial_temperature(chain: Subject, variable: str) -> Measured:
    remedy = "weights are not at T: not equilibrated, heated by mini-batch noise, or the gradient is wrong"
    if chain.temperature is not None:
        yield _mean(chain.values(variable) / chain.temperature, chain.run.tolerance, remedy)
        names = chain.run.retained["layer"].values
        layers = chain.values("layer_virial_temperature").T / chain.temperature
        for name, values in zip(names, layers, strict=True) if len(names) > 1 else ():
            yield _mean(values, chain.run.layer_tolerance, remedy, str(name))


def _temperature_ratio(chain: Subject, variable: str) -> Measured:
    """Current ratios against the largest allowed one; ratios found by refreshes against 1/(1 + c1²)."""
    limit = 1 / (1 + chain.momentum_retention**2)
    allowed = min(getattr(chain.run.result.sampler, "ratio_limit", math.inf), limit)
    quantiles = chain.values(variable)
    low, middle, high = np.median(quantiles, axis=0)[[0, quantiles.shape[1] // 2, -1]]
    comment = f"5 % of the ratios are below {low:.2g}, half below {middle:.2g}, 95 % below {high:.2g}"
    remedy = f"masses are too small for the noise: ratios may not exceed {allowed:.3g}; raise the masses or batch_size"
    current = partial(Measurement, standard_error=0.0, expected=allowed, tolerance=1e-3 * allowed, side="above")
    yield current(float(quantiles[:, -1].max()), name="95 %", comment=comment, remedy=remedy)
    yield current(float(chain.values("max_temperature_ratio").max()), name="largest", remedy=remedy)
    # One unit that becomes active between refreshes causes a high peak; what counts is the excess temperature.
    peak = float(chain.values("peak_temperature_ratio").max())
    remedy = f"between refreshes a ratio exceeded 1/(1+c1²) = {limit:.3g}; lower refresh_every or raise mass_floor"
    yield Measurement(peak, 0.0, limit, 1e-3 * limit, "above", name="peak", remedy=remedy, required=False)


def _clipped_noise(chain: Subject, variable: str) -> Measured:
    value = float(chain.values(variable).max())
    remedy = (
        f"the mini-batch noise of {value:.3g} of the weights is alone hotter than T, temperature ratio > 1/(1+c1²): no "
        "noise was injected there, and they are too hot; lower time_step or raise batch_size"
    )
    yield Measurement(value, 0.0, 0.0, 0.0, "above", remedy=remedy)


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
    yield Measurement(everywhere, 0.0, 0.0, chain.run.tolerance, "above", remedy=remedy)
    if len(sizes) > 1:
        number = partial(Measurement, remedy=remedy, comment=f"layer {chain.run.retained['layer'].values[worst]}")
        highest = float(excess[:, worst].max())
        yield number(highest, 0.0, 0.0, chain.run.layer_tolerance, "above", name="worst layer")


def _stationarity(chain: Subject, variable: str) -> Measured:
    """Change of U in units of N·T/2, or relative change of |w|², from the first third of the draws to the last.

    An error is known beforehand: a change far beyond the thermal fluctuations is relaxation, however few and smooth the
    draws. The variance of U is T² times the heat capacity, N/2 for independent oscillators. With k = λ/N the curvature
    of the regulariser (the smallest, where groups differ), the variance of |w|² is at most 4·⟨|w|²⟩·T/k where the loss
    is convex (Brascamp and Lieb), twice that of N weights without a loss. Both are multiplied by 4, for other losses.
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
    number = partial(
        Measurement, effective_samples=samples, num_draws=len(values), known_error=known_error, remedy=remedy
    )
    yield number(change, error, 0.0, tolerance, settles=True)


def _acceptance(chain: Subject, variable: str) -> Measured:
    value = float(chain.values(variable)[-1])  # the trace holds the share since the warm-up
    steps = np.asarray(chain.run.retained["step"].values)
    num_moves = max(1.0, float(steps[-1] - steps[0]))
    error = math.sqrt(max(value * (1 - value), 1 / num_moves) / num_moves)
    remedy = "moves are rejected too often for the averages to be trusted; shorten the time step"
    yield Measurement(value, error, 0.2, 0.0, "below", num_draws=len(steps), remedy=remedy)


def _misplaced_energy(chain: Subject, variable: str) -> Measured:
    """Energy in the wrong components: over all of them, and in the layer where it is largest."""
    draws, found = chain.noise, {}
    for layer in np.unique(draws.layers):
        chosen = draws.layers == layer
        share = minibatch.misplaced_energy(draws.noise[:, chosen], draws.ratios[chosen], chain.momentum_retention)
        found[draws.layer_names[layer]] = share
    everywhere = minibatch.misplaced_energy(draws.noise, draws.ratios, chain.momentum_retention)
    remedy = "the subtracted variance is wrong in some components; lower refresh_every, or variance_tolerance"
    number = partial(Measurement, effective_samples=min(20, len(draws.noise)), remedy=remedy)
    yield number(*everywhere, 0.0, chain.run.tolerance, "above")
    if len(found) > 1:
        worst = max(found, key=lambda name: found[name][0])
        number = partial(number, name="worst layer", comment=f"layer {worst}")
        yield number(*found[worst], 0.0, chain.run.layer_tolerance, "above")


def _ks_shape(chain: Subject, variable: str) -> Measured:
    remedy = "the noise is not Gaussian: batches are small; raise batch_size"
    yield _ks_fraction(chain, minibatch.ks_shape_fraction, remedy)


def _ks_scaled(chain: Subject, variable: str) -> Measured:
    remedy = "the noise does not have the current variance; see misplaced energy for the consequences"
    yield replace(_ks_fraction(chain, minibatch.ks_fraction, remedy), required=False)


def _ks_fraction(chain: Subject, test: Callable[[Floats], float], remedy: str) -> Measurement:
    """Return the share of Kolmogorov–Smirnov tests with p > 0.05, 0.95 for Gaussian noise.

    A test has 250 draws, as in the paper; more would find deviations from a normal distribution that do not matter.
    Components share their mini-batches, so as many tests count as there are independent components. The variance is
    that of the expected fraction, or of the measured one if that is larger.
    """
    noise, num_silent = chain.noise.noise, chain.noise.num_silent
    sets = np.array_split(noise, max(1, len(noise) // 250))
    fraction = float(np.mean([test(part) for part in sets]))
    variance = max(0.95 * 0.05, fraction * (1 - fraction))
    error = math.sqrt(variance / (len(sets) * chain.collective.independent_components))
    comment = f"{num_silent:,} silent components left out" if num_silent else ""
    return Measurement(fraction, error, 0.95, chain.run.ks_tolerance, "below", remedy=remedy, comment=comment)


def _noise_excess(chain: Subject, variable: str) -> Measured:
    squares = chain.noise.noise**2
    excess = (1 + chain.momentum_retention**2) * np.mean(chain.noise.ratios * (squares - 1), axis=1)
    mean, error = float(excess.mean()), float(excess.std(ddof=1)) / math.sqrt(len(excess))
    remedy = "the subtracted variance differs from that of the noise; lower refresh_every or temperature_ratio"
    comment = f"variance of the noise over the current one: {squares.mean():.3f}"
    number = partial(Measurement, effective_samples=len(excess), remedy=remedy, comment=comment)
    yield number(mean, error, 0.0, chain.run.tolerance)


def _collective_share(chain: Subject, variable: str) -> Measured:
    share, error, bound, eigenvalues, _ = chain.collective
    hottest = float(chain.noise.ratios.mean()) * (float(eigenvalues[0]) if len(eigenvalues) else 1.0)
    seen = f"{len(eigenvalues)} directions seen, with temperature ratios up to {hottest:.2g}"
    remedy = "correlated mini-batch noise heats collective directions; lower temperature_ratio"
    number = partial(Measurement, upper=bound, remedy=remedy, comment=f"at most {bound:.2%} of the energy; {seen}")
    yield number(share, error, 0.0, chain.run.tolerance, "above")


def _observed_examples(group: Subject, variable: str) -> Measured:
    if group.temperature is not None and not group.run.observes_everything:
        observed, num = group.run.result.trace.attrs["observed_examples"], group.run.result.sampler.dataset.num_examples
        comment = "no virial temperature and no ensemble check: record without observe_examples"
        yield Measurement(float(observed), 0.0, float(num), 0.0, "below", comment=comment, longer=0.0)


def _retained_draws(group: Subject, variable: str) -> Measured:
    if not group.run.retained.sizes["draw"]:
        longer = group.run.warmup / group.run.length.num_steps + 1
        comment = f"all records are from the warm-up of {group.run.warmup} moves"
        yield Measurement(0.0, 0.0, 1.0, 0.0, "below", num_draws=0, longer=longer, comment=comment)


def _effective_samples(group: Subject, variable: str) -> Measured:
    chains = group.values(variable)
    found = effective_samples(chains, bulk=True)
    longer = 100 / found if found > 0 else math.inf
    yield Measurement(found, 0.0, 100, 0.0, "below", num_draws=chains.shape[1], longer=longer)


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
    if samples >= verdicts.MIN_EFFECTIVE_SAMPLES:
        # Errors from few samples are uncertain; Hotelling's bound on their ratio is an F distribution.
        statistic = float(np.sum(((means - chains.mean()) / errors) ** 2)) / freedom
        p_value = float(stats.f.sf(statistic, freedom, samples / verdicts.SAMPLES_PER_FREEDOM - 1))
    remedy = "chains disagree: each explores a region of its own; run longer"
    number = partial(Measurement, effective_samples=samples, num_draws=chains.shape[1], p_value=p_value, remedy=remedy)
    yield number(rhat(chains), 0.0, 1.0, group.run.rhat_tolerance, "above")


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
    longer = 2 * verdicts.MIN_EFFECTIVE_SAMPLES / max(1.0, min(check.num_samples))
    if not check.overlap:
        longer, apart = 0.0, f"no overlap: mean energies are {check.separation:.0f} standard deviations apart"
        comment = f"{apart}; add a temperature between, next to {first:g}: {check.suggested_temperature:.4g}"
    elif math.isfinite(check.standard_error):
        comment = f"{check.deviation:+.1f} standard errors off; {comment}"
    remedy = "the energies at the two temperatures are not both Boltzmann-distributed"
    number = partial(Measurement, required=check.overlap, comment=comment, remedy=remedy, longer=longer)
    number = partial(number, num_draws=energies.shape[1], needed_error=run.ensemble_error)
    yield number(check.ratio, check.standard_error, 1.0, run.tolerance, name=f"T = {first:g} and {second:g}")


class LineKind(NamedTuple):
    """A row of the table of lines."""

    name: str
    question: str  # what the line checks
    measure: Callable[[Subject, str], Measured]  # function of the subject and of `needs`
    needs: str = ""  # variable of the trace without which, as for failed chains, the line is left out
    per: Literal["chain", "noise", "temperature"] = "chain"  # subject; noise is drawn at a chain's final weights
    rule: Rule = within_tolerance  # rule that turns a measurement into a verdict


LINES = (
    LineKind("status", "Did the chain run to the end?", _status),
    LineKind("kinetic temperature", "Are the momenta at T?", _kinetic_temperature, "kinetic_temperature"),
    LineKind("virial temperature", "Are the weights at T, in every layer?", _virial_temperature, "virial_temperature"),
    LineKind("temperature ratio", "Are masses heavy enough for the noise?", _temperature_ratio, "temperature_ratio"),
    LineKind("clipped noise", "Is mini-batch noise alone hotter than T anywhere?", _clipped_noise, "clipped_share"),
    LineKind("stale excess temperature", "Did noise outgrow 𝒱?", _stale_variance, "stale_excess_temperature"),
    LineKind("stationarity of U", "Has U stopped drifting?", _stationarity, "potential"),
    LineKind("stationarity of |w|²", "Has |w|² stopped drifting?", _stationarity, "squared_norm"),
    LineKind("acceptance", "Are enough moves accepted?", _acceptance, "acceptance"),
    LineKind("noise, misplaced energy", "Is 𝒱 right everywhere?", _misplaced_energy, "temperature_ratio", "noise"),
    LineKind("noise, KS fraction of shape", "Is the noise Gaussian?", _ks_shape, "temperature_ratio", "noise"),
    LineKind("noise, KS fraction", "Is the noise N(0, 𝒱)?", _ks_scaled, "temperature_ratio", "noise"),
    LineKind("noise, excess temperature", "Is 𝒱 right on average?", _noise_excess, "temperature_ratio", "noise"),
    LineKind("noise, collective share", "Do correlations heat?", _collective_share, "temperature_ratio", "noise"),
    LineKind("observed examples", "Is U measured on all examples?", _observed_examples, "", "temperature", enough),
    LineKind("retained draws", "Are there draws after the warm-up?", _retained_draws, "", "temperature", enough),
    LineKind("effective samples of U", "Are there enough?", _effective_samples, "potential", "temperature", enough),
    LineKind("R-hat of U", "Do the chains agree?", _rhat, "potential", "temperature"),
    LineKind("effective samples of |w|²", "Enough?", _effective_samples, "squared_norm", "temperature", enough),
    LineKind("R-hat of |w|²", "Do the chains agree?", _rhat, "squared_norm", "temperature"),
    LineKind("ensemble", "Is U Boltzmann-distributed?", _ensemble, "potential", "temperature", consistent),
)


def _measurements(kind: LineKind, subject: Subject) -> Measured:
    """Return what one kind of line finds; nothing where it does not apply."""
    trace = subject.run.retained
    usable = subject.healthy and kind.needs in trace and trace.sizes["draw"] > 0
    if (kind.per == "temperature") != (subject.chain is None) or (kind.needs and not usable):
        return
    if kind.per == "noise" and not subject.run.noise_draws:
        yield "mini-batch noise was not examined: noise_draws = 0"
    else:
        yield from kind.measure(subject, kind.needs)


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
    rule: with 20 effective samples or more, a run without bias beyond the tolerances fails once in a hundred
    certificates, and a passed line is within its tolerance with 95 % confidence). Too few samples leave a line
    undecided, with the number of additional steps; only a drift far beyond thermal fluctuations fails earlier.

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
    found: list[tuple[LineKind, Measurement, dict[str, Any]]] = []
    notes: dict[str, None] = {}  # a set in order
    num_temperatures, num_chains = run.healthy.shape
    for position, chain in product(range(num_temperatures), [*range(num_chains), None]):
        subject = Subject(run, position, chain)
        where = {"temperature": subject.temperature, "chain": chain}
        for kind in LINES:
            for measured in _measurements(kind, subject):
                if isinstance(measured, str):
                    notes[measured] = None
                else:
                    found.append((kind, measured, where))
    # All lines that can fail by chance share the false alarms.
    num_lines = max(1, sum(m.required for kind, m, _ in found if kind.needs and kind.rule is not enough))
    lines = tuple(judge(kind.name, m, num_lines, run.length, rule=kind.rule, **where) for kind, m, where in found)
    return Certificate(lines, tuple(notes), result.sampler.name, result.num_weights, burn_in, run.length)
