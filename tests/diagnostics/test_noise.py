import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import pseudolangevin as pl
from pseudolangevin import trees
from pseudolangevin.diagnostics import noise
from pseudolangevin.diagnostics.collective import collective_noise
from pseudolangevin.diagnostics.noise_study import consecutive_noise, noise_study

from . import gaussian_toy as toy

DRAWS = 250


def test_ks_agrees_with_scipy():
    values = np.random.default_rng(0).normal(size=(DRAWS, 5)) * 1.1
    tests = [stats.kstest(column, "norm") for column in values.T]
    np.testing.assert_allclose(noise.ks_distances(values), [test.statistic for test in tests], rtol=1e-6)
    for level in (0.05, 0.3):
        assert noise.ks_fraction(values, level) == np.mean([test.pvalue > level for test in tests])


def test_ks_fraction_of_white_noise():
    fraction = noise.ks_fraction(np.random.default_rng(1).normal(size=(DRAWS, 4_000)))
    assert fraction == pytest.approx(0.95, abs=4 * np.sqrt(0.95 * 0.05 / 4_000))


@pytest.mark.parametrize("scale", [2**0.5, 0.5**0.5])
def test_ks_fraction_falls_when_the_variance_is_wrong(scale):
    assert noise.ks_fraction(scale * np.random.default_rng(2).normal(size=(DRAWS, 2_000))) < 0.6


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
    assert found.hottest(ratio) == pytest.approx(ratio * found.eigenvalues[0])


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


def test_samplers_without_measured_noise_are_refused(short_run):
    exact = pl.full_batch_langevin(short_run.sampler.potential, short_run.sampler.dataset, time_step=0.1)
    with pytest.raises(ValueError, match="full_batch_langevin"):
        noise.draw(exact, one_state(short_run), 0)


def test_consecutive_noise_is_what_the_steps_use(short_run):
    """Half-step momenta rebuilt from the exact gradient and the recorded noise equal those of the kernel."""
    sampler, state = short_run.sampler, one_state(short_run)
    kernel = sampler.kernel
    minibatch, white, _ = consecutive_noise(
        kernel, state, sampler.dataset, num_steps=2, num_components=10_000, key=jax.random.key(0)
    )
    moved = kernel.step(state, sampler.dataset)
    exact = trees.ravel(moved.weights)  # ∇U = w − x̄, and x̄ = 0
    mass, variance = trees.ravel(state.masses), trees.ravel(state.gradient_variance)
    retained = kernel.momentum_retention**2
    kick = (1 + retained) * kernel.time_step / 2
    expected = retained * trees.ravel(state.half_step_momentum) - kick * (exact + jnp.sqrt(variance) * minibatch[0])
    expected += jnp.sqrt((1 - retained**2) * mass * state.temperature - kick**2 * variance) * white[0]
    np.testing.assert_allclose(
        trees.ravel(moved.half_step_momentum), expected, atol=2e-5 * float(jnp.abs(expected).max())
    )


def test_noise_study_returns_arrays_to_plot():
    study = noise_study(
        toy.sampler(refresh_every=50, warmup_refreshes=0),
        toy.weights(),
        temperature=toy.TEMPERATURE,
        num_steps=100,
        measure_every=50,
        key=0,
        num_consecutive=60,
        max_lag=5,
        num_correlated=100,
    )
    assert study.steps.tolist() == [50, 100]
    assert study.last_refresh.tolist() == [0, 50]
    assert study.noise_density.shape == (2, len(study.noise_edges) - 1)
    assert study.correlation_density.shape == (2, 3, len(study.correlation_edges) - 1)
    np.testing.assert_allclose(study.correlation_std, 1 / np.sqrt(DRAWS), rtol=0.08)
    assert study.autocorrelation.shape == (2, 3, 6)
    np.testing.assert_allclose(study.autocorrelation[:, :, 0], 1.0, atol=0.15)
    # 6 000 products of independent numbers at every lag; the mean over the series is removed, at a cost of 1/60.
    assert np.abs(study.autocorrelation[:, :, 1:] + 1 / 60).max() < 5 / np.sqrt(6_000)
    assert np.all(study.ks_fraction > 0.85)
