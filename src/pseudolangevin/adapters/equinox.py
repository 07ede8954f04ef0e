"""Equinox modules: functions of one example, mapped over the batch."""

from __future__ import annotations

from typing import Any

import jax

from .. import trees
from ..types import Array, Weights
from .model import Model, missing, refuse_layer

REMEDY = "call equinox.nn.inference_mode(module) first"


def from_equinox(module: Any, state: Any | None = None) -> Model:
    """The floating-point arrays of an Equinox module as weights.

    `apply` maps the module over the examples, so the module is written for one example, as Equinox has it. It gets no
    random key: layers that need one (dropout) or that learn from the batch (batch norm) are refused, unless they
    are in inference mode, where they are plain functions.

    Args:
        module: any `equinox.Module`, called as module(input). Arrays that are not to be sampled: see `pl.subset`.
        state: of a module with state, called as module(input, state) and returning (output, state): the running
            averages of batch norm in inference mode. It stays as it is.

    Example:
        >>> model = from_equinox(module)  # doctest: +SKIP
        >>> potential = pl.classification(model.apply, weight_decay=1.0)  # doctest: +SKIP
        >>> sampled = model.write_back(jax.tree.map(lambda w: w[0, 0], result.weights))  # doctest: +SKIP
    """
    try:
        import equinox as eqx  # noqa: PLC0415 (an optional dependency)
    except ImportError as error:
        raise missing("equinox", error) from None
    if not isinstance(module, eqx.Module):
        raise ValueError(f"module = {module!r} is not an equinox.Module; pass one, after its __init__")
    _refuse_random_layers(eqx, module, has_state=state is not None)
    weights, rest = eqx.partition(module, eqx.is_inexact_array)
    trees.check_weights(weights)

    def apply(weights: Weights, inputs: Any) -> Array:
        network: Any = eqx.combine(weights, rest)
        if state is None:
            return jax.vmap(network)(inputs)
        return jax.vmap(lambda example: network(example, state)[0])(inputs)

    def restore(weights: Weights) -> Any:
        return eqx.combine(jax.tree.map(jax.numpy.asarray, weights), rest)

    return Model(weights, apply, restore)


def _refuse_random_layers(eqx: Any, module: Any, *, has_state: bool) -> None:
    nn = eqx.nn
    stateful = tuple(kind for name in ("BatchNorm", "SpectralNorm") if (kind := getattr(nn, name, None)) is not None)
    special = (nn.Dropout, *stateful, nn.StateIndex)
    for path, layer in jax.tree_util.tree_flatten_with_path(module, is_leaf=lambda node: isinstance(node, special))[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if isinstance(layer, nn.Dropout) and not layer.inference and layer.p > 0:
            raise refuse_layer("Equinox", name, layer, f"drops {layer.p:g} of its inputs at random", REMEDY)
        if isinstance(layer, stateful) and not layer.inference:
            raise refuse_layer("Equinox", name, layer, "learns a state from the batches it sees", REMEDY)
        if isinstance(layer, (*stateful, nn.StateIndex)) and not has_state:
            raise refuse_layer(
                "Equinox", name, layer, "reads a state that was not given", "pass from_equinox(module, state)"
            )
