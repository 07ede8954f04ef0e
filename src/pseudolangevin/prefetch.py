"""Mini-batches of streamed data, fetched while the chains run.

Which examples a step draws depends on the chain's key and the step alone, never on the weights. So the indices of the
next blocks of steps are known before they run: while the device takes the chains through one block, the host gathers
the examples of the following ones and sends them. The chains are those of the same data on the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .samplers import base
from .samplers.base import Kernel
from .streamed import THREADS, StreamedDataset
from .types import Array, Batch, Key

BLOCK_BYTES = 2**24
"""Examples of one block."""
AHEAD = 3
"""Blocks on their way, and as many, at most, that wait on the device or are in use."""
MAX_BLOCK_STEPS = 128
MAX_BLOCKS = 64
"""Blocks whose indices are on the device at once."""


def advance(kernel: Kernel, states: Any, dataset: StreamedDataset, segments: Sequence[int]) -> Any:
    """All chains through segments of so many steps, a block at a time, the next block's examples on their way."""
    assert kernel.batch_size is not None
    num_chains = states.step.shape[0]
    per_step = num_chains * kernel.batch_size * dataset.bytes_per_example
    most = max(1, min(MAX_BLOCK_STEPS, BLOCK_BYTES // per_step))
    lengths = [length for segment in segments for length in [most] * (segment // most) + [segment % most] if length]
    for first in range(0, len(lengths), MAX_BLOCKS):
        states = _advance_blocks(kernel, states, dataset, lengths[first : first + MAX_BLOCKS])
    return states


def _advance_blocks(kernel: Kernel, states: Any, dataset: StreamedDataset, lengths: Sequence[int]) -> Any:
    # All indices are asked for before the first block runs: in the device's queue they would wait for it otherwise.
    starts = [sum(lengths[:position]) for position in range(len(lengths))]
    pieces = zip(starts, lengths, strict=True)
    indices = deque(_indices(kernel, states.key, states.step + start, dataset.num_examples, n) for start, n in pieces)
    for wanted in indices:
        wanted.copy_to_host_async()

    (device,) = states.step.devices()

    def fetch(wanted: Array, first: int, last: int) -> Batch:
        return jax.device_put(dataset.fetch(np.asarray(wanted)[:, first:last]), device)

    with ThreadPoolExecutor(THREADS) as pool:

        def ask() -> list[Future[Batch]]:
            wanted = indices.popleft()
            ends = np.cumsum([0, *dataset.part_lengths(*wanted.shape)]).tolist()
            return [pool.submit(fetch, wanted, first, last) for first, last in pairwise(ends)]

        coming, running = deque(ask() for _ in range(min(AHEAD, len(indices)))), deque[Array]()
        while coming:
            parts = [part.result() for part in coming.popleft()]
            if len(running) == AHEAD:  # else blocks would pile up on the device where it is slower than the host
                running.popleft().block_until_ready()
            if indices:
                coming.append(ask())
            states = _advance(kernel, states, dataset, parts)
            running.append(states.step + 0)  # the states themselves are given to the next block
    return states


@partial(jax.jit, static_argnames=("kernel", "num_examples", "num_steps"))
def _indices(kernel: Kernel, keys: Key, first_step: Array, num_examples: int, num_steps: int) -> Array:
    """The examples of the next steps of every chain, (chain, step, example)."""
    steps = first_step[:, None] + jnp.arange(num_steps)
    of_step = partial(kernel.batch_indices, num_examples=num_examples)
    return jax.vmap(jax.vmap(of_step, in_axes=(None, 0)))(keys, steps)


@partial(jax.jit, static_argnames="kernel", donate_argnames="states")
def _advance(kernel: Kernel, states: Any, dataset: StreamedDataset, parts: Sequence[Batch]) -> Any:
    batches = dataset.join_parts(parts)
    return jax.vmap(lambda state, sent: base.advance_with(kernel, state, dataset, sent, dataset.arrived))(
        states, batches
    )
