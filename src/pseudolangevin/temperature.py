"""The intermediate temperatures, at which a network generalises best, from the training set alone.

Below the transition (near T = 1/P in the cases studied) samples overfit; far above it they do not learn. Between,
thermal noise and with it the test error grow with T. So the recommended temperature is the coldest one at which nothing
speaks for overfitting: the paper's order parameter, the mean 𝒱 of the hidden layers, has not left its broad minimum,
the loss does not jump, and weights of the prior are longer than those of a short training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import xarray as xr

from . import trees
from .checks import check_integer, check_interval, check_positive
from .data import Dataset
from .layout import as_key, check_temperatures
from .potential import Potential
from .temperature_judgement import judge
from .temperature_scan import (
    MIN_OBSERVED,
    Ladder,
    Stay,
    hidden_names,
    hidden_variance,
    make_ladder,
    prior_temperature,
    quench,
    walk,
)
from .types import Key, Weights

DEFAULT_EPOCHS = 25.0
"""About twice what Adam takes to its best point at N = 11 160."""
MIN_EXAMPLES = 1e6
"""Small data sets need more passes: a relaxation time is a number of examples."""
QUENCH_SHARE = 0.1
"""Of the budget, for the training that the chains start from."""
RATIO, RATIO_WEIGHTS = 0.1, 1e5
"""𝒯 of the scan by default, up to so many weights; beyond, it falls as 1/√N, a compromise: with a million weights
chains at 𝒯 = 0.1 turned non-finite, and at 0.01 nothing cold is affordable."""
SPAN = 16.0
"""The hottest rung of the default ladder over the coldest, at least; and it ends no colder than `HOT`/P."""
HOT = 8.0
COLD = 0.1
"""The default ladder goes no colder than this over P: what a larger budget has left is spent on a slower walk."""
WARM = 30.0
"""It begins no hotter than this over P, however small the budget."""
WIDER_THAN_TRAINED = 2.0
"""Nor colder than the temperature at which |w|² of the prior is so many times that of the quenched weights."""
RELAXATIONS = (1.0, 8.0)
"""Of the walk down to the coldest rung, in relaxation times there: at least, and at most."""
REFINED_FROM = 2.0
"""Where twice the least pace is affordable, half the budget goes to a second ladder about the cold end of the range."""
FINE_SPAN = 2.0
"""It reaches from the cold end over this to the cold end times this."""
BESIDE = 1.01
"""Its rungs are beside those of the first, not on them."""
SMALLEST_STEP = 1.02
"""Ladders that are tried for the budget differ by this factor."""


@dataclass(frozen=True)
class TemperatureRange:
    """The intermediate temperatures, and the curve that justifies them."""

    temperature: float
    """Recommended: the cold end of the range."""
    low: float
    """The coldest temperature scanned, or where the scan saw overfitting begin."""
    high: float
    """Where the loss has risen by 1 %, or 𝒱 left its minimum."""
    conclusive: bool
    """Whether both ends have a reason: the cold one is not that of the budget, and above the hot one the loss, or 𝒱,
    rises. `notes` say what is missing."""
    cold_end: str
    """What the cold end is: "overfitting" that was seen, the "prior" (colder ones are not judged), the "budget" (colder
    ones were not scanned), or "nothing" where nothing could be judged."""
    notes: tuple[str, ...]
    transition: float | None
    """Where the loss jumps: the temperature of a heat capacity above two per weight, if there is one."""
    bayesian_temperature: float
    """1/P, at which exp(−U/T) is the ordinary posterior."""
    hysteresis: float
    """Largest |loss up − loss down|/loss down within the range."""
    curve: xr.Dataset
    """Dimensions (direction, temperature): loss, potential, squared_norm, error, `gradient_variance` (mean 𝒱 of the
    hidden layers, of a batch of 1 % of the examples) and `heat_capacity` (dU/dT per weight), each averaged over a stay;
    and `order_parameter` (temperature), the smoothed 𝒱 that is judged, NaN where it cannot be. `stage` is 1 for refined
    temperatures."""
    cost: int
    """Examples visited, measurements included."""
    num_examples: int
    """P."""
    weights: Weights
    """Where a chain on the rung of the recommended temperature ended: a start for sampling there."""

    @property
    def epochs(self) -> float:
        """The cost in passes through the training set."""
        return self.cost / self.num_examples

    def to_dict(self) -> dict[str, Any]:
        """Everything but the weights, for JSON."""
        curve = {
            str(name): {str(d): _plain(values.sel(direction=d).values) for d in ("down", "up")}
            for name, values in self.curve.drop_vars("order_parameter").items()
        }
        curve["order_parameter"] = {"down": _plain(self.curve["order_parameter"].values)}
        return {
            "temperature": self.temperature,
            "low": self.low,
            "high": self.high,
            "conclusive": self.conclusive,
            "cold_end": self.cold_end,
            "notes": list(self.notes),
            "transition": self.transition,
            "bayesian_temperature": self.bayesian_temperature,
            "hysteresis": self.hysteresis if math.isfinite(self.hysteresis) else None,
            "cost": {"examples": self.cost, "epochs": self.epochs},
            "temperatures": _plain(self.curve["temperature"].values),
            "curve": curve,
        }

    def __str__(self) -> str:
        """The verdict, and the curve as a table."""
        lines = [
            f"recommended T = {self.temperature:.3g}   range {self.low:.3g} … {self.high:.3g}"
            + ("" if self.conclusive else "   (inconclusive)"),
            f"Bayesian 1/P  = {self.bayesian_temperature:.3g}   "
            + ("no jump of the loss seen" if self.transition is None else f"loss jumps at {self.transition:.3g}")
            + f"   hysteresis {self.hysteresis:.1%}   cost {self.epochs:.1f} epochs ({self.cost:.3g} examples)",
            f"{'T':>10} {'T·P':>8} {'loss down':>10} {'loss up':>10} {'mean 𝒱':>10} {'smoothed':>10} {'dU/dT /N':>9}",
        ]
        down, up = self.curve.sel(direction="down"), self.curve.sel(direction="up")
        for index, temperature in enumerate(self.curve["temperature"].values):
            inside = "*" if self.low * 0.999 <= temperature <= self.high * 1.001 else " "
            lines.append(
                f"{temperature:10.3g} {temperature * self.num_examples:8.3g} {down['loss'].values[index]:10.4f} "
                f"{up['loss'].values[index]:10.4f} {down['gradient_variance'].values[index]:10.3g} "
                f"{down['order_parameter'].values[index]:10.3g} {down['heat_capacity'].values[index]:9.2f} {inside}"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def find_temperature(
    potential: Potential,
    dataset: Dataset,
    weights: Weights,
    *,
    temperatures: Sequence[float] | None = None,
    num_temperatures: int = 8,
    num_chains: int = 2,
    epochs: float | None = None,
    batch_size: int | None = None,
    temperature_ratio: float | None = None,
    tolerance: float = 4.0,
    hidden_layers: Sequence[str] | None = None,
    key: Key | int = 0,
    progress: bool | None = False,
) -> TemperatureRange:
    """Find the temperatures at which samples generalise best, from the training set alone.

    A short training by Adam, then chains, all in one program, that walk up and down a ladder of temperatures (see
    `temperature_scan`), and, where the budget has room for it, a finer one about the cold end of the range. The range
    is where the mean 𝒱 of the hidden layers is within `tolerance` of its minimum, above the transition where the heat
    capacity shows one, and ends where the loss has risen by 1 %. No test or validation set is used.

    The budget decides how cold the ladder begins: a chain relaxes in 1/(4·T·𝒯) examples. The scan is short: just below
    the transition overfitting takes far longer than a training, and a scan follows the metastable state that still
    generalises. So it does not look at temperatures where weights of the prior, N·T/λ each, are hardly longer than
    those of the training: samples that generalise are near the prior.

    Args:
        potential: U.
        dataset: the training set.
        weights: random weights, such as `network.init(key)`; trained ones would hide what each temperature learns.
        temperatures: the rungs; default: from the coldest that the budget can afford to sixteen times that, or to 8/P.
        num_temperatures: rungs of a default ladder, and of the finer one.
        num_chains: chains that walk side by side; their averages are judged.
        epochs: the budget, in examples visited over P, measurements included; default: 25, or a million examples where
            that is more. It is kept unless it is too small even for a ladder that begins at 30/P; the cost is reported.
        batch_size: examples per mini-batch; default: small enough for the shortest rung to have two stretches.
        temperature_ratio: 𝒯 of the scan. Large, because a scan needs speed and not accuracy; default: 0.1, falling as
            1/√N beyond 100 000 weights.
        tolerance: how far above its minimum 𝒱 may be within the range. In the paper's largest network it grows a
            hundredfold across the transition.
        hidden_layers: names of the layers whose 𝒱 counts; default: all but the last.
        key: random key, or an integer seed.
        progress: show a progress bar for each rung.

    Example:
        >>> found = find_temperature(potential, train, network.init(key))  # doctest: +SKIP
        >>> print(found)  # doctest: +SKIP
        >>> result = sample(sampler, found.weights, temperatures=[found.temperature], ...)  # doctest: +SKIP
    """
    check_integer("num_temperatures", num_temperatures, minimum=3, maximum=100)
    check_integer("num_chains", num_chains, minimum=1)
    given = None if temperatures is None else _checked_grid(temperatures)
    epochs = max(DEFAULT_EPOCHS, MIN_EXAMPLES / dataset.num_examples) if epochs is None else epochs
    check_positive("epochs", epochs)
    if temperature_ratio is None:
        temperature_ratio = RATIO * min(1.0, RATIO_WEIGHTS / trees.num_weights(weights)) ** 0.5
    check_interval("tolerance", tolerance, 1.01, 100, "it is a factor above the smallest 𝒱")
    potential.check(weights, dataset)
    hidden_names(list(trees.layers(weights)), hidden_layers)
    start_loss = float(potential.loss(weights, dataset.head(min(MIN_OBSERVED, dataset.num_examples)).batch))
    quench_key, walk_key = jax.random.split(as_key(key))
    budget = epochs * dataset.num_examples - MIN_OBSERVED
    quenched, quench_cost = quench(
        potential, dataset, weights, examples=QUENCH_SHARE * budget, key=quench_key, progress=progress
    )
    coldest = WIDER_THAN_TRAINED * prior_temperature(potential, quenched)
    examples = (budget - quench_cost) / num_chains
    ladder_of = partial(make_ladder, potential, dataset, batch_size=batch_size, temperature_ratio=temperature_ratio)
    grids = _grids(coldest, num_temperatures, dataset.num_examples) if given is None else [np.asarray(given)]
    ladder = _affordable(examples, ladder_of, grids)
    refined = ladder.relaxations >= REFINED_FROM
    if refined:
        ladder = _affordable(examples / 2, ladder_of, grids)
    starts = jax.tree.map(lambda w: np.broadcast_to(np.asarray(w), (num_chains, *w.shape)), quenched)
    stays = list(walk(ladder, starts, walk_key, progress))
    curve = _curve(stays, weights, hidden_layers, stage=0)
    verdict = judge(curve, start_loss, coldest, tolerance)
    if refined:
        low = max(verdict.low / FINE_SPAN, coldest, ladder.temperatures[0]) * BESIDE
        fine_grid = np.geomspace(low, max(FINE_SPAN * verdict.low, 2 * low), num_temperatures)
        ladder = _affordable(examples / 2, ladder_of, [fine_grid])
        fine = list(walk(ladder, stays[-1].weights, jax.random.fold_in(walk_key, 1), progress))
        curve = xr.concat([curve, _curve(fine, weights, hidden_layers, stage=1)], "temperature").sortby("temperature")
        verdict = judge(curve, start_loss, coldest, tolerance)
        stays += fine
    # Of two stays on a rung the last, on the way down.
    nearest = min(reversed(stays), key=lambda stay: abs(np.log(stay.temperature / verdict.low)))
    return TemperatureRange(
        temperature=verdict.low,
        low=verdict.low,
        high=verdict.high,
        conclusive=verdict.conclusive,
        cold_end=verdict.cold_end,
        notes=verdict.notes,
        transition=verdict.transition,
        bayesian_temperature=1 / dataset.num_examples,
        hysteresis=verdict.hysteresis,
        curve=curve.assign(order_parameter=("temperature", verdict.order_parameter)),
        cost=MIN_OBSERVED + quench_cost + sum(stay.cost for stay in stays),
        num_examples=dataset.num_examples,
        weights=jax.tree.map(lambda w: w[nearest.best_chain], nearest.weights),
    )


def _grids(coldest: float, num_temperatures: int, num_examples: int) -> list[np.ndarray]:
    """Default temperatures, from the coldest that are worth a look to some that nearly any budget can afford."""
    cold = max(COLD, coldest * num_examples)
    return [
        np.geomspace(lowest, max(SPAN * lowest, HOT), num_temperatures) / num_examples
        for lowest in _geometric(cold, max(WARM, 2 * cold))
    ]


def _affordable(examples: float, ladder_of: Callable[..., Ladder], grids: list[np.ndarray]) -> Ladder:
    """The first grid, at the slowest pace that a chain can keep on so many examples; else the first that it can walk
    at all, and of a single grid as much of it as there is time for."""
    least, most = RELAXATIONS
    slow = [(grids[0], pace) for pace in _geometric(least if grids[1:] else least / 1e3, most)[::-1]]
    for grid, pace in [*slow, *((grid, least) for grid in grids[1:])]:
        ladder = ladder_of(grid, relaxations=pace)
        if ladder.cost <= examples:
            break
    return ladder


def _geometric(low: float, high: float) -> list[float]:
    return np.geomspace(low, high, 2 + int(np.log(high / low) / np.log(SMALLEST_STEP))).tolist()


def _checked_grid(temperatures: Sequence[float]) -> list[float]:
    grid = sorted(check_temperatures(temperatures))
    if len(grid) < 3:
        raise ValueError(f"temperatures = {grid}: a minimum needs at least 3; leave it out for a grid around 1/P")
    return grid


def _curve(stays: list[Stay], weights: Weights, hidden_layers: Sequence[str] | None, stage: int) -> xr.Dataset:
    """The way down and the way up, with the order parameter and the heat capacity per weight."""
    up = {stay.temperature: stay.averages for stay in stays if stay.direction == "up"}
    down = up | {stay.temperature: stay.averages for stay in stays if stay.direction == "down"}
    temperatures = xr.Variable("temperature", sorted(down))
    ways = [xr.concat([way[t] for t in temperatures.values], temperatures) for way in (down, up)]
    curve = xr.concat(ways, xr.Variable("direction", ["down", "up"]))
    variance = hidden_variance(curve["gradient_variance"].values, weights, hidden_layers)
    dimensions = ("direction", "temperature")
    curve = curve.drop_dims("layer").assign(gradient_variance=(dimensions, variance))
    slope = np.gradient(curve["potential"].values, curve["temperature"].values, axis=1)
    curve["heat_capacity"] = (dimensions, slope / trees.num_weights(weights))
    return curve.assign_coords(stage=("temperature", np.full(curve.sizes["temperature"], stage)))


def _plain(values: np.ndarray) -> list[Any]:
    """Values for JSON, which has no NaN."""
    if values.dtype == bool:
        return [bool(value) for value in values]
    return [float(value) if np.isfinite(value) else None for value in values]
