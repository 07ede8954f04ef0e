"""The certificate: evidence that chains sample exp(−U/T), line by line.

A line is a `Measurement` that one of the functions below yields for a chain, or for all chains at a temperature. A
function may also yield a string: a note on what could not be examined. All lines ask about the samples: averages that
are known for exp(−U/T), whether the chains are stationary and agree, and whether there are enough of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from .. import _trees as trees
from .. import stein
from .._checks import check_interval, check_positive
from .._trees import Weights
from ..data.dataset import Dataset
from ..gradients import exact_sums
from ..placement import to_host
from ..potential import Potential
from ..samplers.base import HEALTHY, Status
from . import averages
from .averages import Floats, average, drift, effective_samples, kept, rhat
from .ensemble import two_temperature_check
from .verdicts import Certificate, Measurement, RunLength, independent, judge

if TYPE_CHECKING:
    from ..chains import Result

Measured: TypeAlias = Iterator[Measurement | str]


@dataclass(frozen=True)
class Tolerances:
    """Largest acceptable biases; see `certificate`."""

    tolerance: float = 0.02
    chain_tolerance: float = 0.05
    layer_tolerance: float = 0.1
    weight_tolerance: float = 0.75
    bias_tolerance: float = 0.01
    rhat_tolerance: float = 0.05
    ensemble_error: float = 0.07


@dataclass(frozen=True)
class Subject:
    """One chain, or all healthy chains at a temperature, from this package or another."""

    trace: xr.Dataset  # all draws; what depends on a reference point is that of one reference, see `_about_reference`
    blocks: Floats | None  # block means of w, g, w·g, w² after the burn-in, (temperature, chain, block, 4, weight)
    num_weights: int
    sampler: str
    settings: dict[str, Any]
    allowed: Tolerances
    burn_in: float
    has_temperature: bool = True
    observes_everything: bool = True
    stiffness: float = 0.0  # smallest curvature of the regulariser
    seconds: float = math.nan  # time that the run took
    position: int = 0  # index of the temperature
    chain: int | None = None  # index of the chain; None for all chains
    projections: ClassVar = ("direction_position", "direction_gradient")

    @property
    def warmup(self) -> int:
        """Moves during which a Metropolis chain adapts its time step, and has no stationary distribution."""
        return int(self.settings.get("warmup_moves") or 0)

    @cached_property
    def retained(self) -> xr.Dataset:
        """Draws after burn-in and warm-up."""
        trace = kept(self.trace, self.burn_in)
        return trace.isel(draw=np.asarray(trace["step"].values) > self.warmup)

    @property
    def length(self) -> RunLength:
        """Length of the run."""
        steps = self.trace["step"].values
        return RunLength(len(steps), int(steps[-1] - steps[-2] if len(steps) > 1 else steps[0]), int(steps[-1]),
                         self.seconds)  # fmt: skip

    @property
    def temperature(self) -> float | None:
        """Temperature T; None for a sampler without temperature."""
        return float(self.trace["temperature"].values[self.position]) if self.has_temperature else None

    @cached_property
    def healthy(self) -> np.ndarray:
        """Whether each chain at the temperature had not failed by the last record."""
        return np.isin(self.trace["status"].values[self.position, :, -1], HEALTHY)

    def has(self, *names: str) -> bool:
        """Return whether there are retained draws of variables, from chains that did not fail."""
        usable = self.healthy.any() if self.chain is None else self.healthy[self.chain]
        return bool(usable and all(name in self.retained for name in names) and self.retained.sizes["draw"])

    def values(self, name: str, *, referenced: bool = False) -> Floats:
        """Return the retained draws of a variable, (chain, draw, …), of this chain or of all healthy chains.

        Args:
            name: name in the trace.
            referenced: only draws that have a reference point.
        """
        trace = self.retained.isel(draw=self.retained["referenced"].values) if referenced else self.retained
        chains = np.flatnonzero(self.healthy) if self.chain is None else [self.chain]
        return np.asarray(trace[name].values[self.position][chains], np.float64)

    def mean(
        self, name: str, values: Floats, expected: float, tolerance: float, remedy: str, **more: Any
    ) -> Measurement:
        """Return the measurement of an average over (chain, draw)."""
        value, error, samples = average(values)
        counts: dict[str, Any] = {"effective_samples": samples, "num_draws": values.size, **more}
        return Measurement(name, value, error, expected, tolerance, remedy=remedy, **counts)


def _temperatures(subject: Subject) -> Measured:
    """Kinetic and virial temperatures: of one chain, to find a bad one; of all chains, to find a small bias."""
    if subject.chain is not None:
        status = Status(int(subject.trace["status"].values[subject.position, subject.chain, -1]))
        expected = status if status.healthy else Status.RUNNING
        yield Measurement("status", float(status), 0.0, float(expected), 0.0, remedy=status.explanation)
    if subject.temperature is None:
        return
    one, temperature = subject.chain is not None, subject.temperature
    remedy = "weights are not at T: not equilibrated, heated by mini-batch noise, or the gradient is wrong"
    other = "momenta are not at T: the time step or temperature_ratio is too large, or the noise is wrong"
    for name, factor, why in (("kinetic temperature", 1.5, other), ("virial temperature", 1.0, remedy)):
        variable = name.replace(" ", "_")
        if subject.has(variable):
            values = subject.values(variable, referenced=name.startswith("virial")) / temperature
            limit = subject.allowed.chain_tolerance if one else factor * subject.allowed.tolerance
            # In a small system a bias below a tenth of the thermal fluctuation of U, √(2/N) of its mean, is harmless.
            harmless = 0.1 * (2.5 if one else factor) * math.sqrt(2 / subject.num_weights)
            yield subject.mean(name, values, 1.0, max(limit, harmless), why)
    if not one and subject.has("layer_virial_temperature") and subject.trace.sizes["layer"] > 1:
        layers = subject.values("layer_virial_temperature", referenced=True) / temperature
        for index, layer in enumerate(subject.trace["layer"].values):
            limit = subject.allowed.layer_tolerance
            yield subject.mean(f"virial temperature of layers, {layer}", layers[..., index], 1.0, limit, remedy)


def _stationarity(chain: Subject) -> Measured:
    """Change of U in units of N·T/2, and relative change of |w|², from the first third of the draws to the last.

    An error is known beforehand: a change far beyond the thermal fluctuations is relaxation, however few the draws. The
    variance of U is N·T²/2 for independent oscillators. With k = λ/N the smallest curvature of the regulariser, that of
    |w|² is at most 4·⟨|w|²⟩·T/k for a convex loss (Brascamp and Lieb). Both are multiplied by 4, for other losses.
    """
    num_weights, temperature = chain.num_weights, chain.temperature
    for name, variable in (("U", "potential"), ("|w|²", "squared_norm")):
        if not chain.has(variable):
            continue
        (values,), known_error = chain.values(variable), math.inf
        unit = abs(float(values.mean()))
        if temperature is not None and variable == "potential":
            unit, known_error = 0.5 * num_weights * temperature, math.sqrt(2 * 4 * 2 / num_weights)
        elif temperature is not None:
            energy = chain.stiffness * unit
            known_error = math.sqrt(2 * 4 * 4 * temperature / energy) if energy > 0 else math.inf
        change, error, fluctuation, samples = drift(values / unit if unit > 0 else values)
        # In a small system thermal fluctuations exceed the tolerance; a drift within them is acceptable.
        tolerance = float(np.fmax(chain.allowed.chain_tolerance, fluctuation))
        remedy = "the chain still drifts: run it longer, or discard more with burn_in"
        number = partial(Measurement, effective_samples=samples, num_draws=len(values), known_error=known_error)
        yield number(f"stationarity of {name}", change, error, 0.0, tolerance, settles=True, remedy=remedy)


def _acceptance(chain: Subject) -> Measured:
    if chain.has("acceptance"):
        value = float(chain.values("acceptance")[0, -1])  # the trace holds the share since the warm-up
        steps = np.asarray(chain.retained["step"].values)
        num_moves = max(1.0, float(steps[-1] - steps[0]))
        error = math.sqrt(max(value * (1 - value), 1 / num_moves) / num_moves)
        remedy = "moves are rejected too often for the averages to be trusted; shorten the time step"
        yield Measurement("acceptance", value, error, 0.2, 0.0, "below", num_draws=len(steps), remedy=remedy)


def _extreme(name: str, draws: Floats, expected: float, tolerance: float, what: str, **more: Any) -> Measurement:
    """Return the measurement of the column of `draws` (sample, column) whose mean may be farthest from expected.

    It passes if all columns are within the tolerance with 99 % confidence each, and fails if one is not, with the
    p-value of all columns together (Bonferroni).
    """
    from scipy import stats  # noqa: PLC0415

    num, columns = draws.shape
    mean, error = draws.mean(axis=0), draws.std(axis=0, ddof=1) / math.sqrt(num)
    away = expected - mean if more.get("side") == "below" else np.abs(mean - expected)
    reach = away + stats.t.isf(0.01, num - 1) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(error > 0, (away - tolerance) / error, np.where(away > tolerance, np.inf, -np.inf))
    p_value = min(1.0, 2 * columns * float(stats.t.sf(score.max(), num - 1)))
    worst = int(score.argmax() if p_value < 1e-3 else reach.argmax())
    longer = (float(reach.max()) / tolerance) ** 2
    more |= {"bound": float(reach.max()), "p_value": p_value, "longer": max(longer, 1.1)}
    more["comment"] = f"{what} {worst}, the worst of {columns}"
    return Measurement(name, float(mean[worst]), float(error[worst]), expected, tolerance, **more)


def _single_weights(group: Subject) -> Measured:
    """Stein's identities for every weight: its mean gradient is 0, and its own virial temperature is T.

    A constant error b of the gradient of one weight moves its mean by b·σ/T standard deviations σ, so the mean
    gradient is given in units of T/σ. The sum over weights, without its noise, is the mean over pairs of blocks.
    """
    if group.temperature is None or group.blocks is None:
        return
    blocks = group.blocks[group.position][group.healthy]
    num_chains, num_blocks = blocks.shape[:2]
    if num_chains * num_blocks < 4 or num_blocks < 2 or not np.isfinite(blocks).all():
        enough = partial(Measurement, rule="enough", side="below", longer=16 / max(1, num_blocks))
        yield enough("mean of single weights", float(num_chains * num_blocks), 0.0, 4.0, 0.0, num_draws=0)
        return
    position, gradient, virial, square = np.moveaxis(blocks, 2, 0)
    deviation = np.sqrt(np.maximum(square.mean(axis=1) - position.mean(axis=1) ** 2, 0.0).mean(axis=0))
    shift = (gradient * deviation / group.temperature).reshape(num_chains * num_blocks, -1)
    remedy = "the mean gradient of a weight is not 0: its gradient is wrong, or some examples are drawn too often"
    limit = group.allowed.weight_tolerance
    shared: dict[str, Any] = {"num_draws": group.retained.sizes["draw"] * num_chains}
    yield _extreme("mean of single weights", shift, 0.0, limit, "weight", remedy=remedy, **shared)

    def squared(means: Floats) -> float:
        return float(np.mean(means.sum(axis=0) ** 2 - (means**2).sum(axis=0)) / (len(means) * (len(means) - 1)))

    left_out = [squared(np.delete(shift, index, axis=0)) for index in range(len(shift))]
    error = math.sqrt((len(shift) - 1) * float(np.var(left_out)))
    more: dict[str, Any] = {"effective_samples": max(20, len(shift)), "side": "above", **shared}
    yield Measurement(
        "squared mean of all weights", squared(shift), error, 0.0, (0.2 * limit) ** 2, remedy=remedy, **more
    )
    own = _centred(position, gradient, virial).reshape(num_chains * num_blocks, -1) / group.temperature
    remedy = "a weight is frozen or too hot: it does not move, or its noise is wrong"
    yield _extreme("temperature of single weights", own, 1.0, 1.2 * limit, "weight", remedy=remedy, **shared)


def _centred(position: Floats, gradient: Floats, products: Floats) -> Floats:
    """Return ⟨(w − w0)·g⟩ along (chain, time, …), with w0 the mean over the other half of the chain's time."""
    half = position.shape[1] // 2
    first, second = (part.mean(axis=1, keepdims=True) for part in (position[:, :half], position[:, half:]))
    centre = np.concatenate([np.repeat(second, half, 1), np.repeat(first, position.shape[1] - half, 1)], axis=1)
    return products - centre * gradient


def _directions(group: Subject) -> Measured:
    """Mean and temperature along the strongest directions of the mini-batch noise, and the bias that follows.

    Directions that are too hot raise the loss by Σ_k (T_k − T)/2. Where variances alone are subtracted, the mean
    temperature is right, so all other directions are colder by Σ_k (T_k/T − 1)/N, and so is |w|².
    """
    if group.temperature is None or not group.has(*Subject.projections):
        return
    position, gradient = (group.values(name, referenced=True) for name in Subject.projections)
    if position.shape[1] < averages.MIN_EFFECTIVE_SAMPLES:
        return
    own = _centred(position, gradient, position * gradient) / group.temperature
    deviation = position.std(axis=1, keepdims=True).mean(axis=0, keepdims=True)
    shift = gradient * deviation / group.temperature
    limit = group.allowed.weight_tolerance
    shared: dict[str, Any] = {"num_draws": position.shape[0] * position.shape[1]}
    remedy = "the mean gradient along a collective direction is not 0: some examples are drawn too often"
    yield _extreme("mean along directions", _batched(shift), 0.0, limit, "direction", remedy=remedy, **shared)
    remedy = "a collective direction is frozen: trajectories return to their start, or masses are too large"
    side: dict[str, Any] = {"side": "below", "remedy": remedy, **shared}
    yield _extreme("temperature of directions", _batched(own), 1.0, 1.2 * limit, "direction", **side)
    if group.num_weights < 4 * own.shape[2]:
        return  # the directions are all there is, or nearly
    remedy = "mini-batch noise heats collective directions; lower temperature_ratio, or use balanced_langevin"
    excess = (own - 1).sum(axis=2)
    if group.has("loss"):
        unit = 0.5 * group.temperature / abs(float(group.values("loss").mean()))
        bias = group.allowed.bias_tolerance
        yield group.mean("predicted bias of the loss", unit * excess, 0.0, bias, remedy)
    bias = group.allowed.bias_tolerance
    yield group.mean("predicted bias of |w|²", -excess / group.num_weights, 0.0, bias, remedy)


def _batched(draws: Floats, num: int = 16) -> Floats:
    """Return block means of draws (chain, draw, column), (block, column): `num` blocks in all, or one per chain."""
    per_chain = max(1, num // len(draws)) if len(draws) < num else 1
    return np.concatenate([[part.mean(axis=0) for part in np.array_split(chain, per_chain)] for chain in draws])


def _fluctuations(group: Subject) -> Measured:
    """Covariance of U and the virial, which is N·T² by Stein's identity; it sees energies that fluctuate too little."""
    if group.temperature is None or not group.has("potential", "virial_temperature"):
        return
    energy, virial = (group.values(name, referenced=True) for name in ("potential", "virial_temperature"))
    if energy.shape[1] < 4:
        return
    deviations = [values - values.mean(axis=1, keepdims=True) for values in (energy, virial)]
    products = deviations[0] * deviations[1] / group.temperature**2
    remedy = "energies do not fluctuate as at T: momenta are not refreshed, or chains are stuck"
    yield group.mean("fluctuations of U", products, 1.0, 20 * group.allowed.tolerance, remedy)


def _samples(group: Subject) -> Measured:
    """Numbers of draws and of effective samples, and R-hat.

    R-hat fails only where the means of the chains differ beyond their own errors, because it is also large by chance.
    """
    from scipy import stats  # noqa: PLC0415

    enough = partial(Measurement, standard_error=0.0, tolerance=0.0, side="below", rule="enough")
    if group.temperature is not None and not group.observes_everything:
        observed, num = group.trace.attrs["observed_examples"], group.trace.attrs["num_examples"]
        comment = "U is not known: record without observe_examples"
        yield enough("observed examples", float(observed), expected=float(num), comment=comment, longer=0.0)
    if not group.retained.sizes["draw"]:
        longer = group.warmup / group.length.num_steps + 1
        comment = f"all records are from the warm-up of {group.warmup} moves"
        yield enough("retained draws", 0.0, expected=1.0, num_draws=0, longer=longer, comment=comment)
    for name, variable in (("U", "potential"), ("|w|²", "squared_norm")):
        if not group.has(variable):
            continue
        chains, p_value = group.values(variable), 1.0
        found = effective_samples(chains, bulk=True)
        counts: dict[str, Any] = {"num_draws": chains.size}
        longer = 100 / found if found > 0 else math.inf
        measured = partial(enough, expected=100, longer=longer, effective_samples=found, **counts)
        yield measured(f"effective samples of {name}", found)
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
        test: dict[str, Any] = {"effective_samples": samples, "p_value": p_value, "remedy": remedy, **counts}
        yield Measurement(f"R-hat of {name}", rhat(chains), 0.0, 1.0, group.allowed.rhat_tolerance, "above", **test)


def _ensemble(group: Subject) -> Measured:
    """Two-temperature check with the next higher temperature."""
    first, temperatures = group.temperature, group.trace["temperature"].values
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
    number = partial(number, effective_samples=min(check.num_samples), num_draws=energies.size, longer=longer)
    measured = (check.ratio, check.standard_error)
    name = f"ensemble, T = {first:g} and {second:g}"
    yield number(name, *measured, 1.0, group.allowed.tolerance, needed_error=group.allowed.ensemble_error)


def certificate(
    result: Result | None = None,
    *,
    weights: Weights | None = None,
    gradients: Weights | None = None,
    energies: ArrayLike | None = None,
    temperature: float = 1.0,
    potential: Potential | None = None,
    dataset: Dataset | None = None,
    burn_in: float | None = None,
    **tolerances: float,
) -> Certificate:
    """Judge, with errors, whether chains sample exp(−U/T).

    Every line checks whether a bias is within a tolerance, and is passed, failed or, with too few samples, undecided
    (see `verdicts`). Chains of another library are given by their weights with `potential` and `dataset`, or by
    weights, gradients and energies of your own.

    Args:
        result: from `sample` or `load`.
        weights: samples of another library, a pytree of arrays with leading axes (chain, draw).
        gradients: ∇U at these weights, in the same form; not needed with `potential`.
        energies: U at these weights, (chain, draw); not needed with `potential`.
        temperature: temperature T of these samples; 1 for a log density −U.
        potential: U, from which gradients and energies are computed.
        dataset: training set of `potential`.
        burn_in: share of the records discarded at the start of every chain; default: 0.5 for a result, 0 for `weights`.
        tolerances: `tolerance` of the virial temperature of all chains (default 0.02; times 1.5 for the kinetic one,
            times 20 for the variance of U); `chain_tolerance` of temperatures and drifts of single chains (0.05);
            `layer_tolerance` of temperatures of layers (0.1); `weight_tolerance` of means and temperatures of single
            weights and directions, in standard deviations and in units of T (0.75); `bias_tolerance` of the predicted
            bias of loss and |w|² (0.01); `rhat_tolerance` (0.05); `ensemble_error`, the largest relative standard error
            of the slope of ln[P2(U)/P1(U)] with which that line passes (0.07).

    Example:
        >>> cert = certificate(result)  # doctest: +SKIP
        >>> print(cert.verdict, [line.name for line in cert.failed_lines])  # doctest: +SKIP
    """
    for name, value in tolerances.items():
        if name not in Tolerances.__dataclass_fields__:
            raise ValueError(f"{name} is no argument of certificate; use {', '.join(Tolerances.__dataclass_fields__)}")
        check_positive(name, value)
    burn_in = (0.0 if result is None else 0.5) if burn_in is None else burn_in
    check_interval("burn_in", burn_in, 0.0, 0.95, "it is the share of the records to discard")
    allowed = Tolerances(**tolerances)
    if result is not None:
        everything = _of_result(result, allowed, burn_in)
    else:
        check_positive("temperature", temperature)
        computed = _computed(weights, gradients, energies, potential, dataset)
        everything = _of_samples(*computed, temperature, allowed, burn_in)
    found: list[tuple[Measurement, float | None, int | None]] = []
    notes: dict[str, None] = {}  # a set in order
    num_temperatures, num_chains = everything.trace["status"].shape[:2]
    for position, chain in product(range(num_temperatures), [*range(num_chains), None]):
        subject = replace(everything, position=position, chain=chain)
        of_all = (_temperatures, _single_weights, _directions, _fluctuations, _samples, _ensemble)
        measures = of_all if chain is None else (_temperatures, _stationarity, _acceptance)
        for measured in (m for measure in measures for m in measure(subject)):
            if isinstance(measured, str):
                notes[measured] = None
            else:
                found.append((measured, subject.temperature, chain))
    # All lines that can fail by chance share the false alarms.
    num_lines = max(1, sum(m.required and m.rule != "enough" and m.name != "status" for m, *_ in found))
    independence = [m.value / m.num_draws for m, *_ in found if m.name.startswith("effective") and m.num_draws]
    length = replace(everything.length, independence=min(independence, default=0.0))
    lines = tuple(judge(m, num_lines, length, temperature, chain) for m, temperature, chain in found)
    about = (everything.sampler, everything.num_weights, burn_in, length, everything.settings)
    return Certificate(lines, tuple(notes), *about)


def _of_result(result: Result, allowed: Tolerances, burn_in: float) -> Subject:
    """Return the chains of a result, with what depends on a reference point in terms of one reference."""
    trace, sampler, blocks = result.trace, result.sampler, None
    num_examples = sampler.dataset.num_examples
    complete = bool(trace.attrs.get("observed_examples", num_examples) >= num_examples)
    trace = trace.assign_attrs(num_examples=num_examples)
    tests = getattr(result.states, "tests", ())
    if tests:
        blocks = stein.blocks(to_host(tests), burn_in)
        blocks = blocks.reshape(*trace["status"].shape[:2], *blocks.shape[1:])
    draws = trace["draw"].values + 1
    slots = stein.slots(draws, burn_in) if len(draws) else np.zeros(0, int)
    if "centred_virial_temperature" in trace:
        names = [name for name in ("centred_virial_temperature", *Subject.projections) if name in trace]
        chosen = trace[names].isel(reference=xr.DataArray(np.maximum(slots, 0), dims="draw"))
        chosen = chosen.transpose("temperature", "chain", "draw", ...)
        sizes = [trees.num_weights(layer) for layer in trees.layers(result.weights).values()]
        layers = chosen["centred_virial_temperature"]
        total = layers.dot(xr.DataArray(np.array(sizes) / sum(sizes), dims="layer"), dim="layer")
        trace = trace.drop_vars(names).assign(virial_temperature=total, layer_virial_temperature=layers)
        trace = trace.assign({name: chosen[name] for name in names[1:]})
    elif not complete:
        trace = trace.drop_vars(["virial_temperature", "layer_virial_temperature"])
    used = slots >= 0 if "centred_virial_temperature" in result.trace else slots > -2
    stiffness = sampler.potential.smallest_stiffness(result.num_weights)
    about = (result.num_weights, sampler.name, sampler.settings, allowed, burn_in, sampler.uses_temperature)
    return Subject(trace.assign_coords(referenced=("draw", used)), blocks, *about, complete, stiffness, result.seconds)


def _computed(
    weights: Weights, gradients: Weights, energies: ArrayLike | None, potential: Potential | None, dataset: Any
) -> tuple[Weights, Weights, Floats | None, Floats | None]:
    """Return weights, gradients, energies and losses of samples of another library, computed where they can be."""
    if weights is None:
        raise ValueError("neither result nor weights is given; pass a result of sample, or weights (chain, draw, …)")
    shapes = {np.shape(leaf)[:2] for leaf in jax.tree.leaves((weights, gradients))}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2 or min(next(iter(shapes))) == 0:
        raise ValueError(f"weights and gradients have leading axes {sorted(shapes)}; give all of them (chain, draw, …)")
    if potential is None:
        if gradients is None:
            raise ValueError("gradients is missing; pass ∇U at the weights, or potential and dataset to compute it")
        return weights, gradients, None if energies is None else averages.as_chains(energies), None
    if dataset is None:
        raise ValueError("dataset is missing; potential needs its training set")
    flat = jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(-1, *np.shape(leaf)[2:]), weights)
    potential.check(jax.tree.map(lambda leaf: leaf[0], flat), dataset)
    loss, regularizer, found = jax.device_get(_exact(potential, flat, dataset))
    found = jax.tree.map(lambda leaf, like: leaf.reshape(np.shape(like)), found, weights)
    loss = loss.astype(np.float64).sum(axis=0).reshape(next(iter(shapes)))
    return weights, found, loss + regularizer.reshape(loss.shape), loss


@partial(jax.jit, static_argnums=0)
def _exact(potential: Potential, weights: Weights, dataset: Dataset) -> Any:
    """Return loss, regulariser and gradient of many sets of weights."""

    def one(weights: Weights) -> Any:
        sums = exact_sums(potential, weights, dataset, None)
        return jnp.stack(sums.loss), potential.regularizer(weights), sums.gradient

    loss, regularizer, gradient = jax.lax.map(one, weights)
    return loss.T, regularizer, gradient


def _of_samples(
    weights: Weights,
    gradients: Weights,
    energies: Floats | None,
    losses: Floats | None,
    temperature: float,
    allowed: Tolerances,
    burn_in: float,
) -> Subject:
    """Return the samples of another library; the first tenth of the kept draws gives reference point and directions."""
    w, g = (np.concatenate([np.reshape(leaf, (*np.shape(leaf)[:2], -1)) for leaf in jax.tree.leaves(tree)], axis=2)
            .astype(np.float64) for tree in (weights, gradients))  # fmt: skip
    num_chains, num_draws, num = w.shape
    begin = min(math.floor(burn_in * num_draws), num_draws - 1)
    first = begin + max(1, (num_draws - begin) // 10)  # draws from here on have a reference that is not their own
    # Directions in which the gradient varies most are the stiffest ones.
    early = g[:, begin:first].reshape(-1, num)
    directions = np.linalg.svd(early - early.mean(axis=0), full_matrices=False)[2][: min(16, num, len(early) - 1)]
    away = (w - w[:, begin:first].mean(axis=1, keepdims=True)) * g
    layers = trees.layers(jax.tree.map(lambda leaf: np.empty(np.shape(leaf)[2:]), weights))
    ends = np.cumsum([trees.num_weights(layer) for layer in layers.values()])
    virials = [part.mean(axis=2) for part in np.split(away, ends[:-1], axis=2)]
    blocks = []
    for x, y in zip(w[:, begin:], g[:, begin:], strict=True):
        parts = zip(np.array_split(x, 8), np.array_split(y, 8), strict=True)
        blocks.append([np.stack([p.mean(axis=0) for p in (a, b, a * b, a * a)]) for a, b in parts])
    series = {
        "squared_norm": (w**2).sum(axis=2),
        "status": np.zeros((num_chains, num_draws), np.int32),
        "virial_temperature": away.mean(axis=2),
        "layer_virial_temperature": np.stack(virials, axis=2),
        "potential": energies,
        "loss": losses,
    }
    if len(directions):
        series |= {name: x @ directions.T for name, x in zip(Subject.projections, (w, g), strict=True)}
    given = {name: values[None] for name, values in series.items() if values is not None}
    draws = np.arange(num_draws)
    coords = {"temperature": [temperature], "chain": np.arange(num_chains), "draw": draws, "layer": list(layers)}
    extra = {"layer_virial_temperature": ("layer",)} | dict.fromkeys(Subject.projections, ("direction",))
    dims = {name: ("temperature", "chain", "draw", *extra.get(name, ())) for name in given}
    trace = xr.Dataset({name: (dims[name], values) for name, values in given.items()}, coords)
    trace = trace.assign_coords(step=("draw", draws + 1), referenced=("draw", draws >= first))
    enough = num_draws - begin >= 16
    return Subject(trace, np.asarray(blocks)[None] if enough else None, num, "samples", {}, allowed, burn_in)
