"""Mini-batches of streamed data, fetched while the chains run.

Which examples a step draws depends on the chain's key and the step alone, never on the weights. So the indices of the
next block of steps are known before it runs: while the device takes the chains through one block, the host gathers the
examples of the next and sends them. The chains are those of the same data on the device.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .data import draw_indices
from .samplers import base
from .samplers.base import Kernel
from .streamed import StreamedDataset
from .types import Array, Batch, Key

BLOCK_BYTES = 2**26
"""Examples of one block; two blocks are on the device at a time."""
MAX_BLOCK_STEPS = 256


def advance(kernel: Kernel, states: Any, dataset: StreamedDataset, num_steps: int) -> Any:
    """All chains through `num_steps` steps, a block at a time, the next block's examples on their way."""
    assert kernel.batch_size is not None
    num_chains = states.step.shape[0]
    per_step = num_chains * kernel.batch_size * dataset.bytes_per_example
    length = max(1, min(num_steps, MAX_BLOCK_STEPS, BLOCK_BYTES // per_step))
    lengths = [length] * (num_steps // length) + [num_steps % length] * (num_steps % length > 0)

    def fetch(indices: Array) -> Batch:
        return jax.device_put(dataset.fetch(indices))

    def indices_from(start: int, block: int) -> Array:
        return _indices(kernel, states.key, states.step + start, dataset.num_examples, block)

    with ThreadPoolExecutor(1) as ahead:
        batches = ahead.submit(fetch, indices_from(0, lengths[0]))
        for position, block in enumerate(lengths):
            ready, following = batches.result(), None
            if position + 1 < len(lengths):  # before the block starts: the device would come to it only afterwards
                following = indices_from(block, lengths[position + 1])
            states = _advance(kernel, states, dataset, ready)
            if following is not None:
                batches = ahead.submit(fetch, following)
    return states


@partial(jax.jit, static_argnames=("kernel", "num_examples", "num_steps"))
def _indices(kernel: Kernel, keys: Key, first_step: Array, num_examples: int, num_steps: int) -> Array:
    """The examples of the next steps of every chain, (chain, step, example)."""
    batch_size = kernel.batch_size
    assert batch_size is not None

    def one(key: Key, step: Array) -> Array:
        return draw_indices(kernel.batch_key(key, step), num_examples, batch_size)

    steps = first_step[:, None] + jnp.arange(num_steps)
    return jax.vmap(jax.vmap(one, in_axes=(None, 0)))(keys, steps)


@partial(jax.jit, static_argnames="kernel", donate_argnames="states")
def _advance(kernel: Kernel, states: Any, dataset: StreamedDataset, batches: Batch) -> Any:
    return jax.vmap(lambda state, drawn: base.advance_with(kernel, state, dataset, drawn))(states, batches)
