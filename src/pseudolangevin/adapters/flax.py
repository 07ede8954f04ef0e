"""Flax NNX modules: the Params are the weights; all other variables are held fixed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from .._trees import Array, Weights, check_weights
from . import Model


def from_flax(module: Any) -> Model:
    """Return the Params of a Flax NNX module as a dictionary of weights, and the module as a function of them.

    A module that changes a variable when called is rejected at its first call: dropout changes its random stream, batch
    norm its running averages.

    Args:
        module: an `nnx.Module` in evaluation mode, called as module(inputs) on a batch.
    """
    if not isinstance(module, nnx.Module):
        remedy = "for the older flax.linen pass module.apply and its params straight to pl.classification"
        raise ValueError(f"module = {module!r} is not an nnx.Module; {remedy}")
    parts: Any = nnx.split(module, nnx.Param, ...)
    definition, params, rest = parts
    # Copies: the module may be trained further, and its buffers donated, while chains run.
    weights = jax.tree.map(jnp.array, nnx.to_pure_dict(params))
    check_weights(weights)

    def copied(state: Any) -> Any:  # new variables, so that a call never changes the module's
        return jax.tree.map(lambda leaf: leaf, state)

    def filled(weights: Weights) -> Any:
        state = copied(params)
        nnx.replace_by_pure_dict(state, weights)
        return state

    def fixed(network: Any) -> dict[str, Any]:
        state = nnx.to_flat_state(nnx.state(network, nnx.Not(nnx.Param)))
        return {".".join(map(str, path)): variable.get_raw_value() for path, variable in state}

    def apply(weights: Weights, inputs: Any) -> Array:
        network = nnx.merge(definition, filled(weights), copied(rest))
        before = fixed(network)
        outputs = network(inputs)
        for path, value in fixed(network).items():
            if before.get(path) is not value:
                why = "it draws random numbers or learns from the batch, so that there is no U, hence no exp(-U/T)"
                remedy = "call module.eval() first, or hold that variable fixed"
                raise ValueError(f"the Flax module changes its variable {path} when called: {why}; {remedy}")
        return outputs

    def restore(weights: Weights) -> Any:
        nnx.update(module, filled(jax.tree.map(jnp.asarray, weights)))
        return module

    return Model(weights, apply, restore)
