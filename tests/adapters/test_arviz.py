"""Traces and kept weights as ArviZ data, and weights from ArviZ data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import pseudolangevin as pl
from pseudolangevin.adapters.arviz import samples_from_arviz, samples_to_arviz, to_arviz

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
        observables={"largest": lambda weights, dataset: jnp.max(weights["layer"]["bias"])},
        key=0,
    )


def test_observables_are_the_posterior_and_records_of_the_sampler_are_not(result):
    view = to_arviz(result, 0.2)
    assert {"loss", "kinetic_temperature", "largest"} <= set(view["posterior"].data_vars)
    assert {"status", "acceptance"} <= set(view["sample_stats"].data_vars)
    assert view["posterior"]["loss"].dims == ("chain", "draw")
    assert to_arviz(result)["posterior"]["loss"].dims == ("chain", "draw", "temperature")
    with pytest.raises(ValueError, match=r"temperature = 0.3 was not sampled; choose one of \[0.1, 0.2\]"):
        to_arviz(result, 0.3)


def test_weights_to_arviz_and_back(result):
    for temperature, index in [(None, slice(None)), (0.2, slice(1, 2))]:
        view = samples_to_arviz(result, temperature)
        assert view["posterior"]["layer.kernel"].dims[:2] == ("chain", "draw")
        back = samples_from_arviz(view, WEIGHTS)
        for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(result.samples), strict=True):
            np.testing.assert_array_equal(a, b[index])
    again = pl.sample(
        result.sampler, jax.tree.map(lambda w: w[:, :, -1], back), temperatures=[0.2], num_chains=2, num_steps=1, key=0
    )
    assert again.trace.sizes["chain"] == 2


def test_data_that_do_not_fit_are_rejected(result):
    view = samples_to_arviz(result, 0.1)
    with pytest.raises(ValueError, match=r"no variable 'layer.bias' in a group 'prior'"):
        samples_from_arviz(view, WEIGHTS, "prior")
    with pytest.raises(ValueError, match=r"no variable 'other' .*layer.bias"):
        samples_from_arviz(view, {"other": jnp.zeros(3)})
    with pytest.raises(ValueError, match=r"has shape \(2, 3\)"):
        samples_from_arviz(view, {"layer": {"kernel": jnp.zeros((3, 2))}})
    with pytest.raises(ValueError, match="needs \\(chain, draw"):
        samples_from_arviz({"posterior": xr.Dataset({"w": ("draw", np.zeros(3))})}, {"w": jnp.zeros(())})
    with pytest.raises(ValueError, match="keep_weights_every"):
        samples_to_arviz(pl.Result(result.trace, result.weights, None, result.states, result.sampler))
