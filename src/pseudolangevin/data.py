"""The data set, the drawing of mini-batches, and folding over all of it in chunks of bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from . import threefry
from .types import Array, Batch, Key

Carry = TypeVar("Carry")
CHECKED = 2**16
"""Examples that are checked at a time; larger data than memory may be on disk."""


@jax.tree_util.register_pytree_node_class
class Dataset:
    """Examples: inputs and targets, arrays (or pytrees of arrays) with one leading example axis.

    It is a pytree, so that it is passed to compiled functions as an argument and never baked into them.

    Example:
        >>> dataset = Dataset(np.ones((4, 3)), np.array([0, 1, 1, 0]))
        >>> dataset.num_examples
        4
    """

    inputs: Any
    targets: Any
    mesh: Mesh | None = None
    """The devices it is spread over, see `placement`; None: wherever its arrays are."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        """Check the arrays and put them on the default device."""
        check_lengths(inputs, targets)
        self.inputs = jax.tree.map(jnp.asarray, inputs)
        self.targets = jax.tree.map(jnp.asarray, targets)

    @property
    def num_examples(self) -> int:
        """The number of examples, the paper's P."""
        return int(jax.tree.leaves(self.inputs)[0].shape[0])

    @property
    def batch(self) -> Batch:
        """All examples as one batch."""
        return (self.inputs, self.targets)

    def head(self, num_examples: int) -> Dataset:
        """The first examples."""
        return Dataset.tree_unflatten(self.mesh, jax.tree.map(lambda array: array[:num_examples], self.batch))

    def take(self, indices: Array) -> Batch:
        """The examples with these indices."""
        return jax.tree.map(lambda array: array[indices], self.batch)

    def draw(self, key: Key, batch_size: int) -> Batch:
        """What `draw_batch` returns."""
        return self.with_drawn(draw_indices(key, self.num_examples, batch_size)).draw(key, batch_size)

    def with_drawn(self, indices: Array) -> Dataset:
        """The same data set, of which the next mini-batch has these indices."""
        return Drawn(_shared_out(self.take(indices), self), self)

    def chunk(self, start: Array, size: int) -> Batch:
        """`size` examples from `start` on; of each shard, where there are several."""
        num_shards = self.num_shards
        shard_size = self.num_examples // num_shards

        def taken(array: Array) -> Array:
            shards = array.reshape(num_shards, shard_size, *array.shape[1:])
            part = lax.dynamic_slice_in_dim(shards, start, size, axis=1)
            return part.reshape(num_shards * size, *array.shape[1:])

        return _shared_out(jax.tree.map(taken, self.batch), self)

    def shapes(self, num_examples: int) -> Batch:
        """Shapes and types of a batch of so many examples."""
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((num_examples, *a.shape[1:]), a.dtype), self.batch)

    def with_mesh(self, mesh: Mesh) -> Dataset:
        """The same arrays, which lie on `mesh`."""
        return self.tree_unflatten(mesh, self.tree_flatten()[0])

    @property
    def num_shards(self) -> int:
        """How many ways the examples are split."""
        ways = 1 if self.mesh is None else self.mesh.shape["data"]
        return ways if self.num_examples % ways == 0 else 1

    def tree_flatten(self) -> tuple[tuple[Any, ...], Mesh | None]:
        """Children and auxiliary data, for JAX."""
        return (self.inputs, self.targets), self.mesh

    @classmethod
    def tree_unflatten(cls, mesh: Mesh | None, children: tuple[Any, ...]) -> Dataset:
        """Rebuild without checking: inside a compiled function the leaves are tracers."""
        dataset = object.__new__(cls)
        dataset.inputs, dataset.targets = children
        dataset.mesh = mesh
        return dataset


@jax.tree_util.register_pytree_node_class
class ValidatedDataset(Dataset):
    """A training set with a validation set beside it: everywhere a data set is asked for it is the training set.

    Both travel as one argument of compiled functions; only who asks for `validation` sees it.
    """

    validation: Dataset

    def __init__(self, training: Dataset, validation: Dataset) -> None:
        """Two data sets that were checked already and lie on the device."""
        self.inputs, self.targets = training.batch
        self.validation = validation

    def with_mesh(self, mesh: Mesh) -> ValidatedDataset:
        """The same arrays, which lie on `mesh`."""
        return self.tree_unflatten(mesh, (*self.batch, self.validation.with_mesh(mesh)))

    def tree_flatten(self) -> tuple[tuple[Any, ...], Mesh | None]:
        """Children and auxiliary data, for JAX."""
        return (self.inputs, self.targets, self.validation), self.mesh

    @classmethod
    def tree_unflatten(cls, mesh: Mesh | None, children: tuple[Any, ...]) -> ValidatedDataset:
        """Rebuild without checking."""
        dataset = object.__new__(cls)
        dataset.inputs, dataset.targets, dataset.validation = children
        dataset.mesh = mesh
        return dataset


class Drawn(Dataset):
    """A data set of which the next mini-batch was drawn before: where one is asked for, it is this one."""

    def __init__(self, drawn: Batch, dataset: Dataset) -> None:
        """The batch, and what it was drawn from."""
        self.inputs, self.targets, self.mesh = dataset.inputs, dataset.targets, dataset.mesh
        self._drawn = drawn

    def draw(self, key: Key, batch_size: int) -> Batch:
        """The mini-batch, whatever the key: it was drawn before."""
        del key, batch_size
        return self._drawn

    def with_drawn(self, indices: Array) -> Dataset:
        """Itself: it has the examples with these indices already."""
        del indices
        return self


def check_lengths(inputs: Any, targets: Any) -> None:
    """Refuse arrays that are no data set: not numbers, not finite, or not one row per example."""
    num_inputs, num_targets = _check_arrays("inputs", inputs), _check_arrays("targets", targets)
    if num_inputs != num_targets:
        raise ValueError(
            f"inputs has {num_inputs} examples and targets has {num_targets}; they must have the same length"
        )


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


def draw_batch(key: Key, dataset: Dataset, batch_size: int) -> Batch:
    """`batch_size` examples drawn uniformly and independently, so with replacement.

    The indices are global: which examples are drawn does not depend on how the data set is split.
    """
    return dataset.draw(key, batch_size)


def draw_indices(key: Key, num_examples: int, batch_size: int, step: Array | int = 0) -> Array:
    """Which examples a batch has: a function of the key and the step alone, wherever the examples are kept."""
    if not threefry.applies(key, batch_size):
        return jax.random.randint(jax.random.fold_in(key, step), (batch_size,), 0, num_examples)
    return threefry.below(threefry.words(key, step, threefry.numbered((batch_size,))), num_examples)


def fold_chunks(fold: Callable[[Carry, Batch, Array], Carry], carry: Carry, dataset: Dataset, chunk_size: int) -> Carry:
    """Fold over all examples, `chunk_size` at a time, each example exactly once; in order where they are not split.

    `fold(carry, batch, mask)` gets batches of equal size; the last one overlaps the one before where P is not
    divisible, and `mask` is False for the examples that were already seen. Of a data set that is split over devices,
    every chunk takes the same number of examples from each.
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


def _shared_out(batch: Batch, dataset: Dataset) -> Batch:
    """The batch, its examples shared out among the devices that share the data set."""
    if dataset.mesh is None or dataset.mesh.shape["data"] == 1:
        return batch
    return lax.with_sharding_constraint(batch, NamedSharding(dataset.mesh, PartitionSpec("data")))
