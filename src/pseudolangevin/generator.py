"""The random numbers of a step: standard normal ones, from both words of every Threefry block, and integers.

On a CPU Threefry is written out, entry by entry, so that it compiles to one loop without memory in between. JAX's
rolled one costs several times as much there: a fifth of a step at 11 160 weights.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry_2x32

from .types import Array, Key

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
CENTRAL = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
"""Giles' polynomials for erf⁻¹, in w − 2.5 and √w − 3 with w = −ln(1 − x²); JAX has the same."""


def standard_normal(key: Key, num: int, dtype: Any) -> Array:
    """`num` standard normal numbers; like `jax.random.normal`, but with both words that one Threefry block yields.

    The bits are the same on every device, the numbers are so to rounding (1e-5 far out in the tails).
    """
    if dtype != jnp.float32 or not _is_threefry(key):
        return jax.random.normal(key, (num,), dtype)

    def cpu(words: Array) -> Array:
        return math.sqrt(2) * _inverse_erf(_uniform(_bits(words, num)))

    def other(words: Array) -> Array:
        counts = jnp.arange(num + num % 2, dtype=jnp.uint32)
        return math.sqrt(2) * lax.erf_inv(_uniform(threefry_2x32(words, counts)[:num]))

    return lax.platform_dependent(jax.random.key_data(key), cpu=cpu, default=other)


def integers(key: Key, num: int, limit: int) -> Array:
    """`num` integers from 0 to `limit` − 1, those of `jax.random.randint`."""

    def other(key: Key) -> Array:
        return jax.random.randint(key, (num,), 0, limit)

    counted = getattr(jax.config, "jax_threefry_partitionable", True)  # entry j is made from j alone
    if not _is_threefry(key) or not counted or jnp.result_type(int) != jnp.int32:
        return other(key)

    def cpu(key: Key) -> Array:
        entries = jnp.arange(num, dtype=jnp.uint32)
        zeros = jnp.zeros_like(entries)
        # The remainder of high·2³² + low, in 32 bits.
        high, low = (jnp.bitwise_xor(*_threefry(words, zeros, entries)) for words in _split(key))
        span, power = jnp.uint32(limit), jnp.uint32((2**16 % limit) ** 2 % 2**32 % limit)
        return (((high % span) * power + low % span) % span).astype(jnp.int32)

    return lax.platform_dependent(key, cpu=cpu, default=other)


def _is_threefry(key: Key) -> bool:
    return str(jax.random.key_impl(key)) in ("fry", "threefry2x32")


def _uniform(bits: Array) -> Array:
    """The centres of 2²⁴ equal cells of (−1, 1): symmetric, and never ±1."""
    return ((bits >> 8).astype(jnp.float32) - (2**23 - 0.5)) * 2.0**-23


def _bits(words: Array, num: int) -> Array:
    """What `threefry_2x32` yields for the counts 0 … num − 1: block j has the words j and j + ⌈num/2⌉.

    Every entry computes its whole block: twice the arithmetic, but in registers.
    """
    half = (num + 1) // 2
    entries = jnp.arange(num, dtype=jnp.uint32)
    is_first = entries < half
    count = jnp.where(is_first, entries, entries - half)
    return jnp.where(is_first, *_threefry(words, count, count + half))


def _threefry(words: Array, left: Array, right: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds, of the blocks (left, right)."""
    keys = (words[0], words[1], words[0] ^ words[1] ^ PARITY)
    left, right = left + keys[0], right + keys[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            left = left + right
            right = left ^ ((right << rotation) | (right >> (32 - rotation)))
        left, right = left + keys[(group + 1) % 3], right + keys[(group + 2) % 3] + (group + 1)
    return left, right


def _split(key: Key) -> tuple[Array, Array]:
    """The words of the two keys of `jax.random.split`."""
    words = jax.random.key_data(jax.random.split(key))
    return words[0], words[1]


def _inverse_erf(x: Array) -> Array:
    """erf⁻¹(x). 1 − x and 1 + x are exact, so their product keeps the tails, where JAX's 1 − x² is rounded."""
    w = -jnp.log((1 - x) * (1 + x))
    is_central = w < 5
    argument = jnp.where(is_central, w - 2.5, jnp.sqrt(w) - 3)
    value = jnp.zeros_like(x)
    for central, tail in zip(CENTRAL, TAIL, strict=True):
        value = value * argument + jnp.where(is_central, central, tail)
    return value * x
