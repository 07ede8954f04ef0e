"""The paper's setting: noisy spin vectors, three sizes of network, and weights trained as the paper trains them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from .. import models, tasks, trees
from ..chains import sample
from ..data import Dataset
from ..potential import Potential, classification
from ..reports import DeadClassWarning
from ..samplers.adam import adam
from ..types import Weights
from .starts import side_by_side
from .timed import sample_for

WEIGHT_DECAY = 10.0611
HIDDEN_UNITS = {11_160: 50, 101_610: 500, 1_006_110: 5_000}
"""L1 for each of the published numbers of weights, N = 201·L1 + 1110."""

LOST_CLASS = 0.05
"""A start whose error is so far above that of the best has lost a class: half of one in ten."""

DATA_SEED = 6
"""The data set. The published one is not available, and data sets differ: over seeds 0 … 15 the loss of the ideal
classifier (which knows the reference vectors) spreads from 0.297 to 0.328, more than the effects studied. This is
the seed whose ideal error, 0.1095, comes nearest to what the published error at T = 3e-5 implies."""


@dataclass(frozen=True)
class SpinTask:
    """Data, network and potential of one size."""

    train: Dataset
    test: Dataset
    network: models.FeedForward
    potential: Potential

    @property
    def num_weights(self) -> int:
        """N."""
        return trees.num_weights(jax.eval_shape(self.network.init, jax.random.key(0)))


def spin_task(hidden_units: int, *, num_train: int | None = None, data_seed: int = DATA_SEED) -> SpinTask:
    """The paper's task with P = 5N training and 0.18·P test examples (or P as given)."""
    network = models.feedforward((100, hidden_units, 100, 10), output_activation="relu")
    num_train = num_train or 5 * (201 * hidden_units + 1_110)
    train, test = tasks.spin_vectors(jax.random.key(data_seed), num_train=num_train, num_test=round(0.18 * num_train))
    return SpinTask(train, test, network, classification(network.apply, weight_decay=WEIGHT_DECAY))


def living_starts(task: SpinTask, num_starts: int, *, seed: int = 0) -> Weights:
    """Random weights, leading axes (1, num_starts), that learn all classes in ten epochs of Adam.

    ReLU on the logits leaves some random starts with a class that never learns, or hardly; these are passed over.
    """
    num_candidates = 8 * num_starts
    found: list[Weights] = []
    for attempt in range(8):
        found += _learning(task, range(seed + attempt * num_candidates, seed + (attempt + 1) * num_candidates))
        if len(found) >= num_starts:
            return side_by_side(found[:num_starts])
    raise ValueError(
        f"only {len(found)} of {8 * num_candidates} random starts keep all classes alive; try another seed"
    )


def _learning(task: SpinTask, seeds: Sequence[int]) -> list[Weights]:
    """The candidates that learn all classes: none is dead, and the error is near the best one's."""
    candidates = [task.network.init(jax.random.key(s)) for s in seeds]
    num_steps = 10 * task.train.num_examples // 128
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadClassWarning)
        result = sample(
            adam(task.potential, task.train, learning_rate=1e-3),
            side_by_side(candidates),
            num_chains=len(candidates),
            num_steps=num_steps,
            record_every=num_steps,
            key=seeds[0],
        )
    last = result.trace.isel(temperature=0, draw=-1)
    dead, errors = last.dead_class.any("class").values, np.nan_to_num(last.error.values, nan=1.0)
    learned = ~dead & (errors <= np.min(errors, where=~dead, initial=1.0) + LOST_CLASS)
    return [candidate for candidate, good in zip(candidates, learned, strict=True) if good]


def trained_starts(
    task: SpinTask,
    num_starts: int,
    *,
    epochs: int,
    seed: int = 0,
    cache: Path | None = None,
    progress: bool | None = None,
) -> Weights:
    """Starts trained by the paper's Adam: batches of 128, learning rate 1e-4, times 0.8 every 1000 epochs.

    With `cache`, an .npz file is read if it is there and written otherwise: training is the longest part.
    """
    if cache is not None and cache.exists():
        return _read(cache, task, num_starts)
    starts = living_starts(task, num_starts, seed=seed)
    num_steps = round(epochs * task.train.num_examples / 128)
    result = sample(
        adam(task.potential, task.train, learning_rate=1e-4, decay_factor=0.8, decay_epochs=1_000),
        starts,
        num_chains=num_starts,
        num_steps=num_steps,
        record_every=max(1, num_steps // 20),
        key=seed,
        test=task.test,
        progress=progress,
    )
    trained = jax.tree.map(np.asarray, result.weights)
    if cache is not None:
        cache.parent.mkdir(parents=True, exist_ok=True)
        np.savez(cache, *jax.tree.leaves(trained))
    return trained


def quick_start(
    task: SpinTask, *, seconds: float, num_candidates: int = 1, record_every: int = 2_000, seed: int = 0
) -> Weights:
    """One chain's weights after Adam (batches of 128, learning rate 1e-3) for some seconds.

    Of several candidates the one with the lowest loss among those whose classes are all alive.
    """
    inits = [task.network.init(jax.random.key(seed + i)) for i in range(num_candidates)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadClassWarning)
        run = sample_for(
            seconds,
            adam(task.potential, task.train, learning_rate=1e-3),
            side_by_side(inits),
            temperatures=None,
            num_chains=num_candidates,
            record_every=record_every,
            max_steps=10_000_000,
            key=seed,
        )
    last = run.trace.isel(temperature=0, draw=-1)
    order = np.lexsort([last.loss.values, last.dead_class.any("class").values])
    return jax.tree.map(lambda w: np.asarray(w[0, order[0]]), run.weights)


def cached_start(cache: Path, task: SpinTask) -> Weights | None:
    """The first chain's weights of a file, where it is there and fits: the starts that `thermodynamics` trained."""
    if not cache.exists():
        return None
    with np.load(cache, allow_pickle=False) as stored:
        num_starts = stored[stored.files[0]].shape[1]
    return jax.tree.map(lambda w: w[0, 0], _read(cache, task, num_starts))


def keep_end(out: Path, task: SpinTask, temperature: float, weights: Weights) -> None:
    """Write where a long chain at this temperature ended, leading axes (1, chain): a start for other studies."""
    out.mkdir(parents=True, exist_ok=True)
    np.savez(_end_of(out, task, temperature), *map(np.asarray, jax.tree.leaves(weights)))


def kept_end(out: Path, task: SpinTask, temperature: float) -> Weights | None:
    """One chain's weights at the end of a study at this temperature, where there was one."""
    return cached_start(_end_of(out, task, temperature), task)


def _end_of(out: Path, task: SpinTask, temperature: float) -> Path:
    return out / f"end-{task.num_weights}-{temperature:g}.npz"


def _read(cache: Path, task: SpinTask, num_starts: int) -> Weights:
    shapes, structure = jax.tree.flatten(jax.eval_shape(task.network.init, jax.random.key(0)))
    with np.load(cache, allow_pickle=False) as stored:
        found = [stored[name] for name in stored.files]
    if [leaf.shape for leaf in found] != [(1, num_starts, *leaf.shape) for leaf in shapes]:
        raise ValueError(f"{cache} holds starts of another network or number; remove it")
    return jax.tree.unflatten(structure, found)
