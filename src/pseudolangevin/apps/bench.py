"""Time per step, memory and cost per chain of this package's samplers on this machine.

Other libraries, growth with N and the cost of recording are measured by scripts in `benchmarks/`.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import jax
import numpy as np

from .._trees import check_choice, check_integer, check_positive
from ..chains import Run, _segment
from ..data import Dataset
from ..models import feedforward
from ..potential import classification
from ..samplers import SAMPLERS
from ..samplers.base import MAX_STEPS

SETTINGS: dict[str, dict[str, Any]] = {
    # Masses at this ratio are so heavy that random starts stay finite; the time of a step does not depend on it.
    "pseudo_langevin": {"temperature_ratio": 1e-6, "refresh_every": 50_000, "warmup_refreshes": 0},
    "balanced_langevin": {"temperature_ratio": 1e-6, "refresh_every": 50_000},
    "naive_pseudo_langevin": {"time_step": 1e-3, "refresh_every": 50_000},
    "full_batch_langevin": {"time_step": 1e-3},
    "hybrid_monte_carlo": {"num_leapfrog_steps": 10, "time_step": 1e-4},
    "minibatch_hybrid_monte_carlo": {"num_leapfrog_steps": 10, "time_step": 1e-4},
    "adam": {},
}
"""Settings of the samplers that are timed."""


class Problem:
    """Spin vectors and the paper's network 100, L1, 100, 10 with N weights; P = 5N, mini-batches of 1 % of P."""

    def __init__(self, num_weights: int) -> None:
        """Reject a number of weights that the network cannot have."""
        hidden = max(1, round((num_weights - 1_110) / 201))
        nearest = 201 * hidden + 1_110
        if num_weights != nearest:
            raise ValueError(f"size {num_weights}: the network has 201*L1 + 1110 weights; the nearest is {nearest}")
        self.num_weights, self.num_examples = num_weights, 5 * num_weights
        self.batch_size = round(0.01 * self.num_examples)
        self.temperature = 1.674 / self.num_examples  # a little above the transition: 3e-5 at N = 11 160
        self.network = feedforward((100, hidden, 100, 10), output_activation="relu")
        self.potential = classification(self.network.apply, weight_decay=10.0611)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return noisy spin vectors (int8) and labels, made on the host to leave the device's memory to the samplers.

        Beyond five million examples the same ones are repeated.
        """
        generator, num = np.random.default_rng(0), min(self.num_examples, 5_030_550)
        labels = generator.integers(10, size=num, dtype=np.int32)
        inputs = np.where(generator.random((10, 100)) < 0.5, -1, 1).astype(np.int8)[labels]
        for part in np.array_split(inputs, max(1, num // 100_000)):  # views
            part[generator.random(part.shape, np.float32) < 0.355] *= -1
        repeated = np.arange(self.num_examples) % num
        return (inputs, labels) if num == self.num_examples else (inputs[repeated], labels[repeated])


def bench(
    sizes: Sequence[int] = (11_160, 101_610, 1_006_110),
    chains: Sequence[int] = (1, 8, 64),
    samplers: Sequence[str] | None = None,
    seconds: float = 600.0,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Time samplers on the paper's problem at several sizes and numbers of chains, until the time is up.

    A step moves every chain once. "With refresh" includes a measurement of the gradient variance every 5000 steps.
    Memory is that of the compiled steps with their arguments, the data included, by the compiler's account. The result
    has `machine`, the `rows`, and under `skipped` the measurements that were not made, with the reason.

    Args:
        sizes: numbers of weights, 201*L1 + 1110 each.
        chains: numbers of chains.
        samplers: names of samplers; default: all.
        seconds: time limit, compilation included; a measurement that has begun is finished.
        report: called with a line of text for every result, for example `print`.

    Example:
        >>> bench(sizes=[11_160], chains=[1], samplers=["pseudo_langevin"], seconds=60)["rows"]  # doctest: +SKIP
    """
    for name in samplers or ():
        check_choice("samplers", name, SETTINGS)
    for count in chains:
        check_integer("chains", count, minimum=1)
    check_positive("seconds", seconds)
    began, dataset = time.perf_counter(), None
    rows, skipped = list[dict[str, Any]](), list[dict[str, Any]]()
    cases = [(Problem(n), name, count) for n in sizes for count in sorted(chains) for name in samplers or SETTINGS]
    for problem, name, count in cases:
        case = {"num_weights": problem.num_weights, "sampler": name, "num_chains": count}
        if time.perf_counter() - began > seconds:
            skipped.append(case | {"reason": "no time was left"})
            continue
        if dataset is None or dataset.num_examples != problem.num_examples:
            dataset = Dataset(*problem.arrays())
        try:
            rows.append(row := case | time_sampler(problem, dataset, name, count))
        except (RuntimeError, MemoryError) as error:  # JAX raises a RuntimeError where memory does not suffice
            skipped.append(row := case | {"reason": str(error).split("\n")[0][:200]})
        report(json.dumps(row))
    return {"machine": machine(), "rows": rows, "skipped": skipped}


def time_sampler(
    problem: Problem, dataset: Dataset, name: str, num_chains: int = 1, *, seconds: float = 2.0, refresh: bool = True
) -> dict[str, Any]:
    """Return the time per step of one sampler, repeated for some seconds, and the memory of the compiled steps."""
    make: Any = SAMPLERS[name]
    size = {"batch_size": problem.batch_size} if "batch_size" in {field.name for field in fields(make)} else {}
    sampler = make(problem.potential, dataset, **SETTINGS[name], **size)
    temperatures = [problem.temperature] if sampler.uses_temperature else None
    run = Run(sampler, temperatures=temperatures, num_chains=num_chains)
    weights, block, began = problem.network.init(jax.random.key(0)), sampler.block, time.perf_counter()
    program = _segment.lower(sampler, run.abstract_states(weights), 1, block).compile()
    compile_seconds = time.perf_counter() - began
    memory: Any = program.memory_analysis()
    arguments = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    states = run.start(weights, 0)

    def timed(num_steps: int) -> float:
        nonlocal states
        started, first = time.perf_counter(), int(states.step[0])
        (record,) = run.records(states, first=first, stop=first + num_steps, every=MAX_STEPS, progress=False)
        states = jax.block_until_ready(record.states)
        return (time.perf_counter() - started) / num_steps

    timed(block)  # compiles
    # Blocks of a quarter of a second, so that starting them and waiting for them is below one percent.
    steps = block * max(1, min(2_000, int(0.25 / timed(block))) // block)
    times, began = [timed(steps)], time.perf_counter()
    while time.perf_counter() - began < seconds and len(times) < 40:
        times.append(timed(steps))
    refresh_seconds = 0.0
    again = jax.jit(jax.vmap(sampler.refresh))
    for _ in range(2 if refresh and sampler.refreshes else 0):  # the first time compiles
        began = time.perf_counter()
        jax.block_until_ready(again(states))
        refresh_seconds = time.perf_counter() - began
    step = statistics.median(times)
    return {
        "batch_size": sampler.batch_size,
        "seconds_per_step": step,
        "refresh_seconds": refresh_seconds,
        "seconds_per_step_with_refresh": step + refresh_seconds / 5_000,
        "compile_seconds": compile_seconds,
        "program_bytes": arguments + memory.temp_size_in_bytes,
    }


def machine() -> dict[str, str]:
    """Return the device and the versions that timings belong to."""
    device = jax.devices()[0]
    cores = f"{os.cpu_count()} cores" if device.platform == "cpu" else device.platform
    return {"device": f"{device.device_kind} ({cores})", "jax": f"jax {jax.__version__}"}
