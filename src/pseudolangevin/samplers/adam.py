"""Adam as a sampler without temperature: the baseline, and a source of starting weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from .. import _trees as trees
from .._trees import Array, Batch, Key, Weights
from ..data.dataset import Dataset, StreamedDataset
from ..gradients import exact_means
from .base import MAX_STEPS, Count, Positive, Sampler, Share, Status


class Validation(NamedTuple):
    """The last validation and the best one."""

    loss: Array
    error: Array | None  # None if the potential has no error
    step: Array
    best_score: Array  # smallest error so far, or smallest loss if there is no error
    best_step: Array
    best_weights: Weights


class AdamState(NamedTuple):
    """State of one training run."""

    weights: Weights
    temperature: Array
    key: Key
    step: Array
    status: Array
    optimizer: Any
    validation: Validation | None  # None if there is no validation set


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Adam(Sampler):
    """Adam on mini-batches drawn with replacement: minimises the same potential, regulariser included.

    It has no temperature: run it with `sample` without temperatures; its chains are independent trainings. The trace
    also has `validation_error` and `validation_loss`, computed at `validation_step`.

    Args:
        batch_size: examples per mini-batch.
        learning_rate: initial learning rate.
        decay_factor: factor by which the learning rate is multiplied every `decay_epochs` epochs (the paper's: 0.8).
        decay_epochs: epochs between two changes of the learning rate; an epoch is P/S steps.
        validation: optional validation set; the weights with the smallest validation error (loss, if the potential has
            no error) are kept, the first of equals, and `best_weights` returns them.
        validate_every: steps between validations; default: one epoch.
        patience: number of validations without improvement after which a chain stops; default: never.
        precision: precision of the matrix products.

    Example:
        >>> start = pl.sample(pl.adam(potential, train), weights, num_steps=2_000, key=key).weights
        >>> sampler = pl.adam(potential, train, validation=held_out, patience=20)
        >>> best = pl.best_weights(pl.sample(sampler, weights, num_steps=100_000, key=key))
    """

    batch_size: int = 128  # type: ignore[misc]
    learning_rate: Positive = 1e-4
    decay_factor: Share = 1.0
    decay_epochs: Positive = 1000.0
    validation: Dataset | None = None
    validate_every: Count | None = None
    patience: Count | None = None
    precision: str | None = None
    name: ClassVar[str] = "adam"
    uses_temperature: ClassVar[bool] = False
    steps_per_block: ClassVar[int] = 50
    packs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        trees.check_integer("batch_size", self.batch_size, minimum=1, maximum=self.dataset.num_examples)
        if self.validation is None:
            for name in ("validate_every", "patience"):
                if (value := getattr(self, name)) is not None:
                    raise ValueError(f"{name} = {value!r} needs a validation set; pass validation=, or leave it out")
            return
        if not isinstance(self.validation, Dataset):
            raise ValueError(f"validation = {self.validation!r} is not a Dataset; pass Dataset(inputs, targets)")
        for name, dataset in (("the training set", self.dataset), ("validation", self.validation)):
            if isinstance(dataset, StreamedDataset):
                why = "cannot be validated during training"
                raise ValueError(f"{name} is a StreamedDataset, which {why}; pass a Dataset")
        own, theirs = (jax.tree.map(lambda a: a.shape[1:], d.batch) for d in (self.validation, self.dataset))
        if own != theirs:
            remedy = "they must be the same"
            raise ValueError(f"validation holds examples of shapes {own}, the training set {theirs}; {remedy}")
        if self.validate_every is None:
            object.__setattr__(self, "validate_every", max(1, round(self.dataset.num_examples / self.batch_size)))

    @property
    def optimizer(self) -> Any:
        """The optax optimiser."""
        import optax  # noqa: PLC0415 (slow to import)

        steps_per_decay = max(1, round(self.decay_epochs * self.dataset.num_examples / self.batch_size))
        schedule = optax.exponential_decay(self.learning_rate, steps_per_decay, self.decay_factor, staircase=True)
        return optax.adam(schedule)

    def check(self, weights: Weights) -> None:
        if self.validation is not None:
            try:
                self.potential.check(weights, self.validation)
            except ValueError as error:
                raise ValueError(f"validation: {error}") from error

    def init(self, key: Key, weights: Weights, temperature: Array | float = 0.0) -> AdamState:
        validation = None
        if self.validation is not None:
            (loss, error), step = self._validate(weights), jnp.zeros((), jnp.int32)
            validation = Validation(loss, error, step, loss if error is None else error, step, weights)
        common = self.beginning(key, weights, temperature)
        return AdamState(**common, optimizer=self.optimizer.init(weights), validation=validation)

    def step(self, state: AdamState, batch: Batch | None) -> AdamState:
        gradient = trees.pack_like(state.weights, self.gradient(trees.unpack(state.weights), batch))
        updates, optimizer_state = self.optimizer.update(gradient, state.optimizer, state.weights)
        weights = jax.tree.map(jnp.add, state.weights, updates)
        return state._replace(weights=weights, optimizer=optimizer_state, step=state.step + 1)

    @property
    def refreshes(self) -> bool:
        return self.validation is not None

    def next_refresh(self, state: AdamState) -> Array:
        last = MAX_STEPS if state.validation is None else state.validation.step
        return jnp.asarray(last + (self.validate_every or 0))

    def refresh(self, state: AdamState) -> AdamState:
        """Compute the validation set, keep the weights if they are the best, and stop when patience runs out."""
        last: Any = state.validation
        loss, error = self._validate(state.weights)
        score = loss if error is None else error
        best = last.best_score, last.best_step, last.best_weights
        best = trees.select(score < last.best_score, (score, state.step, state.weights), best)
        now, status = Validation(loss, error, state.step, *best), state.status
        if self.patience is not None:
            num_since_best = (state.step - now.best_step) // (self.validate_every or 1)
            status = jnp.where(num_since_best >= self.patience, Status.EARLY_STOPPED, status)
        return state._replace(validation=now, status=status)

    def measure(self, state: AdamState, exact_gradient: Weights) -> dict[str, Array]:
        if (last := state.validation) is None:
            return {}
        found = {"validation_loss": last.loss, "validation_step": last.step, "best_step": last.best_step}
        return found if last.error is None else found | {"validation_error": last.error}

    def _validate(self, weights: Weights) -> tuple[Array, Array | None]:
        """Return loss and error of the validation set; a loss that overflows is large and must not stop a chain."""
        validation: Any = self.validation
        quantities = [q for q in (self.potential.per_example_loss, self.potential.per_example_error) if q is not None]
        loss, *error = (mean.high for mean in exact_means(quantities, weights, validation, None))
        largest = float(jnp.finfo(loss.dtype).max)
        return jnp.nan_to_num(loss, nan=largest, posinf=largest), error[0] if error else None


def best_weights(result: Any) -> Weights:
    """Return the weights of the best validation of every chain, with leading axes (temperature = 1, chain).

    The last weights of the run count as well: they are validated here if the run ended before their validation.

    Args:
        result: result of `sample` with `adam(..., validation=...)`.
    """
    sampler = result.sampler
    if not isinstance(sampler, Adam) or sampler.validation is None:
        remedy = "best_weights needs a run of adam(potential, dataset, validation=...)"
        raise ValueError(f"result comes from {sampler.name} without a validation set; {remedy}")
    best = _validated(sampler, result.states).validation.best_weights
    return jax.tree.map(lambda leaf: leaf[None], best)


_validated = jax.jit(jax.vmap(Adam.refresh, in_axes=(None, 0)))
