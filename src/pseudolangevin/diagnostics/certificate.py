"""The certificate: evidence that chains sample exp(−U/T), line by line.

A line is a `Measurement` that one of the functions below yields for a chain, or for all chains at a temperature. A
function may also yield a string: a note on what could not be examined. All lines test the samples: averages that
are known for exp(−U/T), whether the chains are stationary and agree, and whether there are enough of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy import stats

from .. import _trees as trees
from .. import observables
from .._trees import Weights, check_interval, check_positive
from ..data.dataset import Dataset
from ..gradients import exact_sums
from ..placement import to_host
from ..potential import Potential
from ..samplers.base import HEALTHY, Status
from .averages import MIN_EFFECTIVE_SAMPLES, Floats, as_chains, average, drift, effective_samples, kept, rhat
from .verdicts import Certificate, Measurement, RunLength, independent

if TYPE_CHECKING:
    from ..chains import Result

Measured: TypeAlias = Iterator[Measurement | str]
SERIES = (("U", "potential"), ("|w|²", "squared_norm"))


@dataclass(frozen=True)
class Tolerances:
    """Largest acceptable biases."""

    tolerance: float = 0.02  # virial temperature of all chains; times 1.5 kinetic, times 15 fluctuations of U
    chain_tolerance: float = 0.05  # temperatures and drifts of single chains
    layer_tolerance: float = 0.1  # temperatures of layers
    weight_tolerance: float = 0.5  # means of weights in standard deviations; times 1.2 directions, and temperatures
    bias_tolerance: float = 0.01  # predicted biases of loss and |w|²
    rhat_tolerance: float = 0.05
    ensemble_tolerance: float = 0.2  # slope of ln[P2(U)/P1(U)]


@dataclass(frozen=True)
class Subject:
    """One chain, or all healthy chains at a temperature, from this package or another."""

    trace: xr.Dataset  # all draws; virial temperatures are about a reference point
    retained: xr.Dataset  # draws after the burn-in and the warm-up
    num_weights: int
    blocks: Floats | None = None  # block means of w, g, w·g, w², (temperature, chain, block, 4, weight)
    sampler: str = "samples"
    settings: dict[str, Any] = field(default_factory=dict)
    has_temperature: bool = True
    seconds: float = math.nan  # time that the run took
    allowed: Tolerances = Tolerances()
    position: int = 0  # index of the temperature
    chain: int | None = None  # index of the chain; None for all chains

    @property
    def temperature(self) -> float | None:
        """Temperature T; None for a sampler without temperature."""
        return float(self.trace["temperature"].values[self.position]) if self.has_temperature else None

    @property
    def chains(self) -> np.ndarray:
        """Indices of the chains that had not failed by the last record."""
        healthy = np.flatnonzero(np.isin(self.trace["status"].values[self.position, :, -1], HEALTHY))
        return healthy if self.chain is None else healthy[healthy == self.chain]

    def has(self, *names: str) -> bool:
        """Return whether there are retained draws of variables, from chains that did not fail."""
        return bool(self.chains.size and self.retained.sizes["draw"] and set(names) <= set(self.retained))

    def values(self, name: str) -> Floats:
        """Return the retained draws of a variable, (chain, draw, …), of this chain or of all healthy chains."""
        return np.asarray(self.retained[name].values[self.position][self.chains], np.float64)


def _mean(name: str, values: Floats, expected: float, tolerance: float, remedy: str) -> Measurement:
    """Return the measurement of an average over (chain, draw)."""
    value, error, count = average(values)
    return Measurement(name, value, error, expected, tolerance, remedy, effective_samples=count, num_draws=values.size)


_enough = partial(Measurement, standard_error=0.0, tolerance=0.0, side="below", enough=True)  # at least `expected`


def _temperatures(subject: Subject) -> Measured:
    """Kinetic and virial temperatures: of one chain, to find a bad one; of all chains, to find a small bias."""
    one, allowed = subject.chain is not None, subject.allowed
    if one:
        status = Status(int(subject.trace["status"].values[subject.position, subject.chain, -1]))
        expected = status if status.healthy else Status.RUNNING
        yield Measurement("status", float(status), 0.0, float(expected), 0.0, status.explanation)
    if subject.temperature is None:
        return
    remedy = "weights are not at T: not equilibrated, heated by mini-batch noise, or the gradient is wrong"
    other = "momenta are not at T: the time step or temperature_ratio is too large, or the noise is wrong"
    for name, factor, why in (("kinetic temperature", 1.5, other), ("virial temperature", 1.0, remedy)):
        if subject.has(variable := name.replace(" ", "_")):
            limit = allowed.chain_tolerance if one else factor * allowed.tolerance
            # In a small system a bias below a tenth of the thermal fluctuation of U, √(2/N) of its mean, is harmless.
            harmless = 0.1 * (2.5 if one else factor) * math.sqrt(2 / subject.num_weights)
            yield _mean(name, subject.values(variable) / subject.temperature, 1.0, max(limit, harmless), why)
    if not one and subject.has("layer_virial_temperature") and subject.trace.sizes["layer"] > 1:
        layers = np.moveaxis(subject.values("layer_virial_temperature") / subject.temperature, 2, 0)
        names, sizes = (subject.trace[name].values for name in ("layer", "layer_size"))
        for layer, size, values in zip(names, sizes, layers, strict=True):
            limit = max(allowed.layer_tolerance, 0.25 * math.sqrt(2 / size))
            yield _mean(f"virial temperature of layers, {layer}", values, 1.0, limit, remedy)


def _stationarity(chain: Subject) -> Measured:
    """Change of U in units of N·T/2, and relative change of |w|², from the first third of the draws to the last."""
    for name, variable in SERIES:
        if chain.has(variable):
            (values,) = chain.values(variable)
            unit = abs(float(values.mean()))
            if chain.temperature is not None and variable == "potential":
                unit = 0.5 * chain.num_weights * chain.temperature
            change, error, fluctuation, samples = drift(values / unit if unit > 0 else values)
            # In a small system thermal fluctuations exceed the tolerance; a drift within them is acceptable.
            tolerance = float(np.fmax(chain.allowed.chain_tolerance, fluctuation))
            remedy = "the chain still drifts: run it longer, or discard more with burn_in"
            counts: dict[str, Any] = {"effective_samples": samples, "num_draws": len(values), "settles": True}
            yield Measurement(f"stationarity of {name}", change, error, 0.0, tolerance, remedy, **counts)


def _acceptance(chain: Subject) -> Measured:
    if chain.has("acceptance"):
        value = float(chain.values("acceptance")[0, -1])  # the trace holds the share since the warm-up
        steps = chain.retained["step"].values
        num_moves = max(1.0, float(steps[-1] - steps[0]))
        error = math.sqrt(max(value * (1 - value), 1 / num_moves) / num_moves)
        remedy = "moves are rejected too often for the averages to be trusted; shorten the time step"
        yield Measurement("acceptance", value, error, 0.2, 0.0, remedy, "below", num_draws=len(steps))


def _extreme(
    name: str, draws: Floats, expected: float, tolerance: float, remedy: str, num_draws: int, side: Any = "both"
) -> Measurement:
    """Return the measurement of the column of `draws` (sample, column) whose mean may be farthest from expected.

    It passes if all columns are within the tolerance with 95 % confidence each, and fails if one is not, with the
    p-value of all columns together (Bonferroni).
    """
    num, columns = draws.shape
    mean, error = draws.mean(axis=0), draws.std(axis=0, ddof=1) / math.sqrt(num)
    away = expected - mean if side == "below" else np.abs(mean - expected)
    reach = away + stats.t.isf(0.05, num - 1) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(error > 0, (away - tolerance) / error, np.where(away > tolerance, np.inf, -np.inf))
    p_value, bound = min(1.0, 2 * columns * float(stats.t.sf(score.max(), num - 1))), float(reach.max())
    worst = int(score.argmax() if p_value < 1e-3 else reach.argmax())
    more: dict[str, Any] = {"bound": bound, "p_value": p_value, "longer": max((bound / tolerance) ** 2, 1.1)}
    more["comment"] = f"{'direction' if 'directions' in name else 'weight'} {worst}, the worst of {columns}"
    numbers = (float(mean[worst]), float(error[worst]), expected, tolerance)
    return Measurement(name, *numbers, remedy, side, num_draws=num_draws, **more)


def _single_weights(group: Subject) -> Measured:
    """Stein's identities for every weight: its mean gradient is 0, and its own virial temperature is T.

    A constant error b of the gradient of one weight moves its mean by b·σ/T standard deviations σ, so the mean
    gradient is given in units of T/σ. The sum over weights, without its noise, is the mean over pairs of blocks.
    """
    if group.temperature is None or group.blocks is None:
        return
    blocks = group.blocks[group.position][group.chains]
    num_chains, num_blocks = blocks.shape[:2]
    if (num := num_chains * num_blocks) < 4 or num_blocks < 2 or not np.isfinite(blocks).all():
        yield _enough("mean of single weights", float(num), expected=4.0, longer=16 / max(1, num_blocks), num_draws=0)
        return
    position, gradient, virial, square = np.moveaxis(blocks, 2, 0)
    deviation = np.sqrt(np.maximum(square.mean(axis=1) - position.mean(axis=1) ** 2, 0.0).mean(axis=0))
    shift = (gradient * deviation / group.temperature).reshape(num, -1)
    remedy = "the mean gradient of a weight is not 0: its gradient is wrong, or some examples are drawn too often"
    limit, num_draws = group.allowed.weight_tolerance, group.retained.sizes["draw"] * num_chains
    yield _extreme("mean of single weights", shift, 0.0, limit, remedy, num_draws)

    def squared(total: Floats, squares: Floats, num: int) -> Any:
        return np.mean(total**2 - squares, axis=-1) / (num * (num - 1))

    total, squares = shift.sum(axis=0), (shift**2).sum(axis=0)
    error = math.sqrt((num - 1) * np.var(squared(total - shift, squares - shift**2, num - 1)))  # by leaving one out
    numbers = (float(squared(total, squares, num)), error, 0.0, (0.2 * limit) ** 2)
    more: dict[str, Any] = {"effective_samples": max(20, num), "num_draws": num_draws}
    yield Measurement("squared mean of all weights", *numbers, remedy, "above", **more)
    own = (virial - _other_half(position) * gradient).reshape(num, -1) / group.temperature
    remedy = "a weight is frozen or too hot: it does not move, or its noise is wrong"
    yield _extreme("temperature of single weights", own, 1.0, 1.2 * limit, remedy, num_draws)


def _other_half(position: Floats) -> Floats:
    """Return, for values (chain, time, …), the mean over the other half of the chain's time, as a reference point."""
    reference, half = np.empty_like(position), position.shape[1] // 2
    reference[:, :half] = position[:, half:].mean(axis=1, keepdims=True)
    reference[:, half:] = position[:, :half].mean(axis=1, keepdims=True)
    return reference


def _directions(group: Subject) -> Measured:
    """Mean and spread along the strongest directions of the mini-batch noise, and the bias that follows.

    Their unit is the width T/√Var(g) of the samples in a straight valley. In a curved one samples spread farther: as
    ⟨(w − w0)·g⟩ = T, their variance about any w0 is at least the square of that width (Cauchy and Schwarz).
    Directions that are too hot raise the loss by Σ_k (T_k − T)/2. Where variances alone are subtracted, the mean
    temperature is right, so all other directions are colder by Σ_k (T_k/T − 1)/N, and so is |w|².
    """
    names = ("direction_position", "direction_gradient")
    if group.temperature is None or not group.has(*names):
        return
    sets = group.retained["direction_set"].values
    known, counts = np.unique(sets[sets >= 0], return_counts=True)
    if not known.size or max(counts) < MIN_EFFECTIVE_SAMPLES:
        return
    position, gradient = (group.values(name)[:, sets == known[counts.argmax()]] for name in names)
    stiff = np.maximum(np.sqrt(gradient.var(axis=1).mean(axis=0)), 1e-30)
    away, width = position - _other_half(position), group.temperature / stiff
    limit, num_draws = 1.2 * group.allowed.weight_tolerance, gradient[..., 0].size
    remedy = "the mean gradient along a collective direction is not 0: some examples are drawn too often"
    yield _extreme("mean along directions", _batched(gradient / stiff), 0.0, limit, remedy, num_draws)
    remedy = "a collective direction is frozen: trajectories return to their start, or masses are too large"
    yield _extreme("spread along directions", _batched((away / width) ** 2), 1.0, limit, remedy, num_draws, "below")
    own = away * gradient / group.temperature
    if group.num_weights < 4 * own.shape[2]:
        return  # the directions are all there is, or nearly
    remedy = "mini-batch noise heats collective directions; lower temperature_ratio, or use balanced_langevin"
    excess, bias = (own - 1).sum(axis=2), group.allowed.bias_tolerance
    if group.has("loss"):
        unit = 0.5 * group.temperature / abs(float(group.values("loss").mean()))
        yield _mean("predicted bias of the loss", unit * excess, 0.0, bias, remedy)
    yield _mean("predicted bias of |w|²", -excess / group.num_weights, 0.0, bias, remedy)


def _batched(draws: Floats, num: int = 16) -> Floats:
    """Return block means of draws (chain, draw, column), (block, column): `num` blocks in all, or one per chain."""
    parts = [np.array_split(chain, max(1, num // len(draws))) for chain in draws]
    return np.array([part.mean(axis=0) for chain in parts for part in chain])


def _fluctuations(group: Subject) -> Measured:
    """Covariance of U and the virial, which is N·T² by Stein's identity; small if energies fluctuate too little."""
    names = ("potential", "virial_temperature")
    if group.temperature is None or not group.has(*names) or group.retained.sizes["draw"] < 4:
        return
    energy, virial = (values - values.mean(axis=1, keepdims=True) for values in map(group.values, names))
    remedy = "energies do not fluctuate as at T: momenta are not refreshed, or chains are stuck"
    yield _mean("fluctuations of U", energy * virial / group.temperature**2, 1.0, 15 * group.allowed.tolerance, remedy)


def _samples(group: Subject) -> Measured:
    """Numbers of draws and of effective samples, and R-hat.

    R-hat fails only where the means of the chains differ beyond their own errors, because it is also large by chance.
    """
    if "observed_examples" in group.trace.attrs and group.temperature is not None:
        observed, num = (float(group.trace.attrs[name]) for name in ("observed_examples", "num_examples"))
        if observed < num:
            comment = "U is not known: record without observe_examples"
            yield _enough("observed examples", observed, expected=num, comment=comment, longer=0.0)
    if not group.retained.sizes["draw"]:
        warmup = group.settings["warmup_moves"]
        longer = warmup / int(group.trace["step"][-1]) + 1
        comment = f"all records are from the warm-up of {warmup} moves"
        yield _enough("retained draws", 0.0, expected=1.0, num_draws=0, longer=longer, comment=comment)
    for name, variable in SERIES:
        if not group.has(variable):
            continue
        chains, p_value = group.values(variable), 1.0
        found = effective_samples(chains, bulk=True)
        counts: dict[str, Any] = {"effective_samples": found, "num_draws": chains.size}
        longer = 100 / found if found > 0 else math.inf
        yield _enough(f"effective samples of {name}", found, expected=100, longer=longer, **counts)
        if len(chains) < 2:
            yield "R-hat needs at least two chains"
            continue
        means, errors, effective = np.array([average(chain) for chain in chains]).T
        samples, freedom = float(effective.min()), len(chains) - 1
        if samples >= MIN_EFFECTIVE_SAMPLES:
            # Errors from few samples are uncertain; Hotelling's bound on their ratio is an F distribution.
            statistic = float(np.sum(((means - chains.mean()) / errors) ** 2)) / freedom
            p_value = float(stats.f.sf(statistic, freedom, independent(samples) - 1))
        remedy = "chains disagree: each explores a region of its own; run longer"
        counts |= {"effective_samples": samples, "p_value": p_value}
        limit = group.allowed.rhat_tolerance
        yield Measurement(f"R-hat of {name}", rhat(chains), 0.0, 1.0, limit, remedy, "above", **counts)


def _ensemble(group: Subject) -> Measured:
    """Difference of ⟨U⟩ to the next higher temperature: √(Var1·Var2)·(1/T1 − 1/T2), in terms of the fluctuations of U.

    As d⟨U⟩/d(1/T) = −Var(U), this holds where energies overlap, and for oscillators at any distance. It is the slope
    of ln[P2(U)/P1(U)] (Shirts, J. Chem. Theory Comput. 9, 909 (2013)), from mean and variance.
    """
    first, temperatures = group.temperature, group.trace["temperature"].values
    if first is None or not group.has("potential", "virial_temperature"):
        return
    if len(temperatures) < 2:
        yield "the ensemble check needs two temperatures close to each other"
    hotter = (replace(group, position=int(t)) for t in np.argsort(temperatures) if temperatures[t] > first)
    other = next((other for other in hotter if other.has("potential")), None)
    if other is None:
        return
    second, both = temperatures[other.position], [group.values("potential"), other.values("potential")]
    low, high = map(average, both)
    variances = [average((energies - energies.mean()) ** 2) for energies in both]
    width, ratio, error, comment = math.sqrt(variances[0].mean * variances[1].mean), math.nan, math.nan, ""
    change = high.mean - low.mean
    if overlap := width > 0 and abs(change) <= 4 * math.sqrt(width):
        expected = width * (1 / first - 1 / second)
        ratio = change / expected
        errors = [energies.standard_error / expected for energies in (low, high)]
        error = math.hypot(*errors, *(0.5 * ratio * v.standard_error / v.mean for v in variances))
    elif width > 0:
        apart = f"no overlap: mean energies are {change / math.sqrt(width):.0f} standard deviations apart"
        nearer = 1 / first - 2 / math.sqrt(variances[0].mean)  # at two deviations the difference is known best
        comment = f"{apart}; add a temperature between, next to {first:g}" + f": {1 / nearer:.4g}" * (nearer > 0)
    more: dict[str, Any] = {"num_draws": both[0].size, "required": overlap, "longer": 2.0 if overlap else 0.0}
    more |= {"effective_samples": min(low.effective_samples, high.effective_samples), "comment": comment}
    remedy = "the energies at the two temperatures are not both Boltzmann-distributed"
    name, tolerance = f"ensemble, T = {first:g} and {second:g}", group.allowed.ensemble_tolerance
    yield Measurement(name, ratio, error, 1.0, tolerance, remedy, **more)


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
    """Test whether chains sample exp(−U/T), with statistical errors.

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
        tolerances: fields of `Tolerances`, such as `tolerance` or `chain_tolerance`.

    Example:
        >>> cert = pl.certificate(result)
        >>> print(cert.verdict, [line.name for line in cert.failed_lines])
    """
    known = [field.name for field in fields(Tolerances)]
    for name, value in tolerances.items():
        if name not in known:
            raise ValueError(f"{name} is no argument of certificate; use {', '.join(known)}")
        check_positive(name, value)
    burn_in = (0.0 if result is None else 0.5) if burn_in is None else burn_in
    check_interval("burn_in", burn_in, 0.0, 0.95, "it is the share of the records to discard")
    if result is None:
        check_positive("temperature", temperature)
        everything = _of_samples(weights, gradients, energies, potential, dataset, temperature, burn_in)
    else:
        everything = _of_result(result, burn_in)
    everything = replace(everything, allowed=Tolerances(**tolerances))
    found: list[tuple[Measurement | str, Subject]] = []
    num_temperatures, num_chains = everything.trace["status"].shape[:2]
    for position, chain in product(range(num_temperatures), [*range(num_chains), None]):
        subject = replace(everything, position=position, chain=chain)
        of_all = (_temperatures, _single_weights, _directions, _fluctuations, _samples, _ensemble)
        measures = of_all if chain is None else (_temperatures, _stationarity, _acceptance)
        found += [(m, subject) for measure in measures for m in measure(subject)]
    notes = tuple(dict.fromkeys(m for m, _ in found if isinstance(m, str)))
    measured = [(m, subject) for m, subject in found if isinstance(m, Measurement)]
    # All lines that can fail by chance share the false alarms.
    num_lines = max(1, sum(m.required and not m.enough and m.name != "status" for m, _ in measured))
    independence = [m.value / m.num_draws for m, _ in measured if m.name.startswith("effective") and m.num_draws]
    steps = everything.trace["step"].values
    between = int(steps[-1] - steps[-2] if len(steps) > 1 else steps[0])
    length = RunLength(len(steps), between, int(steps[-1]), everything.seconds, min(independence, default=0.0))
    lines = tuple(m.line(num_lines, length, subject.temperature, subject.chain) for m, subject in measured)
    return Certificate(lines, notes, everything.sampler, everything.num_weights, burn_in, length, everything.settings)


def _of_result(result: Result, burn_in: float) -> Subject:
    trace, sampler, blocks = result.trace, result.sampler, None
    if tests := getattr(result.states, "tests", ()):
        blocks = observables.stein_blocks(to_host(tests), burn_in)
        blocks = blocks.reshape(*trace["status"].shape[:2], *blocks.shape[1:])
    sizes = np.array([trees.num_weights(layer) for layer in trees.layers(result.weights).values()], float)
    num_examples = sampler.dataset.num_examples
    if "centred_virial_temperature" in trace:
        layers = trace["centred_virial_temperature"]
        total = layers.dot(xr.DataArray(sizes / sizes.sum(), dims="layer"), dim="layer")
        trace = trace.assign(virial_temperature=total, layer_virial_temperature=layers)
    elif trace.attrs.get("observed_examples", num_examples) < num_examples:
        trace = trace.drop_vars(["virial_temperature", "layer_virial_temperature"])
    trace = trace.transpose("temperature", "chain", "draw", ...).assign_attrs(num_examples=num_examples)
    trace = trace.assign_coords(
        layer_size=("layer", sizes * result.num_weights / sizes.sum()),
        direction_set=("draw", observables.direction_sets(trace["draw"].values + 1)),
    )
    # During its warm-up a Metropolis chain adapts its time step, and has no stationary distribution.
    retained, settings = kept(trace, burn_in), sampler.settings
    retained = retained.isel(draw=retained["step"].values > (settings.get("warmup_moves") or 0))
    about = (blocks, sampler.name, settings, sampler.uses_temperature, result.seconds)
    return Subject(trace, retained, result.num_weights, *about)


def _of_samples(
    weights: Weights,
    gradients: Weights,
    energies: ArrayLike | None,
    potential: Potential | None,
    dataset: Dataset | None,
    temperature: float,
    burn_in: float,
) -> Subject:
    """Return samples of another library without their burn-in; the first tenth gives the directions."""
    if weights is None:
        raise ValueError("neither result nor weights is given; pass a result of sample, or weights (chain, draw, …)")
    shapes = {np.shape(leaf)[:2] for leaf in jax.tree.leaves((weights, gradients))}
    if len(shapes) != 1 or len(shape := next(iter(shapes))) != 2 or min(shape) == 0:
        raise ValueError(f"weights and gradients have leading axes {sorted(shapes)}; give all of them (chain, draw, …)")
    steps = 1 + kept(np.arange(shape[1]), burn_in)
    begin, shape = steps[0] - 1, (shape[0], len(steps))
    weights, gradients = jax.tree.map(lambda leaf: leaf[:, begin:], (weights, gradients))
    one = jax.tree.map(lambda leaf: leaf[0, 0], weights)
    series = {} if energies is None else {"potential": as_chains(energies)[:, begin:]}
    if potential is not None:
        if dataset is None:
            raise ValueError("dataset is missing; potential needs its training set")
        potential.check(one, dataset)
        flat = jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(-1, *leaf.shape[2:]), weights)
        losses, regularizer, gradients = jax.device_get(_exact(potential, flat, dataset))
        loss = np.asarray(losses, np.float64).sum(axis=0)
        series = {"loss": loss.reshape(shape), "potential": (loss + regularizer).reshape(shape)}
    elif gradients is None:
        raise ValueError("gradients is missing; pass ∇U at the weights, or potential and dataset to compute it")
    w, g = (
        np.concatenate([np.reshape(leaf, (*shape, -1)) for leaf in jax.tree.leaves(tree)], axis=2).astype(np.float64)
        for tree in (weights, gradients)
    )
    num, first = w.shape[2], max(1, shape[1] // 10)
    # Directions in which the gradient varies most are the stiffest ones.
    early = g[:, :first].reshape(-1, num)
    directions = np.linalg.svd(early - early.mean(axis=0), full_matrices=False)[2][: min(16, num, len(early) - 1)]
    if len(directions):
        series |= {"direction_position": w @ directions.T, "direction_gradient": g @ directions.T}
    virial, sizes = (w - _other_half(w)) * g, [trees.num_weights(layer) for layer in trees.layers(one).values()]
    series |= {"virial_temperature": virial.mean(axis=2), "squared_norm": (w**2).sum(axis=2)}
    by_layer = np.split(virial, np.cumsum(sizes)[:-1], axis=2)
    series["layer_virial_temperature"] = np.stack([values.mean(axis=2) for values in by_layer], axis=2)
    series["status"] = np.zeros(shape, np.int32)
    coords = {"temperature": [temperature], "layer": list(trees.layers(one)), "step": ("draw", steps)}
    direction_set = np.where(steps - begin > first, 0, -1)
    coords |= {"layer_size": ("layer", sizes), "direction_set": ("draw", direction_set)}
    trace = xr.Dataset({name: observables.variable(name, x[None]) for name, x in series.items()}, coords)
    blocks = None
    if shape[1] >= 16:
        parts = zip(*(np.array_split(x, 8, axis=1) for x in (w, g)), strict=True)
        means = [np.stack([x.mean(axis=1) for x in (a, b, a * b, a * a)], axis=1) for a, b in parts]
        blocks = np.stack(means, axis=1)[None]
    return Subject(trace, trace, num, blocks)


@partial(jax.jit, static_argnums=0)
def _exact(potential: Potential, weights: Weights, dataset: Dataset) -> Any:
    """Return loss as a (high, low) pair, regulariser and gradient of many sets of weights."""

    def one(weights: Weights) -> Any:
        sums = exact_sums(potential, weights, dataset, None)
        return tuple(sums.loss), potential.regularizer(weights), sums.gradient

    return jax.lax.map(one, weights)
