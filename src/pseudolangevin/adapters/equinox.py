"""Equinox modules: functions of one example, mapped over the batch."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._trees import Array, Weights, check_weights
from . import Model, layer_error


def from_equinox(module: Any, state: Any | None = None) -> Model:
    """Return the floating-point arrays of an Equinox module as weights, and the module as a function of a batch.

    Args:
        module: an `equinox.Module`, called on one example as module(input). To sample some of its arrays, use `subset`.
        state: state of a module that is called as module(input, state) and returns (output, state), such as the running
            averages of batch norm in inference mode; it is held fixed.
    """
    if not isinstance(module, eqx.Module):
        raise ValueError(f"module = {module!r} is not an equinox.Module; pass one, after its __init__")
    stateful = (eqx.nn.BatchNorm, eqx.nn.SpectralNorm)
    special = (eqx.nn.Dropout, *stateful, eqx.nn.StateIndex)
    for path, layer in jax.tree_util.tree_flatten_with_path(module, is_leaf=lambda node: isinstance(node, special))[0]:
        why, remedy = None, "call equinox.nn.inference_mode(module) first"
        if isinstance(layer, eqx.nn.Dropout) and not layer.inference and layer.p > 0:
            why = f"drops {layer.p:g} of its inputs at random"
        elif isinstance(layer, stateful) and not layer.inference:
            why = "learns a state from its batches"
        elif isinstance(layer, (*stateful, eqx.nn.StateIndex)) and state is None:
            why, remedy = "reads a state that was not given", "pass from_equinox(module, state)"
        if why is not None:
            raise layer_error(jax.tree_util.keystr(path, simple=True, separator="."), layer, why, remedy)
    weights, rest = eqx.partition(module, eqx.is_inexact_array)
    check_weights(weights)

    def apply(weights: Weights, inputs: Any) -> Array:
        network: Any = eqx.combine(weights, rest)
        return jax.vmap(network if state is None else lambda example: network(example, state)[0])(inputs)

    return Model(weights, apply, lambda weights: eqx.combine(jax.tree.map(jnp.asarray, weights), rest))
