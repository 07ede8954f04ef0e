"""Spin-vector task of the paper: data, network and potential of one size, starts, chains, and their files."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import Dataset, Potential, Result, Sampler, classification, models, sample, samplers, tasks
from .. import _trees as trees
from .._trees import Weights
from ..apps.temperature import trained_starts
from ..diagnostics.averages import DEFAULT_DISCARD, average_by_temperature, kept

SAMPLERS: dict[str, Any] = {
    **{"balanced": samplers.SAMPLERS["balanced_langevin"], "pL": samplers.SAMPLERS["pseudo_langevin"]},
    **{"hMC": samplers.SAMPLERS["hybrid_monte_carlo"], "Adam": samplers.SAMPLERS["adam"]},
}

OFTEN = {"refresh_every": 1_024, "max_refresh_interval": 1_024, "warmup_refreshes": 7}
"""Settings with frequent measurements of 𝒱, which falls by orders of magnitude from random weights on."""


def num_weights(hidden_units: int) -> int:
    """Return N of a network of the paper."""
    return 201 * hidden_units + 1_110


@dataclass(frozen=True)
class Task:
    """Data, network and potential."""

    train: Dataset
    test: Dataset
    network: models.FeedForward
    potential: Potential
    kind: str = "end"  # first word in the names of files with weights

    @property
    def shapes(self) -> Weights:
        """Shapes of the weights."""
        return jax.eval_shape(self.network.init, jax.random.key(0))

    @property
    def num_weights(self) -> int:
        """Number of weights, N."""
        return trees.num_weights(self.shapes)

    def starts(self, num_steps: int, *, seed: int = 0, **options: Any) -> Weights:
        """Return starts without dead classes, leading axes (1, start), from a training by Adam."""
        system = (self.potential, self.train, self.network.init)
        return jax.tree.map(lambda w: w[None], trained_starts(*system, num_steps=num_steps, key=seed, **options))

    def file(self, out: Path, name: str) -> Path:
        """Return the file of starts, or of the weights at which a phase ended."""
        return out / f"{self.kind}-{self.num_weights}-{name.replace(' ', '-')}.npz"


def network_task(hidden_units: int, train: Dataset, test: Dataset, weight_decay: float, **options: Any) -> Task:
    """Return the task of a network with ReLU on the scores, as in the paper."""
    network = models.feedforward((100, hidden_units, 100, 10), output_activation="relu")
    return Task(train, test, network, classification(network.apply, weight_decay=weight_decay), **options)


@cache
def spin_task(hidden_units: int, *, num_train: int | None = None, data_seed: int = 6) -> Task:
    """Return the task with N = 201·L1 + 1110 weights, P = 5N training examples (or P as given) and 0.18·P to test.

    The published data set is not available, and data sets differ: over seeds 0 to 15 the loss of the ideal classifier
    spreads from 0.297 to 0.328. Seed 6 has 0.324 at P = 55 800; the published averages imply about 0.320.
    """
    num_train = num_train or 5 * num_weights(hidden_units)
    train, test = tasks.spin_vectors(jax.random.key(data_seed), num_train=num_train, num_test=round(0.18 * num_train))
    return network_task(hidden_units, train, test, weight_decay=10.0611)


def ideal_loss(task: Task, flip_probability: float = 0.355) -> float:
    """Return the training loss of the ideal classifier, which has the reference vector of every class."""
    inputs, labels = np.asarray(task.train.inputs, np.float32), np.asarray(task.train.targets)
    references = np.sign([inputs[labels == k].mean(axis=0) for k in np.unique(labels)])  # exact for many examples
    scores = inputs @ references.T * (math.log(1 / flip_probability - 1) / 2)
    return float(np.mean(np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(labels)), labels]))


def stored(path: Path, task: Task, make: Callable[[], Weights]) -> Weights:
    """Return the weights in an .npz file, leading axes (1, chain); if it does not exist, make them and write it."""
    if not path.exists():
        keep(path, make())
    with np.load(path, allow_pickle=False) as file:
        return jax.tree.unflatten(jax.tree.structure(task.shapes), [file[name] for name in file.files])


def keep(path: Path, weights: Weights) -> None:
    """Write weights for `stored`."""
    np.savez(path, *map(np.asarray, jax.tree.leaves(weights)))


def adam_starts(task: Task, out: Path, *, num_starts: int, epochs: int, seed: int = 0) -> Weights:
    """Return starts of the paper's Adam, leading axes (1, start), from a file if they were trained before.

    The learning rate is 1e-4, times 0.8 every 1000 epochs.
    """
    schedule: dict[str, Any] = {"learning_rate": 1e-4, "decay_factor": 0.8, "decay_epochs": 1_000}
    num_steps = round(epochs * task.train.num_examples / 128)
    path = out / f"starts-{task.num_weights}-{num_starts}x{epochs}.npz"
    return stored(path, task, lambda: task.starts(num_steps, num_starts=num_starts, seed=seed, **schedule))


@dataclass(frozen=True)
class Chains:
    """Length of some chains, and settings of their sampler."""

    num_steps: int
    record_every: int
    max_seconds: float
    settings: Mapping[str, Any]

    def sample(self, sampler: Callable[..., Sampler], task: Task, starts: Weights, **options: Any) -> Result:
        """Return one chain of a sampler from each start; `options` are further arguments of `sample`.

        Large networks are observed on a part of the examples. Everything is compiled before, by a run of one record, so
        that the time limit is one of sampling.
        """
        made = sampler(task.potential, task.train, **self.settings)
        options |= {"num_chains": jax.tree.leaves(starts)[0].shape[1], "record_every": self.record_every}
        if task.num_weights > 500_000:
            options |= {"observe_examples": 150_000, "chunk_size": 25_000}
        with warnings.catch_warnings(action="ignore"):
            sample(made, starts, num_steps=self.record_every, **options)
        return sample(made, starts, num_steps=self.num_steps, max_seconds=self.max_seconds, **options)

    def first_alive(self, sampler: Any, task: Task, starts: Weights, *, key: int, **options: Any) -> Result:
        """Return the chain from the first start that keeps every class, or else from the last start."""
        for attempt in range(jax.tree.leaves(starts)[0].shape[1]):
            start = jax.tree.map(lambda w, i=attempt: w[:, i : i + 1], starts)
            result = self.sample(sampler, task, start, key=key + attempt, **options)
            last, result.trace.attrs["attempts"] = result.trace.isel(draw=-1), attempt + 1
            if np.isfinite(last["loss"]).all() and not last["dead_class"].any():
                break
        return result


def chains(num_steps: int, record_every: int, max_seconds: float, **settings: Any) -> Chains:
    """Return chains whose sampler has the settings."""
    return Chains(num_steps, record_every, max_seconds, settings)


@dataclass(frozen=True)
class Phase:
    """Chains of one figure that follow each other."""

    name: str
    temperatures: tuple[float, ...]  # none for training by Adam
    chains: Chains
    start: str = "random"  # weights: random, trained, or by Adam; or the phase that is continued
    weight_decay: float | None = None  # λ, where it is not the main one
    discard: float = DEFAULT_DISCARD  # share of the records that averages leave out

    @property
    def sampler(self) -> str:
        """Sampler that the name of the phase lists, or else pL."""
        return next((word for word in re.split(", | on ", self.name) if word in SAMPLERS), "pL")


def measure_phases(
    phases: Sequence[Phase],
    settings: Mapping[str, Any],
    parts: Any,
    out: Path,
    task_of: Callable[[Phase], Task],
    *,
    test: bool = True,
    together: bool = True,
) -> None:
    """Run phases one after the other, one part for each; the last weights of each are kept in a file.

    With `together` there are chains from all starts; otherwise one, from the first start from which it keeps every
    class. With `test` the test error is observed.
    """
    by_name = {phase.name: phase for phase in phases}

    def run(phase: Phase) -> tuple[Weights, dict[str, Any]]:
        task, start = task_of(phase), phase.start

        def begin() -> Weights:
            if start in by_name:  # a part of NAME.json, but its weights are not in this folder
                return run(by_name[start])[0]
            if start == "by Adam":
                return adam_starts(task, out, **settings["adam"])
            given = {"num_starts": settings["num_starts"], "seed": settings["seed"], "untrained": start == "random"}
            return task.starts(settings["start_steps"], **given)

        weights = stored(task.file(out, start), task, begin)
        options: dict[str, Any] = {"temperatures": phase.temperatures} if phase.temperatures else {}
        options |= {"test": task.test.head(200_000)} if test else {}
        sample_chains = phase.chains.sample if together else phase.chains.first_alive
        result = sample_chains(SAMPLERS[phase.sampler], task, weights, key=settings["seed"], **options)
        if len(phase.temperatures) <= 1:
            keep(task.file(out, phase.name), result.weights)
        return result.weights, described(result, phase.discard)

    for phase in phases:
        if phase.start not in by_name or phase.start in parts.found:
            training = 60 if phase.start == "by Adam" else 5
            parts.measure(phase.name, phase.chains.max_seconds + training, lambda phase=phase: run(phase)[1])


def described(result: Result, discard: float = DEFAULT_DISCARD) -> dict[str, Any]:
    """Return what is kept of some chains: averages at every temperature, dead classes, and the test error along them.

    The averages leave out the share `discard` of the records and the warm-up of hybrid Monte Carlo, and chains that
    stopped or have a dead class at the end, unless all of them have one.
    """
    dead = result.trace["dead_class"].isel(draw=-1).any("class")
    alive = dead.all("chain") | ~dead
    warmup = result.sampler.settings.get("warmup_moves", 0) / int(result.trace["step"][-1])
    trace = kept(result.trace, max(discard, min(0.9, warmup)))
    names = ("loss", "squared_norm", "error", "potential", "test_error", "acceptance")
    values: dict[str, Any] = {name: trace[name] for name in names if name in trace}
    if "gradient_variance" in trace:  # weighted mean over the first two layers, as published
        layers = trace["gradient_variance"].transpose("layer", ...)
        sizes = [trees.num_weights(jax.tree.map(lambda w: w[0, 0], x)) for x in trees.layers(result.weights).values()]
        values["gradient_variance"] = (layers[0] * sizes[0] + layers[1] * sizes[1]) / (sizes[0] + sizes[1])
        values |= {f"gradient_variance_{number}": layer for number, layer in enumerate(layers, start=1)}
    averages = {name: average_by_temperature(value.where(alive), trace) for name, value in values.items()}
    levels = [{name: found[i]._asdict() for name, found in averages.items()} for i in range(len(dead))]
    curves = {name: result.trace[name].values for name in ("step", "test_error") if "test_error" in result.trace}
    return {
        "temperatures": trace["temperature"].values,
        "steps": int(result.trace["step"][-1]),
        "averages": levels,
        "dead": dead.values,
        "attempts": result.trace.attrs.get("attempts", 1),
        **curves,
    }


def near_equilibrium(task: Task, temperature: float, out: Path, seconds: float, seed: int = 0) -> Weights:
    """Return weights near equilibrium, leading axes (1, chain), from the file of a long chain if there is one.

    Up to 500 000 weights they are cooled with balanced Langevin, from at most the temperature 1/P of the transition.
    Larger networks are above the transition: pL follows the gradient variance there, from up to three random starts.
    """

    def make() -> Weights:
        if task.num_weights > 500_000:
            start, length = task.starts(2_000, num_starts=3, seed=seed, untrained=True), chains(20_480, 4_096, seconds)
            often = partial(SAMPLERS["pL"], **OFTEN)
            return length.first_alive(often, task, start, temperatures=[temperature], key=seed).weights
        highest = max(temperature, min(10 * temperature, 1 / task.train.num_examples))
        length = chains(40_000, 1_000, seconds / 8, batch_size=min(task.train.num_examples // 10, 5_580))
        start = task.starts(2_000, num_starts=2, seed=seed)
        for level in np.geomspace(highest, temperature, 8):
            start = length.sample(SAMPLERS["balanced"], task, start, temperatures=[float(level)], key=seed).weights
        return start

    names = f"cooled, balanced, T = {temperature:g}", f"{temperature:g}".replace("e-0", "e-")
    files = [task.file(out, name) for name in names]
    return stored(next((file for file in files if file.exists()), files[-1]), task, make)
