"""Averages with gradients in several precisions: N = 11 160, two temperatures, one GPU.

    python benchmarks/precision.py benchmarks/results/precision-h200.json

Six chains at each temperature for every precision of the matrix products, from weights trained by Adam; `null` is the
default, kernels with bfloat16 factors. Energies are always measured in full float32 with compensated sums.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax

import pseudolangevin as pl
from pseudolangevin.apps.bench import Problem, machine
from pseudolangevin.apps.temperature import trained_starts
from pseudolangevin.diagnostics import average

TEMPERATURES, NUM_CHAINS = [1e-5, 3e-5], 6
NAMES = ("loss", "squared_norm", "error", "kinetic_temperature", "virial_temperature")


def main() -> None:
    """Sample in every precision; the file is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--adam-steps", type=int, default=100_000)
    options = parser.parse_args()
    problem = Problem(11_160)
    train = pl.Dataset(*problem.arrays())
    training = {"num_steps": options.adam_steps, "num_starts": NUM_CHAINS, "candidates": 2, "learning_rate": 1e-4}
    starts = trained_starts(problem.potential, train, problem.network.init, **training)
    rows: list[dict[str, Any]] = []
    for precision in (None, "tensorfloat32", "highest"):
        sampler = pl.pseudo_langevin(problem.potential, train, batch_size=5_580, precision=precision)
        began = time.perf_counter()
        result = pl.sample(
            sampler,
            jax.tree.map(lambda w: w[None], starts),
            temperatures=TEMPERATURES,
            num_chains=NUM_CHAINS,
            num_steps=options.steps,
            record_every=max(1, options.steps // 120),
            key=1,
        )
        row: dict[str, Any] = {"precision": precision, "seconds": round(time.perf_counter() - began, 1)}
        for temperature in TEMPERATURES:
            trace = result.trace.sel(temperature=temperature)
            row[f"{temperature:g}"] = {name: average(trace[name].values, burn_in=0.5)[:2] for name in NAMES}
        rows.append(row)
        print(json.dumps(row), flush=True)
        content = {**machine(), "num_chains": NUM_CHAINS, "num_steps": options.steps}
        content |= {"columns": ["mean", "standard error"], "rows": rows}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
