"""What the machine can do at best: the rate of large matrix products."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .clock import Deadline, time_blocks

PRECISIONS = {
    "float32": (jnp.float32, "highest"),
    "tensorfloat32": (jnp.float32, "tensorfloat32"),
    "bfloat16": (jnp.bfloat16, None),
}
"""Type of the operands, and precision asked for; a CPU computes the first two alike."""


def describe() -> dict[str, Any]:
    """The device, as the measuring process sees it."""
    device = jax.devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return {
        "device": device.device_kind,
        "backend": device.platform,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device_memory_bytes": limit,
    }


def product_rates(deadline: Deadline) -> dict[str, float]:
    """FLOP/s of square matrix products, by precision."""
    size, repeats = (8_192, 10) if jax.devices()[0].platform != "cpu" else (1_024, 4)
    found: dict[str, float] = {}
    for name, (dtype, precision) in PRECISIONS.items():
        if found and deadline.left < 1:
            break

        @jax.jit
        def chain(a: jax.Array, b: jax.Array, precision: str | None = precision) -> jax.Array:
            with jax.default_matmul_precision(precision):
                return lax.fori_loop(0, repeats, lambda _, x: (x @ b).astype(x.dtype), a)

        keys = jax.random.split(jax.random.key(0))
        a, b = (jax.random.normal(key, (size, size), jnp.float32).astype(dtype) for key in keys)
        b = (b / size**0.5).astype(dtype)
        timing = time_blocks(partial(_wait_for, chain, a, b), deadline)
        found[name] = 2.0 * size**3 * repeats / timing.fastest
    return found


def _wait_for(function: Callable[..., jax.Array], *arguments: jax.Array) -> None:
    function(*arguments).block_until_ready()
