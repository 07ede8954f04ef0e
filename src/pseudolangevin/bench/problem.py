"""What is timed: the paper's network at any width, its data, and how much arithmetic a gradient is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .. import models
from ..data import Dataset
from ..models import FeedForward
from ..paper.spins import WEIGHT_DECAY
from ..potential import Potential, classification

PUBLISHED_SIZES = (11_160, 101_610, 1_006_110)
NUM_CLASSES, DIMENSION, FLIP_PROBABILITY = 10, 100, 0.355
MAX_DISTINCT_EXAMPLES = 5_030_550
"""Beyond the paper's largest data set the same examples are repeated: more would only take longer to make."""
QUIET_TEMPERATURE_RATIO = 1e-6
"""𝒯 of the timed chains: masses so heavy that they stay finite without a refresh, however long they are timed."""


@dataclass(frozen=True)
class Problem:
    """One size: N weights, P = 5N examples, S = 1 % of P."""

    num_weights: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The widths of the network."""
        return (DIMENSION, hidden_units(self.num_weights), 100, NUM_CLASSES)

    @property
    def num_examples(self) -> int:
        """P."""
        return 5 * self.num_weights

    @property
    def batch_size(self) -> int:
        """S."""
        return max(2, round(0.01 * self.num_examples))

    @property
    def temperature(self) -> float:
        """A little above the transition at T = 1/P: 3e-5 at N = 11 160."""
        return 1.674 / self.num_examples

    @property
    def forward_flops(self) -> float:
        """Of the matrix products of one example's loss; a multiplication and an addition are two."""
        return 2.0 * sum(a * b for a, b in pairwise(self.sizes))

    @property
    def gradient_flops(self) -> float:
        """Of one example's gradient: forward, by the weights, by the activations (not by the input)."""
        return 3 * self.forward_flops - 2.0 * self.sizes[0] * self.sizes[1]

    def network(self) -> FeedForward:
        """The paper's, with ReLU on the logits."""
        return models.feedforward(self.sizes, output_activation="relu")

    def potential(self) -> Potential:
        """Cross-entropy and λ/(2N)·|w|²."""
        return classification(self.network().apply, weight_decay=WEIGHT_DECAY)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The paper's noisy spin vectors, made on the host: int8 inputs, int32 labels.

        On the device the random numbers would need more memory than the sampling that is measured.
        """
        generator = np.random.default_rng(0)
        distinct = min(self.num_examples, MAX_DISTINCT_EXAMPLES)
        references = np.where(generator.random((NUM_CLASSES, DIMENSION)) < 0.5, -1, 1).astype(np.int8)
        labels = generator.integers(NUM_CLASSES, size=distinct, dtype=np.int32)
        inputs = references[labels]
        for start in range(0, distinct, 100_000):
            part = inputs[start : start + 100_000]
            part[generator.random(part.shape, np.float32) < FLIP_PROBABILITY] *= -1
        repeats = -(-self.num_examples // distinct)
        if repeats > 1:
            inputs, labels = np.tile(inputs, (repeats, 1)), np.tile(labels, repeats)
        return inputs[: self.num_examples], labels[: self.num_examples]

    def dataset(self) -> Dataset:
        """The examples on the device."""
        return Dataset(*self.arrays())


def hidden_units(num_weights: int) -> int:
    """L1 of the network with N = 201·L1 + 1110 weights."""
    hidden, rest = divmod(num_weights - 1_110, 201)
    if hidden < 1 or rest:
        nearest = 201 * max(1, round((num_weights - 1_110) / 201)) + 1_110
        raise ValueError(
            f"size {num_weights}: the network 100, L1, 100, 10 has 201·L1 + 1110 weights; the nearest is {nearest}"
        )
    return hidden


def nearest_size(num_weights: float) -> int:
    """The number of weights, of those the network can have, that comes nearest."""
    return 201 * max(1, round((num_weights - 1_110) / 201)) + 1_110
