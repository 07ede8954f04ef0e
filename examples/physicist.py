"""A physicist: energy, entropy and free energy of a network against temperature, and barriers crossed by exchange.

    python -m examples.physicist            # minutes on two cores

Part one samples a classifier of spin vectors at four temperatures, certifies the samples, and prints the thermodynamics
that follow from the energies. Part two samples a double well whose barrier is 12.5 times the lowest temperature, with
single chains and with replica exchange, and counts how often the coldest chains cross.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pseudolangevin as pl


def thermodynamics(num_steps: int) -> tuple[pl.Certificate, Any]:
    """Sample a network of 254 weights at four temperatures; return the certificate and the table."""
    train, _ = pl.tasks.spin_vectors(jax.random.key(0), num_train=1_000, num_test=1, dimension=20, num_classes=4)
    network = pl.models.feedforward((20, 10, 4), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=5.0)  # U = mean cross-entropy + λ/(2N)·|w|²
    result = pl.sample(
        pl.balanced_langevin(potential, train, batch_size=100),
        network.init(jax.random.key(1)),
        temperatures=np.geomspace(4e-3, 8e-3, 4).tolist(),
        num_chains=4,
        num_steps=num_steps,
        record_every=max(1, num_steps // 500),
        key=1,
    )
    found = pl.certificate(result)
    print(found)
    table = pl.free_energy(result)
    names = ["energy", "energy_error", "entropy", "entropy_error", "free_energy", "heat_capacity", "overlap"]
    print(table[names].to_dataframe().to_string(float_format="{:.4g}".format))
    return found, table


def position(weights: dict, dataset: pl.Dataset) -> jax.Array:
    """Return the position in the double well."""
    del dataset
    return weights["x"][0]


def crossings(sampler: pl.Sampler, num_steps: int) -> int:
    """Return how often the chains at the lowest temperature changed wells; print the rate."""
    options: dict[str, Any] = {"temperatures": [0.08, 0.16, 0.3, 0.6], "num_chains": 4, "key": 0}
    options |= {"record_every": 10, "observables": {"x": position}}
    pl.sample(sampler, {"x": jnp.ones(1)}, num_steps=10, **options)  # compiles
    began = time.perf_counter()
    trace = pl.sample(sampler, {"x": jnp.ones(1)}, num_steps=num_steps, **options).trace
    seconds, count = time.perf_counter() - began, int((np.diff(np.sign(trace.x.values[0]), axis=-1) != 0).sum())
    print(f"{sampler.name}: {count} crossings in {seconds:.1f} s, {count / seconds:.2f} per second")
    if "swap_acceptance" in trace:
        print(f"swap acceptance: {np.round(trace.swap_acceptance[:-1, :, -1].mean('chain').values, 3)}")
    return count


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run both parts; return the certificate, the table and the crossings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60_000, help="steps of the network")
    parser.add_argument("--moves", type=int, default=100_000, help="moves in the double well")
    options = parser.parse_args(arguments)

    certificate, table = thermodynamics(options.steps)
    double_well = pl.log_density(lambda w: -jnp.sum((w["x"] ** 2 - 1) ** 2))
    alone = pl.hybrid_monte_carlo(double_well, num_leapfrog_steps=5, time_step=0.1)
    exchanging = pl.replica_exchange(alone, every=10)
    counts = {"alone": crossings(alone, options.moves), "exchanging": crossings(exchanging, options.moves)}
    return {"certificate": certificate, "table": table} | counts


if __name__ == "__main__":
    main()
