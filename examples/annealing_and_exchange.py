"""Temperature as a tool: replica exchange across a barrier, and a network cooled level by level.

    python -m examples.annealing_and_exchange            # about a minute on two cores

Part one samples a double well whose barrier is 12.5 times the lowest temperature, with single chains and with replica
exchange, and counts how often the coldest chains cross. Part two cools a classifier of spin vectors and prints energy,
entropy and free energy of each level.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import pseudolangevin as pl

DOUBLE_WELL = pl.log_density(lambda w: -jnp.sum((w["x"] ** 2 - 1) ** 2))


def crossings(sampler: pl.Sampler, num_steps: int) -> tuple[int, float]:
    """Return how often the chains at the lowest temperature changed wells, and the seconds that the run took."""

    def run(steps: int) -> pl.Result:
        return pl.sample(
            sampler,
            {"x": jnp.ones(1)},
            temperatures=[0.08, 0.16, 0.3, 0.6],
            num_chains=4,
            num_steps=steps,
            record_every=10,
            observables={"x": position},
            key=0,
        )

    run(10)  # compiles
    started = time.perf_counter()
    trace = run(num_steps).trace
    if "swap_acceptance" in trace:
        print(f"swap acceptance: {np.round(trace.swap_acceptance[:-1, :, -1].mean('chain').values, 3)}")
    return int((np.diff(np.sign(trace.x.values[0]), axis=-1) != 0).sum()), time.perf_counter() - started


def position(weights: dict, dataset: pl.Dataset) -> jax.Array:
    """Return the position in the double well."""
    del dataset
    return weights["x"][0]


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run both parts; return the crossings and the entropy of the coldest level."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="moves in the double well")
    parser.add_argument("--steps-per-level", type=int, default=20_000)
    options = parser.parse_args(arguments)

    alone = pl.hybrid_monte_carlo(DOUBLE_WELL, num_leapfrog_steps=5, time_step=0.1)
    counts = {}
    for name, sampler in {"single chains": alone, "replica exchange": pl.replica_exchange(alone, every=10)}.items():
        counts[name], seconds = crossings(sampler, options.steps)
        print(f"{name}: {counts[name]} crossings in {seconds:.1f} s, {counts[name] / seconds:.2f} per second")

    train, _ = pl.tasks.spin_vectors(
        jax.random.key(0), num_train=1_000, num_test=1, dimension=20, num_classes=4, flip_probability=0.2
    )
    network = pl.models.feedforward((20, 10, 4), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=5.0)
    cooled = pl.anneal(
        pl.balanced_langevin(potential, train, batch_size=100, refresh_every=500),
        network.init(jax.random.key(1)),
        temperatures=np.geomspace(2e-3, 1e-3, 6),
        steps_per_level=options.steps_per_level,
        num_chains=4,
        key=0,
    )
    table = pl.free_energy(cooled)
    print(table[["energy", "energy_error", "entropy", "entropy_error", "free_energy", "overlap"]].to_dataframe())
    return counts | {"entropy": float(table.entropy[-1])}


if __name__ == "__main__":
    main()
