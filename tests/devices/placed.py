"""The same chains and the same run folders on one device and on four, for processes with simulated devices."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import pseudolangevin as pl
from pseudolangevin import cli, placement
from pseudolangevin.placement import Placement
from pseudolangevin.runs import session
from tests.runs.conftest import build_once
from tests.runs.small_runs import SMALL_RUN

warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX warns; none of its threads run in that process

T = 1e-3
STIFFNESS = np.tile(np.array([0.4, 1.0, 3.0, 8.0], np.float32), 256)
VARIANCES = np.tile(np.array([2.0, 1.0, 4.0, 8.0], np.float32), 256) * T
BATCH_SIZE = 40
WEIGHT_DECAY = 500.0


def problem() -> tuple[pl.Potential, pl.Dataset, dict]:
    """A network, and 1024 oscillators with mini-batch noise of known variance.

    They have one loss, so that one program serves for the equality of chains and for exactness.
    """
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
    # With a strong decay, two chains that differ by rounding stay close to each other for a while.
    return pl.Potential(loss, weight_decay=WEIGHT_DECAY), dataset, weights


def run(sampler: pl.Sampler, weights: dict, num_steps: int, record_every: int, split: Placement) -> dict:
    """The weights and the loss at every record, and the number of parts of a tensor of all chains."""
    options: dict = {"temperatures": [T, 2 * T], "num_chains": 2, "num_steps": num_steps, "record_every": record_every}
    options |= {"keep_weights_every": 1, "observe_examples": 300, "chunk_size": 64}
    result = pl.sample(sampler, weights, key=3, placement=split, **options)
    leaves = [leaf.reshape(*leaf.shape[:3], -1) for leaf in jax.tree.leaves(result.samples)]
    kernel = result.states.weights["network"]["layer1"]["kernel"]
    return {
        "weights": np.concatenate(leaves, axis=-1),
        "masses": np.asarray(placement.to_host(result.states.masses["oscillators"])).reshape(2, 2, -1),
        "loss": result.trace["loss"].values,
        "parts": kernel.size // np.prod(kernel.sharding.shard_shape(kernel.shape)),
    }


def make_chains() -> None:
    """Save chains to the first argument, for every split "chains,data,weights" of the other arguments.

    With COORDINATOR, NUM_PROCESSES and PROCESS_ID in the environment, as one of several processes.
    """
    if "COORDINATOR" in os.environ:
        placement.connect(os.environ["COORDINATOR"], int(os.environ["NUM_PROCESSES"]), int(os.environ["PROCESS_ID"]))
    assert jax.device_count() == 4
    potential, dataset, weights = problem()
    options: dict = {"temperature_ratio": 0.05, "momentum_retention": 0.9}
    langevin = pl.pseudo_langevin(potential, dataset, batch_size=BATCH_SIZE, warmup_refreshes=0, **options)
    hybrid = pl.hybrid_monte_carlo(potential, dataset, time_step=0.01, num_leapfrog_steps=5)
    found: dict = {}
    for split in sys.argv[2:]:
        placed = Placement(*map(int, split.split(",")))
        runs = {}
        if split != "1,2,2" or placement.several():
            # Messages between devices are slow: fewer steps, which show that the chain is that of one device.
            runs["langevin"] = run(langevin, weights, 250 if split == "1,1,1" else 25, 25, placed)
        if split != "4,1,1" and not placement.several():
            runs["hybrid"] = run(hybrid, weights, 20, 10, placed)
        found |= {f"{split}/{name}/{key}": value for name, values in runs.items() for key, value in values.items()}
    if placement.is_first():
        np.savez(sys.argv[1], **found)


def make_runs() -> None:
    """Make two run folders in the first argument: one in one session, one in two sessions with different splits."""
    assert jax.device_count() == 4
    session.build = build_once
    folder = Path(sys.argv[1])
    config = folder / "run.toml"
    config.write_text(SMALL_RUN + "[placement]\nchains = 4\n")
    assert cli.run(["sample", str(config), "--out", str(folder / "one")]) == 0
    assert cli.run(["sample", str(config), "--out", str(folder / "two"), "--set", "num_steps=200"]) == 0
    splits = ["--set", "placement.chains=2", "--set", "placement.data=2"]
    assert cli.run(["resume", str(folder / "two"), "--steps", "400", *splits]) == 0
