"""Adam as a sampler without temperature: the baseline, and a source of starting weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from .. import _trees as trees
from .._trees import Array, Batch, Key, Weights
from .base import Positive, Sampler, Share


class AdamState(NamedTuple):
    """State of one training run."""

    weights: Weights
    temperature: Array
    key: Key
    step: Array
    status: Array
    optimizer: Any


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Adam(Sampler):
    """Adam on mini-batches drawn with replacement: minimises the same potential, regulariser included.

    It has no temperature: run it with `sample` without temperatures; its chains are independent trainings.

    Args:
        batch_size: examples per mini-batch.
        learning_rate: initial learning rate.
        decay_factor: factor by which the learning rate is multiplied every `decay_epochs` epochs (the paper's: 0.8).
        decay_epochs: epochs between two changes of the learning rate; an epoch is P/S steps.
        precision: precision of the matrix products.

    Example:
        >>> start = pl.sample(pl.adam(potential, train), weights, num_steps=2_000, key=key).weights
    """

    batch_size: int = 128  # type: ignore[misc]
    learning_rate: Positive = 1e-4
    decay_factor: Share = 1.0
    decay_epochs: Positive = 1000.0
    precision: str | None = None
    name: ClassVar[str] = "adam"
    uses_temperature: ClassVar[bool] = False
    steps_per_block: ClassVar[int] = 50
    packs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        trees.check_integer("batch_size", self.batch_size, minimum=1, maximum=self.dataset.num_examples)

    @property
    def optimizer(self) -> Any:
        """The optax optimiser."""
        import optax  # noqa: PLC0415 (slow to import)

        steps_per_decay = max(1, round(self.decay_epochs * self.dataset.num_examples / self.batch_size))
        schedule = optax.exponential_decay(self.learning_rate, steps_per_decay, self.decay_factor, staircase=True)
        return optax.adam(schedule)

    def init(self, key: Key, weights: Weights, temperature: Array | float = 0.0) -> AdamState:
        return AdamState(**self.beginning(key, weights, temperature), optimizer=self.optimizer.init(weights))

    def step(self, state: AdamState, batch: Batch | None) -> AdamState:
        gradient = trees.pack_like(state.weights, self.gradient(trees.unpack(state.weights), batch))
        updates, optimizer_state = self.optimizer.update(gradient, state.optimizer, state.weights)
        weights = jax.tree.map(jnp.add, state.weights, updates)
        return state._replace(weights=weights, optimizer=optimizer_state, step=state.step + 1)
