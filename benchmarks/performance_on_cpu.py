"""The second size of Fig. 4 on a CPU: diffusion of pseudo-Langevin and hybrid Monte Carlo at N = 101 610, T = 1e-6.

    python benchmarks/performance_on_cpu.py runs/performance-cpu

As `pseudolangevin reproduce performance`, with mini-batches up to 1 % of the data and short moves, in about ten minutes
on two cores. Writes performance-cpu.json and performance-cpu.png.
"""

import argparse
import time
from pathlib import Path

from pseudolangevin.paper.performance import Settings, TunedCase, reproduce
from pseudolangevin.paper.results import Reproduction

TUNING = {"seconds": 240, "batch_sizes": (508, 1_524, 5_080), "observe_examples": 20_000}
CASE = TunedCase(500, 1e-6, 2_000, 30, 30, 55_800, leapfrog_steps=(1, 3), tuning=TUNING, refresh_every=500)


def main() -> None:
    """Measure one case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    for stage in reproduce(Settings((CASE,)), out):
        result = Reproduction("performance-cpu", "paper", *stage, CASE.seed, time.perf_counter() - began)
        result.write(out)
    print(result)


if __name__ == "__main__":
    main()
