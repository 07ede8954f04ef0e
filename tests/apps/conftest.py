"""A small problem for the searches and fits."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import pseudolangevin as pl
from tests.conftest import SmallTask


@pytest.fixture(scope="session")
def cubic_task(linear_task) -> SmallTask:
    """One array of weights, which compiles fast, and scores of third order, which overflow at T = 1e30."""
    potential = pl.classification(lambda w, x: x.astype(w.dtype) @ (w * jnp.sum(w**2)), weight_decay=5.0)
    return linear_task._replace(potential=potential)
