"""Langevin samplers: masses, refreshes, resets and intervals around the step of the integrator."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin import integrator, masses

pytestmark = pytest.mark.usefixtures("_no_directions")

RATIO, MAX_RATIO, T = 0.02, 0.2, 1e-3
OPTIONS: dict[str, Any] = {
    "batch_size": 16,
    "temperature_ratio": RATIO,
    "max_temperature_ratio": MAX_RATIO,
    "reset_probability": 0.0,
    "warmup_refreshes": 0,
    "refresh_every": 100,
    "max_refresh_interval": 300,
    "refresh_tolerance": 0.3,
}


def make(task, **changes: Any) -> pl.pseudo_langevin:
    return pl.pseudo_langevin(task.potential, task.train, **OPTIONS | changes)


@jax.jit
def start(sampler, weights):
    return sampler.init(jax.random.key(0), weights, T)


@jax.jit
def refresh(sampler, state):
    return sampler.refresh(state)


def ratios_of(sampler, variance, state) -> np.ndarray:
    ratios = masses.temperature_ratios(variance, state.masses, state.temperature, **sampler.dynamics)
    return np.asarray(trees.ravel(ratios))


@pytest.fixture(scope="module")
def started(small_task):
    sampler = make(small_task)
    return sampler, start(sampler, small_task.weights)


def test_ratios_are_nominal_after_the_start(small_task, started):
    sampler, state = started
    variance = trees.ravel(state.gradient_variance)
    floored = trees.ravel(masses.floor_variance(state.gradient_variance, 0.01)) > variance
    minimum = 5.0 / 364 / 0.1**2  # (λ/N)·(δt/0.1)²
    free = ~np.asarray(floored) & (np.asarray(trees.ravel(state.masses)) > minimum * (1 + 1e-6))
    ratios = ratios_of(sampler, state.gradient_variance, state)
    assert free.mean() > 0.5
    np.testing.assert_allclose(ratios[free], RATIO, rtol=1e-5)
    assert (ratios[~free] < RATIO).all()
    assert int(state.status) == pl.Status.RUNNING


def test_momenta_start_as_maxwell_boltzmann(small_task):
    """⟨p²/M⟩ = T over many chains, each with its own 𝒱 and masses."""
    sampler = make(small_task, batch_size=200)

    @jax.jit
    def temperatures(sampler, keys):
        gradient = jax.grad(small_task.potential.energy)(small_task.weights, sampler.dataset.batch)

        def one(key):
            state = sampler.init(key, small_task.weights, T)
            momentum = integrator.full_step(state.half_step_momentum, gradient, 1.0)
            exact = trees.mean(jax.tree.map(lambda p, m: p**2 / m, momentum, state.masses))
            return exact, sampler.measure(state, gradient)["kinetic_temperature"]

        return jax.lax.map(one, keys)

    # A half step damps p by c1 and adds (1 − c1²)·M·T of noise, mini-batch noise included: the variance stays M·T.
    for measured in temperatures(sampler, jax.random.split(jax.random.key(0), 20)):
        values = np.asarray(measured, np.float64)
        assert abs(values.mean() - T) < 3 * values.std(ddof=1) / np.sqrt(20)
        assert values.std(ddof=1) < 2 * T * np.sqrt(2 / 364)


def test_masses_that_are_too_light_are_raised_and_their_momenta_redrawn(small_task, started):
    sampler, state = started
    rng = np.random.default_rng(0)
    lighter = jax.tree.map(lambda m: jnp.where(rng.random(m.shape) < 0.1, m / 40, m), state.masses)
    before = state._replace(masses=lighter)
    after = refresh(sampler, before)
    floored = masses.floor_variance(after.gradient_variance, 0.01)
    old_ratios, new_ratios = (ratios_of(sampler, floored, s) for s in (before, after))
    too_light = old_ratios > MAX_RATIO
    assert 10 < too_light.sum() < 100
    np.testing.assert_allclose(new_ratios[too_light], MAX_RATIO, rtol=1e-5)
    for name in ("masses", "half_step_momentum"):
        old, new = (np.asarray(trees.ravel(getattr(s, name))) for s in (before, after))
        np.testing.assert_array_equal(old[~too_light], new[~too_light])
        assert (old[too_light] != new[too_light]).all()
    np.testing.assert_array_equal(trees.ravel(before.weights), trees.ravel(after.weights))
    assert float(after.raised_share) == pytest.approx(too_light.mean())
    assert int(after.num_resets) == 0


def test_a_reset_restores_nominal_masses_and_redraws_every_momentum(small_task, started):
    sampler = make(small_task, reset_probability=1.0)
    before = started[1]._replace(masses=jax.tree.map(lambda m: 100 * m, started[1].masses))
    after = refresh(sampler, before)
    assert int(after.num_resets) == 1
    nominal = sampler.nominal_masses(after.gradient_variance, after.weights, jnp.asarray(T))
    np.testing.assert_allclose(trees.ravel(after.masses), trees.ravel(nominal), rtol=1e-5)
    assert (trees.ravel(after.half_step_momentum) != trees.ravel(before.half_step_momentum)).all()


def test_the_interval_grows_while_measurements_agree_and_starts_again_otherwise(started):
    sampler, state = started
    intervals = []
    for index in range(5):
        state = state._replace(step=state.next_refresh)
        if index == 3:
            state = state._replace(gradient_variance=jax.tree.map(lambda v: 4 * v, state.gradient_variance))
        before, state = state, refresh(sampler, state)
        if index == 0:  # no ratio was too large, so nothing was redrawn
            np.testing.assert_array_equal(trees.ravel(before.masses), trees.ravel(state.masses))
            np.testing.assert_array_equal(trees.ravel(before.half_step_momentum), trees.ravel(state.half_step_momentum))
        intervals.append(int(state.next_refresh - state.last_refresh))
    assert intervals == [200, 300, 300, 100, 200]  # 2×, 3×, then max_refresh_interval


def test_intervals_double_during_the_warmup(small_task, started):
    cases = [(80, 3, 240, [10, 20, 40, 80, 160, 240]), (100, 3, 250, [12, 25, 50, 100, 200, 200]), (7, 10, 20, [1] * 6)]
    for every, warmup, longest, expected in cases:
        sampler = make(small_task, refresh_every=every, warmup_refreshes=warmup, max_refresh_interval=longest)
        state = started[1]._replace(next_refresh=jnp.asarray(max(1, every >> warmup)), num_refreshes=jnp.asarray(0))
        found = [int(state.next_refresh)]
        for _ in range(5):
            state = sampler.remeasure(state._replace(step=state.next_refresh), state.gradient_variance)
            found.append(int(state.next_refresh - state.last_refresh))
        assert found == expected


def test_only_chains_that_are_due_and_running_are_refreshed(started):
    sampler, state = started
    guarded = jax.jit(lambda s, state: s.refresh_if_due(state).num_refreshes)
    due = state._replace(step=state.next_refresh)
    stopped = due._replace(status=jnp.asarray(pl.Status.NON_FINITE, jnp.int32))
    assert [int(guarded(sampler, s)) for s in (state, due, stopped)] == [0, 1, 0]


COLD = 1e-7  # so cold that the mini-batch noise of many weights is hotter


def test_naive_pseudo_langevin_keeps_its_mass_and_reports_noise_that_is_clipped(small_task, recwarn):
    sampler = pl.naive_pseudo_langevin(
        small_task.potential, small_task.train, time_step=0.01, mass=3.0, batch_size=16, refresh_every=20
    )
    result = pl.sample(sampler, small_task.weights, temperatures=[T, COLD], num_steps=40, record_every=20, key=0)
    np.testing.assert_array_equal(trees.ravel(result.states.masses), 3.0)
    assert np.isfinite(result.trace.loss).all()
    assert int(result.states.num_refreshes[0]) == 1  # due at 20; 40 is the end
    assert [warning.category for warning in recwarn] == [pl.ClippedNoiseWarning]
    assert "chain 0 at T = 1e-07: at step 20" in str(recwarn[0].message)
    variance = jax.tree.map(lambda v: v[1], result.states.gradient_variance)
    c1, length = sampler.momentum_retention, (1 + sampler.momentum_retention**2) * 0.01 / 2
    clipped = float(np.mean((1 - c1**4) * 3.0 * COLD < length**2 * np.asarray(trees.ravel(variance))))
    assert 0.1 < clipped < 0.9
    np.testing.assert_allclose(result.trace.clipped_share.isel(chain=0, draw=-1), [0.0, clipped], atol=0.01)


def test_a_loss_without_noise_is_not_sampled():
    potential = pl.Potential(lambda w, batch: jnp.sum(w**2) + 0 * batch[0])
    dataset = pl.Dataset(np.ones(50, np.float32), np.ones(50))
    sampler = pl.pseudo_langevin(potential, dataset, batch_size=5)
    with pytest.warns(pl.ChainStoppedWarning, match=r"chain 0 at T = 0.1 stopped by step 5: .*full_batch_langevin"):
        result = pl.sample(sampler, jnp.ones(3), temperatures=[0.1], num_steps=10, record_every=5, key=0)
    assert int(result.states.status[0]) == pl.Status.NO_NOISE
    np.testing.assert_array_equal(result.states.weights, np.ones((1, 3)))
    assert result.trace.sizes["draw"] == 1  # the run ended early
