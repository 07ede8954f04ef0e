"""Chains that change their temperature: replica exchange and annealing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin.diagnostics import average

pytestmark = pytest.mark.usefixtures("_no_directions")

TEMPERATURES = [0.16, 0.08, 0.3, 0.6]  # in any order
# A double well whose mini-batch gradients have noise.
NOISE = pl.Dataset(np.linspace(-1, 1, 200, dtype=np.float32)[:, None], np.zeros(200, np.float32))
DOUBLE_WELL = pl.Potential(lambda w, batch: jnp.sum((w["x"] ** 2 - 1) ** 2) + 5 * batch[0][:, 0] * w["x"][0])
HYBRID = pl.hybrid_monte_carlo(DOUBLE_WELL, NOISE, num_leapfrog_steps=5, time_step=0.1)
BALANCED = pl.balanced_langevin(DOUBLE_WELL, NOISE, batch_size=10, momentum_retention=0.95, refresh_every=500)
PSEUDO = pl.pseudo_langevin(DOUBLE_WELL, NOISE, batch_size=10, refresh_every=500)
FULL = pl.full_batch_langevin(DOUBLE_WELL, NOISE, time_step=0.05)


def observed(record: pl.Record) -> dict[str, np.ndarray]:
    assert record.observables is not None
    return record.observables


def expectation(function, temperature):
    """Return an average over the double well by quadrature."""
    grid = np.linspace(-3, 3, 1201)
    energy = (grid**2 - 1) ** 2
    weight = np.exp(-energy / temperature)
    return np.sum(weight * function(energy)) / weight.sum()


def predicted_acceptance(cold, hot):
    gap = 1 / cold - 1 / hot
    return expectation(np.vectorize(lambda u: expectation(lambda v: np.minimum(1, np.exp(gap * (u - v))), hot)), cold)


@pytest.mark.parametrize(("sampler", "steps"), [(HYBRID, 10), (BALANCED, 40)], ids=["hybrid", "balanced"])
def test_replicas_cross_a_barrier_and_keep_the_distributions(sampler, steps):
    sign = jnp.where(jnp.arange(32) % 2 == 0, 1.0, -1.0)  # half of the chains in each well
    arguments = {
        "temperatures": TEMPERATURES,
        "num_chains": 32,
        "num_steps": 125 * steps,
        "record_every": steps,
        "observables": {"x": lambda weights, dataset: weights["x"][0]},
        "key": 0,
    }
    trace = pl.sample(pl.replica_exchange(sampler, every=steps // 2), {"x": sign[None, :, None]}, **arguments).trace
    assert (np.diff(np.sign(trace.x.values[1]), axis=-1) != 0).sum() > 500
    if sampler is HYBRID:
        alone = pl.sample(sampler, {"x": sign[None, :, None]}, **arguments).trace
        assert (np.diff(np.sign(alone.x.values[1]), axis=-1) != 0).sum() <= 2  # the barrier is 12.5 T
    assert (np.diff(trace.replica_temperature.values[1], axis=-1) != 0).sum() > 500
    for index, temperature in enumerate(TEMPERATURES):
        share = average(trace.x.values[index, :, 25:] > 0)
        assert share.mean == pytest.approx(0.5, abs=4 * share.standard_error)
        mean = average(trace.potential.values[index, :, 25:])
        assert mean.mean == pytest.approx(expectation(lambda u: u, temperature), abs=4 * mean.standard_error)
    measured = trace.swap_acceptance.isel(draw=-1).mean("chain").sortby("temperature").values
    for index, (cold, hot) in enumerate([(0.08, 0.16), (0.16, 0.3), (0.3, 0.6)]):
        # 125 proposals in each of 32 chains, correlated over a few.
        assert measured[index] == pytest.approx(predicted_acceptance(cold, hot), abs=0.025)
    assert np.isnan(measured[-1])
    replicas = np.sort(trace.replica_temperature.values, axis=0)
    np.testing.assert_allclose(replicas[:, :, -1], np.sort(TEMPERATURES)[:, None].repeat(32, axis=1), rtol=1e-6)


def test_an_interrupted_run_with_exchange_continues_to_the_same_bits():
    run = pl.Run(pl.replica_exchange(BALANCED, every=5), temperatures=TEMPERATURES, num_chains=2)
    states = run.start({"x": jnp.ones(1)}, 3)
    keys = np.asarray(jax.random.key_data(states.key))
    complete = list(run.records(states, stop=40, every=10))[-1]
    half = list(run.records(run.start({"x": jnp.ones(1)}, 3), stop=23, every=10))[-1]
    rest = list(run.records(half.states, first=23, stop=40, every=10))[-1]
    for name, values in observed(complete).items():
        np.testing.assert_array_equal(values, observed(rest)[name], err_msg=name)
    assert complete.states.visits.num_accepted.sum() > 0
    np.testing.assert_array_equal(jax.random.key_data(complete.states.key), keys)


@pytest.mark.parametrize("sampler", [PSEUDO, FULL], ids=lambda sampler: sampler.name)
def test_another_temperature_keeps_position_and_thermal_momenta(sampler):
    state = jax.jit(lambda s: s.init(jax.random.key(0), {"x": jnp.ones(1)}, 1.0))(sampler)
    cold = sampler.at_temperature(state, jnp.asarray(0.1))
    position, colder = (trees.ravel(sampler.position(s)) for s in (state, cold))
    np.testing.assert_allclose(colder, position, rtol=1e-5)
    units = [trees.ravel(s.half_step_momentum) / np.sqrt(trees.ravel(s.masses) * s.temperature) for s in (state, cold)]
    np.testing.assert_allclose(units[0], units[1], rtol=1e-5)
    heavier = 1 if sampler is FULL else 10  # masses from the noise go as 1/T
    np.testing.assert_allclose(trees.ravel(cold.masses), heavier * trees.ravel(state.masses), rtol=1e-5)


def test_masses_of_hot_chains_keep_the_regulariser_stable():
    potential = pl.Potential(DOUBLE_WELL.per_example_loss, weight_decay=2.0)
    sampler = pl.pseudo_langevin(potential, NOISE, batch_size=10)
    state = jax.jit(lambda s: s.init(jax.random.key(0), {"x": jnp.ones(1)}, 1.0))(sampler)
    hot = sampler.at_temperature(state, jnp.asarray(1e6))
    minimum = 2.0 * (sampler.time_step / sampler.max_regularizer_frequency) ** 2
    np.testing.assert_allclose(trees.ravel(hot.masses), minimum, rtol=1e-5)


def test_the_temperature_follows_a_function_of_the_step_and_resumes():
    sampler = pl.annealed(BALANCED, lambda step: 0.5 * 0.9 ** (step / 10), every=10)
    run = pl.Run(sampler, temperatures=[0.5], num_chains=2)
    complete = list(run.records(run.start({"x": jnp.ones(1)}, 0), stop=40, every=10))
    found = [observed(record)["current_temperature"] for record in complete]
    np.testing.assert_allclose(found, np.outer(0.5 * 0.9 ** np.arange(4), [1, 1]), rtol=1e-5)
    ratios = [observed(record)["max_temperature_ratio"][0] for record in complete]
    assert max(ratios) < 0.2  # at constant masses it would not change, but masses are set from the noise
    half = list(run.records(run.start({"x": jnp.ones(1)}, 0), stop=17, every=10))[-1]
    rest = list(run.records(half.states, first=17, stop=40, every=10))[-1]
    np.testing.assert_array_equal(observed(rest)["loss"], observed(complete[-1])["loss"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pl.replica_exchange(HYBRID, every=0), "every = 0 must be an integer at least 1"),
        (lambda: pl.annealed(HYBRID, lambda step: -1.0, every=9), "is -1 at step 0; exp"),
        (
            lambda: pl.annealed(HYBRID, lambda step: 1.0 if step > 3 else 2.0, every=9),
            "cannot be compiled .* jax.numpy",
        ),
        (lambda: pl.Run(pl.replica_exchange(HYBRID), temperatures=[1.0]), r"temperatures = \[1.0\].* at least two"),
        (lambda: pl.replica_exchange(pl.adam(DOUBLE_WELL, NOISE)), "adam has no temperature; use a sampler such as"),
    ],
)
def test_bad_input_is_named_with_its_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call()
