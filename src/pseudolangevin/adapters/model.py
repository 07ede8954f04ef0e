"""What every adapter of a framework gives: weights, a function of them, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .. import trees
from ..types import Array, Weights

NO_BOLTZMANN = "without a fixed function of the weights there is no U, hence no exp(−U/T)"
"""Why randomness and state are refused."""


@dataclass(frozen=True, eq=False)
class Model:
    """A network of another framework as this package sees networks."""

    weights: Weights
    """The weights as they are now: a pytree of float32 arrays, and where chains start."""
    apply: Callable[[Weights, Any], Array]
    """Maps (weights, inputs) of S examples to S outputs."""
    restore: Callable[[Weights], Any]
    """Unchecked: use `write_back`."""

    def write_back(self, weights: Weights) -> Any:
        """The original object with these weights; PyTorch and Flax modules are changed in place, Equinox's are copied.

        Args:
            weights: of one chain, such as jax.tree.map(lambda w: w[0, 0], result.weights).
        """
        expected: Any = jax.tree.structure(self.weights)
        found: Any = jax.tree.structure(weights)
        if found != expected:
            raise ValueError(
                f"weights is a pytree {found}, the model's is {expected}; where a subset was sampled, "
                "write back subset.merge(weights)"
            )
        for (name, old), new in zip(trees.named_leaves(self.weights), jax.tree.leaves(weights), strict=True):
            if jnp.shape(new) != old.shape:
                raise ValueError(
                    f"{name} has shape {jnp.shape(new)}, the model's has {old.shape}; pick one chain, for example "
                    "jax.tree.map(lambda w: w[0, 0], result.weights)"
                )
        return self.restore(weights)


def refuse_layer(framework: str, path: str, layer: Any, why: str, remedy: str) -> ValueError:
    """The error for a layer that cannot be sampled."""
    name = f"{path} ({type(layer).__name__})" if path else type(layer).__name__
    return ValueError(f"the {framework} layer {name} {why}: {NO_BOLTZMANN}; {remedy}")


def missing(framework: str, error: ImportError) -> ImportError:
    """The error for a framework that is not installed."""
    return ImportError(f"{error}; install the extra: pip install 'pseudolangevin[{framework}]'")
