"""The gradient variance from mini-batches and from single examples, against the exact one."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin import masses
from pseudolangevin.gradients import minibatch_gradient

KEY = jax.random.key(0)


def flat(tree: Any) -> np.ndarray:
    return np.asarray(trees.ravel(tree), np.float64)


def exact_variance(potential, weights, dataset, batch_size: int) -> np.ndarray:
    jacobian = jax.jit(jax.jacrev(potential.per_example_loss))(weights, dataset.batch)
    rows = [np.asarray(leaf, np.float64).reshape(dataset.num_examples, -1) for leaf in jax.tree.leaves(jacobian)]
    return np.concatenate(rows, axis=1).var(axis=0) / batch_size


def test_the_estimate_from_minibatches_is_the_variance_of_one_example_over_the_batch_size(linear_task):
    potential, train, num = linear_task.potential, linear_task.train, 2_000

    def gradient(key):
        return minibatch_gradient(potential, linear_task.weights, train.draw(key, 16))

    measure = jax.jit(lambda key, w: masses.variance_from_minibatches(gradient, key, w, max_batches=num, tolerance=0))
    variance, used = measure(KEY, linear_task.weights)
    assert int(used) == num
    z = (flat(variance) / exact_variance(potential, linear_task.weights, train, 16) - 1) / np.sqrt(2 / (num - 1))
    assert np.mean(np.abs(z) < 2) > 0.9
    assert np.abs(z).max() < 4.5  # the largest of 80


def test_the_tolerance_decides_how_many_batches_are_used():
    cases = [(1_000, 0.9, 100, 100), (220, 1e-6, 200, 200), (5_000, 0.1, 150, 4_950)]
    for max_batches, tolerance, smallest, largest in cases:
        options: dict[str, Any] = {"block_size": 50, "max_batches": max_batches, "tolerance": tolerance}
        zeros = jnp.zeros(100)
        _, used = masses.variance_from_minibatches(lambda key: jax.random.normal(key, (100,)), KEY, zeros, **options)
        assert smallest <= int(used) <= largest
    variance, used = masses.variance_from_minibatches(lambda key: jnp.ones(3), KEY, jnp.zeros(3), block_size=3)
    assert (float(trees.squared_norm(variance)), int(used)) == (0, 3)  # no noise


def test_a_large_mean_does_not_hide_a_small_variance():
    """Mean 1000, variance 1e-4: sums of squares in float32 would contain rounding only."""
    variance, _ = masses.variance_from_minibatches(
        lambda key: 1000.0 + 0.01 * jax.random.normal(key, (50,)), KEY, jnp.zeros(50), tolerance=1e-9
    )
    rounding = (1000 * 2.0**-24) ** 2  # of the order of 4e-9
    assert float(jnp.mean(variance)) == pytest.approx(1e-4, rel=3 * np.sqrt(2 / 50_000) + 10 * rounding / 1e-4)


def test_variances_agree_if_no_root_changed_by_more_than_the_tolerance():
    near, far = ([1.2, 2.0], [0.82, 2.0]), ([1.22, 2.0], [0.80, 2.0], [np.nan, 2.0])  # √1.2 = 1.095, √1.22 = 1.105
    cases = [([1.0, 2.0], new, True) for new in near] + [([1.0, 2.0], new, False) for new in far]
    cases += [([0.0, 1.0], [0.0, 1.0], True), ([0.0, 1.0], [1e-30, 1.0], False), ([1e-30, 1.0], [0.0, 1.0], False)]
    for old, new, expected in cases:
        first, second = ({"a": jnp.asarray(value), "b": jnp.ones(3)} for value in (old, new))
        assert bool(masses.variances_agree(first, second, 0.1)) is expected, (old, new)


@pytest.fixture(scope="module")
def problem() -> tuple[pl.Potential, dict, pl.Dataset]:
    train, _ = pl.tasks.spin_vectors(jax.random.key(1), num_train=253, num_test=1, dimension=8, num_classes=3)
    network = pl.models.feedforward((8, 6, 5, 3))
    weights = jax.tree.map(lambda w: 2 * w, network.init(KEY))
    return pl.classification(network.apply, weight_decay=5.0), weights, train


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_pass_over_all_examples_is_exact(problem, kind):
    potential, weights, train = problem
    if kind == "regression":
        potential = pl.regression(pl.models.feedforward((8, 6, 5, 3)).apply)
        train = pl.Dataset(train.inputs, jax.random.normal(jax.random.key(4), (train.num_examples, 3)))
    expected = exact_variance(potential, weights, train, 7)
    for one in (potential, dataclasses.replace(potential, gradient_moments=None)):
        found = jax.jit(
            lambda w, one=one: masses.variance_from_examples(
                one, KEY, w, train, batch_size=7, num_examples=10_000, chunk_size=100
            )
        )(weights)
        np.testing.assert_allclose(flat(found), expected, rtol=1e-4, atol=1e-6 * expected.max())


def test_drawn_examples_are_unbiased(problem):
    potential, weights, train = problem
    exact = exact_variance(potential, weights, train, 4)

    def drawn(key):
        sizes = {"batch_size": 4, "num_examples": 20, "chunk_size": 10}
        return trees.ravel(masses.variance_from_examples(potential, key, weights, train, **sizes))

    estimates = np.asarray(jax.jit(jax.vmap(drawn))(jax.random.split(jax.random.key(2), 4_000)), np.float64)
    noisy = exact > 1e-3 * exact.max()
    error = estimates[:, noisy].std(axis=0) / np.sqrt(len(estimates))
    assert np.abs((estimates[:, noisy].mean(axis=0) - exact[noisy]) / error).max() < 4.5


def test_the_sampler_measures_the_variance_as_its_settings_say(problem):
    potential, weights, train = problem
    exact = exact_variance(potential, weights, train, 25)

    def measured(**changes: Any) -> np.ndarray:
        sampler = pl.pseudo_langevin(potential, train, batch_size=25, **changes)
        return flat(jax.jit(lambda s, w: s.measure_variance(KEY, w))(sampler, weights))

    np.testing.assert_allclose(measured(), exact, rtol=1e-4, atol=1e-6 * exact.max())
    drawn = measured(variance_from="minibatches")
    assert 0.02 < np.std(drawn[exact > 0] / exact[exact > 0]) < 0.3
    assert np.any(np.abs(measured(variance_examples=100) - exact) > 1e-3 * exact.max())
