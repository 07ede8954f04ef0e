"""Time per step and memory of one pseudo-Langevin chain as the number of weights grows, until memory or time ends.

    python benchmarks/growth.py benchmarks/results/growth.json [--largest 1e8] [--seconds 120]

P = 5N examples, mini-batches of 1 % of them, without measurements of the gradient variance. Also writes a figure.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import pseudolangevin as pl
from pseudolangevin.apps.bench import Problem, machine, time_sampler


def draw(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Draw the time per step against N, with a line that grows as N·S."""
    weights, seconds = np.array([[r["num_weights"], r["seconds_per_step"]] for r in rows]).T
    work = weights * np.array([r["batch_size"] for r in rows])
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.loglog(weights, 1e3 * seconds, "o-", label="measured, one chain")
    axes.loglog(weights, 1e3 * seconds[0] * work / work[0], "--", color="grey", label="proportional to N·S")
    axes.set(xlabel="number of weights N (S = 1 % of P = 5N)", ylabel="ms per step", title=title)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Sizes from 1e5 up, three per decade."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--largest", type=float, default=1e8)
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    began, rows, ended = time.perf_counter(), list[dict[str, Any]](), "the range"
    for size in 10 ** np.arange(5, np.log10(options.largest) + 1e-9, 1 / 3):
        problem = Problem(201 * round((size - 1_110) / 201) + 1_110)
        if time.perf_counter() - began > options.seconds:
            ended = "time"
            break
        try:
            row = time_sampler(problem, pl.Dataset(*problem.arrays()), "pseudo_langevin", refresh=False)
        except (RuntimeError, MemoryError) as error:
            ended = str(error).split("\n")[0][:200]
            break
        rows.append({"num_weights": problem.num_weights, **row})
        print(json.dumps(rows[-1]), flush=True)
    work, seconds = np.array([[r["num_weights"] * r["batch_size"], r["seconds_per_step"]] for r in rows]).T
    exponents = np.diff(np.log(seconds)) / np.diff(np.log(work))
    scaling = {"rows": rows, "largest_num_weights": rows[-1]["num_weights"], "largest_is_limited_by": ended}
    scaling |= (
        {"exponent": float(np.log(seconds[-1] / seconds[0]) / np.log(work[-1] / work[0]))} if len(rows) > 1 else {}
    )
    scaling |= {"steepest_exponent": float(exponents.max())} if len(rows) > 1 else {}
    options.out.write_text(json.dumps({"machine": machine(), "scaling": scaling}, indent=1) + "\n")
    draw(rows, machine()["device"], options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
