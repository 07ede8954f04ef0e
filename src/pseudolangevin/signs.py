"""Signs kept as bits.

The inputs of the spin task and of projected images are ±1. As bits they take an eighth of the disk and of the memory,
and of what is sent to the device, where they become int8 again.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from .types import Array

BITS = 8
WIDE = 2**16
"""Rows that are packed or unpacked at a time."""


class Signs:
    """An array of ±1, (example, component), of which the bits are kept: as inputs of a `StreamedDataset`.

    `bits` is a NumPy array, a memory-mapped ``.npy`` file or a Zarr array, eight components a byte, as
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
        """Check that the bits are as many as the components need."""
        needed = -(-num_components // BITS)
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
        for start in range(0, len(inputs), WIDE):
            part = inputs[start : start + WIDE]
            if not np.array_equal(np.abs(part), np.ones_like(part)):
                raise ValueError("inputs holds other values than +1 and −1; give the array itself, not its signs")
            parts.append(np.packbits(part > 0, axis=1))
        return cls(np.concatenate(parts), inputs.shape[1])

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Some examples, as int8."""
        bits = np.unpackbits(np.asarray(self.bits[rows]), axis=-1, count=self.shape[1])
        return (2 * bits.astype(np.int8) - 1).astype(np.int8)


def unpack(bits: Array, num_components: int) -> Array:
    """±1 as int8 from their bits, on the device."""
    places = np.arange(BITS - 1, -1, -1, dtype=np.uint8)
    single = ((bits[..., None] >> places) & 1).reshape(*bits.shape[:-1], -1)[..., :num_components]
    return 2 * single.astype(jnp.int8) - 1
