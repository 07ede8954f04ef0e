"""The mini-batch gradient of a feed-forward classifier: by `kernels` on an NVIDIA GPU, by `dense` on a CPU.

The plain gradient is the fallback on other devices and for other models, and what both are tested against.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import custom_batching, lax

from . import dense, kernels
from .kernels import CLASSES, NARROW, Blocks, Packed, Tail
from .models import FeedForward
from .potential import Layered, Potential, cross_entropy
from .types import Array, Batch, Weights

EXACT = (jnp.bool_, jnp.int8, jnp.uint8, jnp.bfloat16)
"""Types of inputs that bfloat16 holds as they are."""


def fits(potential: Potential, batch: Batch, precision: str | None, *, split: bool = False) -> bool:
    """Whether the kernels cover this: cross-entropy on two hidden layers, all but the first hidden one narrow.

    Kernels round factors to bfloat16, so they are not for a higher `precision` that was asked for, nor, unless it was,
    for inputs that this would change: rounded data are other data, and no noise. Several devices are left to XLA, which
    splits the plain gradient among them and cannot split a kernel; so is a small batch on a wide layer, where a few
    tiles would have to work through all of its chunks.
    """
    layered, inputs = potential.layered, batch[0]
    if layered is None or layered.output_loss is not cross_entropy or len(layered.network.sizes) != 4:
        return False
    if precision not in (None, "bfloat16") or split:
        return False
    num_in, hidden, narrow, num_out = layered.network.sizes
    if not isinstance(inputs, jax.Array) or num_in >= NARROW or narrow > NARROW or num_out > CLASSES:
        return False
    if inputs.dtype not in EXACT and precision is None:
        return False
    blocks = blocks_for(layered.network, inputs.shape[0], 1)
    return hidden / blocks.hidden <= 4 * inputs.shape[0] / blocks.rows


def fits_dense(potential: Potential, batch: Batch, *, split: bool = False) -> bool:
    """Whether `dense` covers this: cross-entropy on a feed-forward network, and inputs of one row per example."""
    layered, inputs = potential.layered, batch[0]
    if layered is None or layered.output_loss is not cross_entropy or split:
        return False
    return isinstance(inputs, jax.Array) and inputs.ndim == 2


def loss_gradient(
    potential: Potential, weights: Weights, batch: Batch, precision: str | None = None, *, split: bool = False
) -> Weights:
    """∇ of the mean loss of a batch, without the regulariser: the fastest way that the device has.

    `split` says that chains, data or weights are spread over several devices.
    """

    def plain(weights: Weights, batch: Batch) -> Weights:
        with jax.default_matmul_precision(precision):
            return jax.grad(potential.loss)(weights, batch)

    single = all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(weights))
    if not single or not fits_dense(potential, batch, split=split):
        return plain(weights, batch)
    assert potential.layered is not None
    ways = {"cpu": dense.gradient(potential.layered.network)}
    if fits(potential, batch, precision, split=split):
        ways["cuda"] = _by_kernels(potential.layered)
    return lax.platform_dependent(weights, batch, default=plain, **ways)


def _by_kernels(layered: Layered) -> Any:
    """The gradient as a function of (weights, batch) that is cut differently for one chain and for many."""
    network = layered.network

    @custom_batching.custom_vmap
    def one(weights: Weights, batch: Batch) -> Weights:
        return by_kernels(network, weights, batch, blocks_for(network, batch[1].shape[0], 1))

    @one.def_vmap
    def many(num_chains: int, batched: Any, weights: Weights, batch: Batch) -> tuple[Weights, Any]:
        axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, batched)
        batch_size = batch[1].shape[-1]
        gradient = partial(by_kernels, network, blocks=blocks_for(network, batch_size, num_chains))
        return jax.vmap(gradient, in_axes=tuple(axes))(weights, batch), jax.tree.map(lambda _: True, batched[0])

    return one


def blocks_for(network: FeedForward, batch_size: int, num_chains: int) -> Blocks:
    """Sizes found by measurement on an H200: large enough tiles for one chain, few enough partial sums for many."""
    hidden = network.sizes[1]
    if hidden > 1024:
        blocks, programs = Blocks(rows=128, hidden=64, warps=8, stages=3), 800
    elif hidden > 64:
        blocks, programs = Blocks(rows=64, hidden=128), 128 if num_chains == 1 else 256
    elif num_chains < 16:
        blocks, programs = Blocks(stages=1, back_rows=32, back_hidden=32, back_stages=1), 256
    else:
        blocks, programs = Blocks(stages=1, back_stages=1), 256
    num_chunks = -(-hidden // blocks.back_hidden)
    num_tiles = -(-batch_size // blocks.back_rows)
    return replace(blocks, splits=max(1, min(num_tiles, programs // (num_chunks * num_chains))))


def by_kernels(
    network: FeedForward, weights: Weights, batch: Batch, blocks: Blocks, *, interpret: bool = False
) -> Weights:
    """Pad, call the kernels, and cut to size."""
    inputs, labels = batch
    batch_size, num_in = inputs.shape
    _, num_hidden, narrow, num_classes = network.sizes
    missing = -batch_size % math.lcm(blocks.rows, blocks.back_rows)
    padded = num_hidden + -num_hidden % math.lcm(blocks.hidden, blocks.back_hidden)
    columns = jnp.concatenate([inputs.astype(jnp.bfloat16), jnp.ones((batch_size, 1), jnp.bfloat16)], axis=1)
    grads = kernels.gradient(
        pack(weights, padded),
        jnp.pad(columns, ((0, missing), (0, NARROW - num_in - 1))),
        jnp.pad(labels.astype(jnp.int32), (0, missing)),
        tail=Tail(num_classes, network.output_activation == "relu", batch_size),
        blocks=blocks,
        interpret=interpret,
    )
    return {
        "layer1": {"kernel": grads.first[:num_in, :num_hidden], "bias": grads.first[num_in, :num_hidden]},
        "layer2": {"kernel": grads.second[:num_hidden, :narrow], "bias": grads.end[CLASSES, :narrow]},
        "layer3": {"kernel": grads.end[:num_classes, :narrow].T, "bias": grads.end[CLASSES + 1, :num_classes]},
    }


def pack(weights: Weights, padded: int) -> Packed:
    """The weights in the shapes of the kernels."""
    one, two, three = (weights[f"layer{i}"] for i in (1, 2, 3))

    def pad(array: Array, *shape: int) -> Array:
        return jnp.pad(array, [(0, size - have) for size, have in zip(shape, array.shape, strict=True)])

    first = jnp.concatenate([one["kernel"], one["bias"][None, :]])
    second = jnp.concatenate([pad(two["kernel"], padded, NARROW), pad(three["kernel"].T, CLASSES, NARROW)])
    biases = jnp.concatenate([pad(two["bias"], NARROW), pad(three["bias"], CLASSES)])
    return Packed(pad(first, NARROW, padded).astype(jnp.bfloat16), second.astype(jnp.bfloat16), biases)
