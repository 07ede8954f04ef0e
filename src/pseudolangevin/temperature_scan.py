"""Scanning temperatures on a budget: chains walk a ladder of temperatures together, up and down again.

They start from a short training on the coldest rung, climb to the hottest and come back; the difference between the two
ways is the hysteresis. What the data hold relaxes in τ = 1/(4·T·𝒯) examples, whatever the batch size, and a rung lasts
a set share of its τ (with the masses it begins with: those that 𝒱 outgrows are raised). So the walk down to T costs
about τ(T), all hotter rungs included; in a grid of independent chains each would cost that. What the regulariser alone
holds, and with it |w|², takes longer: a scan on a small budget sees the data's answer to T and no equilibrium. The cost
is counted in examples whose loss or gradient was computed, measurements included.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import xarray as xr

from . import trees
from .chains import sample
from .data import Dataset
from .gradients import DEFAULT_CHUNK_SIZE
from .potential import Potential
from .reports import ChainStoppedWarning, DeadClassWarning
from .samplers.adam import adam
from .samplers.base import Sampler
from .samplers.langevin import pseudo_langevin
from .types import HEALTHY, Key, Weights

STRETCH_STEPS = 32
"""Steps between measurements of 𝒱: a rung is a number of such stretches."""
MASS_FLOOR = 0.1
"""Masses answer to at least this share of their tensor's mean 𝒱. A scan measures 𝒱 on few examples, changes T and wakes
up units; at 0.01, chains on FashionMNIST exploded."""
VARIANCE_SHARE = 0.15
"""Examples that a measurement of 𝒱 visits, as a share of those of a stretch."""
MIN_VARIANCE_EXAMPLES = 256
MIN_OBSERVED = 500
RECORDS_PER_RUNG = 2
QUENCH_BATCH = 128
QUENCH_RATE, QUENCH_WEIGHTS = 5e-4, 1e5
"""Of Adam, up to so many weights; beyond, it falls as 1/N, as the paper's rates do. A step of the same length moves the
scores of a wider network by more: with a million weights it cost a class."""
MIN_QUENCH_STEPS, MAX_QUENCH_STEPS = 32, 20_000
"""At most, however large the budget: it is to be short of overfitting."""
MAX_STRETCHES = 2**14
"""Of one rung; where it would take more, the batch is too small for the budget."""


@dataclass(frozen=True)
class Ladder:
    """The rungs, and how long a chain stays on each."""

    sampler: Sampler
    temperatures: tuple[float, ...]
    """Ascending."""
    relaxations: float
    """The length of the walk from far above T down to T, in relaxation times at T."""
    stretches: tuple[int, ...]
    """Of `STRETCH_STEPS` steps each, on every rung."""
    variance_examples: int
    observed_examples: int

    @property
    def walk(self) -> list[tuple[str, int]]:
        """Direction and rung of every stay: up to the hottest rung, and down again."""
        num = len(self.temperatures)
        return [("up", rung) for rung in range(num)] + [("down", rung) for rung in range(num - 2, -1, -1)]

    @property
    def cost(self) -> int:
        """Examples visited by one chain on its way."""
        return sum(self.cost_of(rung) for _, rung in self.walk)

    @property
    def variance_scale(self) -> float:
        """From 𝒱 of this ladder's batches to that of 1 % of the examples: ladders differ in their batches."""
        return 100 * self.sampler.settings["batch_size"] / self.sampler.dataset.num_examples

    def cost_of(self, rung: int) -> int:
        """Examples visited by one chain on a rung: steps, measurements of 𝒱 with new momenta, and records."""
        batch_size = self.sampler.settings["batch_size"]
        stretch = (STRETCH_STEPS + 1) * batch_size + self.variance_examples
        return int(self.stretches[rung] * stretch + RECORDS_PER_RUNG * self.observed_examples)


def make_ladder(
    potential: Potential,
    dataset: Dataset,
    temperatures: Sequence[float] | np.ndarray,
    *,
    relaxations: float,
    batch_size: int | None,
    temperature_ratio: float,
) -> Ladder:
    """Rungs of lengths in proportion to 1/T. By default the batch is so small that the shortest has two stretches."""
    num_examples = dataset.num_examples
    grid = np.asarray(temperatures, float)
    spacing = 1 - np.exp(-np.gradient(np.log(grid)))
    lengths = relaxations * spacing / (4 * grid * temperature_ratio)
    if batch_size is None:
        batch_size = int(np.clip(lengths[-1] / (2 * STRETCH_STEPS), 16, max(16, num_examples // 100)))
        batch_size = min(num_examples, batch_size)
    stretch = STRETCH_STEPS * batch_size
    stretches = 2 * np.clip(np.rint(lengths / (2 * stretch)), 1, MAX_STRETCHES // 2).astype(int)
    variance_examples = min(num_examples, max(MIN_VARIANCE_EXAMPLES, int(VARIANCE_SHARE * stretch)))
    if potential.layered is None:
        blocks = max(2, variance_examples // batch_size)
        variance_examples = blocks * batch_size
    else:
        blocks = 2
        if DEFAULT_CHUNK_SIZE < variance_examples < num_examples:  # a pass visits whole chunks
            variance_examples -= variance_examples % DEFAULT_CHUNK_SIZE
    sampler = pseudo_langevin(
        potential,
        dataset,
        batch_size=batch_size,
        temperature_ratio=temperature_ratio,
        reset_probability=0.0,  # masses are chosen anew on every rung; within one, they must not follow the weights
        refresh_every=STRETCH_STEPS,
        max_refresh_interval=STRETCH_STEPS,
        warmup_refreshes=0,
        variance_examples=variance_examples,
        variance_block=blocks,
        variance_max_batches=blocks,
        mass_floor=MASS_FLOOR,
    )
    # Records are to cost about as much as the measurements of 𝒱 on the rungs of the middle.
    observed = min(num_examples, max(MIN_OBSERVED, variance_examples * int(np.median(stretches)) // 4))
    return Ladder(sampler, tuple(grid.tolist()), relaxations, tuple(stretches.tolist()), variance_examples, observed)


def quench(
    potential: Potential, dataset: Dataset, weights: Weights, *, examples: float, key: Key, progress: bool | None
) -> tuple[Weights, int]:
    """Weights after a short training by Adam, and its cost: a chain would learn the same far more slowly."""
    batch_size = min(QUENCH_BATCH, dataset.num_examples)
    num_steps = int(np.clip(examples / batch_size, MIN_QUENCH_STEPS, MAX_QUENCH_STEPS))
    learning_rate = QUENCH_RATE * min(1.0, QUENCH_WEIGHTS / trees.num_weights(weights))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadClassWarning)  # chains at high temperatures may wake it up again
        result = sample(
            adam(potential, dataset, batch_size=batch_size, learning_rate=learning_rate),
            weights,
            num_steps=num_steps,
            record_every=num_steps,
            observe_examples=1,
            key=key,
            progress=progress,
        )
    return jax.tree.map(lambda w: w[0, 0], result.weights), num_steps * batch_size + 1


def prior_temperature(potential: Potential, weights: Weights) -> float:
    """T at which weights of the prior are as long as these: Σ k·w²/N, k the stiffness λ/N of the regulariser.

    Samples that generalise are near the prior: λ|w|²/(N²·T) is 1 in the paper's largest network above the transition,
    and 1.6 below. Colder than this, weights that do what these do are longer than those of the prior: the data alone
    hold them.
    """
    stiffness = trees.spread(potential.stiffness(weights), weights)
    terms = jax.tree.map(lambda k, w: float(np.sum(np.asarray(k * w**2, np.float64))), stiffness, weights)
    return sum(jax.tree.leaves(terms)) / trees.num_weights(weights)


@dataclass(frozen=True)
class Stay:
    """What the chains showed on a rung, averaged over those that stayed finite."""

    direction: str
    temperature: float
    averages: xr.Dataset
    weights: Weights
    """Where the chains ended, leading axis over the chains; those that failed are where they came from."""
    cost: int
    best_chain: int
    """One that stayed finite and lost no class, if there is one."""


def walk(ladder: Ladder, starts: Weights, key: Key, progress: bool | None) -> Iterator[Stay]:
    """All chains (leading axis of `starts`) from rung to rung.

    A chain that does not stay finite goes on from where it came to that rung.
    """
    num_chains = jax.tree.leaves(starts)[0].shape[0]
    for number, (direction, rung) in enumerate(ladder.walk):
        num_steps = ladder.stretches[rung] * STRETCH_STEPS
        with warnings.catch_warnings():
            # A chain that is too hot to learn, or to stay finite, is a finding of the scan; the judgement reports it.
            warnings.simplefilter("ignore", ChainStoppedWarning)
            warnings.simplefilter("ignore", DeadClassWarning)
            result = sample(
                ladder.sampler,
                jax.tree.map(lambda w: w[None], starts),
                temperatures=[ladder.temperatures[rung]],
                num_chains=num_chains,
                num_steps=num_steps,
                record_every=num_steps // RECORDS_PER_RUNG,
                observe_examples=ladder.observed_examples,
                key=jax.random.fold_in(key, number),
                progress=progress,
            )
        trace = result.trace.isel(temperature=0)
        finite = np.isin(trace["status"].values[:, -1], HEALTHY) & np.isfinite(trace["loss"].values[:, -1])
        starts = _replaced(starts, finite, jax.tree.map(lambda w: w[0], result.weights))
        averages, best = _averages(trace, finite)
        averages["gradient_variance"] = averages["gradient_variance"] * ladder.variance_scale
        cost = num_chains * ladder.cost_of(rung)
        yield Stay(direction, ladder.temperatures[rung], averages, starts, cost, best)


def _replaced(old: Weights, where: np.ndarray, new: Weights) -> Weights:
    """Of every chain the new weights or the old ones."""
    return jax.tree.map(lambda a, b: np.where(where.reshape(-1, *[1] * (a.ndim - 1)), b, a), old, new)


def _averages(trace: xr.Dataset, finite: np.ndarray) -> tuple[xr.Dataset, int]:
    """Over the records of a rung and the finite chains that lost no class, over the finite ones where all did; and the
    first of those chains."""
    dead = np.zeros_like(finite)
    if "dead_class" in trace:
        dead = finite & trace["dead_class"].isel(draw=-1).any("class").values
    healthy = finite & ~dead
    names = ["loss", "potential", "squared_norm", "error", "gradient_variance", "kinetic_temperature"]
    used = healthy if healthy.any() else finite
    if not used.any():
        used = ~used  # all NaN
    kept = trace[[name for name in names if name in trace]].isel(chain=used)
    averages = kept.mean(("chain", "draw"), skipna=False)
    averages["dead_class"] = ((), bool(dead.any()))
    averages["healthy"] = ((), bool(healthy.any()))
    return averages.drop_vars("temperature", errors="ignore"), int(np.argmax(used))


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
