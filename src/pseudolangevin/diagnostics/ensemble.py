"""Predictions of ensembles of sampled weights, their uncertainty and scores.

The prediction of an ensemble is the mean of its members' predictive distributions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import entr, ndtr

from .._trees import Array, Weights, check_integer, check_positive
from ..gradients import DEFAULT_CHUNK_SIZE, fast_convolutions
from ..potential import Potential, check_labels


class _Members:
    """Common part of the predictions of classifiers and of regressions; the first field has an axis over members."""

    score_names: ClassVar[tuple[str, ...]]

    def members(self) -> list[Self]:
        """Return the predictions of each member alone."""
        name = fields(self)[0].name  # type: ignore[arg-type]
        return [replace(self, **{name: member[None]}) for member in getattr(self, name)]  # type: ignore[type-var]

    def scores(self, targets: Any) -> dict[str, float]:
        """Return all scores by name."""
        return {name: getattr(self, name)(targets) for name in self.score_names}


def _checked(targets: Any, shape: tuple[int, ...]) -> np.ndarray:
    if (targets := np.asarray(targets)).shape != shape:
        raise ValueError(f"targets have shape {targets.shape}, predictions {shape}; make them equal")
    return targets


@dataclass(frozen=True)
class ClassPredictions(_Members):
    """Predictions of a classifier: one distribution over the classes per member and example."""

    probabilities: np.ndarray  # probabilities of every member, (member, example, class)
    score_names: ClassVar = ("negative_log_likelihood", "error", "calibration_error", "brier_score")

    @property
    def mean_probabilities(self) -> np.ndarray:
        """Distribution of the ensemble over the classes, (example, class)."""
        return self.probabilities.mean(axis=0)

    @property
    def labels(self) -> np.ndarray:
        """Most probable class of every example."""
        return self.mean_probabilities.argmax(axis=-1)

    @property
    def total_uncertainty(self) -> np.ndarray:
        """Entropy of the ensemble's distribution, (example,), in nats: 0 is certainty, log K is ignorance."""
        return entr(self.mean_probabilities).sum(axis=-1)

    @property
    def epistemic_uncertainty(self) -> np.ndarray:
        """Mutual information of label and member, (example,), in nats: more data could remove it."""
        return np.maximum(self.total_uncertainty - entr(self.probabilities).sum(axis=-1).mean(axis=0), 0.0)

    def brier_score(self, targets: Any) -> float:
        """Return the squared distance of the probabilities from the label's, Σ(p_k − y_k)², averaged over examples."""
        return float(np.mean((self.mean_probabilities**2).sum(axis=-1) - 2 * self._chosen(targets) + 1))

    def error(self, targets: Any) -> float:
        """Return the share of examples whose most probable class is not the target."""
        return float(np.mean(self.labels != self._labels(targets)))

    def negative_log_likelihood(self, targets: Any) -> float:
        """Return −log of the probability of the target, averaged over the examples."""
        return float(-np.log(np.maximum(self._chosen(targets), np.finfo(np.float64).tiny)).mean())

    def calibration_error(self, targets: Any) -> float:
        """Return the expected calibration error: |accuracy − confidence| over 15 bins of confidence, by their size."""
        right = self.labels == self._labels(targets)
        confidence = self.mean_probabilities.max(axis=-1)
        bins = np.minimum((confidence * 15).astype(int), 14)
        return float(np.abs(np.bincount(bins, weights=confidence - right)).sum() / right.size)

    def _labels(self, targets: Any) -> np.ndarray:
        check_labels(targets, self.probabilities.shape[-1])
        return _checked(targets, self.probabilities.shape[1:2])

    def _chosen(self, targets: Any) -> np.ndarray:
        """Return the ensemble's probability of every target."""
        return np.take_along_axis(self.mean_probabilities, self._labels(targets)[:, None], axis=-1)[:, 0]


@dataclass(frozen=True)
class ValuePredictions(_Members):
    """Predictions of a regression: a Gaussian around each member's value, a mixture of these for the ensemble."""

    values: np.ndarray  # values of every member, (member, example, …)
    noise_variance: float  # variance σ² of a target around its prediction
    score_names: ClassVar = ("negative_log_likelihood", "root_mean_square_error", "calibration_error")

    @property
    def mean(self) -> np.ndarray:
        """Prediction of the ensemble."""
        return self.values.mean(axis=0)

    @property
    def standard_deviation(self) -> np.ndarray:
        """Standard deviation of a target: the spread of the members and the noise together."""
        return np.sqrt(self.values.var(axis=0) + self.noise_variance)

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of the members' values: more data could reduce it."""
        return self.values.std(axis=0)

    total_uncertainty, epistemic_uncertainty = standard_deviation, spread

    def root_mean_square_error(self, targets: Any) -> float:
        """Return the root of the mean squared deviation of the targets from the mean prediction."""
        return float(np.sqrt(np.mean((self.mean - _checked(targets, self.mean.shape)) ** 2)))

    def negative_log_likelihood(self, targets: Any) -> float:
        """Return −log of the mixture's density at the targets, averaged over the examples."""
        deviations = (self.values - _checked(targets, self.mean.shape)).reshape(*self.values.shape[:2], -1)
        exponent = -0.5 * (deviations**2 / self.noise_variance + np.log(2 * np.pi * self.noise_variance)).sum(axis=-1)
        return float(np.mean(np.log(len(exponent)) - np.logaddexp.reduce(exponent, axis=0)))

    def calibration_error(self, targets: Any) -> float:
        """Return the mean of |share of targets below the q-quantile of their prediction − q|, q = 5, 10, …, 95 %."""
        deviations = _checked(targets, self.mean.shape) - self.values
        position = ndtr(deviations / np.sqrt(self.noise_variance)).mean(axis=0).ravel()
        levels = np.arange(1, 20) / 20
        return float(np.abs((position[:, None] <= levels).mean(axis=0) - levels).mean())


Predictions = ClassPredictions | ValuePredictions


def predict(
    potential: Potential,
    members: Weights,
    inputs: Any,
    *,
    noise_variance: float | None = None,
    chunk_size: int | None = None,
) -> Predictions:
    """Return the predictions of every member of an ensemble.

    Args:
        potential: from `classification` or `regression` (or a `Potential` with `class_scores` or `values`).
        members: weights with one leading axis over the members.
        inputs: arrays with one leading example axis, as in `Dataset`.
        noise_variance: for regressions, the variance σ² of a target around its prediction; P·T for the posterior.
        chunk_size: examples held at once; default: at most 4096, fewer for large examples.
    """
    function = potential.class_scores or potential.values
    if function is None:
        remedy = "make it with classification or regression, or pass one of the two to Potential"
        raise ValueError(f"potential has neither class_scores nor values, so it cannot predict; {remedy}")
    if potential.class_scores is None:
        remedy = "a regression needs the variance σ² of its targets: P·T at temperature T"
        check_positive("noise_variance", noise_variance or 0.0, remedy)
    try:
        jax.eval_shape(function, *(jax.tree.map(lambda w: w[0], members), jax.tree.map(lambda a: a[:1], inputs)))
    except Exception as error:
        shapes, why = jax.tree.map(np.shape, inputs), " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(
            f"inputs of shape {shapes} do not fit the network: {why}; pass a batch as in training"
        ) from None
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(inputs)]
    if chunk_size is None:
        chunk_size = max(1, min(DEFAULT_CHUNK_SIZE, 2**21 // max(1, sum(leaf[:1].size * 4 for leaf in leaves))))
    check_integer("chunk_size", chunk_size, minimum=1)
    starts = range(0, len(leaves[0]), chunk_size)
    chunks = (jax.tree.map(lambda a, s=s: jnp.asarray(a[s : s + chunk_size]), inputs) for s in starts)
    raw = np.concatenate([np.asarray(_apply(function, members, chunk)) for chunk in chunks], axis=1).astype(np.float64)
    if potential.class_scores is not None:
        return ClassPredictions(np.exp(raw - np.logaddexp.reduce(raw, axis=-1, keepdims=True)))
    return ValuePredictions(raw, float(noise_variance or 0.0))


@partial(jax.jit, static_argnums=0)
def _apply(function: Any, members: Weights, inputs: Any) -> Array:
    return jax.lax.map(fast_convolutions(lambda weights: function(weights, inputs)), members)
