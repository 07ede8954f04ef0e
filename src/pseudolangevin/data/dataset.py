"""The data set: examples, mini-batches, and folds over all examples in chunks of bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._random import draw_indices
from .._trees import Array, Batch, Key

Carry = TypeVar("Carry")
CHECKED = 2**16  # examples; data on disk may be larger than memory


@jax.tree_util.register_pytree_node_class
class Dataset:
    """Inputs and targets: arrays, or pytrees of arrays, with one leading example axis.

    A data set is a pytree, so that compiled functions take it as an argument and never as a constant.

    Example:
        >>> dataset = Dataset(np.ones((4, 3)), np.array([0, 1, 1, 0]))
        >>> dataset.num_examples
        4
    """

    inputs: Any
    targets: Any
    mesh: Mesh | None = None
    """Devices that the examples are split over (see `placement`); None for a single device."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        """Check the arrays and move them to the default device."""
        check_lengths(inputs, targets)
        self.inputs, self.targets = jax.tree.map(jnp.asarray, (inputs, targets))

    @classmethod
    def from_torch(cls, dataset: Any) -> Dataset:
        """Return the examples of a `torch.utils.data.Dataset`, or of a `DataLoader`, as one data set in memory.

        Examples are pairs (input, target) of tensors, arrays or numbers. Transforms are applied once, so they must not
        be random: an augmented loss is no fixed function of the weights.

        Example:
            >>> Dataset.from_torch([(np.ones(3), 0), (np.zeros(3), 1)]).num_examples
            2
        """
        if hasattr(dataset, "batch_size") and hasattr(dataset, "dataset"):  # a DataLoader may shuffle and drop
            dataset = dataset.dataset
        try:
            pairs = [(x, y) for x, y in (dataset[index] for index in range(len(dataset)))]
            inputs, targets = (np.stack([np.asarray(one) for one in column]) for column in zip(*pairs, strict=True))
        except (TypeError, ValueError, IndexError) as error:
            remedy = "every dataset[i] must be a pair (input, target) of the same shapes"
            raise ValueError(f"dataset = {dataset!r} cannot be read: {error}; {remedy}") from error
        return cls(inputs, targets.astype(np.int32) if targets.dtype.kind in "iu" else targets)

    @property
    def num_examples(self) -> int:
        """The number of examples, the paper's P."""
        return int(jax.tree.leaves(self.inputs)[0].shape[0])

    @property
    def batch(self) -> Batch:
        """All examples as one batch."""
        return (self.inputs, self.targets)

    def head(self, num_examples: int) -> Dataset:
        """Return the first examples."""
        return Dataset.tree_unflatten(self.mesh, jax.tree.map(lambda array: array[:num_examples], self.batch))

    def take(self, indices: Array) -> Batch:
        """Return the examples with these indices, which are global: they do not depend on how the data are split."""
        return self._split_over_devices(jax.tree.map(lambda array: array[indices], self.batch))

    def draw(self, key: Key, batch_size: int) -> Batch:
        """Return `batch_size` examples drawn uniformly and independently, so with replacement."""
        return self.take(draw_indices(key, self.num_examples, batch_size))

    def chunk(self, start: Array, size: int) -> Batch:
        """Return `size` examples from `start` on, of each shard of the data."""

        def taken(array: Array) -> Array:
            shards = array.reshape(self.num_shards, -1, *array.shape[1:])
            return lax.dynamic_slice_in_dim(shards, start, size, axis=1).reshape(-1, *array.shape[1:])

        return self._split_over_devices(jax.tree.map(taken, self.batch))

    def _split_over_devices(self, batch: Batch) -> Batch:
        if self.mesh is None or self.mesh.shape["data"] == 1:
            return batch
        return lax.with_sharding_constraint(batch, NamedSharding(self.mesh, PartitionSpec("data")))

    def shapes(self, num_examples: int) -> Batch:
        """Return the shapes and types of a batch of `num_examples`."""
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((num_examples, *a.shape[1:]), a.dtype), self.batch)

    def with_mesh(self, mesh: Mesh) -> Dataset:
        """Return the same arrays with `mesh` as the devices that hold them."""
        return self.tree_unflatten(mesh, self.tree_flatten()[0])

    @property
    def num_shards(self) -> int:
        """Number of shards that the examples are split into."""
        ways = 1 if self.mesh is None else self.mesh.shape["data"]
        return ways if self.num_examples % ways == 0 else 1

    def tree_flatten(self) -> tuple[tuple[Any, ...], Mesh | None]:
        """Return children and auxiliary data, for JAX."""
        return (self.inputs, self.targets), self.mesh

    @classmethod
    def tree_unflatten(cls, mesh: Mesh | None, children: tuple[Any, ...]) -> Dataset:
        """Rebuild without checks: inside a compiled function the leaves are tracers."""
        dataset = object.__new__(cls)
        (dataset.inputs, dataset.targets), dataset.mesh = children, mesh
        return dataset


def check_lengths(inputs: Any, targets: Any) -> None:
    """Raise unless the arrays are finite numbers with one row per example."""
    num_inputs, num_targets = _check_arrays("inputs", inputs), _check_arrays("targets", targets)
    if num_inputs != num_targets:
        found = f"inputs has {num_inputs} examples and targets has {num_targets}"
        raise ValueError(f"{found}; they must have the same length")


def _check_arrays(name: str, tree: Any) -> int:
    leaves = jax.tree.leaves(tree)
    if not leaves:
        raise ValueError(f"{name} is an empty pytree; pass an array with one row per example")
    lengths = set()
    for leaf in leaves:
        shape = np.shape(leaf)
        if len(shape) == 0:
            raise ValueError(f"{name} holds the scalar {leaf!r}; every array needs a leading example axis")
        if math.prod(shape) == 0:
            raise ValueError(f"{name} is empty (shape {shape}); pass at least one example")
        lengths.add(shape[0])
        dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
        if not (np.issubdtype(dtype, np.number) or dtype == np.bool_ or jnp.issubdtype(dtype, jnp.floating)):
            raise ValueError(f"{name} has dtype {dtype}; pass numbers, for example integer class labels")
        if jnp.issubdtype(dtype, jnp.inexact):
            stored = jax.dtypes.canonicalize_dtype(dtype)  # float32 for float64, unless x64 is on
            largest = float(jnp.finfo(stored).max)
            if not all(_within(leaf[start : start + CHECKED], largest) for start in range(0, shape[0], CHECKED)):
                raise ValueError(f"{name} holds NaN or infinity as {stored}; remove or repair those examples")
    if len(lengths) > 1:
        raise ValueError(f"the arrays in {name} have different numbers of examples: {sorted(lengths)}")
    return int(lengths.pop())


def _within(part: Any, largest: float) -> bool:
    values = np.asarray(part)
    return bool(np.all(np.abs(values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)) <= largest))


def fold_chunks(fold: Callable[[Carry, Batch, Array], Carry], carry: Carry, dataset: Dataset, chunk_size: int) -> Carry:
    """Fold over all examples, `chunk_size` at a time, each example exactly once.

    `fold(carry, batch, mask)` receives batches of equal size. If P is not divisible, the last batch overlaps the one
    before, and `mask` is False for the examples already visited. If the data are split over devices, every chunk takes
    the same number of examples from each device.
    """
    num_shards = dataset.num_shards
    shard_size = dataset.num_examples // num_shards
    chunk_size = min(max(1, chunk_size // num_shards), shard_size)
    num_chunks = -(-shard_size // chunk_size)

    def body(carry: Carry, chunk: Array) -> tuple[Carry, None]:
        first_new = chunk * chunk_size
        start = jnp.minimum(first_new, shard_size - chunk_size)
        mask = start + jnp.arange(chunk_size) >= first_new
        return fold(carry, dataset.chunk(start, chunk_size), jnp.tile(mask, num_shards)), None

    return lax.scan(body, carry, jnp.arange(num_chunks))[0]
