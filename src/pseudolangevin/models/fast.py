"""Fast gradients and moments of feed-forward networks: fused kernels on an NVIDIA GPU, features-first loops on a CPU.

The gradient of the mean cross-entropy of a batch is computed in one of three ways: by two Triton kernels (`by_kernels`)
on a GPU for networks in → h1 → h2 → classes, by hand-written backpropagation (`_dense_gradient`) on a CPU, or by
`jax.grad`, which is the fallback and what the other two are tested against.

**The kernels.** A wide first hidden layer makes the plain gradient slow: the activations, batch × h1 numbers, go
through memory several times. In the kernels they never leave the chip. With x the inputs and z the pre-activations of
the second layer,

    forward   z = Σ_c h_c·W2_c with h_c = max(0, x·W1_c), c the chunks of h1; then the rest of the network, the loss and
              ∂z = ∂loss/∂z, for each tile of the batch;
    backward  for every c, h_c again, then ∂W2_c = h_cᵀ·∂z and ∂W1_c = xᵀ·∂h_c with ∂h_c = ∂z·W2_cᵀ where h_c > 0.

Products have bfloat16 factors and float32 sums. Shapes are padded to powers of two; b1 is one more row of W1 and meets
a constant input of one. Sums over the batch come back in parts, one for each tile or split. For a small network a
launch takes as long as the work, and every input or output array is a launch to make it or to add its parts; so
there are three of each: W3ᵀ is stored below W2, and the gradients of W3, b2 and b3 are one matrix.

**On a CPU** activations are (features, examples): a forward product then has the stored weights as its first factor,
contracted along the first axis, sums over classes run over the first axis, and XLA's CPU products are faster than
for (examples, features). A large batch is processed in chunks that stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import custom_batching, lax

from .._trees import Array, Batch, Weights

if TYPE_CHECKING:
    from . import FeedForward

NARROW = 128  # padded width of the inputs, with the constant one, and of the second layer
CLASSES = 16  # padded number of classes
DENSE_CHUNK = 1024  # examples; 2 MiB for a layer of 500 units, the second-level cache of a core


def cross_entropy_gradient(
    network: FeedForward,
    plain: Callable[[Weights, Batch], Weights],
    weights: Weights,
    batch: Batch,
    precision: str | None,
    split: bool,
) -> Weights:
    """Return the gradient of the mean cross-entropy of a batch by the fastest way that the device has.

    Args:
        network: the feed-forward network.
        plain: computes the same gradient by `jax.grad`.
        weights: weights of one chain.
        batch: inputs and labels.
        precision: precision of the matrix products; None is the device's fastest.
        split: whether chains, data or weights are split over several devices; then XLA splits the plain gradient.
    """
    inputs = batch[0]
    single = all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(weights))
    if split or not single or not isinstance(inputs, jax.Array) or inputs.ndim != 2:
        return plain(weights, batch)
    ways = {"cpu": _dense_gradient(network)}
    if kernels_apply(network, inputs, precision):
        ways["cuda"] = _by_kernels(network)
    return lax.platform_dependent(weights, batch, default=plain, **ways)


def layer_moments(
    network: FeedForward, output_loss: Callable[[Array, Any], Array], weights: Weights, batch: Batch, mask: Array
) -> tuple[Weights, Weights]:
    """Return sums of the gradients of single examples, and of their squares, over the examples with a true `mask`.

    In a dense layer the gradient of an example is the product of the layer's input a and the derivative δ with respect
    to its pre-activation, so Σg² = (a²)ᵀ·(δ²): one more matrix product.
    """
    inputs, targets = batch

    def total(offsets: list[Array]) -> tuple[Array, list[Array]]:
        outputs, layer_inputs = network.trace(weights, inputs, offsets)
        return jnp.sum(jnp.where(mask, output_loss(outputs, targets), 0.0)), layer_inputs

    dtype = weights["layer1"]["kernel"].dtype
    zeros = [jnp.zeros((mask.shape[0], size), dtype) for size in network.sizes[1:]]
    deltas, layer_inputs = jax.grad(total, has_aux=True)(zeros)

    def sums(power: int) -> Weights:
        return {
            f"layer{index}": {"kernel": (a**power).T @ (d**power), "bias": jnp.sum(d**power, axis=0)}
            for index, (a, d) in enumerate(zip(layer_inputs, deltas, strict=True), start=1)
        }

    return sums(1), sums(2)


def kernels_apply(network: FeedForward, inputs: Array, precision: str | None) -> bool:
    """Return whether the GPU kernels cover this network, batch and precision.

    The kernels are for two hidden layers of which the second is narrow. They round factors to bfloat16, so they are
    used neither for a higher `precision` nor, by default, for inputs that rounding would change: rounded data are
    other data. A small batch on a wide layer is excluded, as few tiles would work through all of the layer's chunks.
    """
    if len(network.sizes) != 4 or precision not in (None, "bfloat16"):
        return False
    num_in, hidden, narrow, num_out = network.sizes
    if num_in >= NARROW or narrow > NARROW or num_out > CLASSES:
        return False
    if precision is None and inputs.dtype not in (jnp.bool_, jnp.int8, jnp.uint8, jnp.bfloat16):
        return False
    blocks = blocks_for(network, inputs.shape[0], 1)
    return hidden / blocks.hidden <= 4 * inputs.shape[0] / blocks.rows


def _by_kernels(network: FeedForward) -> Any:
    """Return the gradient as a function of (weights, batch), with different block sizes for one chain and for many."""

    @custom_batching.custom_vmap
    def one(weights: Weights, batch: Batch) -> Weights:
        return by_kernels(network, weights, batch, blocks_for(network, batch[1].shape[0], 1))

    @one.def_vmap
    def many(num_chains: int, batched: Any, weights: Weights, batch: Batch) -> tuple[Weights, Any]:
        axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, batched)
        gradient = partial(by_kernels, network, blocks=blocks_for(network, batch[1].shape[-1], num_chains))
        return jax.vmap(gradient, in_axes=tuple(axes))(weights, batch), jax.tree.map(lambda _: True, batched[0])

    return one


def blocks_for(network: FeedForward, batch_size: int, num_chains: int) -> Blocks:
    """Return block sizes, measured on an H200: large tiles for one chain, few partial sums for many."""
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
    """Pad, call the kernels, add the parts, and remove the padding."""
    inputs, labels = batch
    batch_size, num_in = inputs.shape
    _, num_hidden, narrow, num_classes = network.sizes
    missing = -batch_size % math.lcm(blocks.rows, blocks.back_rows)
    padded = num_hidden + -num_hidden % math.lcm(blocks.hidden, blocks.back_hidden)
    columns = jnp.concatenate([inputs.astype(jnp.bfloat16), jnp.ones((batch_size, 1), jnp.bfloat16)], axis=1)
    columns = jnp.pad(columns, ((0, missing), (0, NARROW - num_in - 1)))
    labels = jnp.pad(labels.astype(jnp.int32), (0, missing))
    packed = pack(weights, padded)
    dz, end = _forward(network, packed, columns, labels, batch_size, blocks, interpret)
    first, second = (jnp.sum(parts, axis=0) for parts in _backward(packed, columns, dz, blocks, interpret))
    end = jnp.sum(end, axis=0)
    return {
        "layer1": {"kernel": first[:num_in, :num_hidden], "bias": first[num_in, :num_hidden]},
        "layer2": {"kernel": second[:num_hidden, :narrow], "bias": end[CLASSES, :narrow]},
        "layer3": {"kernel": end[:num_classes, :narrow].T, "bias": end[CLASSES + 1, :num_classes]},
    }


class Packed(NamedTuple):
    """Padded weights."""

    first: Array
    """W1 with b1 as a row, (NARROW, h1), bfloat16."""
    second: Array
    """W2 and below it W3ᵀ, (h1 + CLASSES, NARROW), bfloat16."""
    biases: Array
    """b2 and b3, (NARROW + CLASSES,)."""


def pack(weights: Weights, padded: int) -> Packed:
    """Return the weights in the padded shapes of the kernels."""
    one, two, three = (weights[f"layer{i}"] for i in (1, 2, 3))

    def pad(array: Array, *shape: int) -> Array:
        return jnp.pad(array, [(0, size - have) for size, have in zip(shape, array.shape, strict=True)])

    first = jnp.concatenate([one["kernel"], one["bias"][None, :]])
    second = jnp.concatenate([pad(two["kernel"], padded, NARROW), pad(three["kernel"].T, CLASSES, NARROW)])
    biases = jnp.concatenate([pad(two["bias"], NARROW), pad(three["bias"], CLASSES)])
    return Packed(pad(first, NARROW, padded).astype(jnp.bfloat16), second.astype(jnp.bfloat16), biases)


@dataclass(frozen=True)
class Blocks:
    """Block sizes of the two kernels."""

    rows: int = 64
    """Number of examples in a tile of the forward kernel."""
    hidden: int = 64
    """Number of units of the wide layer in a chunk of the forward kernel."""
    warps: int = 4
    stages: int = 2
    back_rows: int = 64
    back_hidden: int = 64
    back_warps: int = 4
    back_stages: int = 2
    splits: int = 16
    """Number of parts of the batch that the backward kernel processes in parallel."""


def _forward(
    network: FeedForward, packed: Packed, inputs: Array, labels: Array, batch_size: int, blocks: Blocks, interpret: bool
) -> list[Array]:
    """Return ∂z, (rows, NARROW), and for every tile a part of the gradient of the end of the network.

    That part is ∂W3ᵀ, ∂b2 and ∂b3 as one matrix, (CLASSES + 2, NARROW), whose last row holds one number per class.
    `inputs` are bfloat16 (rows, NARROW) with the constant one in place, `labels` int32 (rows,). Rows beyond
    `batch_size` are ignored; the number of rows is a multiple of both tile heights.
    """
    from jax.experimental import pallas as pl  # noqa: PLC0415  slow to import, and needed on a GPU only
    from jax.experimental.pallas import triton  # noqa: PLC0415

    num_rows, num_hidden = inputs.shape[0], packed.first.shape[1]
    has_relu = network.output_activation == "relu"
    dot = triton.dot

    def forward(*refs: Any) -> None:
        x_ref, label_ref, first_ref, second_ref, bias_ref, dz_ref, end_ref = refs
        start = pl.program_id(0) * blocks.rows
        rows = pl.ds(start, blocks.rows)
        x = x_ref[rows, :]
        third = second_ref[pl.ds(num_hidden, CLASSES), :]

        def chunk(j: Array, z: Array) -> Array:
            units = pl.ds(j * blocks.hidden, blocks.hidden)
            h = jnp.maximum(dot(x, first_ref[:, units]), 0.0).astype(jnp.bfloat16)
            return z + dot(h, second_ref[units, :])

        z = jnp.zeros((blocks.rows, NARROW), jnp.float32)
        z = lax.fori_loop(0, num_hidden // blocks.hidden, chunk, z)
        z = z + bias_ref[pl.ds(0, NARROW)][None, :]
        a = jnp.maximum(z, 0.0).astype(jnp.bfloat16)
        scores = dot(a, third, trans_b=True) + bias_ref[pl.ds(NARROW, CLASSES)][None, :]
        logits = jnp.maximum(scores, 0.0) if has_relu else scores
        label = lax.broadcasted_iota(jnp.int32, (blocks.rows, CLASSES), 1)
        logits = jnp.where(label < network.sizes[-1], logits, -jnp.inf)
        shifted = jnp.exp(logits - jnp.max(logits, axis=1)[:, None])
        probabilities = shifted / jnp.sum(shifted, axis=1)[:, None]
        error = (probabilities - jnp.where(label == label_ref[rows][:, None], 1.0, 0.0)) / batch_size
        error = jnp.where(scores > 0, error, 0.0) if has_relu else error
        row = start + lax.broadcasted_iota(jnp.int32, (blocks.rows, CLASSES), 0)
        error = jnp.where(row < batch_size, error, 0.0)
        rounded = error.astype(jnp.bfloat16)
        dz = jnp.where(z > 0, dot(rounded, third), 0.0)
        dz_ref[rows, :] = dz.astype(jnp.bfloat16)
        end_ref[0, pl.ds(0, CLASSES), :] = dot(rounded, a, trans_a=True)
        end_ref[0, CLASSES, :] = jnp.sum(dz, axis=0)
        end_ref[0, CLASSES + 1, pl.ds(0, CLASSES)] = jnp.sum(error, axis=0)

    shape, num_tiles, end_shape = jax.ShapeDtypeStruct, num_rows // blocks.rows, (CLASSES + 2, NARROW)
    return pl.pallas_call(
        forward,
        grid=(num_tiles,),
        out_shape=[shape((num_rows, NARROW), jnp.bfloat16), shape((num_tiles, *end_shape), jnp.float32)],
        out_specs=[
            pl.BlockSpec((num_rows, NARROW), lambda i: (0, 0)),
            pl.BlockSpec((1, *end_shape), lambda i: (i, 0, 0)),
        ],
        compiler_params=triton.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
        interpret=interpret,
        name="forward",
    )(inputs, labels, *packed)


def _backward(packed: Packed, inputs: Array, dz: Array, blocks: Blocks, interpret: bool) -> list[Array]:
    """Return, for every split of the batch, ∂W1 with ∂b1 as a row, (NARROW, h1), and ∂W2, (h1, NARROW)."""
    from jax.experimental import pallas as pl  # noqa: PLC0415
    from jax.experimental.pallas import triton  # noqa: PLC0415

    num_hidden, splits, hidden, dot = packed.first.shape[1], blocks.splits, blocks.back_hidden, triton.dot
    num_tiles = inputs.shape[0] // blocks.back_rows
    per_split = -(-num_tiles // splits)

    def backward(*refs: Any) -> None:
        x_ref, dz_ref, first_ref, second_ref, first_grad_ref, second_grad_ref = refs
        units = pl.ds(pl.program_id(0) * hidden, hidden)
        first, second = first_ref[:, units], second_ref[units, :]
        begin = pl.program_id(1) * per_split

        def tile(i: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            first_grad, second_grad = sums
            rows = pl.ds(i * blocks.back_rows, blocks.back_rows)
            x, dz = x_ref[rows, :], dz_ref[rows, :]
            h = jnp.maximum(dot(x, first), 0.0)
            dh = jnp.where(h > 0, dot(dz, second, trans_b=True), 0.0).astype(jnp.bfloat16)
            second_grad = second_grad + dot(h.astype(jnp.bfloat16), dz, trans_a=True)
            return first_grad + dot(x, dh, trans_a=True), second_grad

        zeros = jnp.zeros((NARROW, hidden), jnp.float32), jnp.zeros((hidden, NARROW), jnp.float32)
        sums = lax.fori_loop(begin, jnp.minimum(begin + per_split, num_tiles), tile, zeros)
        first_grad_ref[0, :, :], second_grad_ref[0, :, :] = sums

    shapes = (splits, NARROW, num_hidden), (splits, num_hidden, NARROW)
    return pl.pallas_call(
        backward,
        grid=(num_hidden // hidden, splits),
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        out_specs=[
            pl.BlockSpec((1, NARROW, hidden), lambda j, k: (k, 0, j)),
            pl.BlockSpec((1, hidden, NARROW), lambda j, k: (k, j, 0)),
        ],
        compiler_params=triton.CompilerParams(num_warps=blocks.back_warps, num_stages=blocks.back_stages),
        interpret=interpret,
        name="backward",
    )(inputs, dz, packed.first, packed.second)


def _dense_gradient(network: FeedForward) -> Any:
    """Return the gradient of the mean cross-entropy as a function of (weights, batch).

    Mapped over chains, small batches share every product; large ones are processed one after another.
    """

    @custom_batching.custom_vmap
    def one(weights: Weights, batch: Batch) -> Weights:
        return _chunked_gradient(network, weights, batch)

    @one.def_vmap
    def many(num_chains: int, batched: Any, weights: Weights, batch: Batch) -> tuple[Weights, Any]:
        axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, batched)
        if num_chains > 1 and batch[1].shape[-1] <= DENSE_CHUNK:
            found = jax.vmap(partial(_chunked_gradient, network), in_axes=tuple(axes))(weights, batch)
        else:
            each = jax.tree.map(
                lambda a, has_axis: a if has_axis else jnp.broadcast_to(a, (num_chains, *a.shape)),
                (weights, batch),
                tuple(batched),
            )
            found = lax.map(lambda chain: one(*chain), each)
        return found, jax.tree.map(lambda _: True, batched[0])

    return one


def _chunked_gradient(network: FeedForward, weights: Weights, batch: Batch) -> Weights:
    inputs, labels = batch
    num_examples = labels.shape[0]
    num_chunks = -(-num_examples // DENSE_CHUNK)
    size = num_examples // num_chunks
    if num_chunks == 1:
        return _sum_gradient(network, weights, inputs, labels, 1 / num_examples)

    def add(total: Weights, chunk: Batch) -> tuple[Weights, None]:
        return jax.tree.map(jnp.add, total, _sum_gradient(network, weights, *chunk, 1 / num_examples)), None

    whole = size * num_chunks
    chunks = inputs[:whole].reshape(num_chunks, size, -1), labels[:whole].reshape(num_chunks, size)
    total = lax.scan(add, jax.tree.map(jnp.zeros_like, weights), chunks)[0]
    return total if whole == num_examples else add(total, (inputs[whole:], labels[whole:]))[0]


def _sum_gradient(network: FeedForward, weights: Weights, inputs: Array, labels: Array, scale: float) -> Weights:
    """Return the gradient of the sum of the cross-entropies times `scale`."""
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
    # The barrier keeps XLA from transposing this product into a slower one.
    transposed = lax.optimization_barrier(_product(error, 1, inputs, 0))
    return found | {"layer1": {"kernel": transposed.T, "bias": error @ ones}}


def _product(left: Array, left_axis: int, right: Array, right_axis: int) -> Array:
    """Contract one axis of each array."""
    return lax.dot_general(left, right, (((left_axis,), (right_axis,)), ((), ())))
