"""Do chains stay finite? Six temperatures, from a well-trained start, half a million steps each, default settings.

    python benchmarks/robustness.py --out benchmarks/results/robustness-h200.json

The start is 100 000 steps of Adam on the paper's N = 11 160 network, so many units are silent for every example: their
mini-batch noise, hence their mass, is zero unless the mass floor holds.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

import pseudolangevin as pl

TEMPERATURES = [1e-6, 3e-6, 1e-5, 2e-5, 3e-5, 1e-4]


def main() -> None:
    """Train, sample, write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adam-steps", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    train, test = pl.tasks.spin_vectors(jax.random.key(0), num_train=55_800, num_test=10_044)
    network = pl.models.feedforward((100, 50, 100, 10))
    potential = pl.classification(network.apply, weight_decay=10.0611)
    started = time.perf_counter()
    start = pl.sample(
        pl.adam(potential, train, batch_size=128, learning_rate=1e-3),
        network.init(jax.random.key(arguments.seed)),
        num_steps=arguments.adam_steps,
        record_every=max(1, arguments.adam_steps // 5),
        key=0,
        test=test,
    )
    trained = time.perf_counter()
    print(start.trace[["loss", "error", "test_error", "squared_norm"]].to_dataframe().round(4), flush=True)
    sampler = pl.pseudo_langevin(potential, train)
    silent = silent_share(sampler, start)
    result = pl.sample(
        sampler,
        start.weights,
        temperatures=TEMPERATURES,
        num_steps=arguments.steps,
        record_every=max(1, arguments.steps // 100),
        key=arguments.seed,
        test=test,
    )
    seconds = time.perf_counter() - trained
    tail = result.trace.isel(chain=0, draw=slice(-25, None))
    rows = [
        {
            "temperature": temperature,
            "status": int(tail.status.sel(temperature=temperature)[-1]),
            "finite": bool(np.isfinite(result.trace.loss.sel(temperature=temperature)).all()),
            "peak_temperature_ratio": float(result.trace.peak_temperature_ratio.sel(temperature=temperature).max()),
            **{
                name: float(tail[name].sel(temperature=temperature).mean())
                for name in ("loss", "squared_norm", "error", "test_error", "kinetic_temperature", "virial_temperature")
            },
        }
        for temperature in TEMPERATURES
    ]
    for row in rows:
        print(row, flush=True)
    report = {
        "rows": rows,
        "adam_steps": arguments.adam_steps,
        "steps": arguments.steps,
        "silent_share_of_components_at_start": silent,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "seconds": {"adam": trained - started, "sampling": seconds},
        "settings": dict(sampler.settings),
        "seed": arguments.seed,
    }
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


def silent_share(sampler: pl.Sampler, start: pl.Result) -> float:
    """Share of gradient components without any mini-batch noise at the start."""
    weights = jax.tree.map(lambda w: w[0, 0], start.weights)
    state = jax.jit(sampler.kernel.init)(jax.random.key(0), weights, np.float32(1e-6), sampler.dataset)
    leaves = jax.tree.leaves(state.gradient_variance)
    return float(sum((leaf == 0).sum() for leaf in leaves) / sum(leaf.size for leaf in leaves))


if __name__ == "__main__":
    main()
