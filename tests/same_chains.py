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


def samplers() -> dict[str, tuple[Any, int]]:
    """Return every sampler on a small classifier, with a number of steps."""
    train, _ = pl.tasks.spin_vectors(
        jax.random.key(0), num_train=400, num_test=10, dimension=6, num_classes=3, flip_probability=0.2
    )
    network = pl.models.feedforward((6, 5, 4, 3), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=0.5)
    plain = pl.classification(lambda w, x: 1.0 * network.apply(w, x), weight_decay=0.5)
    return {
        "pseudo_langevin": (
            pl.pseudo_langevin(potential, train, batch_size=40, temperature_ratio=0.05, refresh_every=80),
            200,
        ),
        "pseudo_langevin, variance from mini-batches": (
            pl.pseudo_langevin(
                plain,
                train,
                batch_size=40,
                refresh_every=96,
                variance_from="minibatches",
                reset_probability=0.5,
                warmup_refreshes=1,
                masses_per="row",
            ),
            200,
        ),
        "balanced_langevin": (
            pl.balanced_langevin(potential, train, batch_size=40, friction_batch_size=20, refresh_every=80),
            200,
        ),
        "naive_pseudo_langevin": (
            pl.naive_pseudo_langevin(potential, train, batch_size=40, time_step=0.005, refresh_every=100),
            200,
        ),
        "naive_pseudo_langevin, nothing subtracted": (
            pl.naive_pseudo_langevin(potential, train, batch_size=40, time_step=0.02, subtract_variance=False),
            200,
        ),
        "full_batch_langevin": (pl.full_batch_langevin(potential, train, time_step=0.1, chunk_size=128), 200),
        "hybrid_monte_carlo": (
            pl.hybrid_monte_carlo(potential, train, num_leapfrog_steps=5, time_step=0.1, warmup_moves=50),
            200,
        ),
        "minibatch_hybrid_monte_carlo": (
            pl.minibatch_hybrid_monte_carlo(
                potential, train, batch_size=40, num_leapfrog_steps=3, time_step=0.02, warmup_moves=50
            ),
            200,
        ),
        "adam": (pl.adam(potential, train, batch_size=40, learning_rate=1e-3, decay_factor=0.8, decay_epochs=5), 200),
    }


def run(name: str) -> dict[str, Any]:
    """Return the trace and the final weights of two chains at one or two temperatures."""
    sampler, num_steps = samplers()[name]
    shapes = pl.models.feedforward((6, 5, 4, 3)).init(jax.random.key(1))
    random = np.random.default_rng(1)  # the same bits on every machine: the noise depends on the bits of the start
    weights = jax.tree.map(lambda w: jnp.asarray(random.uniform(-0.5, 0.5, w.shape).astype(np.float32), float), shapes)
    temperatures = None if name == "adam" else [1e-4, 1e-3]
    result = pl.sample(
        sampler, weights, temperatures=temperatures, num_chains=2, num_steps=num_steps, record_every=20, key=3
    )
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
    recorded = {precision: {name: one(name) for name in samplers()} for precision, one in runs.items()}
    rounded = json.loads(json.dumps(recorded), parse_float=lambda text: float(f"{float(text):.9g}"))
    FIXTURE.write_text(json.dumps(rounded))
