"""Displacements and D*: random walks of known diffusion, and three ways of measuring that agree."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin.diagnostics import Displacements, diffusion, measure_diffusion

from . import gaussian_toy as toy


def walk(num_draws=256, num_chains=4, num_weights=400, seed=0):
    """Each weight moves by N(0, 0.01) between records."""
    noise = np.random.default_rng(seed).normal(0, 0.1, (num_chains, num_draws, num_weights))
    return np.cumsum(noise, axis=1).astype(np.float32)


def test_a_random_walk_has_its_diffusion_at_every_interval():
    displacements = Displacements(num_references=6)
    path = walk()
    for draw in range(path.shape[1]):
        displacements.observe(10 * (draw + 1), {"a": jnp.asarray(path[:, draw])})
    found = displacements.diffusion(0.05, num_temperatures=2)
    assert found.displacement.shape == (2, 32)
    assert np.array_equal(found.steps, 10.0 * np.arange(1, 33))
    np.testing.assert_allclose(found.seconds, 0.5 * np.arange(1, 33))
    assert (np.abs(found.coefficient - 0.02) < 4 * found.coefficient_error).all()
    np.testing.assert_allclose(found.displacement / found.seconds, 0.02, rtol=0.15)


def test_references_are_copies():
    """The buffers of the chains are reused by the next segment."""
    displacements = Displacements()
    weights = np.zeros((1, 3), np.float32)
    displacements.observe(1, weights)
    weights += 2
    displacements.observe(2, weights)
    assert displacements.diffusion(1.0).coefficient[0] == pytest.approx(4.0)
    with pytest.raises(ValueError, match="two records"):
        Displacements().diffusion(1.0)


SAMPLER = pl.full_batch_langevin(toy.POTENTIAL, toy.dataset(), time_step=0.1)
CHAINS: dict[str, Any] = {"temperatures": [1e-3, 4e-3], "num_chains": 2}


def test_kept_weights_and_a_timed_run_give_the_same_displacements():
    result = pl.sample(SAMPLER, toy.weights(), **CHAINS, num_steps=52, record_every=4, keep_weights_every=2, key=0)
    found = diffusion(result, seconds_per_step=0.5)
    assert found.steps[0] == 8  # the last of the thirteen records is left over
    assert found.seconds[0] == 4.0
    leaves = [np.asarray(leaf).reshape(2, 2, 6, -1) for leaf in jax.tree.leaves(result.samples)]
    flat = np.concatenate(leaves, axis=-1)  # (temperature, chain, draw, weight)
    by_hand = ((flat[:, :, 1:] - flat[:, :, :-1]) ** 2).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(found.displacement[:, 0], by_hand, rtol=1e-4)

    run = pl.Run(SAMPLER, **CHAINS)
    start = run.start(toy.weights(), 0)
    timed = measure_diffusion(run, start, every=8, seconds=60, discard_steps=0, max_steps=48, observe=True)
    assert timed.diffusion is not None
    assert (timed.num_steps, int(timed.states.step[0])) == (40, 48)
    np.testing.assert_allclose(timed.diffusion.displacement[:, 0], by_hand, rtol=1e-4)
    assert timed.coefficient.mean == pytest.approx(by_hand[0] / (8 * timed.seconds_per_step), rel=1e-4)
    assert timed.refresh_seconds == 0.0
    recorded = result.trace["loss"].values.reshape(4, -1)
    np.testing.assert_allclose(timed.observables["loss"][:, 0], recorded[:, 3], rtol=1e-6)
    with pytest.raises(ValueError, match="keep_weights_every"):
        diffusion(pl.Result(result.trace, result.weights, None, result.states, SAMPLER))


def test_a_timed_run_starts_after_the_first_refresh_and_ends_with_a_chain_that_fails():
    run = pl.Run(toy.sampler(refresh_every=16, warmup_refreshes=0, max_refresh_interval=16), temperatures=[1e-3])
    timed = measure_diffusion(run, run.start(toy.weights(), 0), every=8, seconds=60, max_steps=320)
    assert timed.num_steps == 320 - 24
    assert timed.refresh_seconds > 0
    broken = timed.states._replace(weights=jax.tree.map(lambda w: w * np.nan, timed.states.weights))
    after = measure_diffusion(run, broken, every=8, seconds=60, discard_steps=0)
    assert after.stopped
    assert np.isnan(after.coefficient.mean)
    assert measure_diffusion(run, after.states, every=8, seconds=60).stopped
