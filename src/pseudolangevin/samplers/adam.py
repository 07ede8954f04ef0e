"""Adam under the same driver: the baseline, and the maker of starting points.

With a validation set it also keeps the best weights seen (early stopping): the validation set is computed between
segments, through the kernel's `refresh`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from .. import gradients, trees
from ..checks import check_integer, check_interval, check_positive
from ..data import Dataset, ValidatedDataset
from ..gradients import DEFAULT_CHUNK_SIZE, Oracle, exact_means
from ..potential import Potential
from ..streamed import StreamedDataset
from ..types import Array, Key, Status, Weights
from .base import Kernel, Measurements, Sampler, Stream, key_for


class Validation(NamedTuple):
    """The last look at the validation set, and the best one."""

    loss: Array
    error: Array | None
    """None where the potential has no error."""
    step: Array
    """When it was computed."""
    best_score: Array
    """Smallest error so far, or smallest loss where there is no error."""
    best_step: Array
    best_weights: Weights
    num_since_best: Array
    """Validations since the best one."""

    @property
    def score(self) -> Array:
        """What is to be small."""
        return self.loss if self.error is None else self.error


class AdamState(NamedTuple):
    """One training run."""

    weights: Weights
    temperature: Array
    key: Key
    step: Array
    status: Array
    optimizer: Any
    validation: Validation | None
    """None where there is no validation set."""


@dataclass(frozen=True, eq=False)
class AdamKernel(Kernel):
    """An optax optimiser driven by mini-batch gradients."""

    potential: Potential
    oracle: Oracle
    optimizer: optax.GradientTransformation
    refresh_every: int | None = None
    """Steps between validations; None: there is no validation set."""
    patience: int | None = None
    chunk_size: int = DEFAULT_CHUNK_SIZE
    batch_size: int | None = None

    def init(self, key: Key, weights: Weights, temperature: Array, dataset: Dataset) -> AdamState:
        """Start with empty moments; the start is the best so far."""
        step = jnp.zeros((), jnp.int32)
        status = jnp.asarray(Status.RUNNING, jnp.int32)
        validation = None
        if isinstance(dataset, ValidatedDataset):
            loss, error = self._validate(weights, dataset)
            score = loss if error is None else error
            validation = Validation(loss, error, step, score, step, weights, jnp.zeros((), jnp.int32))
        return AdamState(weights, temperature, key, step, status, self.optimizer.init(weights), validation)

    def step(self, state: AdamState, dataset: Dataset) -> AdamState:
        """One update."""
        key = key_for(state.key, Stream.STEP, state.step)
        gradient = self.oracle(key, state.weights, self.with_batch(state, dataset))
        updates, optimizer_state = self.optimizer.update(gradient, state.optimizer, state.weights)
        weights = jax.tree.map(jnp.add, state.weights, updates)
        return state._replace(weights=weights, optimizer=optimizer_state, step=state.step + 1)

    def next_refresh(self, state: AdamState) -> Array:
        """When the validation set is computed again."""
        assert state.validation is not None
        assert self.refresh_every is not None
        return state.validation.step + self.refresh_every

    def refresh(self, state: AdamState, dataset: Dataset) -> AdamState:
        """Compute the validation set, keep the weights if they are the best, and stop when patience runs out."""
        assert state.validation is not None
        assert isinstance(dataset, ValidatedDataset)
        loss, error = self._validate(state.weights, dataset)
        now = state.validation._replace(loss=loss, error=error, step=state.step)
        better = now.score < now.best_score
        now = now._replace(
            best_score=jnp.where(better, now.score, now.best_score),
            best_step=jnp.where(better, state.step, now.best_step),
            best_weights=trees.select(better, state.weights, now.best_weights),
            num_since_best=jnp.where(better, 0, now.num_since_best + 1),
        )
        status = state.status
        if self.patience is not None:
            status = jnp.where(now.num_since_best >= self.patience, Status.EARLY_STOPPED, status)
        return state._replace(validation=now, status=status)

    def measure(self, state: AdamState, exact_gradient: Weights) -> Measurements:
        """The last look at the validation set."""
        del exact_gradient
        validation = state.validation
        if validation is None:
            return {}
        measurements = {
            "validation_loss": validation.loss,
            "validation_step": validation.step,
            "best_step": validation.best_step,
        }
        return measurements if validation.error is None else measurements | {"validation_error": validation.error}

    def _validate(self, weights: Weights, dataset: ValidatedDataset) -> tuple[Array, Array | None]:
        """Loss and error of the validation set. One that overflows is just large and must not stop a chain."""
        quantities = [self.potential.per_example_loss]
        if self.potential.per_example_error is not None:
            quantities.append(self.potential.per_example_error)
        means = exact_means(quantities, weights, dataset.validation, self.chunk_size)
        loss = means[0].high
        largest = float(jnp.finfo(loss.dtype).max)
        loss = jnp.nan_to_num(loss, nan=largest, posinf=largest)
        return loss, means[1].high if len(means) > 1 else None


def adam(
    potential: Potential,
    dataset: Dataset,
    *,
    batch_size: int = 128,
    learning_rate: float = 1e-4,
    decay_factor: float = 1.0,
    decay_epochs: float = 1000.0,
    validation: Dataset | None = None,
    validate_every: int | None = None,
    patience: int | None = None,
    precision: str | None = None,
) -> Sampler:
    """Minimise the same potential, regulariser included, with Adam on mini-batches drawn with replacement.

    It has no temperature: run it with `sample` without temperatures; its chains are independent trainings.
    The trace holds the history: error and loss of the training set, of a test set if `sample` got one, and of the
    validation set (`validation_error`, `validation_loss`, computed at `validation_step`).

    Args:
        potential: U.
        dataset: the training set.
        batch_size: examples per mini-batch.
        learning_rate: initial learning rate.
        decay_factor: the learning rate is multiplied by this every `decay_epochs` epochs (the paper's: 0.8).
        decay_epochs: see `decay_factor`; an epoch is P/S steps.
        validation: optional validation set; the weights with the smallest validation error (loss, where the potential
            has no error) are kept, the first of equals, and `best_weights` returns them.
        validate_every: steps between validations; default: one epoch.
        patience: a chain stops after so many validations in a row without a better one; default: never.
        precision: of the matrix products.

    Example:
        >>> start = sample(adam(potential, train), weights, num_steps=2_000, key=key).weights  # doctest: +SKIP
        >>> sampler = adam(potential, train, validation=held_out, patience=20)  # doctest: +SKIP
        >>> best = best_weights(sample(sampler, weights, num_steps=100_000, key=key))  # doctest: +SKIP
    """
    check_integer("batch_size", batch_size, minimum=1, maximum=dataset.num_examples)
    check_positive("learning_rate", learning_rate)
    check_interval("decay_factor", decay_factor, 0, 1, "use 1 for a constant learning rate")
    check_positive("decay_epochs", decay_epochs)
    if validation is not None:
        validate_every = max(1, round(dataset.num_examples / batch_size)) if validate_every is None else validate_every
        dataset = _with_validation(dataset, validation)
        check_integer("validate_every", validate_every, minimum=1)
        if patience is not None:
            check_integer("patience", patience, minimum=1, remedy="leave it out to never stop")
    elif validate_every is not None or patience is not None:
        name, value = ("patience", patience) if validate_every is None else ("validate_every", validate_every)
        raise ValueError(f"{name} = {value!r} needs a validation set; pass validation=, or leave it out")
    steps_per_decay = max(1, round(decay_epochs * dataset.num_examples / batch_size))
    schedule = optax.exponential_decay(learning_rate, steps_per_decay, decay_factor, staircase=True)
    oracle = gradients.minibatch(potential, batch_size, precision)
    kernel = AdamKernel(potential, oracle, optax.adam(schedule), validate_every, patience, batch_size=batch_size)
    settings = {
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "decay_factor": decay_factor,
        "decay_epochs": decay_epochs,
        "num_validation": validation.num_examples if validation is not None else 0,
        "validate_every": validate_every,
        "patience": patience,
        "precision": precision,
    }
    return Sampler("adam", kernel, potential, dataset, settings, uses_temperature=False)


def _with_validation(training: Dataset, validation: Dataset) -> ValidatedDataset:
    if not isinstance(validation, Dataset):
        raise ValueError(f"validation = {validation!r} is not a Dataset; pass Dataset(inputs, targets)")
    for name, dataset in (("the training set", training), ("validation", validation)):
        if isinstance(dataset, StreamedDataset):
            raise ValueError(f"{name} is a StreamedDataset, which cannot be validated on the way; pass a Dataset")

    def examples(dataset: Dataset) -> Any:
        return jax.tree.map(lambda array: array.shape[1:], dataset.batch)

    if examples(training) != examples(validation):
        raise ValueError(
            f"validation holds examples of shapes {examples(validation)}, the training set {examples(training)}; "
            "they must be the same"
        )
    return ValidatedDataset(training, validation)


class Trained(Protocol):
    """What `sample` returns, as far as it matters here."""

    @property
    def states(self) -> Any:
        """Final states, with one leading axis over chains."""

    @property
    def sampler(self) -> Sampler:
        """What was run."""


def best_weights(result: Trained) -> Weights:
    """The weights of the best validation of every chain, leading axes (temperature = 1, chain), as `sample` takes them.

    The last weights of the run count as well: they are validated here if the run ended before it came to that.

    Args:
        result: of `sample` with `adam(..., validation=...)`.
    """
    kernel, dataset = result.sampler.kernel, result.sampler.dataset
    if not isinstance(kernel, AdamKernel) or not isinstance(dataset, ValidatedDataset):
        raise ValueError(
            f"result comes from {result.sampler.name} without a validation set; "
            "best_weights needs a run of adam(potential, dataset, validation=...)"
        )
    states = _validate_last(kernel, result.states, dataset)
    return jax.tree.map(lambda leaf: leaf[None], states.validation.best_weights)


@partial(jax.jit, static_argnames="kernel")
def _validate_last(kernel: AdamKernel, states: AdamState, dataset: ValidatedDataset) -> AdamState:
    def validate(state: AdamState) -> AdamState:
        assert state.validation is not None
        moved = (state.status == Status.RUNNING) & (state.step > state.validation.step)
        return trees.select(moved, kernel.refresh(state, dataset), state)

    return jax.vmap(validate)(states)
