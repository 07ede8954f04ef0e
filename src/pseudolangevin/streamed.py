"""Data that stay in host memory or on disk.

Compiled programs fetch the examples that they ask for. Where it is known beforehand which these are, `prefetch` has
them ready.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from .data import Dataset, check_lengths
from .signs import Signs, unpack
from .types import Array, Batch

THREADS = max(2, min(8, (os.cpu_count() or 2) // 2))
"""That gather examples; more would be in the way of the one that launches the steps."""
PART_BYTES = 2**22
"""A larger array is sent in parts: on an H200, 16 MiB go at 5 GB/s as one and at 37 GB/s in four."""


@jax.tree_util.register_pytree_node_class
class StreamedDataset(Dataset):
    """A data set that is not kept on the device.

    `inputs` and `targets` are NumPy arrays, memory-mapped ``.npy`` files, Zarr arrays, `Signs`, or pytrees of these.
    Everywhere a `Dataset` is asked for, this one may be given, and the chains are the same; but not beside the
    validation set of `adam`. Mini-batches are fetched ahead.

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
        return self.arrived(jax.pure_callback(self.fetch, shapes, indices, vmap_method="expand_dims"))

    def chunk(self, start: Array, size: int) -> Batch:
        """`size` examples from `start` on."""
        return self.take(start + jnp.arange(size))

    def fetch(self, indices: Any) -> Batch:
        """The examples with these indices, any shape of them, as NumPy arrays; signs as bits."""
        wanted = np.asarray(indices)
        return jax.tree.map(lambda array, shape: _gather(array, wanted, shape.dtype), self._sent, self._sent_shapes)

    def part_lengths(self, num_chains: int, num_steps: int, batch_size: int) -> list[int]:
        """Steps of each part that a block of mini-batches is fetched in: enough parts for every thread, and none large.

        Rows come from all over the memory, and a thread mostly waits for it.
        """
        per_step = num_chains * batch_size * self.bytes_per_example
        num_parts = min(num_steps, max(THREADS, -(-num_steps * per_step // PART_BYTES)))
        return [len(part) for part in np.array_split(np.arange(num_steps), num_parts)]

    def join_parts(self, parts: Sequence[Batch]) -> Batch:
        """Parts of a block, (chain, step, example, …) each, fetched with `fetch`, as one; as they were sent."""
        return jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=1), *parts)

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

    def arrived(self, batch: Batch) -> Batch:
        """A batch that was sent, as it is used."""
        return jax.tree.map(
            lambda array, sent: unpack(sent, array.shape[1]) if isinstance(array, Signs) else sent, self.batch, batch
        )

    def head(self, num_examples: int) -> Dataset:
        """The first examples, on the device: they are few."""
        return Dataset(*jax.tree.map(lambda array: np.asarray(array[:num_examples]), self.batch))

    @property
    def bytes_per_example(self) -> int:
        """What an example weighs on its way."""
        return sum(_bytes(shape) for shape in jax.tree.leaves(self._sent_shapes))

    def with_mesh(self, mesh: Mesh) -> Dataset:
        """Itself: every device asks for the examples that it needs."""
        return self

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


def _bytes(shape: jax.ShapeDtypeStruct) -> int:
    return shape.dtype.itemsize * math.prod(shape.shape)


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
