"""Small problems shared by the tests."""

from __future__ import annotations

from typing import NamedTuple

import jax
import pytest

import pseudolangevin as pl
from pseudolangevin.models import FeedForward


class SmallTask(NamedTuple):
    train: pl.Dataset
    test: pl.Dataset
    network: FeedForward
    potential: pl.Potential
    weights: dict


@pytest.fixture(scope="session")
def small_task() -> SmallTask:
    """Four classes of noisy spin vectors and a network of 364 weights."""
    train, test = pl.tasks.spin_vectors(
        jax.random.key(0), num_train=1_000, num_test=300, dimension=20, num_classes=4, flip_probability=0.2
    )
    network = pl.models.feedforward((20, 10, 10, 4), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=5.0)
    return SmallTask(train, test, network, potential, network.init(jax.random.key(1)))
