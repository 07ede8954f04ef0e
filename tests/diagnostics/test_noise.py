"""Mini-batch noise: tests against distributions that are known, and the noise that steps use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin.diagnostics import noise, noise_study
from pseudolangevin.diagnostics.noise import ks_fraction

from . import gaussian_toy as toy

DRAWS, KEY = 250, jax.random.key(0)


def test_ks_fractions_of_gaussian_noise():
    random = np.random.default_rng(0)
    few = 1.1 * random.normal(size=(DRAWS, 40))
    assert ks_fraction(few) == np.mean([stats.kstest(column, "norm").pvalue > 0.05 for column in few.T])
    assert ks_fraction(random.normal(size=(DRAWS, 4_000))) == pytest.approx(0.95, abs=4 * 0.0034)
    for scale in (2**0.5, 0.5**0.5):  # the variance is wrong
        assert ks_fraction(scale * random.normal(size=(DRAWS, 2_000))) < 0.6


@pytest.fixture(scope="module")
def sampler():
    return toy.sampler()


@pytest.fixture(scope="module")
def state(sampler):
    run = pl.Run(sampler, temperatures=[toy.TEMPERATURE])
    return jax.tree.map(lambda leaf: leaf[0], run.start(toy.weights(), 0))


def test_drawn_noise_is_standard_normal(sampler, state):
    drawn, ratios, num_silent = noise.draw(sampler, state, KEY, num_draws=DRAWS)
    assert drawn.shape == (DRAWS, toy.NUM_WEIGHTS)
    assert num_silent == 0
    # 𝒱 is measured from a few hundred mini-batches: its own error adds to that of the draws.
    assert np.mean(drawn**2) == pytest.approx(1.0, abs=4 * np.sqrt(2 / toy.NUM_WEIGHTS) * np.sqrt(2 / 100))
    np.testing.assert_allclose(ratios, 0.01, rtol=1e-4)
    few = noise.draw(sampler, state, KEY, num_draws=10, max_components=7)[0]
    assert few.shape == (10, 7)


def test_silent_components_are_left_out_and_counted(sampler, state):
    variance = state.gradient_variance | {"small": jnp.zeros(80)}
    drawn, _, num_silent = noise.draw(sampler, state._replace(gradient_variance=variance), KEY, num_draws=10)
    assert num_silent == 80
    assert np.isfinite(drawn).all()
    exact = pl.full_batch_langevin(sampler.potential, sampler.dataset, time_step=0.1)
    with pytest.raises(ValueError, match="full_batch_langevin"):
        noise.draw(exact, state, KEY)


def test_consecutive_noise_is_what_the_steps_use(sampler, state):
    """Half-step momenta rebuilt from the exact gradient and the recorded noise equal those of the sampler."""
    minibatch, white, total = noise.consecutive_noise(sampler, state, 2, 10_000, jax.random.key(0))
    np.testing.assert_allclose(total, 0.1 * minibatch + np.sqrt(0.99) * white, rtol=1e-3, atol=1e-3)
    moved = sampler.step(state, sampler.draw(state))
    exact = trees.ravel(moved.weights)  # ∇U = w − x̄, and x̄ = 0
    mass, variance = trees.ravel(state.masses), trees.ravel(state.gradient_variance)
    retained = sampler.momentum_retention**2
    kick = (1 + retained) * sampler.time_step / 2
    expected = retained * trees.ravel(state.half_step_momentum) - kick * (exact + jnp.sqrt(variance) * minibatch[0])
    expected += jnp.sqrt((1 - retained**2) * mass * state.temperature - kick**2 * variance) * white[0]
    np.testing.assert_allclose(
        trees.ravel(moved.half_step_momentum), expected, atol=2e-5 * float(jnp.abs(expected).max())
    )


def test_noise_study_returns_arrays_to_plot():
    sampler = toy.sampler(refresh_every=50, warmup_refreshes=0)
    settings = {"num_steps": 100, "measure_every": 50, "num_consecutive": 60, "max_lag": 5, "num_correlated": 100}
    found = noise_study(sampler, toy.weights(), temperature=toy.TEMPERATURE, key=0, **settings)
    assert found.steps.tolist() == [50, 100]
    assert found.last_refresh.tolist() == [0, 50]
    assert found.noise_density.shape == (2, len(found.noise_edges) - 1)
    assert found.correlation_density.shape == (2, 3, len(found.correlation_edges) - 1)
    np.testing.assert_allclose(found.correlation_std, 1 / np.sqrt(DRAWS), rtol=0.08)
    assert found.autocorrelation.shape == (2, 3, 6)
    np.testing.assert_allclose(found.autocorrelation[:, :, 0], 1.0, atol=0.15)
    # 6 000 products of independent numbers at every lag; the mean over the series is removed, at a cost of 1/60.
    assert np.abs(found.autocorrelation[:, :, 1:] + 1 / 60).max() < 5 / np.sqrt(6_000)
    assert np.all(found.ks_fraction > 0.85)
