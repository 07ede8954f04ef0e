"""The potential U(w) = mean loss over the examples + regulariser: λ/(2N)·|w|² (eq:potential), or a prior."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from . import _trees as trees
from ._trees import Array, Batch, PerExample, Selection, Weights, as_number, check_integer, check_positive

if TYPE_CHECKING:
    from .data.dataset import Dataset

WeightDecay: TypeAlias = float | Mapping[str, float]  # λ for all weights, or one for each pattern of tensor names


@dataclass(frozen=True, eq=False)
class Prior:
    """A prior density of independent weights, up to its normalisation; made by `gaussian` or `laplace`."""

    kind: Literal["gaussian", "laplace"]
    scale: float
    center: float | Weights = 0.0

    def __post_init__(self) -> None:
        """Validate the scale."""
        check_positive("scale", self.scale, "it is the width of the prior of a weight")

    def deviation(self, name: str, tensor: Array) -> Array:
        """Return (w − center)/scale of the tensor with this name."""
        number = jax.tree_util.all_leaves([self.center]) and np.ndim(self.center) == 0
        center = self.center if number else dict(trees.named_leaves(self.center)).get(name)
        if center is None or np.shape(center) not in ((), tensor.shape):
            found = "nothing" if center is None else f"shape {np.shape(center)}"
            remedy = "pass one number, or a pytree shaped like the weights"
            raise ValueError(f"center has {found} for the tensor {name} of shape {tensor.shape}; {remedy}")
        return (tensor - jnp.asarray(center, tensor.dtype)) / float(self.scale)


def gaussian(scale: float, center: float | Weights = 0.0) -> Prior:
    """Return the prior N(center, scale²) of every weight; `center` is a number or a pytree shaped like the weights.

    Example:
        >>> wide = gaussian(10.0)
    """
    return Prior("gaussian", scale, center)


def laplace(scale: float, center: float | Weights = 0.0) -> Prior:
    """Return the prior exp(−|w − center|/scale) of every weight, whose standard deviation is √2·scale."""
    return Prior("laplace", scale, center)


def posterior_temperature(dataset: Dataset, noise_scale: float | None = None) -> float:
    """Return the temperature at which exp(−U/T) is the Bayesian posterior.

    U contains the mean loss over the P examples. If the loss is −log of a likelihood, T is 1/P. That of `regression` is
    −σ²·log of a Gaussian likelihood, so T is σ²/P, with `noise_scale` σ the standard deviation of the targets.
    """
    if noise_scale is not None:
        check_positive("noise_scale", noise_scale, "it is the standard deviation of a target")
    return (1.0 if noise_scale is None else float(noise_scale) ** 2) / dataset.num_examples


PriorLike: TypeAlias = Prior | Mapping[str, Prior] | Callable[[Weights], Array]


class Regularizer(TypedDict, total=False):
    """Arguments of `Potential` that potentials of every loss take."""

    weight_decay: WeightDecay
    prior: PriorLike | None
    prior_temperature: float | None


@dataclass(frozen=True, eq=False)
class Potential:
    """A per-example loss with a regulariser: U(w) = mean loss + λ/(2N)·|w|², or mean loss − T·ln prior(w).

    Args:
        per_example_loss: maps (weights, (inputs, targets)) of S examples to S losses.
        weight_decay: λ; the regulariser is λ/(2N)·|w|² with N the number of weights. Or Σ λ_g/(2N)·|w_g|² with one λ
            for each group of tensors, as a mapping from patterns of names, such as {"*.bias": 0.0, "*": 10.0}, of which
            the first that matches applies.
        prior: instead of `weight_decay`, a prior density: `gaussian(scale)`, `laplace(scale)`, one for each group of
            tensors as a mapping from patterns of names, or a function from weights to the logarithm of any density.
        prior_temperature: temperature T0 in U = mean loss − T0·ln prior; the prior is then tempered as the likelihood
            is. Default: the temperature of each chain, so that the likelihood alone is tempered.
        per_example_error: optional, maps the same arguments to S errors (0 or 1 for a classifier); recorded as `error`.
        class_scores: optional, maps (weights, inputs) to logits (S, K), for classifiers.
        values: optional, maps (weights, inputs) to predictions of the targets, for regressions.
        check_data: optional, is called with (weights, all examples) before anything is compiled, to reject bad data.
        regularized_size: N of the regulariser, if it is not the number of sampled weights (`subset` sets it).
        gradient: optional, a faster gradient of the loss, (weights, batch, coefficients, precision, split) → pytree.
        slopes: optional, a faster `gradients.slopes`, (weights, velocity, batch, precision, split) → S numbers.
        gradient_moments: optional, a faster `variance.gradient_moments`, (weights, batch, mask) → two pytrees.

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
    prior: PriorLike | None = None
    prior_temperature: float | Array | None = None
    needs_data: bool = True
    """Whether the loss depends on the data; see `log_density`."""

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
        if self.prior is None:
            if self.prior_temperature is not None:
                raise ValueError(f"prior_temperature = {self.prior_temperature!r} has no prior; pass prior= as well")
            return
        if any(self._decays):
            raise ValueError(f"weight_decay = {self.weight_decay!r} and a prior are two priors; pass one of them")
        kinds = list(self.prior.values()) if isinstance(self.prior, Mapping) else [self.prior]
        if not kinds or not all(isinstance(k, Prior) or (callable(k) and k is self.prior) for k in kinds):
            remedy = "pass pl.gaussian(scale), a mapping such as {'*': pl.gaussian(1.0)}, or a function of the weights"
            raise ValueError(f"prior = {self.prior!r} is not a prior; {remedy}")
        if self.prior_temperature is not None and not isinstance(self.prior_temperature, jax.Array):
            check_positive("prior_temperature", self.prior_temperature)

    def at(self, temperature: Array | float) -> Potential:
        """Return the potential of chains at one temperature; it differs from this one only if the prior is fixed."""
        if self.prior is None or self.prior_temperature is not None:
            return self
        return replace(self, prior_temperature=jnp.asarray(temperature))

    @property
    def tempered_energy(self) -> str:
        """Name of the observable E in the factor exp(−E/T): U, or the loss if the prior is fixed."""
        return "loss" if self.prior is not None and self.prior_temperature is None else "potential"

    @property
    def _decays(self) -> list[float]:
        return list(self.weight_decay.values()) if isinstance(self.weight_decay, Mapping) else [self.weight_decay]

    @property
    def regularizes_every_weight(self) -> bool:
        """Whether the curvature of the regulariser is above zero for every weight."""
        priors = list(self.prior.values()) if isinstance(self.prior, Mapping) else [self.prior]
        return all(self._decays) or all(isinstance(p, Prior) and p.kind == "gaussian" for p in priors)

    def loss(self, weights: Weights, batch: Batch) -> Array:
        """Return the mean loss of a batch, without the regulariser."""
        return jnp.mean(self.per_example_loss(weights, batch))

    def regularizer(self, weights: Weights) -> Array:
        """Return λ/(2N)·|w|², Σ λ_g/(2N)·|w_g|², or −T0·ln prior(w) without the normalisation."""
        terms = self.regularizer_terms(weights)
        return sum((f * jnp.sum(v**2 if squared else v) for v, f, squared in terms), start=jnp.zeros(()))

    def regularizer_terms(self, weights: Weights) -> list[tuple[Array, Array | float, bool]]:
        """Return (values, factor, squared): the regulariser is the sum of factor·Σ values, or of factor·Σ values²."""
        if self.prior is None:
            stiffness = trees.spread(self.stiffness(weights), weights)
            leaves = zip(jax.tree.leaves(weights), jax.tree.leaves(stiffness), strict=True)
            return [(leaf, 0.5 * k, True) for leaf, k in leaves] if any(self._decays) else []
        if (scale := self.prior_temperature) is None:
            remedy = "call potential.at(temperature) or sampler.at(temperature), or pass prior_temperature"
            raise ValueError(f"U at no temperature: the prior {self.prior!r} is fixed, so U depends on T; {remedy}")
        if not isinstance(self.prior, Prior | Mapping):
            return [(-jnp.asarray(self.prior(weights)), scale, False)]
        terms: list[tuple[Array, Array | float, bool]] = []
        for (name, leaf), prior in zip(trees.named_leaves(weights), self._priors(weights), strict=True):
            deviation = prior.deviation(name, leaf)
            gauss = prior.kind == "gaussian"
            terms.append((deviation, 0.5 * scale, True) if gauss else (jnp.abs(deviation), scale, False))
        return terms

    def _priors(self, weights: Weights) -> list[Any]:
        """Return the prior of every tensor."""
        if isinstance(self.prior, Mapping):
            return jax.tree.leaves(trees.looked_up(weights, self.prior, "prior"))
        return [self.prior for _ in jax.tree.leaves(weights)]

    def stiffness(self, weights: Weights) -> Any:
        """Return the curvature of the regulariser, λ/N or T0/scale², 0 for other priors: a number, or one a tensor."""
        if self.prior is not None:
            scale = 0.0 if self.prior_temperature is None else self.prior_temperature
            priors = self._priors(weights)
            found = [scale / p.scale**2 if isinstance(p, Prior) and p.kind == "gaussian" else 0.0 for p in priors]
            return jax.tree.unflatten(jax.tree.structure(weights), found)
        size = self.regularized_size or trees.num_weights(weights)
        if not isinstance(self.weight_decay, Mapping):
            return float(self.weight_decay) / size
        looked_up = trees.looked_up(weights, self.weight_decay, "weight_decay")
        return jax.tree.map(lambda decay: float(decay) / size, looked_up)

    def smallest_stiffness(self, num_weights: int) -> float:
        """Return the smallest λ/N of any group; 0 if there is a prior instead."""
        return min(map(float, self._decays)) / (self.regularized_size or num_weights)

    def energy(self, weights: Weights, batch: Batch) -> Array:
        """Return U on a batch."""
        return self.loss(weights, batch) + self.regularizer(weights)

    def add_regularizer_gradient(self, weights: Weights, loss_gradient: Weights) -> Weights:
        """Return ∇U from the gradient of the mean loss."""
        return jax.tree.map(jnp.add, loss_gradient, jax.grad(self.regularizer)(weights))

    def check(self, weights: Weights, dataset: Dataset) -> None:
        """Raise if the loss, the weights and the data do not fit together, before anything is compiled."""
        trees.check_weights(weights)
        self.stiffness(weights)
        if self.prior is not None:
            _check_prior(self.at(1.0), weights)
        if self.class_scores is not None:
            check_labels(dataset.targets)
        for num in (3, 5):  # two lengths, so that a result of the wrong shape cannot fit by chance
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
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300] + "; check the shapes of weights and inputs"
        shapes = jax.tree.map(lambda leaf: leaf.shape, batch[0])
        raise ValueError(f"{name} fails on these weights and {num} inputs of shape {shapes}: {why}") from error
    shape = getattr(out, "shape", None)
    if shape != (num,):
        what = "a scalar; remove the mean over the batch" if shape == () else f"shape {shape}"
        expected = f"one number per example, shape ({num},) for {num} examples"
        raise ValueError(f"{name} must return {expected}; it returns {what}")
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(f"{name} must return floating-point numbers; it returns {out.dtype}")


def _check_prior(potential: Potential, weights: Weights) -> None:
    try:
        shapes = [values.shape for values, _, _ in jax.eval_shape(potential.regularizer_terms, weights)]
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"prior fails on these weights: {type(error).__name__}: {error}") from error
    if not isinstance(potential.prior, Prior | Mapping) and shapes[0][0] != ():
        raise ValueError(
            f"prior must return one number, ln prior(w); it returns shape {shapes[0][0]}: sum over weights"
        )


def check_labels(targets: Any, num_classes: int | None = None) -> None:
    """Raise unless the labels are integers, one for each example, from 0 to K − 1 if K is given."""
    labels = np.asarray(targets)
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"targets has dtype {labels.dtype}; class labels must be integers: cast with .astype('int32')")
    if labels.ndim != 1:
        raise ValueError(f"targets has shape {labels.shape}; class labels must be one integer per example")
    if num_classes is not None:
        _check_range("label", labels, num_classes)


def _check_range(what: str, labels: np.ndarray, num_classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        found = f"targets holds the {what} {low if low < 0 else high}, out of range for {num_classes} outputs"
        raise ValueError(f"{found}; use {what}s 0 … {num_classes - 1}, or a network with more outputs")


def classification(apply: Callable[[Weights, Any], Array], **regularizer: Unpack[Regularizer]) -> Potential:
    """Return the mean cross-entropy of softmax(apply(weights, inputs)) plus λ/(2N)·|w|² (eq:potential).

    The recorded `error` is the share of misclassified examples (eq:errorfunction).

    Args:
        apply: maps (weights, inputs) to logits (S, K).
        regularizer: `weight_decay`, or `prior` and `prior_temperature`; see `Potential`.

    Example:
        >>> from pseudolangevin import models
        >>> potential = classification(models.feedforward((100, 50, 100, 10)).apply, weight_decay=10.0611)
    """

    def loss(weights: Weights, batch: Batch) -> Array:
        return cross_entropy(apply(weights, batch[0]), batch[1])

    def misclassified(weights: Weights, batch: Batch) -> Array:
        return (jnp.argmax(apply(weights, batch[0]), axis=-1) != batch[1]).astype(jnp.float32)

    hooks = _loss_hooks(apply, cross_entropy)
    return Potential(loss, per_example_error=misclassified, class_scores=apply, **hooks, **regularizer)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Return −ln softmax(logits)[label] of every label."""
    return jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def _loss_hooks(apply: Callable, output_loss: Callable[[Array, Any], Array]) -> dict[str, Any]:
    """Return the faster functions that the network offers, if `apply` is the method of a network that has them."""
    hooks = getattr(getattr(apply, "__self__", None), "loss_hooks", None)
    return {} if hooks is None else hooks(output_loss, is_cross_entropy=output_loss is cross_entropy)


def regression(apply: Callable[[Weights, Any], Array], **regularizer: Unpack[Regularizer]) -> Potential:
    """Return half the squared distance |apply(w, x) − y|²/2, averaged over the examples, plus λ/(2N)·|w|².

    Args:
        apply: maps (weights, inputs) to predictions of the targets' shape.
        regularizer: `weight_decay`, or `prior` and `prior_temperature`; see `Potential`.

    Example:
        >>> line = regression(lambda w, x: w["slope"] * x + w["offset"], weight_decay=1e-3)
    """

    def loss(weights: Weights, batch: Batch) -> Array:
        return half_squared_distance(apply(weights, batch[0]), batch[1])

    return Potential(loss, values=apply, **_loss_hooks(apply, half_squared_distance), **regularizer)


def half_squared_distance(predictions: Array, targets: Array) -> Array:
    """Return |prediction − target|²/2 of every example."""
    if predictions.shape != targets.shape:
        raise ValueError(f"predictions have shape {predictions.shape}, targets {targets.shape}; make them equal")
    return 0.5 * jnp.sum((predictions - targets).reshape(predictions.shape[0], -1) ** 2, axis=-1)


def next_token(
    apply: Callable[[Weights, Any], Array], *, padding: int | None = None, **regularizer: Unpack[Regularizer]
) -> Potential:
    """Return the mean cross-entropy of the next token, for sequences, plus λ/(2N)·|w|².

    An example is a sequence. The loss of an example is the mean over its tokens, and its error is the share of tokens
    that are not the most probable one. Targets are the inputs shifted by one: Dataset(tokens[:, :-1], tokens[:, 1:]).

    Args:
        apply: maps (weights, inputs) to logits (S, L, K), one distribution for each of L positions.
        padding: target value (such as −1) of positions without a token, at the end of short sequences; they count
            neither in the loss nor in the error.
        regularizer: `weight_decay`, or `prior` and `prior_temperature`; see `Potential`.

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

    def loss(weights: Weights, batch: Batch) -> Array:
        inputs, targets = batch
        logits = apply(weights, inputs)
        if not jnp.issubdtype(targets.dtype, jnp.integer):
            raise ValueError(f"targets has dtype {targets.dtype}; tokens must be integers: cast with .astype('int32')")
        if logits.ndim != 3 or logits.shape[:-1] != targets.shape:
            found = f"logits have shape {logits.shape}, targets {targets.shape}"
            raise ValueError(f"{found}; next_token needs logits (S, L, K) and targets (S, L)")
        return mean_counted(cross_entropy(logits, jnp.where(counted(targets), targets, 0)), targets)

    def wrong_tokens(weights: Weights, batch: Batch) -> Array:
        inputs, targets = batch
        return mean_counted((jnp.argmax(apply(weights, inputs), axis=-1) != targets).astype(jnp.float32), targets)

    def check_tokens(weights: Weights, batch: Batch) -> None:
        inputs, tokens = batch[0], np.asarray(batch[1])
        real = counted(tokens)
        if not np.all(filled := real.any(axis=-1)):
            row = int(np.argmin(filled))
            raise ValueError(f"targets of sequence {row} are all padding ({padding}); leave that sequence out")
        shape = jax.eval_shape(apply, weights, jax.tree.map(lambda a: a[:1], inputs)).shape
        _check_range("token", tokens[real], shape[-1])

    return Potential(loss, per_example_error=wrong_tokens, check_data=check_tokens, **regularizer)


def log_density(function: Callable[[Weights], Array]) -> Potential:
    """Return U = −ln of a density of the weights, which has no data, for the samplers with the exact gradient.

    At temperature 1 the density itself is sampled.

    Args:
        function: maps weights to the logarithm of a density, up to a constant.

    Example:
        >>> from pseudolangevin import hybrid_monte_carlo
        >>> normal = log_density(lambda w: -0.5 * jnp.sum(w**2))
        >>> sampler = hybrid_monte_carlo(normal, num_leapfrog_steps=10, time_step=0.3)
    """
    if not callable(function):
        raise ValueError(f"function = {function!r} is not callable; pass a function from weights to one number")

    def loss(weights: Weights, batch: Batch) -> Array:
        value = jnp.asarray(function(weights))
        if value.shape != ():
            raise ValueError(f"the log-density must be one number; it has shape {value.shape}: sum over weights")
        return jnp.broadcast_to(-value, batch[1].shape)

    return Potential(loss, needs_data=False)


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
        """Return the weights of the full network; `jax.vmap(subset.merge)` for tensors with leading axes."""
        structure: Any = jax.tree.structure(self.weights)
        found: Any = jax.tree.structure(weights)
        if found != structure:
            remedy = "pass what was sampled, not the full network"
            raise ValueError(f"weights is a pytree {found}, the sampled subset is {structure}; {remedy}")
        return jax.tree.map(lambda f, w: w if f is None else f, self.frozen, weights, is_leaf=lambda leaf: leaf is None)


def subset(potential: Potential, weights: Weights, selection: Selection) -> Subset:
    """Sample the chosen tensors and keep all others at their values in `weights`.

    This samples exp(−U/T) conditioned on the frozen tensors. Pass the result's `potential` and `weights` to a sampler.

    Args:
        potential: U of the full network.
        weights: weights of the full network, one chain.
        selection: a pattern such as "layer3.*" (last layer only) or "!embedding*" (all but these), or a list of them.

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
    part = Subset(potential, sampled, jax.tree.map(lambda take, w: None if take else w, mask, weights))

    def on_full(function: Any) -> Any:
        return None if function is None else lambda tensors, *batch: function(part.merge(tensors), *batch)

    def by_name(table: Any, argument: str) -> Any:  # as the patterns may also match frozen tensors
        if not isinstance(table, Mapping):
            return table
        return {name: trees.first_match(name, table, argument) for name, _ in trees.named_leaves(sampled)}

    functions = ("per_example_loss", "per_example_error", "class_scores", "values", "check_data")
    own_density = potential.prior is not None and not isinstance(potential.prior, Prior | Mapping)
    changes: dict[str, Any] = {name: on_full(getattr(potential, name)) for name in functions}
    restricted = replace(
        potential,
        **changes,
        gradient=None,
        slopes=None,
        gradient_moments=None,
        weight_decay=by_name(potential.weight_decay, "weight_decay"),
        prior=on_full(potential.prior) if own_density else by_name(potential.prior, "prior"),
        regularized_size=potential.regularized_size or trees.num_weights(weights),
    )
    return replace(part, potential=restricted)
