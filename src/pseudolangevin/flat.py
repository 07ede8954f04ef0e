"""A pytree of tensors as one vector, for arithmetic that is entry by entry.

It is a pytree itself, with one leaf: what maps over weights maps over this, in one loop, or on a GPU in one launch,
instead of one for every tensor. At ten thousand weights launches are most of a step.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from . import trees
from .types import Array, Weights


@jax.tree_util.register_pytree_node_class
class Flat:
    """The vector, and how it is cut."""

    def __init__(self, vector: Array, structure: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Where the tensors lie in `vector`, one after another."""
        self.vector, self.structure, self.shapes = vector, structure, shapes

    @property
    def tree(self) -> Weights:
        """The tensors."""
        tensors, used = [], 0
        for shape in self.shapes:
            end = used + math.prod(shape)
            tensors.append(self.vector[used:end].reshape(shape))
            used = end
        return jax.tree.unflatten(self.structure, tensors)

    def tree_flatten(self) -> tuple[tuple[Array], tuple[Any, tuple[tuple[int, ...], ...]]]:
        """Children and auxiliary data, for JAX."""
        return (self.vector,), (self.structure, self.shapes)

    @classmethod
    def tree_unflatten(cls, cut: tuple[Any, tuple[tuple[int, ...], ...]], children: tuple[Array]) -> Flat:
        """Rebuild."""
        return cls(children[0], *cut)


def pack(weights: Weights) -> Flat:
    """The tensors as one vector."""
    leaves, structure = jax.tree.flatten(weights)
    return Flat(trees.ravel(weights), structure, tuple(leaf.shape for leaf in leaves))


def unpack(weights: Flat | Weights) -> Weights:
    """The tensors; as they are where they were not packed."""
    return weights.tree if isinstance(weights, Flat) else weights


def pack_like(model: Flat | Weights, weights: Weights) -> Flat | Weights:
    """The tensors as one vector where those of `model` are one."""
    return pack(weights) if isinstance(model, Flat) else weights


def fits(weights: Weights, *others: Weights) -> bool:
    """Whether these trees are worth packing: the same shapes, single precision, and too small to be split or copied."""
    leaves = jax.tree.leaves(weights)
    shapes = [leaf.shape for leaf in leaves]
    return (
        trees.num_weights(weights) < trees.LARGE
        and all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((weights, others)))
        and all([leaf.shape for leaf in jax.tree.leaves(other)] == shapes for other in others)
    )
