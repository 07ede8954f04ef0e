"""Ensembles of sampled weights: whether their energies follow exp(−U/T), and what they predict.

Two-temperature check (Shirts, J. Chem. Theory Comput. 9, 909 (2013)). Whatever the density of states, two samples
of exp(−U/T) at T1 and T2 satisfy

    ln[P2(U)/P1(U)] = const − (1/T2 − 1/T1)·U,

so the ratio of the two histograms is linear in U with a slope that contains no unknown. The slope is found by maximum
likelihood: given U, the probability that a sample came from T2 is a logistic function of U.

The prediction of an ensemble is the mean of its members' predictive distributions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from .._checks import check_integer, check_positive
from .._convolutions import fast_convolutions
from .._trees import Array, Weights
from ..gradients import DEFAULT_CHUNK_SIZE
from ..potential import Potential, check_labels
from .averages import MIN_EFFECTIVE_SAMPLES, Floats, as_chains, effective_samples


class EnsembleCheck(NamedTuple):
    """Measured slope of ln[P2(U)/P1(U)], compared with the expected one."""

    ratio: float  # measured slope over −(1/T2 − 1/T1), ideally 1; NaN where it cannot be measured
    standard_error: float  # standard error of `ratio`, by bootstrap over blocks longer than the autocorrelation
    num_samples: tuple[float, float]  # independent samples at the two temperatures
    separation: float  # distance between the means of U in units of their standard deviation
    suggested_temperature: float  # a temperature next to T1 whose energies overlap well with those at T1

    @property
    def overlap(self) -> bool:
        """Whether the two histograms share enough bins: the means are at most four standard deviations apart."""
        return self.separation <= 4


def two_temperature_check(first: ArrayLike, second: ArrayLike, temperatures: tuple[float, float]) -> EnsembleCheck:
    """Measure the slope of ln[P2(U)/P1(U)] from values of U (draw,) or (chain, draw) at the temperatures (T1, T2)."""
    # Of many records, 20 000 at equal distances: the resamplings below hold 200 numbers for each.
    chains = [each[:, :: max(1, each.size // 20_000)] for each in (as_chains(first), as_chains(second))]
    effective = [float(np.nan_to_num(sum(effective_samples(chain) for chain in each))) for each in chains]
    low, high = temperatures
    expected = 1 / low - 1 / high
    spread = math.sqrt((chains[0].var() + chains[1].var()) / 2)
    separation = abs(float(chains[1].mean() - chains[0].mean())) / spread if spread > 0 else math.inf
    # The mean energy changes by the variance of U times the change of 1/T; at two deviations the slope is known best.
    fluctuation = float(chains[0].std())
    inverse = 1 / low - math.copysign(2 / fluctuation if fluctuation > 0 else math.inf, high - low)
    suggested = 1 / inverse if inverse > 0 else math.inf
    unknown = EnsembleCheck(math.nan, math.nan, (effective[0], effective[1]), separation, suggested)
    if not (min(effective) >= MIN_EFFECTIVE_SAMPLES and unknown.overlap):
        return unknown
    energies = np.concatenate([u.ravel() for u in chains])
    scaled = (energies - energies.mean()) / energies.std()
    from_second = np.repeat([0.0, 1.0], [u.size for u in chains])
    random = np.random.default_rng(0)
    resampled = np.concatenate([_block_weights(u, random) for u in chains], axis=1)
    weights = np.concatenate([np.ones((1, len(energies))), resampled])
    ratios = _logistic_slopes(scaled, from_second, weights) / energies.std() / expected
    return unknown._replace(ratio=float(ratios[0]), standard_error=float(ratios[1:].std()))


def _block_weights(chains: Floats, random: np.random.Generator, num_bootstrap: int = 200) -> Floats:
    """Return how often every draw occurs in resamplings of complete blocks, (resampling, draw of all chains)."""
    # Blocks of 8 times the autocorrelation are nearly independent; down to 4 times where there would be fewer than 20.
    inefficiency = float(np.mean([len(chain) / effective_samples(chain) for chain in chains]))
    length = math.ceil(min(8 * inefficiency, max(4 * inefficiency, chains.size / MIN_EFFECTIVE_SAMPLES)))
    blocks_per_chain = -(-chains.shape[1] // length)
    num_blocks = len(chains) * blocks_per_chain
    counts = random.multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), num_bootstrap).astype(np.float64)
    by_chain = counts.reshape(num_bootstrap, len(chains), blocks_per_chain)
    return np.repeat(by_chain, length, axis=2)[:, :, : chains.shape[1]].reshape(num_bootstrap, -1)


def _logistic_slopes(x: Floats, label: Floats, weights: Floats) -> Floats:
    """Return the slopes of weighted logistic regressions of `label` on `x`, one for each row of weights (Newton)."""
    offset, slope = np.zeros((2, len(weights)))
    for _ in range(50):
        probability = 1 / (1 + np.exp(-np.clip(offset[:, None] + slope[:, None] * x, -50, 50)))
        residual = weights * (label - probability)
        curvature = weights * probability * (1 - probability) + 1e-12
        h00, h01, h11 = curvature.sum(1), curvature @ x, curvature @ x**2
        g0, g1 = residual.sum(1), residual @ x
        determinant = h00 * h11 - h01**2
        # Steps are bounded: Newton's method overshoots where the curvature nearly vanishes.
        change = np.clip(np.stack([h11 * g0 - h01 * g1, h00 * g1 - h01 * g0]) / determinant, -2, 2)
        offset, slope = offset + change[0], slope + change[1]
        if np.abs(change).max() < 1e-9:
            break
    return slope


@dataclass(frozen=True)
class ClassPredictions:
    """Predictions of a classifier: one distribution over the classes per member and example."""

    probabilities: np.ndarray  # probabilities of every member, (member, example, class)

    @property
    def mean_probabilities(self) -> np.ndarray:
        """Distribution of the ensemble over the classes, (example, class)."""
        return self.probabilities.mean(axis=0)

    @property
    def labels(self) -> np.ndarray:
        """Most probable class of every example."""
        return self.mean_probabilities.argmax(axis=-1)

    @property
    def predictive_entropy(self) -> np.ndarray:
        """Entropy of the ensemble's distribution, (example,), in nats: 0 is certainty, log K is ignorance."""
        mean = self.mean_probabilities
        return -np.sum(mean * np.log(np.where(mean > 0, mean, 1.0)), axis=-1)

    @property
    def total_uncertainty(self) -> np.ndarray:
        """Entropy of the ensemble's distribution, (example,), in nats."""
        return self.predictive_entropy

    @property
    def epistemic_uncertainty(self) -> np.ndarray:
        """Mutual information of label and member, (example,), in nats: what more data could remove."""
        own = -np.sum(self.probabilities * np.log(np.where(self.probabilities > 0, self.probabilities, 1.0)), axis=-1)
        return np.maximum(self.predictive_entropy - own.mean(axis=0), 0.0)

    def members(self) -> list[ClassPredictions]:
        """Return the predictions of each member alone."""
        return [replace(self, probabilities=member[None]) for member in self.probabilities]

    def scores(self, targets: Any) -> dict[str, float]:
        """Return all scores by name."""
        names = ("negative_log_likelihood", "error", "calibration_error", "brier_score")
        return {name: getattr(self, name)(targets) for name in names}

    def brier_score(self, targets: Any) -> float:
        """Return the squared distance of the probabilities from the label's, Σ(p_k − y_k)², averaged over examples."""
        mean, targets = self.mean_probabilities, self._checked(targets)
        return float(np.mean((mean**2).sum(axis=-1) - 2 * mean[np.arange(targets.size), targets] + 1))

    def error(self, targets: Any) -> float:
        """Return the share of examples whose most probable class is not the target."""
        return float(np.mean(self.labels != self._checked(targets)))

    def negative_log_likelihood(self, targets: Any) -> float:
        """Return −log of the probability of the target, averaged over the examples."""
        targets = self._checked(targets)
        chosen = self.mean_probabilities[np.arange(targets.size), targets]
        return float(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)).mean())

    def calibration_error(self, targets: Any) -> float:
        """Return the expected calibration error: |accuracy − confidence| over 15 bins of confidence, by their size."""
        right = self.labels == self._checked(targets)
        confidence = self.mean_probabilities.max(axis=-1)
        bins = np.minimum((confidence * 15).astype(int), 14)
        return float(np.abs(np.bincount(bins, weights=confidence - right)).sum() / right.size)

    def _checked(self, targets: Any) -> np.ndarray:
        check_labels(targets, self.probabilities.shape[-1])
        return _of_shape(np.asarray(targets), self.probabilities.shape[1:2])


@dataclass(frozen=True)
class ValuePredictions:
    """Predictions of a regression: a Gaussian around each member's value, a mixture of these for the ensemble."""

    values: np.ndarray  # values of every member, (member, example, …)
    noise_variance: float  # variance σ² of a target around its prediction

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
        """Standard deviation of the members' values."""
        return self.values.std(axis=0)

    @property
    def total_uncertainty(self) -> np.ndarray:
        """Standard deviation of a target."""
        return self.standard_deviation

    @property
    def epistemic_uncertainty(self) -> np.ndarray:
        """Standard deviation of the members' values: what more data could remove."""
        return self.spread

    def members(self) -> list[ValuePredictions]:
        """Return the predictions of each member alone."""
        return [replace(self, values=member[None]) for member in self.values]

    def scores(self, targets: Any) -> dict[str, float]:
        """Return all scores by name."""
        names = ("negative_log_likelihood", "root_mean_square_error", "calibration_error")
        return {name: getattr(self, name)(targets) for name in names}

    def root_mean_square_error(self, targets: Any) -> float:
        """Return the root of the mean squared deviation of the targets from the mean prediction."""
        return float(np.sqrt(np.mean((self.mean - self._checked(targets)) ** 2)))

    def negative_log_likelihood(self, targets: Any) -> float:
        """Return −log of the mixture's density at the targets, averaged over the examples."""
        deviations = (self.values - self._checked(targets)).reshape(*self.values.shape[:2], -1)
        exponent = -0.5 * (deviations**2 / self.noise_variance + np.log(2 * np.pi * self.noise_variance)).sum(axis=-1)
        return float(-(np.logaddexp.reduce(exponent, axis=0) - np.log(len(exponent))).mean())

    def calibration_error(self, targets: Any) -> float:
        """Return the mean of |share of targets below the q-quantile of their prediction − q|, q = 5, 10, …, 95 %."""
        from scipy.special import ndtr  # noqa: PLC0415

        deviations = self._checked(targets) - self.values
        position = ndtr(deviations / np.sqrt(self.noise_variance)).mean(axis=0).ravel()
        levels = np.arange(1, 20) / 20
        return float(np.abs((position[:, None] <= levels).mean(axis=0) - levels).mean())

    def _checked(self, targets: Any) -> np.ndarray:
        return _of_shape(np.asarray(targets, np.float64), self.values.shape[1:])


def _of_shape(targets: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if targets.shape != shape:
        raise ValueError(f"targets have shape {targets.shape}, predictions {shape}; make them equal")
    return targets


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
        noise_variance: for regressions, the variance σ² of a target around its prediction. exp(−U/T) is the posterior
            of targets with σ² = P·T, which is what `fit` passes.
        chunk_size: examples held at once; default: at most 4096, fewer for large examples.
    """
    chunk_size = _chunk_size(chunk_size, inputs)
    function = potential.class_scores if potential.class_scores is not None else potential.values
    if function is None:
        raise ValueError(
            "potential has neither class_scores nor values, so it cannot predict; make it with classification or "
            "regression, or pass one of the two to Potential"
        )
    starts = range(0, jax.tree.leaves(inputs)[0].shape[0], chunk_size)
    try:
        jax.eval_shape(
            lambda w: function(w, jax.tree.map(lambda a: a[:1], inputs)), jax.tree.map(lambda w: w[0], members)
        )
    except Exception as error:
        shapes = jax.tree.map(lambda a: a.shape, inputs)
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(
            f"inputs of shape {shapes} do not fit the network: {why}; pass a batch as in training"
        ) from None
    chunks = (jax.tree.map(lambda a, s=s: jnp.asarray(a[s : s + chunk_size]), inputs) for s in starts)
    pieces = [np.asarray(_apply(function, members, chunk)) for chunk in chunks]
    raw = np.concatenate(pieces, axis=1).astype(np.float64)
    if potential.class_scores is not None:
        return ClassPredictions(np.exp(raw - np.logaddexp.reduce(raw, axis=-1, keepdims=True)))
    if noise_variance is None:
        raise ValueError("noise_variance is missing; a regression needs σ² of its targets: P·T at temperature T")
    check_positive("noise_variance", noise_variance)
    return ValuePredictions(raw, float(noise_variance))


def _chunk_size(chunk_size: int | None, inputs: Any) -> int:
    for leaf in (leaves := jax.tree.leaves(inputs)):
        if np.ndim(leaf) == 0:
            raise ValueError(f"inputs = {leaf!r} is a number; pass arrays with one leading example axis")
    if chunk_size is None:
        size = sum(leaf[0].size * 4 for leaf in map(np.asarray, leaves))
        return max(1, min(DEFAULT_CHUNK_SIZE, 2**21 // size))
    check_integer("chunk_size", chunk_size, minimum=1)
    return chunk_size


@partial(jax.jit, static_argnums=0)
def _apply(function: Any, members: Weights, inputs: Any) -> Array:
    return jax.lax.map(fast_convolutions(lambda weights: function(weights, inputs)), members)
