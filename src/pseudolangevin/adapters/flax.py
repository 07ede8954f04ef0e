"""Flax NNX modules: their Params are the weights, everything else stays as it is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .. import trees
from ..types import Array, Weights
from .model import Model, missing, refuse_layer

REMEDY = "call module.eval() first"


def from_flax(module: Any) -> Model:
    """The `nnx.Param`s of a Flax NNX module as weights: a plain dictionary, named as the module's attributes.

    All other variables are held fixed. Layers that draw random numbers (dropout) or learn from the batch (batch norm)
    are refused, unless the module is in evaluation mode, where they are plain functions; a module of your own that
    changes any variable when called is refused when it is first called.

    Args:
        module: an `nnx.Module`, called as module(inputs) on a batch.

    Example:
        >>> model = from_flax(module)  # doctest: +SKIP
        >>> potential = pl.classification(model.apply, weight_decay=1.0)  # doctest: +SKIP
        >>> model.write_back(jax.tree.map(lambda w: w[0, 0], result.weights))  # doctest: +SKIP
    """
    try:
        from flax import nnx  # noqa: PLC0415 (an optional dependency)
    except ImportError as error:
        raise missing("flax", error) from None
    if not isinstance(module, nnx.Module):
        raise ValueError(
            f"module = {module!r} is not an nnx.Module; for the older flax.linen pass module.apply and its params "
            "straight to pl.classification or pl.Potential"
        )
    _refuse_random_layers(nnx, module)
    parts: Any = nnx.split(module, nnx.Param, ...)
    definition, params, rest = parts
    # Copies: the module may be trained on, and its buffers donated, while chains run.
    weights = jax.tree.map(jnp.array, nnx.to_pure_dict(params))
    trees.check_weights(weights)

    def copied(state: Any) -> Any:
        """Variables of its own for every call: those of the module are never touched."""
        return jax.tree.map(lambda leaf: leaf, state)

    def filled(weights: Weights) -> Any:
        state = copied(params)
        nnx.replace_by_pure_dict(state, weights)
        return state

    def apply(weights: Weights, inputs: Any) -> Array:
        network = nnx.merge(definition, filled(weights), copied(rest))
        before = _other_variables(nnx, network)
        outputs = network(inputs)
        for path, value in _other_variables(nnx, network).items():
            if before.get(path) is not value:
                raise ValueError(
                    f"the Flax module changes its variable {path} when called: it draws random numbers or learns from "
                    f"the batch, so that there is no U, hence no exp(−U/T); {REMEDY}, or hold that variable fixed"
                )
        return outputs

    def restore(weights: Weights) -> Any:
        nnx.update(module, filled(jax.tree.map(jnp.asarray, weights)))
        return module

    return Model(weights, apply, restore)


def _other_variables(nnx: Any, module: Any) -> dict[str, Any]:
    """The values of all variables but the weights, by path."""
    state = nnx.state(module, nnx.Not(nnx.Param))
    return {".".join(map(str, path)): variable.get_raw_value() for path, variable in nnx.to_flat_state(state)}


def _refuse_random_layers(nnx: Any, module: Any) -> None:
    for path, layer in nnx.iter_modules(module):
        name = ".".join(map(str, path))
        rate = getattr(layer, "rate", getattr(layer, "dropout_rate", 0.0))
        if getattr(layer, "deterministic", True) is False and isinstance(rate, int | float) and rate > 0:
            raise refuse_layer("Flax", name, layer, f"drops {rate:g} of its inputs at random", REMEDY)
        if getattr(layer, "use_running_average", True) is False:
            raise refuse_layer("Flax", name, layer, "normalises each example by its batch", REMEDY)
