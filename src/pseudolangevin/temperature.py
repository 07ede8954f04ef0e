"""The intermediate temperatures, at which a network generalises best, from the training set alone.

Below the transition (near T = 1/P in the cases studied) samples overfit; far above it they do not learn. The paper's
order parameter is the mean 𝒱 of the hidden layers: it has a broad minimum over the intermediate temperatures, whose hot
end carries more thermal noise than it must. So the recommended temperature is the cold end of that minimum, above the
transition if the loss shows one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import xarray as xr

from . import trees
from .checks import check_integer, check_interval, check_positive
from .data import Dataset
from .layout import as_key, check_temperatures
from .potential import Potential
from .temperature_judgement import Judgement, judge
from .temperature_scan import Leg, LegPlan, handed_on, hidden_names, hidden_variance, plan_legs, repeated, run_leg
from .types import Key, Weights

SPAN = 100.0
"""The default grid ends so far above the coldest temperature that can relax within the budget, or at 10/P."""
DEFAULT_EPOCHS = 100.0
"""At N = 11 160, in one start, the minimum of 𝒱 stood out at 120 epochs, and not yet at 40."""
MIN_EXAMPLES = 1e6
"""Small data sets need more passes: measuring 𝒱 costs the same number of mini-batches."""
COARSE = ("quench", "up", "up", "down")
FINE = ("down", "up")
FINE_SPAN = (0.35, 2.0)
"""The refined grid in units of what the coarse one recommends."""


@dataclass(frozen=True)
class TemperatureRange:
    """The intermediate temperatures, and the curve that justifies them."""

    temperature: float
    """Recommended: the cold end of the range; where the scan could not see it, the Bayesian temperature, unless that
    is hotter than the range."""
    low: float
    """Where the scan is inconclusive: the coldest temperature that could be judged."""
    high: float
    conclusive: bool
    """False where the scan could not bracket the minimum of 𝒱 or nothing learned; `notes` say why and what to do."""
    notes: tuple[str, ...]
    transition: float | None
    """Where the loss jumps: the temperature of a heat capacity above two per weight, if there is one."""
    bayesian_temperature: float
    """1/P, at which exp(−U/T) is the ordinary posterior."""
    hysteresis: float
    """Largest |loss up − loss down|/loss down within the range."""
    curve: xr.Dataset
    """Dimensions (direction, temperature): loss, potential, squared_norm, error, `gradient_variance` (mean 𝒱 of the
    hidden layers) and `heat_capacity` (dU/dT per weight), each averaged over the second half of a leg; and
    `order_parameter` (temperature), the smoothed 𝒱 that is judged, NaN where a chain cannot be judged."""
    cost: int
    """Examples visited, measurements included."""
    num_examples: int
    """P."""
    weights: Weights
    """Where the chain nearest above the recommended temperature ended: a start for sampling there."""

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
            "notes": list(self.notes),
            "transition": self.transition,
            "bayesian_temperature": self.bayesian_temperature,
            "hysteresis": self.hysteresis,
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
    epochs: float | None = None,
    batch_size: int | None = None,
    temperature_ratio: float = 0.1,
    tolerance: float = 1.25,
    hidden_layers: Sequence[str] | None = None,
    key: Key | int = 0,
    progress: bool | None = False,
) -> TemperatureRange:
    """Find the temperatures at which samples generalise best, from the training set alone.

    One chain per temperature, all in one program: a quench from `weights`, then legs up and down between neighbouring
    temperatures, then the same on a finer grid about the cold end of the minimum of 𝒱 (see `temperature_scan`). The
    range is where the mean 𝒱 of the hidden layers is within `tolerance` of its minimum; its cold end is raised above
    the transition where the heat capacity shows one. No test or validation set is used.

    The scan is short. Below the transition overfitting takes far longer than a training, so a scan sees the metastable
    branch that comes from high temperatures; the growth of 𝒱 on that branch is what it goes by. Temperatures too cold
    to relax within the budget are not judged at all: a larger budget looks at colder ones.

    Args:
        potential: U.
        dataset: the training set.
        weights: random weights, such as `network.init(key)`; trained ones would hide what each temperature learns.
        temperatures: the coarse grid; default: two decades or more, from the coldest temperature that can relax within
            the budget (0.1/P for 100 epochs, in inverse proportion) to 10/P or beyond.
        num_temperatures: chains of each grid (of the default coarse grid and the fine one).
        epochs: the budget, in examples visited over P, measurements included; default: 100, or a million examples where
            that is more. It is kept unless it is too small for 32 steps per leg; the cost is reported.
        batch_size: examples per mini-batch; default: P/1000 or less, at least 16, so that measuring 𝒱 costs little.
        temperature_ratio: 𝒯 of the scan. Large, because a scan needs speed and not accuracy: the loss is about 1 % too
            high at 0.1.
        tolerance: how far above its minimum 𝒱 may be within the range.
        hidden_layers: names of the layers whose 𝒱 counts; default: all but the last.
        key: random key, or an integer seed.
        progress: show a progress bar for each leg.

    Example:
        >>> found = find_temperature(potential, train, network.init(key))  # doctest: +SKIP
        >>> print(found)  # doctest: +SKIP
        >>> result = sample(sampler, found.weights, temperatures=[found.temperature], ...)  # doctest: +SKIP
    """
    check_integer("num_temperatures", num_temperatures, minimum=3, maximum=100)
    given = None if temperatures is None else _checked_grid(temperatures)
    epochs = max(DEFAULT_EPOCHS, MIN_EXAMPLES / dataset.num_examples) if epochs is None else epochs
    check_positive("epochs", epochs)
    check_interval("tolerance", tolerance, 1.01, 100, "it is a factor above the smallest 𝒱")
    potential.check(weights, dataset)
    hidden_names(list(trees.layers(weights)), hidden_layers)
    chains_in_all = len(COARSE) * len(given or range(num_temperatures)) + len(FINE) * num_temperatures
    plan = plan_legs(
        potential,
        dataset,
        examples=epochs * dataset.num_examples / chains_in_all,
        batch_size=batch_size,
        temperature_ratio=temperature_ratio,
    )
    coldest = plan.coldest(len(COARSE))
    bayesian = 1 / dataset.num_examples
    hottest = max(SPAN * coldest, 10 * bayesian)
    grid = given or [float(t) for t in np.geomspace(coldest, hottest, num_temperatures)]
    key = as_key(key)
    start_loss = float(potential.loss(weights, dataset.head(plan.observed_examples).batch))

    coarse = _legs(plan, COARSE, grid, repeated(weights, len(grid)), None, jax.random.fold_in(key, 0), progress)
    curves = [_curve(coarse, weights, hidden_layers, stage=0)]
    centre = _recommended(judge(curves[0], start_loss, coldest, tolerance), bayesian)
    # Beside the coldest temperature of the coarse grid, not on it.
    fine_low = max(FINE_SPAN[0] * centre, min(1.03 * coldest, centre))
    fine_grid = [float(t) for t in np.geomspace(fine_low, FINE_SPAN[1] * centre, num_temperatures)]
    fine = _legs(plan, FINE, fine_grid, None, coarse[-1], jax.random.fold_in(key, 1), progress)
    curves.append(_curve(fine, weights, hidden_layers, stage=1))
    curve = xr.concat(curves, "temperature").sortby("temperature")
    verdict = judge(curve, start_loss, coldest, tolerance)
    recommended = _recommended(verdict, bayesian)
    return TemperatureRange(
        temperature=recommended,
        low=verdict.low,
        high=verdict.high,
        conclusive=verdict.conclusive,
        notes=verdict.notes,
        transition=verdict.transition,
        bayesian_temperature=bayesian,
        hysteresis=verdict.hysteresis,
        curve=curve.assign(order_parameter=("temperature", verdict.order_parameter)),
        cost=sum(leg.cost for leg in [*coarse, *fine]) + plan.observed_examples,
        num_examples=dataset.num_examples,
        weights=jax.tree.map(lambda w: w[0], handed_on(fine[0], [recommended * (1 - 1e-3)], "down")),
    )


def _recommended(verdict: Judgement, bayesian: float) -> float:
    """The cold end of the range. Where the scan did not see it, nothing argues against 1/P unless that is too hot."""
    return verdict.low if verdict.conclusive or bayesian > verdict.high else bayesian


def _checked_grid(temperatures: Sequence[float]) -> list[float]:
    grid = sorted(check_temperatures(temperatures))
    if len(grid) < 3:
        raise ValueError(f"temperatures = {grid}: a minimum needs at least 3; leave it out for a grid around 1/P")
    return grid


def _legs(
    plan: LegPlan,
    directions: Sequence[Any],
    grid: list[float],
    starts: Weights | None,
    before: Leg | None,
    key: Key,
    progress: bool | None,
) -> list[Leg]:
    """Legs one after another, each from where its neighbours ended in the one before."""
    legs: list[Leg] = []
    for number, direction in enumerate(directions):
        previous = legs[-1] if legs else before
        if previous is not None:
            starts = handed_on(previous, grid, direction)
        legs.append(run_leg(plan, direction, grid, starts, jax.random.fold_in(key, number), progress))
    return legs


def _curve(legs: list[Leg], weights: Weights, hidden_layers: Sequence[str] | None, stage: int) -> xr.Dataset:
    """The last leg down and the leg up, with the order parameter and the heat capacity per weight."""
    last = {leg.direction: leg.averages for leg in legs}
    curve = xr.concat([last["down"], last["up"]], xr.Variable("direction", ["down", "up"]))
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
