"""Bias and diffusion of samplers in equal time on one small network, alongside hybrid Monte Carlo and BlackJAX.

    python -m benchmarks.equal_time --out benchmarks/results/equal-time-364-cpu.json       # six chains, two cores
    python -m benchmarks.equal_time --size 1900 --methods 2 --seconds 250 --out FILE       # hMC and balanced alone

Every method has the same network, data, batches of S = P/10 examples, chains, start and time for its steps. The clock
runs during steps and measurements of the gradient variance only; on a CPU it counts the seconds of this process on all
cores, so that other programs do not matter. A record is made after equal times. Chains start from the last weights of
hybrid Monte Carlo, and the first fifth of the records is left out.

Step sizes of BlackJAX's SGLD and SGHMC (ten gradients from one batch, unit masses) are such that the mini-batch noise
has the given ratio to the thermal noise, in the mean over weights: its variance over that of the injected noise (SGLD),
and that of its impulse in ten steps over that of the momentum (SGHMC).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pseudolangevin as pl
from pseudolangevin.apps.bench import machine
from pseudolangevin.diagnostics import average

TASKS = {364: ((20, 10, 10, 4), 2_000), 1900: ((50, 25, 20, 5), 8_000)}
"""Layers and number of examples, by number of weights."""
RATIOS = (0.01, 0.1)


def clock() -> float:
    """Return the seconds of this process on all cores, or the time of day if a GPU works."""
    return time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()


@dataclass
class Comparison:
    """The task, and the averages of every method as rows."""

    size: int
    num_chains: int
    seconds: float
    interval: float

    def __post_init__(self) -> None:
        """Make the data, the network and starts that were trained by Adam."""
        layers, num_train = TASKS[self.size]
        self.train, _ = pl.tasks.spin_vectors(
            jax.random.key(0), num_train=num_train, num_test=1, dimension=layers[0], num_classes=layers[-1]
        )
        network = pl.models.feedforward(layers, output_activation="identity")
        self.potential = pl.classification(network.apply, weight_decay=2.0)
        self.temperature, self.batch_size = 2 / num_train, num_train // 10
        starts = jax.vmap(network.init)(jax.random.split(jax.random.key(1), self.num_chains))
        trained = self.library(pl.adam(self.potential, self.train, learning_rate=1e-3), None)
        self.start = trained(starts, 2_000)

    def library(self, sampler: Any, temperature: float | None) -> Callable[[Any, int], Any]:
        """Return a function from starts to the weights after some steps of this package; it continues its chains."""
        run = pl.Run(
            sampler, temperatures=None if temperature is None else [temperature], num_chains=self.num_chains,
            observe_examples=2,
        )  # fmt: skip
        states, position = None, jax.jit(jax.vmap(sampler.position))

        def advance(weights: Any, num_steps: int) -> Any:
            nonlocal states
            if states is None:
                states = run.start(jax.tree.map(lambda w: w[None], weights), 1)
                # Refreshes compile, and compilation is not timed.
                num_steps = max(num_steps, int(np.max(getattr(states, "next_refresh", 0))) + 1)
            first = int(np.max(states.step))
            limits: dict[str, Any] = {"first": first, "stop": first + num_steps, "every": 2**30}
            (record,) = run.records(states, **limits, progress=False)
            states = record.states
            return jax.block_until_ready(position(states))

        return advance

    def blackjax(self, name: str, ratio: float) -> Callable[[Any, int], Any]:
        """Return the same for SGLD or SGHMC of BlackJAX."""

        def gradient(weights: Any, batch: Any) -> Any:
            slope = jax.grad(self.potential.energy)(weights, batch)
            return jax.tree.map(lambda g: -g / self.temperature, slope)

        one = jax.tree.map(lambda w: w[0], self.start)
        keys = jax.random.split(jax.random.key(3), 500)
        gradients = lax.map(lambda k: gradient(one, self.train.draw(k, self.batch_size)), keys, batch_size=50)
        variance = float(np.mean(np.concatenate([np.var(g, axis=0).ravel() for g in jax.tree.leaves(gradients)])))
        if name == "sgld":
            step, size = blackjax.sgld(gradient).step, 2 * ratio / variance
        else:
            step, size = blackjax.sghmc(gradient, 10).step, math.sqrt(ratio / variance) / 10
        count = 0

        @jax.jit
        def moved(train: pl.Dataset, weights: Any, keys: jax.Array, num_steps: int) -> Any:
            def body(index: int, weights: Any, key: jax.Array) -> Any:
                batch_key, noise_key = jax.random.split(jax.random.fold_in(key, index))
                return step(noise_key, weights, train.draw(batch_key, self.batch_size), size)

            return jax.vmap(lambda w, key: lax.fori_loop(0, num_steps, lambda i, w: body(i, w, key), w))(weights, keys)

        def advance(weights: Any, num_steps: int) -> Any:
            nonlocal count
            count += 1
            keys = jax.random.split(jax.random.fold_in(jax.random.key(4), count), self.num_chains)
            return jax.block_until_ready(moved(self.train, weights, keys, num_steps))

        return advance

    def measure(self, label: str, advance: Callable[[Any, int], Any], seconds: float | None = None) -> dict[str, Any]:
        """Run a method for its time; return its averages and its diffusion. `start` becomes its last weights."""
        began, weights = time.perf_counter(), advance(self.start, 4)  # compiles
        num, spent, seconds = 4, 0.0, self.seconds if seconds is None else seconds
        while spent < 0.5 * self.interval:  # finds the number of steps that takes one interval
            started = clock()
            weights = advance(weights, num)
            spent = clock() - started
            num = max(1, round(min(4 * num, num * self.interval / max(spent, 1e-3))))
        used, records, visited = 0.0, [], []
        while used < seconds:
            started = clock()
            weights = advance(weights, num)
            used += clock() - started
            records.append(jax.device_get(_observe(self.potential, weights, self.train)))
            visited.append(np.concatenate([np.reshape(w, (self.num_chains, -1)) for w in jax.tree.leaves(weights)], 1))
        first = len(records) // 5
        row: dict[str, Any] = {"method": label, "num_weights": self.size, "steps": num * len(records), "seconds": used}
        row |= {"steps_per_record": num, "wall_seconds": time.perf_counter() - began}
        moved = [np.mean((b - a) ** 2, axis=1) for a, b in pairwise(visited[first:])]
        row["diffusion"] = float(np.mean(moved)) * len(records) / used
        row["diffusion_error"] = float(np.std(np.mean(moved, axis=0), ddof=1)) / math.sqrt(self.num_chains)
        row["diffusion_error"] *= len(records) / used
        for name in records[0]:
            values = np.stack([record[name] for record in records[first:]], axis=1).astype(np.float64)
            found = average(values)
            row[name] = found._asdict() | {"effective_per_second": found.effective_samples / (0.8 * used)}
        self.start = jax.tree.map(jnp.asarray, weights) if label.startswith("hybrid") else self.start
        return row


@partial(jax.jit, static_argnums=0)
def _observe(potential: Any, weights: Any, train: pl.Dataset) -> dict[str, jax.Array]:
    def one(chain: Any) -> dict[str, jax.Array]:
        squares = sum(jnp.sum(w**2) for w in jax.tree.leaves(chain))
        return {"loss": potential.loss(chain, train.batch), "squared_norm": squares}

    return jax.vmap(one)(weights)


def main() -> None:
    """Measure the methods one after the other; write the rows after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=int, choices=sorted(TASKS), default=364)
    parser.add_argument("--seconds", type=float, default=25, help="time of each method; hybrid Monte Carlo has 2.5 x")
    parser.add_argument("--interval", type=float, default=0.1, help="time between records")
    parser.add_argument("--chains", type=int, default=6)
    parser.add_argument("--methods", type=int, help="only the first methods: hybrid Monte Carlo, balanced, ...")
    options = parser.parse_args()
    task = Comparison(options.size, options.chains, options.seconds, options.interval)
    system, rows = (task.potential, task.train), list[dict[str, Any]]()
    content = {"machine": machine(), "chains": options.chains, "temperature": task.temperature}
    content |= {"batch_size": task.batch_size, "rows": rows}
    exact = pl.hybrid_monte_carlo(*system, num_leapfrog_steps=20, time_step=0.05, warmup_moves=40)
    task.start = task.library(exact, task.temperature)(task.start, 60)

    def methods() -> Any:
        yield "hybrid Monte Carlo", task.library(exact, task.temperature), 2.5 * options.seconds
        for make in (pl.balanced_langevin, pl.pseudo_langevin):
            for ratio in reversed(RATIOS):
                shared: Any = jnp.array(ratio)  # one program for both ratios
                sampler = make(*system, batch_size=task.batch_size, temperature_ratio=shared)
                label = f"{sampler.name.replace('_', ' ')}, ratio {ratio:g}"
                yield label, task.library(sampler, task.temperature), None
        for name in ("sgld", "sghmc"):
            for ratio in RATIOS:
                yield f"BlackJAX {name.upper()}, ratio {ratio:g}", task.blackjax(name, ratio), None

    for label, advance, seconds in islice(methods(), options.methods):
        row = task.measure(label, advance, seconds)
        rows.append(row)
        for name in ("loss", "squared_norm"):
            exact_mean = rows[0][name]
            error = math.hypot(row[name]["standard_error"], exact_mean["standard_error"] if len(rows) > 1 else 0.0)
            row[f"{name}_bias"] = {
                "relative": row[name]["mean"] / exact_mean["mean"] - 1,
                "standard_error": error / exact_mean["mean"],
            }
        print(json.dumps(row), flush=True)
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
