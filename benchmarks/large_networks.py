"""Networks of 1e6 to 1e9 weights on one device: time per step, bytes per weight, kinetic and virial temperature.

    python benchmarks/large_networks.py result.json [--seconds 120] [--widths 1000 3000 10000 31600]

Feed-forward networks 100 → width → width → 10 on spin vectors. Chains start from the prior, N(0, N·T/λ), at a
temperature at which it dominates, so that a thousand steps are many relaxation times of the regulariser, and both
temperatures must be T. With masses shared by tensors, only momenta and weights are kept per weight.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin import chains
from pseudolangevin._trees import normal_like
from pseudolangevin.apps.bench import machine
from pseudolangevin.diagnostics import average

BATCH_SIZE, TEMPERATURE, RECORD_EVERY = 256, 1e-4, 50


def measure(width: int, masses_per: str, num_steps: int) -> dict[str, Any]:
    """Measure one network."""
    network = pl.models.feedforward((100, width, width, 10), output_activation="identity")
    train, _ = pl.tasks.spin_vectors(jax.random.key(0), num_train=50_000, num_test=1)
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    num_weights = trees.num_weights(shapes)
    weight_decay = TEMPERATURE * num_weights * width  # a prior of variance 1/width
    settings = {"batch_size": BATCH_SIZE, "masses_per": masses_per, "refresh_every": 500, "warmup_refreshes": 0}
    potential = pl.classification(network.apply, weight_decay=weight_decay)
    sampler: Any = pl.pseudo_langevin(potential, train, variance_examples=20_000, **settings)
    weights = jax.jit(lambda key: jax.tree.map(lambda w: w * width**-0.5, normal_like(key, shapes)))(jax.random.key(1))
    run = pl.Run(sampler, temperatures=[TEMPERATURE], observe_examples=4_096)
    states = run.start(weights, 2)
    del weights
    block = sampler.steps_per_block if jax.default_backend() != "cpu" else 1
    memory: Any = chains._segment.lower(sampler, states, 1, block).compile().memory_analysis()
    used = memory.argument_size_in_bytes + memory.temp_size_in_bytes - sum(a.nbytes for a in jax.tree.leaves(train))
    used += 0 if memory.alias_size_in_bytes else memory.output_size_in_bytes
    activations = 4 * BATCH_SIZE * 2 * 2 * width  # of two layers, and the loss's derivatives by them
    records, began = [], time.perf_counter()
    for record in run.records(states, stop=num_steps, every=RECORD_EVERY):
        states = record.states
        records.append(record.observables)
    seconds, started = time.perf_counter() - began, time.perf_counter()
    stop = num_steps + RECORD_EVERY
    for record in run.records(states, first=num_steps, stop=stop, every=10 * stop, progress=False):
        states = jax.block_until_ready(record.states)
    row: dict[str, Any] = {
        "num_weights": num_weights,
        "width": width,
        "masses_per": masses_per,
        "milliseconds_per_step": 1e3 * (time.perf_counter() - started) / RECORD_EVERY,
        "bytes_per_weight_of_a_segment": used / num_weights,
        "bytes_per_weight_without_activations": (used - activations) / num_weights,
        "seconds": seconds,
        "num_steps": num_steps,
    }
    if statistics := jax.devices()[0].memory_stats():
        row["peak_bytes_per_weight_of_the_whole_run"] = statistics["peak_bytes_in_use"] / num_weights
    for name in ("kinetic_temperature", "virial_temperature"):
        values = np.array([r[name] for r in records if r is not None])[:, 0] / TEMPERATURE
        row[f"{name}_over_T"] = average(values, burn_in=0.3)[:2]
    return row


def main() -> None:
    """Measure sizes from small to large, until time or memory ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--widths", type=int, nargs="+", default=[1_000, 3_000, 10_000, 31_600])
    parser.add_argument("--masses-per", nargs="+", default=["weight", "tensor"])
    options = parser.parse_args()
    began, rows = time.perf_counter(), list[dict[str, Any]]()
    for width, masses_per in ((width, per) for width in options.widths for per in options.masses_per):
        if time.perf_counter() - began > options.seconds:
            print(f"no time was left for width {width}, masses per {masses_per}", flush=True)
            continue
        try:
            row = measure(width, masses_per, options.steps)
        except jax.errors.JaxRuntimeError as error:
            row = {"width": width, "masses_per": masses_per, "failed": str(error).split("\n")[0][:200]}
        print(json.dumps(row), flush=True)
        rows.append(row)
        jax.clear_caches()
        content = {**machine(), "batch_size": BATCH_SIZE, "temperature": TEMPERATURE, "rows": rows}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
