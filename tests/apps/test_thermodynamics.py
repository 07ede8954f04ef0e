"""Schedules, free energy, evidence and learning coefficient, against exact results."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin.diagnostics import average

RANDOM = np.random.default_rng(0)
CLOUD = pl.Dataset(RANDOM.normal(size=(200, 4)).astype(np.float32), np.zeros(200, np.float32))
BOWL = pl.Potential(lambda w, batch: 0.5 * jnp.sum((batch[0] - w) ** 2, axis=-1))  # U = U0 + |w - mean|²/2
BOTTOM = 0.5 * np.sum((CLOUD.inputs - CLOUD.inputs.mean(axis=0)) ** 2) / 200
LEVELS = [0.3, 0.1, 0.03]


SAMPLER = pl.balanced_langevin(BOWL, CLOUD, batch_size=50, refresh_every=200, momentum_retention=0.95)
OPTIONS: dict[str, Any] = {"record_every": 20, "num_chains": 8, "key": 0}


@pytest.fixture(scope="module")
def bowl():
    return pl.sample(SAMPLER, jnp.zeros(4), temperatures=LEVELS, num_steps=8_000, **OPTIONS)


def test_chains_that_are_cooled_in_steps_are_at_each_temperature():
    def schedule(step):
        return jnp.asarray(LEVELS)[jnp.minimum(step // 4_000, 2)]

    trace = pl.sample(SAMPLER, jnp.zeros(4), temperatures=schedule, num_steps=12_000, **OPTIONS).trace
    for index, temperature in enumerate(LEVELS):
        level = trace.isel(temperature=0, draw=slice(200 * index + 1, 200 * (index + 1)))
        np.testing.assert_allclose(level.current_temperature, temperature, rtol=1e-6)
        for name, lowest, share in (("potential", BOTTOM, 2.0), ("kinetic_temperature", 0.0, 1.0)):
            found = average(level[name].values, burn_in=0.25)
            assert found.mean - lowest == pytest.approx(share * temperature, abs=4 * found.standard_error)


def test_a_fixed_prior_stays_the_same_when_the_temperature_changes():
    potential = pl.Potential(BOWL.per_example_loss, prior=pl.gaussian(0.5, center=1.0))
    sampler = pl.hybrid_monte_carlo(potential, CLOUD, num_leapfrog_steps=5, time_step=0.3)
    arguments: dict[str, Any] = {"num_chains": 16, "num_steps": 600, "record_every": 2, "key": 1}
    arguments["temperatures"] = lambda step: jnp.where(step < 100, 1.0, 0.2)
    trace = pl.sample(sampler, jnp.zeros(4), **arguments).trace
    assert trace.acceptance[0, :, -1].min() > 0.9
    found = average(trace.loss.values[0, :, 75:])
    shrinkage = 0.2 / (0.2 + 0.25)  # towards the center of the prior
    squares = 4 / (1 / 0.2 + 1 / 0.25) + shrinkage**2 * np.sum((1 - CLOUD.inputs.mean(axis=0)) ** 2)
    assert found.mean - float(BOTTOM) == pytest.approx(float(squares) / 2, abs=4 * found.standard_error)
    assert found.standard_error < 0.02
    annealed = pl.annealed(sampler, lambda step: 0.2, every=10)
    state = annealed.at(1.0).refresh(annealed.at(1.0).init(jax.random.key(0), jnp.zeros(4), 1.0))
    expected = potential.at(0.2).energy(jnp.zeros(4), CLOUD.batch)
    assert float(state.energy.high) == pytest.approx(float(expected), rel=1e-5)


def test_entropy_and_free_energy_of_a_bowl(bowl):
    table = pl.free_energy(bowl)
    entropy = 2 * np.log(table.temperature / LEVELS[0])  # N/2·ln T
    difference = (table.entropy - entropy) / table.entropy_error
    assert np.all(np.abs(difference[1:]) < 3)
    assert np.all(table.entropy_error[1:] < 0.2)
    exact = BOTTOM + 2 * table.temperature - table.temperature * entropy
    assert np.all(np.abs(table.free_energy - exact) < 3 * table.free_energy_error)
    np.testing.assert_allclose(table.heat_capacity, 2, rtol=0.3)
    assert np.all(table.overlap[1:] > 0.2)


def test_evidence_of_a_linear_regression():
    inputs = RANDOM.normal(size=(30, 2))
    targets = inputs @ [1.0, -0.5] + 0.5 * RANDOM.normal(size=30)
    data = pl.Dataset(inputs.astype(np.float32), targets.astype(np.float32))
    potential = pl.regression(lambda w, x: x @ w["slope"], prior={"slope": pl.gaussian(1.5, center=0.3)})
    sampler = pl.replica_exchange(pl.hybrid_monte_carlo(potential, data, num_leapfrog_steps=5, time_step=0.4), every=2)
    temperatures = pl.posterior_temperature(data, noise_scale=0.5) * np.asarray([100, 10, 1])
    lengths: dict[str, Any] = {"num_chains": 8, "num_steps": 400, "record_every": 1, "key": 0}
    result = pl.sample(sampler, {"slope": jnp.zeros(2)}, temperatures=list(temperatures), **lengths)
    table = pl.evidence(result, num_prior_draws=2_000)
    residuals = targets - inputs @ [0.3, 0.3]

    def exact(temperature):
        covariance = 1.5**2 * inputs @ inputs.T + 30 * temperature * np.eye(30)
        gaussian = -0.5 * residuals @ np.linalg.solve(covariance, residuals) - 0.5 * np.linalg.slogdet(covariance)[1]
        return gaussian + 15 * np.log(30 * temperature)

    difference = table.log_evidence - [exact(temperature) for temperature in table.temperature.values]
    assert np.all(np.abs(difference) < 3 * table.log_evidence_error)
    assert np.all(table.log_evidence_error < 0.15)
    assert np.all(np.diff(table.entropy) < 0)  # colder posteriors have learned more
    # The same run as levels of exp(-L/T) with a fixed prior: entropies differ by that of the hottest level.
    assert pl.free_energy(result).entropy.values == pytest.approx(
        table.entropy.values - table.entropy.values[0], abs=0.05
    )


def test_learning_coefficient_of_a_reduced_rank_regression():
    # A linear network 3-3-3 whose true map has rank 1: λ = 4 (Aoyagi and Watanabe, 2005), with 18 weights.
    inputs = np.sqrt(3) * np.eye(3, dtype=np.float32)
    center = {"first": jnp.zeros((3, 3)).at[0, 0].set(1.0), "second": jnp.zeros((3, 3)).at[0, 0].set(1.0)}
    data = pl.Dataset(inputs, inputs @ np.diag([1, 0, 0]).astype(np.float32))
    potential = pl.regression(lambda w, x: x @ w["first"] @ w["second"], prior=pl.gaussian(1.0, center=center))
    sampler = pl.hybrid_monte_carlo(potential, data, num_leapfrog_steps=40, time_step=0.3)
    result = pl.sample(sampler, center, temperatures=[1e-5], num_chains=16, num_steps=2_000, record_every=5, key=0)
    found = pl.learning_coefficient(result, center).isel(temperature=0)
    assert found.learning_coefficient_error < 0.06
    assert found.learning_coefficient == pytest.approx(4, rel=0.05)


def test_bad_results_are_named(bowl):
    one = pl.Result(bowl.trace.isel(temperature=[0]), bowl.weights[:1], None, None, bowl.sampler)
    short = pl.Result(bowl.trace.isel(draw=slice(3)), bowl.weights, None, None, bowl.sampler)
    for call, message in {
        (lambda: pl.free_energy([])): r"results has the temperatures \[\]; pass one run",
        (lambda: pl.free_energy(one)): "the temperature 0.3 alone; free energies need at least two",
        (lambda: pl.free_energy(short)): "temperature 0.3 has 16 finite energies .* run longer",
        (lambda: pl.evidence(bowl)): "prior = None, weight_decay = 0.0: the evidence needs .*pl.gaussian",
        (lambda: pl.learning_coefficient(bowl, {"w": jnp.zeros(2)})): "per_example_loss fails",
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
