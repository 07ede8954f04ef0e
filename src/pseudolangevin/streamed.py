"""Data that stay in host memory or on disk.

Compiled programs fetch the examples that they ask for. Where it is known beforehand which these are, `prefetch` has
them ready.
"""

from __future__ import annotations

import itertools
import math
from concurrent.futures import Executor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .data import Dataset, check_lengths
from .types import Array, Batch

ALIGNMENT = 64
"""Bytes to whose multiples packed arrays begin."""


@jax.tree_util.register_pytree_node_class
class StreamedDataset(Dataset):
    """A data set that is not kept on the device.

    `inputs` and `targets` are NumPy arrays, memory-mapped ``.npy`` files, Zarr arrays, or pytrees of these. Everywhere
    a `Dataset` is asked for, this one may be given, and the chains are the same. Mini-batches are fetched ahead.

    Example:
        >>> dataset = StreamedDataset(np.ones((4, 3), np.int8), np.array([0, 1, 1, 0]))
        >>> dataset.num_examples
        4
    """

    def __init__(self, inputs: Any, targets: Any) -> None:
        """Check the arrays; they stay where they are."""
        check_lengths(inputs, targets)
        self.inputs, self.targets = inputs, targets

    def take(self, indices: Array) -> Batch:
        """The examples with these indices, fetched when the program comes to it."""
        one = self.shapes(1)
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct((*indices.shape, *a.shape[1:]), a.dtype), one)
        return jax.pure_callback(self.fetch, shapes, indices, vmap_method="expand_dims")

    def chunk(self, start: Array, size: int) -> Batch:
        """`size` examples from `start` on."""
        return self.take(start + jnp.arange(size))

    def fetch(self, indices: Any) -> Batch:
        """The examples with these indices, any shape of them, as NumPy arrays."""
        wanted = np.asarray(indices)
        return jax.tree.map(lambda array, shape: _gather(array, wanted, shape.dtype), self.batch, self.shapes(1))

    def shapes(self, num_examples: int) -> Batch:
        """Shapes and types of a batch of so many examples, as they arrive on the device."""

        def arriving(array: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((num_examples, *array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype))

        return jax.tree.map(arriving, self.batch)

    def head(self, num_examples: int) -> Dataset:
        """The first examples, on the device: they are few."""
        return Dataset(*jax.tree.map(lambda array: np.asarray(array[:num_examples]), self.batch))

    @property
    def bytes_per_example(self) -> int:
        """What an example weighs on the way to the device."""
        return sum(leaf.dtype.itemsize * leaf.size for leaf in jax.tree.leaves(self.shapes(1)))

    def gather_packed(self, indices: np.ndarray, threads: Executor, num_pieces: int) -> np.ndarray:
        """The examples with these indices, all of one array after those of another, as bytes: one thing to send.

        Rows come from all over the memory, so a thread mostly waits for it; several of them wait at the same time.
        """
        flat = indices.reshape(-1)
        packed = np.empty(self._packed_ends(flat.size)[-1], np.uint8)
        bounds = np.linspace(0, flat.size, num_pieces + 1, dtype=int)
        tasks = []
        leaves = zip(jax.tree.leaves(self.batch), jax.tree.leaves(self.shapes(flat.size)), strict=True)
        for (array, shape), end in zip(leaves, self._packed_ends(flat.size), strict=True):
            size = shape.size * shape.dtype.itemsize
            out = packed[end - _padded(size) :][:size].view(shape.dtype).reshape(shape.shape)
            for first, last in itertools.pairwise(bounds):
                tasks.append(threads.submit(_gather_into, out[first:last], array, flat[first:last]))
        for task in tasks:
            task.result()
        return packed

    def unpack(self, packed: Array, shape: tuple[int, ...]) -> Batch:
        """What `gather_packed` packed, on the device; `shape` is that of the indices."""
        num = math.prod(shape)
        found = []
        leaves, structure = jax.tree.flatten(self.shapes(num))
        for leaf, end in zip(leaves, self._packed_ends(num), strict=True):
            width = leaf.dtype.itemsize
            size = leaf.size * width
            start = end - _padded(size)
            words = packed[start : start + size].reshape((-1, width) if width > 1 else -1)
            values = words != 0 if leaf.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(words, leaf.dtype)
            found.append(values.reshape(*shape, *leaf.shape[1:]))
        return jax.tree.unflatten(structure, found)

    def _packed_ends(self, num_examples: int) -> list[int]:
        """Where the bytes of each array end; they begin at multiples of `ALIGNMENT`."""
        sizes = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.shapes(num_examples))]
        return list(itertools.accumulate(map(_padded, sizes)))

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        """No children: nothing of it travels with the arguments of compiled functions."""
        return (), _Itself(self)

    @classmethod
    def tree_unflatten(cls, itself: Any, _: Any) -> StreamedDataset:
        """The object itself."""
        return itself.dataset


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class _Itself:
    """An object as a constant of a compiled program: equal to nothing but itself."""

    def __init__(self, dataset: StreamedDataset) -> None:
        self.dataset = dataset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.dataset is self.dataset

    def __hash__(self) -> int:
        return id(self.dataset)


def _gather(array: Any, indices: np.ndarray, dtype: Any) -> np.ndarray:
    out = np.empty((indices.size, *array.shape[1:]), dtype)
    _gather_into(out, array, indices.reshape(-1))
    return out.reshape(*indices.shape, *array.shape[1:])


def _gather_into(out: np.ndarray, array: Any, indices: np.ndarray) -> None:
    if isinstance(array, np.ndarray) and array.dtype == out.dtype:
        np.take(array, indices, axis=0, out=out, mode="clip")  # without the interpreter's lock
    elif isinstance(array, np.ndarray):
        out[...] = array[indices]
    else:  # Zarr reads every chunk once when asked for different indices in order
        different, back = np.unique(indices, return_inverse=True)
        out[...] = np.asarray(array.oindex[different])[back]
