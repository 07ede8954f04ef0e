"""Effect of less friction with heavier masses: bias and displacement for several temperature ratios and c1.

    python benchmarks/heavier_masses.py benchmarks/results/heavier-masses.json

The paper's network of 11 160 weights at T = 3e-5, batches of 3 % of the data. Masses go as 1/(1 − c1²) and friction
as 1 − c1², so that the weights diffuse alike; the error of the time step, (ω·δt)²/4 with ω² = k/M, goes as 1 − c1². All
runs start from the same equilibrated weights; biases are relative to the smallest ratio with the heaviest masses.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

import pseudolangevin as pl
from pseudolangevin.apps.bench import Problem, machine
from pseudolangevin.apps.temperature import trained_starts
from pseudolangevin.diagnostics import average, measure_diffusion

TEMPERATURE, INTERVAL = 3e-5, 250
REFERENCE = (0.003, 0.999)
CASES = (REFERENCE, (0.03, 0.99), (0.03, 0.999), (0.1, 0.99), (0.1, 0.999))
"""Temperature ratio and c1²."""


def measure(problem: Problem, train: pl.Dataset, start: Any, ratio: float, retention: float, num_steps: int) -> Any:
    """Return averages over the last three quarters, displacements per weight, and the final weights."""
    sampler = pl.pseudo_langevin(
        problem.potential,
        train,
        batch_size=round(0.03 * train.num_examples),
        temperature_ratio=ratio,
        momentum_retention=retention**0.5,
        reset_probability=0.0,
        refresh_every=INTERVAL,
        max_refresh_interval=INTERVAL,
    )
    run = pl.Run(sampler, temperatures=[TEMPERATURE])
    states, options = run.start(start, 1), {"every": INTERVAL, "seconds": np.inf, "max_steps": num_steps}
    found = measure_diffusion(run, states, observe=True, **options)
    row: dict[str, Any] = {"temperature_ratio": ratio, "squared_momentum_retention": retention}
    if found.diffusion is None:
        return row | {"stopped_after": found.num_steps}, start
    for name, values in found.observables.items():
        mean, error, _ = average(values, burn_in=0.25)
        row |= {name: mean, f"{name}_error": error}
    curve = dict(zip(found.diffusion.steps.astype(int).tolist(), found.diffusion.displacement[0].tolist(), strict=True))
    row["displacement_per_weight"] = {str(lag): curve[lag] for lag in (1_000, 2_000, 4_000, 8_000) if lag in curve}
    return row, jax.tree.map(lambda w: w[0], run.positions(found.states))


def main() -> None:
    """Measure every case; the file is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=60_000)
    options = parser.parse_args()
    problem = Problem(11_160)
    train = pl.Dataset(*problem.arrays())
    starts = trained_starts(problem.potential, train, problem.network.init, num_steps=5_000)
    _, start = measure(problem, train, jax.tree.map(lambda w: w[0], starts), 0.1, 0.99, min(40_000, options.steps))
    rows: list[dict[str, Any]] = []
    for ratio, retention in CASES:
        row, _ = measure(problem, train, start, ratio, retention, options.steps)
        for name in ("loss", "squared_norm", "error"):
            if name in row:
                row[f"{name}_bias"] = row[name] / (rows or [row])[0][name] - 1
        rows.append(row)
        print(json.dumps(row), flush=True)
        settings = {"num_weights": 11_160, "temperature": TEMPERATURE, "batch_share": 0.03, "steps": options.steps}
        content = {"settings": settings | {"refresh_every": INTERVAL} | machine(), "rows": rows}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
