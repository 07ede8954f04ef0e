"""The measured gradient variance against the exact one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import pseudolangevin as pl
from pseudolangevin import gradients, noise, trees

BATCH_SIZE = 16


@pytest.fixture(scope="module")
def exact_variance(small_task):
    """Per-example variance / S: batches are drawn with replacement."""
    per_example = jax.vmap(
        jax.grad(lambda w, x, y: small_task.potential.loss(w, (x[None], y[None]))), in_axes=(None, 0, 0)
    )(small_task.weights, *small_task.train.batch)
    return jax.tree.map(lambda g: np.asarray(g, np.float64).var(axis=0) / BATCH_SIZE, per_example)


@pytest.fixture(scope="module")
def excess_kurtosis(small_task):
    """Of the mini-batch gradient: that of one example / S. It decides the error of a measured variance."""
    per_example = jax.vmap(
        jax.grad(lambda w, x, y: small_task.potential.loss(w, (x[None], y[None]))), in_axes=(None, 0, 0)
    )(small_task.weights, *small_task.train.batch)
    return jax.tree.map(lambda g: scipy.stats.kurtosis(np.asarray(g, np.float64), axis=0) / BATCH_SIZE, per_example)


@pytest.fixture(scope="module")
def measure(small_task):
    oracle = gradients.minibatch(small_task.potential, BATCH_SIZE)

    def run(**options):
        function = jax.jit(lambda key, w, data: noise.from_minibatches(oracle, key, w, data, **options))
        return function(jax.random.key(0), small_task.weights, small_task.train)

    return run


def test_the_estimate_is_the_per_example_variance_over_the_batch_size(measure, exact_variance, excess_kurtosis):
    num = 2000
    estimate = measure(block_size=100, max_batches=num, tolerance=1e-9)
    assert int(estimate.num_batches) == num
    measured, exact = np.asarray(trees.ravel(estimate.variance)), np.asarray(trees.ravel(exact_variance))
    noisy = exact > 1e-12
    assert noisy.sum() > 300
    kurtosis = np.asarray(trees.ravel(excess_kurtosis))[noisy]
    standard_error = np.sqrt(2 / (num - 1) + kurtosis / num)
    z = (measured[noisy] / exact[noisy] - 1) / standard_error
    assert np.mean(np.abs(z) < 2) > 0.9
    assert np.abs(z).max() < 4.5  # the largest of 364
    for layer, exact_layer in zip(
        trees.layers(estimate.variance).values(), trees.layers(exact_variance).values(), strict=True
    ):
        assert float(trees.mean(layer)) == pytest.approx(
            float(trees.mean(exact_layer)), rel=3 * float(standard_error.max())
        )
    np.testing.assert_array_equal(measured[exact == 0], 0)


def test_a_loose_tolerance_stops_after_two_blocks(measure):
    estimate = measure(block_size=50, max_batches=1000, tolerance=0.9)
    assert int(estimate.num_batches) == 100
    assert bool(estimate.converged)


def test_a_tight_tolerance_uses_every_batch_allowed(measure):
    estimate = measure(block_size=50, max_batches=220, tolerance=1e-6)
    assert int(estimate.num_batches) == 200  # whole blocks only
    assert not bool(estimate.converged)


def test_the_tolerance_decides_in_between(measure):
    estimate = measure(block_size=50, max_batches=5000, tolerance=0.1)
    assert 100 < int(estimate.num_batches) < 5000
    assert bool(estimate.converged)


def test_chains_that_converge_early_are_not_changed_by_those_that_do_not(small_task):
    """Under vmap the loop runs on for the slowest; the others must keep their estimate."""
    oracle = gradients.minibatch(small_task.potential, BATCH_SIZE)

    def run(key, weights, dataset):
        return noise.from_minibatches(oracle, key, weights, dataset, block_size=20, max_batches=400, tolerance=0.25)

    keys = jax.random.split(jax.random.key(2), 4)
    together = jax.jit(jax.vmap(run, in_axes=(0, None, None)))(keys, small_task.weights, small_task.train)
    assert len(set(np.asarray(together.num_batches).tolist())) > 1
    alone = jax.jit(run)
    for index, key in enumerate(keys):
        single = alone(key, small_task.weights, small_task.train)
        assert int(single.num_batches) == int(together.num_batches[index])
        mine = trees.ravel(jax.tree.map(lambda v, i=index: v[i], together.variance))
        np.testing.assert_allclose(mine, trees.ravel(single.variance), rtol=1e-4, atol=1e-10)


def test_the_exact_gradient_has_no_variance(small_task):
    estimate = noise.from_minibatches(
        gradients.exact(small_task.potential), jax.random.key(0), small_task.weights, small_task.train, block_size=3
    )
    assert float(trees.squared_norm(estimate.variance)) == 0
    assert bool(estimate.converged)
    assert int(estimate.num_batches) == 3  # one block of nothing but zeros is enough


def test_a_large_mean_does_not_hide_a_small_variance():
    """Mean 1000, variance 1e-4: sums of squares in float32 would see rounding alone."""

    def oracle(key, weights, dataset):
        return 1000.0 + 0.01 * jax.random.normal(key, weights.shape)

    dataset = pl.Dataset(np.ones(1), np.ones(1))
    estimate = noise.from_minibatches(
        oracle, jax.random.key(0), jnp.zeros(50), dataset, max_batches=1000, tolerance=1e-9
    )
    rounding = (1000 * 2.0**-24) ** 2  # of the order of 4e-9
    assert float(jnp.mean(estimate.variance)) == pytest.approx(1e-4, rel=3 * np.sqrt(2 / 50_000) + 10 * rounding / 1e-4)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.2, 2.0], True),  # √1.2 = 1.095
        ([1.0, 2.0], [1.22, 2.0], False),  # √1.22 = 1.105
        ([1.0, 2.0], [0.82, 2.0], True),  # √0.82 = 0.906
        ([1.0, 2.0], [0.80, 2.0], False),
        ([0.0, 1.0], [0.0, 1.0], True),
        ([0.0, 1.0], [1e-30, 1.0], False),
        ([1e-30, 1.0], [0.0, 1.0], False),
        ([0.0, 0.0], [0.0, 0.0], True),
        ([np.nan, 1.0], [1.0, 1.0], False),
    ],
)
def test_agreement(old, new, expected):
    assert bool(noise.agree({"a": jnp.asarray(old)}, {"a": jnp.asarray(new)}, 0.1)) is expected


def test_one_disagreeing_tensor_is_enough():
    good, bad = jnp.ones(3), 2 * jnp.ones(3)
    assert not bool(noise.agree({"a": good, "b": good}, {"a": good, "b": bad}, 0.1))
