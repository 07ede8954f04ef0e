"""PyTorch modules, translated into JAX by torch2jax."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch2jax
from torch.nn import functional

from .._trees import Array, Weights, check_weights, named_leaves
from . import Model, layer_error


def from_torch(module: Any, example_inputs: Any, tolerance: float = 1e-4) -> Model:
    """Return the parameters of a PyTorch module as weights, and its forward pass in JAX.

    Weights are named as in the `state_dict` and grouped by the layer that owns them; parameters shared between layers
    are one weight. Parameters with requires_grad = False and all buffers are held fixed. torch2jax supports the common
    layers only, so its translation is compared with PyTorch on `example_inputs`.

    Args:
        module: a `torch.nn.Module` in evaluation mode, called on a batch; a tuple of inputs is several arguments.
        example_inputs: at least two examples, as arrays with a leading example axis.
        tolerance: largest difference of the translated outputs from those of PyTorch, relative to the largest output;
            far above rounding, far below a wrong formula.
    """
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"module = {module!r} is not a torch.nn.Module; pass one, after its __init__")
    _check_layers(module)
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    weights: dict[str, Any] = {}  # {"blocks.0": {"weight": …}}: one entry for every layer that owns parameters
    for name, parameter in parameters.items():
        layer, _, tensor = name.rpartition(".")
        (weights.setdefault(layer, {}) if layer else weights)[tensor] = _as_array(parameter)
    check_weights(weights)
    # A parameter shared by two layers has two names in the state_dict, and one here.
    owner = {id(parameter): name for name, parameter in parameters.items()}
    state = module.state_dict(keep_vars=True)
    fixed = {name: _as_array(tensor) for name, tensor in state.items() if id(tensor) not in owner}
    source = {name: owner[id(tensor)] for name, tensor in state.items() if id(tensor) in owner}
    translated = torch2jax.t2j(module)

    def apply(weights: Weights, inputs: Any) -> Array:
        flat = dict(named_leaves(weights))
        arguments = jax.tree.map(jnp.asarray, inputs if isinstance(inputs, tuple) else (inputs,))
        return translated(*arguments, state_dict=fixed | {name: flat[origin] for name, origin in source.items()})

    def restore(weights: Weights) -> Any:
        with torch.no_grad():
            for name, value in named_leaves(weights):
                parameters[name].copy_(torch.from_numpy(np.array(value)))
        return module

    model = Model(weights, apply, restore)
    _compare(module, model, jax.tree.map(np.asarray, example_inputs), tolerance)
    return model


def state_dicts(model: Model, members: Weights) -> list[dict[str, Any]]:
    """Return one `state_dict` for each member of an ensemble, such as `result.ensemble()`.

    The module has the weights that `from_torch` found afterwards.
    """
    found = []
    for index in range(len(jax.tree.leaves(members)[0])):
        module = model.write_back(jax.tree.map(lambda w, i=index: w[i], members))
        found.append({name: tensor.clone() for name, tensor in module.state_dict().items()})
    model.restore(model.weights)
    return found


def _as_array(tensor: Any) -> Array:
    return jnp.array(tensor.detach().cpu().numpy())


def _check_layers(module: Any) -> None:
    kinds: Any = torch.nn.modules
    for name, layer in module.named_modules():
        share = layer.p if isinstance(layer, kinds.dropout._DropoutNd) else getattr(layer, "dropout", 0.0)
        if layer.training and isinstance(share, int | float) and share > 0:
            raise layer_error(name, layer, f"drops {share:g} of its inputs at random", "call module.eval() first")
        if isinstance(layer, kinds.batchnorm._BatchNorm) and (layer.training or layer.running_mean is None):
            remedy = "build it with track_running_stats=True, and call module.eval() first"
            raise layer_error(name, layer, "normalises each example by its batch", remedy)
        if buffers := ", ".join(sorted(layer._non_persistent_buffers_set)):
            why = f"has buffers outside its state_dict ({buffers}), which torch2jax cannot translate"
            raise ValueError(f"the layer {name or layer} {why}; register them with persistent=True")


def _compare(module: Any, model: Model, inputs: Any, tolerance: float) -> None:
    """Raise a ValueError if the translation fails, differs from PyTorch, or mixes the examples of a batch."""
    if any(array.ndim == 0 or len(array) < 2 for array in jax.tree.leaves(inputs)):
        raise ValueError("example_inputs needs at least two examples, along the first axis of every array")
    tensors = jax.tree.map(lambda array: torch.from_numpy(np.array(array)), inputs)
    with torch.no_grad():
        expected = module(*tensors if isinstance(tensors, tuple) else (tensors,)).numpy()
    try:
        found = np.asarray(model.apply(model.weights, inputs))
        alone = np.asarray(model.apply(model.weights, jax.tree.map(lambda array: array[:1], inputs)))
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        remedy = "replace the layer named there by a supported one, or write the model in Flax or Equinox"
        raise ValueError(f"torch2jax cannot translate this module: {why}; {remedy}") from error
    scale = max(float(np.abs(expected).max()), 1e-6)
    difference = float(np.abs(found - expected).max()) / scale if found.shape == expected.shape else np.inf
    if not difference < tolerance:
        why = "torch2jax computes some layer by another formula, so replace that layer"
        raise ValueError(f"the translation differs from PyTorch by {difference:.1e} of its largest output; {why}")
    if not np.allclose(alone[0], found[0], rtol=0, atol=tolerance * scale):
        why = "the output of an example depends on the other examples of its batch, so it has no loss of its own"
        raise ValueError(f"{why}; call module.eval() first, or remove the layer that mixes examples")


# Functions that torch2jax does not have, or has for a special case only: embeddings, means, GELU.


def _array(x: Any) -> Array:
    return jnp.asarray(getattr(x, "value", x))


@torch2jax.implements(functional.embedding)
def _embedding(input: Any, weight: Any, *_: Any, max_norm: float | None = None, **__: Any) -> Array:
    if max_norm is not None:
        raise ValueError("an embedding with max_norm changes its weights when called")
    return _array(weight)[_array(input)]


def _pair(x: Any) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else tuple(x)


@torch2jax.implements(functional.avg_pool2d)
def _avg_pool2d(input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *rest: Any) -> Array:
    if rest not in ((), (False, True), (False, True, None)):
        raise NotImplementedError("avg_pool2d with ceil_mode, count_include_pad=False or divisor_override")
    kernel, steps = _pair(kernel_size), _pair(stride or kernel_size)
    padded = [(0, 0), (0, 0), *((p, p) for p in _pair(padding))]
    total = jax.lax.reduce_window(_array(input), 0.0, jax.lax.add, (1, 1, *kernel), (1, 1, *steps), padded)
    return total / math.prod(kernel)


@torch2jax.implements(functional.adaptive_avg_pool2d)
def _adaptive_avg_pool2d(input: Any, output_size: Any) -> Array:
    height, width = _array(input).shape[2:]
    rows, columns = (n if size is None else size for size, n in zip(_pair(output_size), (height, width), strict=True))
    if height % rows or width % columns:
        raise NotImplementedError(f"adaptive_avg_pool2d from {(height, width)} to {(rows, columns)}")
    return _array(_avg_pool2d(input, (height // rows, width // columns)))


@torch2jax.implements(torch.mean)
def _mean(input: Any, dim: Any = None, keepdim: bool = False) -> Array:
    return jnp.mean(_array(input), axis=tuple(dim) if isinstance(dim, list) else dim, keepdims=keepdim)


@torch2jax.implements(functional.gelu)
def _gelu(input: Any, approximate: str = "none") -> Array:
    return jax.nn.gelu(_array(input), approximate=approximate == "tanh")
