"""What an ensemble of weights predicts, and how far its certainty can be trusted.

The prediction of the ensemble is the mean of its members' predictive distributions; one member is an ensemble of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp, ndtr, xlogy

from .checks import check_integer, check_positive
from .potential import Potential, check_labels
from .types import Array, Weights

DEFAULT_CHUNK_SIZE = 4096


@dataclass(frozen=True)
class ClassPredictions:
    """The predictions of a classifier: one distribution over the classes per member and example."""

    probabilities: np.ndarray
    """(member, example, class), of one member each."""

    @property
    def mean_probabilities(self) -> np.ndarray:
        """The ensemble's distribution over the classes, (example, class)."""
        return self.probabilities.mean(axis=0)

    @property
    def labels(self) -> np.ndarray:
        """The most probable class of every example."""
        return self.mean_probabilities.argmax(axis=-1)

    @property
    def predictive_entropy(self) -> np.ndarray:
        """Entropy of the ensemble's distribution, (example,), in nats: 0 is certainty, log K is ignorance."""
        return _entropy(self.mean_probabilities)

    @property
    def disagreement(self) -> np.ndarray:
        """The part of the entropy that comes from members that disagree: entropy of the mean − mean entropy ≥ 0."""
        return np.maximum(self.predictive_entropy - _entropy(self.probabilities).mean(axis=0), 0.0)

    def member(self, index: int) -> ClassPredictions:
        """The predictions of one member alone."""
        return replace(self, probabilities=self.probabilities[index][None])

    def error(self, targets: Any) -> float:
        """Share of examples whose most probable class is not the target."""
        return float(np.mean(self.labels != self._checked(targets)))

    def negative_log_likelihood(self, targets: Any) -> float:
        """−log of the probability given to the target, averaged over the examples."""
        targets = self._checked(targets)
        chosen = self.mean_probabilities[np.arange(targets.size), targets]
        return float(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)).mean())

    def calibration_error(self, targets: Any, *, num_bins: int = 15) -> float:
        """Expected calibration error: |accuracy − mean confidence| over bins of confidence, weighted by their share.

        Args:
            targets: the right classes.
            num_bins: bins of equal width between 0 and 1.
        """
        check_integer("num_bins", num_bins, minimum=1)
        right = self.labels == self._checked(targets)
        confidence = self.mean_probabilities.max(axis=-1)
        bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
        excess = np.bincount(bins, weights=confidence - right, minlength=num_bins)
        return float(np.abs(excess).sum() / right.size)

    def _checked(self, targets: Any) -> np.ndarray:
        check_labels(targets, self.probabilities.shape[-1])
        return _of_length(targets, self.probabilities.shape[1])


@dataclass(frozen=True)
class ValuePredictions:
    """The predictions of a regression: a Gaussian around each member's value, so a mixture of them for the ensemble."""

    values: np.ndarray
    """(member, example, …), of one member each."""
    noise_variance: float
    """σ² of a target around its prediction."""

    @property
    def mean(self) -> np.ndarray:
        """The ensemble's prediction."""
        return self.values.mean(axis=0)

    @property
    def standard_deviation(self) -> np.ndarray:
        """Of a target: the members' spread and the noise together."""
        return np.sqrt(self.values.var(axis=0) + self.noise_variance)

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of the members' values alone."""
        return self.values.std(axis=0)

    def member(self, index: int) -> ValuePredictions:
        """The predictions of one member alone."""
        return replace(self, values=self.values[index][None])

    def root_mean_squared_error(self, targets: Any) -> float:
        """√⟨(mean − target)²⟩."""
        return float(np.sqrt(np.mean((self.mean - self._checked(targets)) ** 2)))

    def negative_log_likelihood(self, targets: Any) -> float:
        """−log of the mixture's density at the targets, averaged over the examples."""
        deviations = (self.values - self._checked(targets)).reshape(*self.values.shape[:2], -1)
        exponent = -0.5 * (deviations**2 / self.noise_variance + np.log(2 * np.pi * self.noise_variance)).sum(axis=-1)
        return float(-(logsumexp(exponent, axis=0) - np.log(exponent.shape[0])).mean())

    def calibration_error(self, targets: Any, *, num_levels: int = 19) -> float:
        """Mean |share of targets below the q-quantile of their prediction − q| over evenly spaced levels q.

        Args:
            targets: the right values.
            num_levels: how many levels between 0 and 1.
        """
        check_integer("num_levels", num_levels, minimum=1)
        deviations = self._checked(targets) - self.values
        position = ndtr(deviations / np.sqrt(self.noise_variance)).mean(axis=0).ravel()
        levels = np.arange(1, num_levels + 1) / (num_levels + 1)
        return float(np.abs((position[:, None] <= levels).mean(axis=0) - levels).mean())

    def _checked(self, targets: Any) -> np.ndarray:
        targets = _of_length(targets, self.values.shape[1]).astype(np.float64)
        if targets.shape != self.values.shape[1:]:
            raise ValueError(
                f"targets have shape {targets.shape}, predictions {self.values.shape[1:]}; make them equal"
            )
        return targets


Predictions = ClassPredictions | ValuePredictions


def predict(
    potential: Potential,
    members: Weights,
    inputs: Any,
    *,
    noise_variance: float | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
) -> Predictions:
    """What each member of an ensemble predicts.

    Args:
        potential: from `classification` or `regression` (or a `Potential` with `class_scores` or `values`).
        members: the ensemble: weights with one leading axis over its members.
        inputs: arrays with one leading example axis, as in `Dataset`.
        noise_variance: of regressions alone: σ² of a target around its prediction. exp(−U/T) is the posterior of
            targets with σ² = P·T, which is what `fit` passes.
        chunk_size: examples held at once; bounds memory, not the result.
    """
    check_integer("chunk_size", chunk_size, minimum=1)
    function = potential.class_scores if potential.class_scores is not None else potential.values
    if function is None:
        raise ValueError(
            "potential has neither class_scores nor values, so it cannot predict; make it with classification or "
            "regression, or pass one of the two to Potential"
        )
    raw = _chunked(function, members, inputs, chunk_size)
    if potential.class_scores is not None:
        return ClassPredictions(np.exp(raw - logsumexp(raw, axis=-1, keepdims=True)))
    if noise_variance is None:
        raise ValueError("noise_variance is missing; a regression needs σ² of its targets: P·T at temperature T")
    check_positive("noise_variance", noise_variance)
    return ValuePredictions(raw, float(noise_variance))


def _chunked(function: Callable[..., Array], members: Weights, inputs: Any, chunk_size: int) -> np.ndarray:
    num_examples = jax.tree.leaves(inputs)[0].shape[0]
    pieces = [
        np.asarray(
            _apply(function, members, jax.tree.map(lambda a, s=start: jnp.asarray(a[s : s + chunk_size]), inputs))
        )
        for start in range(0, num_examples, chunk_size)
    ]
    return np.concatenate(pieces, axis=1).astype(np.float64)


@partial(jax.jit, static_argnames="function")
def _apply(function: Callable[..., Array], members: Weights, inputs: Any) -> Array:
    return jax.lax.map(lambda weights: function(weights, inputs), members)


def _entropy(probabilities: np.ndarray) -> np.ndarray:
    return -xlogy(probabilities, probabilities).sum(axis=-1)


def _of_length(targets: Any, num_examples: int) -> np.ndarray:
    array = np.asarray(targets)
    if array.shape[:1] != (num_examples,):
        raise ValueError(f"targets have shape {array.shape}, but {num_examples} examples were predicted")
    return array
