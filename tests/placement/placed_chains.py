"""The same chains on one device and on four: run in processes of their own, whose devices are simulated.

    python -m tests.placement.placed_chains OUT.npz SPLIT SPLIT…        (SPLIT is chains,data,weights)

With COORDINATOR, NUM_PROCESSES and PROCESS_ID in the environment, as one of several processes.
"""

from __future__ import annotations

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

import pseudolangevin as pl
from pseudolangevin import hosts
from pseudolangevin.placement import Placement

T = 1e-3
STIFFNESS = np.tile(np.array([0.4, 1.0, 3.0, 8.0], np.float32), 256)
VARIANCES = np.tile(np.array([2.0, 1.0, 4.0, 8.0], np.float32), 256) * T
BATCH_SIZE = 40
WEIGHT_DECAY = 500.0


def problem() -> tuple[pl.Potential, pl.Dataset, dict]:
    """A network, and beside it 1024 weights in ½·Σ k_i·w_i² with mini-batch noise of known variance: one loss, so that
    one program serves for the equality of chains and for exactness."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, size=400)
    prototypes = rng.choice([-1, 1], size=(4, 20))
    spins = prototypes[labels] * rng.choice([-1, 1], size=(400, 20), p=[0.2, 0.8])
    network = pl.models.feedforward((20, 64, 4), output_activation="identity")
    cross_entropy = pl.classification(network.apply).per_example_loss
    rows = rng.normal(size=(400, STIFFNESS.size))
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0) * np.sqrt(BATCH_SIZE * VARIANCES)
    stiffness = jnp.asarray(STIFFNESS)

    def loss(weights, batch):
        (spins, noise), labels = batch
        oscillators = 0.5 * jnp.sum(stiffness * weights["oscillators"] ** 2) + noise @ weights["oscillators"]
        return cross_entropy(weights["network"], (spins, labels)) + oscillators

    weights = {"network": network.init(jax.random.key(1)), "oscillators": jnp.zeros(STIFFNESS.size)}
    dataset = pl.Dataset((spins.astype(np.float32), rows.astype(np.float32)), labels)
    # A strong decay keeps the network calm: two chains that differ by rounding stay together for a while.
    return pl.Potential(loss, weight_decay=WEIGHT_DECAY), dataset, weights


def run(sampler: pl.Sampler, weights: dict, num_steps: int, record_every: int, placement: Placement) -> dict:
    """All weights at every record, the loss there, and how many devices share one chain's largest tensor."""
    result = pl.sample(
        sampler,
        weights,
        temperatures=[T, 2 * T],
        num_chains=2,
        num_steps=num_steps,
        record_every=record_every,
        keep_weights_every=1,
        key=3,
        observe_examples=300,
        chunk_size=64,
        placement=placement,
    )
    leaves = [leaf.reshape(*leaf.shape[:3], -1) for leaf in jax.tree.leaves(result.samples)]
    kernel = result.states.weights["network"]["layer1"]["kernel"]
    return {
        "weights": np.concatenate(leaves, axis=-1),
        "masses": np.asarray(hosts.to_host(result.states.masses["oscillators"])).reshape(2, 2, -1),
        "loss": result.trace["loss"].values,
        "pieces": kernel.size // np.prod(kernel.sharding.shard_shape(kernel.shape)),
    }


def main() -> None:
    if "COORDINATOR" in os.environ:
        hosts.connect(os.environ["COORDINATOR"], int(os.environ["NUM_PROCESSES"]), int(os.environ["PROCESS_ID"]))
    assert jax.device_count() == 4
    potential, dataset, weights = problem()
    langevin = pl.pseudo_langevin(
        potential,
        dataset,
        batch_size=BATCH_SIZE,
        temperature_ratio=0.05,
        momentum_retention=0.9,
        variance_max_batches=100,
        warmup_refreshes=0,
    )
    hybrid = pl.hybrid_monte_carlo(potential, dataset, time_step=0.01, num_leapfrog_steps=5)
    found: dict = {}
    for split in sys.argv[2:]:
        placement = Placement(*map(int, split.split(",")))
        runs = {}
        if split != "1,2,2":
            # Messages between processes are slow: as many steps as show that the chain is the one known to be exact.
            runs["langevin"] = run(langevin, weights, 50 if hosts.several() else 250, 25, placement)
        if split in ("1,1,1", "1,2,2"):
            runs["hybrid"] = run(hybrid, weights, 20, 10, placement)
        found |= {f"{split}/{name}/{key}": value for name, values in runs.items() for key, value in values.items()}
    if hosts.is_first():
        np.savez(sys.argv[1], **found)


if __name__ == "__main__":
    main()
