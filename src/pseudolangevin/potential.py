"""The potential U(w) = mean loss over the examples + λ/(2N)·|w|² (eq:potential)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from . import patterns, trees
from .checks import as_number, check_integer
from .data import Dataset, ValidatedDataset
from .models import FeedForward
from .types import Array, Batch, PerExample, Weights

WeightDecay: TypeAlias = float | Mapping[str, float]
"""λ for all weights, or for those whose names match a pattern."""


@dataclass(frozen=True)
class Layered:
    """The inside of a loss on a feed-forward network, for what can be computed faster by knowing it."""

    network: FeedForward
    output_loss: Callable[[Array, Any], Array]
    """Maps (outputs, targets) of S examples to S losses."""


@dataclass(frozen=True, eq=False)
class Potential:
    """Any per-example loss with an L2 regulariser.

    Args:
        per_example_loss: maps (weights, (inputs, targets)) of S examples to S losses.
        weight_decay: λ; the regulariser is λ/(2N)·|w|² with N the number of weights. Or a λ for each group of tensors,
            as a mapping from patterns of their names, such as {"*.bias": 0.0, "*": 10.0}; the first that matches
            holds, and the regulariser is Σ λ_g/(2N)·|w_g|².
        per_example_error: optional, maps the same arguments to S errors (0 or 1 for a classifier); recorded as `error`.
        class_scores: optional, maps (weights, inputs) to an array (S, K) of logits, for classifiers: labels are
            then checked against K, and classes that never get a signal are reported.
        values: optional, maps (weights, inputs) to predictions of the targets, for regressions.
        check_data: optional, is called with (weights, all examples) before anything is compiled, to refuse bad data.
        regularized_size: N of the regulariser, where it is not the number of sampled weights (`subset` sets it).

    Example:
        >>> mean_of_normal = Potential(lambda w, batch: 0.5 * jnp.sum((batch[0] - w) ** 2, axis=-1))
    """

    per_example_loss: PerExample
    weight_decay: WeightDecay = 0.0
    per_example_error: PerExample | None = None
    class_scores: Callable[[Weights, Any], Array] | None = None
    values: Callable[[Weights, Any], Array] | None = None
    check_data: Callable[[Weights, Batch], None] | None = None
    regularized_size: int | None = None
    layered: Layered | None = None
    """Set by `classification` and `regression` on a `models.feedforward`; such potentials are faster to sample."""

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not callable(self.per_example_loss):
            raise ValueError(f"per_example_loss = {self.per_example_loss!r} is not callable")
        patterns_given = list(self.weight_decay) if isinstance(self.weight_decay, Mapping) else ["*"]
        if not patterns_given or not all(isinstance(pattern, str) for pattern in patterns_given):
            raise ValueError(f"weight_decay = {self.weight_decay!r}: map patterns to numbers, such as {{'*': 1.0}}")
        for value in self._decays:
            if as_number("weight_decay", value) < 0:
                raise ValueError(f"weight_decay = {value!r} is negative: exp(−U/T) would not be normalisable")
        if self.regularized_size is not None:
            check_integer("regularized_size", self.regularized_size, minimum=1)

    @property
    def _decays(self) -> list[float]:
        return list(self.weight_decay.values()) if isinstance(self.weight_decay, Mapping) else [self.weight_decay]

    @property
    def has_regularizer(self) -> bool:
        """Whether any λ is above zero."""
        return any(self._decays)

    @property
    def holds_every_weight(self) -> bool:
        """Whether every λ is above zero, so that the regulariser pulls at every weight."""
        return all(self._decays)

    def loss(self, weights: Weights, batch: Batch) -> Array:
        """The mean loss of a batch, without the regulariser."""
        return jnp.mean(self.per_example_loss(weights, batch))

    def regularizer(self, weights: Weights) -> Array:
        """λ/(2N)·|w|², or Σ λ_g/(2N)·|w_g|²."""
        stiffness = self.stiffness(weights)
        if not isinstance(self.weight_decay, Mapping):
            return 0.5 * stiffness * trees.squared_norm(weights)
        return 0.5 * trees.dot(weights, jax.tree.map(lambda w, k: k * w, weights, stiffness))

    def stiffness(self, weights: Weights) -> Any:
        """λ/N, the curvature of the regulariser: one number, or one for every tensor where λ is a mapping."""
        size = self.regularized_size or trees.num_weights(weights)
        if not isinstance(self.weight_decay, Mapping):
            return float(self.weight_decay) / size
        return jax.tree.map(
            lambda decay: decay / size, patterns.looked_up(weights, self.weight_decay, argument="weight_decay")
        )

    def smallest_stiffness(self, num_weights: int) -> float:
        """The smallest λ/N of any group."""
        return min(map(float, self._decays)) / (self.regularized_size or num_weights)

    def energy(self, weights: Weights, batch: Batch) -> Array:
        """U on a batch; its gradient is what the samplers follow."""
        return self.loss(weights, batch) + self.regularizer(weights)

    def add_regularizer_gradient(self, weights: Weights, loss_gradient: Weights) -> Weights:
        """∇U from the gradient of the mean loss."""
        stiffness = trees.spread(self.stiffness(weights), weights)
        return jax.tree.map(lambda w, g, k: g + k * w, weights, loss_gradient, stiffness)

    def check(self, weights: Weights, dataset: Dataset) -> None:
        """Refuse a loss, weights and data that do not fit together, before anything is compiled."""
        trees.check_weights(weights)
        self.stiffness(weights)
        if self.class_scores is not None:
            _check_label_type(dataset.targets)
        if self.layered is not None:
            _check_input_size(self.layered.network.sizes[0], dataset.shapes(1)[0])
        # Two lengths, so that a result of the wrong shape cannot fit by chance.
        for num in (3, 5):
            batch = dataset.shapes(num)
            _check_shape("per_example_loss", self.per_example_loss, weights, batch, num)
            if self.per_example_error is not None:
                _check_shape("per_example_error", self.per_example_error, weights, batch, num)
        if self.class_scores is not None:
            num_classes = jax.eval_shape(self.class_scores, weights, batch[0]).shape[-1]
            check_labels(dataset.targets, num_classes)
        if self.check_data is not None:
            self.check_data(weights, dataset.batch)
        if isinstance(dataset, ValidatedDataset):
            try:
                self.check(weights, dataset.validation)
            except ValueError as error:
                raise ValueError(f"validation: {error}") from error


def _check_input_size(expected: int, inputs: Any) -> None:
    shape = getattr(inputs, "shape", None)
    if shape is not None and shape[1:] != (expected,):
        have = f"{shape[1]} components" if len(shape) == 2 else f"shape {shape[1:]}"
        raise ValueError(
            f"an input has {have} and the network takes {expected}; make the first of its sizes "
            f"{math.prod(shape[1:])}, or give other inputs"
        )


def _check_shape(name: str, function: PerExample, weights: Weights, batch: Batch, num: int) -> None:
    try:
        out = jax.eval_shape(function, weights, batch)
    except Exception as error:
        raise ValueError(
            f"{name} fails on these weights and {num} examples: {type(error).__name__}: {error}"
        ) from error
    shape = getattr(out, "shape", None)
    if shape != (num,):
        what = "a scalar; remove the mean over the batch" if shape == () else f"shape {shape}"
        raise ValueError(
            f"{name} must return one number per example, shape ({num},) for {num} examples; it returns {what}"
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(f"{name} must return floating-point numbers; it returns {out.dtype}")


def _check_label_type(targets: Any) -> None:
    labels = np.asarray(targets)
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"targets has dtype {labels.dtype}; class labels must be integers: cast with .astype('int32')")
    if labels.ndim != 1:
        raise ValueError(f"targets has shape {labels.shape}; class labels must be one integer per example")


def check_labels(targets: Any, num_classes: int) -> None:
    """Refuse labels that are not integers from 0 to K − 1."""
    _check_label_type(targets)
    _check_range("label", np.asarray(targets), num_classes)


def _check_range(what: str, labels: np.ndarray, num_classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        bad = low if low < 0 else high
        raise ValueError(
            f"targets holds the {what} {bad}, out of range for {num_classes} outputs; "
            f"use {what}s 0 … {num_classes - 1}, or a network with more outputs"
        )


def classification(apply: Callable[[Weights, Any], Array], *, weight_decay: WeightDecay = 0.0) -> Potential:
    """Mean cross-entropy of softmax(apply(weights, inputs)) plus λ/(2N)·|w|² (eq:potential), with the error of
    eq:errorfunction.

    Args:
        apply: maps (weights, inputs) to logits (S, K).
        weight_decay: λ, one for all weights or by pattern; see `Potential`.

    Example:
        >>> from pseudolangevin import models
        >>> potential = classification(models.feedforward((100, 50, 100, 10)).apply, weight_decay=10.0611)
    """

    def loss(weights: Weights, batch: Batch) -> Array:
        inputs, labels = batch
        return cross_entropy(apply(weights, inputs), labels)

    def misclassified(weights: Weights, batch: Batch) -> Array:
        inputs, labels = batch
        return (jnp.argmax(apply(weights, inputs), axis=-1) != labels).astype(jnp.float32)

    return Potential(
        loss,
        weight_decay,
        per_example_error=misclassified,
        class_scores=apply,
        layered=_layered(apply, cross_entropy),
    )


def cross_entropy(logits: Array, labels: Array) -> Array:
    """−ln softmax(logits)[label] of every example."""
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def _layered(apply: Callable, output_loss: Callable[[Array, Any], Array]) -> Layered | None:
    """What is known of the inside of a loss: `apply` is the method of a network of this package, or nothing."""
    network = getattr(apply, "__self__", None)
    return Layered(network, output_loss) if isinstance(network, FeedForward) else None


def regression(apply: Callable[[Weights, Any], Array], *, weight_decay: WeightDecay = 0.0) -> Potential:
    """Half the squared distance |apply(w, x) − y|²/2, averaged over the examples, plus λ/(2N)·|w|².

    Args:
        apply: maps (weights, inputs) to predictions of the targets' shape.
        weight_decay: λ, one for all weights or by pattern; see `Potential`.

    Example:
        >>> line = regression(lambda w, x: w["slope"] * x + w["offset"], weight_decay=1e-3)
    """

    def loss(weights: Weights, batch: Batch) -> Array:
        inputs, targets = batch
        return half_squared_distance(apply(weights, inputs), targets)

    return Potential(loss, weight_decay, values=apply, layered=_layered(apply, half_squared_distance))


def half_squared_distance(predictions: Array, targets: Array) -> Array:
    """|prediction − target|²/2 of every example."""
    if predictions.shape != targets.shape:
        raise ValueError(f"predictions have shape {predictions.shape}, targets {targets.shape}; make them equal")
    return 0.5 * jnp.sum((predictions - targets).reshape(predictions.shape[0], -1) ** 2, axis=-1)


def next_token(
    apply: Callable[[Weights, Any], Array], *, weight_decay: WeightDecay = 0.0, padding: int | None = None
) -> Potential:
    """Mean cross-entropy of the next token, for sequences, plus λ/(2N)·|w|².

    An example is a sequence: its loss is the mean over its tokens, its error the share of tokens that are not the most
    probable one. Targets are the inputs moved by one: Dataset(tokens[:, :-1], tokens[:, 1:]).

    Args:
        apply: maps (weights, inputs) to logits (S, L, K), one distribution for each of L positions.
        weight_decay: λ, one for all weights or by pattern; see `Potential`.
        padding: the target that stands for "no token" (−1, for example) at the end of short sequences; such positions
            count neither in the loss nor in the error.

    Example:
        >>> bigrams = next_token(lambda w, tokens: w["table"][tokens], weight_decay=1.0)
    """
    if padding is not None:
        check_integer("padding", padding, minimum=-(2**31), maximum=2**31 - 1)

    def counted(targets: Array) -> Array:
        return jnp.ones(targets.shape, bool) if padding is None else targets != padding

    def mean_counted(values: Array, targets: Array) -> Array:
        mask = counted(targets)
        return jnp.sum(jnp.where(mask, values, 0.0), axis=-1) / jnp.maximum(jnp.sum(mask, axis=-1), 1)

    def cross_entropy(weights: Weights, batch: Batch) -> Array:
        inputs, targets = batch
        logits = apply(weights, inputs)
        _check_tokens_fit(logits, targets)
        chosen = jnp.take_along_axis(logits, jnp.where(counted(targets), targets, 0)[..., None], axis=-1)[..., 0]
        return mean_counted(jax.nn.logsumexp(logits, axis=-1) - chosen, targets)

    def wrong_tokens(weights: Weights, batch: Batch) -> Array:
        inputs, targets = batch
        return mean_counted((jnp.argmax(apply(weights, inputs), axis=-1) != targets).astype(jnp.float32), targets)

    def check_tokens(weights: Weights, batch: Batch) -> None:
        inputs, targets = batch
        tokens = np.asarray(targets)
        real = np.ones(tokens.shape, bool) if padding is None else tokens != padding
        if not np.all(real.any(axis=-1)):
            row = int(np.argmin(real.any(axis=-1)))
            raise ValueError(f"targets of sequence {row} are all padding ({padding}); leave that sequence out")
        shape = jax.eval_shape(apply, weights, jax.tree.map(lambda a: a[:1], inputs)).shape
        _check_range("token", tokens[real], shape[-1])

    return Potential(cross_entropy, weight_decay, per_example_error=wrong_tokens, check_data=check_tokens)


def _check_tokens_fit(logits: Array, targets: Array) -> None:
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(f"targets has dtype {targets.dtype}; tokens must be integers: cast with .astype('int32')")
    if logits.ndim != 3 or logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits have shape {logits.shape}, targets {targets.shape}; "
            "next_token needs logits (S, L, K) and targets (S, L)"
        )
