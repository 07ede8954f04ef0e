"""The gradient of a feed-forward classifier as a CPU likes it: backpropagation with features first, written by hand.

Activations are (features, examples). Then a forward product has the weights as they are stored as its first factor,
contracted along its first axis, the sums over classes run over the first axis, and XLA's CPU products are faster than
for (examples, features). A large batch is worked through in parts that stay in the cache.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import custom_batching, lax

from .models import FeedForward
from .types import Array, Batch, Weights

CHUNK = 1024
"""Examples at once: of a layer of 500 units, 2 MiB, the second-level cache of a core. By measurement."""


def gradient(network: FeedForward) -> Any:
    """∇ of the mean cross-entropy as a function of (weights, batch); equals `jax.grad` of it up to the order of sums.

    Mapped over chains, small batches are side by side in every product; large ones come one after another.
    """

    @custom_batching.custom_vmap
    def one(weights: Weights, batch: Batch) -> Weights:
        return _in_chunks(network, weights, batch)

    @one.def_vmap
    def many(num_chains: int, batched: Any, weights: Weights, batch: Batch) -> tuple[Weights, Any]:
        axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, batched)
        if num_chains > 1 and batch[1].shape[-1] <= CHUNK:
            found = jax.vmap(lambda w, b: _in_chunks(network, w, b), in_axes=tuple(axes))(weights, batch)
        else:
            each = jax.tree.map(
                lambda a, has_axis: a if has_axis else jnp.broadcast_to(a, (num_chains, *a.shape)),
                (weights, batch),
                tuple(batched),
            )
            found = lax.map(lambda chain: one(*chain), each)
        return found, jax.tree.map(lambda _: True, batched[0])

    return one


def _in_chunks(network: FeedForward, weights: Weights, batch: Batch) -> Weights:
    inputs, labels = batch
    num_examples = labels.shape[0]
    num_chunks = -(-num_examples // CHUNK)
    size = num_examples // num_chunks
    if num_chunks == 1:
        return _of_sum(network, weights, inputs, labels, 1 / num_examples)

    def add(total: Weights, chunk: Batch) -> tuple[Weights, None]:
        return jax.tree.map(jnp.add, total, _of_sum(network, weights, *chunk, 1 / num_examples)), None

    whole = size * num_chunks
    chunks = inputs[:whole].reshape(num_chunks, size, -1), labels[:whole].reshape(num_chunks, size)
    total = lax.scan(add, jax.tree.map(jnp.zeros_like, weights), chunks)[0]
    return total if whole == num_examples else add(total, (inputs[whole:], labels[whole:]))[0]


def _of_sum(network: FeedForward, weights: Weights, inputs: Array, labels: Array, scale: float) -> Weights:
    """∇ of the sum of the cross-entropies times `scale`."""
    layers = [weights[f"layer{index}"] for index in range(1, network.depth + 1)]
    dtype = layers[0]["kernel"].dtype
    inputs = inputs.astype(dtype)
    scores = _product(layers[0]["kernel"], 0, inputs, 1) + layers[0]["bias"][:, None]
    hidden = []
    for layer in layers[1:]:
        hidden.append(jnp.maximum(scores, 0))
        scores = _product(layer["kernel"], 0, hidden[-1], 0) + layer["bias"][:, None]
    has_relu = network.output_activation == "relu"
    logits = jnp.maximum(scores, 0) if has_relu else scores
    exponentials = jnp.exp(logits - jnp.max(logits, axis=0))
    is_label = jnp.arange(network.sizes[-1])[:, None] == labels
    error = exponentials * (scale / jnp.sum(exponentials, axis=0)) - jnp.where(is_label, scale, 0).astype(dtype)
    error = jnp.where(scores > 0, error, 0) if has_relu else error
    ones = jnp.ones(labels.shape, dtype)
    found = {}
    for index in range(network.depth, 1, -1):
        below = hidden[index - 2]
        # A product with ones: sums along the last axis are not vectorised.
        found[f"layer{index}"] = {"kernel": _product(below, 1, error, 1), "bias": error @ ones}
        error = jnp.where(below > 0, _product(layers[index - 1]["kernel"], 1, error, 0), 0)
    # The barrier keeps XLA from turning this product round, to a slower one.
    transposed = lax.optimization_barrier(_product(error, 1, inputs, 0))
    return found | {"layer1": {"kernel": transposed.T, "bias": error @ ones}}


def _product(left: Array, left_axis: int, right: Array, right_axis: int) -> Array:
    """Sum over one axis of each."""
    return lax.dot_general(left, right, (((left_axis,), (right_axis,)), ((), ())))
