"""The second size of Fig. 4 where there is no GPU: diffusion of pL and hMC at N = 101 610, T = 1e-6, on a CPU.

    python benchmarks/performance_on_cpu.py runs/performance-cpu

As `pseudolangevin reproduce performance` does it, with batches and moves that two cores can do: S up to 1 % of P, and
hMC of one and three leapfrog steps, with the bound on longer moves. Some ten minutes; files performance-cpu.json and
.png, and the weights where it ended.
"""

import argparse
import time
from pathlib import Path

from pseudolangevin.paper.performance import Case, compare, draw, rows_of
from pseudolangevin.paper.race import Course
from pseudolangevin.paper.results import Reproduction

CASE = Case(
    Course(500, 1e-6, 60, 2, 0, 30, 55_800, observe_examples=20_000),
    tuning_seconds=240,
    hybrid_seconds=120,
    leapfrog_steps=(1, 3),
    time_step=0.03,
    required_gain=1.0,
    batch_shares=(0.001, 0.003, 0.01),
    refresh_every=500,
)


def main() -> None:
    """One case, its rows and its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    began = time.perf_counter()
    outcome = compare(CASE, out, {})
    rows, settings = rows_of(outcome, "paper"), {"cases": [outcome.record]}
    figure, seconds = draw([outcome]), time.perf_counter() - began
    Reproduction("performance-cpu", "paper", rows, figure, settings, CASE.course.seed, seconds).write(out)


if __name__ == "__main__":
    main()
