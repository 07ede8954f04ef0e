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

A third kernel, before these, computes the slopes of the friction of balanced Langevin. Products have bfloat16 factors
and float32 sums. Sums over the batch come back in parts, one for each tile or split.

For a small network every launch takes as long as the work, so arrays are few. Biases are rows of the matrices that
meet a constant input or unit of one. Inputs, a constant one and the labels are one matrix; W1ᵀ, W2 and W3ᵀ, padded to
NARROW columns, are another (`pack`), and each gradient of a kernel with its bias is a block of one output.

**On a CPU** activations are (features, examples): a forward product then contracts the stored weights along the first
axis, which XLA computes faster than for (examples, features). A large batch is processed in chunks that stay in the
cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import custom_batching, lax
from jaxtyping import Float, Num

from ._trees import Array, Batch, Key, Weights, check_choice
from .potential import cross_entropy

NARROW = 128  # padded width of the inputs, with a constant one and the label, and of the second layer, with two ones
CLASSES = 16  # padded number of classes
SLOPES = 2048  # slopes that a tile reads at once, to sum them
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
        """Return `gradient` and `gradient_moments` of a `Potential` whose loss is that of the outputs.

        The first one is made for the cross-entropy and ReLU.
        """

        def on_cpu(weights: Weights, batch: Batch, friction: Any) -> Weights:
            num = batch[1].shape[0]
            if friction is None:
                coefficients = jnp.full((num,), 1 / num, jnp.float32)
            else:
                coefficients = friction.coefficients(
                    lambda w, b: output_loss(self.apply(w, b[0]), b[1]), weights, batch
                )
            return _by_chains(_dense_gradient, self)(weights, batch, coefficients)

        def gradient(weights: Weights, batch: Batch, precision: str | None) -> dict[str, Callable]:
            single = all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(weights))
            if not single or not isinstance(batch[0], jax.Array) or batch[0].ndim != 2:
                return {}
            kernels = {"cuda": _by_chains(by_kernels, self)} if kernels_apply(self, batch[0], precision) else {}
            return {"cpu": on_cpu} | kernels

        found: dict[str, Any] = {"gradient_moments": partial(layer_moments, self, output_loss)}
        if output_loss is cross_entropy and self.hidden_activation == "relu":
            found["gradient"] = gradient
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
    if max(num_in, narrow) > NARROW - 2 or num_out > CLASSES:
        return False
    if precision is None and inputs.dtype not in (jnp.bool_, jnp.int8, jnp.uint8, jnp.bfloat16):
        return False
    blocks = blocks_for(network, inputs.shape[0], 1)
    return hidden / blocks.hidden <= 4 * inputs.shape[0] / blocks.rows


def _by_chains(gradient: Callable[..., Weights], network: FeedForward) -> Any:
    """Return the gradient as a function of weights, batch and one more, for a network and a number of chains.

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
    """Return block sizes, measured on an H200: small tiles where there is little work, few partial sums else."""
    hidden, rows = network.sizes[1], num_chains * batch_size
    if hidden > 1024:
        blocks, programs = Blocks(rows=128, hidden=64, warps=8, stages=3), 800
    elif hidden > 64:
        blocks, programs = Blocks(rows=64, hidden=128), 128 if num_chains == 1 else 256
    elif rows < 5_000:
        blocks, programs = Blocks(stages=1, back_rows=32, back_hidden=32, back_stages=1), 256
    else:
        blocks, programs = Blocks(stages=1, back_stages=1), 256
    blocks = replace(blocks, slope_rows=64 if rows > 2**14 else 16)
    num_chunks = -(-hidden // blocks.back_hidden)
    num_tiles = -(-batch_size // blocks.back_rows)
    return replace(blocks, splits=max(1, min(num_tiles, programs // (num_chunks * num_chains))))


def by_kernels(
    network: FeedForward,
    num_chains: int,
    weights: Weights,
    batch: Batch,
    friction: Any = None,
    *,
    blocks: Blocks | None = None,
    interpret: bool = False,
) -> Weights:
    """Return the gradient of the mean loss, plus a `gradients.Friction`: pad, call the kernels, add the parts."""
    num_in, num_hidden, narrow, num_classes = network.sizes
    num_examples = batch[1].shape[0]
    blocks = blocks or blocks_for(network, num_examples, num_chains)
    padded = num_hidden + 2 + -(num_hidden + 2) % math.lcm(blocks.hidden, blocks.back_hidden)
    inputs = _packed_batch(batch, -num_examples % math.lcm(blocks.rows, blocks.back_rows, blocks.slope_rows))
    packed = pack(weights, padded, 1.0)
    extra: list[Array] = []
    if friction is not None:
        packed = jnp.concatenate([packed, pack(friction.velocity, padded, 0.0)])
        slopes = slopes_by_kernel(network, packed, padded, inputs, friction.num_examples, blocks, interpret)
        numbers = (friction.temperature, friction.gain, friction.limit)
        extra = [slopes, *(jnp.asarray(number, jnp.float32).reshape(1) for number in numbers)]
    dz, third = _forward(network, packed, padded, inputs, num_examples, friction, extra, blocks, interpret)
    sums = jnp.sum(_backward(packed, padded, inputs, dz, third, blocks, interpret), axis=0)

    def layer(matrix: Array) -> dict[str, Array]:
        return {"kernel": matrix[1:], "bias": matrix[0]}

    return {
        "layer1": layer(sums[1 : num_hidden + 1, : num_in + 1].T),
        "layer2": layer(sums[padded : padded + num_hidden + 1, 1 : narrow + 1]),
        "layer3": layer(sums[2 * padded : 2 * padded + num_classes, : narrow + 1].T),
    }


def _packed_batch(batch: Batch, missing: int) -> Array:
    """Return a bfloat16 matrix of NARROW columns: one, the inputs, zeros, the label; with `missing` more rows."""
    num, num_in = batch[0].shape
    ones, zeros = np.ones((num, 1)), np.zeros((num, NARROW - num_in - 2))
    parts = [ones, batch[0], zeros, batch[1][:, None]]
    return jnp.pad(jnp.concatenate([jnp.asarray(part, jnp.bfloat16) for part in parts], axis=1), ((0, missing), (0, 0)))


def pack(weights: Weights, padded: int, one: float) -> Array:
    """Return W1ᵀ, W2 and W3ᵀ below each other as bfloat16, of (padded, padded, CLASSES) rows and NARROW columns.

    Units 0 and h + 1 of each hidden layer of h units are constant. With `one` = 1 they have the value 1, and the biases
    of the next layer are their weights: rounded at unit 0, and the rounding error at the other. With `one` = 0 these
    are the derivatives along a velocity, which do not move the constant units.
    """
    (b1, w1), (b2, w2), (b3, w3) = ((weights[f"layer{i}"]["bias"], weights[f"layer{i}"]["kernel"]) for i in (1, 2, 3))

    def halves(bias: Array) -> tuple[Array, Array]:
        high = lax.reduce_precision(bias, 8, 7)  # a conversion there and back may be optimised away
        return high, bias - high

    def block(num_rows: int, *parts: Any) -> Array:
        """Return matrices below each other, padded."""
        matrix = jnp.concatenate([jnp.pad(part, ((0, 0), (0, NARROW - part.shape[1]))) for part in parts])
        return jnp.pad(matrix, ((0, num_rows - matrix.shape[0]), (0, 0)))

    unit, none = np.full((1, 1), one, np.float32), np.zeros((len(w2), 1), np.float32)
    (high, low), (last_high, last_low) = halves(b2[None]), halves(b3[:, None])
    first = block(padded, unit, jnp.concatenate([b1[None], w1]).T, unit)
    second = block(
        padded,
        jnp.concatenate([unit, high, unit], axis=1),
        jnp.concatenate([none, w2], axis=1),
        jnp.concatenate([none[:1], low], axis=1),
    )
    third = block(CLASSES, jnp.concatenate([last_high, w3.T, last_low], axis=1))
    return jnp.concatenate([first, second, third]).astype(jnp.bfloat16)


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
    slope_rows: int = 16


def _pallas() -> tuple[Any, Any]:
    """Return modules that are slow to import, and needed on a GPU only."""
    from jax.experimental import pallas  # noqa: PLC0415
    from jax.experimental.pallas import triton  # noqa: PLC0415

    return pallas, triton


def _forward(
    network: FeedForward,
    packed: Array,
    padded: int,
    inputs: Array,
    num_examples: int,
    friction: Any,
    extra: list[Array],
    blocks: Blocks,
    interpret: bool,
) -> list[Array]:
    """Return ∂z, (rows, NARROW), and for every tile a part of ∂W3ᵀ, (CLASSES, NARROW).

    `extra` are slopes, temperature, gain and limit of a friction. Every tile sums all slopes again: that is faster
    than a launch more.
    """
    pl, triton = _pallas()
    num_rows, dot = inputs.shape[0], triton.dot
    num_kicked, num_slopes = (num_examples, 0) if friction is None else (friction.num_kicked, friction.num_examples)

    def friction_scales(number: Array, rows: Any, slope_ref: Any, *number_refs: Any) -> Array:
        temperature, gain, limit = (ref[0] for ref in number_refs)

        def add(j: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            is_slope = j * SLOPES + lax.iota(jnp.int32, SLOPES) < num_slopes
            scaled = jnp.where(is_slope, slope_ref[pl.ds(j * SLOPES, SLOPES)] / temperature, 0.0)
            return sums[0] + jnp.sum(scaled), sums[1] + jnp.sum(scaled**2)

        zero = jnp.zeros((), jnp.float32)
        total, squares = lax.fori_loop(0, -(-num_slopes // SLOPES), add, (zero, zero))
        bound = jnp.minimum(1.0, limit / jnp.maximum(squares - total**2 / num_slopes, 1e-30))
        centred = slope_ref[rows] / temperature - total / num_slopes
        return gain * bound * friction.strength * jnp.where(number < num_slopes, centred, 0.0)

    def forward(x_ref: Any, packed_ref: Any, *refs: Any) -> None:
        *friction_refs, dz_ref, third_ref = refs
        rows = pl.ds(pl.program_id(0) * blocks.rows, blocks.rows)
        number = pl.program_id(0) * blocks.rows + lax.iota(jnp.int32, blocks.rows)
        scales = jnp.where(number < num_kicked, 1 / num_kicked, 0.0).astype(jnp.float32)
        if friction_refs:
            scales = scales + friction_scales(number, rows, *friction_refs)
        x = x_ref[rows, :]
        third = packed_ref[pl.ds(2 * padded, CLASSES), :]

        def chunk(j: Array, z: Array) -> Array:
            first, second = (packed_ref[pl.ds(k * padded + j * blocks.hidden, blocks.hidden), :] for k in range(2))
            h = jnp.maximum(dot(x, first, trans_b=True), 0.0).astype(jnp.bfloat16)
            return z + dot(h, second)

        z = lax.fori_loop(0, padded // blocks.hidden, chunk, jnp.zeros((blocks.rows, NARROW), jnp.float32))
        a = jnp.maximum(z, 0.0).astype(jnp.bfloat16)
        error = _errors(network, dot(a, third, trans_b=True), x_ref[rows, NARROW - 1]) * scales[:, None]
        rounded = error.astype(jnp.bfloat16)
        dz_ref[rows, :] = jnp.where(z > 0, dot(rounded, third), 0.0).astype(jnp.bfloat16)
        third_ref[0, :, :] = dot(rounded, a, trans_a=True)

    shape, num_tiles = jax.ShapeDtypeStruct, num_rows // blocks.rows
    return pl.pallas_call(
        forward,
        grid=(num_tiles,),
        out_shape=[shape((num_rows, NARROW), jnp.bfloat16), shape((num_tiles, CLASSES, NARROW), jnp.float32)],
        out_specs=[
            pl.BlockSpec((num_rows, NARROW), lambda i: (0, 0)),
            pl.BlockSpec((1, CLASSES, NARROW), lambda i: (i, 0, 0)),
        ],
        compiler_params=triton.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
        interpret=interpret,
        name="forward",
    )(inputs, packed, *extra)


def _errors(network: FeedForward, scores: Array, labels: Array) -> Array:
    """Return ∂loss/∂scores, inside a kernel; `scores` are the last pre-activations, with CLASSES columns."""
    has_relu = network.output_activation == "relu"
    logits = jnp.maximum(scores, 0.0) if has_relu else scores
    label = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    logits = jnp.where(label < network.sizes[-1], logits, -jnp.inf)
    shifted = jnp.exp(logits - jnp.max(logits, axis=1)[:, None])
    probabilities = shifted / jnp.sum(shifted, axis=1)[:, None]
    errors = probabilities - jnp.where(label == labels.astype(jnp.int32)[:, None], 1.0, 0.0)
    return jnp.where(scores > 0, errors, 0.0) if has_relu else errors


def slopes_by_kernel(
    network: FeedForward,
    packed: Array,
    padded: int,
    inputs: Array,
    num_slopes: int,
    blocks: Blocks,
    interpret: bool = False,
) -> Array:
    """Return the derivative of the cross-entropy of the first examples along a velocity; later entries are undefined.

    `packed` has the velocity below the weights. The kernel propagates activations and their derivatives together, a
    tile of examples at a time: h_c = max(0, x·W1_c), ∂h_c = x·V1_c where h_c > 0, ∂z = Σ_c (∂h_c·W2_c + h_c·V2_c), and
    so on to the loss.
    """
    pl, triton = _pallas()
    rows, chunk, dot = blocks.slope_rows, math.gcd(32, padded), triton.dot
    below = 2 * padded + CLASSES  # first row of the velocity

    def kernel(x_ref: Any, packed_ref: Any, slope_ref: Any) -> None:
        tile = pl.ds(pl.program_id(0) * rows, rows)
        x = x_ref[tile, :]

        def add(j: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            starts = (0, padded, below, below + padded)
            first, second, first_v, second_v = (packed_ref[pl.ds(s + j * chunk, chunk), :] for s in starts)
            h = jnp.maximum(dot(x, first, trans_b=True), 0.0)
            dh = jnp.where(h > 0, dot(x, first_v, trans_b=True), 0.0).astype(jnp.bfloat16)
            h = h.astype(jnp.bfloat16)
            return sums[0] + dot(h, second), sums[1] + dot(dh, second) + dot(h, second_v)

        zeros = jnp.zeros((rows, NARROW), jnp.float32)
        z, dz = lax.fori_loop(0, padded // chunk, add, (zeros, zeros))
        a, da = jnp.maximum(z, 0.0).astype(jnp.bfloat16), jnp.where(z > 0, dz, 0.0).astype(jnp.bfloat16)
        third, third_v = (packed_ref[pl.ds(s + 2 * padded, CLASSES), :] for s in (0, below))
        along = dot(da, third, trans_b=True) + dot(a, third_v, trans_b=True)
        errors = _errors(network, dot(a, third, trans_b=True), x_ref[tile, NARROW - 1])
        slope_ref[tile] = jnp.sum(errors * along, axis=1)

    return pl.pallas_call(
        kernel,
        grid=(-(-num_slopes // rows),),
        out_shape=jax.ShapeDtypeStruct((inputs.shape[0] + SLOPES,), jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="slopes",
    )(inputs, packed)


def _backward(
    packed: Array, padded: int, inputs: Array, dz: Array, third: Array, blocks: Blocks, interpret: bool
) -> Array:
    """Return, for every split of the batch, ∂W1ᵀ with ∂b1, and below it ∂W2 with ∂b2 and the sum of its parts of ∂W3ᵀ.

    One array of all parts is added by one launch; the compiler would add several by several.
    """
    pl, triton = _pallas()
    splits, hidden, dot = blocks.splits, blocks.back_hidden, triton.dot
    num_tiles, num_parts = inputs.shape[0] // blocks.back_rows, third.shape[0]

    def backward(x_ref: Any, dz_ref: Any, third_ref: Any, packed_ref: Any, grad_ref: Any) -> None:
        units = [pl.ds(k * padded + pl.program_id(0) * hidden, hidden) for k in range(2)]
        first, second = (packed_ref[rows, :] for rows in units)
        split = pl.program_id(1)

        def over_share(num: int, add: Callable[[Array, Any], Any], start: Any) -> Any:
            share = -(-num // splits)
            return lax.fori_loop(split * share, jnp.minimum((split + 1) * share, num), add, start)

        def tile(i: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            rows = pl.ds(i * blocks.back_rows, blocks.back_rows)
            x, dz = x_ref[rows, :], dz_ref[rows, :]
            h = jnp.maximum(dot(x, first, trans_b=True), 0.0)
            dh = jnp.where(h > 0, dot(dz, second, trans_b=True), 0.0).astype(jnp.bfloat16)
            second_grad = sums[1] + dot(h.astype(jnp.bfloat16), dz, trans_a=True)
            return sums[0] + dot(dh, x, trans_a=True), second_grad

        sums = over_share(num_tiles, tile, (jnp.zeros((hidden, NARROW), jnp.float32),) * 2)
        for rows, total in zip(units, sums, strict=True):
            grad_ref[split, rows, :] = total

        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            zeros = jnp.zeros((CLASSES, NARROW), jnp.float32)
            grad_ref[split, pl.ds(2 * padded, CLASSES), :] = over_share(num_parts, lambda i, s: s + third_ref[i], zeros)

    shape = (splits, 2 * padded + CLASSES, NARROW)
    return pl.pallas_call(
        backward,
        grid=(padded // hidden, splits),
        out_shape=jax.ShapeDtypeStruct(shape, jnp.float32),
        out_specs=pl.BlockSpec(shape, lambda j, k: (0, 0, 0)),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=blocks.back_stages),
        interpret=interpret,
        name="backward",
    )(inputs, dz, third, packed)


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
