"""The data set, the drawing of mini-batches, and folding over all of it in chunks of bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .types import Array, Batch, Key

Carry = TypeVar("Carry")


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

    def __init__(self, inputs: Any, targets: Any) -> None:
        """Check the arrays and put them on the default device."""
        num_inputs = _check_arrays("inputs", inputs)
        num_targets = _check_arrays("targets", targets)
        if num_inputs != num_targets:
            raise ValueError(
                f"inputs has {num_inputs} examples and targets has {num_targets}; they must have the same length"
            )
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
        return Dataset.tree_unflatten(None, jax.tree.map(lambda array: array[:num_examples], self.batch))

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Children and auxiliary data, for JAX."""
        return (self.inputs, self.targets), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, ...]) -> Dataset:
        """Rebuild without checking: inside a compiled function the leaves are tracers."""
        dataset = object.__new__(cls)
        dataset.inputs, dataset.targets = children
        return dataset


@jax.tree_util.register_pytree_node_class
class ValidatedDataset(Dataset):
    """A training set with a validation set beside it: everywhere a data set is asked for it is the training set.

    Both travel as one argument of compiled functions; only who asks for `validation` sees it.
    """

    validation: Dataset

    def __init__(self, training: Dataset, validation: Dataset) -> None:
        """Two data sets that were checked already."""
        self.inputs, self.targets = training.batch
        self.validation = validation

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Children and auxiliary data, for JAX."""
        return (self.inputs, self.targets, self.validation), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, ...]) -> ValidatedDataset:
        """Rebuild without checking."""
        dataset = object.__new__(cls)
        dataset.inputs, dataset.targets, dataset.validation = children
        return dataset


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
            wide = np.asarray(leaf).astype(np.complex128 if jnp.iscomplexobj(leaf) else np.float64)
            if not np.all(np.abs(wide) <= float(jnp.finfo(stored).max)):
                raise ValueError(f"{name} holds NaN or infinity as {stored}; remove or repair those examples")
    if len(lengths) > 1:
        raise ValueError(f"the arrays in {name} have different numbers of examples: {sorted(lengths)}")
    return int(lengths.pop())


def draw_batch(key: Key, dataset: Dataset, batch_size: int) -> Batch:
    """`batch_size` examples drawn uniformly and independently, so with replacement."""
    indices = jax.random.randint(key, (batch_size,), 0, dataset.num_examples)
    return jax.tree.map(lambda array: array[indices], dataset.batch)


def fold_chunks(fold: Callable[[Carry, Batch, Array], Carry], carry: Carry, dataset: Dataset, chunk_size: int) -> Carry:
    """Fold over all examples in order, `chunk_size` at a time, each example exactly once.

    `fold(carry, batch, mask)` gets batches of equal size; the last one overlaps the one before where P is not
    divisible, and `mask` is False for the examples that were already seen.
    """
    num_examples = dataset.num_examples
    chunk_size = min(chunk_size, num_examples)
    num_chunks = -(-num_examples // chunk_size)

    def body(carry: Carry, chunk: Array) -> tuple[Carry, None]:
        first_new = chunk * chunk_size
        start = jnp.minimum(first_new, num_examples - chunk_size)
        mask = start + jnp.arange(chunk_size) >= first_new
        batch = jax.tree.map(lambda array: lax.dynamic_slice_in_dim(array, start, chunk_size), dataset.batch)
        return fold(carry, batch, mask), None

    return lax.scan(body, carry, jnp.arange(num_chunks))[0]
