"""Stein's identities: what a chain keeps from record to record, so that the certificate can test them.

For samples of exp(−U/T), with the exact gradient g = ∇U and any fixed point w0,

    ⟨g_i⟩ = 0,          ⟨(w − w0)_i·g_j⟩ = T·δ_ij

hold for every weight and along every direction. Records have g already. From it the chain keeps sums for single
weights, and records projections on a few directions: the strongest ones of the noise of single examples, which are also
the stiffest. After record 8, 16, 32, … directions are found again, and w0 becomes the mean of the records since the
last time; the last two sets are kept. Whatever the length of a run, one is from the end of the burn-in or before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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


class SteinSums(NamedTuple):
    """Sums and reference points of one chain; arrays over all N weights are vectors."""

    num_records: Array
    """Number of records so far."""
    block_length: Array
    """Number of records of a block."""
    sums: Array
    """Sums of w, g, w·g and w² over each of 16 blocks of records, (block, 4, watched weight).

    When all blocks are in use, they merge in pairs.
    """
    total: Array
    """Sum of the weights over the records since the current reference, (N,)."""
    reference: Array
    """Points w0: the current and the previous one, (2, N)."""
    directions: Array
    """Orthonormal directions of the current and the previous set, strongest first, (2, direction, N)."""


def _start(potential: Potential, weights: Weights, dataset: Dataset) -> SteinSums | tuple[()]:
    """Return the sums of a chain before its first record; none for networks of 2²² weights or more."""
    num, vector = trees.num_weights(weights), trees.ravel(weights)
    if num >= trees.LARGE_TENSOR:
        return ()
    watched = -(-num // _stride(num))
    return SteinSums(
        num_records=jnp.zeros((), jnp.int32),
        block_length=jnp.ones((), jnp.int32),
        sums=jnp.zeros((16, 4, watched), vector.dtype),
        total=jnp.zeros((num,), vector.dtype),
        reference=jnp.zeros((2, num), vector.dtype),
        directions=jnp.zeros((2, _num_directions(potential, weights, dataset), num), vector.dtype),
    )


def _stride(num_weights: int) -> int:
    """Return the distance between two watched weights: all of up to 2¹⁴ weights are watched."""
    return -(-num_weights // 2**14)


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


def begin(sampler: Any, states: Any, starts: Weights) -> Any:
    """Return states with empty sums, where the sampler has room for it and the weights are not split."""
    mesh = sampler.dataset.mesh
    if not hasattr(states, "tests") or (mesh is not None and mesh.shape["weights"] > 1):
        return states
    one = lambda weights: _start(sampler.potential, weights, sampler.dataset)  # noqa: E731
    return states._replace(tests=jax.vmap(one)(starts))


def detached(states: Any) -> tuple[Any, dict[str, Any]]:
    """Return states without sums, which only records change, and the sums as a change of the states."""
    tests = {"tests": states.tests} if hasattr(states, "tests") else {}
    return states._replace(**dict.fromkeys(tests, ())), tests


def update(old: SteinSums, weights: Weights, gradients: Weights) -> tuple[SteinSums, dict[str, Array]]:
    """Add a record of all chains, with weights and exact gradients; return also its observables.

    All arrays have a leading axis over chains.
    """
    w, g = jax.vmap(trees.ravel)(weights), jax.vmap(trees.ravel)(gradients)
    index, length = jnp.max(old.num_records), jnp.max(old.block_length)  # the same in all chains that run
    num_blocks = old.sums.shape[1]
    full = index == num_blocks * length
    merged = old.sums.reshape(len(w), num_blocks // 2, 2, *old.sums.shape[2:]).sum(axis=2)
    sums = jnp.where(full, jnp.concatenate([merged, jnp.zeros_like(merged)], axis=1), old.sums)
    length = jnp.where(full, 2 * length, length)
    stride = _stride(w.shape[1])
    x, y = w[:, ::stride], g[:, ::stride]
    moved = old._replace(
        num_records=jnp.full_like(old.num_records, index + 1),
        block_length=jnp.full_like(old.block_length, length),
        sums=sums.at[:, index // length].add(jnp.stack([x, y, x * y, x * x], axis=1)),
        total=old.total + w,
    )
    away = jax.vmap(jax.vmap(_unravel_like(jax.tree.map(lambda leaf: leaf[0], weights))))(w[:, None] - moved.reference)
    virials = jax.vmap(jax.vmap(layer_virial_temperatures, in_axes=(0, None)))(away, gradients)
    record = {"centred_virial_temperature": virials}
    if moved.directions.shape[2]:
        project = partial(jnp.einsum, "csdn,cn->csd", moved.directions, precision="highest")
        record |= {"direction_position": project(w), "direction_gradient": project(g)}
    return moved, record


def is_renewed_after(num_records: int) -> bool:
    """Return whether records after this number have a new reference: powers of two from 8 on."""
    return num_records >= 8 and num_records & (num_records - 1) == 0


def renew(sampler: Any, states: Any, dataset: Dataset) -> SteinSums:
    """Make the mean of the latest records the current reference, and find the directions at the weights of all chains.

    The latest records are those since the last renewal: half of all records, or all eight.
    """
    old = states.tests
    since, num = jnp.max(old.num_records), old.directions.shape[2]

    def find(state: Any) -> Array:
        batch_key, block_key = jax.random.split(key_for(state.key, Stream.STEIN, since))
        batch, own = dataset.draw(batch_key, min(1024, dataset.num_examples)), sampler.at(state.temperature)
        return strongest_directions(own.potential, own.position(state), batch, block_key, num)

    mean = old.total / jnp.where(since == 8, 8, since // 2)
    found = jax.vmap(find)(states._replace(tests=())).astype(mean.dtype) if num else old.directions[:, 0]
    return old._replace(
        total=jnp.zeros_like(mean),
        reference=jnp.stack([mean, old.reference[:, 0]], axis=1),
        directions=jnp.stack([found, old.directions[:, 0]], axis=1),
    )


def blocks(found: SteinSums, burn_in: float) -> np.ndarray:
    """Return the means of w, g, w·g and w² over the complete blocks after the burn-in, (chain, block, 4, weight)."""
    count, length = (int(np.max(np.asarray(value))) for value in (found.num_records, found.block_length))
    first, last = round(burn_in * count / length), count // length
    return np.asarray(found.sums[:, first:last], np.float64) / length


def slots(draws: np.ndarray, burn_in: float) -> np.ndarray:
    """Return, for record numbers 1, 2, …, which set of references to use: 0 current, 1 previous, -1 none.

    All retained records have the same reference, which is from the end of the burn-in or before if possible.
    """
    last = int(draws[-1])
    newest = (last - 1).bit_length() - 1  # the newest reference is that of record 2**newest
    power = max(max(1, math.floor(burn_in * last)).bit_length() - 1, newest - 1, 3)
    return np.where(draws > 2**power, np.where(draws > 2 ** (power + 1), 1, 0), -1)
