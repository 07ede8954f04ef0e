"""Balanced Langevin on the paper's network: averages against exact samplers, effective samples per second, cost.

    python benchmarks/balanced.py --out results.json --seconds 500    # on a GPU; every part is written as it is done

Chains start from Adam and are pre-equilibrated by balanced Langevin. Errors are over chains. Averages are of records at
mid-drift. The reference samplers have the exact gradient and the masses of balanced Langevin.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pseudolangevin as pl
from pseudolangevin.apps.bench import machine
from pseudolangevin.diagnostics.averages import effective_samples
from pseudolangevin.paper.spins import Task, spin_task, stored

OBSERVED = ("potential", "loss", "squared_norm", "error", "kinetic_temperature", "virial_temperature")
EVERY = 50  # steps between records


def row(label: str, result: pl.Result, seconds: float, discard: float = 0.2) -> dict[str, Any]:
    """Return averages, errors over chains, and effective samples per second of U and |w|² of one chain."""
    trace = result.trace.isel(temperature=0)
    first = int(discard * trace.sizes["draw"])
    healthy = trace["status"].values[:, -1] == 0
    found: dict[str, Any] = {"label": label, "sampler": result.sampler.name}
    found |= {"temperature": float(trace["temperature"]), "steps": int(trace["step"][-1]), "seconds": seconds}
    found |= {"chains": len(healthy), "finite_chains": int(healthy.sum())}
    for name in OBSERVED:
        if name in trace and healthy.any():
            values = trace[name].values[healthy, first:]
            values = values / found["temperature"] if name.endswith("temperature") else values
            means = values.mean(axis=1)
            error = float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.nan
            found[name] = {"mean": float(means.mean()), "standard_error": error}
            if name in ("potential", "loss", "squared_norm"):
                effective = float(np.mean([effective_samples(chain) for chain in values]))
                steps = (trace.sizes["draw"] - first) * int(trace["step"][0])
                found[name] |= {"autocorrelation_steps": steps / effective}
    return found


def run(
    label: str, sampler: Any, start: Any, temperature: float, *, steps: int, every: int = EVERY, **limits: Any
) -> Any:
    """Sample and return the row and the result."""
    began = time.perf_counter()
    chains = jax.tree.leaves(start)[0].shape[1]
    options: dict[str, Any] = {"temperatures": [temperature], "num_chains": chains, "key": 3, "progress": False}
    result = pl.sample(traced(sampler), start, num_steps=steps, record_every=every, **options, **limits)
    return row(label, result, time.perf_counter() - began) | {"settings": sampler.settings}, result


def traced(sampler: Any) -> Any:
    """Return the sampler with its ratio as an array, so that other ratios need no new program."""
    if isinstance(sampler, pl.balanced_langevin):
        sampler = copy.copy(sampler)
        object.__setattr__(sampler, "temperature_ratio", jnp.float32(sampler.temperature_ratio))
    return sampler


def time_per_step(sampler: Any, start: Any, temperature: float, chains: int) -> float:
    """Return the median time per step in seconds, compilation and refreshes excluded."""
    run = pl.Run(sampler, temperatures=[temperature], num_chains=chains)
    states, steps, times = run.start(jax.tree.map(lambda w: w[:, :1], start), 0), 5_000, []
    for repeat in range(7):
        began = time.perf_counter()
        (record,) = run.records(states, first=repeat * steps, stop=(repeat + 1) * steps, every=10**6, progress=False)
        states = jax.block_until_ready(record.states)
        times.append((time.perf_counter() - began) / steps)
    return float(np.median(times[2:]))


def small_task(sizes: tuple[int, ...], num_train: int) -> Task:
    """Return a small network without ReLU on its scores, and spins that are easier to classify."""
    train, test = pl.tasks.spin_vectors(
        jax.random.key(0), num_train=num_train, num_test=100, dimension=sizes[0], num_classes=sizes[-1],
        flip_probability=0.25,
    )  # fmt: skip
    network = pl.models.feedforward(sizes, output_activation="identity")
    return Task(train, test, network, pl.classification(network.apply, weight_decay=5.0))


def parts(
    task: Task, begin: Any, temperature: float, names: list[str], chains: int, steps: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one size and temperature, part by part; chains are pre-equilibrated first."""
    if any(not name.startswith("time") for name in names):
        balanced = pl.balanced_langevin(task.potential, task.train)
        near = run("start", balanced, begin, temperature, steps=6_000, every=500)[1]
        begin = jax.tree.map(jnp.asarray, near.weights)
    system, size = (task.potential, task.train), task.train.num_examples
    for name in names:
        if name.startswith("balanced"):  # balanced:ratio:c1²:B as a share of S:S as a share of P
            ratio, retained, share, batch = map(float, name.split(":")[1:])
            sampler = pl.balanced_langevin(
                *system,
                batch_size=round(batch * size),
                temperature_ratio=ratio,
                momentum_retention=math.sqrt(retained),
                friction_batch_size=round(share * batch * size),
            )
            yield run(name, sampler, begin, temperature, steps=steps)[0] | {"num_weights": task.num_weights}
        elif name.startswith("pl"):  # pl:ratio:S as a share of P
            ratio, batch = map(float, name.split(":")[1:])
            pseudo = pl.pseudo_langevin(*system, batch_size=round(batch * size), temperature_ratio=ratio)
            yield run(name, pseudo, begin, temperature, steps=steps)[0] | {"num_weights": task.num_weights}
        elif name.startswith("exact"):  # exact:seconds
            masses = jax.tree.map(lambda m: jnp.mean(m, axis=0), near.states.masses)
            exact = pl.full_batch_langevin(*system, masses=masses, time_step=1.0)
            limit = float(name.split(":")[1])
            found = run(name, exact, begin, temperature, steps=10**6, max_seconds=limit)[0]
            yield found | {"num_weights": task.num_weights}
        elif name.startswith("hmc"):  # hmc:leapfrog steps:seconds
            length, limit = name.split(":")[1:]
            hybrid = pl.hybrid_monte_carlo(*system, num_leapfrog_steps=int(length), time_step=1e-3, warmup_moves=30)
            found = run(name, hybrid, begin, temperature, steps=10**6, every=1, max_seconds=float(limit))[0]
            yield found | {"num_weights": task.num_weights}
        elif name.startswith("finite"):  # finite:steps, at six temperatures
            temperatures, one = [1e-6, 3e-6, 1e-5, 2e-5, 3e-5, 1e-4], jax.tree.map(lambda w: w[:, :1], begin)
            result = pl.sample(
                pl.balanced_langevin(*system), one, temperatures=temperatures, num_steps=int(name.split(":")[1]),
                record_every=5_000, observe_examples=5_000, key=3, progress=False, max_seconds=200,
            )  # fmt: skip
            finite = (result.trace["status"].values[..., -1] == 0).all(axis=1).tolist()
            found = {"label": name, "sampler": "balanced_langevin", "temperatures": temperatures, "finite": finite}
            yield found | {"steps": int(result.trace["step"][-1]), "num_weights": task.num_weights}
        elif name.startswith("time"):  # time:chains:S as a share of P
            count, batch = name.split(":")[1:]
            examples = round(float(batch) * size)
            for make in (pl.balanced_langevin, pl.pseudo_langevin):
                sampler = make(*system, batch_size=examples, temperature_ratio=1e-3, refresh_every=10**6,
                               max_refresh_interval=10**6)  # fmt: skip
                seconds = time_per_step(sampler, begin, temperature, int(count))
                about = {"label": name, "sampler": sampler.name, "chains": int(count), "batch_size": examples}
                yield about | {"num_weights": task.num_weights, "microseconds_per_step": 1e6 * seconds}


def main() -> None:
    """Measure the parts in order, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--hidden", type=int, default=50, help="units of the first layer: N = 201·hidden + 1110")
    parser.add_argument("--small", type=int, choices=(364, 1900), help="number of weights of a smaller task")
    parser.add_argument("--temperature", type=float, default=3e-5)
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument(
        "--start",
        type=Path,
        help="starts of the chains, one array (1, chain, …) per tensor; made if it is missing",
    )
    parser.add_argument(
        "parts", nargs="+", help="balanced:0.1:0.99:0.125:0.1, pl:0.01:0.1, exact:60, hmc:200:60, time:1:0.1"
    )
    options = parser.parse_args()
    began, rows = time.perf_counter(), []
    found = {"name": "balanced", "machine": machine(), "rows": rows}
    small = {364: ((20, 10, 10, 4), 2_000), 1900: ((50, 25, 20, 5), 8_000)}
    task = small_task(*small[options.small]) if options.small else spin_task(options.hidden)
    trained = partial(task.starts, 6_000, num_starts=options.chains)
    if all(name.startswith("time") for name in options.parts):  # from random weights
        begin = jax.tree.map(lambda w: w[None, None], task.network.init(jax.random.key(0)))
    else:
        begin = stored(options.start, task, trained) if options.start else trained()
    for name in parts(task, begin, options.temperature, options.parts, options.chains, options.steps):
        rows.append(name)
        print(json.dumps(name), flush=True)
        options.out.write_text(json.dumps(found, indent=1))
        if time.perf_counter() - began > options.seconds:
            break
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
