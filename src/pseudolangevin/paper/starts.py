"""Random weights that can learn every class, chosen at the price of a few thousand forward passes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ..data import Dataset
from ..models import FeedForward
from ..types import Array, Weights

MIN_SHARE = 0.01
"""Each class's score must be positive for at least this share of the examples."""
MAX_TRIES = 1_000


def lively_starts(
    network: FeedForward, dataset: Dataset, num_starts: int, *, seed: int = 0, num_examples: int = 2_000
) -> Weights:
    """Random weights, leading axes (1, num_starts): the first seeds with which no class begins silent.

    ReLU on the scores leaves a class whose score is negative for every input without a gradient. `spins.living_starts`
    looks after ten epochs of training; at a million weights that is the price of the whole study, and the look at the
    untrained scores is not.
    """
    inputs = dataset.head(min(num_examples, dataset.num_examples)).inputs

    @jax.jit
    def least_share(weights: Weights, inputs: Array) -> Array:
        return jnp.min(jnp.mean(network.apply(weights, inputs) > 0, axis=0))

    found: list[Weights] = []
    for candidate in range(seed, seed + MAX_TRIES):
        weights = network.init(jax.random.key(candidate))
        if least_share(weights, inputs) >= MIN_SHARE:
            found.append(jax.tree.map(np.asarray, weights))
            if len(found) == num_starts:
                return jax.tree.map(lambda *leaves: np.stack(leaves)[None], *found)
    raise ValueError(f"only {len(found)} of {MAX_TRIES} random starts have a signal in every class; try another seed")
