"""The scheme of pL around the step: masses, checks, resets, intervals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pseudolangevin.samplers.langevin_kernel import LangevinKernel

import pseudolangevin as pl
from pseudolangevin import integrator, masses, trees
from pseudolangevin.chains import Result
from pseudolangevin.samplers.base import Stream, advance, refresh

# Far apart, so that the statistical error of 𝒱 from 200 mini-batches makes no offenders.
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
    "variance_block": 100,
    "variance_max_batches": 200,
}


def langevin_kernel(sampler: pl.Sampler) -> LangevinKernel:
    assert isinstance(sampler.kernel, LangevinKernel)
    return sampler.kernel


def start(sampler: pl.Sampler, task, seed: int = 0):
    kernel = langevin_kernel(sampler)
    init = jax.jit(lambda key, w, data: kernel.init(key, w, jnp.asarray(T), data))
    return kernel, init(jax.random.key(seed), task.weights, task.train)


def refreshed(kernel, state, task):
    return jax.jit(kernel.refresh)(state, task.train)


def ratios_of(kernel, state) -> np.ndarray:
    ratios = masses.temperature_ratios(
        state.gradient_variance, state.masses, state.temperature, kernel.momentum_retention, kernel.time_step
    )
    return np.asarray(trees.ravel(ratios))


@pytest.fixture(scope="module")
def started(small_task):
    sampler = pl.pseudo_langevin(small_task.potential, small_task.train, **OPTIONS)
    kernel, state = start(sampler, small_task)
    return kernel, state, jax.jit(kernel.refresh)


def test_every_ratio_is_the_nominal_one_after_the_start(small_task, started):
    kernel, state, _ = started
    variance = trees.ravel(state.gradient_variance)
    floored = trees.ravel(masses.floor_variance(state.gradient_variance, 0.01)) > variance
    minimum = masses.stable_minimum(small_task.potential.stiffness(small_task.weights), 1.0, 0.1)
    free = ~np.asarray(floored) & (np.asarray(trees.ravel(state.masses)) > minimum * (1 + 1e-6))
    ratios = ratios_of(kernel, state)
    assert free.mean() > 0.5
    np.testing.assert_allclose(ratios[free], RATIO, rtol=1e-5)
    assert (ratios[~free] < RATIO).all()
    assert float(state.peak_ratio) == pytest.approx(RATIO, rel=1e-5)
    assert int(state.status) == pl.Status.RUNNING


def test_momenta_start_as_maxwell_boltzmann(small_task):
    """⟨p²/M⟩ = T over many chains, each with its own 𝒱 and masses."""
    kernel = langevin_kernel(
        pl.pseudo_langevin(small_task.potential, small_task.train, **OPTIONS | {"batch_size": 200})
    )

    @jax.jit
    def temperatures(keys, weights, data):
        def one(key):
            state = kernel.init(key, weights, jnp.asarray(T), data)
            gradient = jax.grad(small_task.potential.energy)(weights, data.batch)
            momentum = integrator.full_step(state.half_step_momentum, gradient, 1.0)
            return integrator.kinetic_temperature(momentum, state.masses)

        return jax.lax.map(one, keys)

    measured = np.asarray(temperatures(jax.random.split(jax.random.key(0), 20), small_task.weights, small_task.train))
    # half_step damps p by c1 and adds (1 − c1²)·M·T of noise, mini-batch noise included: the variance stays M·T.
    standard_error = T * np.sqrt(2 / (364 * len(measured)))
    assert abs(measured.mean() - T) < 3 * standard_error


def lighter(state, share: float, factor: float):
    """Some masses divided by `factor`, as if 𝒱 had grown there; which ones."""
    leaves, structure = jax.tree.flatten(state.masses)
    rng = np.random.default_rng(0)
    chosen = [rng.random(leaf.shape) < share for leaf in leaves]
    changed = [jnp.where(c, leaf / factor, leaf) for c, leaf in zip(chosen, leaves, strict=True)]
    flat = np.concatenate([c.ravel() for c in chosen])
    return state._replace(masses=jax.tree.unflatten(structure, changed)), flat


def test_only_offenders_are_raised_to_the_maximum_and_only_their_momenta_redrawn(small_task, started):
    kernel, state, refresh_now = started
    before, chosen = lighter(state, 0.1, 40.0)
    after = refresh_now(before, small_task.train)
    floored = masses.floor_variance(after.gradient_variance, 0.01)
    old_ratios = np.asarray(
        trees.ravel(masses.temperature_ratios(floored, before.masses, jnp.asarray(T), kernel.momentum_retention, 1.0))
    )
    new_ratios = np.asarray(
        trees.ravel(masses.temperature_ratios(floored, after.masses, jnp.asarray(T), kernel.momentum_retention, 1.0))
    )
    offenders = old_ratios > MAX_RATIO
    assert 10 < offenders.sum() < 100
    assert (chosen[offenders]).all()  # nobody else was near the limit
    np.testing.assert_allclose(new_ratios[offenders], MAX_RATIO, rtol=1e-5)
    for name in ("masses", "half_step_momentum"):
        old, new = (np.asarray(trees.ravel(getattr(s, name))) for s in (before, after))
        np.testing.assert_array_equal(old[~offenders], new[~offenders])
        assert (old[offenders] != new[offenders]).all()
    np.testing.assert_array_equal(trees.ravel(before.weights), trees.ravel(after.weights))
    assert float(after.raised_share) == pytest.approx(offenders.mean())
    assert float(after.peak_ratio) == pytest.approx(old_ratios.max(), rel=1e-5)
    assert int(after.num_resets) == 0


def test_nothing_is_redrawn_when_no_ratio_is_too_large(small_task, started):
    _, state, refresh_now = started
    after = refresh_now(state, small_task.train)
    np.testing.assert_array_equal(trees.ravel(state.masses), trees.ravel(after.masses))
    np.testing.assert_array_equal(trees.ravel(state.half_step_momentum), trees.ravel(after.half_step_momentum))
    assert float(after.raised_share) == 0


def test_a_reset_restores_nominal_masses_and_redraws_every_momentum(small_task):
    sampler = pl.pseudo_langevin(small_task.potential, small_task.train, **OPTIONS | {"reset_probability": 1.0})
    kernel, state = start(sampler, small_task)
    before = state._replace(masses=jax.tree.map(lambda m: 100 * m, state.masses))
    after = refreshed(kernel, before, small_task)
    assert int(after.num_resets) == 1
    nominal = kernel._nominal_masses(after.gradient_variance, after.weights, jnp.asarray(T), kernel.control)
    np.testing.assert_allclose(trees.ravel(after.masses), trees.ravel(nominal), rtol=1e-5)
    assert ratios_of(kernel, after).max() == pytest.approx(RATIO, rel=1e-5)
    assert (trees.ravel(after.half_step_momentum) != trees.ravel(before.half_step_momentum)).all()


def test_the_share_of_resets_is_the_probability(small_task, started):
    kernel, state, _ = started
    sampler = pl.pseudo_langevin(
        small_task.potential,
        small_task.train,
        **OPTIONS | {"reset_probability": 0.3, "variance_block": 2, "variance_max_batches": 2, "batch_size": 2},
    )
    kernel = langevin_kernel(sampler)
    steps = jnp.arange(1, 401)
    resets = jax.jit(lambda data: jax.vmap(lambda n: kernel.refresh(state._replace(step=n), data).num_resets)(steps))
    share = float(np.mean(resets(small_task.train)))
    assert abs(share - 0.3) < 3 * np.sqrt(0.3 * 0.7 / len(steps))


def test_the_interval_grows_while_measurements_agree_and_falls_back(small_task, started):
    _, state, refresh_now = started
    intervals = []
    for _ in range(4):
        state = state._replace(step=state.next_refresh)
        state = refresh_now(state, small_task.train)
        intervals.append(int(state.next_refresh - state.last_refresh))
    assert intervals == [200, 300, 300, 300]  # 2×, 3×, then max_refresh_interval
    disturbed = jax.tree.map(lambda v: 4 * v, state.gradient_variance)
    state = refresh_now(state._replace(step=state.next_refresh, gradient_variance=disturbed), small_task.train)
    assert int(state.next_refresh - state.last_refresh) == 100
    state = refresh_now(state._replace(step=state.next_refresh), small_task.train)
    assert int(state.next_refresh - state.last_refresh) == 200


def test_warm_up_intervals_double_and_reset(small_task):
    sampler = pl.pseudo_langevin(
        small_task.potential, small_task.train, **OPTIONS | {"warmup_refreshes": 3, "refresh_every": 80}
    )
    kernel, state = start(sampler, small_task)
    refresh_now = jax.jit(kernel.refresh)
    assert kernel.refresh_every == 10
    ticks = [int(state.next_refresh)]
    for _ in range(5):
        state = refresh_now(state._replace(step=state.next_refresh), small_task.train)
        ticks.append(int(state.next_refresh - state.last_refresh))
    assert ticks == [10, 20, 40, 80, 160, 240]
    assert int(state.num_resets) == 3  # the warm-up ones; reset_probability is 0


@pytest.mark.parametrize(
    ("every", "warmup", "longest"), [(1, 3, 1), (10, 3, 10), (100, 3, 250), (7, 10, 20), (5000, 3, 50_000)]
)
def test_no_interval_is_longer_than_asked_for(small_task, every, warmup, longest):
    """Also where refresh_every is not a multiple of the warm-up's ticks."""
    options = OPTIONS | {"refresh_every": every, "warmup_refreshes": warmup, "max_refresh_interval": longest}
    kernel = langevin_kernel(pl.pseudo_langevin(small_task.potential, small_task.train, **options))
    control = kernel.control
    assert control is not None
    assert control.tick >= 1
    assert control.tick * control.ticks <= every
    assert control.tick * control.ticks > every / 2
    state = jax.eval_shape(
        lambda w, data: kernel.init(jax.random.key(0), w, jnp.asarray(T), data), small_task.weights, small_task.train
    )
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state._replace(key=jnp.zeros(())))
    state = state._replace(refresh_multiple=jnp.asarray(1))
    for _ in range(warmup + 8):
        state = kernel._adopt_variance(state, state.gradient_variance, control)
        assert 0 < int(state.next_refresh - state.last_refresh) <= longest


def test_only_chains_that_are_due_and_running_are_refreshed(small_task, started):
    kernel, state, _ = started
    guarded = jax.jit(lambda s, data: refresh(kernel, s, data))
    assert int(guarded(state, small_task.train).num_refreshes) == 0
    due = state._replace(step=state.next_refresh)
    assert int(guarded(due, small_task.train).num_refreshes) == 1
    stopped = due._replace(status=jnp.asarray(pl.Status.NON_FINITE, jnp.int32))
    assert int(guarded(stopped, small_task.train).num_refreshes) == 0


def test_every_step_and_chain_has_its_own_batch_and_noise(small_task, started):
    kernel, state, _ = started
    draw = jax.jit(lambda s, data: (kernel.with_batch(s, data).draw(s.key, kernel.batch_size), kernel.noise(s)))
    batch, noise = draw(state, small_task.train)
    others = [state._replace(step=state.step + 1), state._replace(key=jax.random.key(99))]
    for (inputs, _), other_noise in (draw(other, small_task.train) for other in others):
        assert np.mean(np.all(np.asarray(inputs == batch[0]), axis=1)) < 0.1
        assert not np.any(trees.ravel(other_noise) == trees.ravel(noise))
    indices = kernel.batch_indices(state.key, state.step, small_task.train.num_examples)
    np.testing.assert_array_equal(small_task.train.inputs[indices], batch[0])  # known without the weights


def test_full_batch_is_the_same_step_without_variance(small_task):
    sampler = pl.full_batch_langevin(small_task.potential, small_task.train, time_step=0.1, masses=2.0)
    kernel, state = start(sampler, small_task)
    moved = jax.jit(kernel.step)(state, small_task.train)
    noise = trees.normal_like(jax.random.fold_in(state.key, Stream.NOISE), state.weights)
    mass, zero = jax.tree.map(lambda w: jnp.full_like(w, 2.0), state.weights), trees.zeros_like(state.weights)
    gradient = jax.grad(small_task.potential.energy)
    weights, momentum = integrator.step(
        state.weights,
        state.half_step_momentum,
        lambda w: gradient(w, small_task.train.batch),
        noise,
        mass,
        zero,
        jnp.asarray(T),
        kernel.momentum_retention,
        0.1,
    )
    np.testing.assert_allclose(trees.ravel(moved.weights), trees.ravel(weights), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(trees.ravel(moved.half_step_momentum), trees.ravel(momentum), rtol=1e-4, atol=1e-6)
    assert int(moved.step) == 1


def test_full_batch_takes_a_mass_for_every_weight(small_task):
    given = jax.tree.map(lambda w: 1.0 + jnp.abs(w), small_task.weights)
    _, state = start(
        pl.full_batch_langevin(small_task.potential, small_task.train, time_step=0.1, masses=given), small_task
    )
    np.testing.assert_array_equal(trees.ravel(state.masses), trees.ravel(given))


def naive(small_task, subtract: bool) -> pl.Sampler:
    return pl.naive_pseudo_langevin(
        small_task.potential,
        small_task.train,
        time_step=0.01,
        mass=3.0,
        batch_size=16,
        subtract_variance=subtract,
        refresh_every=20,
        variance_block=10,
        variance_max_batches=20,
    )


COLD = 1e-7
"""So cold that the mini-batch noise of many weights is hotter."""


def naive_run(small_task, subtract: bool) -> Result:
    sampler = naive(small_task, subtract)
    assert sampler.kernel.refresh_every == (20 if subtract else None)
    return pl.sample(sampler, small_task.weights, temperatures=[T, COLD], num_steps=40, record_every=20, key=0)


@pytest.fixture(scope="module")
def clipped_run(small_task) -> Result:
    match = r"chain 0 at T = 1e-07: at step 20 .*% of the weights.*Lower time_step"
    with pytest.warns(pl.ClippedNoiseWarning, match=match) as caught:
        result = naive_run(small_task, subtract=True)
    assert len(caught) == 1
    return result


def test_naive_keeps_its_mass_and_subtracts_by_choice(small_task, clipped_run):
    for subtract, result in [(True, clipped_run), (False, naive_run(small_task, subtract=False))]:
        np.testing.assert_array_equal(trees.ravel(result.states.masses), 3.0)
        assert (float(trees.squared_norm(result.states.gradient_variance)) > 0) is subtract
        assert np.isfinite(result.trace.loss).all()
        assert int(result.states.num_refreshes[0]) == (1 if subtract else 0)  # due at 20; 40 is the end
        assert ("clipped_share" in result.trace) is subtract


def test_noise_that_is_clipped_is_recorded_and_fails_the_certificate(clipped_run):
    kernel = langevin_kernel(clipped_run.sampler)
    variance = jax.tree.map(lambda v: v[1], clipped_run.states.gradient_variance)
    c1, length = kernel.momentum_retention, (1 + kernel.momentum_retention**2) * 0.01 / 2
    clipped = float(np.mean((1 - c1**4) * 3.0 * COLD < length**2 * np.asarray(trees.ravel(variance))))
    assert 0.1 < clipped < 0.9
    np.testing.assert_allclose(clipped_run.trace.clipped_share.isel(chain=0, draw=-1), [0.0, clipped], atol=0.01)
    lines = pl.certificate(clipped_run, noise_draws=0).lines
    warm, cold = (line for line in lines if line.name == "clipped noise")
    assert warm.passed
    assert (cold.temperature, cold.verdict) == (COLD, "failed")
    assert "lower time_step or raise batch_size" in cold.message


@pytest.mark.parametrize("granularity", ["row", "tensor"])
def test_masses_per_group_run_and_stay_finite(small_task, granularity):
    sampler = pl.pseudo_langevin(
        small_task.potential,
        small_task.train,
        **OPTIONS | {"masses_per": granularity, "refresh_every": 50, "reset_probability": 0.5},
    )
    result = pl.sample(
        sampler, small_task.weights, temperatures=[T], num_chains=2, num_steps=100, record_every=50, key=0
    )
    assert np.isfinite(result.trace.loss).all()
    assert float(result.trace.peak_temperature_ratio.isel(draw=0).max()) > 0
    kernel_mass = result.states.masses["layer1"]["kernel"]
    assert kernel_mass.shape == ((2, 1, 10) if granularity == "row" else (2, 1, 1))
    assert result.weights["layer1"]["kernel"].shape == (1, 2, 20, 10)


def test_a_group_s_mass_is_that_of_its_noisiest_weight(small_task, started):
    _, per_weight, _ = started
    sampler = pl.pseudo_langevin(small_task.potential, small_task.train, **OPTIONS | {"masses_per": "tensor"})
    _, state = start(sampler, small_task)
    largest = jax.tree.map(jnp.max, per_weight.masses)
    np.testing.assert_allclose(trees.ravel(state.masses), trees.ravel(largest), rtol=1e-5)


def test_a_loss_without_data_has_no_noise_and_is_not_sampled():
    potential = pl.Potential(lambda w, batch: jnp.sum(w**2) + 0 * batch[0])
    dataset = pl.Dataset(np.ones(50, np.float32), np.ones(50))
    sampler = pl.pseudo_langevin(potential, dataset, batch_size=5)
    with pytest.warns(pl.ChainStoppedWarning, match=r"chain 0 at T = 0.1 stopped by step 5: .*full_batch_langevin"):
        result = pl.sample(sampler, jnp.ones(3), temperatures=[0.1], num_steps=10, record_every=5, key=0)
    assert int(result.states.status[0]) == pl.Status.NO_NOISE
    np.testing.assert_array_equal(result.weights, np.ones((1, 1, 3)))
    assert result.trace.sizes["draw"] == 1  # it ended early


def test_a_non_finite_step_puts_the_chain_back(small_task, started):
    kernel, state, _ = started
    broken = state._replace(half_step_momentum=jax.tree.map(lambda h: h * jnp.inf, state.half_step_momentum))
    after = jax.jit(lambda s, data: advance(kernel, s, data, 3))(broken, small_task.train)
    assert int(after.status) == pl.Status.NON_FINITE
    np.testing.assert_array_equal(trees.ravel(after.weights), trees.ravel(state.weights))
    assert int(after.step) == 0
