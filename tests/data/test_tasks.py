"""The spin vectors have the statistics they claim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl

FLIP = 0.355


@pytest.fixture(scope="module")
def spins():
    return pl.tasks.spin_vectors(jax.random.key(0), num_train=20_000, num_test=10_000, flip_probability=FLIP)


def majority(dataset: pl.Dataset) -> np.ndarray:
    """The reference of every class, recovered as the sign of the class mean."""
    inputs, labels = np.asarray(dataset.inputs, np.float64), np.asarray(dataset.targets)
    return np.stack([np.sign(inputs[labels == k].mean(axis=0)) for k in range(10)])


def test_shapes_and_types(spins):
    for dataset, num in zip(spins, (20_000, 10_000), strict=True):
        assert dataset.inputs.shape == (num, 100)
        assert dataset.inputs.dtype == jnp.int8
        assert dataset.targets.shape == (num,)
        assert dataset.targets.dtype == jnp.int32
        assert set(np.unique(dataset.inputs)) == {-1, 1}


def test_training_and_test_examples_are_flipped_copies_of_the_same_references(spins):
    references = majority(spins[0])
    np.testing.assert_array_equal(majority(spins[1]), references)
    for dataset in spins:
        flipped = np.asarray(dataset.inputs) != references[np.asarray(dataset.targets)]
        standard_error = np.sqrt(FLIP * (1 - FLIP) / flipped.size)
        assert abs(flipped.mean() - FLIP) < 3 * standard_error


def test_flips_are_independent_of_each_other(spins):
    """The number of flips of an example is binomial."""
    flipped = np.asarray(spins[0].inputs) != majority(spins[0])[np.asarray(spins[0].targets)]
    counts = flipped.sum(axis=1)
    variance = 100 * FLIP * (1 - FLIP)
    assert abs(counts.var(ddof=1) - variance) < 3 * variance * np.sqrt(2 / len(counts))


def test_classes_are_uniform_and_references_balanced(spins):
    counts = np.bincount(np.asarray(spins[0].targets), minlength=10)
    expected = counts.sum() / 10
    assert abs(((counts - expected) ** 2 / expected).sum() - 9) < 3 * np.sqrt(18)
    references = majority(spins[0])
    assert abs(references.mean()) < 3 / np.sqrt(references.size)


def test_the_same_key_gives_the_same_data():
    sizes = {"num_train": 50, "num_test": 20, "dimension": 7, "num_classes": 3}
    (one, one_test), (same, same_test) = (pl.tasks.spin_vectors(jax.random.key(5), **sizes) for _ in range(2))
    np.testing.assert_array_equal(one.inputs, same.inputs)
    np.testing.assert_array_equal(one.targets, same.targets)
    np.testing.assert_array_equal(one_test.inputs, same_test.inputs)
    other, _ = pl.tasks.spin_vectors(jax.random.key(6), **sizes)
    assert (np.asarray(one.inputs) != np.asarray(other.inputs)).any()
    assert (np.asarray(one.inputs)[:20] != np.asarray(one_test.inputs)).any()  # the test set is not the training set


def test_no_flips_give_the_references_themselves():
    train, _ = pl.tasks.spin_vectors(jax.random.key(1), num_train=30, num_test=1, num_classes=2, flip_probability=0.0)
    inputs, labels = np.asarray(train.inputs), np.asarray(train.targets)
    for k in range(2):
        assert len(np.unique(inputs[labels == k], axis=0)) == 1


def test_the_best_classifier_errs_on_about_a_tenth(spins):
    """The nearest reference is Bayes-optimal; the paper chose p_f so that the problem is hard but solvable."""
    references = majority(spins[0])
    scores = np.asarray(spins[0].inputs, np.float64) @ references.T
    error = np.mean(scores.argmax(axis=1) != np.asarray(spins[0].targets))
    assert 0.09 < error < 0.12
