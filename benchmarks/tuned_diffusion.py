"""Diffusion of balanced Langevin and pseudo-Langevin within a budget of bias, with the same batch size.

    python -m benchmarks.tuned_diffusion --out FILE --hidden 500 --temperature 3e-6    # on a GPU

The thermal energy N·T/2 must stay below the loss of a random guess, so T goes as 1/N. Chains start
from Adam and are equilibrated by balanced Langevin. Averages leave out the first 40 % of the time; errors are over
chains.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pseudolangevin as pl
from pseudolangevin.apps.tune import _changed
from pseudolangevin.diagnostics.averages import kept
from pseudolangevin.diagnostics.diffusion import MeasuredDiffusion, measure_diffusion
from pseudolangevin.paper.spins import spin_task


def averages(measured: MeasuredDiffusion) -> dict[str, dict[str, float]]:
    """Return mean and standard error over chains of loss, |w|² and error."""
    found = {}
    for name, values in measured.observables.items():
        means = np.mean(kept(values, 0.4), axis=-1)
        error = float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.nan
        found[name] = {"mean": float(means.mean()), "standard_error": error}
    return found


def main() -> None:
    """Measure all candidates, and write each as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hidden", type=int, default=500, help="units of the first layer: N = 201·hidden + 1110")
    parser.add_argument("--temperature", type=float, default=3e-5)
    parser.add_argument("--chains", type=int, default=6)
    parser.add_argument("--share", type=float, default=0.1, help="batch size as a share of P")
    parser.add_argument("--training", type=int, default=6_000, help="steps of Adam")
    parser.add_argument("--equilibration", type=float, default=30, help="seconds")
    parser.add_argument("--seconds", type=float, default=16, help="time of each candidate, observation aside")
    parser.add_argument("--balanced", type=float, nargs="+", default=[0.03, 0.1, 0.3])
    parser.add_argument("--pseudo", type=float, nargs="+", default=[0.01, 0.003, 0.03])
    options = parser.parse_args()
    task = spin_task(options.hidden)
    size = round(options.share * task.train.num_examples)
    observed = {"observe_examples": min(task.train.num_examples, 150_000), "chunk_size": 30_000}
    found: dict[str, Any] = {"name": "diffusion within a budget of bias", "device": jax.devices()[0].device_kind}
    found |= {"num_weights": task.num_weights, "batch_size": size, "temperature": options.temperature}
    found |= {"chains": options.chains, "equilibration_seconds": options.equilibration, "rows": []}
    began = time.perf_counter()

    def measure(sampler: Any, ratio: float, weights: Any, seconds: float, *, observe: bool = True) -> Any:
        candidate: Any = _changed(sampler, size, jnp.array(ratio))  # an array: no new program for a ratio
        run = pl.Run(candidate, temperatures=[options.temperature], num_chains=options.chains, **observed)
        measured = measure_diffusion(run, run.start(weights, 1), every=100, seconds=seconds, observe=observe)
        return measured, run.split(run.positions(measured.states))

    weights = task.starts(options.training, num_starts=options.chains)
    balanced = pl.balanced_langevin(task.potential, task.train, batch_size=size)
    pseudo = pl.pseudo_langevin(task.potential, task.train, batch_size=size)
    print(f"trained, {time.perf_counter() - began:.0f} s", flush=True)
    weights = measure(balanced, 0.1, weights, options.equilibration, observe=False)[1]
    for sampler, ratios in ((balanced, options.balanced), (pseudo, options.pseudo)):
        for ratio in ratios:
            measured, _ = measure(sampler, ratio, weights, options.seconds)
            row = {"sampler": sampler.name, "temperature_ratio": ratio, "steps": measured.num_steps}
            row |= {"seconds_per_step": measured.seconds_per_step, "stopped": measured.stopped}
            row |= {"diffusion": measured.coefficient.mean, "diffusion_error": measured.coefficient.standard_error}
            row |= averages(measured)
            found["rows"].append(row)
            print(json.dumps(row), f"{time.perf_counter() - began:.0f} s", flush=True)
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
