"""The oracles: exact is exact for any chunk, mini-batches are unbiased, sums are precise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import gradients, trees


@pytest.mark.parametrize("chunk_size", [1, 7, 333, 1000, 4096])
def test_the_exact_gradient_is_that_of_the_whole_batch(small_task, chunk_size):
    oracle = jax.jit(gradients.exact(small_task.potential, chunk_size))
    got = oracle(jax.random.key(0), small_task.weights, small_task.train)
    expected = jax.grad(small_task.potential.energy)(small_task.weights, small_task.train.batch)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-7)


def test_the_exact_gradient_ignores_the_key(small_task):
    oracle = jax.jit(gradients.exact(small_task.potential, 300))
    one, other = (trees.ravel(oracle(jax.random.key(k), small_task.weights, small_task.train)) for k in (0, 1))
    np.testing.assert_array_equal(one, other)


def test_the_minibatch_gradient_is_unbiased(small_task):
    oracle = gradients.minibatch(small_task.potential, 16)
    keys = jax.random.split(jax.random.key(0), 4000)

    @jax.jit
    def draws(weights, dataset):
        return jax.lax.map(lambda key: trees.ravel(oracle(key, weights, dataset)), keys, batch_size=100)

    drawn = np.asarray(draws(small_task.weights, small_task.train), np.float64)
    exact = trees.ravel(gradients.exact(small_task.potential)(keys[0], small_task.weights, small_task.train))
    standard_error = drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn))
    noisy = standard_error > 0
    z = (drawn.mean(axis=0) - np.asarray(exact))[noisy] / standard_error[noisy]
    assert noisy.sum() > 300
    assert np.abs(z).max() < 4.5  # the largest of 364
    assert abs(np.mean(z**2) - 1) < 0.6  # components are correlated: far fewer than 364 independent numbers


def test_losses_and_errors_are_summed_as_in_float64():
    rng = np.random.default_rng(0)
    losses = rng.exponential(0.3, 54_321).astype(np.float32)
    potential = pl.Potential(lambda w, batch: batch[0] * w, per_example_error=lambda w, batch: batch[1] * w)
    dataset = pl.Dataset(losses, (rng.random(54_321) < 0.1).astype(np.float32))
    sums = jax.jit(lambda w, data: gradients.exact_sums(potential, w, data, 1000))(jnp.ones(()), dataset)
    exact = losses.astype(np.float64).mean()
    measured = float(sums.loss.high) + float(sums.loss.low)
    # 1/P is itself a float32 number: a constant factor, the same for every energy; beyond it nothing is lost.
    rounded = np.float64(np.float32(1 / 54_321)) * 54_321
    assert measured == pytest.approx(exact * rounded, rel=1e-11)
    assert measured == pytest.approx(exact, rel=1e-7)
    assert float(sums.error) == pytest.approx(np.mean(np.asarray(dataset.targets)), rel=1e-6)
    assert float(sums.gradient) == pytest.approx(exact, rel=1e-5)


def test_several_means_in_one_pass_are_those_of_several_passes(small_task):
    assert small_task.potential.per_example_error is not None
    quantities = [small_task.potential.per_example_loss, small_task.potential.per_example_error]
    together = gradients.exact_means(quantities, small_task.weights, small_task.train, 64)
    for quantity, mean in zip(quantities, together, strict=True):
        alone = gradients.exact_mean(quantity, small_task.weights, small_task.train, 64)
        assert float(mean.high) + float(mean.low) == pytest.approx(float(alone.high) + float(alone.low), rel=1e-7)


@pytest.mark.parametrize("chunk_size", [64, 1000])
def test_one_visit_gives_loss_error_and_the_dead_classes(small_task, chunk_size):
    sums = gradients.exact_sums(small_task.potential, small_task.weights, small_task.train, chunk_size)
    batch = small_task.train.batch
    loss = np.asarray(small_task.potential.per_example_loss(small_task.weights, batch), np.float64).mean()
    assert float(sums.loss.high) + float(sums.loss.low) == pytest.approx(loss, rel=3e-7)
    error = float(small_task.potential.per_example_error(small_task.weights, batch).mean())
    assert float(sums.error) == pytest.approx(error)
    assert sums.dead_class is not None
    assert not sums.dead_class.any()


@pytest.mark.parametrize(
    ("lowest", "num_positive", "dead"), [(0, 0, True), (0, 1, True), (0, 3, False), (-1, 1, False)]
)
def test_a_class_with_a_score_for_hardly_any_example_is_dead(lowest, num_positive, dead):
    """Only of scores that are nowhere negative: zero is what ReLU leaves of a class that is lost."""
    scores = np.full((2_000, 2), lowest, np.float32)
    scores[:1_000, 0] = scores[1_990 : 1_990 + num_positive, 1] = 2.0
    potential = pl.classification(lambda w, x: w * x)
    dataset = pl.Dataset(scores, np.zeros(2_000, np.int32))
    sums = gradients.exact_sums(potential, jnp.ones(()), dataset, 700)
    assert np.asarray(sums.dead_class).tolist() == [False, dead]


def test_without_classes_or_errors_there_is_nothing_to_say():
    potential = pl.Potential(lambda w, batch: batch[0] * w)
    sums = gradients.exact_sums(potential, jnp.ones(()), pl.Dataset(np.ones(5), np.ones(5)), 2)
    assert sums.dead_class is None
    assert np.isnan(float(sums.error))


def test_examples_seen_twice_do_not_leak_nan_or_weight():
    """The last chunk overlaps the one before; the overlap must count for nothing, in the gradient too."""
    potential = pl.Potential(lambda w, batch: w * batch[0] ** 2)
    dataset = pl.Dataset(np.arange(1.0, 6.0, dtype=np.float32), np.zeros(5))
    for chunk_size in (2, 3, 4):
        gradient = gradients.exact(potential, chunk_size)(jax.random.key(0), jnp.asarray(1.0), dataset)
        assert float(gradient) == 11.0
