"""Arithmetic on pytrees of weights: norms, noise of the same shape, and what counts as a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from . import threefry
from .normals import standard_normal
from .types import Array, Key, Weights

LARGE = 2**22
"""Entries of a tensor from which on it is worth a generator of its own."""
QUANTILE_ENTRIES = 2**20
"""Entries at most, or little more, that quantiles are taken from."""


def num_weights(weights: Weights) -> int:
    """Number of scalar weights, the paper's N."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(weights))


def dot(left: Weights, right: Weights) -> Array:
    """Scalar product of two trees of the same structure."""
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), left, right)
    return sum(jax.tree.leaves(products), start=jnp.zeros(()))


def squared_norm(weights: Weights) -> Array:
    """The sum of squares, |w|²."""
    return dot(weights, weights)


def fingerprint(weights: Weights) -> Array:
    """A number that differs, all but surely, where the weights do: the sum of their bits in single precision."""
    bits = [jax.lax.bitcast_convert_type(jnp.asarray(w, jnp.float32), jnp.uint32) for w in jax.tree.leaves(weights)]
    return sum((jnp.sum(b, dtype=jnp.uint32) for b in bits), jnp.zeros((), jnp.uint32))


def normal_like(key: Key, weights: Weights, step: Array | int = 0) -> Weights:
    """Independent standard normal numbers, shaped like `weights`: a function of the key, the step and the entry.

    They are computed as one vector and cut into tensors: one generator compiles and launches faster than one for each.
    A large tensor has its own, entry by entry, so that it is split over devices with its tensor and nothing is moved.
    """
    leaves, structure = jax.tree.flatten(weights)
    dtype = jnp.result_type(*leaves)
    looked_up = dtype == jnp.float32 and threefry.applies(key, num_weights(leaves))
    own_key = jax.random.fold_in(key, step)

    def normal(shape: tuple[int, ...], first: int, position: int) -> Array:
        if looked_up:
            return standard_normal(key, step, threefry.numbered(shape, first))
        return jax.random.normal(jax.random.fold_in(own_key, position), shape, dtype)

    flat = normal((sum(leaf.size for leaf in leaves if leaf.size < LARGE),), 0, len(leaves))
    pieces, used, first = [], 0, flat.size
    for position, leaf in enumerate(leaves):
        if leaf.size < LARGE:
            piece, used = flat[used : used + leaf.size].reshape(leaf.shape), used + leaf.size
        else:
            piece, first = normal(leaf.shape, first, position), first + leaf.size
        pieces.append(piece.astype(leaf.dtype))
    return jax.tree.unflatten(structure, pieces)


def spread(value: Any, weights: Weights) -> Weights:
    """One number as a tree with that number for every tensor; a tree shaped like `weights` as it is."""
    return jax.tree.map(lambda _: value, weights) if jax.tree_util.all_leaves([value]) else value


def zeros_like(weights: Weights) -> Weights:
    """Zeros, shaped like `weights`."""
    return jax.tree.map(jnp.zeros_like, weights)


def select(predicate: Array, on_true: Any, on_false: Any) -> Any:
    """One of two whole trees, by a scalar truth value."""
    return jax.tree.map(lambda a, b: jnp.where(predicate, a, b), on_true, on_false)


def all_finite(tree: Any) -> Array:
    """Whether every floating-point leaf is free of NaN and infinity; keys and integers do not count."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def layers(weights: Weights) -> dict[str, Weights]:
    """The sub-trees that diagnostics call layers: the top-level entries of the pytree.

    A wrapper with a single entry (``{"params": {...}}``) is looked through; a bare array is one layer.
    """
    children = jax.tree_util.default_registry.flatten_one_level(weights)
    if children is None:
        return {"weights": weights}
    paths = jax.tree_util.tree_flatten_with_path(weights, is_leaf=lambda node: node is not weights)[0]
    paths = [(path, child) for path, child in paths if jax.tree.leaves(child)]
    if len(paths) == 1 and jax.tree_util.default_registry.flatten_one_level(paths[0][1]) is not None:
        return layers(paths[0][1])
    return {jax.tree_util.keystr(path, simple=True): child for path, child in paths}


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a tree with their paths as names, like layer1.kernel; a bare array is called weights."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator=".") or "weights", leaf) for path, leaf in flat]


def by_layer(function: Callable[[Weights], Array], weights: Weights) -> Array:
    """A scalar function of each layer, stacked in the order of `layers`."""
    return jnp.stack([function(layer) for layer in layers(weights).values()])


def mean(tree: Any) -> Array:
    """The mean over all entries of all leaves."""
    leaves = jax.tree.leaves(tree)
    return sum((jnp.sum(leaf) for leaf in leaves), start=jnp.zeros(())) / float(num_weights(leaves))


def largest(tree: Any) -> Array:
    """The largest entry of all leaves."""
    return jnp.max(jnp.stack([jnp.max(leaf) for leaf in jax.tree.leaves(tree)]))


def quantiles(tree: Any, levels: Sequence[float]) -> Array:
    """Quantiles over the entries of all leaves; where there are very many, over every so many-th along the first axis.

    Sorting needs all of them in one place.
    """
    leaves = jax.tree.leaves(tree)
    stride = -(-num_weights(leaves) // QUANTILE_ENTRIES)
    return jnp.quantile(ravel([leaf[::stride] if leaf.ndim else leaf for leaf in leaves]), jnp.asarray(levels))


def ravel(tree: Any) -> Array:
    """All leaves as one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def check_weights(weights: Weights) -> None:
    """Refuse what cannot be sampled: no weights at all, weights that are not float32 or float64, or not finite."""
    flat = jax.tree_util.tree_flatten_with_path(weights)[0]
    if not flat or num_weights([leaf for _, leaf in flat if hasattr(leaf, "shape")]) == 0:
        raise ValueError(
            "weights is an empty pytree; pass at least one array of weights, for example network.init(key)"
        )
    for path, leaf in flat:
        name = "weights" + jax.tree_util.keystr(path)
        dtype = getattr(leaf, "dtype", None)
        if dtype is None:
            raise ValueError(f"{name} is {leaf!r}, not an array; wrap it with jnp.asarray")
        if dtype not in (jnp.float32, jnp.float64):
            raise ValueError(
                f"{name} has dtype {dtype}; weights move by steps far smaller than themselves, "
                "so they must be float32 or float64: cast with .astype('float32')"
            )
        if not bool(jnp.all(jnp.isfinite(leaf))):
            raise ValueError(f"{name} holds NaN or infinity; start from finite weights")
