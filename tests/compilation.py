"""Optimisation by XLA in the tests: little, since most programs run for less time than they take to compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import pytest

from pseudolangevin import chains


@contextmanager
def optimized() -> Iterator[None]:
    """Optimise the few programs that run longer than they compile."""
    quick = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", quick)


@contextmanager
def optimized_steps() -> Iterator[None]:
    """Optimise the segments of a long run, and not its start, refreshes and records, which run rarely."""
    segment = chains._segment

    def optimized_segment(*arguments: Any, **more: Any) -> Any:
        with optimized():
            return segment(*arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "_segment", optimized_segment)
        yield
