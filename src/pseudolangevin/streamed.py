"""Data that stay in host memory or on disk.

Compiled programs fetch the examples that they ask for. Where it is known beforehand which these are, `prefetch` has
them ready.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .data import Dataset, check_lengths
from .signs import Signs, unpack
from .types import Array, Batch

ALIGNMENT = 64
"""Of memory that JAX shares rather than copies, in bytes."""
PART_BYTES = 2**22
"""A larger array is sent in parts: on an H200, 16 MiB go at 5 GB/s as one and at 37 GB/s in four."""


@jax.tree_util.register_pytree_node_class
class StreamedDataset(Dataset):
    """A data set that is not kept on the device.

    `inputs` and `targets` are NumPy arrays, memory-mapped ``.npy`` files, Zarr arrays, `Signs`, or pytrees of these.
    Everywhere a `Dataset` is asked for, this one may be given, and the chains are the same. Mini-batches are fetched
    ahead.

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
        shapes = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct((*indices.shape, *a.shape[1:]), a.dtype), self._sent_shapes
        )
        return self._arrived(jax.pure_callback(self.fetch, shapes, indices, vmap_method="expand_dims"))

    def chunk(self, start: Array, size: int) -> Batch:
        """`size` examples from `start` on."""
        return self.take(start + jnp.arange(size))

    def fetch(self, indices: Any) -> Batch:
        """The examples with these indices, any shape of them, as NumPy arrays; signs as bits."""
        wanted = np.asarray(indices)
        return jax.tree.map(lambda array, shape: _gather(array, wanted, shape.dtype), self._sent, self._sent_shapes)

    def fetch_in_parts(self, indices: np.ndarray) -> list[list[np.ndarray]]:
        """The examples with indices (chain, step, example), every array in parts along the steps; see `join_parts`.

        Rows come from all over the memory and a thread mostly waits for it. So XLA's threads for CPUs gather them, all
        at once and without the interpreter; NumPy does where an array is not in memory as the device has it.
        """
        num_parts = [self._num_parts(shape, indices.shape) for shape in jax.tree.leaves(self._sent_shapes)]
        if self._shared_with_cpu is None:
            gathered = jax.tree.leaves(self.fetch(indices))
            return [np.array_split(leaf, n, axis=1) for leaf, n in zip(gathered, num_parts, strict=True)]
        parts = _take(tuple(self._shared_with_cpu), jax.device_put(indices, _cpu()), tuple(num_parts))
        return [[np.asarray(part) for part in leaf] for leaf in parts]

    def join_parts(self, parts: Sequence[Sequence[Array]]) -> Batch:
        """The batches of `fetch_in_parts`, on the device."""
        joined = [jnp.concatenate(list(leaf), axis=1) for leaf in parts]
        return self._arrived(jax.tree.unflatten(jax.tree.structure(self._sent_shapes), joined))

    @staticmethod
    def _num_parts(shape: jax.ShapeDtypeStruct, indices: tuple[int, ...]) -> int:
        size = math.prod(indices) * math.prod(shape.shape[1:]) * shape.dtype.itemsize
        return max(1, min(indices[1], -(-size // PART_BYTES)))

    @cached_property
    def _shared_with_cpu(self) -> list[Array] | None:
        """The arrays as arrays of JAX for CPUs that share their memory; None where one cannot."""
        found = []
        for array, shape in zip(jax.tree.leaves(self._sent), jax.tree.leaves(self._sent_shapes), strict=True):
            if not isinstance(array, np.ndarray) or array.dtype != shape.dtype or not array.flags.c_contiguous:
                return None
            if array.ctypes.data % ALIGNMENT:
                return None  # it would be copied, and it may be larger than the memory
            found.append(jax.device_put(array, _cpu()))
            if found[-1].unsafe_buffer_pointer() != array.ctypes.data:
                return None
        return found

    def shapes(self, num_examples: int) -> Batch:
        """Shapes and types of a batch of so many examples on the device."""
        return _shapes(self.batch, num_examples)

    @cached_property
    def _sent(self) -> Batch:
        """The arrays that examples are gathered from."""
        return jax.tree.map(lambda array: array.bits if isinstance(array, Signs) else array, self.batch)

    @cached_property
    def _sent_shapes(self) -> Batch:
        """Shapes and types of one example on its way."""
        return _shapes(self._sent, 1)

    def _arrived(self, batch: Batch) -> Batch:
        """A batch that was sent, as it is used."""
        return jax.tree.map(
            lambda array, sent: unpack(sent, array.shape[1]) if isinstance(array, Signs) else sent, self.batch, batch
        )

    def head(self, num_examples: int) -> Dataset:
        """The first examples, on the device: they are few."""
        return Dataset(*jax.tree.map(lambda array: np.asarray(array[:num_examples]), self.batch))

    @property
    def bytes_per_example(self) -> int:
        """What an example weighs on the device."""
        return sum(leaf.dtype.itemsize * leaf.size for leaf in jax.tree.leaves(self.shapes(1)))

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        """No children: nothing of it travels with the arguments of compiled functions."""
        return (), _Itself(self)

    @classmethod
    def tree_unflatten(cls, itself: Any, _: Any) -> StreamedDataset:
        """The object itself."""
        return itself.dataset


def _shapes(arrays: Any, num_examples: int) -> Any:
    """What a batch of so many rows of these arrays is for JAX, which has no 64-bit numbers unless asked."""

    def shape(array: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((num_examples, *array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype))

    return jax.tree.map(shape, arrays)


class _Itself:
    """An object as a constant of a compiled program: equal to nothing but itself."""

    def __init__(self, dataset: StreamedDataset) -> None:
        self.dataset = dataset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.dataset is self.dataset

    def __hash__(self) -> int:
        return id(self.dataset)


def _gather(array: Any, indices: np.ndarray, dtype: Any) -> np.ndarray:
    flat = indices.reshape(-1)
    if isinstance(array, np.ndarray):
        out = np.take(array, flat, axis=0, mode="clip").astype(dtype, copy=False)
    else:  # Zarr reads every chunk once when asked for different indices in order
        different, back = np.unique(flat, return_inverse=True)
        out = np.asarray(array.oindex[different])[back].astype(dtype, copy=False)
    return out.reshape(*indices.shape, *array.shape[1:])


def _cpu() -> jax.Device:
    return jax.local_devices(backend="cpu")[0]


@partial(jax.jit, static_argnames="num_parts")
def _take(arrays: Sequence[Array], indices: Array, num_parts: Sequence[int]) -> list[list[Array]]:
    """Examples (chain, step, example) of every array, in so many parts along the steps."""
    return [
        [jnp.take(array, part, axis=0, mode="clip") for part in jnp.array_split(indices, n, axis=1)]
        for array, n in zip(arrays, num_parts, strict=True)
    ]
