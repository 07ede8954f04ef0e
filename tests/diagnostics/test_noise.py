"""Mini-batch noise: tests against distributions that are known, and the noise that steps use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin.diagnostics import noise, noise_study
from pseudolangevin.diagnostics.noise import collective_noise, consecutive_noise, ks_shape_fraction, misplaced_energy

from . import gaussian_toy as toy

DRAWS = 250


def test_ks_agrees_with_scipy():
    values = np.random.default_rng(0).normal(size=(DRAWS, 5)) * 1.1
    tests = [stats.kstest(column, "norm") for column in values.T]
    np.testing.assert_allclose(noise.ks_distances(values), [test.statistic for test in tests], rtol=1e-6)
    for level in (0.05, 0.3):
        assert noise.ks_fraction(values, level) == np.mean([test.pvalue > level for test in tests])


def test_ks_fractions_of_gaussian_and_uniform_noise():
    random = np.random.default_rng(0)
    assert noise.ks_fraction(random.normal(size=(DRAWS, 4_000))) == pytest.approx(0.95, abs=4 * 0.0034)
    for scale in (2**0.5, 0.5**0.5):  # the variance is wrong
        assert noise.ks_fraction(scale * random.normal(size=(DRAWS, 2_000))) < 0.6
    scales = random.uniform(0.1, 10, size=4_000)
    for num_draws in (20, 250, 1_000):
        fraction = ks_shape_fraction(scales * random.normal(size=(num_draws, 4_000)))
        # The critical value itself was found by simulation, to 0.002 in the fraction.
        assert fraction == pytest.approx(0.95, abs=0.002 + 4 * np.sqrt(0.95 * 0.05 / 4_000))
    assert ks_shape_fraction(random.uniform(-1, 1, size=(250, 500))) < 0.6


def test_correlations_of_white_noise():
    elements = noise.correlations(np.random.default_rng(3).normal(size=(DRAWS, 200)))
    assert len(elements) == 200 * 199 // 2
    assert elements.std() == pytest.approx(1 / np.sqrt(DRAWS), rel=0.03)


def test_total_noise_has_variance_one_and_is_less_correlated():
    random = np.random.default_rng(4)
    common = random.normal(size=(4_000, 1))
    minibatch = (random.normal(size=(4_000, 50)) + common) / np.sqrt(2)
    total = noise.total_noise(minibatch, random.normal(size=(4_000, 50)), np.full(50, 0.1))
    assert noise.correlations(minibatch).mean() == pytest.approx(0.5, abs=0.05)
    assert noise.correlations(total).mean() == pytest.approx(0.05, abs=0.03)
    assert total.var() == pytest.approx(1.0, abs=0.02)


def test_autocorrelation_of_a_moving_average():
    """x(t) = (ξ(t) + ξ(t−1))/√2 has χ(0) = 1, χ(1) = 1/2, and nothing beyond."""
    white = np.random.default_rng(5).normal(size=(1_001, 300))
    chi = noise.autocorrelation((white[1:] + white[:-1]) / np.sqrt(2), 3)
    np.testing.assert_allclose(chi, [1.0, 0.5, 0.0, 0.0], atol=0.02)


def correlated(random, num_draws, num, eigenvalues):
    directions = np.linalg.qr(random.normal(size=(num, len(eigenvalues))))[0]
    white = random.normal(size=(num_draws, num))
    return white + (white @ directions) * (np.sqrt(eigenvalues) - 1) @ directions.T


def test_white_noise_moves_no_energy():
    values = np.random.default_rng(6).normal(size=(DRAWS, 1_000))
    found = collective_noise(values, np.full(1_000, 0.1), 0.995)
    assert found.share == 0.0
    assert 0 <= found.share_bound < 0.02
    assert found.independent_components > 900


def test_collective_directions_are_found_and_bracketed():
    random = np.random.default_rng(7)
    num, ratio, retention = 2_000, 0.01, np.sqrt(0.99)
    values = correlated(random, DRAWS, num, np.array([80.0, 60.0, 40.0]))
    found = collective_noise(values, np.full(num, ratio), retention)
    # Bringing every component to variance one makes the bulk smaller by the share that the directions take.
    bulk = num / (num + 79 + 59 + 39)
    exact = (1 + retention**2) * ratio / num * sum(bulk * x - 1 for x in (80, 60, 40))
    assert len(found.eigenvalues) == 3
    assert found.eigenvalues[0] == pytest.approx(80 * bulk, rel=0.3)
    assert found.share == pytest.approx(exact, abs=4 * found.share_error)
    assert exact <= found.share_bound <= (1 + retention**2) * ratio


def test_a_subset_of_components_sees_the_same_share():
    random = np.random.default_rng(8)
    values = correlated(random, DRAWS, 4_000, np.array([400.0]))
    whole = collective_noise(values, np.full(4_000, 0.01), 0.995)
    part = collective_noise(values[:, ::4], np.full(1_000, 0.01), 0.995, num_components=4_000)
    assert part.share == pytest.approx(whole.share, rel=0.2)
    assert part.eigenvalues[0] == pytest.approx(whole.eigenvalues[0], rel=0.2)


@pytest.fixture(scope="module")
def short_run():
    return toy.run(toy.sampler(), num_steps=240, num_chains=1)


def one_state(result):
    return jax.tree.map(lambda leaf: leaf[0], result.states)


def test_drawn_noise_is_standard_normal(short_run):
    draws = noise.draw(short_run.sampler, one_state(short_run), 0, num_draws=DRAWS)
    assert draws.noise.shape == (DRAWS, toy.NUM_WEIGHTS)
    assert draws.num_silent == 0
    # 𝒱 is measured from a few hundred mini-batches: its own error adds to that of the draws.
    assert np.mean(draws.noise**2) == pytest.approx(1.0, abs=4 * np.sqrt(2 / toy.NUM_WEIGHTS) * np.sqrt(2 / 100))
    np.testing.assert_allclose(draws.ratios, 0.01, rtol=1e-4)
    assert noise.draw(short_run.sampler, one_state(short_run), 0, num_draws=10, max_components=7).noise.shape == (10, 7)


def test_silent_components_are_left_out_and_counted(short_run):
    state = one_state(short_run)
    variance = state.gradient_variance | {"small": jnp.zeros(80)}
    draws = noise.draw(short_run.sampler, state._replace(gradient_variance=variance), 0, num_draws=10)
    assert draws.num_silent == 80
    assert draws.num_noisy == toy.NUM_WEIGHTS - 80
    assert np.isfinite(draws.noise).all()


def test_samplers_without_measured_noise_are_rejected(short_run):
    exact = pl.full_batch_langevin(short_run.sampler.potential, short_run.sampler.dataset, time_step=0.1)
    with pytest.raises(ValueError, match="full_batch_langevin"):
        noise.draw(exact, one_state(short_run), 0)


def test_consecutive_noise_is_what_the_steps_use(short_run):
    """Half-step momenta rebuilt from the exact gradient and the recorded noise equal those of the sampler."""
    sampler, state = short_run.sampler, one_state(short_run)
    run = pl.Run(sampler, temperatures=[toy.TEMPERATURE])
    minibatch, white, _ = consecutive_noise(
        run, short_run.states, num_steps=2, num_components=10_000, key=jax.random.key(0)
    )
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
    assert int(one_state(short_run).step) == 240  # the chain itself has not moved


def study(**settings):
    settings = {"num_steps": 100, "measure_every": 50, "key": 0, "num_consecutive": 60, "max_lag": 5} | settings
    return noise_study(
        toy.sampler(refresh_every=settings["measure_every"], warmup_refreshes=0, variance_max_batches=500),
        toy.weights(),
        temperature=toy.TEMPERATURE,
        num_correlated=100,
        **settings,
    )


def test_noise_study_returns_arrays_to_plot():
    found = study()
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


def test_a_noise_study_depends_on_its_seed():
    short = {"num_steps": 10, "measure_every": 10, "num_draws": 20, "num_consecutive": 3, "max_lag": 1}
    first, again, other = (study(**short, key=key) for key in (1, 1, 2))
    for name in ("noise_density", "correlation_density", "autocorrelation"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        assert not np.array_equal(getattr(first, name), getattr(other, name))
    assert first.correlation_std[0, 1] != other.correlation_std[0, 1]  # of the white noise


def test_misplaced_energy_is_measured_without_its_statistical_part():
    random, num_draws, ratios = np.random.default_rng(1), 1_000, np.full(2_000, 0.1)
    draws = random.normal(size=(num_draws, 2_000))
    value, error = misplaced_energy(draws, ratios, 0.995)
    assert value == pytest.approx(0.0, abs=4 * error)
    # Half of the components are noisier than 𝒱, half are quieter: the mean is right, the place is not.
    value, error = misplaced_energy(np.sqrt(np.tile([0.5, 1.5], 1_000)) * draws, ratios, 0.995)
    chance = np.sqrt(4 / (np.pi * num_draws))
    assert value == pytest.approx((1 + 0.995**2) * 0.1 * (0.5 - chance), abs=4 * error)


def test_collective_share_is_that_of_the_actual_noise():
    """Noise of twice the current variance, all of it along one direction, moves twice the energy."""
    random = np.random.default_rng(2)
    values = random.normal(size=(400, 300)) + 3 * random.normal(size=(400, 1))
    once, twice = (collective_noise(factor * values, np.full(300, 0.01), 0.995) for factor in (1.0, np.sqrt(2)))
    assert once.share > 0
    assert twice.share == pytest.approx(2 * once.share)
    assert twice.share_bound == pytest.approx(2 * once.share_bound)
