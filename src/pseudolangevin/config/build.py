"""From settings to what they describe: data, network, potential, sampler, and where the chains begin."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from .. import chains, models, potential, tasks
from ..chains import Plan
from ..data import Dataset
from ..models import FeedForward
from ..samplers.adam import adam
from ..types import Weights
from . import arrays
from .errors import ConfigError
from .settings import SAMPLERS, Files, FileStart, RandomStart, Settings

POTENTIALS = {"classification": potential.classification, "regression": potential.regression}
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

    def starting_weights(self, stop_asked: Callable[[], bool] = lambda: False) -> Weights:
        """The weights the chains begin with, as `sample` takes them."""
        start = self.settings.start
        if isinstance(start, FileStart):
            with naming("start"):
                return arrays.read_weights(start.file, self.weights_shape)
        chain_keys = jax.vmap(lambda c: jax.random.fold_in(jax.random.key(start.seed), c))(
            jnp.arange(self.settings.num_chains)
        )
        weights = jax.tree.map(lambda w: w[None], jax.vmap(self.network.init)(chain_keys))
        return weights if isinstance(start, RandomStart) else self._trained(weights, start, stop_asked)

    def _trained(self, weights: Weights, start: Any, stop_asked: Callable[[], bool]) -> Weights:
        """A short Adam run, each chain its own."""
        sampler = self.plan.sampler
        with naming("start"):
            trainer = adam(
                sampler.potential, sampler.dataset, **start.model_dump(exclude={"kind", "num_steps", "seed"})
            )
        plan = chains.make_plan(
            trainer,
            temperatures=None,
            num_chains=self.settings.num_chains,
            num_steps=start.num_steps,
            record_every=start.num_steps,
            observe_examples=min(1000, sampler.dataset.num_examples),
        )
        states = plan.init(weights, start.seed)
        for record in plan.run(states, segment=TRAINING_SEGMENT):
            states = record.states
            if stop_asked():
                raise StopAskedError
        return plan.layout.unflatten(states.weights)


TRAINING_SEGMENT = 500
"""Steps of the Adam start between looks at whether to stop."""


def build(settings: Settings) -> Experiment:
    """Make everything that the settings describe, and check that it fits together; nothing is written or compiled."""
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
    with naming("recording"):
        plan = chains.make_plan(
            sampler,
            temperatures=settings.temperatures,
            num_chains=settings.num_chains,
            num_steps=settings.num_steps,
            record_every=settings.record_every,
            test=test,
            observe_examples=settings.recording.observe_examples,
        )
    if not isinstance(settings.start, RandomStart | FileStart):
        with naming("start"):  # refuse bad numbers now rather than after the folder is made
            adam(energy, train, **settings.start.model_dump(exclude={"kind", "num_steps", "seed"}))
    return Experiment(settings, network, plan)


def _data(task: Any) -> tuple[Dataset, Dataset | None]:
    if isinstance(task, Files):
        test = arrays.read_dataset(task.test_file, task.test_inputs, task.test_targets)
        train = arrays.read_dataset(task.file, task.inputs, task.targets)
        assert train is not None
        return train, test
    return tasks.spin_vectors(jax.random.key(task.seed), **task.model_dump(exclude={"kind", "seed"}))


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
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    sizes = settings.network.sizes
    num_weights = sum((a + 1) * b for a, b in pairwise(sizes))
    num_all = settings.num_chains * len(settings.temperatures or [0.0])
    needs = [("network.sizes, num_chains and temperatures", STATE_COPIES * 4 * num_weights * num_all)]
    if not isinstance(settings.task, Files):
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
