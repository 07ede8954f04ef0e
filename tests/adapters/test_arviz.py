"""Kept weights to ArviZ and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import pseudolangevin as pl
from pseudolangevin.adapters.arviz import samples_from_arviz, samples_to_arviz

WEIGHTS = {"layer": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}}


@pytest.fixture(scope="module")
def result():
    potential = pl.Potential(lambda w, batch: batch[0] @ w["layer"]["bias"] + 0 * batch[0][:, 0], weight_decay=9.0)
    dataset = pl.Dataset(np.random.default_rng(0).normal(size=(10, 3)), np.zeros(10))
    sampler = pl.hybrid_monte_carlo(potential, dataset, num_leapfrog_steps=2, time_step=0.3)
    return pl.sample(
        sampler,
        WEIGHTS,
        temperatures=[0.1, 0.2],
        num_chains=2,
        num_steps=10,
        record_every=2,
        keep_weights_every=1,
        key=0,
    )


def test_there_and_back(result):
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


def test_data_that_do_not_fit_are_refused(result):
    view = samples_to_arviz(result, 0.1)
    with pytest.raises(ValueError, match="no group 'prior'"):
        samples_from_arviz(view, WEIGHTS, "prior")
    with pytest.raises(ValueError, match=r"no variable 'other'.*layer.bias"):
        samples_from_arviz(view, {"other": jnp.zeros(3)})
    with pytest.raises(ValueError, match=r"has shape \(2, 3\)"):
        samples_from_arviz(view, {"layer": {"kernel": jnp.zeros((3, 2))}})
    with pytest.raises(ValueError, match="needs \\(chain, draw"):
        samples_from_arviz({"posterior": xr.Dataset({"w": ("draw", np.zeros(3))})}, {"w": jnp.zeros(())})
    with pytest.raises(ValueError, match="keep_weights_every"):
        samples_to_arviz(pl.Result(result.trace, result.weights, None, result.states, result.sampler))
