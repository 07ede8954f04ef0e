"""The temperature of every direction of the mini-batch noise, for SGHMC, pseudo-Langevin and balanced Langevin.

    python benchmarks/noise_directions.py --out docs/balance.png      # a minute or two on two cores

At every record the directions u are the eigenvectors of the covariance of the gradient noise at the current weights, in
units of the thermal momentum. With h the half-step momentum and h' the mean of the next one, exp(−U/T) has

    <(u·M^(-1/2)·h)·(u·M^(-1/2)·(h + h'))> = (1 + c1²)·T

in any direction of a quadratic potential, at any stable time step and friction (docs/method.md). The left side over the
right is drawn, for the 30 noisiest directions and for the mean of all others.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from matplotlib.figure import Figure

import pseudolangevin as pl

TEMPERATURE, RATIO, RETAINED, BATCH, EVERY = 1e-3, 0.1, 0.997, 200, 500  # RETAINED is c1², EVERY is in steps
SHOWN = 30
COLORS = {"SGHMC": "#d55e00", "pseudo-Langevin": "#e69f00", "balanced Langevin": "#0072b2"}


def problem() -> tuple[pl.Potential, pl.Dataset, pl.models.FeedForward]:
    """Return the potential, the training set and the network."""
    train, _ = pl.tasks.spin_vectors(jax.random.key(0), num_train=2_000, num_test=1, dimension=20, num_classes=4)
    network = pl.models.feedforward((20, 10, 10, 4), output_activation="identity")
    return pl.classification(network.apply, weight_decay=2.0), train, network


@jax.jit
def scaled(sampler: Any, state: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return M^(-1/2)·h, M^(-1/2)·(h + h')/(1 + c1²), and the covariance of one gradient, scaled alike."""
    potential, batch, retained = sampler.potential, sampler.dataset.batch, sampler.momentum_retention**2
    momentum, mass = ravel_pytree(state.half_step_momentum)[0], ravel_pytree(state.masses)[0]
    weights, back = ravel_pytree(state.weights)
    moved, root = back(weights + sampler.time_step * momentum / mass), jnp.sqrt(mass)
    one = jax.grad(lambda w, x, y: potential.loss(w, (x[None], y[None])))
    each = jax.vmap(lambda x, y: ravel_pytree(one(moved, x, y))[0])(*batch)
    covariance, kick = jnp.cov(each.T), 0.5 * (1 + retained) * sampler.time_step
    force = ravel_pytree(jax.grad(potential.energy)(moved, batch))[0]
    if isinstance(sampler, pl.balanced_langevin):
        strength = state.friction_gain * kick / ((1 + retained) * sampler.batch_size * state.temperature)
        force = force + strength * covariance @ (momentum / mass)
    both = (1 + retained) * momentum - kick * force
    return momentum / root, both / root / (1 + retained), covariance / jnp.outer(root, root)


def temperatures(sampler: Any, start: Any, num_chains: int, num_records: int) -> tuple[np.ndarray, Any]:
    """Return the temperature over T of every chain and direction, noisiest first, and the last states."""
    run = pl.Run(sampler, temperatures=[TEMPERATURE], num_chains=num_chains, observe_examples=BATCH)
    products, skipped = [], num_records // 5
    for record in run.records(run.start(start, 2), stop=EVERY * (num_records + skipped), every=EVERY):
        states = record.states
        if record.step > EVERY * skipped:
            found = [scaled(sampler, jax.tree.map(lambda x, c=c: x[c], states)) for c in range(num_chains)]
            for h, both, noise in found:
                basis = np.linalg.eigh(np.asarray(noise))[1][:, ::-1]
                products.append((np.asarray(h) @ basis) * (np.asarray(both) @ basis) / TEMPERATURE)
    return np.mean(np.reshape(products, (-1, num_chains, len(products[0]))), axis=0), states


def draw(found: dict[str, np.ndarray], path: Path) -> None:
    """Draw the temperatures with errors over chains, and print the first and the last."""
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.subplots()
    places = np.append(np.arange(1, SHOWN + 1), SHOWN + 3)
    for name, color in COLORS.items():
        shown = np.column_stack([found[name][:, :SHOWN], found[name][:, SHOWN:].mean(axis=1)])
        mean, error = shown.mean(axis=0), shown.std(axis=0, ddof=1) / math.sqrt(len(shown))
        axes.errorbar(places, mean, error, fmt="o", color=color, ms=4, lw=1, label=name)
        print(f"{name}: noisiest {mean[0]:.2f} ± {error[0]:.2f}, others {mean[-1]:.3f} ± {error[-1]:.3f}")
    axes.axhline(1, color="0.4", lw=1, zorder=0)
    axes.set(yscale="log", xlabel="direction of the mini-batch noise, noisiest first", ylabel="temperature / T")
    axes.set_xticks([1, 10, 20, 30, SHOWN + 3], ["1", "10", "20", "30", "others"])
    axes.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> dict[str, np.ndarray]:
    """Sample, draw the picture, and return the temperatures (chain, direction) of each sampler."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("balance.png"))
    parser.add_argument("--records", type=int, default=40, help="records of each chain")
    parser.add_argument("--chains", type=int, default=4)
    options = parser.parse_args(arguments)
    potential, train, network = problem()
    size = (options.chains, options.records)
    training = pl.adam(potential, train, learning_rate=1e-3)
    first = network.init(jax.random.key(1))
    start = pl.sample(training, first, num_chains=options.chains, num_steps=1_000, record_every=1_000, key=0).weights
    noisy: dict[str, Any] = {"batch_size": BATCH, "momentum_retention": math.sqrt(RETAINED)}
    paper: dict[str, Any] = {
        "temperature_ratio": RATIO,
        "reset_probability": 0.0,
        "refresh_every": 500,
        "max_refresh_interval": 500,
    }
    found = {}
    balanced = pl.balanced_langevin(potential, train, temperature_ratio=RATIO, **noisy)
    found["balanced Langevin"], states = temperatures(balanced, start, *size)
    # SGHMC has unit masses. Its time step gives the mean weight the same ratio of mini-batch noise to thermal noise.
    variance = float(ravel_pytree(states.gradient_variance)[0].mean())
    step = math.sqrt(4 * (1 - RETAINED) * TEMPERATURE * RATIO / variance)
    start = jax.tree.map(lambda w: jnp.copy(w)[None], states.weights)
    plain = pl.naive_pseudo_langevin(potential, train, time_step=step, subtract_variance=False, **noisy)
    found["pseudo-Langevin"], _ = temperatures(pl.pseudo_langevin(potential, train, **paper, **noisy), start, *size)
    found["SGHMC"], _ = temperatures(plain, start, *size)
    draw(found, options.out)
    return found


if __name__ == "__main__":
    main()
