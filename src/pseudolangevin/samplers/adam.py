"""Adam under the same driver: the baseline, and the maker of starting points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import gradients
from ..checks import check_integer, check_interval, check_positive
from ..data import Dataset
from ..gradients import Oracle
from ..potential import Potential
from ..types import Array, Key, Status, Weights
from .base import Kernel, Sampler, Stream, key_for


class AdamState(NamedTuple):
    """One training run."""

    weights: Weights
    temperature: Array
    key: Key
    step: Array
    status: Array
    optimizer: Any


@dataclass(frozen=True, eq=False)
class AdamKernel(Kernel):
    """An optax optimiser driven by mini-batch gradients."""

    oracle: Oracle
    optimizer: optax.GradientTransformation

    def init(self, key: Key, weights: Weights, temperature: Array, dataset: Dataset) -> AdamState:
        """Start with empty moments."""
        del dataset
        status = jnp.asarray(Status.RUNNING, jnp.int32)
        return AdamState(weights, temperature, key, jnp.zeros((), jnp.int32), status, self.optimizer.init(weights))

    def step(self, state: AdamState, dataset: Dataset) -> AdamState:
        """One update."""
        gradient = self.oracle(key_for(state.key, Stream.STEP, state.step), state.weights, dataset)
        updates, optimizer_state = self.optimizer.update(gradient, state.optimizer, state.weights)
        weights = jax.tree.map(jnp.add, state.weights, updates)
        return state._replace(weights=weights, optimizer=optimizer_state, step=state.step + 1)


def adam(
    potential: Potential,
    dataset: Dataset,
    *,
    batch_size: int = 128,
    learning_rate: float = 1e-4,
    decay_factor: float = 1.0,
    decay_epochs: float = 1000.0,
    precision: str | None = None,
) -> Sampler:
    """Minimise the same potential, regulariser included, with Adam on mini-batches drawn with replacement.

    It has no temperature: run it with `sample` without temperatures; its chains are independent trainings.

    Args:
        potential: U.
        dataset: the training set.
        batch_size: examples per mini-batch.
        learning_rate: initial learning rate.
        decay_factor: the learning rate is multiplied by this every `decay_epochs` epochs (the paper's: 0.8).
        decay_epochs: see `decay_factor`; an epoch is P/S steps.
        precision: of the matrix products.

    Example:
        >>> start = sample(adam(potential, train), weights, num_steps=2_000, key=key).weights  # doctest: +SKIP
    """
    check_integer("batch_size", batch_size, minimum=1, maximum=dataset.num_examples)
    check_positive("learning_rate", learning_rate)
    check_interval("decay_factor", decay_factor, 0, 1, "use 1 for a constant learning rate")
    check_positive("decay_epochs", decay_epochs)
    steps_per_decay = max(1, round(decay_epochs * dataset.num_examples / batch_size))
    schedule = optax.exponential_decay(learning_rate, steps_per_decay, decay_factor, staircase=True)
    kernel = AdamKernel(gradients.minibatch(potential, batch_size, precision), optax.adam(schedule))
    settings = {
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "decay_factor": decay_factor,
        "decay_epochs": decay_epochs,
        "precision": precision,
    }
    return Sampler("adam", kernel, potential, dataset, settings, uses_temperature=False)
