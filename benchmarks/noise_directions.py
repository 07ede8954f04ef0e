"""The temperature of every direction of the mini-batch noise, for SGHMC, pseudo-Langevin and balanced Langevin.

    python benchmarks/noise_directions.py --out docs/balance.png      # two minutes on two cores

The directions are the eigenvectors of the covariance of the gradient noise, averaged over samples, with every weight in
units of its thermal step, that is scaled by the root of its mass. Along a fixed direction u equipartition holds at any
temperature and in any potential:

    <(u·x)(u·dU/dx)> = T,        x = M^(1/2)·(w - <w>)

so the left side over T is the temperature of the direction in units of T. It is measured from kept weights.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from matplotlib.figure import Figure

import pseudolangevin as pl

TEMPERATURE, RATIO, RETENTION = 1e-3, 0.1, math.sqrt(0.997)
COLORS = {"SGHMC": "#d55e00", "pseudo-Langevin": "#e69f00", "balanced Langevin": "#0072b2"}


def main(arguments: list[str] | None = None) -> dict[str, np.ndarray]:
    """Sample, draw the picture and return the temperatures of all directions, the noisiest first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("balance.png"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--chains", type=int, default=8)
    options = parser.parse_args(arguments)

    train, _ = pl.tasks.spin_vectors(jax.random.key(0), num_train=2_000, num_test=1, dimension=20, num_classes=4)
    network = pl.models.feedforward((20, 10, 10, 4), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=2.0)
    first = network.init(jax.random.key(1))
    training = pl.adam(potential, train, learning_rate=1e-3)
    start = pl.sample(training, first, num_chains=options.chains, num_steps=1_000, record_every=1_000, key=0).weights
    noisy = {"batch_size": 200, "momentum_retention": RETENTION}
    balanced = pl.balanced_langevin(potential, train, temperature_ratio=RATIO, **noisy)
    vector = jax.vmap(lambda weights: ravel_pytree(weights)[0])

    def sampled(sampler: pl.Sampler, weights: pl.models.FeedForward) -> tuple[np.ndarray, pl.Result]:
        """Return the kept weights of the second half, (chain, draw, weight), and the result."""
        every = max(1, options.steps // 1_000)
        result = pl.sample(
            sampler, weights, temperatures=[TEMPERATURE], num_chains=options.chains, num_steps=options.steps,
            record_every=every, keep_weights_every=1, observe_examples=100, key=2,
        )
        flat = jax.vmap(vector)(jax.tree.map(lambda w: jnp.asarray(w[0]), result.samples))
        return np.asarray(flat[:, flat.shape[1] // 2 :]), result

    unravel = ravel_pytree(first)[1]

    def energy(w: jax.Array) -> jax.Array:
        return potential.loss(unravel(w), train.batch) + potential.regularizer(unravel(w))

    def covariance(w: jax.Array) -> jax.Array:
        per_example = jax.jacrev(lambda v: potential.per_example_loss(unravel(v), train.batch))(w)
        return jnp.cov(per_example.T)

    kept, result = sampled(balanced, start)
    masses = np.asarray(vector(result.states.masses)).mean(axis=0)
    variance = float(np.mean(np.asarray(vector(result.states.gradient_variance))))
    some = kept.reshape(-1, kept.shape[-1])[:: max(1, kept.shape[0] * kept.shape[1] // 50)]
    noise = np.asarray(jnp.mean(jax.lax.map(jax.jit(covariance), jnp.asarray(some)), axis=0))
    strengths, directions = np.linalg.eigh(noise / np.sqrt(np.outer(masses, masses)))
    directions = directions[:, ::-1]
    # The time step of SGHMC gives the mean weight the same ratio of mini-batch noise to thermal noise.
    step = math.sqrt(4 * (1 - RETENTION**2) * TEMPERATURE * RATIO / variance)
    weights = jax.tree.map(lambda w: w[:, :, -1], result.samples)
    others = {
        "SGHMC": pl.naive_pseudo_langevin(potential, train, time_step=step, subtract_variance=False, **noisy),
        "pseudo-Langevin": pl.pseudo_langevin(
            potential, train, temperature_ratio=RATIO, reset_probability=0.0, refresh_every=500, **noisy
        ),
        "exact gradient": pl.full_batch_langevin(potential, train, time_step=1.0, momentum_retention=RETENTION,
            masses=jax.tree.map(lambda m: m[0], result.states.masses)),
    }
    samples = {"balanced Langevin": kept} | {name: sampled(other, weights)[0] for name, other in others.items()}
    gradients = jax.jit(lambda w: jax.lax.map(jax.grad(energy), w, batch_size=100))
    temperatures = {}
    for name, found in samples.items():
        x = (found - found.mean(axis=(0, 1))) * np.sqrt(masses) @ directions
        forces = np.asarray(gradients(jnp.asarray(found.reshape(-1, found.shape[-1])))).reshape(found.shape)
        products = x * (forces / np.sqrt(masses) @ directions) / TEMPERATURE
        temperatures[name] = products.mean(axis=1)
        m = temperatures[name]
        e = m.std(0, ddof=1) / np.sqrt(len(m))
        print(name, np.round(m.mean(0)[:12], 2), np.round(e[:12], 2), m.mean(), m.mean(0)[30:].mean(), flush=True)
    print(strengths[::-1][:15] * (1 + RETENTION**2)**2/4 / 200/ TEMPERATURE, np.mean(strengths))
    np.savez("/tmp/wt/scratch/t.npz", strengths=strengths[::-1], **{k.replace(" ","_"):v for k,v in temperatures.items()})
    return temperatures


if __name__ == "__main__":
    main()
