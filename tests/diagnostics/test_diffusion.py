"""Displacements and D*: random walks of known diffusion, and the two ways of measuring agreeing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin.diagnostics import Displacements, diffusion, effective_samples_per_second


def walk(num_draws=256, num_chains=4, num_weights=400, seed=0):
    """Each weight moves by N(0, 0.01) between records."""
    noise = np.random.default_rng(seed).normal(0, 0.1, (num_chains, num_draws, num_weights))
    return np.cumsum(noise, axis=1).astype(np.float32)


def test_a_random_walk_has_its_diffusion_at_every_interval():
    displacements = Displacements(num_references=6)
    path = walk()
    for draw in range(path.shape[1]):
        displacements.observe(10 * (draw + 1), 0.5 * draw, {"a": jnp.asarray(path[:, draw])})
    found = displacements.diffusion(num_temperatures=2)
    assert found.displacement.shape == (2, 32)
    assert np.array_equal(found.steps, 10.0 * np.arange(1, 33))
    np.testing.assert_allclose(found.seconds, 0.5 * np.arange(1, 33))
    assert (np.abs(found.coefficient - 0.02) < 4 * found.coefficient_error).all()
    np.testing.assert_allclose(found.displacement / found.seconds, 0.02, rtol=0.15)
    np.testing.assert_allclose(found.at(3.25), 0.02, rtol=0.05)
    assert np.isnan(found.at(100.0)).all()


def test_references_are_copies():
    """The chains' buffers are reused by the next segment."""
    displacements = Displacements()
    weights = np.zeros((1, 3), np.float32)
    displacements.observe(1, 0.0, weights)
    weights += 2
    displacements.observe(2, 1.0, weights)
    assert displacements.diffusion().coefficient[0] == pytest.approx(4.0)


def test_nothing_seen_is_said():
    with pytest.raises(ValueError, match="two records"):
        Displacements().diffusion()


def test_kept_weights_give_the_displacements_of_the_run(small_task):
    sampler = pl.full_batch_langevin(small_task.potential, small_task.train, time_step=0.05, chunk_size=1_000)
    result = pl.sample(
        sampler,
        small_task.weights,
        temperatures=[1e-3, 4e-3],
        num_chains=2,
        num_steps=48,
        record_every=4,
        keep_weights_every=2,
        key=0,
    )
    found = diffusion(result, seconds_per_step=0.5)
    assert found.steps[0] == 8
    assert found.seconds[0] == 4.0
    leaves = [np.asarray(leaf).reshape(2, 2, 6, -1) for leaf in jax.tree.leaves(result.samples)]
    flat = np.concatenate(leaves, axis=-1)  # (temperature, chain, draw, weight)
    by_hand = ((flat[:, :, 1:] - flat[:, :, :-1]) ** 2).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(found.displacement[:, 0], by_hand, rtol=1e-4)
    rates = effective_samples_per_second(result.trace, 0.5, burn_in=0.0)
    assert set(rates) == {"loss", "squared_norm", "error"}
    assert (rates["loss"] <= 2 * 12 / (48 * 0.5) + 1e-9).all()
    with pytest.raises(ValueError, match="keep_weights_every"):
        diffusion(type("Result", (), {"samples": None, "trace": result.trace})())


def test_kept_weights_are_dated_right_where_records_are_left_over(small_task):
    sampler = pl.full_batch_langevin(small_task.potential, small_task.train, time_step=0.05, chunk_size=1_000)
    result = pl.sample(
        sampler, small_task.weights, temperatures=[1e-3], num_steps=44, record_every=4, keep_weights_every=4, key=0
    )
    assert jax.tree.leaves(result.samples)[0].shape[2] == 2  # of eleven records, the fourth and the eighth
    assert diffusion(result).steps.tolist() == [16]
