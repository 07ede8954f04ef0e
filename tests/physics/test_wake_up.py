"""A chain stays finite if a unit that is silent for every example becomes active between two measurements of 𝒱."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin import masses

T = 3e-5


class WeakRegularizer(pl.pseudo_langevin):
    """Pseudo-Langevin dynamics whose masses hardly depend on the regulariser."""

    max_regularizer_frequency = 1.0


def woken_chain(task, make, **options):
    """Measure 𝒱 with unit 0 of layer 1 silent, activate the unit, and run the chain without a refresh.

    Return the state after the run and the largest true 𝒯_i when the unit became active.
    """
    sampler = make(task.potential, task.train, batch_size=20, **options)
    layer = task.weights["layer1"]
    asleep = layer["bias"].at[0].set(-jnp.sum(jnp.abs(layer["kernel"][:, 0])) - 1.0)
    silent = task.weights | {"layer1": layer | {"bias": asleep}}

    state = jax.jit(lambda s: s.init(jax.random.key(0), silent, T))(sampler)
    np.testing.assert_array_equal(state.gradient_variance["layer1"]["kernel"][:, 0], 0)
    awake = silent | {"layer1": silent["layer1"] | {"bias": asleep.at[0].set(0.0)}}
    state = state._replace(weights=awake)
    variance = jax.jit(lambda s: s.measure_variance(jax.random.key(1), awake))(sampler)
    ratios = masses.temperature_ratios(variance, state.masses, state.temperature, **sampler.dynamics)
    return jax.jit(lambda s, state: s.segment(state, 3000))(sampler, state), float(trees.largest(ratios))


@pytest.mark.parametrize("make", [pl.pseudo_langevin, WeakRegularizer])
def test_the_floor_keeps_the_chain_finite(small_task, make):
    """The regulariser, which gives masses another minimum, is not needed."""
    after, ratio = woken_chain(small_task, make)
    assert int(after.status) == pl.Status.RUNNING
    assert int(after.step) == 3000
    assert ratio < 100
    assert float(jnp.max(jnp.abs(trees.ravel(after.weights)))) < 100


def test_without_the_floor_the_temperature_ratio_is_unbounded(small_task):
    after, ratio = woken_chain(small_task, WeakRegularizer, mass_floor=0.0)
    assert int(after.status) == pl.Status.NON_FINITE or ratio > 100
