"""First and second moments of the gradients of single examples, in one pass.

A batch of S examples drawn with replacement has the gradient variance 𝒱 = Var(g)/S, with g the gradient of one example:
one visit to the examples gives it without drawing a batch. In a dense layer the gradient of an example is the product
of the layer's input a and the derivative δ by its pre-activation, so Σg² = (a²)ᵀ·(δ²): one more matrix product.
For any other model the gradients are formed one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from . import trees
from .data import Dataset, draw_batch, fold_chunks
from .potential import Layered, Potential
from .types import Array, Batch, Key, Weights

MAX_NUMBERS = 2**24
"""Bounds the gradients of single examples that are held at once, for models without known layers."""


class Moments(NamedTuple):
    """Sums over examples."""

    gradient: Weights
    squares: Weights


def variance(
    potential: Potential,
    key: Key,
    weights: Weights,
    dataset: Dataset,
    *,
    batch_size: int,
    num_examples: int,
    chunk_size: int,
) -> Weights:
    """𝒱 of the mean gradient of `batch_size` examples, from all examples or `num_examples` drawn ones, if fewer.

    From all of them it is exact; from n drawn ones its relative error is √((κ − 1)/n), κ the kurtosis of g.
    """
    zeros = Moments(trees.zeros_like(weights), trees.zeros_like(weights))
    if potential.layered is None:
        chunk_size = max(1, min(chunk_size, MAX_NUMBERS // trees.num_weights(weights)))

    def fold(sums: Moments, batch: Batch, mask: Array) -> Moments:
        return jax.tree.map(jnp.add, sums, of_batch(potential, weights, batch, mask))

    if num_examples >= dataset.num_examples:
        num, unbiased = dataset.num_examples, 1.0
        sums = fold_chunks(fold, zeros, dataset, chunk_size)
    else:
        chunk_size = min(chunk_size, num_examples)
        num_chunks = -(-num_examples // chunk_size)
        num = num_chunks * chunk_size
        unbiased = num / (num - 1)
        everything = jnp.ones((chunk_size,), bool)

        def body(sums: Moments, index: Array) -> tuple[Moments, None]:
            batch = draw_batch(jax.random.fold_in(key, index), dataset, chunk_size)
            return fold(sums, batch, everything), None

        sums = lax.scan(body, zeros, jnp.arange(num_chunks))[0]
    scale = unbiased / batch_size
    return jax.tree.map(lambda g, s: scale * jnp.maximum(s / num - (g / num) ** 2, 0.0), sums.gradient, sums.squares)


def of_batch(potential: Potential, weights: Weights, batch: Batch, mask: Array) -> Moments:
    """Sums over the examples of a batch where `mask` is true; the regulariser, the same for all, is left out."""
    if potential.layered is not None:
        return _layered(potential.layered, weights, batch, mask)

    def loss(weights: Weights, example: Batch) -> Array:
        single = jax.tree.map(lambda array: array[None], example)
        return potential.per_example_loss(weights, single)[0]

    gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))(weights, batch)

    def masked(g: Array) -> Array:
        return jnp.where(mask.reshape(-1, *[1] * (g.ndim - 1)), g, 0.0)

    gradients = jax.tree.map(masked, gradients)
    return Moments(
        jax.tree.map(lambda g: jnp.sum(g, axis=0), gradients),
        jax.tree.map(lambda g: jnp.sum(g**2, axis=0), gradients),
    )


def _layered(layered: Layered, weights: Weights, batch: Batch, mask: Array) -> Moments:
    network = layered.network
    inputs, targets = batch

    def total(offsets: list[Array]) -> tuple[Array, list[Array]]:
        outputs, layer_inputs = network.trace(weights, inputs, offsets)
        return jnp.sum(jnp.where(mask, layered.output_loss(outputs, targets), 0.0)), layer_inputs

    dtype = weights["layer1"]["kernel"].dtype
    zeros = [jnp.zeros((mask.shape[0], size), dtype) for size in network.sizes[1:]]
    deltas, layer_inputs = jax.grad(total, has_aux=True)(zeros)

    def sums(power: int) -> Weights:
        return {
            f"layer{index}": {"kernel": (a**power).T @ (d**power), "bias": jnp.sum(d**power, axis=0)}
            for index, (a, d) in enumerate(zip(layer_inputs, deltas, strict=True), start=1)
        }

    return Moments(sums(1), sums(2))
