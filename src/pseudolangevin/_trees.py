"""Basics: pytrees of weights, their packing into one vector, random numbers, and checks of arguments.

Random numbers are functions of (chain key, stream, step, entry), so nothing depends on where a run was cut. A block of
the cipher Threefry at (step, entry) gives two random words. It is JAX's Threefry, written out entry by entry, so that
XLA fuses it with the loop or kernel that uses the words. JAX's own generator is a separate loop on a CPU, several times
slower, and one launch per call on a GPU.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array  # a typed JAX random key, as made by jax.random.key
Weights: TypeAlias = Any  # any pytree of float32 or float64 arrays
Batch: TypeAlias = tuple[Any, Any]  # (inputs, targets), arrays or pytrees of arrays with one leading example axis
PerExample: TypeAlias = Callable[[Weights, Batch], Array]  # maps weights and a batch of S examples to S numbers
Selection: TypeAlias = str | Sequence[str]  # one or several patterns of names of tensors

LARGE_TENSOR = 2**22  # entries; larger tensors are neither packed nor given noise from the common vector


def select(condition: Array, yes: Any, no: Any) -> Any:
    """Return one of two trees, by a scalar boolean."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def largest(tree: Any) -> Array:
    """Return the largest entry of all leaves."""
    return jnp.max(jnp.stack([jnp.max(leaf) for leaf in jax.tree.leaves(tree)]))


def num_weights(weights: Weights) -> int:
    """Return the number of scalar weights, the paper's N."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(weights))


def dot(left: Weights, right: Weights) -> Array:
    """Return the scalar product of two trees of the same structure."""
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), left, right)
    return sum(jax.tree.leaves(products), start=jnp.zeros(()))


def squared_norm(weights: Weights) -> Array:
    """Return the sum of squares, |w|²."""
    return dot(weights, weights)


def fingerprint(weights: Weights) -> Array:
    """Return the sum of the bits of the weights in single precision, which differs where the weights differ."""
    bits = [lax.bitcast_convert_type(jnp.asarray(w, jnp.float32), jnp.uint32) for w in jax.tree.leaves(weights)]
    return sum((jnp.sum(b, dtype=jnp.uint32) for b in bits), jnp.zeros((), jnp.uint32))


def all_finite(tree: Any) -> Array:
    """Return whether every floating-point leaf is free of NaN and infinity; keys and integers do not count."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def layers(weights: Weights) -> dict[str, Weights]:
    """Return the sub-trees that diagnostics call layers: the top-level entries of the pytree.

    A wrapper with a single entry (``{"params": {...}}``) is looked through; a bare array is one layer.
    """
    paths = jax.tree_util.tree_flatten_with_path(weights, is_leaf=lambda node: node is not weights)[0]
    paths = [(path, child) for path, child in paths if jax.tree.leaves(child)]
    if len(paths) == 1 and not jax.tree_util.all_leaves([paths[0][1]]):
        return layers(paths[0][1])
    return {jax.tree_util.keystr(path, simple=True) or "weights": child for path, child in paths}


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a tree with their paths as names, like layer1.kernel; a bare array is called weights."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator=".") or "weights", leaf) for path, leaf in flat]


def by_layer(function: Callable[..., Array], *trees: Weights) -> Array:
    """Return a scalar function of each layer of one or more trees, stacked in the order of `layers`."""
    return jnp.stack([function(*parts) for parts in zip(*(layers(tree).values() for tree in trees), strict=True)])


def mean(tree: Any) -> Array:
    """Return the mean over all entries of all leaves."""
    return sum(map(jnp.sum, jax.tree.leaves(tree)), start=jnp.zeros(())) / float(num_weights(tree))


def quantiles(tree: Any, levels: Sequence[float]) -> Array:
    """Return quantiles over the entries of all leaves; of large trees, over about 2²⁰ entries at equal distances."""
    leaves = jax.tree.leaves(tree)
    stride = -(-num_weights(leaves) // 2**20)
    return jnp.quantile(ravel([leaf[::stride] if leaf.ndim else leaf for leaf in leaves]), jnp.asarray(levels))


def ravel(tree: Any) -> Array:
    """Return all leaves as one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def check_weights(weights: Weights) -> None:
    """Raise unless `weights` is a pytree of finite float32 or float64 arrays."""
    flat = jax.tree_util.tree_flatten_with_path(weights)[0]
    if not any(np.size(leaf) for _, leaf in flat):
        raise ValueError("weights is an empty pytree; pass at least one array, for example network.init(key)")
    for path, leaf in flat:
        name = "weights" + jax.tree_util.keystr(path)
        if (dtype := getattr(leaf, "dtype", type(leaf))) not in (jnp.float32, jnp.float64):
            why = "weights move by steps far smaller than themselves, so they must be arrays of float32 or float64"
            raise ValueError(f"{name} has dtype {dtype}; {why}: cast with jnp.asarray(w).astype('float32')")
        if not bool(jnp.all(jnp.isfinite(leaf))):
            raise ValueError(f"{name} holds NaN or infinity; start from finite weights")


@partial(jax.tree_util.register_dataclass, data_fields=["vector"], meta_fields=["unravel"])
@dataclass(frozen=True)
class Flat:
    """A pytree of tensors packed into one vector: a pytree with one leaf, for arithmetic that is entry by entry.

    On a GPU that takes one launch instead of one for every tensor, and launches are most of the cost of a step at ten
    thousand weights.
    """

    vector: Array
    unravel: Callable[[Array], Weights]


def pack(weights: Weights) -> Flat:
    """Return the tensors packed into one vector."""
    return Flat(*ravel_pytree(weights))


def unpack(weights: Flat | Weights) -> Weights:
    """Return the tensors; a tree that is not packed is returned as it is."""
    return weights.unravel(weights.vector) if isinstance(weights, Flat) else weights


def pack_like(model: Flat | Weights, weights: Weights) -> Flat | Weights:
    """Return `weights`, packed if `model` is packed."""
    return pack(weights) if isinstance(model, Flat) else weights


def is_packable(weights: Weights, *others: Weights) -> bool:
    """Return whether packing pays: the same shapes, single precision, and too small to be split over devices."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(weights)]
    return (
        num_weights(weights) < LARGE_TENSOR
        and all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((weights, others)))
        and all([leaf.shape for leaf in jax.tree.leaves(other)] == shapes for other in others)
    )


def chosen(weights: Weights, selection: Selection) -> Weights:
    """Return a pytree of booleans shaped like `weights`: whether each tensor is chosen by one or several patterns.

    A pattern is compared with the tensor's path, such as `layer3.kernel`; `*` stands for any characters, dots included.
    The last pattern that matches decides. A pattern that begins with `!` excludes tensors; if the first pattern does,
    all other tensors are included.
    """
    patterns = [selection] if isinstance(selection, str) else selection
    if not (isinstance(patterns, list | tuple) and patterns and all(isinstance(entry, str) for entry in patterns)):
        remedy = "pass a string such as 'layer3.*', or a list of them"
        raise ValueError(f"selection = {selection!r} is not a pattern; {remedy}")
    rules = [(pattern.removeprefix("!"), not pattern.startswith("!")) for pattern in patterns]
    return looked_up(weights, [*rules[::-1], ("*", not rules[0][1])], "selection")


def looked_up(weights: Weights, table: Iterable[tuple[str, Any]], argument: str) -> Weights:
    """Return a pytree shaped like `weights` with, for each tensor, the value of the first pattern that matches."""
    table, names, values = list(table), [name for name, _ in named_leaves(weights)], []
    for pattern, _ in table:
        if not any(fnmatchcase(name, pattern) for name in names):
            listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
            raise ValueError(f"{argument}: the pattern {pattern!r} matches no tensor; the names are {listed}")
    for name in names:
        matching = [value for pattern, value in table if fnmatchcase(name, pattern)]
        if not matching:
            remedy = "add one, or a last entry '*' for all others"
            raise ValueError(f"{argument} = {dict(table)} has no pattern for {name}; {remedy}")
        values.append(matching[0])
    return jax.tree.unflatten(jax.tree.structure(weights), values)


# Random numbers.


# Independent uses of a chain's key.
Stream = IntEnum("Stream", "INIT STEP REFRESH BATCH NOISE FRICTION MEASURE EXCHANGE STEIN", start=0)


def stream_keys(key: Key) -> Key:
    """Return the keys of all streams, for use in place of the chain's key: a GPU would fold them at every step."""
    return jnp.stack([jax.random.fold_in(key, stream) for stream in Stream])


def stream_key(key: Key, stream: Stream) -> Key:
    """Return the key of all events of one kind, from a chain's key or its `stream_keys`."""
    is_raw = not jnp.issubdtype(key.dtype, jax.dtypes.prng_key)  # from jax.random.PRNGKey, with an axis more
    return key[stream] if key.ndim > is_raw else jax.random.fold_in(key, stream)


def key_for(key: Key, stream: Stream, step: Array | int) -> Key:
    """Return the key of one event: a function of the chain, the kind of event and the step only."""
    return jax.random.fold_in(stream_key(key, stream), step)


def as_key(key: Key | int) -> Key:
    """Return a random key from a seed or a key; raise for anything else."""
    if isinstance(key, jax.Array) and key.dtype == jnp.uint32 and key.shape == (2,):  # from jax.random.PRNGKey
        return jax.random.wrap_key_data(key)
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
        return key
    if isinstance(key, int | np.integer) and not isinstance(key, bool) and -(2**63) <= key < 2**63:
        return jax.random.key(key)
    raise ValueError(f"key = {key!r} is neither an integer seed nor one key; pass key=0 or key=jax.random.key(0)")


def normal_like(key: Key, weights: Weights, step: Array | int = 0) -> Weights:
    """Return independent standard normal numbers, shaped like `weights`: a function of key, step and entry.

    Small tensors share one vector, which compiles and launches faster. A large tensor has its own, entry by entry, so
    that it is split over devices with its tensor and nothing is moved.
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
    """Return the upper 32 of the 64 bits of a product; `lax.mulhi` cannot be split over devices (jaxlib 0.10)."""
    a_high, a_low, b_high, b_low = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    middle = a_high * b_low + (a_low * b_low >> 16)
    other = a_low * b_high + (middle & 0xFFFF)
    return a_high * b_high + (middle >> 16) + (other >> 16)


# Checks of arguments: every error names the argument, its value, and the remedy.


def check_integer(name: str, value: Any, *, minimum: int, maximum: int | None = None, remedy: str = "") -> None:
    """Raise unless `value` is an integer within bounds."""
    try:
        number = math.nan if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = math.nan
    if not minimum <= number <= (math.inf if maximum is None else maximum):
        bounds = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
        raise ValueError(f"{name} = {value!r} must be an integer {bounds}" + (f"; {remedy}" if remedy else ""))


def check_interval(name: str, value: Any, low: float, high: float, remedy: str, *, open_ends: bool = False) -> None:
    """Raise unless `value` is a finite number from `low` to `high`."""
    number, brackets = as_number(name, value), "()" if open_ends else "[]"
    if not low <= number <= high or (open_ends and number in (low, high)):
        raise ValueError(f"{name} = {value!r} is outside {brackets[0]}{low:g}, {high:g}{brackets[1]}; {remedy}")


def check_positive(name: str, value: Any, remedy: str = "pass a number above zero") -> None:
    """Raise unless `value` is a finite number above zero."""
    if as_number(name, value) <= 0:
        raise ValueError(f"{name} = {value!r} is not positive; {remedy}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of `choices`."""
    if value not in (listed := list(choices)):
        raise ValueError(f"{name} = {value!r}: choose one of {listed}")


def as_number(name: str, value: Any) -> float:
    """Return the value as a float; raise unless it is a finite real number."""
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} = {value!r} is not a finite number; pass one real number")
    return number
