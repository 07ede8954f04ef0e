"""Time per step, memory and cost per chain of this package's samplers on this machine.

The problem is the paper's at any size: spin vectors, the network 100, L1, 100, 10 with N weights, P = 5N examples and
mini-batches of 1 % of them. Other libraries, growth with N and the cost of recording are measured by scripts in
`benchmarks/`.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

import jax
import numpy as np

from .._checks import check_choice, check_integer, check_positive
from ..chains import Run
from ..data import Dataset
from ..models import FeedForward, feedforward
from ..potential import Potential, classification
from ..samplers.adam import Adam
from ..samplers.base import HEALTHY, Sampler
from ..samplers.hybrid import HybridMonteCarlo, MinibatchHybridMonteCarlo
from ..samplers.langevin import FullBatchLangevin, NaivePseudoLangevin, PseudoLangevin

MOVE = {"num_leapfrog_steps": 10, "time_step": 1e-4}
SAMPLERS: dict[str, tuple[type, dict[str, Any], int]] = {
    # Masses at this ratio are so heavy that random starts stay finite; the time of a step does not depend on it.
    "pseudo_langevin": (PseudoLangevin, {"temperature_ratio": 1e-6, "warmup_refreshes": 0}, 1),
    "naive_pseudo_langevin": (NaivePseudoLangevin, {"time_step": 1e-3}, 1),
    "full_batch_langevin": (FullBatchLangevin, {"time_step": 1e-3}, 1),
    "hybrid_monte_carlo": (HybridMonteCarlo, MOVE, 12),
    "minibatch_hybrid_monte_carlo": (MinibatchHybridMonteCarlo, MOVE, 12),
    "adam": (Adam, {}, 1),
}
"""Class, settings and gradients per step of the samplers that are timed."""


@dataclass(frozen=True)
class Problem:
    """Spin vectors and the network of the paper with N weights."""

    num_weights: int

    def __post_init__(self) -> None:
        """Reject a number of weights that the network cannot have."""
        hidden = max(1, round((self.num_weights - 1_110) / 201))
        if self.num_weights != 201 * hidden + 1_110:
            raise ValueError(
                f"size {self.num_weights}: the network 100, L1, 100, 10 has 201*L1 + 1110 weights; "
                f"the nearest is {201 * hidden + 1_110}"
            )

    @property
    def num_examples(self) -> int:
        """Number of examples P."""
        return 5 * self.num_weights

    @property
    def batch_size(self) -> int:
        """Examples per mini-batch, 1 % of all."""
        return round(0.01 * self.num_examples)

    @property
    def temperature(self) -> float:
        """Temperature a little above the transition at 1/P: 3e-5 at N = 11 160."""
        return 1.674 / self.num_examples

    @property
    def gradient_flops(self) -> float:
        """Arithmetic of one example's gradient: three times the forward products, without the one by the input."""
        hidden = (self.num_weights - 1_110) // 201
        return 3 * 2.0 * (200 * hidden + 1_000) - 200 * hidden

    def network(self) -> FeedForward:
        """Return the network, with ReLU on the logits."""
        return feedforward((100, (self.num_weights - 1_110) // 201, 100, 10), output_activation="relu")

    def potential(self) -> Potential:
        """Return cross-entropy with the paper's regulariser."""
        return classification(self.network().apply, weight_decay=10.0611)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return noisy spin vectors, int8, and labels, made on the host in parts, so that they fit where others do not.

        Beyond five million examples the same ones are repeated.
        """
        generator, num = np.random.default_rng(0), min(self.num_examples, 5_030_550)
        labels = generator.integers(10, size=num, dtype=np.int32)
        inputs = np.where(generator.random((10, 100)) < 0.5, -1, 1).astype(np.int8)[labels]
        for part in np.array_split(inputs, max(1, num // 100_000)):  # views
            part[generator.random(part.shape, np.float32) < 0.355] *= -1
        repeated = np.arange(self.num_examples) % num
        return (inputs, labels) if num == self.num_examples else (inputs[repeated], labels[repeated])


@dataclass
class Benchmark:
    """Timings of samplers on one machine; printable."""

    machine: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    """Measurements that were not made, with the reason."""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """Return a table."""
        table = [["N", "sampler", "chains", "ms/step", "with variance", "ms/chain/step", "TFLOP/s", "compile s", "MiB"]]
        for row in self.rows:
            step, total = row["seconds_per_step"], row["seconds_per_step_with_refresh"]
            numbers = [1e3 * step, 1e3 * total, 1e3 * total / row["num_chains"], row["flops_per_second"] / 1e12]
            numbers += [row["compile_seconds"], row["peak_bytes"] / 2**20]
            names = [str(row["num_weights"]), row["sampler"], str(row["num_chains"])]
            table.append([*names, *(f"{number:.3g}" for number in numbers)])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in table]
        lines += [f"skipped: {', '.join(f'{k} {v}' for k, v in row.items())}" for row in self.skipped]
        return "\n".join([*lines, f"{self.machine['device']}, jax {self.machine['jax']}; {self.seconds:.0f} s"])


def bench(
    sizes: Sequence[int] = (11_160, 101_610, 1_006_110),
    chains: Sequence[int] = (1, 8, 64),
    samplers: Sequence[str] | None = None,
    seconds: float = 600.0,
    report: Callable[[str], None] | None = None,
) -> Benchmark:
    """Time samplers on the paper's problem at several sizes and numbers of chains, until the time is up.

    Args:
        sizes: numbers of weights, 201*L1 + 1110 each.
        chains: numbers of chains.
        samplers: names of samplers; default: all.
        seconds: time limit, compilation included; a program that is being compiled then is finished.
        report: called with a line of text for every result, for example `print`.

    Example:
        >>> print(bench(sizes=[11_160], chains=[1], samplers=["pseudo_langevin"], seconds=60))  # doctest: +SKIP
    """
    for name in samplers or ():
        check_choice("sampler", name, SAMPLERS)
    for count in chains:
        check_integer("chains", count, minimum=1)
    check_positive("seconds", seconds)
    problems, names = [Problem(size) for size in sizes], samplers or list(SAMPLERS)
    began, found = time.perf_counter(), Benchmark(machine())
    cases = [(problem, name, count) for problem in problems for name in names for count in sorted(chains)]
    dataset, made_for = None, None
    for index, (problem, name, count) in enumerate(cases):
        case = {"num_weights": problem.num_weights, "sampler": name, "num_chains": count}
        left = seconds - (time.perf_counter() - began)
        if left <= 0:
            found.skipped.append(case | {"reason": "no time was left"})
            continue
        if made_for is not problem:
            dataset, made_for = Dataset(*problem.arrays()), problem
        try:
            row = case | time_sampler(problem, dataset, name, count, max_seconds=2 * left / (len(cases) - index))
            found.rows.append(row)
        except (RuntimeError, MemoryError) as error:  # JAX raises a RuntimeError where memory does not suffice
            found.skipped.append(case | {"reason": str(error).split("\n")[0][:200]})
    found.seconds = time.perf_counter() - began
    return found
