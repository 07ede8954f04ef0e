"""Users' own arrays: .npz and .npy files, never pickled."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import zarr

from ..data import Dataset
from ..streamed import StreamedDataset
from ..trees import named_leaves
from ..types import Weights

NPY_MAGIC = b"\x93NUMPY"


def read_dataset(file: str | None, inputs: str | None, targets: str | None, *, stream: bool = False) -> Dataset | None:
    """A data set from one .npz file or two .npy files; None where no file is named.

    With `stream`, the two may be folders of Zarr arrays as well, and stay where they are.
    """
    if file is not None:
        archive = _load(file)
        if not isinstance(archive, dict):
            raise ValueError(f"{file} holds one array; give it as inputs, with targets beside it, or save both as .npz")
        for name in ("inputs", "targets"):
            if name not in archive:
                raise ValueError(f"{file} has no array {name!r} (it has {sorted(archive)}); save inputs and targets")
        return Dataset(archive["inputs"], archive["targets"])
    if inputs is None or targets is None:
        return None
    if stream:
        return StreamedDataset(_stored_array(inputs), _stored_array(targets))
    return Dataset(_one_array(inputs), _one_array(targets))


def _stored_array(file: str) -> Any:
    if not Path(file).is_dir():
        return _one_array(file)
    try:
        return zarr.open_array(file, mode="r")
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{file} is not a Zarr array: {why}; give its folder, or a .npy file") from None


def read_weights(file: str, shape: Weights) -> Weights:
    """Weights from an .npz file with one array per tensor, named by its path; leading axes are allowed."""
    archive = _load(file)
    names = [name for name, _ in named_leaves(shape)]
    if not isinstance(archive, dict) or set(archive) != set(names):
        found = sorted(archive) if isinstance(archive, dict) else "one array without a name"
        raise ValueError(f"{file} must hold exactly the arrays {names}; it holds {found}")
    return jax.tree.unflatten(jax.tree.structure(shape), [jax.numpy.asarray(archive[name]) for name in names])


def _one_array(file: str) -> np.ndarray:
    loaded = _load(file)
    if isinstance(loaded, dict):
        raise ValueError(f"{file} is an .npz archive; name it with `file`, or give .npy files")
    return loaded


def _load(file: str) -> np.ndarray | dict[str, np.ndarray]:
    try:
        with Path(file).open("rb") as stream:
            # .npy files are mapped, so that only what is used is read. Pickled objects are refused.
            if stream.read(len(NPY_MAGIC)) == NPY_MAGIC:
                return np.load(file, mmap_mode="r", allow_pickle=False)
            stream.seek(0)
            archive = np.load(stream, allow_pickle=False)
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise ValueError(
            f"{file} cannot be read: {error.strerror or error}; give the path of a .npz or .npy file"
        ) from None
    except (
        ValueError,
        EOFError,
        MemoryError,
        zipfile.BadZipFile,
        KeyError,
        TypeError,
        SyntaxError,
        OverflowError,
    ) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{file} is not a sound .npz or .npy file of plain numbers: {why}; save it again with numpy"
        ) from None
