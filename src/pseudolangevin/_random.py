"""Random numbers that are functions of (chain key, stream, step, entry), so nothing depends on where a run was cut.

A block of the cipher Threefry at (step, entry) gives two random words, from which uniform indices and normal numbers
follow. It is JAX's Threefry, written out entry by entry: XLA fuses it with the loop, or on a GPU with the kernel, that
uses the words. JAX's own generator is a separate loop on a CPU, several times slower, and one launch per call on a GPU.
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._trees import LARGE_TENSOR, Array, Key, Weights, num_weights


class Stream(IntEnum):
    """Independent uses of a chain's key."""

    INIT = 0
    STEP = 1
    REFRESH = 2
    BATCH = 3
    NOISE = 4
    FRICTION = 5
    MEASURE = 6
    EXCHANGE = 7
    STEIN = 8


class FoldedKey(NamedTuple):
    """A chain's key with every stream folded in beforehand; a GPU would otherwise repeat that at every step."""

    streams: tuple[Key, ...]

    @classmethod
    def of(cls, key: Key) -> FoldedKey:
        """Fold every stream into a chain's key."""
        return cls(tuple(stream_key(key, stream) for stream in Stream))


def stream_key(key: Key | FoldedKey, stream: Stream) -> Key:
    """Return the key of all events of one kind."""
    return key.streams[stream] if isinstance(key, FoldedKey) else jax.random.fold_in(key, stream)


def key_for(key: Key | FoldedKey, stream: Stream, step: Array | int) -> Key:
    """Return the key of one event: a function of the chain, the kind of event and the step only."""
    return jax.random.fold_in(stream_key(key, stream), step)


def as_key(key: Key | int) -> Key:
    """Return a random key from a seed or a key; raise for anything else."""
    if isinstance(key, jax.Array):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
            return key
        if key.dtype == jnp.uint32 and key.shape == (2,):  # from jax.random.PRNGKey
            return jax.random.wrap_key_data(key)
    if isinstance(key, int | np.integer) and not isinstance(key, bool) and -(2**63) <= key < 2**63:
        return jax.random.key(key)
    raise ValueError(f"key = {key!r} is neither an integer seed nor one key; pass key=0 or key=jax.random.key(0)")


def normal_like(key: Key, weights: Weights, step: Array | int = 0) -> Weights:
    """Return independent standard normal numbers, shaped like `weights`: a function of key, step and entry.

    Small tensors share one vector: one generator compiles and launches faster than one per tensor. A large tensor has
    its own, entry by entry, so that it is split over devices with its tensor and nothing is moved.
    """
    leaves, structure = jax.tree.flatten(weights)
    dtype = jnp.result_type(*leaves)
    counted = dtype == jnp.float32 and _uses_threefry(key, num_weights(leaves))
    own_key = jax.random.fold_in(key, step)

    def normal(shape: tuple[int, ...], first: int, position: int) -> Array:
        if counted:
            return standard_normal(key, step, entry_numbers(shape, first))
        return jax.random.normal(jax.random.fold_in(own_key, position), shape, dtype)

    flat = normal((sum(leaf.size for leaf in leaves if leaf.size < LARGE_TENSOR),), 0, len(leaves))
    pieces, used, first = [], 0, flat.size
    for position, leaf in enumerate(leaves):
        if leaf.size < LARGE_TENSOR:
            piece, used = flat[used : used + leaf.size].reshape(leaf.shape), used + leaf.size
        else:
            piece, first = normal(leaf.shape, first, position), first + leaf.size
        pieces.append(piece.astype(leaf.dtype))
    return jax.tree.unflatten(structure, pieces)


def draw_indices(key: Key, num_examples: int, batch_size: int, step: Array | int = 0) -> Array:
    """Return the examples of a mini-batch, drawn with replacement: a function of the key and the step only."""
    if not _uses_threefry(key, batch_size):
        return jax.random.randint(jax.random.fold_in(key, step), (batch_size,), 0, num_examples)
    return below(words(key, step, entry_numbers((batch_size,))), num_examples)


@partial(jax.jit, inline=True)
def standard_normal(key: Key, step: Array | int, numbers: Array) -> Array:
    """Return float32 standard normal numbers for the entries with these numbers.

    The random bits are the same on every device; the numbers agree to rounding (1e-5 far out in the tails).
    """
    bits = words(key, step, numbers)[0]
    # The centres of 2²⁴ equal cells of (−1, 1): symmetric, and never ±1.
    uniform = ((bits >> 8).astype(jnp.float32) - (2**23 - 0.5)) * 2.0**-23
    return math.sqrt(2) * inverse_erf(uniform)


def inverse_erf(x: Array) -> Array:
    """Return erf⁻¹(x) by Giles' polynomials in w − 2.5 and √w − 3, with w = −ln((1 − x)(1 + x)).

    JAX uses the same polynomials; it rounds 1 − x², whereas 1 − x and 1 + x are exact, which keeps the tails.
    """
    central = [2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087]
    central += [-0.00125372503, -0.00417768164, 0.246640727, 1.50140941]
    tail = [-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773]
    tail += [-0.0076224613, 0.00943887047, 1.00167406, 2.83297682]
    w = -jnp.log((1 - x) * (1 + x))
    is_central = w < 5
    argument = jnp.where(is_central, w - 2.5, jnp.sqrt(w) - 3)
    value = jnp.zeros_like(x)
    for inner, outer in zip(central, tail, strict=True):
        value = value * argument + jnp.where(is_central, inner, outer)
    return value * x


def _uses_threefry(key: Key, num: int) -> bool:
    """Return whether `num` words of one step can be computed from this key; other keys are left to `jax.random`."""
    return str(jax.random.key_impl(key)) in ("fry", "threefry2x32") and num <= 2**32


@partial(jax.jit, inline=True)
def words(key: Key, step: Array | int, numbers: Array) -> tuple[Array, Array]:
    """Return both 32-bit words of the Threefry blocks (step, number)."""
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    first, second = jax.random.key_data(key)
    keys = (first, second, first ^ second ^ 0x1BD11BDA)
    left, right = jnp.asarray(step, jnp.uint32) + keys[0], numbers + keys[1]
    for group in range(5):
        for rotation in rotations[group % 2]:
            left = left + right
            right = left ^ ((right << rotation) | (right >> (32 - rotation)))
        left, right = left + keys[(group + 1) % 3], right + keys[(group + 2) % 3] + np.uint32(group + 1)
    return left, right


def entry_numbers(shape: tuple[int, ...], first: int = 0) -> Array:
    """Return the numbers `first`, `first` + 1, … of the entries of an array, row by row, as uint32."""
    numbers: Any = np.uint32(first)
    for axis in range(len(shape)):
        stride = np.uint32(math.prod(shape[axis + 1 :]))
        numbers = numbers + stride * lax.broadcasted_iota(jnp.uint32, shape, axis)
    return jnp.asarray(numbers)


def below(random_words: tuple[Array, Array], bound: int) -> Array:
    """Return ⌊bound·u⌋ with u the 64 bits of both words as a fraction: uniform to one in 2⁶⁴/bound."""
    high, low = random_words
    factor = np.uint32(bound)
    carried = high * factor + _multiply_high(low, factor)
    return (_multiply_high(high, factor) + (carried < high * factor)).astype(jnp.int32)


def _multiply_high(a: Array, b: np.uint32) -> Array:
    """Return the upper 32 of the 64 bits of a product."""
    a_high, a_low, b_high, b_low = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    middle = a_high * b_low + (a_low * b_low >> 16)
    other = a_low * b_high + (middle & 0xFFFF)
    return a_high * b_high + (middle >> 16) + (other >> 16)
