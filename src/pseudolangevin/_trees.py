"""Pytrees of weights: type aliases, arithmetic, names of tensors, and packing into one vector."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array  # a typed JAX random key, as made by jax.random.key
Weights: TypeAlias = Any  # any pytree of float32 or float64 arrays
Batch: TypeAlias = tuple[Any, Any]  # (inputs, targets), arrays or pytrees of arrays with one leading example axis
PerExample: TypeAlias = Callable[[Weights, Batch], Array]  # maps weights and a batch of S examples to S numbers
Selection: TypeAlias = str | Sequence[str] | Any  # a pattern, several patterns, or a pytree of booleans

LARGE_TENSOR = 2**22  # entries; larger tensors are neither packed nor given noise from the common vector


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
    bits = [jax.lax.bitcast_convert_type(jnp.asarray(w, jnp.float32), jnp.uint32) for w in jax.tree.leaves(weights)]
    return sum((jnp.sum(b, dtype=jnp.uint32) for b in bits), jnp.zeros((), jnp.uint32))


def spread(value: Any, weights: Weights) -> Weights:
    """Return a tree with the number `value` for every tensor; a tree shaped like `weights` is returned as it is."""
    return jax.tree.map(lambda _: value, weights) if jax.tree_util.all_leaves([value]) else value


def zeros_like(weights: Weights) -> Weights:
    """Return zeros, shaped like `weights`."""
    return jax.tree.map(jnp.zeros_like, weights)


def select(predicate: Array, on_true: Any, on_false: Any) -> Any:
    """Return one of two trees, by a scalar boolean."""
    return jax.tree.map(lambda a, b: jnp.where(predicate, a, b), on_true, on_false)


def all_finite(tree: Any) -> Array:
    """Return whether every floating-point leaf is free of NaN and infinity; keys and integers do not count."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def layers(weights: Weights) -> dict[str, Weights]:
    """Return the sub-trees that diagnostics call layers: the top-level entries of the pytree.

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
    """Return the leaves of a tree with their paths as names, like layer1.kernel; a bare array is called weights."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator=".") or "weights", leaf) for path, leaf in flat]


def by_layer(function: Callable[[Weights], Array], weights: Weights) -> Array:
    """Return a scalar function of each layer, stacked in the order of `layers`."""
    return jnp.stack([function(layer) for layer in layers(weights).values()])


def mean(tree: Any) -> Array:
    """Return the mean over all entries of all leaves."""
    leaves = jax.tree.leaves(tree)
    return sum((jnp.sum(leaf) for leaf in leaves), start=jnp.zeros(())) / float(num_weights(leaves))


def largest(tree: Any) -> Array:
    """Return the largest entry of all leaves."""
    return jnp.max(jnp.stack([jnp.max(leaf) for leaf in jax.tree.leaves(tree)]))


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
            why = "weights move by steps far smaller than themselves, so they must be float32 or float64"
            raise ValueError(f"{name} has dtype {dtype}; {why}: cast with .astype('float32')")
        if not bool(jnp.all(jnp.isfinite(leaf))):
            raise ValueError(f"{name} holds NaN or infinity; start from finite weights")


@jax.tree_util.register_pytree_node_class
class Flat:
    """A pytree of tensors packed into one vector, for arithmetic that is entry by entry.

    It is a pytree with one leaf, so what maps over weights maps over it in one loop, or on a GPU in one launch,
    instead of one launch for every tensor. At ten thousand weights, launches are most of the cost of a step.
    """

    def __init__(self, vector: Array, structure: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Store the vector, in which tensors of `shapes` follow each other."""
        self.vector, self.structure, self.shapes = vector, structure, shapes

    @property
    def tree(self) -> Weights:
        """The tensors."""
        ends = list(itertools.accumulate(map(math.prod, self.shapes), initial=0))
        cuts = zip(itertools.pairwise(ends), self.shapes, strict=True)
        return jax.tree.unflatten(self.structure, [self.vector[a:b].reshape(shape) for (a, b), shape in cuts])

    def tree_flatten(self) -> tuple[tuple[Array], tuple[Any, tuple[tuple[int, ...], ...]]]:
        """Return children and auxiliary data, for JAX."""
        return (self.vector,), (self.structure, self.shapes)

    @classmethod
    def tree_unflatten(cls, cut: tuple[Any, tuple[tuple[int, ...], ...]], children: tuple[Array]) -> Flat:
        """Rebuild from children and auxiliary data, for JAX."""
        return cls(children[0], *cut)


def pack(weights: Weights) -> Flat:
    """Return the tensors packed into one vector."""
    leaves, structure = jax.tree.flatten(weights)
    return Flat(ravel(weights), structure, tuple(leaf.shape for leaf in leaves))


def unpack(weights: Flat | Weights) -> Weights:
    """Return the tensors; a tree that is not packed is returned as it is."""
    return weights.tree if isinstance(weights, Flat) else weights


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


def chosen(weights: Weights, selection: Selection, argument: str = "selection") -> Weights:
    """Return a pytree of booleans shaped like `weights`: whether each tensor is chosen.

    A pattern is compared with the tensor's path, such as `layer3.kernel`; `*` stands for any characters, dots included.
    The last pattern that matches decides. A pattern that begins with `!` excludes tensors; if the first pattern does,
    all other tensors are included.

    Args:
        weights: any pytree of arrays.
        selection: a pattern, a list of patterns, or a mask: a pytree shaped like `weights` with True or False for every
            tensor.
        argument: name of the argument in error messages.
    """
    names = [name for name, _ in named_leaves(weights)]
    patterns = [selection] if isinstance(selection, str) else selection
    if not (isinstance(patterns, list | tuple) and patterns and all(isinstance(entry, str) for entry in patterns)):
        return _check_mask(weights, selection, argument)
    _check_patterns_match([pattern.removeprefix("!") for pattern in patterns], names, argument)

    def is_taken(name: str) -> bool:
        matching = [pattern for pattern in patterns if fnmatchcase(name, pattern.removeprefix("!"))]
        return not matching[-1].startswith("!") if matching else patterns[0].startswith("!")

    return jax.tree.unflatten(jax.tree.structure(weights), map(is_taken, names))


def looked_up(weights: Weights, table: Mapping[str, Any], argument: str) -> Weights:
    """Return a pytree shaped like `weights` with, for each tensor, the value of the first pattern that matches."""
    names = [name for name, _ in named_leaves(weights)]
    _check_patterns_match(list(table), names, argument)
    return jax.tree.unflatten(jax.tree.structure(weights), [first_match(name, table, argument) for name in names])


def first_match(name: str, table: Mapping[str, Any], argument: str) -> Any:
    """Return the value of the first pattern in `table` that matches the tensor's name."""
    for pattern, value in table.items():
        if fnmatchcase(name, pattern):
            return value
    remedy = "add one, or a last entry '*' for all others"
    raise ValueError(f"{argument} = {dict(table)} has no pattern for {name}; {remedy}")


def _check_mask(weights: Weights, mask: Any, argument: str) -> Weights:
    structure: Any = jax.tree.structure(weights)
    if jax.tree.structure(mask) != structure:
        remedy = "pass a string such as 'layer3.*', a list of them, or a pytree with True or False for every tensor"
        raise ValueError(f"{argument} = {mask!r} is neither a pattern nor a mask shaped like the weights; {remedy}")
    for leaf in jax.tree.leaves(mask):
        if np.ndim(leaf) != 0 or np.asarray(leaf).dtype != np.bool_:
            raise ValueError(f"{argument} holds {leaf!r}; a mask has one True or False for every tensor")
    return jax.tree.map(bool, mask)


def _check_patterns_match(patterns: list[str], names: list[str], argument: str) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
            raise ValueError(f"{argument}: the pattern {pattern!r} matches no tensor; the names are {listed}")
