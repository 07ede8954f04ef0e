"""How much XLA optimises in the tests: little, since most programs run for less time than they take to compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def optimized() -> Iterator[None]:
    """For the few programs that run longer than they compile."""
    quick = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", quick)
