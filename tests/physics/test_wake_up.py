"""A unit silent for every example when 𝒱 is measured wakes up before the next measurement: the chain stays finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import masses, noise, trees
from pseudolangevin.samplers.base import advance
from pseudolangevin.samplers.langevin_kernel import LangevinKernel

T = 3e-5


def woken_chain(task, **options):
    """𝒱 measured with unit 0 of layer 1 silent; the unit is then woken, and the chain runs on without a refresh.

    Returns the state after the run and the largest true 𝒯_i at the moment of waking.
    """
    sampler = pl.pseudo_langevin(task.potential, task.train, batch_size=20, **options)
    kernel = sampler.kernel
    assert isinstance(kernel, LangevinKernel)
    layer = task.weights["layer1"]
    asleep = layer["bias"].at[0].set(-jnp.sum(jnp.abs(layer["kernel"][:, 0])) - 1.0)
    silent = task.weights | {"layer1": layer | {"bias": asleep}}

    @jax.jit
    def start(data):
        return kernel.init(jax.random.key(0), silent, jnp.asarray(T), data)

    @jax.jit
    def true_ratios(state, data):
        variance = noise.from_minibatches(kernel.oracle, jax.random.key(1), state.weights, data).variance
        return masses.temperature_ratios(variance, state.masses, state.temperature, kernel.momentum_retention, 1.0)

    @jax.jit
    def run(state, data):
        return advance(kernel, state, data, 3000)

    state = start(task.train)
    np.testing.assert_array_equal(state.gradient_variance["layer1"]["kernel"][:, 0], 0)
    awake = silent | {"layer1": silent["layer1"] | {"bias": asleep.at[0].set(0.0)}}
    state = state._replace(weights=awake)
    return run(state, task.train), float(jnp.max(trees.ravel(true_ratios(state, task.train))))


def test_with_default_settings_the_chain_stays_finite(small_task):
    after, ratio = woken_chain(small_task)
    assert int(after.status) == pl.Status.RUNNING
    assert int(after.step) == 3000
    assert bool(trees.all_finite(after))
    assert ratio < 100
    assert float(jnp.max(jnp.abs(trees.ravel(after.weights)))) < 100


def test_without_floor_it_would_not(small_task):
    """The test above has teeth: the same chain without the guards has an unbounded temperature ratio."""
    after, ratio = woken_chain(small_task, mass_floor=0.0, max_regularizer_frequency=1.0)
    assert int(after.status) == pl.Status.NON_FINITE or ratio > 100


@pytest.mark.parametrize("weight_decay", [0.0, 5.0])
def test_the_floor_alone_is_enough(small_task, weight_decay):
    """Also without a regulariser, whose stability gives masses a minimum of their own."""
    potential = pl.classification(small_task.network.apply, weight_decay=weight_decay)
    after, _ = woken_chain(small_task._replace(potential=potential), max_regularizer_frequency=1.0)
    assert int(after.status) == pl.Status.RUNNING
