"""Networks of 1e6 … 1e9 weights on one device: time per step, bytes per weight, and whether the temperatures hold.

    python benchmarks/large_networks.py result.json [--seconds 120] [--widths 1000 3000 10000 31000]

Feed-forward networks 100 → width → width → 10 on spin vectors. Chains start from the prior, N(0, N·T/λ), at a
temperature at which it dominates, so that a thousand steps are many relaxation times of the regulariser; the kinetic
and the virial temperature must then be T (the virial 0.25 % above, by the time step: ωδt = 0.1). With masses shared by
tensors, momenta and weights are all that is kept per weight.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import pseudolangevin as pl
from pseudolangevin import chains, trees
from pseudolangevin.diagnostics.averages import average
from pseudolangevin.provenance import PACKAGES, version_of

BATCH_SIZE = 256
NUM_EXAMPLES = 50_000
TEMPERATURE = 1e-4
NUM_STEPS = 1_000
RECORD_EVERY = 50
DISCARD = 0.3
VARIANCE_EXAMPLES = 20_000


def measure(width: int, masses_per: str, num_steps: int) -> dict[str, Any]:
    """One network."""
    network = pl.models.feedforward((100, width, width, 10), output_activation="identity")
    train, _ = pl.tasks.spin_vectors(jax.random.key(0), num_train=NUM_EXAMPLES, num_test=1)
    num_weights = trees.num_weights(jax.eval_shape(network.init, jax.random.key(0)))
    weight_decay = TEMPERATURE * num_weights * width  # a prior of variance 1/width
    potential = pl.classification(network.apply, weight_decay=weight_decay)
    sampler = pl.pseudo_langevin(
        potential,
        train,
        batch_size=BATCH_SIZE,
        masses_per=masses_per,
        refresh_every=500,
        warmup_refreshes=0,
        variance_examples=VARIANCE_EXAMPLES,
    )
    weights = jax.jit(lambda key: trees.normal_like(key, jax.eval_shape(network.init, key)))(jax.random.key(1))
    weights = jax.jit(lambda w: jax.tree.map(lambda leaf: leaf * width**-0.5, w), donate_argnums=0)(weights)
    plan = chains.make_plan(
        sampler,
        temperatures=[TEMPERATURE],
        num_chains=1,
        num_steps=num_steps,
        record_every=RECORD_EVERY,
        observe_examples=4_096,
    )
    states = plan.init(weights, 2)
    del weights
    jax.block_until_ready(states)
    used = _bytes(sampler.kernel, states, train)
    activations = 4 * BATCH_SIZE * 2 * 2 * width  # of two layers, and the loss's derivatives by them
    records, times = [], [time.perf_counter()]
    for record in plan.run(states):
        states = record.states
        records.append(record.observables)
        times.append(time.perf_counter())
    started = time.perf_counter()
    states = jax.block_until_ready(chains._advance(sampler.kernel, states, train, num_steps=RECORD_EVERY))
    per_step = (time.perf_counter() - started) / RECORD_EVERY
    row = {
        "num_weights": num_weights,
        "width": width,
        "masses_per": masses_per,
        "milliseconds_per_step": 1e3 * per_step,
        "bytes_per_weight_of_a_segment": used / num_weights,
        "bytes_per_weight_without_activations": (used - activations) / num_weights,
        "seconds": times[-1] - times[0],
        "num_steps": num_steps,
    }
    statistics = jax.devices()[0].memory_stats()
    if statistics:
        row["peak_bytes_per_weight_of_the_whole_run"] = statistics["peak_bytes_in_use"] / num_weights
    for name in ("kinetic_temperature", "virial_temperature"):
        values = np.array([r[name] for r in records if r is not None])[:, 0] / TEMPERATURE
        mean = average(values, burn_in=DISCARD)
        row[name + "_over_T"] = [mean.mean, mean.standard_error]
    return row


def _bytes(kernel: Any, states: Any, train: pl.Dataset) -> int:
    """What a segment occupies, the data aside."""
    analysis = chains._advance.lower(kernel, states, train, num_steps=RECORD_EVERY).compile().memory_analysis()
    used = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes - sum(a.nbytes for a in jax.tree.leaves(train))
    return used if analysis.alias_size_in_bytes else used + analysis.output_size_in_bytes


def main() -> None:
    """Sizes from small to large, until the clock or the memory ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--widths", type=int, nargs="+", default=[1_000, 3_000, 10_000, 31_600])
    parser.add_argument("--masses-per", nargs="+", default=["weight", "tensor"])
    options = parser.parse_args()
    started, rows = time.perf_counter(), []
    for width in options.widths:
        for masses_per in options.masses_per:
            if time.perf_counter() - started > options.seconds:
                print(f"out of time before width {width}, masses per {masses_per}", flush=True)
                continue
            try:
                row = measure(width, masses_per, options.steps)
            except jax.errors.JaxRuntimeError as error:
                row = {"width": width, "masses_per": masses_per, "failed": str(error).split("\n")[0][:200]}
            print(json.dumps(row), flush=True)
            rows.append(row)
            jax.clear_caches()
    content = {
        "device": jax.devices()[0].device_kind,
        "versions": {name: version_of(name) for name in PACKAGES},
        "batch_size": BATCH_SIZE,
        "temperature": TEMPERATURE,
        "rows": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
