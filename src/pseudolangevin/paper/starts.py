"""Starts that need no training: random weights that can learn every class, and weights of the prior at T."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .. import trees
from ..data import Dataset
from ..models import FeedForward
from ..potential import Potential
from ..types import Array, Key, Weights

MIN_SHARE = 0.01
"""Each class's score must be positive for at least this share of the examples."""
MAX_TRIES = 1_000


def thermal_start(
    network: FeedForward,
    dataset: Dataset,
    potential: Potential,
    temperature: float,
    *,
    scores: float = 1.0,
    seed: int = 0,
) -> Weights:
    """Weights from N(0, N·T/λ), the last layer scaled down to a spread of the `scores`; no class begins silent.

    Above the transition nearly all directions of weight space are held by the regulariser alone. From here they are at
    their temperature at once, and what the data say is found within hundreds of steps; from the small weights of an
    initialisation, |w|² takes 𝒱/(4·T·𝒯·λ/N) steps to grow, far longer. The last layer is small so that the network
    begins undecided: at a high T the scores of the prior are in the hundreds. How small it was is forgotten slowly:
    with a large last layer, the one before it feels more of the data, is held by them, and has a larger 𝒱. Well above
    the transition, scores of 0.1 are nearer to equilibrium than scores of one; far above, they can cost every class.
    """
    inputs = dataset.head(min(2_000, dataset.num_examples)).inputs
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    scale = math.sqrt(temperature / potential.smallest_stiffness(trees.num_weights(shapes)))
    last = max(shapes)

    @jax.jit
    def draw(key: Key, inputs: Array) -> tuple[Weights, Array]:
        weights = jax.tree.map(lambda xi: scale * xi, trees.normal_like(key, shapes))
        outputs = network.apply(weights, inputs)
        quieter = jnp.minimum(1.0, scores / jnp.std(outputs))
        weights = weights | {last: jax.tree.map(lambda w: quieter * w, weights[last])}
        return weights, jnp.min(jnp.mean(outputs > 0, axis=0))

    for candidate in range(seed, seed + MAX_TRIES):
        weights, least_share = draw(jax.random.key(candidate), inputs)
        if least_share >= MIN_SHARE:
            return jax.tree.map(np.asarray, weights)
    raise ValueError(f"none of {MAX_TRIES} draws has a signal in every class; try another seed")


def side_by_side(weights: Sequence[Weights]) -> Weights:
    """Starts of several chains: leading axes (1, start)."""
    return jax.tree.map(lambda *leaves: np.stack(leaves)[None], *weights)


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
                return side_by_side(found)
    raise ValueError(f"only {len(found)} of {MAX_TRIES} random starts have a signal in every class; try another seed")
