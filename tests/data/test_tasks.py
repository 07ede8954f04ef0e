"""Spin vectors have the right statistics, and IDX files are read as written or rejected."""

import gzip
import hashlib
import importlib
import struct
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin.data import tasks

FLIP = 0.355


def test_spin_vectors_are_flipped_copies_of_references():
    sets = pl.tasks.spin_vectors(jax.random.key(0), num_train=20_000, num_test=10_000, flip_probability=FLIP)
    inputs, labels = np.asarray(sets[0].inputs, np.float64), np.asarray(sets[0].targets)
    references = np.stack([np.sign(inputs[labels == k].mean(axis=0)) for k in range(10)])
    assert abs(references.mean()) < 3 / np.sqrt(references.size)
    for dataset, num in zip(sets, (20_000, 10_000), strict=True):
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


def test_the_same_key_gives_the_same_data():
    one, same, other = (pl.tasks.spin_vectors(jax.random.key(seed), num_train=50, num_test=50) for seed in (5, 5, 6))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    for different in (other[0], one[1]):
        assert (np.asarray(one[0].inputs) != np.asarray(different.inputs)).any()


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


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
    "empty": (IMAGES, lambda b: b"", "is not an IDX file"),
    "truncated": (IMAGES, lambda b: b[:-1], r"has 143 bytes of data for the shape \(12, 4, 3\)"),
    "too long": (IMAGES, lambda b: b + b"\0", "has 145 bytes of data"),
    "claims more than there is": (IMAGES, lambda b: b[:4] + b"\xff" * 12 + b[16:], "has 144 bytes"),
    "garbled gzip": (IMAGES, lambda b: gzip.compress(b)[:12] + b"\xff" * 99, "damaged gzip file"),
    "labels for images": (IMAGES, lambda b: encoded(np.zeros(12, np.uint8)), "unsigned bytes with 3 axes.*00 00 08 01"),
    "not bytes": (LABELS, lambda b: encoded(np.zeros(12, ">i4"), 0x0C), "unsigned bytes.*begins with 00 00 0c 01"),
    "too few labels": (LABELS, lambda b: encoded(np.zeros(11, np.uint8)), "12 train images and 11 labels"),
    "labels out of range": (LABELS, lambda b: b[:-1] + b"\x03", "labels go up to 3, and num_classes = 3 allows 0 … 2"),
    "another size": (IMAGES, lambda b: encoded(np.zeros((12, 4, 4), np.uint8)), "must be of one size"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_bad_files_are_rejected_with_one_line(folder, damage):
    name, change, message = DAMAGES[damage]
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if change is not None:
        (folder / name).write_bytes(change(content))
    with pytest.raises(ValueError, match=message) as caught:
        pl.tasks.idx(jax.random.key(0), folder=folder, num_classes=3)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_missing_folder_and_an_unreadable_file_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        pl.tasks.idx(jax.random.key(0), folder=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="cannot be read"):
        tasks.read_idx(tmp_path, 3)


def test_the_projection_is_that_of_the_paper(tmp_path, arrays):
    """sign(Σ x·P) in exact integers, one P for all images, sign(0) = 0, no centring."""
    arrays[IMAGES][0] = 0  # all its sums are zero
    for name, array in arrays.items():
        (tmp_path / name).write_bytes(encoded(array))
    options: dict[str, Any] = {"folder": tmp_path, "num_classes": 3, "dimension": 40}
    train, validation, test = pl.tasks.idx(jax.random.key(1), projected=True, num_validation=4, **options)
    assert validation is not None
    assert train.inputs.shape == (8, 40)
    assert train.inputs.dtype == np.int8
    assert not np.asarray(train.inputs[0]).any()
    # Unit images (one bright pixel) read off the rows of P; the same key gives the same P.
    unit = np.zeros((12, 4, 3), np.uint8)
    unit.reshape(12, 12)[np.diag_indices(12)] = 1
    (tmp_path / IMAGES).write_bytes(encoded(unit))
    projection = np.asarray(pl.tasks.idx(jax.random.key(1), projected=True, **options).train.inputs, np.int64)
    assert set(np.unique(projection)) == {-1, 1}
    assert abs(projection.mean()) < 3 / np.sqrt(projection.size)
    for part, images in ((train, arrays[IMAGES][:8]), (validation, arrays[IMAGES][8:])):
        np.testing.assert_array_equal(part.inputs, np.sign(images.reshape(-1, 12).astype(np.int64) @ projection))
    pixels = arrays["t10k-images-idx3-ubyte"].reshape(-1, 12).astype(np.int64)
    np.testing.assert_array_equal(test.inputs, np.sign(pixels @ projection))
    np.testing.assert_array_equal(validation.targets, arrays[LABELS][8:])
    other = pl.tasks.idx(jax.random.key(2), projected=True, **options)
    assert (np.asarray(other.train.inputs) != projection).any()


def test_pixels_are_in_the_unit_interval(folder, arrays):
    (folder / LABELS).rename(folder / "train-labels.idx1-ubyte")  # the name that some copies have
    train, validation, test = pl.tasks.idx(jax.random.key(0), folder=folder, num_classes=3)
    assert validation is None
    np.testing.assert_allclose(train.inputs, arrays[IMAGES].reshape(12, 12) / 255, rtol=1e-6)
    assert train.inputs.dtype == np.float32
    np.testing.assert_array_equal(test.targets, arrays["t10k-labels-idx1-ubyte"])
    with pytest.raises(ValueError, match="num_validation = 12"):
        pl.tasks.idx(jax.random.key(0), folder=folder, num_classes=3, num_validation=12)


@pytest.fixture
def small_fashion(folder, arrays, monkeypatch):
    """A folder with tiny files in place of FashionMNIST."""
    known = {name.rsplit("-", 2)[0]: hashlib.sha256(encoded(array)).hexdigest() for name, array in arrays.items()}
    monkeypatch.setattr(tasks, "CONTENTS_SHA256", known)
    return folder


def test_fashion_mnist_is_found_and_checked(small_fashion, monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "DEBIAN_FOLDER", small_fashion)
    train, validation, test = pl.tasks.fashion_mnist(jax.random.key(0), num_validation=2)
    assert validation is not None
    assert [len(part.targets) for part in (train, validation, test)] == [10, 2, 5]
    content = (small_fashion / IMAGES).read_bytes()
    (small_fashion / IMAGES).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match="train-images-idx3-ubyte has the wrong checksum: sha256"):
        pl.tasks.fashion_mnist(jax.random.key(0), num_validation=2)
    monkeypatch.setattr(tasks, "DEBIAN_FOLDER", tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"install the Debian package .* or allow the download"):
        pl.tasks.fashion_mnist(jax.random.key(0))


def test_downloads_are_checked_and_leave_nothing_half_written(small_fashion, tmp_path, monkeypatch):
    """Files are fetched from a folder in place of the network."""
    pooch = importlib.import_module("pooch")
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    known = {}
    for part, num_axes in tasks.PARTS:
        found = tasks.find_file(small_fashion, part, num_axes)
        assert found is not None
        content = found.read_bytes()
        packed = content if found.suffix == ".gz" else gzip.compress(content)
        (source / f"{part}-idx{num_axes}-ubyte.gz").write_bytes(packed)
        known[part] = hashlib.sha256(packed).hexdigest()
    monkeypatch.setattr(tasks, "ARCHIVE_SHA256", known)

    class Copy:
        def __call__(self, url, output_file, _):
            with open(output_file, "wb") as output:
                output.write((source / url.rsplit("/", 1)[1]).read_bytes())

    monkeypatch.setattr(pooch.core, "choose_downloader", lambda *_, **__: Copy())
    assert len(pl.tasks.fashion_mnist(jax.random.key(0), folder=target, num_validation=2, download=True).train.targets)
    (target / "t10k-labels-idx1-ubyte.gz").unlink()
    monkeypatch.setitem(known, "t10k-labels", "0" * 64)
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.gz could not be fetched .* hash") as caught:
        pl.tasks.fashion_mnist(jax.random.key(0), folder=target, num_validation=2, download=True)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in target.iterdir()) == sorted(
        p.name for p in source.iterdir() if "k-labels" not in p.name
    )
    monkeypatch.setattr(importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(ValueError, match="needs pooch; install it"):
        pl.tasks.fashion_mnist(jax.random.key(0), folder=target, download=True)


@pytest.mark.skipif(not tasks.DEBIAN_FOLDER.is_dir(), reason="needs the Debian package dataset-fashion-mnist")
def test_the_debian_package_is_fashion_mnist():
    train, validation, test = pl.tasks.fashion_mnist(jax.random.key(0), dimension=3)
    assert validation is not None
    assert [len(part.targets) for part in (train, validation, test)] == [50_000, 10_000, 10_000]
    assert (np.bincount(test.targets) == 1_000).all()
    assert (np.bincount(np.concatenate([train.targets, validation.targets])) == 6_000).all()
