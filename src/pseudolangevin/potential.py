"""The potential U(w) = mean loss over the examples + λ/(2N)·|w|² (eq:potential)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from . import _trees as trees
from ._checks import as_number, check_integer
from ._trees import Array, Batch, PerExample, Selection, Weights

if TYPE_CHECKING:
    from .data.dataset import Dataset

WeightDecay: TypeAlias = float | Mapping[str, float]  # λ for all weights, or one for each pattern of tensor names


@dataclass(frozen=True, eq=False)
class Potential:
    """A per-example loss with an L2 regulariser: U(w) = mean loss + λ/(2N)·|w|².

    Args:
        per_example_loss: maps (weights, (inputs, targets)) of S examples to S losses.
        weight_decay: λ; the regulariser is λ/(2N)·|w|² with N the number of weights. Or one λ for each group of
            tensors, as a mapping from patterns of tensor names, such as {"*.bias": 0.0, "*": 10.0}; the first pattern
            that matches applies, and the regulariser is Σ λ_g/(2N)·|w_g|².
        per_example_error: optional, maps the same arguments to S errors (0 or 1 for a classifier); recorded as `error`.
        class_scores: optional, maps (weights, inputs) to logits (S, K), for classifiers: labels are then checked
            against K, and classes that never get a signal are reported.
        values: optional, maps (weights, inputs) to predictions of the targets, for regressions.
        check_data: optional, is called with (weights, all examples) before anything is compiled, to reject bad data.
        regularized_size: N of the regulariser, if it is not the number of sampled weights (`subset` sets it).
        gradient: optional, a faster gradient of the loss, (weights, batch, coefficients, precision, split) → pytree;
            see `gradients.minibatch_gradient`. `classification` sets it for networks that have one.
        slopes: optional, faster derivatives of the losses along a velocity: (weights, velocity, batch, precision,
            split) → one number per example.
        gradient_moments: optional, (weights, batch, mask) → sums over examples of the gradient of the loss and of its
            square; without it, gradients of single examples are computed one by one.

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
    gradient: Callable[[Weights, Batch, Array | None, str | None, bool], Weights] | None = None
    slopes: Callable[[Weights, Weights, Batch, str | None, bool], Array] | None = None
    gradient_moments: Callable[[Weights, Batch, Array], tuple[Weights, Weights]] | None = None

    def __post_init__(self) -> None:
        """Validate the arguments."""
        if not callable(self.per_example_loss):
            raise ValueError(f"per_example_loss = {self.per_example_loss!r} is not callable")
        patterns = list(self.weight_decay) if isinstance(self.weight_decay, Mapping) else ["*"]
        if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
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
    def regularizes_every_weight(self) -> bool:
        """Whether every λ is above zero, so that every weight is regularised."""
        return all(self._decays)

    def loss(self, weights: Weights, batch: Batch) -> Array:
        """Return the mean loss of a batch, without the regulariser."""
        return jnp.mean(self.per_example_loss(weights, batch))

    def regularizer(self, weights: Weights) -> Array:
        """Return λ/(2N)·|w|², or Σ λ_g/(2N)·|w_g|²."""
        stiffness = self.stiffness(weights)
        if not isinstance(self.weight_decay, Mapping):
            return 0.5 * stiffness * trees.squared_norm(weights)
        return 0.5 * trees.dot(weights, jax.tree.map(lambda w, k: k * w, weights, stiffness))

    def stiffness(self, weights: Weights) -> Any:
        """Return λ/N, the curvature of the regulariser: one number, or one for every tensor if λ is a mapping."""
        size = self.regularized_size or trees.num_weights(weights)
        if not isinstance(self.weight_decay, Mapping):
            return float(self.weight_decay) / size
        return jax.tree.map(lambda decay: decay / size, trees.looked_up(weights, self.weight_decay, "weight_decay"))

    def smallest_stiffness(self, num_weights: int) -> float:
        """Return the smallest λ/N of any group."""
        return min(map(float, self._decays)) / (self.regularized_size or num_weights)

    def energy(self, weights: Weights, batch: Batch) -> Array:
        """Return U on a batch."""
        return self.loss(weights, batch) + self.regularizer(weights)

    def add_regularizer_gradient(self, weights: Weights, loss_gradient: Weights) -> Weights:
        """Return ∇U from the gradient of the mean loss."""
        stiffness = trees.spread(self.stiffness(weights), weights)
        return jax.tree.map(lambda w, g, k: g + k * w, weights, loss_gradient, stiffness)

    def check(self, weights: Weights, dataset: Dataset) -> None:
        """Raise if the loss, the weights and the data do not fit together, before anything is compiled."""
        trees.check_weights(weights)
        self.stiffness(weights)
        if self.class_scores is not None:
            _check_label_type(dataset.targets)
        # Two lengths, so that a result of the wrong shape cannot fit by chance.
        for num in (3, 5):
            batch = dataset.shapes(num)
            for name in ("per_example_loss", "per_example_error"):
                if (function := getattr(self, name)) is not None:
                    _check_shape(name, function, weights, batch, num)
        if self.class_scores is not None:
            check_labels(dataset.targets, jax.eval_shape(self.class_scores, weights, batch[0]).shape[-1])
        if self.check_data is not None:
            self.check_data(weights, dataset.batch)


def _check_shape(name: str, function: PerExample, weights: Weights, batch: Batch, num: int) -> None:
    try:
        out = jax.eval_shape(function, weights, batch)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{name} fails on these weights and {num} examples: {why}") from error
    shape = getattr(out, "shape", None)
    if shape != (num,):
        what = "a scalar; remove the mean over the batch" if shape == () else f"shape {shape}"
        expected = f"one number per example, shape ({num},) for {num} examples"
        raise ValueError(f"{name} must return {expected}; it returns {what}")
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(f"{name} must return floating-point numbers; it returns {out.dtype}")


def _check_label_type(targets: Any) -> None:
    labels = np.asarray(targets)
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"targets has dtype {labels.dtype}; class labels must be integers: cast with .astype('int32')")
    if labels.ndim != 1:
        raise ValueError(f"targets has shape {labels.shape}; class labels must be one integer per example")


def check_labels(targets: Any, num_classes: int) -> None:
    """Raise unless the labels are integers from 0 to K − 1."""
    _check_label_type(targets)
    _check_range("label", np.asarray(targets), num_classes)


def _check_range(what: str, labels: np.ndarray, num_classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        found = f"targets holds the {what} {low if low < 0 else high}, out of range for {num_classes} outputs"
        raise ValueError(f"{found}; use {what}s 0 … {num_classes - 1}, or a network with more outputs")


def classification(apply: Callable[[Weights, Any], Array], *, weight_decay: WeightDecay = 0.0) -> Potential:
    """Return the mean cross-entropy of softmax(apply(weights, inputs)) plus λ/(2N)·|w|² (eq:potential).

    The recorded `error` is the share of misclassified examples (eq:errorfunction).

    Args:
        apply: maps (weights, inputs) to logits (S, K).
        weight_decay: λ, one for all weights or one per pattern; see `Potential`.

    Example:
        >>> from pseudolangevin import models
        >>> potential = classification(models.feedforward((100, 50, 100, 10)).apply, weight_decay=10.0611)
    """

    def loss(weights: Weights, batch: Batch) -> Array:
        return cross_entropy(apply(weights, batch[0]), batch[1])

    def misclassified(weights: Weights, batch: Batch) -> Array:
        return (jnp.argmax(apply(weights, batch[0]), axis=-1) != batch[1]).astype(jnp.float32)

    hooks = _loss_hooks(apply, cross_entropy)
    return Potential(loss, weight_decay, per_example_error=misclassified, class_scores=apply, **hooks)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Return −ln softmax(logits)[label] of every example."""
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def _loss_hooks(apply: Callable, output_loss: Callable[[Array, Any], Array]) -> dict[str, Any]:
    """Return the faster functions that the network offers, if `apply` is the method of a network that has them."""
    hooks = getattr(getattr(apply, "__self__", None), "loss_hooks", None)
    return {} if hooks is None else hooks(output_loss, is_cross_entropy=output_loss is cross_entropy)


def regression(apply: Callable[[Weights, Any], Array], *, weight_decay: WeightDecay = 0.0) -> Potential:
    """Return half the squared distance |apply(w, x) − y|²/2, averaged over the examples, plus λ/(2N)·|w|².

    Args:
        apply: maps (weights, inputs) to predictions of the targets' shape.
        weight_decay: λ, one for all weights or one per pattern; see `Potential`.

    Example:
        >>> line = regression(lambda w, x: w["slope"] * x + w["offset"], weight_decay=1e-3)
    """

    def loss(weights: Weights, batch: Batch) -> Array:
        return half_squared_distance(apply(weights, batch[0]), batch[1])

    return Potential(loss, weight_decay, values=apply, **_loss_hooks(apply, half_squared_distance))


def half_squared_distance(predictions: Array, targets: Array) -> Array:
    """Return |prediction − target|²/2 of every example."""
    if predictions.shape != targets.shape:
        raise ValueError(f"predictions have shape {predictions.shape}, targets {targets.shape}; make them equal")
    return 0.5 * jnp.sum((predictions - targets).reshape(predictions.shape[0], -1) ** 2, axis=-1)


def next_token(
    apply: Callable[[Weights, Any], Array], *, weight_decay: WeightDecay = 0.0, padding: int | None = None
) -> Potential:
    """Return the mean cross-entropy of the next token, for sequences, plus λ/(2N)·|w|².

    An example is a sequence. The loss of an example is the mean over its tokens, and its error is the share of tokens
    that are not the most probable one. Targets are the inputs shifted by one: Dataset(tokens[:, :-1], tokens[:, 1:]).

    Args:
        apply: maps (weights, inputs) to logits (S, L, K), one distribution for each of L positions.
        weight_decay: λ, one for all weights or one per pattern; see `Potential`.
        padding: target value (such as −1) of positions without a token, at the end of short sequences; they count
            neither in the loss nor in the error.

    Example:
        >>> bigrams = next_token(lambda w, tokens: w["table"][tokens], weight_decay=1.0)
    """
    if padding is not None:
        check_integer("padding", padding, minimum=-(2**31), maximum=2**31 - 1)

    def counted(targets: Any) -> Any:
        return np.ones(targets.shape, bool) if padding is None else targets != padding

    def mean_counted(values: Array, targets: Array) -> Array:
        mask = counted(targets)
        return jnp.sum(jnp.where(mask, values, 0.0), axis=-1) / jnp.maximum(jnp.sum(mask, axis=-1), 1)

    def cross_entropy(weights: Weights, batch: Batch) -> Array:
        inputs, targets = batch
        logits = apply(weights, inputs)
        if not jnp.issubdtype(targets.dtype, jnp.integer):
            raise ValueError(f"targets has dtype {targets.dtype}; tokens must be integers: cast with .astype('int32')")
        if logits.ndim != 3 or logits.shape[:-1] != targets.shape:
            found = f"logits have shape {logits.shape}, targets {targets.shape}"
            raise ValueError(f"{found}; next_token needs logits (S, L, K) and targets (S, L)")
        chosen = jnp.take_along_axis(logits, jnp.where(counted(targets), targets, 0)[..., None], axis=-1)[..., 0]
        return mean_counted(jax.nn.logsumexp(logits, axis=-1) - chosen, targets)

    def wrong_tokens(weights: Weights, batch: Batch) -> Array:
        inputs, targets = batch
        return mean_counted((jnp.argmax(apply(weights, inputs), axis=-1) != targets).astype(jnp.float32), targets)

    def check_tokens(weights: Weights, batch: Batch) -> None:
        inputs, targets = batch
        tokens = np.asarray(targets)
        real = counted(tokens)
        if not np.all(filled := real.any(axis=-1)):
            row = int(np.argmin(filled))
            raise ValueError(f"targets of sequence {row} are all padding ({padding}); leave that sequence out")
        shape = jax.eval_shape(apply, weights, jax.tree.map(lambda a: a[:1], inputs)).shape
        _check_range("token", tokens[real], shape[-1])

    return Potential(cross_entropy, weight_decay, per_example_error=wrong_tokens, check_data=check_tokens)


@dataclass(frozen=True, eq=False)
class Subset:
    """A potential over the sampled tensors, and the map back to the full network."""

    potential: Potential
    """U as a function of the sampled tensors: the same loss and the same λ/N, with N the size of the full network."""
    weights: Weights
    """Starting weights: the same pytree, with None in place of every frozen tensor."""
    frozen: Weights
    """Frozen weights: the same pytree, with None in place of every sampled tensor."""

    def merge(self, weights: Weights) -> Weights:
        """Return the weights of the full network with these sampled tensors.

        Leading axes (temperature, chain, draw…) of the sampled tensors are kept; the frozen tensors have none.
        `jax.vmap(subset.merge)` adds them.
        """
        structure: Any = jax.tree.structure(self.weights)
        found: Any = jax.tree.structure(weights)
        if found != structure:
            remedy = "pass what was sampled, not the full network"
            raise ValueError(f"weights is a pytree {found}, the sampled subset is {structure}; {remedy}")
        return jax.tree.map(lambda f, w: w if f is None else f, self.frozen, weights, is_leaf=lambda leaf: leaf is None)


def subset(potential: Potential, weights: Weights, selection: Selection) -> Subset:
    """Sample the chosen tensors and keep all others at their values in `weights`.

    This samples exp(−U/T) conditioned on the frozen tensors. Pass the result's `potential` and `weights` to a sampler;
    observables and the certificate then count the sampled tensors only.

    Args:
        potential: U of the full network.
        weights: weights of the full network, one chain.
        selection: a pattern such as "layer3.*" (last layer only), "!embedding*" (all but embeddings), a list of them,
            or a mask: a pytree shaped like `weights` with True for the tensors to sample.

    Example:
        >>> line = Potential(lambda w, batch: (w["slope"] * batch[0] + w["offset"] - batch[1]) ** 2)
        >>> part = subset(line, {"slope": jnp.ones(()), "offset": jnp.zeros(())}, "offset")
        >>> part.merge(part.weights)["slope"].item()
        1.0
    """
    trees.check_weights(weights)
    mask = trees.chosen(weights, selection)
    if not any(jax.tree.leaves(mask)):
        raise ValueError(f"selection = {selection!r} chooses no tensor; there would be nothing to sample")
    sampled = jax.tree.map(lambda take, w: w if take else None, mask, weights)
    frozen = jax.tree.map(lambda take, w: None if take else w, mask, weights)
    part = Subset(potential, sampled, frozen)

    def on_full(function: Any) -> Any:
        return None if function is None else lambda tensors, batch: function(part.merge(tensors), batch)

    decay = potential.weight_decay
    if isinstance(decay, Mapping):  # by names, as the patterns may also match frozen tensors
        decay = {name: trees.first_match(name, decay, "weight_decay") for name, _ in trees.named_leaves(sampled)}
    functions = ("per_example_loss", "per_example_error", "class_scores", "values", "check_data")
    restricted = replace(
        potential,
        **{name: on_full(getattr(potential, name)) for name in functions},
        weight_decay=decay,
        regularized_size=potential.regularized_size or trees.num_weights(weights),
        gradient=None,
        slopes=None,
        gradient_moments=None,
    )
    return replace(part, potential=restricted)
