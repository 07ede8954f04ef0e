"""The geometry of solutions: how far apart samples are, and what lies between them.

    python examples/geometry_of_solutions.py --out geometry.png            # about a minute on two cores

Two independent chains at each of two temperatures. For pairs of samples: the overlap q = w·w′/(|w||w′|), the distance
|w − w′|/√N, and the training error along the straight line from one to the other. A barrier on the line between chains
but not within one says that the chains live in different valleys (or the same one up to a permutation of hidden units).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

import pseudolangevin as pl


def errors_between(network: Any, first: Any, second: Any, dataset: pl.Dataset, shares: np.ndarray) -> np.ndarray:
    """Training error at (1 − s)·first + s·second."""

    def error(share: jax.Array) -> jax.Array:
        weights = jax.tree.map(lambda a, b: (1 - share) * a + share * b, first, second)
        return jnp.mean(jnp.argmax(network.apply(weights, dataset.inputs), axis=-1) != dataset.targets)

    return np.asarray(jax.lax.map(error, jnp.asarray(shares, jnp.float32)))


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
    starts = jax.tree.map(
        lambda *leaves: jnp.stack(leaves)[None], *[network.init(jax.random.key(seed)) for seed in (1, 2)]
    )
    temperatures = [0.2 / options.examples, 2 / options.examples]
    sampler = pl.pseudo_langevin(potential, train, temperature_ratio=0.03, refresh_every=512, warmup_refreshes=5)
    result = pl.sample(
        sampler,
        starts,
        temperatures=temperatures,
        num_chains=2,
        num_steps=options.steps,
        record_every=options.steps // 4,
        keep_weights_every=1,
        key=0,
    )
    shares = np.linspace(0, 1, 21)
    summary, curves = {}, {}
    for index, temperature in enumerate(temperatures):
        for name, (chain_a, chain_b) in {"within a chain": (0, 0), "between chains": (0, 1)}.items():
            # Half the run apart within a chain; both at the end between chains.
            draw_a = 1 if chain_a == chain_b else 3
            first = jax.tree.map(lambda w, i=index, c=chain_a, d=draw_a: w[i, c, d], result.samples)
            second = jax.tree.map(lambda w, i=index, c=chain_b: w[i, c, 3], result.samples)
            a, b = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(w)]) for w in (first, second))
            curve = errors_between(network, first, second, train, shares)
            label = f"T = {temperature:.2g}, {name}"
            curves[label] = curve
            summary[label] = {
                "overlap": float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)),
                "distance": float(np.linalg.norm(a - b) / np.sqrt(a.size)),
                "barrier": float(curve.max() - max(curve[0], curve[-1])),
            }
            print(label + ": " + ", ".join(f"{key} {value:.4f}" for key, value in summary[label].items()))

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for label, curve in curves.items():
        axes.plot(shares, curve, label=label)
    axes.set(xlabel="share of the way", ylabel="training error")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(options.out, dpi=150)
    plt.close(figure)
    return summary


if __name__ == "__main__":
    main()
