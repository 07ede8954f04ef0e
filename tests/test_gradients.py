"""Exact sums are exact for any chunk size, and compensated sums are precise."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin import gradients
from pseudolangevin.gradients import Sum, exact_sums


def value(pair: Sum) -> float:
    return float(pair.high) + float(pair.low)


def exact(values: np.ndarray) -> float:
    return math.fsum(values.astype(np.float64).ravel())


@pytest.mark.parametrize("chunk_size", [333, 4096])
def test_exact_sums_do_not_depend_on_the_chunk_size(small_task, chunk_size):
    potential, weights, batch = small_task.potential, small_task.weights, small_task.train.batch
    sums = jax.jit(lambda w, data: exact_sums(potential, w, data, chunk_size))(weights, small_task.train)
    expected = jax.grad(potential.energy)(weights, batch)
    np.testing.assert_allclose(trees.ravel(sums.gradient), trees.ravel(expected), rtol=1e-4, atol=2e-7)
    loss = np.asarray(potential.per_example_loss(weights, batch), np.float64).mean()
    assert value(sums.loss) == pytest.approx(loss, rel=3e-7)
    assert float(sums.error) == pytest.approx(float(potential.per_example_error(weights, batch).mean()))
    assert not sums.dead_class.any()
    plain = exact_sums(pl.Potential(lambda w, batch: batch[0] * w), jnp.ones(()), pl.Dataset(np.ones(5), np.ones(5)), 2)
    assert plain.dead_class is None
    assert np.isnan(float(plain.error))


def test_losses_and_errors_are_summed_as_in_float64():
    rng = np.random.default_rng(0)
    losses = rng.exponential(0.3, 54_321).astype(np.float32)
    quantities: list = [lambda w, batch: batch[0] * w, lambda w, batch: batch[1] * w]
    potential = pl.Potential(quantities[0], per_example_error=quantities[1])
    dataset = pl.Dataset(losses, (rng.random(54_321) < 0.1).astype(np.float32))
    sums = jax.jit(lambda w, data: exact_sums(potential, w, data, 1000))(jnp.ones(()), dataset)
    # 1/P is rounded to float32: a constant factor, the same for every energy; beyond it nothing is lost.
    rounded = np.float64(np.float32(1 / 54_321)) * 54_321
    assert value(sums.loss) == pytest.approx(losses.astype(np.float64).mean() * rounded, rel=1e-11)
    assert float(sums.error) == pytest.approx(np.mean(np.asarray(dataset.targets)), rel=1e-6)
    means = gradients.exact_means(quantities, jnp.ones(()), dataset, 999)
    assert value(means[0]) == pytest.approx(value(sums.loss), rel=1e-12)
    assert value(means[1]) == pytest.approx(float(sums.error), rel=1e-6)


@pytest.mark.parametrize(
    ("lowest", "num_positive", "dead"), [(0, 0, True), (0, 1, True), (0, 3, False), (-1, 1, False)]
)
def test_a_class_with_a_score_for_hardly_any_example_is_dead(lowest, num_positive, dead):
    """Only scores that are nowhere negative count: zero is the output of ReLU for a class that is lost."""
    scores = np.full((2_000, 2), lowest, np.float32)
    scores[:1_000, 0] = scores[1_990 : 1_990 + num_positive, 1] = 2.0
    potential = pl.classification(lambda w, x: w * x)
    sums = exact_sums(potential, jnp.ones(()), pl.Dataset(scores, np.zeros(2_000, np.int32)), 700)
    assert np.asarray(sums.dead_class).tolist() == [False, dead]


@pytest.mark.parametrize("num", [1, 1000, 55_800])
def test_compensated_sums_are_as_good_as_float64(num):
    values = np.random.default_rng(0).exponential(0.3, num).astype(np.float32)

    @jax.jit
    def sums(values):
        total = gradients.total(values)
        chains = jax.vmap(gradients.total)(jnp.stack([values, 2 * values]))
        last = jax.tree.map(lambda pair: pair[1], chains)
        return total, gradients.total(gradients.product(values, values)), gradients.scale(total, 1 / num), last

    squares, factor = math.fsum(values.astype(np.float64) ** 2), float(np.float32(1 / num))
    expected = [exact(values), squares, exact(values) * factor, 2 * exact(values)]
    assert [value(pair) for pair in sums(values)] == pytest.approx(expected, rel=1e-12)


def test_adding_pairs_is_exact_and_float64_is_kept():
    tiny = float(np.float32(1e-9))
    left, right = Sum(jnp.float32(1.0), jnp.float32(1e-9)), Sum(jnp.float32(-1.0), jnp.float32(1e-9))
    assert value(jax.jit(gradients.add)(left, right)) == pytest.approx(2 * tiny, rel=1e-7)
    values = jnp.asarray([1e8, 1.0, -1e8, 3e-5], jnp.float32)
    assert value(jax.jit(gradients.total)(values)) == pytest.approx(1.0 + float(np.float32(3e-5)), rel=1e-7)
    with jax.enable_x64(True):
        total = gradients.total(jnp.asarray([1e16, 1.0, -1e16]))
        assert total.high.dtype == jnp.float64
        assert value(total) == 1.0
