"""Data sets to study: the paper's noisy spin vectors."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .checks import check_integer, check_interval
from .data import Dataset
from .types import Array, Key


def spin_vectors(
    key: Key,
    *,
    num_train: int,
    num_test: int,
    dimension: int = 100,
    num_classes: int = 10,
    flip_probability: float = 0.355,
) -> tuple[Dataset, Dataset]:
    """Noisy copies of random ±1 class vectors (eq:dataset), as a training and a test set.

    Each class has a random reference vector in {±1}^d; an example is its class's reference with every component
    flipped with probability `flip_probability`. Inputs are stored as int8, labels as int32.

    Args:
        key: random key; the same key gives the same references and examples.
        num_train: number of training examples, the paper's P.
        num_test: number of test examples.
        dimension: components of a vector, d.
        num_classes: number of classes, K.
        flip_probability: p_f, at most 0.5 (where the classes are indistinguishable).

    Example:
        >>> train, test = spin_vectors(jax.random.key(0), num_train=55_800, num_test=10_044)
        >>> train.inputs.shape, train.inputs.dtype
        ((55800, 100), dtype('int8'))
    """
    for name, value in [
        ("num_train", num_train),
        ("num_test", num_test),
        ("dimension", dimension),
        ("num_classes", num_classes),
    ]:
        check_integer(name, value, minimum=1)
    check_interval("flip_probability", flip_probability, 0.0, 0.5, "a larger value only swaps the signs")
    reference_key, train_key, test_key = jax.random.split(key, 3)
    references = _spins(reference_key, 0.5, (num_classes, dimension))
    train = _noisy_copies(train_key, references, num_train, flip_probability)
    test = _noisy_copies(test_key, references, num_test, flip_probability)
    return train, test


def _spins(key: Key, probability_of_minus: float, shape: tuple[int, ...]) -> Array:
    return jnp.where(jax.random.bernoulli(key, probability_of_minus, shape), -1, 1).astype(jnp.int8)


def _noisy_copies(key: Key, references: Array, num_examples: int, flip_probability: float) -> Dataset:
    label_key, flip_key = jax.random.split(key)
    labels = jax.random.randint(label_key, (num_examples,), 0, references.shape[0])
    signs = _spins(flip_key, flip_probability, (num_examples, references.shape[1]))
    return Dataset(references[labels] * signs, labels)
