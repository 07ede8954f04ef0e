"""Adam minimises the loss, with a learning rate that falls by epochs."""

from itertools import pairwise
from typing import Any

import jax
import numpy as np

import pseudolangevin as pl


def test_adam_reduces_the_loss(small_task):
    sampler = pl.adam(small_task.potential, small_task.train, batch_size=100, learning_rate=1e-2)
    options: dict[str, Any] = {"num_steps": 200, "record_every": 20, "num_chains": 2, "key": 0}
    trace = pl.sample(sampler, small_task.weights, test=small_task.test, **options).trace
    assert np.all(trace["loss"][..., -1] < 0.5 * trace["loss"][..., 0])
    for name in ("error", "test_error"):
        assert np.all(trace[name][..., -1] < 0.2), name


def test_the_learning_rate_falls_by_epochs(linear_task):
    """An epoch has 10 steps; after two epochs the learning rate is a thousandth, and the weights hardly move."""
    sampler = pl.adam(linear_task.potential, linear_task.train, batch_size=100, decay_factor=1e-3, decay_epochs=2)
    states = [sampler.init(jax.random.key(0), linear_task.weights)]
    for _ in range(2):
        states.append(sampler.advance(states[-1], 20))
    moved = [np.abs(np.asarray(b.weights - a.weights)).max() for a, b in pairwise(states)]
    assert moved[0] > 1e-3 > 20 * moved[1] > 0
