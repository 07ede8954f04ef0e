"""The paper's feed-forward network, and its fast gradients: fused kernels on an NVIDIA GPU, features first on a CPU.

The gradient of the mean cross-entropy of a batch is computed in one of three ways: by two Triton kernels (`by_kernels`)
on a GPU for networks in → h1 → h2 → classes, by hand-written backpropagation (`_dense_gradient`) on a CPU, or by
`jax.grad`, the fallback that the other two are tested against.

**The kernels.** With a wide first hidden layer the plain gradient is slow: the activations, batch × h1 numbers, go
through memory several times. In the kernels they never leave the chip. With x the inputs and z the pre-activations of
the second layer,

    forward   z = Σ_c h_c·W2_c with h_c = max(0, x·W1_c), c the chunks of h1; then the rest of the network, the loss and
              ∂z = ∂loss/∂z, for each tile of the batch;
    backward  for every c, h_c again, then ∂W2_c = h_cᵀ·∂z and ∂W1_c = xᵀ·∂h_c with ∂h_c = ∂z·W2_cᵀ where h_c > 0.

Products have bfloat16 factors and float32 sums. Shapes are padded to powers of two; b1 is one more row of W1 and meets
a constant input of one. Sums over the batch come back in parts, one for each tile or split. Every input or output array
costs a launch, which for a small network takes as long as the work: W3ᵀ is therefore stored below W2, and the gradients
of W3, b2 and b3 are one matrix.

**On a CPU** activations are (features, examples): a forward product then contracts the stored weights along the first
axis, which XLA computes faster than for (examples, features). A large batch is processed in chunks that stay in the
cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import custom_batching, lax
from jaxtyping import Float, Num

from ._trees import Array, Batch, Key, Weights, check_choice
from .potential import cross_entropy

NARROW = 128  # padded width of the inputs, with the constant one, and of the second layer
CLASSES = 16  # padded number of classes
DENSE_CHUNK = 1024  # examples; 2 MiB for a layer of 500 units, the second-level cache of a core


@dataclass(frozen=True)
class FeedForward:
    """Fully connected layers, a⁽ˡ⁾ = z⁽ˡ⁻¹⁾·W⁽ˡ⁾ + b⁽ˡ⁾, z⁽ˡ⁾ = max(0, a⁽ˡ⁾) (eq:FFN), or with other activations.

    Args:
        sizes: the widths from the input to the output; the paper's are (100, L1, 100, 10).
        output_activation: "relu" as in the paper, or "identity". With "relu" a class can lose every signal ("dead
            classes" are reported while sampling).
        hidden_activation: "relu" as in the paper, "tanh", "gelu" or "silu"; the fused kernels are for "relu" only.

    Example:
        >>> network = pl.models.feedforward((100, 50, 100, 10))
        >>> weights = network.init(jax.random.key(0))
        >>> network.apply(weights, jnp.ones((3, 100))).shape
        (3, 10)
    """

    sizes: Sequence[int]
    output_activation: str = field(default="relu", kw_only=True)
    hidden_activation: str = field(default="relu", kw_only=True)

    def __post_init__(self) -> None:
        """Validate the arguments."""
        sizes = tuple(self.sizes) if isinstance(self.sizes, Sequence) else (self.sizes,)
        if len(sizes) < 2 or any(not isinstance(size, int) or size < 1 for size in sizes):
            raise ValueError(f"sizes = {sizes}: give at least an input and an output width, all positive integers")
        check_choice("output_activation", self.output_activation, ("identity", "relu"))
        check_choice("hidden_activation", self.hidden_activation, ("relu", "tanh", "gelu", "silu"))
        object.__setattr__(self, "sizes", sizes)

    def init(self, key: Key) -> Weights:
        """Return random weights, uniform in ±1/√(inputs of the layer), kernels and biases alike."""
        weights = {}
        for index, (num_in, num_out) in enumerate(zip(self.sizes[:-1], self.sizes[1:], strict=True), start=1):
            kernel_key, bias_key = jax.random.split(jax.random.fold_in(key, index))
            bound = num_in**-0.5
            weights[f"layer{index}"] = {
                "kernel": jax.random.uniform(kernel_key, (num_in, num_out), jnp.float32, -bound, bound),
                "bias": jax.random.uniform(bias_key, (num_out,), jnp.float32, -bound, bound),
            }
        return weights

    def apply(self, weights: Weights, inputs: Num[Array, "examples in"]) -> Float[Array, "examples out"]:
        """Return the logits z⁽ˡ⁾ of the last layer, before the softmax."""
        return self.trace(weights, inputs)[0]

    def faster(self, output_loss: Callable[[Array, Any], Array]) -> dict[str, Any]:
        """Return `gradient`, `slopes` and `gradient_moments` of a `Potential` whose loss is that of the outputs.

        The first two are made for the cross-entropy and ReLU.
        """

        def gradient(weights: Weights, batch: Batch, precision: str | None) -> dict[str, Callable]:
            if not _is_plain_batch(weights, batch):
                return {}
            kernels = {"cuda": _by_chains(by_kernels, self)} if kernels_apply(self, batch[0], precision) else {}
            return {"cpu": _by_chains(_dense_gradient, self)} | kernels

        def slopes(weights: Weights, batch: Batch, precision: str | None) -> dict[str, Callable]:
            applies = _is_plain_batch(weights, batch) and kernels_apply(self, batch[0], precision)
            return {"cuda": partial(slopes_by_kernel, self)} if applies else {}

        found: dict[str, Any] = {"gradient_moments": partial(layer_moments, self, output_loss)}
        if output_loss is cross_entropy and self.hidden_activation == "relu":
            found |= {"gradient": gradient, "slopes": slopes}
        return found

    def trace(
        self, weights: Weights, inputs: Num[Array, "examples in"]
    ) -> tuple[Float[Array, "examples out"], dict[str, Array]]:
        """Return the logits, and the inputs of every layer by its name."""
        if inputs.shape[1:] != (self.sizes[0],):
            found = f"an input has shape {inputs.shape[1:]} and the network takes {self.sizes[0]} components"
            raise ValueError(f"{found}; change the first of its sizes, or the inputs")
        hidden, layer_inputs = inputs, {}
        names = [f"layer{index}" for index in range(1, len(self.sizes))]
        for name in names:
            layer = weights[name]
            layer_inputs[name] = hidden = hidden.astype(layer["kernel"].dtype)
            activation = self.output_activation if name == names[-1] else self.hidden_activation
            hidden = getattr(jax.nn, activation)(hidden @ layer["kernel"] + layer["bias"])
        return hidden, layer_inputs


feedforward = FeedForward


def _is_plain_batch(weights: Weights, batch: Batch) -> bool:
    """Return whether weights are in single precision and inputs are one matrix."""
    single = all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(weights))
    return single and isinstance(batch[0], jax.Array) and batch[0].ndim == 2


def layer_moments(
    network: FeedForward, output_loss: Callable[[Array, Any], Array], weights: Weights, batch: Batch, mask: Array
) -> tuple[Weights, Weights]:
    """Return sums of the gradients of single examples, and of their squares, over the examples with a true `mask`.

    In a dense layer the gradient of an example is the product of the layer's input a and the derivative δ with respect
    to its pre-activation, so Σg² = (a²)ᵀ·(δ²): one more matrix product. δ is the derivative with respect to a bias that
    every example has for itself.
    """

    def total(biases: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        layers = {name: weights[name] | {"bias": bias} for name, bias in biases.items()}
        outputs, layer_inputs = network.trace(layers, batch[0])
        return jnp.sum(jnp.where(mask, output_loss(outputs, batch[1]), 0.0)), layer_inputs

    biases = {name: jnp.tile(layer["bias"], (mask.shape[0], 1)) for name, layer in weights.items()}
    deltas, layer_inputs = jax.grad(total, has_aux=True)(biases)

    def sums(power: int) -> Weights:
        found = {name: (layer_inputs[name] ** power, delta**power) for name, delta in deltas.items()}
        return {name: {"kernel": a.T @ d, "bias": jnp.sum(d, axis=0)} for name, (a, d) in found.items()}

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


def _by_chains(gradient: Callable[..., Weights], network: FeedForward) -> Any:
    """Return the gradient as a function of (weights, batch, coefficients), for a network and a number of chains.

    That number is one, or how many chains the function is mapped over.
    """
    one = custom_batching.custom_vmap(partial(gradient, network, 1))

    @one.def_vmap
    def many(num_chains: int, batched: Any, *arguments: Any) -> tuple[Weights, Any]:
        axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, tuple(batched))
        found = jax.vmap(partial(gradient, network, num_chains), in_axes=axes)(*arguments)
        return found, jax.tree.map(lambda _: True, found)

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
    network: FeedForward,
    num_chains: int,
    weights: Weights,
    batch: Batch,
    coefficients: Array,
    *,
    blocks: Blocks | None = None,
    interpret: bool = False,
) -> Weights:
    """Pad, call the kernels, add the parts, and remove the padding."""
    num_in, num_hidden, narrow, num_classes = network.sizes
    blocks = blocks or blocks_for(network, coefficients.shape[0], num_chains)
    missing = -batch[1].shape[0] % math.lcm(blocks.rows, blocks.back_rows)
    columns, labels = _padded_batch(batch, missing)
    coefficients = jnp.pad(coefficients.astype(jnp.float32), (0, missing))
    packed = pack(weights, blocks)
    dz, end = _forward(network, packed, columns, labels, coefficients, blocks, interpret)
    first, second = (jnp.sum(parts, axis=0) for parts in _backward(packed, columns, dz, blocks, interpret))
    end = jnp.sum(end, axis=0)
    return {
        "layer1": {"kernel": first[:num_in, :num_hidden], "bias": first[num_in, :num_hidden]},
        "layer2": {"kernel": second[:num_hidden, :narrow], "bias": end[CLASSES, :narrow]},
        "layer3": {"kernel": end[:num_classes, :narrow].T, "bias": end[CLASSES + 1, :num_classes]},
    }


def _padded_batch(batch: Batch, missing: int) -> Batch:
    """Return inputs as bfloat16, with a column of ones and then zeros, and labels, with `missing` more rows."""
    columns = jnp.pad(batch[0].astype(jnp.bfloat16), ((0, 0), (0, 1)), constant_values=1)
    columns = jnp.pad(columns, ((0, missing), (0, NARROW - columns.shape[1])))
    return columns, jnp.pad(batch[1].astype(jnp.int32), (0, missing))


class Packed(NamedTuple):
    """Padded weights: W1 with b1 as a row, (NARROW, h1); W2 and below it W3ᵀ, (h1 + CLASSES, NARROW); b2 and b3."""

    first: Array
    second: Array
    biases: Array


def pack(weights: Weights, blocks: Blocks) -> Packed:
    """Return the weights in the padded shapes of the kernels, as bfloat16, but for the biases b2 and b3."""
    one, two, three = (weights[f"layer{i}"] for i in (1, 2, 3))
    num_hidden = one["bias"].shape[0]
    padded = num_hidden + -num_hidden % math.lcm(blocks.hidden, blocks.back_hidden)

    def pad(array: Array, *shape: int) -> Array:
        return jnp.pad(array, [(0, size - have) for size, have in zip(shape, array.shape, strict=True)])

    first = jnp.concatenate([one["kernel"], one["bias"][None, :]])
    second = jnp.concatenate([pad(two["kernel"], padded, NARROW), pad(three["kernel"].T, CLASSES, NARROW)])
    biases = jnp.concatenate([pad(two["bias"], NARROW), pad(three["bias"], CLASSES)])
    return Packed(pad(first, NARROW, padded).astype(jnp.bfloat16), second.astype(jnp.bfloat16), biases)


@dataclass(frozen=True)
class Blocks:
    """Block sizes of the two kernels: examples in a tile, units of the wide layer in a chunk, and Triton's settings."""

    rows: int = 64
    hidden: int = 64
    warps: int = 4
    stages: int = 2
    back_rows: int = 64
    back_hidden: int = 64
    back_stages: int = 2
    splits: int = 16
    """Number of parts of the batch that the backward kernel processes in parallel."""


def _pallas() -> tuple[Any, Any]:
    """Return modules that are slow to import, and needed on a GPU only."""
    from jax.experimental import pallas  # noqa: PLC0415
    from jax.experimental.pallas import triton  # noqa: PLC0415

    return pallas, triton


def _forward(
    network: FeedForward, packed: Packed, inputs: Array, labels: Array, scales: Array, blocks: Blocks, interpret: bool
) -> list[Array]:
    """Return ∂z, (rows, NARROW), and for every tile a part of the gradient of the end of the network.

    That part is ∂W3ᵀ, ∂b2 and ∂b3 as one matrix, (CLASSES + 2, NARROW), whose last row holds one number per class.
    `inputs` are bfloat16 (rows, NARROW) with the constant one in place, `labels` int32 (rows,), `scales` float32
    (rows,), zero for padding; the number of rows is a multiple of both tile heights.
    """
    pl, triton = _pallas()
    num_rows, num_hidden, dot = inputs.shape[0], packed.first.shape[1], triton.dot

    def forward(*refs: Any) -> None:
        x_ref, label_ref, scale_ref, first_ref, second_ref, bias_ref, dz_ref, end_ref = refs
        rows = pl.ds(pl.program_id(0) * blocks.rows, blocks.rows)
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
        error = _errors(network, scores, label_ref[rows]) * scale_ref[rows][:, None]
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
    )(inputs, labels, scales, *packed)


def _errors(network: FeedForward, scores: Array, labels: Array) -> Array:
    """Return ∂loss/∂scores, inside a kernel; `scores` are the last pre-activations, with CLASSES columns."""
    has_relu = network.output_activation == "relu"
    logits = jnp.maximum(scores, 0.0) if has_relu else scores
    label = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    logits = jnp.where(label < network.sizes[-1], logits, -jnp.inf)
    shifted = jnp.exp(logits - jnp.max(logits, axis=1)[:, None])
    probabilities = shifted / jnp.sum(shifted, axis=1)[:, None]
    errors = probabilities - jnp.where(label == labels[:, None], 1.0, 0.0)
    return jnp.where(scores > 0, errors, 0.0) if has_relu else errors


def slopes_by_kernel(
    network: FeedForward, weights: Weights, velocity: Weights, batch: Batch, *, interpret: bool = False
) -> Array:
    """Return the derivative of the cross-entropy of each example along a velocity, in one kernel.

    The kernel propagates activations and their derivatives together, a tile of examples at a time:
    h_c = max(0, x·W1_c), ∂h_c = x·V1_c where h_c > 0, ∂z = Σ_c (∂h_c·W2_c + h_c·V2_c), and so on to the loss.
    """
    pl, triton = _pallas()
    batch_size = batch[1].shape[0]
    rows = 64 if batch_size > 4096 else 16
    packed, packed_velocity = (pack(tree, blocks_for(network, batch_size, 1)) for tree in (weights, velocity))
    padded = packed.first.shape[1]
    chunk = min(64, padded)
    columns, labels = _padded_batch(batch, -batch_size % rows)
    dot = triton.dot

    def kernel(*refs: Any) -> None:
        x_ref, label_ref, first_ref, second_ref, bias_ref, first_v_ref, second_v_ref, bias_v_ref, slope_ref = refs
        tile = pl.ds(pl.program_id(0) * rows, rows)
        x = x_ref[tile, :]

        def add(j: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            units = pl.ds(j * chunk, chunk)
            h = jnp.maximum(dot(x, first_ref[:, units]), 0.0)
            dh = jnp.where(h > 0, dot(x, first_v_ref[:, units]), 0.0).astype(jnp.bfloat16)
            h, second = h.astype(jnp.bfloat16), second_ref[units, :]
            return sums[0] + dot(h, second), sums[1] + dot(dh, second) + dot(h, second_v_ref[units, :])

        zeros = jnp.zeros((rows, NARROW), jnp.float32)
        z, dz = lax.fori_loop(0, padded // chunk, add, (zeros, zeros))
        z, dz = (v + ref[pl.ds(0, NARROW)][None, :] for v, ref in ((z, bias_ref), (dz, bias_v_ref)))
        a, da = jnp.maximum(z, 0.0).astype(jnp.bfloat16), jnp.where(z > 0, dz, 0.0).astype(jnp.bfloat16)
        third, third_velocity = (ref[pl.ds(padded, CLASSES), :] for ref in (second_ref, second_v_ref))
        scores = dot(a, third, trans_b=True) + bias_ref[pl.ds(NARROW, CLASSES)][None, :]
        along = dot(da, third, trans_b=True) + dot(a, third_velocity, trans_b=True)
        along = along + bias_v_ref[pl.ds(NARROW, CLASSES)][None, :]
        slope_ref[tile] = jnp.sum(_errors(network, scores, label_ref[tile]) * along, axis=1)

    num_rows = columns.shape[0]
    found = pl.pallas_call(
        kernel,
        grid=(num_rows // rows,),
        out_shape=jax.ShapeDtypeStruct((num_rows,), jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="slopes",
    )(columns, labels, *packed, *packed_velocity)
    return found[:batch_size]


def _backward(packed: Packed, inputs: Array, dz: Array, blocks: Blocks, interpret: bool) -> list[Array]:
    """Return, for every split of the batch, ∂W1 with ∂b1 as a row, (NARROW, h1), and ∂W2, (h1, NARROW)."""
    pl, triton = _pallas()
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
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=blocks.back_stages),
        interpret=interpret,
        name="backward",
    )(inputs, dz, packed.first, packed.second)


def _dense_gradient(
    network: FeedForward, num_chains: int, weights: Weights, batch: Batch, coefficients: Array
) -> Weights:
    """Return the gradient of Σ_i c_i·(cross-entropy of example i).

    Mapped over chains, small batches share every product; large ones are processed one after another.
    """
    gradient: Any = partial(_chunked_gradient, network)
    if num_chains == 1 or coefficients.shape[0] > DENSE_CHUNK:
        gradient = custom_batching.sequential_vmap(gradient)
    return gradient(weights, batch, coefficients)


def _chunked_gradient(network: FeedForward, weights: Weights, batch: Batch, coefficients: Array) -> Weights:
    rows = (*batch, coefficients)
    num_examples = coefficients.shape[0]
    num_chunks = -(-num_examples // DENSE_CHUNK)
    size = num_examples // num_chunks
    if num_chunks == 1:
        return _sum_gradient(network, weights, *rows)

    def add(total: Weights, chunk: tuple[Array, ...]) -> tuple[Weights, None]:
        return jax.tree.map(jnp.add, total, _sum_gradient(network, weights, *chunk)), None

    used = size * num_chunks
    chunks = tuple(array[:used].reshape(num_chunks, size, *array.shape[1:]) for array in rows)
    total = lax.scan(add, jax.tree.map(jnp.zeros_like, weights), chunks)[0]
    return total if used == num_examples else add(total, tuple(array[used:] for array in rows))[0]


def _sum_gradient(network: FeedForward, weights: Weights, inputs: Array, labels: Array, coefficients: Array) -> Weights:
    """Return the gradient of the sum of the cross-entropies with these coefficients."""
    layers = [weights[f"layer{index}"] for index in range(1, len(network.sizes))]
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
    error = exponentials * (coefficients / jnp.sum(exponentials, axis=0)) - jnp.where(is_label, coefficients, 0)
    error = jnp.where(scores > 0, error, 0) if has_relu else error
    ones = jnp.ones(labels.shape, dtype)
    found = {}
    for index in range(len(layers), 1, -1):
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
