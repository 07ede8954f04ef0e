"""Adapters for other frameworks and for ArviZ; the rest of the package does not import them.

`from_equinox`, `from_flax` and `from_torch` return a `Model`. Layers that draw random numbers (dropout) or depend on
other examples of the batch (batch norm) are rejected unless they are in evaluation mode: without a fixed function of
the weights there is no potential U, hence no distribution exp(-U/T). See docs/models.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .._trees import Array, Weights, named_leaves


@dataclass(frozen=True, eq=False)
class Model:
    """A network of another framework."""

    weights: Weights
    """Current weights, a pytree of float32 arrays, for chains to start from."""
    apply: Callable[[Weights, Any], Array]
    """Function from (weights, inputs) of S examples to S outputs."""
    restore: Callable[[Weights], Any]
    """Function from weights to the original object, without checks; use `write_back`."""

    def write_back(self, weights: Weights) -> Any:
        """Return the original object with the weights of one chain; PyTorch and Flax modules are changed in place."""
        expected: Any = jax.tree.structure(self.weights)
        found: Any = jax.tree.structure(weights)
        if found != expected:
            remedy = "if a subset was sampled, write back subset.merge(weights)"
            raise ValueError(f"weights is a pytree {found}, but that of the model is {expected}; {remedy}")
        for (name, old), new in zip(named_leaves(self.weights), jax.tree.leaves(weights), strict=True):
            if jnp.shape(new) != old.shape:
                remedy = "pick one chain, for example jax.tree.map(lambda w: w[0, 0], result.weights)"
                raise ValueError(f"{name} has shape {jnp.shape(new)}, but that of the model has {old.shape}; {remedy}")
        return self.restore(weights)


def layer_error(path: str, layer: Any, why: str, remedy: str) -> ValueError:
    """Return the error for a layer that cannot be sampled."""
    reason = "without a fixed function of the weights there is no U, hence no exp(-U/T)"
    return ValueError(f"the layer {path} ({type(layer).__name__}) {why}: {reason}; {remedy}")
