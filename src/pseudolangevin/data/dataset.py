"""The data set: in device memory, or streamed from host memory or disk; mini-batches, and folds over all examples.

The examples of a step depend on the chain's key and the step only, never on the weights. Those of the next steps are
therefore known in advance: while the device works on one block of steps, the host gathers and sends the next.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._trees import Array, Batch, Key, draw_indices

Carry = TypeVar("Carry")
CHECKED = 2**16  # examples; data on disk may be larger than memory
PART_BYTES = 2**22  # larger arrays are sent in parts: on an H200, 16 MiB go at 5 GB/s as one and at 37 GB/s in four
BLOCK_BYTES = 2**24
BLOCKS_AHEAD = 3  # blocks on their way to the device, and as many, at most, that wait on it or are in use


@jax.tree_util.register_pytree_node_class
class Dataset:
    """Inputs and targets: arrays, or pytrees of arrays, with one leading example axis.

    A data set is a pytree, so that compiled functions take it as an argument and never as a constant.

    Example:
        >>> dataset = pl.Dataset(np.ones((4, 3)), np.array([0, 1, 1, 0]))
        >>> dataset.num_examples
        4
    """

    inputs: Any
    targets: Any
    mesh: Mesh | None = None
    """Devices that the examples are split over (see `placement`); None for a single device."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        check_examples(inputs, targets)
        self.inputs, self.targets = jax.tree.map(jnp.asarray, (inputs, targets))

    @classmethod
    def from_torch(cls, dataset: Any) -> Dataset:
        """Return the examples of a `torch.utils.data.Dataset`, or of a `DataLoader`, as one data set in memory.

        Examples are pairs (input, target) of tensors, arrays or numbers. Transforms are applied once, so they must not
        be random: an augmented loss is no fixed function of the weights.

        Example:
            >>> pl.Dataset.from_torch([(np.ones(3), 0), (np.zeros(3), 1)]).num_examples
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
        """Return the first examples, as a data set on the device."""
        return Dataset(*jax.tree.map(lambda array: array[:num_examples], self.batch))

    def take(self, indices: Array) -> Batch:
        """Return the examples with these indices, which are global: they do not depend on how the data are split."""
        indices = lax.optimization_barrier(indices)  # else a GPU computes an index again for every component
        return self._split_over_devices(jax.tree.map(lambda array: array[indices], self.batch))

    def draw(self, key: Key, batch_size: int) -> Batch:
        """Return examples drawn uniformly, with replacement."""
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
        """Return the shapes and types of a batch of `num_examples` on the device."""
        return _shapes(self.batch, num_examples)

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


def check_examples(inputs: Any, targets: Any) -> None:
    """Raise unless the arrays are finite numbers with one row per example."""
    num_inputs, num_targets = _num_rows("inputs", inputs), _num_rows("targets", targets)
    if num_inputs != num_targets:
        found = f"inputs has {num_inputs} examples and targets has {num_targets}"
        raise ValueError(f"{found}; they must have the same length")


def _num_rows(name: str, tree: Any) -> int:
    leaves = [leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    lengths = {leaf.shape[0] if math.prod(leaf.shape) else 0 for leaf in leaves if leaf.shape}
    if len(lengths) != 1 or 0 in lengths or not all(leaf.shape for leaf in leaves):
        found = f"{name} has arrays of shapes {[leaf.shape for leaf in leaves]}"
        raise ValueError(f"{found}; pass arrays with one row per example, and at least one example")
    for leaf in leaves:
        if not (jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == bool):
            raise ValueError(f"{name} has dtype {leaf.dtype}; pass numbers, for example integer class labels")
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            stored = jax.dtypes.canonicalize_dtype(leaf.dtype)  # float32 for float64, unless x64 is on
            largest, starts = float(jnp.finfo(stored).max), range(0, leaf.shape[0], CHECKED)
            if not all(np.all(np.abs(np.asarray(leaf[i : i + CHECKED])) <= largest) for i in starts):
                raise ValueError(f"{name} holds NaN or infinity as {stored}; remove or repair those examples")
    return int(lengths.pop())


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


class Signs:
    """An array of ±1, (example, component), stored as bits: an eighth of the memory and of the transfer.

    `bits` is a NumPy array, a memory-mapped ``.npy`` file or a Zarr array with eight components a byte, as
    ``np.packbits(inputs > 0, axis=1)`` makes them.

    Example:
        >>> signs = pl.Signs.of(np.array([[1, -1, 1], [-1, -1, 1]], np.int8))
        >>> signs.shape, signs.bits.nbytes
        ((2, 3), 2)
        >>> signs[:1]
        array([[ 1, -1,  1]], dtype=int8)
    """

    dtype = np.dtype(np.int8)

    def __init__(self, bits: Any, num_components: int) -> None:
        self.bits, self.shape = bits, (int(bits.shape[0]), num_components)
        needed = (self.shape[0], -(-num_components // 8))
        if tuple(bits.shape) != needed or bits.dtype != np.uint8:
            found = f"bits has shape {tuple(bits.shape)} and dtype {bits.dtype}"
            remedy = f"{needed}, as np.packbits(inputs > 0, axis=1) makes them"
            raise ValueError(f"{found}; {num_components} components need uint8 of shape {remedy}")

    @classmethod
    def of(cls, inputs: np.ndarray) -> Signs:
        """Pack an array whose entries are all +1 or −1."""
        inputs = np.asarray(inputs)
        if inputs.ndim != 2:
            raise ValueError(f"inputs has shape {inputs.shape}; signs are packed from (examples, components)")
        parts = [inputs[start : start + CHECKED] for start in range(0, len(inputs), CHECKED)]
        if not all(np.isin(part, (-1, 1)).all() for part in parts):
            raise ValueError("inputs holds other values than +1 and −1; give the array itself, not its signs")
        return cls(np.concatenate([np.packbits(part > 0, axis=1) for part in parts]), inputs.shape[1])

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Return some examples, as int8."""
        return 2 * np.unpackbits(np.asarray(self.bits[rows]), axis=-1, count=self.shape[1]).astype(np.int8) - 1


@jax.tree_util.register_static  # no array is an argument of compiled functions
class StreamedDataset(Dataset):
    """A data set that is not kept on the device.

    `inputs` and `targets` are NumPy arrays, memory-mapped ``.npy`` files, Zarr arrays, `Signs`, or pytrees of these.
    It replaces a `Dataset`, with the same chains.
    """

    def __init__(self, inputs: Any, targets: Any) -> None:
        check_examples(inputs, targets)
        self.inputs, self.targets = inputs, targets

    def take(self, indices: Array) -> Batch:  # by a callback, when the program reaches this point
        shapes = _shapes(self._sent, *indices.shape)
        return self.decode(jax.pure_callback(self.fetch, shapes, indices, vmap_method="expand_dims"))

    def chunk(self, start: Array, size: int) -> Batch:
        return self.take(start + jnp.arange(size))

    def fetch(self, indices: Any) -> Batch:
        """Return the examples with these indices as NumPy arrays, signs as bits."""
        indices = np.asarray(indices)

        def gather(array: Any) -> np.ndarray:
            if isinstance(array, np.ndarray):
                rows = np.take(array, indices, axis=0, mode="clip")
            else:  # Zarr reads every chunk once when indices are distinct and sorted
                different, back = np.unique(indices, return_inverse=True)
                rows = np.asarray(array.oindex[different])[back.reshape(indices.shape)]
            return rows.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)

        return jax.tree.map(gather, self._sent)

    def decode(self, batch: Batch) -> Batch:
        """Return a batch in the form that the loss takes, from the transferred arrays."""

        def unpack(array: Any, sent: Array) -> Array:
            if not isinstance(array, Signs):
                return sent
            return 2 * jnp.unpackbits(sent, axis=-1, count=array.shape[1]).astype(jnp.int8) - 1

        return jax.tree.map(unpack, self.batch, batch)

    @cached_property
    def _sent(self) -> Batch:
        """The arrays that examples are gathered from."""
        return jax.tree.map(lambda array: array.bits if isinstance(array, Signs) else array, self.batch)

    @property
    def bytes_per_example(self) -> int:
        """Size of an example as it is sent."""
        return sum(shape.dtype.itemsize * shape.size for shape in jax.tree.leaves(_shapes(self._sent)))

    def block_length(self, num_chains: int, batch_size: int, longest: int) -> int:
        """Return the number of steps whose mini-batches are sent together."""
        return max(1, min(128, longest, BLOCK_BYTES // (num_chains * batch_size * self.bytes_per_example)))

    def blocks(self, indices: Sequence[Array], device: Any) -> Iterator[Batch]:
        """Yield the mini-batches of each block of indices (chain, step, example), fetched in advance, as sent."""
        num_threads = max(2, min(8, (os.cpu_count() or 2) // 2))
        for wanted in indices:  # before the first block runs: they would wait behind it in the device's queue
            wanted.copy_to_host_async()

        def fetch(wanted: Array, steps: np.ndarray) -> Batch:
            return jax.device_put(self.fetch(np.asarray(wanted)[:, steps]), device)

        with ThreadPoolExecutor(num_threads) as pool:

            def request(wanted: Array) -> list[Future[Batch]]:
                num_bytes = wanted.size * self.bytes_per_example
                num_parts = min(wanted.shape[1], max(num_threads, -(-num_bytes // PART_BYTES)))
                parts = np.array_split(np.arange(wanted.shape[1]), num_parts)
                return [pool.submit(fetch, wanted, steps) for steps in parts]

            requests = map(request, indices)  # made when the next is asked for
            coming = deque(islice(requests, BLOCKS_AHEAD))
            while coming:
                parts = [part.result() for part in coming.popleft()]
                coming.extend(islice(requests, 1))
                yield jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=1), *parts)


def _shapes(arrays: Any, *leading: int) -> Any:
    """Return the shapes and types of examples, with leading axes, for JAX, which has no 64-bit numbers by default."""
    dtype = jax.dtypes.canonicalize_dtype
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((*leading, *a.shape[1:]), dtype(a.dtype)), arrays)
