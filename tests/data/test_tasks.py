"""Spin vectors have the right statistics, and IDX files are read as written or rejected."""

import gzip
import hashlib
import importlib
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin.data import tasks

FLIP = 0.355


def test_spin_vectors_are_flipped_copies_of_references():
    sets = pl.tasks.spin_vectors(jax.random.key(0), num_train=6_000, num_test=3_000, flip_probability=FLIP)
    inputs, labels = np.asarray(sets[0].inputs, np.float64), np.asarray(sets[0].targets)
    references = np.stack([np.sign(inputs[labels == k].mean(axis=0)) for k in range(10)])
    assert abs(references.mean()) < 3 / np.sqrt(references.size)
    for dataset, num in zip(sets, (6_000, 3_000), strict=True):
        assert (dataset.inputs.shape, dataset.inputs.dtype) == ((num, 100), jnp.int8)
        assert (dataset.targets.shape, dataset.targets.dtype) == ((num,), jnp.int32)
        assert set(np.unique(dataset.inputs)) == {-1, 1}
        flipped = np.asarray(dataset.inputs) != references[np.asarray(dataset.targets)]
        assert abs(flipped.mean() - FLIP) < 3 * np.sqrt(FLIP * (1 - FLIP) / flipped.size)
        # Flips are independent of each other: their number is binomial.
        variance = 100 * FLIP * (1 - FLIP)
        assert abs(flipped.sum(axis=1).var(ddof=1) - variance) < 3 * variance * np.sqrt(2 / num)
        counts = np.bincount(np.asarray(dataset.targets), minlength=10)
        assert abs(((counts - num / 10) ** 2 / (num / 10)).sum() - 9) < 3 * np.sqrt(18)
    # The nearest reference is the best classifier; its error is about a tenth.
    assert 0.09 < np.mean((inputs @ references.T).argmax(axis=1) != labels) < 0.12


IMAGES, LABELS, TEST_IMAGES = "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte.gz"


def encoded(array: np.ndarray, code: int = 0x08) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        IMAGES: rng.integers(0, 256, (12, 4, 3), np.uint8),
        LABELS: (np.arange(12) % 3).astype(np.uint8),
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (5, 4, 3), np.uint8),
        "t10k-labels-idx1-ubyte": (np.arange(5) % 3).astype(np.uint8),
    }


@pytest.fixture
def folder(tmp_path, arrays):
    """Two files plain, two gzipped."""
    for name, array in arrays.items():
        if name.startswith("train"):
            (tmp_path / name).write_bytes(encoded(array))
        else:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(encoded(array)))
    return tmp_path


DAMAGES = {
    "missing": (IMAGES, None, "train-images-idx3-ubyte, plain or with .gz, is missing"),
    "truncated": (IMAGES, lambda b: b[:-1], "is not a complete IDX file.*it has 159 bytes"),
    "garbled gzip": (IMAGES, lambda b: gzip.compress(b)[:12] + b"\xff" * 99, "cannot be read"),
    "not bytes": (LABELS, lambda b: encoded(np.zeros(12, ">i4"), 0x0C), "unsigned bytes.*begins with 00 00 0c 01"),
    "labels out of range": (LABELS, lambda b: b[:-1] + b"\x03", "labels go up to 3, and num_classes = 3; raise"),
    "another size": (
        TEST_IMAGES,
        lambda b: gzip.compress(encoded(np.zeros((5, 4, 4), np.uint8))),
        "the size .4, 3",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_bad_files_are_rejected_with_one_line(folder, damage):
    name, change, message = DAMAGES[damage]
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if change is not None:
        (folder / name).write_bytes(change(content))
    with pytest.raises(ValueError, match=message) as caught:
        pl.tasks.idx(folder=folder, num_classes=3)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_missing_folder_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        pl.tasks.idx(folder=tmp_path / "nowhere")


def test_pixels_are_in_the_unit_interval(folder, arrays):
    (folder / LABELS).rename(folder / "train-labels.idx1-ubyte")  # the name that some copies have
    train, test = pl.tasks.idx(folder=folder, num_classes=3)
    np.testing.assert_allclose(train.inputs, arrays[IMAGES].reshape(12, 12) / 255, rtol=1e-6)
    assert (train.inputs.dtype, train.targets.dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(test.targets, arrays["t10k-labels-idx1-ubyte"])


@pytest.fixture
def small_fashion(folder, arrays, monkeypatch):
    """A folder with tiny files in place of FashionMNIST."""
    known = {name.rsplit("-", 2)[0]: hashlib.sha256(encoded(array)).hexdigest() for name, array in arrays.items()}
    monkeypatch.setattr(tasks, "CONTENTS_SHA256", known)
    return folder


def test_fashion_mnist_is_found_and_checked(small_fashion, monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "DEBIAN_FOLDER", small_fashion)
    assert [len(part.targets) for part in pl.tasks.fashion_mnist()] == [12, 5]
    content = (small_fashion / IMAGES).read_bytes()
    (small_fashion / IMAGES).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match="train-images-idx3-ubyte has the wrong checksum: sha256"):
        pl.tasks.fashion_mnist()
    monkeypatch.setattr(tasks, "DEBIAN_FOLDER", tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"install the Debian package .* or allow the download"):
        pl.tasks.fashion_mnist()


def test_downloads_are_checked_and_leave_nothing_half_written(small_fashion, tmp_path, monkeypatch):
    """Files are fetched from a folder in place of the network."""
    pooch = importlib.import_module("pooch")
    target = tmp_path / "target"

    def copy(url, output_file, _):
        part = url.rsplit("/", 1)[1].rsplit("-idx", 1)[0]
        found = tasks.find_file(small_fashion, part, dict(tasks.PARTS)[part])
        Path(output_file).write_bytes(found.read_bytes() if found else b"half")
        if found is None:
            raise OSError("the network is gone")

    monkeypatch.setattr(pooch.core, "choose_downloader", lambda *_, **__: copy)
    assert len(pl.tasks.fashion_mnist(folder=target, download=True)[0].targets) == 12
    (target / "t10k-labels-idx1-ubyte.gz").unlink()
    (small_fashion / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.gz could not be fetched .* gone; give") as caught:
        pl.tasks.fashion_mnist(folder=target, download=True)
    assert "\n" not in str(caught.value)
    assert len(list(target.iterdir())) == 3
    monkeypatch.setattr(importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(ValueError, match="needs pooch; install it"):
        pl.tasks.fashion_mnist(folder=target, download=True)


@pytest.mark.skipif(not tasks.DEBIAN_FOLDER.is_dir(), reason="needs the Debian package dataset-fashion-mnist")
def test_the_debian_package_is_fashion_mnist():
    train, test = pl.tasks.fashion_mnist()
    assert (np.bincount(train.targets) == 6_000).all()
    assert (np.bincount(test.targets) == 1_000).all()
