"""The potential U(w) = mean loss over the examples + λ/(2N)·|w|² (eq:potential)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import trees
from .checks import as_number
from .data import Dataset, ValidatedDataset
from .models import FeedForward
from .types import Array, Batch, PerExample, Weights


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
        weight_decay: λ; the regulariser is λ/(2N)·|w|² with N the number of weights.
        per_example_error: optional, maps the same arguments to S errors (0 or 1 for a classifier); recorded as `error`.
        class_scores: optional, maps (weights, inputs) to an array (S, K) of logits, for classifiers: labels are
            then checked against K, and classes that never get a signal are reported.

    Example:
        >>> mean_of_normal = Potential(lambda w, batch: 0.5 * jnp.sum((batch[0] - w) ** 2, axis=-1))
    """

    per_example_loss: PerExample
    weight_decay: float = 0.0
    per_example_error: PerExample | None = None
    class_scores: Callable[[Weights, Any], Array] | None = None
    layered: Layered | None = None
    """Set by `classification` and `regression` on a `models.feedforward`; such potentials are faster to sample."""

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not callable(self.per_example_loss):
            raise ValueError(f"per_example_loss = {self.per_example_loss!r} is not callable")
        if as_number("weight_decay", self.weight_decay) < 0:
            raise ValueError(f"weight_decay = {self.weight_decay!r} is negative: exp(−U/T) would not be normalisable")

    def loss(self, weights: Weights, batch: Batch) -> Array:
        """The mean loss of a batch, without the regulariser."""
        return jnp.mean(self.per_example_loss(weights, batch))

    def regularizer(self, weights: Weights) -> Array:
        """λ/(2N)·|w|²."""
        return 0.5 * self.stiffness(weights) * trees.squared_norm(weights)

    def stiffness(self, weights: Weights) -> float:
        """λ/N, the curvature of the regulariser."""
        return float(self.weight_decay) / trees.num_weights(weights)

    def energy(self, weights: Weights, batch: Batch) -> Array:
        """U on a batch; its gradient is what the samplers follow."""
        return self.loss(weights, batch) + self.regularizer(weights)

    def add_regularizer_gradient(self, weights: Weights, loss_gradient: Weights) -> Weights:
        """∇U from the gradient of the mean loss."""
        stiffness = self.stiffness(weights)
        return jax.tree.map(lambda w, g: g + stiffness * w, weights, loss_gradient)

    def check(self, weights: Weights, dataset: Dataset) -> None:
        """Refuse a loss, weights and data that do not fit together, before anything is compiled."""
        trees.check_weights(weights)
        if self.class_scores is not None:
            _check_label_type(dataset.targets)
        # Two lengths, so that a result of the wrong shape cannot fit by chance.
        for num in (3, 5):
            batch = dataset.shapes(num)
            _check_shape("per_example_loss", self.per_example_loss, weights, batch, num)
            if self.per_example_error is not None:
                _check_shape("per_example_error", self.per_example_error, weights, batch, num)
        if self.class_scores is not None:
            num_classes = jax.eval_shape(self.class_scores, weights, batch[0]).shape[-1]
            check_labels(dataset.targets, num_classes)
        if isinstance(dataset, ValidatedDataset):
            try:
                self.check(weights, dataset.validation)
            except ValueError as error:
                raise ValueError(f"validation: {error}") from error


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
    labels = np.asarray(targets)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        bad = low if low < 0 else high
        raise ValueError(
            f"targets holds the label {bad}, out of range for {num_classes} outputs; "
            f"use labels 0 … {num_classes - 1}, or a network with more outputs"
        )


def classification(apply: Callable[[Weights, Any], Array], *, weight_decay: float = 0.0) -> Potential:
    """Mean cross-entropy of softmax(apply(weights, inputs)) plus λ/(2N)·|w|² (eq:potential), with the error of
    eq:errorfunction.

    Args:
        apply: maps (weights, inputs) to logits (S, K).
        weight_decay: λ.

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


def regression(apply: Callable[[Weights, Any], Array], *, weight_decay: float = 0.0) -> Potential:
    """Half the squared distance |apply(w, x) − y|²/2, averaged over the examples, plus λ/(2N)·|w|².

    Args:
        apply: maps (weights, inputs) to predictions of the targets' shape.
        weight_decay: λ.

    Example:
        >>> line = regression(lambda w, x: w["slope"] * x + w["offset"], weight_decay=1e-3)
    """

    def loss(weights: Weights, batch: Batch) -> Array:
        inputs, targets = batch
        return half_squared_distance(apply(weights, inputs), targets)

    return Potential(loss, weight_decay, layered=_layered(apply, half_squared_distance))


def half_squared_distance(predictions: Array, targets: Array) -> Array:
    """|prediction − target|²/2 of every example."""
    if predictions.shape != targets.shape:
        raise ValueError(f"predictions have shape {predictions.shape}, targets {targets.shape}; make them equal")
    return 0.5 * jnp.sum((predictions - targets).reshape(predictions.shape[0], -1) ** 2, axis=-1)
