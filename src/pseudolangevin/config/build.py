"""From settings to what they describe: data, network, potential, sampler, and where the chains begin."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import chains, models, potential, tasks, trees
from ..chains import Plan
from ..data import Dataset
from ..models import FeedForward
from ..placement import Placement
from ..potential import Potential
from ..reports import DeadClassWarning
from ..samplers.adam import adam
from ..samplers.base import Sampler
from ..types import Weights
from . import arrays
from .errors import ConfigError
from .settings import SAMPLERS, Files, FileStart, RandomStart, Settings

POTENTIALS = {"classification": potential.classification, "regression": potential.regression}
TASKS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "spin_vectors": tasks.spin_vectors,
    "fashion_mnist": tasks.fashion_mnist,
    "idx": tasks.idx,
}
"""What makes (training, …, test) sets from a key and the section's settings."""
STATE_COPIES = 8
"""Copies of the weights that a chain needs at most: momenta, masses, variances, gradients and their temporaries."""


class StopAskedError(Exception):
    """The start was not finished because a stop was asked for."""


@dataclass(frozen=True)
class Experiment:
    """What a configuration describes, ready to run."""

    settings: Settings
    network: FeedForward
    plan: Plan

    @property
    def weights_shape(self) -> Weights:
        """Shapes and types of one chain's weights."""
        return jax.eval_shape(self.network.init, jax.random.key(0))

    def random_weights(self) -> Weights:
        """Random weights of one chain."""
        return self.network.init(jax.random.key(getattr(self.settings.start, "seed", self.settings.seed)))

    def starting_weights(
        self, stop_asked: Callable[[], bool] = lambda: False, *, progress: bool | None = None
    ) -> Weights:
        """The weights the chains begin with, as `sample` takes them; `progress` is that of the training."""
        start = self.settings.start
        if isinstance(start, FileStart):
            return self._from_file(start.file)
        random = isinstance(start, RandomStart)
        num_starts = self.settings.num_chains * (1 if random else start.candidates)
        start_keys = jax.vmap(lambda c: jax.random.fold_in(jax.random.key(start.seed), c))(jnp.arange(num_starts))
        weights = jax.tree.map(lambda w: w[None], jax.vmap(self.network.init)(start_keys))
        return weights if random else self._trained(weights, start, stop_asked, progress)

    def _from_file(self, file: str) -> Weights:
        """Weights of this network: others may fit the loss, but not the checkpoints."""
        shapes = self.weights_shape
        with naming("start.file"):
            weights = arrays.read_weights(file, shapes)
            _check_shapes(file, weights, shapes, self.plan.layout.shape)
            trees.check_weights(weights)
        return jax.tree.map(lambda w, like: w.astype(like.dtype), weights, shapes)

    def _trained(self, weights: Weights, start: Any, stop_asked: Callable[[], bool], progress: bool | None) -> Weights:
        """A short Adam run of all candidates; chains get those whose classes are all alive, as far as they go."""
        sampler, num_chains = self.plan.sampler, self.settings.num_chains
        plan = chains.make_plan(
            _trainer(sampler.potential, sampler.dataset, start),
            temperatures=None,
            num_chains=num_chains * start.candidates,
            num_steps=start.num_steps,
            record_every=start.num_steps,
            # Candidates live where the chains will; where they do not divide, every device has all of them.
            placement=self.plan.mesh if self.plan.mesh is not None else Placement(),
        )
        states = plan.init(weights, start.seed)
        dead: Any = np.zeros(plan.layout.size, bool)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeadClassWarning)
            for record in plan.run(states, segment=TRAINING_SEGMENT, progress=progress):
                states = record.states
                if record.observables is not None and "dead_class" in record.observables:
                    dead = np.any(record.observables["dead_class"], axis=-1)
                if stop_asked():
                    raise StopAskedError
        order = np.argsort(dead, kind="stable")[:num_chains]
        if dead[order].any():
            warnings.warn(
                f"{int(dead[order].sum())} of {num_chains} starts have a dead class, whose score is the same for "
                "nearly every example; raise start.candidates, change start.seed, or use "
                'output_activation = "identity"',
                DeadClassWarning,
                stacklevel=2,
            )
        return jax.tree.map(lambda w: w[order][None], states.weights)


TRAINING_SEGMENT = 500
"""Steps of the Adam start between looks at whether to stop."""


def build(settings: Settings, *, check_start: bool = True) -> Experiment:
    """Make everything that the settings describe, and check that it fits together; nothing is written or compiled.

    Args:
        settings: what to make.
        check_start: check where the chains begin as well, rather than after the folder is made; a run that has begun
            needs no start any more, and its file may be gone.
    """
    _check_memory(settings)
    with naming("task"):
        train, test = _data(settings.task)
    with naming("network"):
        network = models.feedforward(settings.network.sizes, output_activation=settings.network.output_activation)
    energy = POTENTIALS[settings.potential.kind](network.apply, weight_decay=settings.potential.weight_decay)
    weights = jax.tree.map(lambda w: jnp.zeros(w.shape, w.dtype), jax.eval_shape(network.init, jax.random.key(0)))
    with naming("task and network"):
        energy.check(weights, train)
        if test is not None:
            energy.check(weights, test)
    with naming("sampler"):
        sampler = SAMPLERS[settings.sampler.name](energy, train, **settings.sampler.model_dump(exclude={"name"}))
    placement = _placement(settings, train, weights)
    with naming("recording"):
        plan = chains.make_plan(
            sampler,
            temperatures=settings.temperatures,
            num_chains=settings.num_chains,
            num_steps=settings.num_steps,
            record_every=settings.record_every,
            test=test,
            observe_examples=settings.recording.observe_examples,
            placement=placement,
        )
    experiment = Experiment(settings, network, plan)
    if check_start and isinstance(settings.start, FileStart):
        experiment.starting_weights()
    elif check_start and not isinstance(settings.start, RandomStart):
        _trainer(energy, train, settings.start)
    return experiment


def _placement(settings: Settings, train: Dataset, weights: Weights) -> Placement:
    num_chains, asked = settings.num_chains * len(settings.temperatures or [0.0]), settings.placement
    try:
        if asked.is_split:
            placement = Placement(asked.chains or 1, asked.data or 1, asked.weights or 1)
        else:
            placement = Placement.automatic(num_chains) if asked.kind == "automatic" else Placement()
        placement.check(num_chains, train.num_examples, weights)
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    return placement


def _trainer(energy: Potential, train: Dataset, start: Any) -> Sampler:
    with naming("start"):
        return adam(energy, train, **start.model_dump(exclude={"kind", "num_steps", "candidates", "seed"}))


def _check_shapes(file: str, weights: Weights, shapes: Weights, chains_shape: tuple[int, int]) -> None:
    """Refuse weights of another network, and leading axes other than (temperature, chain) in all arrays alike."""
    allowed = [(), *product({1, chains_shape[0]}, {1, chains_shape[1]})]
    named, likes = trees.named_leaves(weights), jax.tree.leaves(shapes)
    leading = named[0][1].shape[: max(0, named[0][1].ndim - len(likes[0].shape))]
    for (name, leaf), like in zip(named, likes, strict=True):
        if leading not in allowed or leaf.shape != leading + like.shape:
            raise ValueError(
                f"{file}: {name} has shape {leaf.shape}; this network's is {like.shape}, in all arrays alone or after "
                f"axes of {chains_shape} or 1 (temperature, chain); change network.sizes, or give another file"
            )


def _data(task: Any) -> tuple[Dataset, Dataset | None]:
    if isinstance(task, Files):
        test = arrays.read_dataset(task.test_file, task.test_inputs, task.test_targets)
        train = arrays.read_dataset(task.file, task.inputs, task.targets, stream=task.stream)
        assert train is not None
        return train, test
    splits = TASKS[task.kind](jax.random.key(task.seed), **task.model_dump(exclude={"kind", "seed"}))
    return splits[0], splits[-1]


@contextmanager
def naming(section: str) -> Iterator[None]:
    """Say which section of the file an error comes from, on one line."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError([f"{section}: {' '.join(str(error).split())}"]) from error


def _check_memory(settings: Settings) -> None:
    """Refuse sizes that this machine cannot hold, before it tries."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * jax.process_count()
    sizes = settings.network.sizes
    num_weights = sum((a + 1) * b for a, b in pairwise(sizes))
    num_all = settings.num_chains * max(len(settings.temperatures or [0.0]), getattr(settings.start, "candidates", 1))
    needs = [("network.sizes, num_chains and temperatures", STATE_COPIES * 4 * num_weights * num_all)]
    if settings.task.kind == "spin_vectors":
        task = settings.task
        examples = (task.num_train + task.num_test) * (5 * task.dimension + 4)
        needs.append(("task.num_train, num_test and dimension", examples + task.num_classes * task.dimension))
    for keys, need in needs:
        if need > available:
            raise ConfigError(
                [
                    f"{keys} need about {need / 1e9:.3g} GB and this machine has {available / 1e9:.3g} GB; "
                    "make them smaller"
                ]
            )
