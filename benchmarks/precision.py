"""Do the averages move when gradients are computed in a lower precision? N = 11 160, T = 3e-5, one GPU.

    python benchmarks/precision.py starts.npz result.json

Six chains at two temperatures for each precision of the matrix products, from weights trained by Adam (an .npz file of
the reproduction `thermodynamics`); `null` is the default, the kernels with bfloat16 factors. Energies are measured in
full float32 with compensated sums whatever the precision of the gradients.
"""

import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

import pseudolangevin as pl
from pseudolangevin.diagnostics.averages import average
from pseudolangevin.paper.spins import spin_task, trained_starts
from pseudolangevin.provenance import PACKAGES, version_of

TEMPERATURES = [1e-5, 3e-5]
NUM_CHAINS = 6
NUM_STEPS = 60_000


def main(starts_file: Path, out: Path) -> None:
    """Sample in every precision, print and write the averages."""
    task = spin_task(50)
    starts = trained_starts(task, 3, epochs=5_000, cache=starts_file)
    starts = jax.tree.map(lambda w: np.concatenate([w] * (NUM_CHAINS // 3), axis=1), starts)
    rows = []
    for precision in (None, "tensorfloat32", "highest"):
        sampler = pl.pseudo_langevin(task.potential, task.train, batch_size=5_580, precision=precision)
        started = time.perf_counter()
        result = pl.sample(
            sampler,
            starts,
            temperatures=TEMPERATURES,
            num_chains=NUM_CHAINS,
            num_steps=NUM_STEPS,
            record_every=500,
            key=1,
        )
        row = {"precision": precision, "seconds": round(time.perf_counter() - started, 1)}
        for temperature in TEMPERATURES:
            trace = result.trace.sel(temperature=temperature)
            names = ["loss", "squared_norm", "error", "kinetic_temperature", "virial_temperature"]
            row[f"{temperature:g}"] = {name: average(trace[name].values, burn_in=0.5)[:2] for name in names}
        rows.append(row)
        print(json.dumps(row), flush=True)
        content = {
            "device": jax.devices()[0].device_kind,
            "versions": {name: version_of(name) for name in PACKAGES},
            "num_chains": NUM_CHAINS,
            "num_steps": NUM_STEPS,
            "columns": ["mean", "standard error"],
            "rows": rows,
        }
        out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
