"""Data that stay in host memory or on disk.

Compiled programs fetch the examples that they ask for. Where it is known beforehand which these are, `prefetch` has
them ready.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .data import Dataset, check_lengths
from .types import Array, Batch


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

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        """No children: nothing of it travels with the arguments of compiled functions."""
        return (), _Itself(self)

    @classmethod
    def tree_unflatten(cls, itself: Any, _: Any) -> StreamedDataset:
        """The object itself."""
        return itself.dataset


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
