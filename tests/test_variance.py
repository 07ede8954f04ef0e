"""The gradient variance from mini-batches and from single examples, against the exact one."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin import masses
from pseudolangevin.gradients import minibatch_gradient

BATCH_SIZE = 16


def flat(tree: Any) -> np.ndarray:
    return np.asarray(trees.ravel(tree), np.float64)


def gradients_of_examples(potential, weights, dataset) -> np.ndarray:
    """Gradients (example, weight), one by one."""
    one = jax.grad(lambda w, x, y: potential.loss(w, (x[None], y[None])))
    found = jax.vmap(one, in_axes=(None, 0, 0))(weights, *dataset.batch)
    return np.asarray(jax.vmap(trees.ravel)(found), np.float64)


def from_minibatches(task, key, weights, dataset, **options):
    def gradient(draw_key):
        return minibatch_gradient(task.potential, weights, dataset.draw(draw_key, BATCH_SIZE))

    return masses.variance_from_minibatches(gradient, key, weights, **options)


@pytest.fixture(scope="module")
def measure(small_task):
    def run(**options):
        function = jax.jit(partial(from_minibatches, small_task, **options))
        return function(jax.random.key(0), small_task.weights, small_task.train)

    return run


def test_the_estimate_is_the_variance_of_one_example_over_the_batch_size(measure, small_task):
    num = 2000
    variance, used = measure(block_size=100, max_batches=num, tolerance=1e-9)
    assert int(used) == num
    examples = gradients_of_examples(small_task.potential, small_task.weights, small_task.train)
    measured, exact = flat(variance), examples.var(axis=0) / BATCH_SIZE
    noisy = exact > 1e-12
    assert noisy.sum() > 300
    kurtosis = scipy.stats.kurtosis(examples[:, noisy], axis=0) / BATCH_SIZE  # excess kurtosis of a mini-batch
    standard_error = np.sqrt(2 / (num - 1) + kurtosis / num)
    z = (measured[noisy] / exact[noisy] - 1) / standard_error
    assert np.mean(np.abs(z) < 2) > 0.9
    assert np.abs(z).max() < 4.5  # the largest of 364
    np.testing.assert_array_equal(measured[exact == 0], 0)


@pytest.mark.parametrize(
    ("max_batches", "tolerance", "smallest", "largest"),
    [(1000, 0.9, 100, 100), (220, 1e-6, 200, 200), (5000, 0.1, 150, 4950)],
)
def test_the_tolerance_decides_how_many_batches_are_used(measure, max_batches, tolerance, smallest, largest):
    assert smallest <= int(measure(block_size=50, max_batches=max_batches, tolerance=tolerance)[1]) <= largest


def test_a_gradient_without_noise_converges_after_one_block():
    variance, used = masses.variance_from_minibatches(
        lambda key: jnp.ones(3), jax.random.key(0), jnp.zeros(3), block_size=3
    )
    assert float(trees.squared_norm(variance)) == 0
    assert int(used) == 3


def test_a_large_mean_does_not_hide_a_small_variance():
    """Mean 1000, variance 1e-4: sums of squares in float32 would contain rounding only."""
    variance, _ = masses.variance_from_minibatches(
        lambda key: 1000.0 + 0.01 * jax.random.normal(key, (50,)), jax.random.key(0), jnp.zeros(50), tolerance=1e-9
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
    weights = jax.tree.map(lambda w: 2 * w, network.init(jax.random.key(0)))
    return pl.classification(network.apply, weight_decay=5.0), weights, train


def from_examples(problem, key=None, **options) -> np.ndarray:
    potential, weights, train = problem
    key = jax.random.key(0) if key is None else key
    return masses.variance_from_examples(potential, key, weights, train, **options)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_pass_over_all_examples_is_exact(problem, kind):
    potential, weights, train = problem
    if kind == "regression":
        potential = pl.regression(pl.models.feedforward((8, 6, 5, 3)).apply)
        train = pl.Dataset(train.inputs, jax.random.normal(jax.random.key(4), (train.num_examples, 3)))
    expected = gradients_of_examples(potential, weights, train).var(axis=0) / 7
    for one in (potential, dataclasses.replace(potential, gradient_moments=None)):
        got = from_examples((one, weights, train), batch_size=7, num_examples=10_000, chunk_size=100)
        np.testing.assert_allclose(flat(got), expected, rtol=1e-4, atol=1e-6 * expected.max())


def test_drawn_examples_are_unbiased(problem):
    exact = flat(from_examples(problem, batch_size=4, num_examples=253, chunk_size=64))

    def drawn(key):
        return trees.ravel(from_examples(problem, key, batch_size=4, num_examples=20, chunk_size=10))

    estimates = np.asarray(jax.jit(jax.vmap(drawn))(jax.random.split(jax.random.key(2), 4_000)), np.float64)
    noisy = exact > 1e-3 * exact.max()
    error = estimates[:, noisy].std(axis=0) / np.sqrt(len(estimates))
    assert np.abs((estimates[:, noisy].mean(axis=0) - exact[noisy]) / error).max() < 4.5


def test_the_sampler_measures_the_variance_as_its_settings_say(problem):
    potential, weights, train = problem
    options: dict[str, Any] = {"batch_size": 25, "variance_block": 100, "variance_max_batches": 100}
    exact = flat(from_examples(problem, batch_size=25, num_examples=253, chunk_size=64))

    def measured(**changes: Any) -> np.ndarray:
        sampler = pl.pseudo_langevin(potential, train, **options | changes)
        return flat(sampler.measure_variance(jax.random.key(0), weights))

    np.testing.assert_allclose(measured(), exact, rtol=1e-4, atol=1e-6 * exact.max())
    drawn = measured(variance_from="minibatches")
    assert 0.05 < np.std(drawn[exact > 0] / exact[exact > 0]) < 0.3
    assert np.any(measured(variance_examples=100) != exact)
