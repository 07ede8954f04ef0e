"""The potential against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl


def reference(task, weight_decay: float) -> tuple[float, float, float]:
    """Mean cross-entropy, error and U in float64."""
    logits = np.asarray(task.network.apply(task.weights, task.train.inputs), np.float64)
    labels = np.asarray(task.train.targets)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = -log_probabilities[np.arange(len(labels)), labels].mean()
    flat = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(task.weights)])
    error = np.mean(logits.argmax(axis=1) != labels)
    return loss, error, loss + weight_decay / (2 * len(flat)) * (flat**2).sum()


def test_cross_entropy_error_and_regularizer(small_task):
    loss, error, energy = reference(small_task, 5.0)
    weights, batch = small_task.weights, small_task.train.batch
    assert float(small_task.potential.loss(weights, batch)) == pytest.approx(loss, rel=1e-6)
    assert float(small_task.potential.energy(weights, batch)) == pytest.approx(energy, rel=1e-6)
    assert float(small_task.potential.per_example_error(weights, batch).mean()) == pytest.approx(error, rel=1e-6)
    assert float(small_task.potential.regularizer(weights)) == pytest.approx(energy - loss, rel=1e-5)
    assert energy - loss > 0.01 * loss  # the regulariser is there to be seen


def test_the_regularizer_is_per_weight():
    """λ/(2N)·|w|²: doubling the number of equal weights leaves it as it is."""
    potential = pl.Potential(lambda w, batch: jnp.zeros(batch[0].shape[0]), weight_decay=3.0)
    for size in (4, 8):
        assert float(potential.regularizer({"w": jnp.full(size, 2.0)})) == pytest.approx(3.0 / 2 * 4.0)
        assert potential.stiffness({"w": jnp.ones(size)}) == 3.0 / size


def test_cross_entropy_survives_huge_scores():
    potential = pl.classification(lambda w, x: w * x)
    batch = (jnp.asarray([[1e4, 0.0], [0.0, 1e4]]), jnp.asarray([0, 0]))
    np.testing.assert_allclose(potential.per_example_loss(jnp.asarray(1.0), batch), [0.0, 1e4])


def test_regression_is_half_the_squared_distance():
    line = pl.regression(lambda w, x: w["slope"] * x + w["offset"], weight_decay=2.0)
    weights = {"slope": jnp.asarray(2.0), "offset": jnp.asarray(1.0)}
    x, y = jnp.asarray([0.0, 1.0, 2.0]), jnp.asarray([1.0, 2.0, 7.0])
    np.testing.assert_allclose(line.per_example_loss(weights, (x, y)), [0.0, 0.5, 2.0])
    assert float(line.energy(weights, (x, y))) == pytest.approx(2.5 / 3 + 2.0 / 4 * 5.0)


def test_regression_of_vectors_adds_the_components():
    identity = pl.regression(lambda w, x: w * x)
    x, y = jnp.ones((2, 3)), jnp.zeros((2, 3))
    np.testing.assert_allclose(identity.per_example_loss(jnp.asarray(2.0), (x, y)), [6.0, 6.0])


def test_regression_refuses_shapes_that_would_broadcast():
    """Predictions (S, 1) against targets (S,) would quietly compare every example with every other."""
    column = pl.regression(lambda w, x: (w * x)[:, None])
    dataset = pl.Dataset(np.ones(5), np.ones(5))
    with pytest.raises(ValueError, match="make them equal"):
        column.check(jnp.asarray(1.0), dataset)


def test_any_loss_will_do():
    potential = pl.Potential(lambda w, batch: jnp.abs(batch[0] - w["a"]))
    batch = (jnp.asarray([1.0, 4.0]), jnp.zeros(2))
    assert float(potential.energy({"a": jnp.asarray(2.0)}, batch)) == 1.5
    assert potential.per_example_error is None


def test_the_gradient_of_the_regularizer_is_that_of_the_energy(small_task):
    weights, batch = small_task.weights, small_task.train.batch
    direct = jax.grad(small_task.potential.energy)(weights, batch)
    composed = small_task.potential.add_regularizer_gradient(
        weights, jax.grad(small_task.potential.loss)(weights, batch)
    )
    for a, b in zip(jax.tree.leaves(direct), jax.tree.leaves(composed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8)
