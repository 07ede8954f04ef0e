"""Balanced Langevin dynamics: every direction has the temperature T, however correlated the mini-batch noise is.

The loss of example μ is ½·|w|² + b_μ·w with Σ_μ b_μ = 0. The correlation matrix of the noise b has one collective
direction of eigenvalue 26, in which pseudo-Langevin is far too hot.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin.gradients import covariance_product

from ..compilation import optimized_steps

pytestmark = pytest.mark.usefixtures("_no_directions")

SIZE, EIGENVALUE, NUM_EXAMPLES, T = 40, 26.0, 4000, 0.01
OPTIONS: dict[str, Any] = {"batch_size": 20, "momentum_retention": 0.99**0.5, "variance_examples": NUM_EXAMPLES}
COLLECTIVE = np.ones(SIZE) / np.sqrt(SIZE)


class WithoutFriction(pl.balanced_langevin):
    """Balanced Langevin dynamics with the friction switched off."""

    def friction(self, state):
        return replace(super().friction(state), strength=0.0)


@pytest.fixture(scope="module")
def problem() -> tuple[pl.Potential, pl.Dataset]:
    rest = (SIZE - EIGENVALUE) / (SIZE - 1)
    correlation = rest * np.eye(SIZE) + (EIGENVALUE - rest) * np.outer(COLLECTIVE, COLLECTIVE)
    raw = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, SIZE))
    orthogonal = np.linalg.qr(raw - raw.mean(axis=0))[0] * np.sqrt(NUM_EXAMPLES)
    rows = orthogonal @ np.linalg.cholesky(correlation).T
    potential = pl.Potential(lambda w, batch: 0.5 * jnp.sum(w**2) + batch[0] @ w)
    return potential, pl.Dataset(rows.astype(np.float32), np.zeros(NUM_EXAMPLES, np.float32))


def temperatures(sampler: pl.Sampler, num_chains: int, num_steps: int) -> tuple[np.ndarray, np.ndarray, pl.Result]:
    """Return ⟨w²⟩/T along 40 orthogonal directions, the collective one first, and its standard error."""
    random = np.random.default_rng(1).normal(size=(SIZE, SIZE - 1))
    basis = np.linalg.qr(np.concatenate([COLLECTIVE[:, None], random], axis=1))[0].astype(np.float32)
    with optimized_steps():
        result = pl.sample(
            sampler,
            jnp.zeros(SIZE),
            temperatures=[T],
            num_chains=num_chains,
            num_steps=num_steps,
            record_every=40,
            observe_examples=2,
            observables={"along": lambda w, data: w @ basis},
            key=0,
        )
    steady = result.trace["along"].values[0, :, num_steps // 160 :]
    by_chain = (steady**2).mean(axis=1) / T
    return by_chain.mean(axis=0), by_chain.std(axis=0, ddof=1) / np.sqrt(num_chains), result


def test_every_direction_has_the_right_temperature_and_masses_are_fixed_after_the_warmup(problem):
    sampler = pl.balanced_langevin(
        *problem, temperature_ratio=0.2, friction_batch_size=80, refresh_every=128, **OPTIONS
    )
    mean, error, result = temperatures(sampler, num_chains=128, num_steps=8_000)
    assert error.max() < 0.02
    assert abs(mean[0] - 1) < 3 * error[0]
    assert np.abs((mean - 1) / error).max() < 3.3  # the largest of 40
    trace = result.trace.isel(temperature=0)
    kinetic = trace.kinetic_temperature.values[:, 50:].mean(axis=1) / T
    assert abs(kinetic.mean() - 1) < 3 * kinetic.std(ddof=1) / np.sqrt(128) + 0.01
    assert (trace.warmup_end[:, 0] == trace.warmup_end[:, -1]).all()
    assert (trace.warmup_end[:, 0] > 0).all()
    assert (trace.refresh_interval[:, -1] > trace.refresh_interval[:, 0]).all()
    assert (trace.raised_share == 0).all()
    variance = np.asarray(problem[1].inputs, np.float64).var(axis=0) / 20
    masses = variance / (4 * (1 - 0.99) * T * 0.2)
    np.testing.assert_allclose(result.states.masses, np.broadcast_to(masses, (128, SIZE)), rtol=1e-3)


def test_pseudo_langevin_and_the_dynamics_without_friction_are_too_hot(problem):
    for make in (pl.pseudo_langevin, WithoutFriction):
        sampler = make(*problem, temperature_ratio=0.2, **OPTIONS)
        mean, error, _ = temperatures(sampler, num_chains=32, num_steps=2_000)
        assert mean[0] > 3 + 3 * error[0]


def test_masses_stay_fixed_unless_the_noise_grows_beyond_the_limit(linear_task):
    options: dict[str, Any] = {"temperature_ratio": 0.01, "friction_batch_size": 200, "num_warmup": 20}
    sampler = pl.balanced_langevin(
        linear_task.potential, linear_task.train, batch_size=16, refresh_every=10, variance_examples=100, **options
    )
    run = pl.Run(sampler, temperatures=[1e-4])
    masses, ends = [], []
    for record in run.records(run.start(linear_task.weights, 0), stop=60, every=10):
        assert record.observables is not None
        masses.append(np.asarray(record.states.masses[0]))
        ends.append(int(record.observables["warmup_end"][0]))
    assert (masses[0] != masses[1]).any()
    fixed = next(index for index, end in enumerate(ends) if end >= 20)
    assert ends[: fixed + 1] == [-1] * fixed + ends[-1:]
    assert fixed < 5
    for later in masses[fixed + 1 :]:
        assert np.mean(later == masses[fixed]) > 0.9  # a few of 80 exceed four times the nominal ratio
        assert (later >= masses[fixed]).all()
    state = jax.tree.map(lambda leaf: leaf[0], record.states)
    light = state._replace(masses=state.masses / 100)
    after = jax.jit(lambda s, state: s.refresh(state))(sampler, light)
    raised = np.asarray(after.masses) > np.asarray(light.masses)
    assert float(after.raised_share) == pytest.approx(raised.mean(), abs=1e-6)
    assert raised.mean() > 0.3
    thermal = [np.asarray(s.half_step_momentum / np.sqrt(s.masses)) for s in (light, after)]
    np.testing.assert_allclose(thermal[1], thermal[0], rtol=1e-4)


def test_masses_are_raised_where_the_friction_would_be_noisy(linear_task):
    """A batch of two examples for the friction: the masses grow until its load is about one."""
    options: dict[str, Any] = {"batch_size": 100, "temperature_ratio": 0.5, "refresh_every": 64}
    system = linear_task.potential, linear_task.train
    samplers = [pl.balanced_langevin(*system, friction_batch_size=size, **options) for size in (2, 500)]
    lengths: dict[str, Any] = {"temperatures": [1e-3], "num_steps": 256, "record_every": 64, "key": 0}
    traces = [pl.sample(s, linear_task.weights, **lengths).trace.isel(temperature=0, chain=0) for s in samplers]
    loads = [trace.friction_load.values[1:].mean() for trace in traces]
    assert loads[0] > 2 * loads[1]
    ratios = [float(trace.temperature_ratio.sel(quantile=0.5)[-1]) for trace in traces]
    assert ratios[0] < 0.5 * ratios[1]


@jax.jit
def start(sampler, weights):
    return sampler.init(jax.random.key(0), weights, 1e-3)


@pytest.mark.parametrize("size", [20, 200])
def test_a_step_has_the_friction_of_the_explicit_covariance(linear_task, size):
    """The mean change of the momentum by the friction is −l²/((1 + c1²)·S·T)·Σ·h/M, times the gain."""
    potential, train = linear_task.potential, linear_task.train
    options: dict[str, Any] = {"batch_size": 50, "friction_batch_size": size}
    samplers = [make(potential, train, **options) for make in (pl.balanced_langevin, WithoutFriction)]
    state = start(samplers[0], linear_task.weights)
    rows = np.asarray(jax.jit(jax.jacrev(potential.per_example_loss))(state.weights, train.batch), np.float64)
    covariance = np.cov(rows.reshape(1_000, 80), rowvar=False)
    velocity = np.ravel(state.half_step_momentum / state.masses)
    strength = state.friction_gain * samplers[0].kick / ((1 + samplers[0].momentum_retention ** 2) * 50 * 1e-3)

    @jax.jit
    @jax.vmap
    def friction(key):
        batch = train.draw(key, samplers[0].examples_per_step)
        forces = [sampler.force(state, state.weights, batch) for sampler in samplers]
        return jnp.ravel(forces[0] - forces[1])

    draws = np.asarray(friction(jax.random.split(jax.random.key(1), 1_000)), np.float64)
    mean, error = draws.mean(axis=0), draws.std(axis=0, ddof=1) / np.sqrt(1_000)
    expected = float(strength) * covariance @ velocity
    assert np.abs((mean - expected) / error).max() < 4.5
    shares = draws @ expected / (expected @ expected)
    uncertainty = shares.std(ddof=1) / np.sqrt(1_000)
    assert uncertainty < 0.03
    assert abs(shares.mean() - 1) < 3 * uncertainty


def test_the_friction_of_huge_momenta_is_bounded(linear_task):
    """Without its bound the friction of momenta 1000 times too large would be 1000 times as large as this one."""
    sampler = pl.balanced_langevin(linear_task.potential, linear_task.train, batch_size=50)
    state = start(sampler, linear_task.weights)
    batch = linear_task.train.head(100).batch

    def norm(scale: float) -> float:
        velocity = jax.tree.map(lambda v: scale * v, sampler.friction(state).velocity)
        friction = replace(sampler.friction(state), velocity=velocity)
        coefficients = friction.coefficients(linear_task.potential.per_example_loss, state.weights, batch)
        return float(jnp.linalg.norm(coefficients - jnp.where(jnp.arange(100) < 50, 1 / 50, 0.0)))

    norms = [norm(scale) for scale in (1e3, 1e6, 1e9)]
    assert norms[1] < 1.1e-3 * norms[0]
    assert norms[2] < 1.1e-3 * norms[1]


def test_the_covariance_product_is_that_of_the_explicit_matrix(small_task):
    potential, weights, batch = small_task.potential, small_task.weights, small_task.train.head(30).batch
    vector = jax.tree.map(lambda w: jnp.cos(100 * w), weights)
    jacobian = jax.jit(jax.jacrev(potential.per_example_loss))(weights, batch)
    rows = np.concatenate([np.asarray(leaf, np.float64).reshape(30, -1) for leaf in jax.tree.leaves(jacobian)], axis=1)
    flat = np.asarray(trees.ravel(vector), np.float64)
    product, slopes = jax.jit(lambda w, v: covariance_product(potential, w, batch)(v))(weights, vector)
    expected = np.cov(rows, rowvar=False) @ flat
    np.testing.assert_allclose(trees.ravel(product), expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_allclose(slopes, rows @ flat - (rows @ flat).mean(), rtol=1e-3, atol=1e-4)
