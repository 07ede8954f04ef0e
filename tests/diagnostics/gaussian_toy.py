"""A potential on which everything is known: U = |w − x̄|²/2 with independent, Gaussian, constant gradient noise."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

import pseudolangevin as pl

NUM_WEIGHTS = 240
BATCH_SIZE = 8
VARIANCE = 1 / BATCH_SIZE  # 𝒱 of every component: the examples have variance one
TEMPERATURE = 2 * VARIANCE
SPACING = 1 + 2 * np.sqrt(2 / NUM_WEIGHTS)  # ratio of temperatures whose mean energies are two deviations apart
RECORD_EVERY = 12  # about the relaxation time of the energy in steps
NUM_STEPS = 12_000


@cache
def dataset() -> pl.Dataset:
    """Examples whose components have mean zero, variance one, and no correlation in the data set."""
    num_examples = NUM_WEIGHTS + 16
    columns = np.random.default_rng(0).normal(size=(num_examples, NUM_WEIGHTS))
    orthogonal = np.linalg.qr(columns - columns.mean(axis=0))[0] * np.sqrt(num_examples)
    return pl.Dataset(orthogonal.astype(np.float32), np.zeros(num_examples, np.int32))


def per_example_loss(weights, batch):
    return 0.5 * jnp.sum((batch[0] - jnp.concatenate([weights["small"], weights["large"]])) ** 2, axis=-1)


POTENTIAL = pl.Potential(per_example_loss)


def weights(scale: float = 0.0):
    return {"small": jnp.full(80, scale), "large": jnp.full(NUM_WEIGHTS - 80, scale)}


def sampler(kind: type[pl.Sampler] = pl.pseudo_langevin, **settings) -> pl.Sampler:
    """Pseudo-Langevin with a friction that lets the energy relax within a dozen steps."""
    settings = {"momentum_retention": 0.9, "refresh_every": 5_760, "batch_size": BATCH_SIZE} | settings
    return kind(POTENTIAL, dataset(), **settings)


def run(sampler, *, num_steps=NUM_STEPS, num_chains=2, key=0, start=None, temperatures=(TEMPERATURE,)) -> pl.Result:
    settings = {"temperatures": list(temperatures), "num_chains": num_chains, "num_steps": num_steps}
    return pl.sample(sampler, weights() if start is None else start, **settings, record_every=RECORD_EVERY, key=key)


def chains_of(result: pl.Result, chosen: list[int]) -> pl.Result:
    """A result with some of the chains, as if the others had not been run."""
    num_temperatures, num_chains = result.trace["status"].shape[:2]
    index = np.array([t * num_chains + c for t in range(num_temperatures) for c in chosen])
    return replace(
        result,
        trace=result.trace.isel(chain=chosen).assign_coords(chain=np.arange(len(chosen))),
        weights=jax.tree.map(lambda leaf: leaf[:, np.array(chosen)], result.weights),
        states=jax.tree.map(lambda leaf: leaf[index], result.states),
    )
