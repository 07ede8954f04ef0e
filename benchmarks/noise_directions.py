"""The temperature of every direction of the mini-batch noise, for SGHMC, pseudo-Langevin and balanced Langevin.

    python benchmarks/noise_directions.py --out docs/balance.png      # about two minutes on two cores

At every record the directions u are the eigenvectors of the covariance of the gradient noise at the current weights, in
units of the thermal momentum. Given the weights, exp(−U/T) has independent thermal momenta p, so that in any direction

    <(u·M^(-1/2)·p)²> = T

whatever the potential. The left side over T is drawn, for the 30 noisiest directions and for the mean of all others.
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

TEMPERATURE, RATIO, RETENTION, BATCH = 1e-3, 0.1, math.sqrt(0.997), 200
SHOWN = 30
COLORS = {"SGHMC": "#d55e00", "pseudo-Langevin": "#e69f00", "balanced Langevin": "#0072b2"}


def main(arguments: list[str] | None = None) -> dict[str, np.ndarray]:
    """Sample, draw the picture, and return the temperatures (chain, direction) of each sampler, noisiest first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("balance.png"))
    parser.add_argument("--records", type=int, default=100, help="records of each chain, 300 steps apart")
    parser.add_argument("--chains", type=int, default=6)
    options = parser.parse_args(arguments)

    train, _ = pl.tasks.spin_vectors(jax.random.key(0), num_train=2_000, num_test=1, dimension=20, num_classes=4)
    network = pl.models.feedforward((20, 10, 10, 4), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=2.0)
    unravel = ravel_pytree(network.init(jax.random.key(1)))[1]

    @jax.jit
    def scaled(state: tuple, time_step: float) -> tuple[jax.Array, jax.Array]:
        """Return the thermal momentum M^(-1/2)·p and the covariance of the gradient of one example, scaled alike."""
        weights, momentum, masses = (ravel_pytree(part)[0] for part in state)
        gradient = jax.grad(lambda w: potential.energy(unravel(w), train.batch))(weights)
        losses = jax.jacrev(lambda w: potential.per_example_loss(unravel(w), train.batch))(weights)
        root = jnp.sqrt(masses)
        return (momentum + 0.5 * time_step * gradient) / root, jnp.cov(losses.T) / jnp.outer(root, root)

    def temperatures(sampler: pl.Sampler, start: dict) -> tuple[np.ndarray, dict]:
        """Return the mean of (u·M^(-1/2)·p)²/T of every chain and direction, and the last states."""
        run = pl.Run(sampler, temperatures=[TEMPERATURE], num_chains=options.chains, observe_examples=BATCH)
        squares = np.zeros((options.chains, sum(w.size for w in jax.tree.leaves(network.init(jax.random.key(0))))))
        skipped = options.records // 5
        for record in run.records(run.start(start, 2), stop=300 * (options.records + skipped), every=300):
            states = record.states
            for chain in range(options.chains if record.step > 300 * skipped else 0):
                parts = (states.weights, states.half_step_momentum, states.masses)
                momentum, noise = scaled(jax.tree.map(lambda x, c=chain: x[c], parts), sampler.time_step)
                directions = np.linalg.eigh(np.asarray(noise))[1][:, ::-1]
                squares[chain] += (np.asarray(momentum) @ directions) ** 2 / (TEMPERATURE * options.records)
        return squares, jax.tree.map(jnp.copy, {"weights": states.weights, "variance": states.gradient_variance})

    training = pl.adam(potential, train, learning_rate=1e-3)
    first = network.init(jax.random.key(1))
    start = pl.sample(training, first, num_chains=options.chains, num_steps=1_000, record_every=1_000, key=0).weights
    noisy = {"batch_size": BATCH, "momentum_retention": RETENTION}
    found = {}
    balanced = pl.balanced_langevin(potential, train, temperature_ratio=RATIO, **noisy)
    found["balanced Langevin"], last = temperatures(balanced, start)
    start = jax.tree.map(lambda w: w[None], last["weights"])
    variance = float(jnp.mean(jax.vmap(lambda v: ravel_pytree(v)[0])(last["variance"])))
    # SGHMC has unit masses. Its time step gives the mean weight the same ratio of mini-batch noise to thermal noise.
    step = math.sqrt(4 * (1 - RETENTION**2) * TEMPERATURE * RATIO / variance)
    plain = pl.naive_pseudo_langevin(potential, train, time_step=step, subtract_variance=False, **noisy)
    paper = {"temperature_ratio": RATIO, "reset_probability": 0.0, "refresh_every": 500, "max_refresh_interval": 500}
    found["pseudo-Langevin"], _ = temperatures(pl.pseudo_langevin(potential, train, **paper, **noisy), start)
    found["SGHMC"], _ = temperatures(plain, start)

    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, color in COLORS.items():
        shown = np.column_stack([found[name][:, :SHOWN], found[name][:, SHOWN:].mean(axis=1)])
        mean, error = shown.mean(axis=0), shown.std(axis=0, ddof=1) / math.sqrt(len(shown))
        places = np.append(np.arange(1, SHOWN + 1), SHOWN + 3)
        axes.errorbar(places, mean, error, fmt="o", color=color, ms=4, lw=1, label=name)
        print(f"{name}: noisiest {mean[0]:.2f} ± {error[0]:.2f}, others {mean[-1]:.3f} ± {error[-1]:.3f}")
    axes.axhline(1, color="0.4", lw=1, zorder=0)
    axes.set(yscale="log", xlabel="direction of the mini-batch noise, noisiest first", ylabel="temperature / T")
    axes.set_xticks([1, 10, 20, 30, SHOWN + 3], ["1", "10", "20", "30", "others"])
    axes.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.savefig(options.out, dpi=150)
    return found


if __name__ == "__main__":
    main()
