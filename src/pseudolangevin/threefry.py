"""Random words that are looked up instead of drawn: the block cipher Threefry, of a step and a running number.

A word is a function of a key, a step and a number, so that what a step draws needs no key of its own, and any part of
it may be computed anywhere. It is JAX's Threefry, written out entry by entry: it becomes part of the loop, or on a GPU
of the kernel, that uses the words. JAX's own generator is a loop of its own on a CPU, and several times as slow there;
on a GPU it is a launch for every call, as are the keys made by splitting and folding.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .types import Array, Key

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
MAX_WORDS = 2**32
"""The numbers that one step has."""


def applies(key: Key, num: int) -> bool:
    """Whether `num` words of a step can be looked up with this key: others are for `jax.random`."""
    return str(jax.random.key_impl(key)) in ("fry", "threefry2x32") and num <= MAX_WORDS


@partial(jax.jit, inline=True)
def words(key: Key, step: Array | int, numbers: Array) -> tuple[Array, Array]:
    """Both words of the blocks (step, number), which are uint32 like `numbers`."""
    first, second = jax.random.key_data(key)
    keys = (first, second, first ^ second ^ PARITY)
    left, right = jnp.asarray(step, jnp.uint32) + keys[0], numbers + keys[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            left = left + right
            right = left ^ ((right << rotation) | (right >> (32 - rotation)))
        left, right = left + keys[(group + 1) % 3], right + keys[(group + 2) % 3] + np.uint32(group + 1)
    return left, right


def numbered(shape: tuple[int, ...], first: int = 0) -> Array:
    """The numbers `first`, `first` + 1, … of the entries of an array, row by row; each by itself, not in a line."""
    numbers: Any = np.uint32(first)
    for axis in range(len(shape)):
        stride = np.uint32(math.prod(shape[axis + 1 :]))
        numbers = numbers + stride * lax.broadcasted_iota(jnp.uint32, shape, axis)
    return jnp.asarray(numbers)


def below(words: tuple[Array, Array], bound: int) -> Array:
    """⌊bound·u⌋ with u the 64 bits of both words as a fraction: uniform to one in 2⁶⁴/bound."""
    high, low = words
    factor = np.uint32(bound)
    carried = high * factor + _multiply_high(low, factor)
    return (_multiply_high(high, factor) + (carried < high * factor)).astype(jnp.int32)


def _multiply_high(a: Array, b: np.uint32) -> Array:
    """The upper 32 of the 64 bits of a product."""
    a_high, a_low, b_high, b_low = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    middle = a_high * b_low + (a_low * b_low >> 16)
    other = a_low * b_high + (middle & 0xFFFF)
    return a_high * b_high + (middle >> 16) + (other >> 16)
