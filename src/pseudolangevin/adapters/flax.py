"""Flax NNX modules: the Params are the weights; all other variables are held fixed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .. import _trees
from .._trees import Array, Weights
from . import Model, layer_error, load_optional


def from_flax(module: Any) -> Model:
    """Return the `nnx.Param`s of a Flax NNX module as a dictionary of weights, and the module as a function of them.

    A module of your own that changes a variable when called (a random stream, a running average) is rejected when it
    is first called.

    Args:
        module: an `nnx.Module` in evaluation mode, called as module(inputs) on a batch.

    Example:
        >>> model = from_flax(module)  # doctest: +SKIP
        >>> potential = pl.classification(model.apply, weight_decay=1.0)  # doctest: +SKIP
        >>> model.write_back(jax.tree.map(lambda w: w[0, 0], result.weights))  # doctest: +SKIP
    """
    nnx = load_optional("flax.nnx", "flax")
    if not isinstance(module, nnx.Module):
        raise ValueError(
            f"module = {module!r} is not an nnx.Module; for the older flax.linen pass module.apply and its params "
            "straight to pl.classification or pl.Potential"
        )
    remedy = "call module.eval() first"
    _check_layers(nnx, module, remedy)
    parts: Any = nnx.split(module, nnx.Param, ...)
    definition, params, rest = parts
    # Copies: the module may be trained further, and its buffers donated, while chains run.
    weights = jax.tree.map(jnp.array, nnx.to_pure_dict(params))
    _trees.check_weights(weights)

    def copied(state: Any) -> Any:
        """Return new variables, so that a call never changes those of the module."""
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
                    f"the batch, so that there is no U, hence no exp(-U/T); {remedy}, or hold that variable fixed"
                )
        return outputs

    def restore(weights: Weights) -> Any:
        nnx.update(module, filled(jax.tree.map(jnp.asarray, weights)))
        return module

    return Model(weights, apply, restore)


def _other_variables(nnx: Any, module: Any) -> dict[str, Any]:
    """Return the values of all variables except the weights, by path."""
    state = nnx.state(module, nnx.Not(nnx.Param))
    return {".".join(map(str, path)): variable.get_raw_value() for path, variable in nnx.to_flat_state(state)}


def _check_layers(nnx: Any, module: Any, remedy: str) -> None:
    for path, layer in nnx.iter_modules(module):
        name = ".".join(map(str, path))
        rate = getattr(layer, "rate", getattr(layer, "dropout_rate", 0.0))
        if getattr(layer, "deterministic", True) is False and isinstance(rate, int | float) and rate > 0:
            raise layer_error("Flax", name, layer, f"drops {rate:g} of its inputs at random", remedy)
        if getattr(layer, "use_running_average", True) is False:
            raise layer_error("Flax", name, layer, "normalises each example by its batch", remedy)
