"""Data sets of the paper, noisy spin vectors and FashionMNIST, and any images in IDX files."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._trees import Array, Key, check_integer, check_interval
from .dataset import Dataset

PARTS = (("train-images", 3), ("train-labels", 1), ("t10k-images", 3), ("t10k-labels", 1))  # files and numbers of axes
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
CONTENTS_SHA256 = {  # of the uncompressed files
    "train-images": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def spin_vectors(
    key: Key,
    *,
    num_train: int,
    num_test: int,
    dimension: int = 100,
    num_classes: int = 10,
    flip_probability: float = 0.355,
) -> tuple[Dataset, Dataset]:
    """Return noisy copies of random ±1 class vectors (eq:dataset), as a training and a test set.

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
        >>> train, test = pl.tasks.spin_vectors(jax.random.key(0), num_train=55_800, num_test=10_044)
        >>> train.inputs.shape[1], train.inputs.dtype
        (100, dtype('int8'))
    """
    sizes = {"num_train": num_train, "num_test": num_test, "dimension": dimension, "num_classes": num_classes}
    for name, size in sizes.items():
        check_integer(name, size, minimum=1)
    check_interval("flip_probability", flip_probability, 0.0, 0.5, "a larger value only swaps the signs")
    reference_key, train_key, test_key = jax.random.split(key, 3)
    references = _spins(reference_key, 0.5, (num_classes, dimension))

    def noisy_copies(key: Key, num_examples: int) -> Dataset:
        label_key, flip_key = jax.random.split(key)
        labels = jax.random.randint(label_key, (num_examples,), 0, num_classes)
        return Dataset(references[labels] * _spins(flip_key, flip_probability, (num_examples, dimension)), labels)

    return noisy_copies(train_key, num_train), noisy_copies(test_key, num_test)


def _spins(key: Key, probability_of_minus: float, shape: tuple[int, ...]) -> Array:
    return jnp.where(jax.random.bernoulli(key, probability_of_minus, shape), -1, 1).astype(jnp.int8)


def fashion_mnist(*, folder: str | Path | None = None, download: bool = False) -> tuple[Dataset, Dataset]:
    """Return the 60 000 training and 10 000 test images of FashionMNIST as `idx` does, verified by checksums.

    Args:
        folder: where the four IDX files are, plain or gzipped; default: where the Debian package
            dataset-fashion-mnist puts them.
        download: fetch missing files into the folder, or the user's cache; needs pooch.
    """
    if folder is None and all(find_file(DEBIAN_FOLDER, part, num_axes) for part, num_axes in PARTS):
        folder = DEBIAN_FOLDER
    elif download:
        folder = _download(folder)
    elif folder is None:
        remedy = "give the folder with its four IDX files, or allow the download (download = true)"
        package = "install the Debian package dataset-fashion-mnist"
        raise ValueError(f"FashionMNIST is not in {DEBIAN_FOLDER}: {package}, {remedy}")
    return _images(folder, 10, CONTENTS_SHA256)


def idx(*, folder: str | Path, num_classes: int = 10) -> tuple[Dataset, Dataset]:
    """Return training and test images from IDX files (MNIST, KMNIST, your own), their pixels as float32 in [0, 1].

    Args:
        folder: holds train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
            t10k-labels-idx1-ubyte, plain or gzipped (.gz).
        num_classes: labels are 0 … `num_classes` − 1.
    """
    check_integer("num_classes", num_classes, minimum=2, maximum=256, remedy="labels are bytes")
    return _images(folder, num_classes, {})


def _images(folder: str | Path, num_classes: int, sha256: Mapping[str, str]) -> tuple[Dataset, Dataset]:
    """Return the images of a folder, whose files are checked against each other and checksums."""
    if not Path(folder).is_dir():
        raise ValueError(f"folder = {str(folder)!r} is not a folder; give the one with the IDX files")
    arrays = []
    for part, num_axes in PARTS:
        if (path := find_file(folder, part, num_axes)) is None:
            raise ValueError(f"{Path(folder, f'{part}-idx{num_axes}-ubyte')}, plain or with .gz, is missing")
        arrays.append(read_idx(path, num_axes, sha256.get(part)))
    sets = []
    for images, labels in (arrays[:2], arrays[2:]):
        if len(images) != len(labels) or images.shape[1:] != arrays[0].shape[1:]:
            found = f"{len(labels)} labels and images of shape {images.shape}"
            raise ValueError(
                f"{folder}: {found}; every image must have a label, and all the size {arrays[0].shape[1:]}"
            )
        if labels.max() >= num_classes:
            remedy = "raise num_classes, or fetch the file again"
            raise ValueError(f"{folder}: labels go up to {labels.max()}, and num_classes = {num_classes}; {remedy}")
        pixels = images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
        sets.append(Dataset(pixels, labels.astype(np.int32)))
    return sets[0], sets[1]


def read_idx(path: Path, num_axes: int, sha256: str | None = None) -> np.ndarray:
    """Return the unsigned bytes in an IDX file, gzipped or not.

    The format is: 0 0 8 num_axes | size of every axis, 4 bytes each, big-endian | the bytes. `sha256` is the hash of
    the uncompressed contents.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, MemoryError, zlib.error, EOFError) as error:  # OSError: damaged gzip headers as well
        raise ValueError(f"{path} cannot be read: {error or 'too large for the memory'}; fetch it again") from None
    start = 4 + 4 * num_axes
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if content[:4] != bytes([0, 0, 8, num_axes]) or not len(content) - start == math.prod(shape) > 0:
        found = f"it has {len(content)} bytes and begins with {content[:start].hex(' ') or 'nothing'}"
        expected = f"a complete IDX file of unsigned bytes with {num_axes} axes"
        raise ValueError(f"{path} is not {expected}: {found}; fetch it again")
    if sha256 is not None and (checksum := hashlib.sha256(content).hexdigest()) != sha256:
        why = f"has the wrong checksum: sha256 of its contents is {checksum}, not {sha256}"
        raise ValueError(f"{path} {why}; delete it and fetch it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def find_file(folder: str | Path, part: str, num_axes: int) -> Path | None:
    """Return the file of one part by any of its usual names, or None."""
    names = (f"{part}{mark}idx{num_axes}-ubyte{suffix}" for mark in "-." for suffix in ("", ".gz"))
    return next((path for name in names if (path := Path(folder, name)).is_file()), None)


def _download(folder: str | Path | None) -> Path:
    """Fetch missing files; a file gets its final name only when complete."""
    try:
        pooch: Any = importlib.import_module("pooch")
    except ImportError:
        remedy = "install it (`pip install '.[download]'`), or give a folder"
        raise ValueError(f"download = true needs pooch; {remedy}") from None
    source = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
    target = Path(pooch.os_cache("pseudolangevin"), "fashion-mnist") if folder is None else Path(folder)
    for part, num_axes in PARTS:
        if find_file(target, part, num_axes):
            continue
        name = f"{part}-idx{num_axes}-ubyte.gz"
        try:
            pooch.retrieve(source + name, known_hash=None, fname=name, path=target)
        except OSError as error:  # errors of the network as well
            why = " ".join(str(error).split())
            raise ValueError(f"{name} could not be fetched from {source}: {why}; give a folder with it") from None
    return target
