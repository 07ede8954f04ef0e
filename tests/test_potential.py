"""The potential against plain NumPy: losses, regularisers, subsets of the tensors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin.gradients import exact_energy, minibatch_gradient

pytestmark = pytest.mark.usefixtures("_no_directions")


def test_cross_entropy_error_and_regularizer(small_task):
    weights, batch = small_task.weights, small_task.train.batch
    logits = np.asarray(small_task.network.apply(weights, batch[0]), np.float64)
    labels = np.asarray(batch[1])
    loss = np.mean(logsumexp(logits, axis=1) - logits[np.arange(len(labels)), labels])
    regularizer = 5.0 / (2 * 364) * (np.asarray(trees.ravel(weights), np.float64) ** 2).sum()
    assert regularizer > 0.01 * loss
    assert float(small_task.potential.loss(weights, batch)) == pytest.approx(loss, rel=1e-6)
    assert float(small_task.potential.energy(weights, batch)) == pytest.approx(loss + regularizer, rel=1e-6)
    assert float(small_task.potential.regularizer(weights)) == pytest.approx(regularizer, rel=1e-5)
    error = float(small_task.potential.per_example_error(weights, batch).mean())
    assert error == pytest.approx(np.mean(logits.argmax(axis=1) != labels), rel=1e-6)


def test_regression_is_half_the_squared_distance():
    line = pl.regression(lambda w, x: w["slope"] * x + w["offset"], weight_decay=2.0)
    weights = {"slope": jnp.asarray(2.0), "offset": jnp.asarray(1.0)}
    x, y = jnp.asarray([0.0, 1.0, 2.0]), jnp.asarray([1.0, 2.0, 7.0])
    np.testing.assert_allclose(line.per_example_loss(weights, (x, y)), [0.0, 0.5, 2.0])
    vectors = pl.regression(lambda w, x: w * x)
    np.testing.assert_allclose(vectors.per_example_loss(jnp.asarray(2.0), (jnp.ones((2, 3)), jnp.zeros((2, 3)))), 6.0)
    column = pl.regression(lambda w, x: (w * x)[:, None])
    with pytest.raises(ValueError, match="make them equal"):  # shapes (S, 1) and (S,) would broadcast
        column.check(jnp.asarray(1.0), pl.Dataset(np.ones(5), np.ones(5)))
    assert float(line.energy(weights, (x, y))) == pytest.approx(2.5 / 3 + 2.0 / 4 * 5.0)


GROUPS = {"layer1.*": 20.0, "*.bias": 0.0, "*": 5.0}


def test_groups_with_their_own_decay(small_task):
    weights, train = small_task.weights, small_task.train
    potential = pl.classification(small_task.network.apply, weight_decay=GROUPS)
    decays = {"layer1.kernel": 20, "layer1.bias": 20, "layer2.kernel": 5, "layer3.kernel": 5}
    tensors = dict(trees.named_leaves(weights))
    squares = sum(decay * (np.asarray(tensors[name], np.float64) ** 2).sum() for name, decay in decays.items())
    by_hand = squares / (2 * 364)
    assert float(potential.regularizer(weights)) == pytest.approx(by_hand, rel=1e-6)
    energy, direct = jax.jit(jax.value_and_grad(potential.energy))(weights, train.batch)
    assert float(energy) == pytest.approx(float(potential.loss(weights, train.batch)) + by_hand, rel=1e-6)
    exact, found = jax.jit(
        lambda w: (exact_energy(potential, w, train, 300), minibatch_gradient(potential, w, train.batch))
    )(weights)
    assert float(exact.high) + float(exact.low) == pytest.approx(float(energy), rel=1e-6)
    np.testing.assert_allclose(trees.ravel(found), trees.ravel(direct), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("decay", "message"),
    [
        ({"layer9.*": 1.0, "*": 1.0}, "'layer9.\\*' matches no tensor; the names are layer1.bias"),
        ({"layer1.*": 1.0}, "has no pattern for layer2.bias; add one"),
        ({"*": -1.0}, "negative"),
        ({"*": "much"}, "not a finite number"),
        ({}, "map patterns to numbers"),
    ],
)
def test_bad_groups_are_rejected(small_task, decay, message):
    with pytest.raises(ValueError, match=message):
        pl.classification(small_task.network.apply, weight_decay=decay).check(small_task.weights, small_task.train)


def test_next_token():
    table = np.random.default_rng(0).normal(size=(4, 4))
    tokens, targets = np.asarray([[0, 1, 2, 3], [3, 3, 0, 1]]), np.asarray([[1, 2, 3, 0], [3, 0, 1, 2]])
    potential = pl.next_token(lambda w, x: w["table"][x])
    log_probabilities = log_softmax(table, axis=1)
    by_hand = -log_probabilities[tokens, targets].mean(axis=1)
    wrong = (table.argmax(axis=1)[tokens] != targets).mean(axis=1)
    weights, batch = {"table": jnp.asarray(table, jnp.float32)}, (jnp.asarray(tokens), jnp.asarray(targets))
    np.testing.assert_allclose(potential.per_example_loss(weights, batch), by_hand, rtol=1e-5)
    assert potential.per_example_error is not None
    np.testing.assert_allclose(potential.per_example_error(weights, batch), wrong, rtol=1e-6)
    potential.check(weights, pl.Dataset(tokens, targets))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([[1, 2], [4, 0]], "label 4, out of range for 4 outputs"),
        ([[1.0, 2.0], [0.0, 0.0]], "cast with"),
        ([1, 2], r"targets has .* shape .*integer labels of shape \(3, 2\)"),
    ],
)
def test_bad_tokens_are_rejected(targets, message):
    potential = pl.next_token(lambda w, x: w[x])
    with pytest.raises(ValueError, match=message):
        potential.check(jnp.zeros((4, 4)), pl.Dataset(np.zeros((2, 2), np.int32), np.asarray(targets)))


def test_inputs_and_targets_may_be_pytrees():
    """A loss of two inputs and two targets runs through batches, chunks and observables."""
    rng = np.random.default_rng(0)
    inputs = {"left": rng.normal(size=(40, 2)), "right": rng.normal(size=(40, 3))}
    targets = (rng.normal(size=40), rng.integers(0, 2, size=40))

    def loss(w, batch):
        x, (y, flag) = batch
        return (x["left"] @ w["left"] + x["right"] @ w["right"] - y) ** 2 * (1 + flag)

    dataset = pl.Dataset(inputs, targets)
    weights = {"left": jnp.zeros(2), "right": jnp.zeros(3)}
    potential = pl.Potential(loss, weight_decay=1.0)
    sampler = pl.naive_pseudo_langevin(potential, dataset, batch_size=8, time_step=0.1, subtract_variance=False)
    result = pl.sample(sampler, weights, temperatures=[0.1], num_steps=20, record_every=10, key=0, chunk_size=16)
    by_hand = np.mean(loss(jax.tree.map(lambda w: np.asarray(w[0, 0]), result.weights), (inputs, targets)))
    assert float(result.trace.loss[0, 0, -1]) == pytest.approx(by_hand, rel=1e-5)


def test_the_energy_of_a_subset_is_that_of_the_full_network_up_to_a_constant(small_task):
    """The loss and λ/N, with N of the full network, are the same: only |w|² of the frozen tensors is left out."""
    part = pl.subset(small_task.potential, small_task.weights, "layer3.*")
    moved = jax.tree.map(lambda w: w + 0.3, part.weights)
    full, batch = part.merge(moved), small_task.train.batch
    np.testing.assert_array_equal(full["layer1"]["kernel"], small_task.weights["layer1"]["kernel"])
    np.testing.assert_array_equal(full["layer3"]["kernel"], small_task.weights["layer3"]["kernel"] + 0.3)
    frozen = 5.0 / (2 * 364) * float(trees.squared_norm(part.frozen))
    energy = float(small_task.potential.energy(full, batch))
    assert float(part.potential.energy(moved, batch)) + frozen == pytest.approx(energy, rel=1e-6)
    of_full = trees.ravel(jax.grad(small_task.potential.energy)(full, batch)["layer3"])
    of_part = trees.ravel(jax.grad(part.potential.energy)(moved, batch))
    np.testing.assert_allclose(of_part, of_full, rtol=1e-5, atol=1e-8)
    with pytest.raises(ValueError, match="not the full network"):
        part.merge(full)
    groups = pl.classification(small_task.network.apply, weight_decay=GROUPS)
    part = pl.subset(groups, small_task.weights, "layer3.*")
    stiffness = part.potential.stiffness(part.weights)["layer3"]
    assert stiffness == {"kernel": pytest.approx(5.0 / 364), "bias": 0.0}


def test_a_subset_is_sampled_and_nothing_else_moves(small_task):
    part = pl.subset(small_task.potential, small_task.weights, "layer3.*")
    sampler = pl.full_batch_langevin(part.potential, small_task.train, time_step=0.1)
    options: Any = {"temperatures": [1e-2], "num_steps": 4, "record_every": 2, "observe_examples": 1_000, "key": 0}
    result = pl.sample(sampler, part.weights, **options)
    assert result.num_weights == 44
    assert result.weights["layer1"] == {"kernel": None, "bias": None}
    assert list(result.trace.layer.values) == ["bias", "kernel"]
    full = part.merge(jax.tree.map(lambda w: w[0, 0], result.weights))
    loss = small_task.potential.loss(full, small_task.train.batch)
    assert float(result.trace.loss[0, 0, -1]) == pytest.approx(float(loss), rel=1e-5)
