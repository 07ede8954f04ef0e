"""Data sets to study: the paper's noisy spin vectors and projected FashionMNIST, and any other IDX images."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .checks import check_integer, check_interval
from .data import Dataset
from .fashion import read_fashion_mnist
from .idx import IdxFiles, read_folder
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


class Splits(NamedTuple):
    """Images for training, for early stopping, and for the last word."""

    train: Dataset
    validation: Dataset | None
    """None where no images were set aside."""
    test: Dataset


def fashion_mnist(
    key: Key,
    *,
    folder: str | Path | None = None,
    projected: bool = True,
    dimension: int = 100,
    num_validation: int = 10_000,
    download: bool = False,
) -> Splits:
    """FashionMNIST as in the paper: 50 000 images to train on, 10 000 to validate, 10 000 to test, in ten classes.

    Projected, an image x becomes the signs of `dimension` random sums of its pixels (eq:projectedFMNIST),

        x̃_k = sign(Σ_ij x_ij·P_ijk),    P_ijk = ±1 with equal probability.

    Pixels count as stored, 0 … 255, and are not centred; a sum that is exactly zero has the sign 0. The sums are exact
    integers. Projected inputs are int8. Otherwise an input is the 784 pixels in a row as float32 in [0, 1].

    Args:
        key: random key of the projection.
        folder: where the four IDX files are, plain or gzipped; default: where the Debian package
            dataset-fashion-mnist puts them.
        projected: whether the network sees random projections, as in the paper, or the pixels.
        dimension: components of a projected image, d.
        num_validation: how many of the 60 000 images, the last ones, are set aside for validation.
        download: fetch files that are not there (into the folder, or the user's cache) and check them; needs pooch.

    Example:
        >>> train, validation, test = fashion_mnist(jax.random.key(0))  # doctest: +SKIP
        >>> train.inputs.shape, train.inputs.dtype  # doctest: +SKIP
        ((50000, 100), dtype('int8'))
    """
    files = read_fashion_mnist(folder, download=download)
    return _splits(key, files, projected, dimension, num_validation)


def idx(
    key: Key,
    *,
    folder: str | Path,
    projected: bool = False,
    dimension: int = 100,
    num_classes: int = 10,
    num_validation: int = 0,
) -> Splits:
    """Images in IDX files (MNIST, KMNIST, your own), as `fashion_mnist` treats its own.

    Args:
        key: random key of the projection.
        folder: holds train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
            t10k-labels-idx1-ubyte, plain or gzipped (.gz).
        projected: whether inputs are signs of random projections, or the pixels in [0, 1].
        dimension: components of a projected image, d.
        num_classes: labels are 0 … `num_classes` − 1.
        num_validation: how many of the training images, the last ones, are set aside for validation.

    Example:
        >>> train, _, test = idx(jax.random.key(0), folder="mnist")  # doctest: +SKIP
    """
    check_integer("num_classes", num_classes, minimum=2, maximum=256, remedy="labels are bytes")
    return _splits(key, read_folder(folder, num_classes=num_classes), projected, dimension, num_validation)


def _splits(key: Key, files: IdxFiles, projected: bool, dimension: int, num_validation: int) -> Splits:
    num_images = len(files.train_images)
    check_integer(
        "num_validation", num_validation, minimum=0, maximum=num_images - 1, remedy="leave images to train on"
    )
    check_integer("dimension", dimension, minimum=1)
    pixels = [images.reshape(len(images), -1) for images in (files.train_images, files.test_images)]
    if projected:
        projection = np.asarray(_spins(key, 0.5, (pixels[0].shape[1], dimension)), np.float32)
        inputs = [_signs(images, projection) for images in pixels]
    else:
        inputs = [images.astype(np.float32) / np.float32(255) for images in pixels]
    labels, test_labels = (labels.astype(np.int32) for labels in (files.train_labels, files.test_labels))
    num_train = num_images - num_validation
    held_out = Dataset(inputs[0][num_train:], labels[num_train:]) if num_validation else None
    return Splits(Dataset(inputs[0][:num_train], labels[:num_train]), held_out, Dataset(inputs[1], test_labels))


def _signs(images: np.ndarray, projection: np.ndarray) -> np.ndarray:
    # Sums of up to 65 536 bytes are integers below 2²⁴, which float32 holds exactly in whatever order they are added.
    exact = projection if images.shape[1] <= 2**16 else projection.astype(np.float64)
    return np.sign(images.astype(exact.dtype) @ exact).astype(np.int8)
