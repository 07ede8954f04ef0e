"""Two GPU kernels for networks in → h1 → h2 → classes: the gradient of a batch without its hidden activations.

A wide first hidden layer makes the plain gradient slow: the activations, batch × h1 numbers, go through memory several
times. Here they never leave the chip. With x the inputs and z the pre-activations of the second layer,

    forward   z = Σ_c h_c·W2_c with h_c = max(0, x·W1_c), c the chunks of h1; then the rest of the network, its loss and
              ∂z = ∂loss/∂z: tile by tile of the batch;
    backward  for every c, h_c once more, then ∂W2_c = h_cᵀ·∂z and ∂W1_c = xᵀ·∂h_c with ∂h_c = ∂z·W2_cᵀ where h_c > 0.

Products have bfloat16 factors and float32 sums. Shapes are padded to powers of two; b1 is one more row of W1, met by a
constant input of one. Sums over the batch come back in parts, one for each tile or split.

For a small network a launch takes as long as the work, and every array that goes in or out is one to make it or to add
up its parts. So there are three of each: W3ᵀ lies below W2, and what the tiles find for W3, b2 and b3 is one matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from .types import Array

NARROW = 128
"""Padded width of the inputs (with the constant one) and of the second layer."""
CLASSES = 16
"""Padded number of classes."""


BIAS_ROWS = 2
"""Rows below ∂W3ᵀ in what the tiles find: ∂b2 and ∂b3."""


class Packed(NamedTuple):
    """Padded weights."""

    first: Array
    """W1 with b1 as a row, (NARROW, h1), bfloat16."""
    second: Array
    """W2 and below it W3ᵀ, (h1 + CLASSES, NARROW), bfloat16."""
    biases: Array
    """b2 and b3, (NARROW + CLASSES,)."""


class Gradient(NamedTuple):
    """Its padded parts, float32."""

    first: Array
    """∂W1 with ∂b1 as a row, (NARROW, h1)."""
    second: Array
    """∂W2, (h1, NARROW)."""
    end: Array
    """∂W3ᵀ, ∂b2 and ∂b3, (CLASSES + BIAS_ROWS, NARROW); the last row only as far as there are classes."""


@dataclass(frozen=True)
class Blocks:
    """How the work is cut."""

    rows: int = 64
    """Examples in a tile of the forward kernel."""
    hidden: int = 64
    """Units of the wide layer in a chunk of the forward kernel."""
    warps: int = 4
    stages: int = 2
    back_rows: int = 64
    back_hidden: int = 64
    back_warps: int = 4
    back_stages: int = 2
    splits: int = 16
    """Parts of the batch that the backward kernel treats at once."""


class Tail(NamedTuple):
    """What the narrow end of the network needs to know."""

    num_classes: int
    relu_output: bool
    batch_size: int


def _dot(a: Array, b: Array, **transposed: bool) -> Array:
    return triton.dot(a, b, **transposed)


def _forward(
    x_ref: Any,
    label_ref: Any,
    first_ref: Any,
    second_ref: Any,
    bias_ref: Any,
    dz_ref: Any,
    end_grad_ref: Any,
    *,
    blocks: Blocks,
    tail: Tail,
) -> None:
    start = pl.program_id(0) * blocks.rows
    rows = pl.ds(start, blocks.rows)
    num_hidden = first_ref.shape[1]
    x = x_ref[rows, :]
    third = second_ref[pl.ds(num_hidden, CLASSES), :]

    def chunk(j: Array, z: Array) -> Array:
        units = pl.ds(j * blocks.hidden, blocks.hidden)
        h = jnp.maximum(_dot(x, first_ref[:, units]), 0.0).astype(jnp.bfloat16)
        return z + _dot(h, second_ref[units, :])

    z = jnp.zeros((blocks.rows, NARROW), jnp.float32)
    z = lax.fori_loop(0, num_hidden // blocks.hidden, chunk, z)
    z = z + bias_ref[pl.ds(0, NARROW)][None, :]
    a = jnp.maximum(z, 0.0).astype(jnp.bfloat16)
    scores = _dot(a, third, trans_b=True) + bias_ref[pl.ds(NARROW, CLASSES)][None, :]
    logits = jnp.maximum(scores, 0.0) if tail.relu_output else scores
    classes = lax.broadcasted_iota(jnp.int32, (blocks.rows, CLASSES), 1)
    logits = jnp.where(classes < tail.num_classes, logits, -jnp.inf)
    shifted = jnp.exp(logits - jnp.max(logits, axis=1)[:, None])
    probabilities = shifted / jnp.sum(shifted, axis=1)[:, None]
    chosen = classes == label_ref[rows][:, None]
    error = (probabilities - jnp.where(chosen, 1.0, 0.0)) / tail.batch_size
    if tail.relu_output:
        error = jnp.where(scores > 0, error, 0.0)
    present = start + lax.broadcasted_iota(jnp.int32, (blocks.rows, CLASSES), 0) < tail.batch_size
    error = jnp.where(present, error, 0.0)
    rounded = error.astype(jnp.bfloat16)
    dz = jnp.where(z > 0, _dot(rounded, third), 0.0)
    dz_ref[rows, :] = dz.astype(jnp.bfloat16)
    end_grad_ref[0, pl.ds(0, CLASSES), :] = _dot(rounded, a, trans_a=True)
    end_grad_ref[0, CLASSES, :] = jnp.sum(dz, axis=0)
    end_grad_ref[0, CLASSES + 1, pl.ds(0, CLASSES)] = jnp.sum(error, axis=0)


def _backward(
    x_ref: Any,
    dz_ref: Any,
    first_ref: Any,
    second_ref: Any,
    first_grad_ref: Any,
    second_grad_ref: Any,
    *,
    blocks: Blocks,
) -> None:
    units = pl.ds(pl.program_id(0) * blocks.back_hidden, blocks.back_hidden)
    first = first_ref[:, units]
    second = second_ref[units, :]
    tiles = x_ref.shape[0] // blocks.back_rows
    per_split = -(-tiles // blocks.splits)
    begin = pl.program_id(1) * per_split

    def tile(i: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        first_grad, second_grad = sums
        rows = pl.ds(i * blocks.back_rows, blocks.back_rows)
        x, dz = x_ref[rows, :], dz_ref[rows, :]
        h = jnp.maximum(_dot(x, first), 0.0)
        dh = jnp.where(h > 0, _dot(dz, second, trans_b=True), 0.0).astype(jnp.bfloat16)
        second_grad = second_grad + _dot(h.astype(jnp.bfloat16), dz, trans_a=True)
        return first_grad + _dot(x, dh, trans_a=True), second_grad

    zeros = (
        jnp.zeros((NARROW, blocks.back_hidden), jnp.float32),
        jnp.zeros((blocks.back_hidden, NARROW), jnp.float32),
    )
    first_grad, second_grad = lax.fori_loop(begin, jnp.minimum(begin + per_split, tiles), tile, zeros)
    first_grad_ref[0, :, :] = first_grad
    second_grad_ref[0, :, :] = second_grad


def gradient(
    packed: Packed, inputs: Array, labels: Array, *, tail: Tail, blocks: Blocks, interpret: bool = False
) -> Gradient:
    """Gradient of the mean cross-entropy of a batch, in the padded shapes.

    `inputs` are bfloat16 (rows, NARROW) with the constant one in place, `labels` int32 (rows,); rows beyond
    `tail.batch_size` do not count, and their number is a multiple of both tile heights.
    """
    num_rows, num_hidden = inputs.shape[0], packed.first.shape[1]
    num_tiles = num_rows // blocks.rows
    shape = jax.ShapeDtypeStruct
    end_shape = (CLASSES + BIAS_ROWS, NARROW)
    dz, end = pl.pallas_call(
        partial(_forward, blocks=blocks, tail=tail),
        grid=(num_tiles,),
        out_shape=(
            shape((num_rows, NARROW), jnp.bfloat16),
            shape((num_tiles, *end_shape), jnp.float32),
        ),
        out_specs=(
            pl.BlockSpec((num_rows, NARROW), lambda i: (0, 0)),
            pl.BlockSpec((1, *end_shape), lambda i: (i, 0, 0)),
        ),
        compiler_params=triton.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
        interpret=interpret,
        name="forward",
    )(inputs, labels, *packed)
    first, second = pl.pallas_call(
        partial(_backward, blocks=blocks),
        grid=(num_hidden // blocks.back_hidden, blocks.splits),
        out_shape=(
            shape((blocks.splits, NARROW, num_hidden), jnp.float32),
            shape((blocks.splits, num_hidden, NARROW), jnp.float32),
        ),
        out_specs=(
            pl.BlockSpec((1, NARROW, blocks.back_hidden), lambda j, k: (k, 0, j)),
            pl.BlockSpec((1, blocks.back_hidden, NARROW), lambda j, k: (k, j, 0)),
        ),
        compiler_params=triton.CompilerParams(num_warps=blocks.back_warps, num_stages=blocks.back_stages),
        interpret=interpret,
        name="backward",
    )(inputs, dz, packed.first, packed.second)
    return Gradient(*(jnp.sum(parts, axis=0) for parts in (first, second, end)))
