"""The potential U(w) = mean loss over the examples + regulariser: λ/(2N)·|w|² (eq:potential), or a prior."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from . import _trees as trees
from ._trees import Array, Batch, PerExample, Selection, Weights, as_number, check_positive

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
        check_positive("scale", self.scale, "it is the width of the prior of a weight")

    def deviation(self, name: str, tensor: Array) -> Array:
        """Return (w − center)/scale of the tensor with this name."""
        is_number = jax.tree_util.all_leaves([self.center]) and np.ndim(self.center) == 0
        center = self.center if is_number else dict(trees.named_leaves(self.center)).get(name)
        if center is None or np.shape(center) not in ((), tensor.shape):
            found = "nothing" if center is None else f"shape {np.shape(center)}"
            remedy = "pass one number, or a pytree shaped like the weights"
            raise ValueError(f"center has {found} for the tensor {name} of shape {tensor.shape}; {remedy}")
        return (tensor - jnp.asarray(center, tensor.dtype)) / float(self.scale)


def gaussian(scale: float, center: float | Weights = 0.0) -> Prior:
    """Return the prior N(center, scale²) of every weight; `center` is a number or a pytree shaped like the weights.

    Example:
        >>> wide = pl.gaussian(10.0)
    """
    return Prior("gaussian", scale, center)


def laplace(scale: float, center: float | Weights = 0.0) -> Prior:
    """Return the prior exp(−|w − center|/scale) of every weight, whose standard deviation is √2·scale."""
    return Prior("laplace", scale, center)


def posterior_temperature(dataset: Dataset, noise_scale: float = 1.0) -> float:
    """Return the temperature at which exp(−U/T) is the Bayesian posterior.

    U contains the mean loss over the P examples. If the loss is −log of a likelihood, T is 1/P. That of `regression` is
    −σ²·log of a Gaussian likelihood, so T is σ²/P, with `noise_scale` σ the standard deviation of the targets.
    """
    check_positive("noise_scale", noise_scale, "it is the standard deviation of a target")
    return float(noise_scale) ** 2 / dataset.num_examples


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
        gradient: optional, a faster `gradients.minibatch_gradient` for the loss alone: maps (weights, batch, precision)
            to functions of (weights, batch, friction) by platform ("cpu", "cuda"), {} for none.
        gradient_moments: optional, a faster `masses.gradient_moments`, (weights, batch, mask) → two pytrees.

    Example:
        >>> mean_of_normal = pl.Potential(lambda w, batch: 0.5 * jnp.sum((batch[0] - w) ** 2, axis=-1))
    """

    per_example_loss: PerExample
    weight_decay: WeightDecay = 0.0
    per_example_error: PerExample | None = None
    class_scores: Callable[[Weights, Any], Array] | None = None
    values: Callable[[Weights, Any], Array] | None = None
    check_data: Callable[[Weights, Batch], None] | None = None
    gradient: Callable[[Weights, Batch, str | None], dict[str, Callable]] | None = None
    gradient_moments: Callable[[Weights, Batch, Array], tuple[Weights, Weights]] | None = None
    prior: PriorLike | None = None
    prior_temperature: float | Array | None = None
    needs_data: bool = True
    """Whether the loss depends on the data; see `log_density`."""

    def __post_init__(self) -> None:
        if not callable(self.per_example_loss):
            raise ValueError(f"per_example_loss = {self.per_example_loss!r} is not callable")
        decays = _table(self.weight_decay)
        if not decays or not all(isinstance(pattern, str) for pattern in decays):
            raise ValueError(f"weight_decay = {self.weight_decay!r}: map patterns to numbers, such as {{'*': 1.0}}")
        for value in decays.values():
            if as_number("weight_decay", value) < 0:
                raise ValueError(f"weight_decay = {value!r} is negative: exp(−U/T) would not be normalisable")
        if self.prior is None:
            if self.prior_temperature is not None:
                raise ValueError(f"prior_temperature = {self.prior_temperature!r} has no prior; pass prior= as well")
            return
        if any(decays.values()):
            raise ValueError(f"weight_decay = {self.weight_decay!r} and a prior are two priors; pass one of them")
        priors = list(_table(self.prior).values())
        if not callable(self.prior) and not (priors and all(isinstance(prior, Prior) for prior in priors)):
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
            leaves = zip(jax.tree.leaves(weights), jax.tree.leaves(self.stiffness(weights)), strict=True)
            return [(leaf, 0.5 * k, True) for leaf, k in leaves] if any(_table(self.weight_decay).values()) else []
        if (scale := self.prior_temperature) is None:
            remedy = "call potential.at(temperature) or sampler.at(temperature), or pass prior_temperature"
            raise ValueError(f"U at no temperature: the prior {self.prior!r} is fixed, so U depends on T; {remedy}")
        if callable(self.prior):
            return [(-_one_number("prior", self.prior(weights)), scale, False)]
        terms: list[tuple[Array, Array | float, bool]] = []
        priors = jax.tree.leaves(trees.looked_up(weights, _table(self.prior).items(), "prior"))
        for (name, leaf), prior in zip(trees.named_leaves(weights), priors, strict=True):
            deviation = prior.deviation(name, leaf)
            terms.append((deviation, 0.5 * scale, True) if _is_gaussian(prior) else (jnp.abs(deviation), scale, False))
        return terms

    def stiffness(self, weights: Weights) -> Weights:
        """Return the curvature of the regulariser for every tensor: λ/N, T0/scale² for a Gaussian prior, or 0."""
        if self.prior is None:
            decays = trees.looked_up(weights, _table(self.weight_decay).items(), "weight_decay")
            return jax.tree.map(lambda decay: float(decay) / trees.num_weights(weights), decays)
        scale = 0.0 if self.prior_temperature is None else self.prior_temperature
        priors = trees.looked_up(weights, _table(self.prior).items(), "prior")
        return jax.tree.map(lambda prior: scale / prior.scale**2 if _is_gaussian(prior) else 0.0, priors)

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
        _shape("prior", self.at(1.0).regularizer, weights)
        for num in (3, 5):  # two lengths, so that a result of the wrong shape cannot fit by chance
            batch = dataset.shapes(num)
            for name in ("per_example_loss", "per_example_error"):
                if (function := getattr(self, name)) is None:
                    continue
                found = _shape(name, function, weights, batch)
                shape = getattr(found, "shape", None)
                if shape != (num,) or not jnp.issubdtype(found.dtype, jnp.floating):
                    what = "a scalar; remove the mean over the batch" if shape == () else str(found)
                    expected = f"one floating-point number per example, shape ({num},) for {num} examples"
                    raise ValueError(f"{name} must return {expected}; it returns {what}")
        if self.check_data is not None:
            self.check_data(weights, dataset.batch)


def _table(setting: Any) -> Mapping[str, Any]:
    """Return the values by pattern of tensor names."""
    return setting if isinstance(setting, Mapping) else {"*": setting}


def _is_gaussian(prior: Any) -> bool:
    return isinstance(prior, Prior) and prior.kind == "gaussian"


def _shape(name: str, function: Callable, weights: Weights, *batch: Batch) -> Any:
    """Return the shape and type of the result, without computing it."""
    try:
        return jax.eval_shape(function, weights, *batch)
    except Exception as error:
        inputs = [f" and inputs of shape {jax.tree.map(lambda leaf: leaf.shape, x)}" for x, _ in batch]
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        remedy = "check the shapes of weights and inputs"
        raise ValueError(f"{name} fails on these weights{''.join(inputs)}: {why}; {remedy}") from error


def _one_number(name: str, value: Any) -> Array:
    if (shape := jnp.shape(value)) != ():
        raise ValueError(f"{name} must return one number, ln of a density; it has shape {shape}: sum over weights")
    return jnp.asarray(value)


def check_labels(targets: Any, num_classes: int) -> None:
    """Raise unless the labels are integers from 0 to K − 1."""
    labels = np.asarray(targets)
    if labels.dtype.kind not in "iu":
        raise ValueError(f"targets has dtype {labels.dtype}; labels must be integers: cast with .astype('int32')")
    if (wrong := labels[(labels < 0) | (labels >= num_classes)]).size:
        found = f"targets holds the label {wrong[0]}, out of range for {num_classes} outputs"
        raise ValueError(f"{found}; use labels 0 … {num_classes - 1}, or a network with more outputs")


def classification(apply: Callable[[Weights, Any], Array], **regularizer: Unpack[Regularizer]) -> Potential:
    """Return the mean cross-entropy of softmax(apply(weights, inputs)) plus λ/(2N)·|w|² (eq:potential).

    The recorded `error` is the share of misclassified examples (eq:errorfunction).

    Args:
        apply: maps (weights, inputs) to logits (S, K).
        regularizer: `weight_decay`, or `prior` and `prior_temperature`; see `Potential`.

    Example:
        >>> potential = pl.classification(pl.models.feedforward((100, 50, 100, 10)).apply, weight_decay=10.0611)
    """
    return _of_classes(apply, cross_entropy, class_scores=apply, **regularizer)


def _of_classes(apply: Callable, output_loss: Callable[[Array, Any], Array], **options: Any) -> Potential:
    """Return the potential of class labels, one or several for each example, whose error is the wrong share."""

    def wrong(logits: Array, labels: Array) -> Array:
        different = (jnp.argmax(logits, axis=-1) != labels).astype(jnp.float32)
        return different.reshape(len(different), -1).mean(axis=-1)

    def check_data(weights: Weights, batch: Batch) -> None:
        first = jax.tree.map(lambda array: array[:1], batch[0])
        check_labels(batch[1], jax.eval_shape(apply, weights, first).shape[-1])

    errors = {"per_example_error": lambda weights, batch: wrong(apply(weights, batch[0]), batch[1])}
    return _of_outputs(apply, output_loss, check_data=check_data, **errors, **options)


def _of_outputs(apply: Callable, output_loss: Callable[[Array, Any], Array], **options: Any) -> Potential:
    """Return the potential with a loss of the outputs, with the faster functions that a network offers for it."""
    network: Any = getattr(apply, "__self__", None)
    faster = network.faster(output_loss) if hasattr(network, "faster") else {}
    return Potential(lambda weights, batch: output_loss(apply(weights, batch[0]), batch[1]), **faster, **options)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Return −ln softmax(logits)[label] of every label."""
    if labels.shape != logits.shape[:-1] or not jnp.issubdtype(labels.dtype, jnp.integer):
        found = f"targets has dtype {labels.dtype} and shape {labels.shape}"
        expected = f"integer labels of shape {logits.shape[:-1]} are needed"
        raise ValueError(f"{found}; for logits of shape {logits.shape}, {expected}: cast with .astype('int32')")
    return jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def regression(apply: Callable[[Weights, Any], Array], **regularizer: Unpack[Regularizer]) -> Potential:
    """Return half the squared distance |apply(w, x) − y|²/2, averaged over the examples, plus λ/(2N)·|w|².

    Args:
        apply: maps (weights, inputs) to predictions of the targets' shape.
        regularizer: `weight_decay`, or `prior` and `prior_temperature`; see `Potential`.

    Example:
        >>> line = pl.regression(lambda w, x: w["slope"] * x + w["offset"], weight_decay=1e-3)
    """

    def half_squared_distance(predictions: Array, targets: Array) -> Array:
        if predictions.shape != targets.shape:
            raise ValueError(f"predictions have shape {predictions.shape}, targets {targets.shape}; make them equal")
        return 0.5 * jnp.sum((predictions - targets).reshape(predictions.shape[0], -1) ** 2, axis=-1)

    return _of_outputs(apply, half_squared_distance, values=apply, **regularizer)


def next_token(apply: Callable[[Weights, Any], Array], **regularizer: Unpack[Regularizer]) -> Potential:
    """Return the mean cross-entropy of the next token, for sequences, plus λ/(2N)·|w|².

    An example is a sequence. The loss of an example is the mean over its tokens, and its error is the share of tokens
    that are not the most probable one. Targets are the inputs shifted by one: Dataset(tokens[:, :-1], tokens[:, 1:]).

    Args:
        apply: maps (weights, inputs) to logits (S, L, K), one distribution for each of L positions.
        regularizer: `weight_decay`, or `prior` and `prior_temperature`; see `Potential`.

    Example:
        >>> bigrams = pl.next_token(lambda w, tokens: w["table"][tokens], weight_decay=1.0)
    """
    return _of_classes(apply, lambda logits, tokens: jnp.mean(cross_entropy(logits, tokens), axis=-1), **regularizer)


def log_density(function: Callable[[Weights], Array]) -> Potential:
    """Return U = −ln of a density of the weights, which has no data, for the samplers with the exact gradient.

    At temperature 1 the density itself is sampled.

    Args:
        function: maps weights to the logarithm of a density, up to a constant.

    Example:
        >>> normal = pl.log_density(lambda w: -0.5 * jnp.sum(w**2))
        >>> sampler = pl.hybrid_monte_carlo(normal, num_leapfrog_steps=10, time_step=0.3)
    """
    if not callable(function):
        raise ValueError(f"function = {function!r} is not callable; pass a function from weights to one number")

    def loss(weights: Weights, batch: Batch) -> Array:
        return jnp.broadcast_to(-_one_number("the log-density", function(weights)), batch[1].shape)

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
        >>> line = pl.Potential(lambda w, batch: (w["slope"] * batch[0] + w["offset"] - batch[1]) ** 2)
        >>> part = pl.subset(line, {"slope": jnp.ones(()), "offset": jnp.zeros(())}, "offset")
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

    def by_name(setting: Any, argument: str) -> dict[str, Any]:  # as the patterns may also match frozen tensors
        values = dict(trees.named_leaves(trees.looked_up(weights, _table(setting).items(), argument)))
        return {name: values[name] for name, _ in trees.named_leaves(sampled)}

    share = trees.num_weights(sampled) / trees.num_weights(weights)
    changes: dict[str, Any] = {
        name: on_full(getattr(potential, name))
        for name in ("per_example_loss", "per_example_error", "class_scores", "values", "check_data")
    }
    if potential.prior is not None:
        changes["prior"] = on_full(potential.prior) if callable(potential.prior) else by_name(potential.prior, "prior")
    else:  # λ/N stays
        decays = by_name(potential.weight_decay, "weight_decay")
        changes["weight_decay"] = {name: share * float(decay) for name, decay in decays.items()}
    restricted = replace(potential, **changes, gradient=None, gradient_moments=None)
    return replace(part, potential=restricted)
