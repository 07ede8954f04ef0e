"""Evidence: sums and projections of a run against NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import observables

from .diagnostics import gaussian_toy as toy

NUM_RECORDS = 37


@pytest.fixture(scope="module")
def result() -> pl.Result:
    sampler = pl.full_batch_langevin(toy.POTENTIAL, toy.dataset(), time_step=0.2, momentum_retention=0.9)
    settings: dict[str, Any] = {"temperatures": [0.1, 0.2], "num_chains": 2, "record_every": 5}
    return pl.sample(sampler, toy.weights(0.3), num_steps=5 * NUM_RECORDS, **settings, keep_weights_every=1, key=0)


def flat(tree) -> np.ndarray:
    """Weights (temperature, chain, draw, weight) in the order of the tree."""
    return np.concatenate([np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)], axis=-1)


def test_sums_are_those_of_blocks_of_records(result):
    tests, w = result.states.tests, flat(result.samples).reshape(4, NUM_RECORDS, -1)
    assert tests.num_records.tolist() == [NUM_RECORDS] * 4
    assert tests.block_length.tolist() == [4] * 4  # 37 records are more than 16 blocks of 2
    g = w - flat(jax.tree.map(jnp.zeros_like, toy.weights()))  # U = |w|²/2 + constant
    for block in range(NUM_RECORDS // 4):
        part = slice(4 * block, 4 * block + 4)
        sums = [x[:, part].sum(axis=1) for x in (w, g, w * g, w * w)]
        np.testing.assert_allclose(np.asarray(tests.sums[:, block]), np.stack(sums, axis=1), atol=2e-5)
    means = observables.stein_blocks(tests, 0.5)
    assert means.shape == (4, 4, 4, toy.NUM_WEIGHTS)  # blocks from record 20 on, to record 36
    np.testing.assert_allclose(means[:, 0, 0], w[:, 20:24].mean(axis=1), atol=1e-5)


def test_the_reference_is_the_mean_of_the_records_since_the_one_before(result):
    w = flat(result.samples).reshape(4, NUM_RECORDS, -1)
    mean = w[:, 16:32].mean(axis=1)
    np.testing.assert_allclose(np.asarray(result.states.tests.reference), mean, atol=1e-6)
    np.testing.assert_allclose(np.asarray(result.states.tests.total), w[:, 32:].sum(axis=1), atol=1e-5)
    found = result.trace["centred_virial_temperature"].values.reshape(4, NUM_RECORDS, 2)
    layers = [slice(0, 160), slice(160, 240)]  # large, small
    for record, reference in ((34, mean), (31, w[:, 8:16].mean(axis=1)), (7, 0.0)):
        products = (w[:, record] - reference) * w[:, record]
        expected = np.stack([products[:, layer].mean(axis=1) for layer in layers], axis=1)
        np.testing.assert_allclose(found[:, record], expected, atol=1e-5)


def test_projections_are_on_orthonormal_directions_that_stay(result):
    tests, w = result.states.tests, flat(result.samples).reshape(4, NUM_RECORDS, -1)
    directions = np.asarray(tests.directions, np.float64)
    np.testing.assert_allclose(directions[0] @ directions[0].T, np.eye(16), atol=1e-5)
    found = result.trace["direction_position"].values.reshape(4, NUM_RECORDS, 16)
    for record in (32, 36):
        np.testing.assert_allclose(found[:, record], np.einsum("cdn,cn->cd", directions, w[:, record]), atol=1e-5)


def test_directions_are_the_strongest_of_the_noise():
    scales = np.array([5.0, 3.0, 2.0, *[0.1] * 37])
    inputs = (np.random.default_rng(0).normal(size=(4_000, 40)) * scales).astype(np.float32)
    potential = pl.Potential(lambda w, batch: batch[0] @ w)
    begin = jax.random.normal(jax.random.key(0), (5, 40))
    found = observables.strongest_directions(potential, jnp.zeros(40), (inputs, inputs[:, 0]), begin)
    np.testing.assert_allclose(np.abs(np.asarray(found)[:3, :3]), np.eye(3), atol=0.05)


def test_directions_change_after_record_8_16_32():
    sets = observables.direction_sets(np.arange(1, 400))
    assert (sets[:8] == -1).all()
    assert (np.flatnonzero(np.diff(sets)) + 1).tolist() == [8, 16, 32, 64, 128, 256]
