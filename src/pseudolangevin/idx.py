"""IDX files, the format of MNIST and its siblings: strict reading, plain or gzipped.

    0 0 type ndim | size of every axis, 4 bytes each, big-endian | the numbers, big-endian

Whatever does not hold to the byte is refused: a truncated image file must not become a smaller data set.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GZIP_MAGIC = b"\x1f\x8b"
PARTS = (("train-images", 3), ("train-labels", 1), ("t10k-images", 3), ("t10k-labels", 1))
"""The four files of a data set, and their numbers of axes."""


class IdxFiles(NamedTuple):
    """Images (example, row, column) and labels (example,), as stored: unsigned bytes."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def read_idx(path: str | Path, *, sha256: str | None = None) -> np.ndarray:
    """The array in an IDX file, gzipped or not, in the machine's byte order.

    Args:
        path: the file; whether it is compressed is seen from its first bytes.
        sha256: what the uncompressed contents must hash to, in hexadecimal.
    """
    try:
        with Path(path).open("rb") as stream:
            compressed = stream.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            stream.seek(0)
            if not compressed:
                return _parse(path, stream, sha256, available=os.fstat(stream.fileno()).st_size)
            with gzip.GzipFile(fileobj=stream) as unpacked:
                return _parse(path, unpacked, sha256)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is a damaged gzip file: {error}; fetch it again") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}; give the path of an IDX file") from None
    except (MemoryError, OverflowError):
        raise ValueError(f"{path} does not fit into memory; is it the right file?") from None


def _parse(path: str | Path, stream: BinaryIO | gzip.GzipFile, sha256: str | None, available: int = -1) -> np.ndarray:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or magic[3] == 0:
        raise ValueError(f"{path} is not an IDX file (it begins with the bytes {magic.hex(' ') or 'of nothing'})")
    header = stream.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        raise ValueError(f"{path} is truncated within its header; fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(header, ">u4"))
    dtype = np.dtype(TYPES[magic[2]])
    size = math.prod(shape) * dtype.itemsize
    start = len(magic) + len(header)
    if size == 0:
        raise ValueError(f"{path} holds nothing: its shape is {shape}")
    if 0 <= available < start + size:  # seen before memory is asked for
        raise ValueError(f"{path} is truncated: {available - start} of {size} bytes of data; fetch it again")
    data = stream.read(size)
    if len(data) < size:
        raise ValueError(f"{path} is truncated: {len(data)} of {size} bytes of data; fetch it again")
    if stream.read(1):
        raise ValueError(f"{path} goes on after its {size} bytes of data; fetch it again")
    if sha256 is not None:
        found = hashlib.sha256(magic + header + data).hexdigest()
        if found != sha256:
            raise ValueError(f"{path} has the wrong checksum: sha256 of its contents is {found}, not {sha256}")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def find_file(folder: str | Path, part: str, num_axes: int) -> Path | None:
    """The file of one part, by any of its usual names, unpacked before gzipped; None where there is none."""
    for name in (f"{part}-idx{num_axes}-ubyte", f"{part}.idx{num_axes}-ubyte"):
        for candidate in (Path(folder, name), Path(folder, name + ".gz")):
            if candidate.is_file():
                return candidate
    return None


def read_folder(folder: str | Path, *, num_classes: int = 10, sha256: Mapping[str, str] | None = None) -> IdxFiles:
    """The four files of a data set, checked against each other.

    Args:
        folder: holds train-images-idx3-ubyte, train-labels-idx1-ubyte and the same of t10k, each perhaps with .gz.
        num_classes: labels are 0 … `num_classes` − 1.
        sha256: checksums of the uncompressed contents by part ("train-images" …), where they are known.
    """
    if not Path(folder).is_dir():
        raise ValueError(f"folder = {str(folder)!r} is not a folder; give the one with the IDX files")
    arrays = []
    for part, num_axes in PARTS:
        path = find_file(folder, part, num_axes)
        if path is None:
            raise ValueError(f"{Path(folder, f'{part}-idx{num_axes}-ubyte')}, plain or with .gz, is missing")
        array = read_idx(path, sha256=(sha256 or {}).get(part))
        if array.dtype != np.uint8 or array.ndim != num_axes:
            raise ValueError(
                f"{path} holds {array.dtype} with {array.ndim} axes; {part} are unsigned bytes with {num_axes}"
            )
        arrays.append(array)
    files = IdxFiles(*arrays)
    _check_together(folder, files, num_classes)
    return files


def _check_together(folder: str | Path, files: IdxFiles, num_classes: int) -> None:
    pairs = {
        "train": (files.train_images, files.train_labels),
        "t10k": (files.test_images, files.test_labels),
    }
    for prefix, (images, labels) in pairs.items():
        if len(images) != len(labels):
            raise ValueError(f"{folder}: {len(images)} {prefix} images and {len(labels)} labels; they must be as many")
        if labels.max() >= num_classes:
            raise ValueError(
                f"{folder}: {prefix} labels go up to {labels.max()}, and num_classes = {num_classes} allows "
                f"0 … {num_classes - 1}; raise num_classes, or fetch the file again"
            )
    if files.train_images.shape[1:] != files.test_images.shape[1:]:
        raise ValueError(
            f"{folder}: train images are {files.train_images.shape[1:]} and t10k images "
            f"{files.test_images.shape[1:]} pixels; they must be of one size"
        )
