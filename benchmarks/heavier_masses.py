"""What less friction and heavier masses do: bias and displacement for several 𝒯 and c1, at one batch size.

    python benchmarks/heavier_masses.py benchmarks/results/heavier-masses.json

The paper's network of 11 160 weights at T = 3e-5, S = 3 % of P. Masses go as 1/(1 − c1²) and friction as 1 − c1², so
that the weights diffuse alike; the error of the time step, (ω·δt)²/4 with ω² = k/M, goes as 1 − c1². All runs begin
at the same equilibrated weights; biases are against the smallest 𝒯 with the heaviest masses.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from pseudolangevin.types import Weights

import pseudolangevin as pl
from pseudolangevin.diagnostics import Displacements
from pseudolangevin.diagnostics.averages import average
from pseudolangevin.paper.spins import SpinTask, quick_start, spin_task
from pseudolangevin.paper.timed import sample_for
from pseudolangevin.provenance import version_of

TEMPERATURE, BATCH_SHARE = 3e-5, 0.03
RECORD_EVERY, REFRESH_EVERY, STRIDE = 250, 250, 1_000
REFERENCE = (0.003, 0.999)
CASES = (REFERENCE, (0.03, 0.99), (0.03, 0.999), (0.1, 0.99), (0.1, 0.999))
"""𝒯 and c1²."""
OBSERVABLES = ("loss", "squared_norm", "error")


def run(task: SpinTask, start: Weights, ratio: float, retention: float, num_steps: int) -> dict[str, Any]:
    """Averages over the last three quarters, displacements per weight over 1, 2, 4… thousand steps."""
    sampler = pl.pseudo_langevin(
        task.potential,
        task.train,
        batch_size=round(BATCH_SHARE * task.train.num_examples),
        temperature_ratio=ratio,
        max_temperature_ratio=ratio,
        momentum_retention=retention**0.5,
        reset_probability=0.0,
        refresh_every=REFRESH_EVERY,
        max_refresh_interval=REFRESH_EVERY,
    )
    displacements = Displacements()
    began = time.perf_counter()
    result = sample_for(
        float("inf"),
        sampler,
        start,
        temperatures=[TEMPERATURE],
        num_chains=1,
        record_every=RECORD_EVERY,
        max_steps=num_steps,
        key=1,
        displacements=displacements,
    )
    trace = result.trace.isel(temperature=0, chain=0)
    row: dict[str, Any] = {"temperature_ratio": ratio, "squared_momentum_retention": retention}
    if result.num_steps < num_steps or not np.isfinite(trace["loss"].values).all():
        return row | {"stopped_after": result.num_steps}
    for name in OBSERVABLES:
        mean, error, _ = average(trace[name].values, burn_in=0.25)
        row |= {name: mean, f"{name}_error": error}
    curve = displacements.diffusion()
    lags = [int(lag) for lag in curve.steps if lag % STRIDE == 0 and (int(lag) // STRIDE).bit_count() == 1]
    found = {str(lag): float(curve.displacement[0, list(curve.steps).index(lag)]) for lag in lags[:5]}
    virial = average(trace["virial_temperature"].values, burn_in=0.25).mean / TEMPERATURE
    row |= {"displacement_per_weight": found, "virial_over_temperature": virial}
    return row | {"seconds": round(time.perf_counter() - began, 1), "weights": result.weights}


def main() -> None:
    """Every case; what is done is on disk before the next begins."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=60_000)
    options = parser.parse_args()
    task = spin_task(50)
    start = quick_start(task, seconds=8, num_candidates=6)
    stirred = run(task, start, 0.1, 0.99, 40_000).get("weights")
    if stirred is None:
        raise SystemExit("the chain that equilibrates the start turned non-finite")
    rows: list[dict[str, Any]] = []
    for ratio, retention in CASES:
        jax.clear_caches()
        row = run(task, jax.tree.map(lambda w: w[0, 0], stirred), ratio, retention, options.steps)
        row.pop("weights", None)
        if "stopped_after" in row and not rows:
            raise SystemExit(f"the reference turned non-finite after {row['stopped_after']} steps")
        for name in OBSERVABLES if "loss" in row else ():
            row[f"{name}_bias"] = row[name] / (rows or [row])[0][name] - 1
        rows.append(row)
        print(json.dumps(row), flush=True)
        settings = {"num_weights": task.num_weights, "temperature": TEMPERATURE, "batch_share": BATCH_SHARE}
        settings |= {"steps": options.steps, "refresh_every": REFRESH_EVERY, "device": jax.default_backend()}
        content = {"settings": settings | {"jax": version_of("jax")}, "rows": rows}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
