"""The geometry of solutions: distances between samples, and the error on the line between them.

    python -m examples.geometry_of_solutions --out geometry.png            # about a minute on two cores

Two independent chains run at each of two temperatures. For pairs of samples the overlap q = w·w'/(|w||w'|), the
distance |w - w'|/sqrt(N), and the training error along the straight line from w to w' are computed. A barrier between
chains but not within one chain shows that the chains are in different minima (or in the same one up to a permutation
of hidden units).
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from matplotlib.figure import Figure

import pseudolangevin as pl


@partial(jax.jit, static_argnames="network")
def errors_between(network: Any, first: Any, second: Any, dataset: pl.Dataset, shares: jax.Array) -> jax.Array:
    """Return the training error at (1 - s) first + s second."""

    def error(share: jax.Array) -> jax.Array:
        weights = jax.tree.map(lambda a, b: (1 - share) * a + share * b, first, second)
        return jnp.mean(jnp.argmax(network.apply(weights, dataset.inputs), axis=-1) != dataset.targets)

    return jax.lax.map(error, shares)


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Sample, measure, draw; return overlap, distance and barrier within and between chains at each temperature."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("geometry.png"))
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=8_192)
    options = parser.parse_args(arguments)

    train, _ = pl.tasks.spin_vectors(jax.random.key(0), num_train=options.examples, num_test=1, dimension=50)
    network = pl.models.feedforward((50, 40, 40, 10), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=5.0)
    starts = jax.vmap(network.init)(jax.random.split(jax.random.key(1)))
    temperatures = [0.2 / options.examples, 2 / options.examples]
    result = pl.sample(
        pl.pseudo_langevin(potential, train, temperature_ratio=0.03, refresh_every=512, warmup_refreshes=5),
        jax.tree.map(lambda w: w[None], starts),
        temperatures=temperatures,
        num_chains=2,
        num_steps=options.steps,
        record_every=options.steps // 4,
        keep_weights_every=1,
        key=0,
    )
    shares = np.linspace(0, 1, 21)
    summary = {}
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for index, temperature in enumerate(temperatures):
        # Pairs (chain, draw): half the run apart within a chain, both at the end between chains.
        for name, pair in {"within a chain": [(0, 1), (0, 3)], "between chains": [(0, 3), (1, 3)]}.items():
            first, second = (jax.tree.map(lambda w, at=(index, *at): w[at], result.samples) for at in pair)
            a, b = (np.asarray(ravel_pytree(weights)[0]) for weights in (first, second))
            curve = np.asarray(errors_between(network, first, second, train, jnp.asarray(shares)))
            label = f"T = {temperature:.2g}, {name}"
            axes.plot(shares, curve, label=label)
            summary[label] = {
                "overlap": float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)),
                "distance": float(np.linalg.norm(a - b) / np.sqrt(a.size)),
                "barrier": float(curve.max() - max(curve[0], curve[-1])),
            }
            print(label + ": " + ", ".join(f"{key} {value:.4f}" for key, value in summary[label].items()))
    axes.set(xlabel="position on the line", ylabel="training error")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(options.out, dpi=150)
    return summary


if __name__ == "__main__":
    main()
