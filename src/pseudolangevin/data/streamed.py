"""Data that stay in host memory or on disk and are sent to the device as they are needed.

The examples of a step depend on the chain's key and the step only, never on the weights. The indices of the next
blocks of steps are known in advance: while the device works on one block, the host gathers and sends the next.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from .._trees import Array, Batch
from .dataset import Dataset, check_lengths

PART_BYTES = 2**22  # larger arrays are sent in parts: on an H200, 16 MiB go at 5 GB/s as one and at 37 GB/s in four
BLOCK_BYTES = 2**24
BLOCKS_AHEAD = 3  # blocks on their way to the device, and as many, at most, that wait on it or are in use


class Signs:
    """An array of ±1, (example, component), stored as bits: an eighth of the memory and of what is sent.

    `bits` is a NumPy array, a memory-mapped ``.npy`` file or a Zarr array with eight components a byte, as
    ``np.packbits(inputs > 0, axis=1)`` makes them.

    Example:
        >>> signs = Signs.of(np.array([[1, -1, 1], [-1, -1, 1]], np.int8))
        >>> signs.shape, signs.bits.nbytes
        ((2, 3), 2)
        >>> signs[:1]
        array([[ 1, -1,  1]], dtype=int8)
    """

    dtype = np.dtype(np.int8)

    def __init__(self, bits: Any, num_components: int) -> None:
        """Check that the bits match the number of components."""
        needed = -(-num_components // 8)
        if len(bits.shape) != 2 or bits.dtype != np.uint8 or bits.shape[1] != needed:
            raise ValueError(
                f"bits has shape {tuple(bits.shape)} and dtype {bits.dtype}; {num_components} components need uint8 of "
                f"shape (examples, {needed}), as np.packbits(inputs > 0, axis=1) makes them"
            )
        self.bits, self.shape = bits, (int(bits.shape[0]), num_components)

    @classmethod
    def of(cls, inputs: np.ndarray) -> Signs:
        """Pack an array whose entries are all +1 or −1."""
        inputs = np.asarray(inputs)
        if inputs.ndim != 2:
            raise ValueError(f"inputs has shape {inputs.shape}; signs are packed from (examples, components)")
        parts = []
        for start in range(0, len(inputs), 2**16):
            part = inputs[start : start + 2**16]
            if not np.array_equal(np.abs(part), np.ones_like(part)):
                raise ValueError("inputs holds other values than +1 and −1; give the array itself, not its signs")
            parts.append(np.packbits(part > 0, axis=1))
        return cls(np.concatenate(parts), inputs.shape[1])

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Return some examples, as int8."""
        bits = np.unpackbits(np.asarray(self.bits[rows]), axis=-1, count=self.shape[1])
        return (2 * bits.astype(np.int8) - 1).astype(np.int8)


def _unpack_signs(bits: Array, num_components: int) -> Array:
    """Return ±1 as int8 from their bits, on the device."""
    places = np.arange(7, -1, -1, dtype=np.uint8)
    single = ((bits[..., None] >> places) & 1).reshape(*bits.shape[:-1], -1)[..., :num_components]
    return 2 * single.astype(jnp.int8) - 1


@jax.tree_util.register_pytree_node_class
class StreamedDataset(Dataset):
    """A data set that is not kept on the device.

    `inputs` and `targets` are NumPy arrays, memory-mapped ``.npy`` files, Zarr arrays, `Signs`, or pytrees of these.
    It replaces a `Dataset` everywhere except as training or validation set of `adam(validation=…)`; the chains are the
    same.

    Example:
        >>> dataset = StreamedDataset(np.ones((4, 3), np.int8), np.array([0, 1, 1, 0]))
        >>> dataset.num_examples
        4
    """

    def __init__(self, inputs: Any, targets: Any) -> None:
        """Check the arrays; they are not copied."""
        check_lengths(inputs, targets)
        self.inputs, self.targets = inputs, targets

    def take(self, indices: Array) -> Batch:
        """Return the examples with these indices, fetched by a callback when the program reaches this point."""
        shapes = _shapes(self._sent, *indices.shape)
        return self.decode(jax.pure_callback(self.fetch, shapes, indices, vmap_method="expand_dims"))

    def chunk(self, start: Array, size: int) -> Batch:
        """Return `size` examples from `start` on."""
        return self.take(start + jnp.arange(size))

    def fetch(self, indices: Any) -> Batch:
        """Return the examples with these indices as NumPy arrays, signs as bits."""
        return jax.tree.map(lambda array: _gather(array, np.asarray(indices)), self._sent)

    def decode(self, batch: Batch) -> Batch:
        """Return a batch in the form in which the loss takes it, from the form in which it was sent."""

        def unpack(array: Any, sent: Array) -> Array:
            return _unpack_signs(sent, array.shape[1]) if isinstance(array, Signs) else sent

        return jax.tree.map(unpack, self.batch, batch)

    def shapes(self, num_examples: int) -> Batch:
        """Return the shapes and types of a batch of `num_examples` on the device."""
        return _shapes(self.batch, num_examples)

    @cached_property
    def _sent(self) -> Batch:
        """The arrays that examples are gathered from."""
        return jax.tree.map(lambda array: array.bits if isinstance(array, Signs) else array, self.batch)

    def head(self, num_examples: int) -> Dataset:
        """Return the first examples as a data set on the device."""
        return Dataset(*jax.tree.map(lambda array: np.asarray(array[:num_examples]), self.batch))

    @property
    def bytes_per_example(self) -> int:
        """Size of an example as it is sent."""
        return sum(shape.dtype.itemsize * math.prod(shape.shape) for shape in jax.tree.leaves(_shapes(self._sent)))

    def block_length(self, num_chains: int, batch_size: int, longest: int) -> int:
        """Return the number of steps whose mini-batches are sent together."""
        return max(1, min(128, longest, BLOCK_BYTES // (num_chains * batch_size * self.bytes_per_example)))

    def blocks(self, indices: Sequence[Array], device: Any) -> Iterator[Batch]:
        """Yield the mini-batches of each block of indices (chain, step, example), fetched in advance, as sent."""
        num_threads = max(2, min(8, (os.cpu_count() or 2) // 2))
        waiting = deque(indices)
        for wanted in waiting:  # before the first block runs: they would wait behind it in the device's queue
            wanted.copy_to_host_async()

        def fetch(wanted: Array, first: int, last: int) -> Batch:
            return jax.device_put(self.fetch(np.asarray(wanted)[:, first:last]), device)

        with ThreadPoolExecutor(num_threads) as pool:

            def request() -> list[Future[Batch]]:
                wanted = waiting.popleft()
                num_bytes = math.prod(wanted.shape) * self.bytes_per_example
                num_parts = min(wanted.shape[1], max(num_threads, -(-num_bytes // PART_BYTES)))
                ends = np.linspace(0, wanted.shape[1], num_parts + 1).astype(int).tolist()
                return [pool.submit(fetch, wanted, first, last) for first, last in pairwise(ends)]

            coming = deque(request() for _ in range(min(BLOCKS_AHEAD, len(waiting))))
            while coming:
                parts = [part.result() for part in coming.popleft()]
                if waiting:
                    coming.append(request())
                yield jax.tree.map(lambda *arrays: jnp.concatenate(arrays, axis=1), *parts)

    def with_mesh(self, mesh: Mesh) -> Dataset:
        """Return the data set itself: every device fetches the examples that it needs."""
        return self

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        """Return no children: no array is an argument of compiled functions."""
        return (), self  # a data set is equal only to itself

    @classmethod
    def tree_unflatten(cls, dataset: Any, _: Any) -> StreamedDataset:
        """Return the object itself."""
        return dataset


def _shapes(arrays: Any, *leading: int) -> Any:
    """Return the shapes and types of examples, with leading axes, for JAX, which has no 64-bit numbers by default."""
    dtype = jax.dtypes.canonicalize_dtype
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((*leading, *a.shape[1:]), dtype(a.dtype)), arrays)


def _gather(array: Any, indices: np.ndarray) -> np.ndarray:
    if isinstance(array, np.ndarray):
        out = np.take(array, indices.reshape(-1), axis=0, mode="clip")
    else:  # Zarr reads every chunk once when indices are distinct and sorted
        different, back = np.unique(indices.reshape(-1), return_inverse=True)
        out = np.asarray(array.oindex[different])[back]
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return out.reshape(*indices.shape, *array.shape[1:]).astype(dtype, copy=False)
