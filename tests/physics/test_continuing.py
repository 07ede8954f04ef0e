"""A chain that starts where another ended has other noise, even with the same key."""

import jax
import numpy as np
import pytest

import pseudolangevin as pl

pytestmark = pytest.mark.usefixtures("_no_directions")


def test_a_chain_that_continues_with_the_same_key_has_other_noise():
    """The next displacement of a weight that diffuses freely is independent of the last."""
    potential = pl.Potential(lambda w, batch: batch[0] * (w["w"] @ np.zeros(500, np.float32)), weight_decay=0.1)
    data = pl.Dataset(np.ones(10, np.float32), np.ones(10, np.float32))
    sampler = pl.full_batch_langevin(potential, data, time_step=0.02)

    def run(start):
        return pl.sample(sampler, start, temperatures=[1.0], num_chains=4, num_steps=500, record_every=500, key=0)

    first = run({"w": np.zeros(500, np.float32)})
    second = run(first.weights)
    middle, last = (np.asarray(result.weights["w"])[0] for result in (first, second))
    correlations = [np.corrcoef(a, b - a)[0, 1] for a, b in zip(middle, last, strict=True)]
    assert np.abs(correlations).max() < 0.2
    keys = np.concatenate([jax.random.key_data(result.states.key) for result in (first, second)])
    assert len({tuple(key.tolist()) for key in keys}) == 8
