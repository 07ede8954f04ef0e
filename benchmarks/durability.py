"""Share of a run's time that making its files durable takes, at the default intervals.

    python -m benchmarks.durability --seconds 180 --out benchmarks/results/durability-cpu.json

Every call of fsync is timed, in a run of the default configuration and in one of a tiny network, whose steps take
microseconds. The share is compared with the run's time, from its first record on, so that compilation is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from pseudolangevin.runs import config, session, store
from tests.runs.small_runs import SMALL_RUN

CASES = {
    "default configuration, N = 11160": lambda: config.parse(
        'num_steps = 100_000_000\nrecord_every = 1_500\nstart.kind = "random"\n'
    ),
    "tiny network, N = 21": lambda: config.parse(
        SMALL_RUN.replace("checkpoint_every = 30", ""), ("num_steps=100000000", "record_every=2500")
    ),
}


def measure(settings: config.Settings, seconds: float) -> dict[str, Any]:
    """Run a configuration for some time, and return what its synchronisations took."""
    fsync, calls = os.fsync, list[tuple[float, float]]()

    def timed(descriptor: Any) -> None:
        began = time.monotonic()
        fsync(descriptor)
        calls.append((began, time.monotonic() - began))

    first: list[float] = []

    def on_record(record: Any) -> None:
        first.append(time.monotonic())
        if first[-1] - first[0] > seconds:
            os.kill(os.getpid(), signal.SIGTERM)  # a request to stop

    os.fsync = timed
    try:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            session.start(settings, Path(folder, "run"), progress=False, on_record=on_record)
            ended, trace = time.monotonic(), store.read_trace(Path(folder, "run"))
    finally:
        os.fsync = fsync
    took = [duration for began, duration in calls if began > first[0]]
    total = ended - first[0]
    found = {"seconds": round(total, 1), "records": trace.sizes["draw"] if trace is not None else 0}
    found |= {"num_fsync": len(took), "fsync_seconds": sum(took), "longest_fsync_seconds": max(took)}
    return found | {"share": sum(took) / total}


def main() -> None:
    """Measure all cases, print them, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="time of each case")
    parser.add_argument("--case", type=int, help="number of one case, from 0; default: all")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cases = [*CASES.items()] if options.case is None else [[*CASES.items()][options.case]]
    found: dict[str, Any] = {name: measure(settings(), options.seconds) for name, settings in cases}
    found |= {"platform": platform.platform(), "load_average": os.getloadavg()}
    print(json.dumps(found, indent=2))
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
