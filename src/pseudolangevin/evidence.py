"""Evidence: what a chain keeps from record to record, so that the certificate can test Stein's identities.

For samples of exp(−U/T), with the exact gradient g = ∇U and any fixed point w0,

    ⟨g_i⟩ = 0,          ⟨(w − w0)_i·g_j⟩ = T·δ_ij

hold for every weight and along every direction. Records have g already. From it the chain keeps sums for single
weights, and records projections on a few directions: the strongest ones of the noise of single examples, which are also
the stiffest. At record 1, 2, 4, 8, … directions are found again, and w0 becomes the mean of the records since the last
time; the last two sets are kept. Whatever the length of a run, one of them is from the end of the burn-in or before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _trees as trees
from ._random import Stream, key_for
from ._trees import Array, Batch, Key, Weights
from .data.dataset import Dataset
from .data.streamed import StreamedDataset
from .gradients import covariance_product
from .observables import layer_virial_temperatures
from .potential import Potential

NUM_BLOCKS = 16  # blocks of records with sums of their own; when all are in use, they merge in pairs
PROJECTIONS = ("direction_position", "direction_gradient")  # names in the trace
MAX_WATCHED = 2**14  # weights with sums of their own; of a larger network, weights at equal distances


class Evidence(NamedTuple):
    """Sums and reference points of one chain; arrays over all N weights are vectors."""

    num_records: Array
    """Number of records so far."""
    block_length: Array
    """Number of records of a block."""
    sums: Array
    """Sums of w, g, w·g and w² over each block, (block, 4, watched weight)."""
    total: Array
    """Sum of the weights over the records since the current reference, (N,)."""
    reference: Array
    """Points w0: the current and the previous one, (2, N)."""
    directions: Array
    """Orthonormal directions of the current and the previous set, strongest first, (2, direction, N)."""


def start(potential: Potential, weights: Weights, dataset: Dataset) -> Evidence | tuple[()]:
    """Return the evidence of a chain before its first record; none for networks of 2²² weights or more."""
    num, vector = trees.num_weights(weights), trees.ravel(weights)
    if num >= trees.LARGE_TENSOR:
        return ()
    watched = -(-num // _stride(num))
    return Evidence(
        num_records=jnp.zeros((), jnp.int32),
        block_length=jnp.ones((), jnp.int32),
        sums=jnp.zeros((NUM_BLOCKS, 4, watched), vector.dtype),
        total=jnp.zeros((num,), vector.dtype),
        reference=jnp.zeros((2, num), vector.dtype),
        directions=jnp.zeros((2, _num_directions(potential, weights, dataset), num), vector.dtype),
    )


def _stride(num_weights: int) -> int:
    return -(-num_weights // MAX_WATCHED)


def _num_directions(potential: Potential, weights: Weights, dataset: Dataset) -> int:
    """Return the number of directions: 16 up to 2¹⁵ weights, fewer above; 0 if they cannot be computed."""
    if isinstance(dataset, StreamedDataset):
        return 0
    num = min(16, trees.num_weights(weights), max(2, 2**19 // trees.num_weights(weights)))
    try:
        batch = dataset.shapes(2)
        jax.eval_shape(lambda w, b, k: strongest_directions(potential, w, b, k, num), weights, batch, jax.random.key(0))
    except (TypeError, NotImplementedError, ValueError):  # a loss without forward derivatives
        return 0
    return num


def strongest_directions(potential: Potential, weights: Weights, batch: Batch, key: Key, num: int) -> Array:
    """Return the directions in which the gradients of single examples vary most, (direction, N), orthonormal.

    They are Ritz vectors after three steps of block power iteration with the covariance of the gradient on a batch.
    """
    product = covariance_product(potential, weights, batch, "highest")
    unravel = _unravel_like(weights)

    def apply(block: Array) -> Array:
        return lax.map(lambda vector: trees.ravel(product(unravel(vector))[0]), block)

    def orthonormal(block: Array) -> Array:
        return jnp.linalg.qr(block.T)[0].T

    block = orthonormal(jax.random.normal(key, (num, trees.num_weights(weights)), trees.ravel(weights).dtype))
    block = lax.fori_loop(0, 3, lambda _, block: orthonormal(apply(block)), block)
    small = block @ apply(block).T
    return jnp.linalg.eigh(0.5 * (small + small.T))[1].T[::-1] @ block


def _unravel_like(weights: Weights) -> Callable[[Array], Weights]:
    leaves, structure = jax.tree.flatten(weights)
    shapes = tuple(leaf.shape for leaf in leaves)
    return lambda vector: trees.Flat(vector, structure, shapes).tree


def update(
    evidence: Evidence, potential: Potential, weights: Weights, gradients: Weights, dataset: Dataset, keys: Key
) -> tuple[Evidence, dict[str, Array]]:
    """Add a record of all chains, with weights and exact gradients; return also its observables.

    All arrays have a leading axis over chains.
    """
    w, g = jax.vmap(trees.ravel)(weights), jax.vmap(trees.ravel)(gradients)
    index, length = jnp.max(evidence.num_records), jnp.max(evidence.block_length)  # the same in all chains that run

    total = evidence.total + w

    def renewed() -> tuple[Array, Array]:
        num, size = evidence.directions.shape[2], min(1024, dataset.num_examples)

        def find(key: Key, one: Weights) -> Array:
            batch_key, block_key = jax.random.split(key_for(key, Stream.EVIDENCE, index))
            return strongest_directions(potential, one, dataset.draw(batch_key, size), block_key, num)

        found = jax.vmap(find)(keys, weights) if num else evidence.directions[:, 0]
        newest = (total / jnp.maximum((index + 1) // 2, 1), found.astype(w.dtype))
        return tuple(  # type: ignore[return-value]
            jnp.stack([new, old[:, 0]], axis=1)
            for new, old in zip(newest, (evidence.reference, evidence.directions), strict=True)
        )

    power_of_two = jnp.bitwise_and(index + 1, index) == 0
    reference, directions = lax.cond(power_of_two, renewed, lambda: (evidence.reference, evidence.directions))
    full = index == NUM_BLOCKS * length
    merged = evidence.sums.reshape(len(w), NUM_BLOCKS // 2, 2, *evidence.sums.shape[2:]).sum(axis=2)
    sums = jnp.where(full, jnp.concatenate([merged, jnp.zeros_like(merged)], axis=1), evidence.sums)
    length = jnp.where(full, 2 * length, length)
    stride = _stride(w.shape[1])
    x, y = w[:, ::stride], g[:, ::stride]
    sums = sums.at[:, index // length].add(jnp.stack([x, y, x * y, x * x], axis=1))
    count, lengths = jnp.full_like(evidence.num_records, index + 1), jnp.full_like(evidence.block_length, length)
    total = jnp.where(power_of_two, jnp.zeros_like(total), total)
    moved = Evidence(count, lengths, sums, total, reference, directions)
    virials = jax.vmap(lambda away, gradient: layer_virial_temperatures(_unravel_like(gradient)(away), gradient))
    away = w[:, None] - reference
    record = {"centred_virial_temperature": jnp.stack([virials(away[:, s], gradients) for s in (0, 1)], axis=1)}
    if directions.shape[2]:
        project = lambda vectors: jnp.einsum("csdn,cn->csd", directions, vectors, precision="highest")  # noqa: E731
        record |= {name: project(vectors) for name, vectors in zip(PROJECTIONS, (w, g), strict=True)}
    return moved, record


def blocks(evidence: Evidence, burn_in: float) -> np.ndarray:
    """Return the means of w, g, w·g and w² over the complete blocks after the burn-in, (chain, block, 4, weight)."""
    count, length = (int(np.max(np.asarray(value))) for value in (evidence.num_records, evidence.block_length))
    first, last = round(burn_in * count / length), count // length
    return np.asarray(evidence.sums[:, first:last], np.float64) / length


def slots(draws: np.ndarray, burn_in: float) -> np.ndarray:
    """Return, for record numbers 1, 2, …, which set of references to use: 0 current, 1 previous, -1 none.

    All retained records have the same reference, which is from the end of the burn-in or before if possible.
    """
    last = int(draws[-1])
    newest = last.bit_length() - 1
    power = max(max(1, math.floor(burn_in * last)).bit_length() - 1, newest - 1)
    known = (draws > 2**power) | (power == 0)
    return np.where(known, np.where(draws >= 2 ** (power + 1), 1, 0), -1)
