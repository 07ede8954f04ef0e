"""PyTorch modules, translated into JAX by torch2jax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import trees
from ..types import Array, Weights
from .model import Model, missing, refuse_layer

REMEDY = "call module.eval() first"
TOLERANCE = 1e-4
"""Largest difference of translated outputs from PyTorch's own, relative to the largest output: far above rounding, far
below a wrong formula."""


def from_torch(module: Any, example_inputs: Any) -> Model:
    """The parameters of a PyTorch module as weights, and its forward pass in JAX.

    Weights are named as in the `state_dict` and grouped by the layer that owns them; parameters with
    requires_grad = False, and all buffers, stay as they are. Parameters shared between layers are one weight. The
    translation (torch2jax) knows the common layers only, so it is tried on `example_inputs` and compared with PyTorch.

    Layers that draw random numbers (dropout) or learn from the batch (batch norm) are refused, unless the module is in
    evaluation mode, where they are plain functions.

    Args:
        module: any `torch.nn.Module`, called on a batch; a tuple of inputs is passed as several arguments.
        example_inputs: at least two examples, as arrays with a leading example axis.

    Example:
        >>> model = from_torch(module.eval(), inputs[:4])  # doctest: +SKIP
        >>> potential = pl.classification(model.apply, weight_decay=1.0)  # doctest: +SKIP
        >>> model.write_back(jax.tree.map(lambda w: w[0, 0], result.weights)).state_dict()  # doctest: +SKIP
    """
    try:
        import torch  # noqa: PLC0415 (an optional dependency)
        import torch2jax  # noqa: PLC0415
    except ImportError as error:
        raise missing("torch", error) from None
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"module = {module!r} is not a torch.nn.Module; pass one, after its __init__")
    _refuse_random_layers(torch, module)
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    weights = _nested({name: _as_array(parameter) for name, parameter in parameters.items()})
    trees.check_weights(weights)
    # A parameter shared by two layers has two names in the state_dict, and one here.
    owner = {id(parameter): name for name, parameter in parameters.items()}
    source = {name: owner.get(id(tensor)) for name, tensor in module.state_dict(keep_vars=True).items()}
    fixed = {name: _as_array(t) for name, t in module.state_dict(keep_vars=True).items() if source[name] is None}
    translated = torch2jax.t2j(module)

    def apply(weights: Weights, inputs: Any) -> Array:
        flat = dict(trees.named_leaves(weights))
        state = {name: fixed[name] if origin is None else flat[origin] for name, origin in source.items()}
        arguments = jax.tree.map(jnp.asarray, inputs if isinstance(inputs, tuple) else (inputs,))
        return translated(*arguments, state_dict=state)

    def restore(weights: Weights) -> Any:
        with torch.no_grad():
            for name, value in trees.named_leaves(weights):
                parameters[name].copy_(torch.from_numpy(np.array(value)))
        return module

    _compare(torch, module, Model(weights, apply, restore), example_inputs)
    return Model(weights, apply, restore)


def _as_array(tensor: Any) -> Array:
    return jnp.array(tensor.detach().cpu().numpy())


def _nested(flat: Mapping[str, Array]) -> Weights:
    """{"blocks.0": {"weight": …}} from {"blocks.0.weight": …}: one entry for every layer that owns parameters."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        layer, _, tensor = name.rpartition(".")
        (tree.setdefault(layer, {}) if layer else tree)[tensor] = value
    return tree


def _refuse_random_layers(torch: Any, module: Any) -> None:
    batch_norm = torch.nn.modules.batchnorm._BatchNorm
    dropout = torch.nn.modules.dropout._DropoutNd
    for name, layer in module.named_modules():
        share = layer.p if isinstance(layer, dropout) else getattr(layer, "dropout", 0.0)
        if layer.training and isinstance(share, int | float) and share > 0:
            raise refuse_layer("PyTorch", name, layer, f"drops {share:g} of its inputs at random", REMEDY)
        if isinstance(layer, batch_norm) and (layer.training or layer.running_mean is None):
            remedy = REMEDY if layer.running_mean is not None else "build it with track_running_stats=True, then eval()"
            raise refuse_layer("PyTorch", name, layer, "normalises each example by its batch", remedy)
        if layer._non_persistent_buffers_set:
            buffers = ", ".join(sorted(layer._non_persistent_buffers_set))
            raise ValueError(
                f"the PyTorch layer {name or type(layer).__name__} has buffers outside its state_dict ({buffers}), "
                "which torch2jax cannot translate; register them with persistent=True"
            )


def _compare(torch: Any, module: Any, model: Model, inputs: Any) -> None:
    """Refuse a module whose translation fails, differs from PyTorch, or mixes examples of a batch."""
    arrays = jax.tree.map(np.asarray, inputs)
    if any(array.ndim == 0 or len(array) < 2 for array in jax.tree.leaves(arrays)):
        raise ValueError("example_inputs needs at least two examples, along the first axis of every array")
    tensors = jax.tree.map(lambda a: torch.from_numpy(np.array(a)), arrays)
    with torch.no_grad():
        expected = module(*tensors if isinstance(tensors, tuple) else (tensors,)).numpy()
    try:
        found = np.asarray(model.apply(model.weights, arrays))
        alone = np.asarray(model.apply(model.weights, jax.tree.map(lambda a: a[:1], arrays)))
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(
            f"torch2jax cannot translate this module: {why}; replace the layer named there by one it knows, or write "
            "the model in Flax or Equinox"
        ) from error
    scale = max(float(np.abs(expected).max()), 1e-6)
    difference = float(np.abs(found - expected).max()) / scale if found.shape == expected.shape else np.inf
    if not difference < TOLERANCE:
        raise ValueError(
            f"the translation of this module differs from PyTorch by {difference:.1e} of its largest output; torch2jax "
            "computes some layer by another formula (GELU: use approximate='tanh'), so replace that layer"
        )
    if not np.allclose(alone[0], found[0], rtol=0, atol=TOLERANCE * scale):
        raise ValueError(
            "the output of an example depends on the other examples of its batch, so that it has no loss of its own; "
            f"{REMEDY}, or remove what mixes examples"
        )
