"""Traces and kept weights as ArviZ data."""

import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin.adapters.arviz import samples_to_arviz, to_arviz

WEIGHTS = {"layer": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}}


@pytest.fixture(scope="module")
def result():
    potential = pl.Potential(lambda w, batch: batch[0] @ w["layer"]["bias"] + 0 * batch[0][:, 0], weight_decay=9.0)
    dataset = pl.Dataset(np.random.default_rng(0).normal(size=(10, 3)), np.zeros(10))
    return pl.sample(
        pl.hybrid_monte_carlo(potential, dataset, num_leapfrog_steps=2, time_step=0.3),
        WEIGHTS,
        temperatures=[0.1, 0.2],
        num_chains=2,
        num_steps=10,
        record_every=2,
        keep_weights_every=1,
        observe_examples=10,
        observables={"largest": lambda weights, dataset: jnp.max(weights["layer"]["bias"])},
        key=0,
    )


def test_observables_are_the_posterior_and_records_of_the_sampler_are_not(result):
    view = result.to_arviz(0.2)
    assert {"loss", "kinetic_temperature", "largest"} <= set(view["posterior"].data_vars)
    assert {"status", "acceptance"} <= set(view["sample_stats"].data_vars)
    assert view["posterior"]["loss"].dims == ("chain", "draw")
    assert to_arviz(result)["posterior"]["loss"].dims == ("chain", "draw", "temperature")
    with pytest.raises(ValueError, match=r"temperature = 0.3 was not sampled; choose one of \[0.1, 0.2\]"):
        to_arviz(result, 0.3)


def test_kept_weights_to_arviz(result):
    for temperature, index in [(None, slice(None)), (0.2, 1)]:
        kernel = samples_to_arviz(result, temperature)["posterior"]["layer.kernel"]
        assert kernel.dims[:2] == ("chain", "draw")
        kernel = kernel.transpose(..., "chain", "draw", "layer.kernel_0", "layer.kernel_1")
        np.testing.assert_array_equal(kernel.values, result.samples["layer"]["kernel"][index])
    with pytest.raises(ValueError, match="keep_weights_every"):
        samples_to_arviz(pl.Result(result.trace, result.weights, None, result.states, result.sampler))
