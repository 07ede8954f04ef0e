"""Scanning temperatures on a budget: one chain per temperature, all in one program, in legs that hand on their weights.

A first leg quenches every chain from the same weights. In a leg "up" each chain then starts where its colder neighbour
ended, in a leg "down" where its hotter neighbour ended; where the two disagree there is hysteresis. A neighbour that
failed is passed over: one that is not finite, or has lost a class. Random weights are quiet, so that a hot chain starts
with masses far too light and may be thrown out of reach of its classes; the legs up bring it back with weights that
have learned. The cost is counted in examples whose gradient was computed, measurements included.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax
import numpy as np
import xarray as xr

from . import trees
from .chains import Result, sample
from .data import Dataset
from .potential import Potential
from .reports import ChainStoppedWarning, DeadClassWarning
from .samplers.base import Sampler
from .samplers.langevin import pseudo_langevin
from .types import HEALTHY, Key, Weights

Direction: TypeAlias = Literal["quench", "down", "up"]

VARIANCE_BATCHES = 16
"""Mini-batches per measurement of 𝒱. Masses are then right to 35 %, and the mean over a layer to a few per cent."""
WARMUP_REFRESHES = 4
RECORDS_PER_LEG = 4
MIN_STEPS = 32
FROZEN = 3.0
"""A chain is frozen where its relaxation time is more than so many times the length of its way."""


@dataclass(frozen=True)
class LegPlan:
    """How long a leg is, so that all of them together keep to the budget."""

    sampler: Sampler
    num_steps: int
    observed_examples: int

    @property
    def record_every(self) -> int:
        """Steps between records."""
        return self.num_steps // RECORDS_PER_LEG

    def coldest(self, num_legs: int) -> float:
        """The coldest temperature that is not frozen in so many legs: data directions relax in 1/(4·T·𝒯) examples."""
        examples = num_legs * self.num_steps * self.sampler.settings["batch_size"]
        return float(1 / (4 * self.sampler.settings["temperature_ratio"] * FROZEN * examples))

    def cost(self, num_refreshes: int) -> int:
        """Examples visited by one chain in one leg: steps, measurements of 𝒱 with their momenta, and records."""
        batch_size = self.sampler.settings["batch_size"]
        batches = self.num_steps + (1 + num_refreshes) * (VARIANCE_BATCHES + 1)
        return int(batches * batch_size + RECORDS_PER_LEG * self.observed_examples)


@dataclass(frozen=True)
class Leg:
    """The end of a leg: averages at each temperature, and the weights to hand on."""

    direction: Direction
    temperatures: np.ndarray
    averages: xr.Dataset
    weights: Weights
    """Leading axis over the temperatures."""
    cost: int


def plan_legs(
    potential: Potential,
    dataset: Dataset,
    *,
    examples: float,
    batch_size: int | None,
    temperature_ratio: float,
) -> LegPlan:
    """A leg in which each chain visits about so many examples.

    Small mini-batches make the measurements of 𝒱 cheap; the way of a chain per example visited is the same for all.
    """
    num_examples = dataset.num_examples
    if batch_size is None:
        batch_size = min(num_examples, max(16, min(num_examples // 1_000, int(examples / 400))))
    observed = min(num_examples, max(500, min(num_examples // 100, int(examples / 40))))
    # 𝒱 is measured at the start, in the warm-up and once more: after 1/32, 3/32, 7/32, 15/32 and 31/32 of the leg.
    overhead = (1 + WARMUP_REFRESHES + 1) * (VARIANCE_BATCHES + 1) + RECORDS_PER_LEG * observed / batch_size
    num_steps = max(MIN_STEPS, int(examples / batch_size - overhead))
    num_steps -= num_steps % 2 ** (WARMUP_REFRESHES + 1)
    refresh_every = num_steps // 2
    sampler = pseudo_langevin(
        potential,
        dataset,
        batch_size=batch_size,
        temperature_ratio=temperature_ratio,
        refresh_every=refresh_every,
        max_refresh_interval=refresh_every,
        warmup_refreshes=WARMUP_REFRESHES,
        variance_block=VARIANCE_BATCHES,
        variance_max_batches=VARIANCE_BATCHES,
    )
    return LegPlan(sampler, num_steps, observed)


def run_leg(
    plan: LegPlan, direction: Direction, temperatures: Sequence[float], starts: Weights, key: Key, progress: bool | None
) -> Leg:
    """One chain at each temperature, from `starts` (leading axis over the temperatures)."""
    with warnings.catch_warnings():
        # A chain that is too hot to learn, or to stay finite, is a finding of the scan; the judgement reports it.
        warnings.simplefilter("ignore", ChainStoppedWarning)
        warnings.simplefilter("ignore", DeadClassWarning)
        result = sample(
            plan.sampler,
            jax.tree.map(lambda w: w[:, None], starts),
            temperatures=temperatures,
            num_steps=plan.num_steps,
            record_every=plan.record_every,
            observe_examples=plan.observed_examples,
            key=key,
            progress=progress,
        )
    weights = jax.tree.map(lambda w: w[:, 0], result.weights)
    num_refreshes = int(np.max(result.states.num_refreshes))
    cost = len(temperatures) * plan.cost(num_refreshes)
    return Leg(direction, np.asarray(temperatures, float), _averages(result), weights, cost)


def handed_on(leg: Leg, temperatures: Sequence[float], direction: Direction) -> Weights:
    """Starts for the next leg: those of the nearest hotter (down) or colder (up) chain that did not fail.

    A chain at the end of the row starts from itself.
    """
    healthy = np.flatnonzero(leg.averages["healthy"].values)
    if healthy.size == 0:
        return jax.tree.map(lambda w: w[np.zeros(len(temperatures), int)], leg.weights)
    chosen = []
    for temperature in temperatures:
        distance = np.log(leg.temperatures[healthy] / temperature) * (1 if direction == "down" else -1)
        beyond = np.flatnonzero(distance > 1e-6)
        nearest = beyond[np.argmin(distance[beyond])] if beyond.size else int(np.argmax(distance))
        chosen.append(healthy[nearest])
    indices = np.asarray(chosen)
    return jax.tree.map(lambda w: w[indices], leg.weights)


def repeated(weights: Weights, num: int) -> Weights:
    """The same weights for every temperature."""
    return jax.tree.map(lambda w: np.broadcast_to(np.asarray(w), (num, *w.shape)), weights)


def hidden_variance(values: Any, weights: Weights, hidden_layers: Sequence[str] | None) -> Any:
    """The mean 𝒱 of the weights of the hidden layers, from the mean of each layer (last axis)."""
    sizes = {name: trees.num_weights(layer) for name, layer in trees.layers(weights).items()}
    names = hidden_names(sizes, hidden_layers)
    share = np.array([size if name in names else 0 for name, size in sizes.items()], float)
    return values @ (share / share.sum())


def hidden_names(layers: Sequence[str] | dict[str, int], hidden_layers: Sequence[str] | None) -> list[str]:
    """The layers that the order parameter is averaged over: all but the last, unless named."""
    names = list(layers)
    if hidden_layers is None:
        return names[:-1] or names
    unknown = [name for name in hidden_layers if name not in names]
    if unknown or not hidden_layers:
        raise ValueError(f"hidden_layers = {list(hidden_layers)!r}: choose from the layers {names}")
    return list(hidden_layers)


def _averages(result: Result) -> xr.Dataset:
    """Over the second half of the leg, at each temperature; NaN where a chain did not stay finite."""
    kept = result.trace.isel(chain=0, draw=slice(RECORDS_PER_LEG // 2, None))
    names = ["loss", "potential", "squared_norm", "error", "gradient_variance", "kinetic_temperature"]
    averages = kept[[name for name in names if name in kept]].mean("draw", skipna=False)
    dead = kept["dead_class"].isel(draw=-1).any("class").values if "dead_class" in kept else False
    averages["dead_class"] = ("temperature", np.broadcast_to(dead, averages.sizes["temperature"]))
    finite = np.isin(kept["status"].values[:, -1], HEALTHY)
    averages["healthy"] = ("temperature", finite & ~averages["dead_class"].values)
    return averages.drop_vars("chain", errors="ignore")
