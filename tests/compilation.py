"""How much XLA optimises in the tests: little, since most programs run for less time than they take to compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import pytest

from pseudolangevin import chains


@contextmanager
def optimized() -> Iterator[None]:
    """For the few programs that run longer than they compile."""
    quick = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", quick)


@contextmanager
def optimized_steps() -> Iterator[None]:
    """For runs of many steps: the segments alone, since start, refresh and record run rarely."""
    advance = chains._advance

    def optimized_advance(*arguments: Any, **more: Any) -> Any:
        with optimized():
            return advance(*arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "_advance", optimized_advance)
        yield
