"""Data sets of the paper, noisy spin vectors and projected FashionMNIST, and any images in IDX files."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._trees import Array, Key, check_integer, check_interval
from .dataset import Dataset

PARTS = (("train-images", 3), ("train-labels", 1), ("t10k-images", 3), ("t10k-labels", 1))  # files and numbers of axes
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
CONTENTS_SHA256 = {  # of the uncompressed files; Debian compresses them again
    "train-images": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
ARCHIVE_SHA256 = {  # of the gzip files that a download fetches
    "train-images": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
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


class Splits(NamedTuple):
    """Training, validation and test images; no validation images if none were set aside."""

    train: Dataset
    validation: Dataset | None
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
    """Return FashionMNIST as in the paper: 50 000 training, 10 000 validation and 10 000 test images in ten classes.

    Projected, an image x becomes the signs of `dimension` random sums of its pixels 0 … 255 (eq:projectedFMNIST),

        x̃_k = sign(Σ_ij x_ij·P_ijk),    P_ijk = ±1 with equal probability,    sign(0) = 0,

    as int8. Otherwise an input is the 784 pixels in a row as float32 in [0, 1].

    Args:
        key: random key of the projection.
        folder: where the four IDX files are, plain or gzipped; default: where the Debian package
            dataset-fashion-mnist puts them.
        projected: whether the network sees random projections, as in the paper, or the pixels.
        dimension: components of a projected image, d.
        num_validation: number of the 60 000 images, taken from the end, that are set aside for validation.
        download: fetch missing files into the folder, or the user's cache, and verify them; needs pooch.
    """
    if folder is None and all(find_file(DEBIAN_FOLDER, part, num_axes) for part, num_axes in PARTS):
        folder = DEBIAN_FOLDER
    elif download:
        folder = _download(folder)
    elif folder is None:
        remedy = "give the folder with its four IDX files, or allow the download (download = true)"
        package = "install the Debian package dataset-fashion-mnist"
        raise ValueError(f"FashionMNIST is not in {DEBIAN_FOLDER}: {package}, {remedy}")
    return _splits(key, _read_folder(folder, sha256=CONTENTS_SHA256), projected, dimension, num_validation)


def idx(
    key: Key,
    *,
    folder: str | Path,
    projected: bool = False,
    dimension: int = 100,
    num_classes: int = 10,
    num_validation: int = 0,
) -> Splits:
    """Return images from IDX files (MNIST, KMNIST, your own), split and projected as `fashion_mnist` does.

    Args:
        key: random key of the projection.
        folder: holds train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
            t10k-labels-idx1-ubyte, plain or gzipped (.gz).
        projected: whether inputs are signs of random projections, or the pixels in [0, 1].
        dimension: components of a projected image, d.
        num_classes: labels are 0 … `num_classes` − 1.
        num_validation: number of training images, taken from the end, that are set aside for validation.
    """
    check_integer("num_classes", num_classes, minimum=2, maximum=256, remedy="labels are bytes")
    return _splits(key, _read_folder(folder, num_classes), projected, dimension, num_validation)


def _splits(key: Key, arrays: list[np.ndarray], projected: bool, dimension: int, num_validation: int) -> Splits:
    images, labels, test_images, test_labels = arrays
    check_integer("num_validation", num_validation, minimum=0, maximum=len(images) - 1, remedy="leave some to train on")
    check_integer("dimension", dimension, minimum=1)
    pixels = [each.reshape(len(each), -1) for each in (images, test_images)]
    if projected:
        # Sums of up to 65 536 bytes are integers below 2²⁴, exact in float32 in whatever order they are added.
        projection = np.asarray(_spins(key, 0.5, (pixels[0].shape[1], dimension)), np.float32)
        inputs = [np.sign(each.astype(np.float32) @ projection).astype(np.int8) for each in pixels]
    else:
        inputs = [each.astype(np.float32) / np.float32(255) for each in pixels]
    classes, num_train = labels.astype(np.int32), len(images) - num_validation
    held_out = Dataset(inputs[0][num_train:], classes[num_train:]) if num_validation else None
    train = Dataset(inputs[0][:num_train], classes[:num_train])
    return Splits(train, held_out, Dataset(inputs[1], test_labels.astype(np.int32)))


def read_idx(path: Path, num_axes: int, sha256: str | None = None) -> np.ndarray:
    """Return the unsigned bytes in an IDX file, gzipped or not.

    The format is: 0 0 8 num_axes | size of every axis, 4 bytes each, big-endian | the bytes. `sha256` is the hash of
    the uncompressed contents.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is a damaged gzip file: {error}; fetch it again") from None
    except (OSError, MemoryError) as error:
        raise ValueError(f"{path} cannot be read: {error or 'too large for the memory'}; fetch it again") from None
    if content[:4] != bytes([0, 0, 8, num_axes]):
        expected = f"an IDX file of unsigned bytes with {num_axes} axes, which begins with 00 00 08 0{num_axes}"
        raise ValueError(f"{path} is not {expected}: it begins with {content[:4].hex(' ') or 'nothing'}")
    start = 4 + 4 * num_axes
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if not (present := len(content) - start) == math.prod(shape) > 0:
        raise ValueError(f"{path} has {max(present, 0)} bytes of data for the shape {shape}; fetch it again")
    if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise ValueError(f"{path} has the wrong checksum: sha256 of its contents is {found}, not {sha256}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def find_file(folder: str | Path, part: str, num_axes: int) -> Path | None:
    """Return the file of one part by any of its usual names, or None."""
    names = (f"{part}{mark}idx{num_axes}-ubyte{suffix}" for mark in "-." for suffix in ("", ".gz"))
    return next((path for name in names if (path := Path(folder, name)).is_file()), None)


def _read_folder(
    folder: str | Path, num_classes: int = 10, sha256: Mapping[str, str] | None = None
) -> list[np.ndarray]:
    """Return images and labels, then test images and test labels, checked against each other and checksums."""
    if not Path(folder).is_dir():
        raise ValueError(f"folder = {str(folder)!r} is not a folder; give the one with the IDX files")
    arrays = []
    for part, num_axes in PARTS:
        if (path := find_file(folder, part, num_axes)) is None:
            raise ValueError(f"{Path(folder, f'{part}-idx{num_axes}-ubyte')}, plain or with .gz, is missing")
        arrays.append(read_idx(path, num_axes, (sha256 or {}).get(part)))
    for prefix, images, labels in (("train", arrays[0], arrays[1]), ("t10k", arrays[2], arrays[3])):
        if len(images) != len(labels):
            raise ValueError(f"{folder}: {len(images)} {prefix} images and {len(labels)} labels; they must be as many")
        if labels.max() >= num_classes:
            allowed = f"num_classes = {num_classes} allows 0 … {num_classes - 1}"
            remedy = "raise num_classes, or fetch the file again"
            raise ValueError(f"{folder}: {prefix} labels go up to {labels.max()}, and {allowed}; {remedy}")
        if images.shape[1:] != arrays[0].shape[1:]:
            found = f"train images are {arrays[0].shape[1:]} and t10k images {images.shape[1:]} pixels"
            raise ValueError(f"{folder}: {found}; they must be of one size")
    return arrays


def _download(folder: str | Path | None) -> Path:
    """Fetch missing files; a file gets its final name only when complete and verified."""
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
            pooch.retrieve(source + name, known_hash=f"sha256:{ARCHIVE_SHA256[part]}", fname=name, path=target)
        except (OSError, ValueError) as error:  # the network's errors are OSErrors; a wrong checksum is a ValueError
            why = " ".join(str(error).split())
            raise ValueError(f"{name} could not be fetched from {source}: {why}; give a folder with it") from None
    return target
