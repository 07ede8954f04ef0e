"""Adapters for other frameworks and for ArviZ; the rest of the package does not import them.

`from_equinox`, `from_flax` and `from_torch` return a `Model`: the weights of a network as a pytree, the function from
weights and inputs to outputs, and the way back to the original object. Layers that draw random numbers (dropout) or
depend on the other examples of the batch (batch norm) are rejected unless they are in evaluation mode: without a fixed
function of the weights there is no potential U, hence no distribution exp(-U/T).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .. import _trees
from .._trees import Array, Weights


@dataclass(frozen=True, eq=False)
class Model:
    """A network of another framework.

    Attributes:
        weights: the current weights, a pytree of float32 arrays, for chains to start from.
        apply: function from (weights, inputs) of S examples to S outputs.
        restore: function from weights to the original object, without checks; use `write_back`.
    """

    weights: Weights
    apply: Callable[[Weights, Any], Array]
    restore: Callable[[Weights], Any]

    def write_back(self, weights: Weights) -> Any:
        """Return the original object with these weights; PyTorch and Flax modules are changed in place.

        Args:
            weights: weights of one chain, such as jax.tree.map(lambda w: w[0, 0], result.weights).
        """
        expected: Any = jax.tree.structure(self.weights)
        found: Any = jax.tree.structure(weights)
        if found != expected:
            raise ValueError(
                f"weights is a pytree {found}, but that of the model is {expected}; "
                "if a subset was sampled, write back subset.merge(weights)"
            )
        for (name, old), new in zip(_trees.named_leaves(self.weights), jax.tree.leaves(weights), strict=True):
            if jnp.shape(new) != old.shape:
                raise ValueError(
                    f"{name} has shape {jnp.shape(new)}, but that of the model has {old.shape}; pick one chain, "
                    "for example jax.tree.map(lambda w: w[0, 0], result.weights)"
                )
        return self.restore(weights)


def layer_error(framework: str, path: str, layer: Any, why: str, remedy: str) -> ValueError:
    """Return the error for a layer that cannot be sampled."""
    name = f"{path} ({type(layer).__name__})" if path else type(layer).__name__
    return ValueError(
        f"the {framework} layer {name} {why}: without a fixed function of the weights there is no U, "
        f"hence no exp(-U/T); {remedy}"
    )


def load_optional(module: str, extra: str) -> Any:
    """Import a module of an optional dependency."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{error}; install the extra: pip install 'pseudolangevin[{extra}]'") from None
