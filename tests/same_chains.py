"""Short chains of every sampler, to compare with those recorded in `fixtures/chains.json`.

`record()` writes them again: call it after `import tests.conftest` (the settings of the compiler matter), and only if a
change of the chains is intended and listed in the changelog.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pseudolangevin as pl

FIXTURE = Path(__file__).parent / "fixtures" / "chains.json"


BATCH = {"batch_size": 40}
SETTINGS: dict[str, dict[str, Any]] = {
    "pseudo_langevin": {"temperature_ratio": 0.05, "refresh_every": 80, **BATCH},
    "pseudo_langevin, variance from mini-batches": {
        **{"refresh_every": 96, "variance_from": "minibatches", "reset_probability": 0.5},
        **{"warmup_refreshes": 1, "masses_per": "row", **BATCH},
    },
    "balanced_langevin": {"friction_batch_size": 20, "refresh_every": 80, **BATCH},
    "naive_pseudo_langevin": {"time_step": 0.005, "refresh_every": 100, **BATCH},
    "naive_pseudo_langevin, nothing subtracted": {"time_step": 0.02, "subtract_variance": False, **BATCH},
    "full_batch_langevin": {"time_step": 0.1, "chunk_size": 128},
    "hybrid_monte_carlo": {"num_leapfrog_steps": 5, "time_step": 0.1, "warmup_moves": 50},
    "minibatch_hybrid_monte_carlo": {"num_leapfrog_steps": 3, "time_step": 0.02, "warmup_moves": 50, **BATCH},
    "adam": {"learning_rate": 1e-3, "decay_factor": 0.8, "decay_epochs": 5, **BATCH},
}
"""Settings of every sampler on a small classifier."""


def run(name: str) -> dict[str, Any]:
    """Return the trace and the final weights of two chains of 200 steps at one or two temperatures."""
    train, _ = pl.tasks.spin_vectors(
        jax.random.key(0), num_train=400, num_test=10, dimension=6, num_classes=3, flip_probability=0.2
    )
    network = pl.models.feedforward((6, 5, 4, 3), output_activation="identity")
    # Without the fast gradient of the feed-forward network, where the variance is from mini-batches
    apply = (lambda w, x: 1.0 * network.apply(w, x)) if "mini-batches" in name else network.apply
    make = getattr(pl, name.partition(",")[0])
    sampler = make(pl.classification(apply, weight_decay=0.5), train, **SETTINGS[name])
    random = np.random.default_rng(1)  # the same bits on every machine: the noise depends on the bits of the start
    shapes = network.init(jax.random.key(1))
    weights = jax.tree.map(lambda w: jnp.asarray(random.uniform(-0.5, 0.5, w.shape).astype(np.float32), float), shapes)
    temperatures = None if name == "adam" else [1e-4, 1e-3]
    lengths: dict[str, Any] = {"num_chains": 2, "num_steps": 200, "record_every": 20}
    # All examples, named, leave out the records for the certificate, which compile slowly.
    result = pl.sample(sampler, weights, temperatures=temperatures, observe_examples=400, key=3, **lengths)
    trace = {
        variable: np.asarray(values.values, np.float64).ravel().tolist()
        for variable, values in result.trace.data_vars.items()
        if variable in ("loss", "squared_norm", "error", "kinetic_temperature", "virial_temperature", "acceptance")
    }
    flat = np.concatenate([np.asarray(w, np.float64).ravel() for w in jax.tree.leaves(result.weights)])
    return {"trace": trace, "weights": flat.tolist()}


def run_in_double_precision(name: str) -> dict[str, Any]:
    """Return the same in float64, from the same start."""
    with jax.enable_x64(True):
        return run(name)


def record() -> None:
    """Write the fixture."""
    runs = {"float32": run, "float64": run_in_double_precision}
    recorded = {precision: {name: one(name) for name in SETTINGS} for precision, one in runs.items()}
    rounded = json.loads(json.dumps(recorded), parse_float=lambda text: float(f"{float(text):.9g}"))
    FIXTURE.write_text(json.dumps(rounded))
