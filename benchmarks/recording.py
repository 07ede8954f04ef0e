"""Share of a run's time that recording takes: `pseudolangevin sample` against the same steps without records.

    python benchmarks/recording.py benchmarks/results/recording.json [--set num_steps=60000 …] [--records 10]

The time between records of a run folder includes observables, files and checkpoints. The first interval compiles, and
is left out.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pseudolangevin.apps.bench import machine
from pseudolangevin.runs import build, config, session, store
from pseudolangevin.samplers.base import MAX_STEPS


def recorded(settings: config.Settings) -> np.ndarray:
    """Return the seconds between the records of a run in a folder."""
    with tempfile.TemporaryDirectory() as parent:
        session.start(settings, Path(parent) / "run", progress=False)
        trace: Any = store.read_trace(Path(parent) / "run")
        return np.diff(trace["seconds"].values)


def bare(settings: config.Settings) -> np.ndarray:
    """Return the seconds of the same intervals without records."""
    experiment = build.build(settings)
    states, every = experiment.run.start(experiment.starting_weights(), settings.seed), settings.record_every
    times = []
    for record in experiment.run.records(
        states, stop=settings.num_steps, every=MAX_STEPS, pause_every=every, progress=False
    ):
        jax.block_until_ready(record.states)
        times.append(time.perf_counter())
    return np.diff(times)


def main() -> None:
    """Time both, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--records", type=int, default=10, help="number of records")
    options = parser.parse_args()
    settings = build.build(config.parse('start.kind = "random"', options.overrides)).settings
    settings = settings.model_copy(update={"num_steps": options.records * settings.record_every})
    with_records, without = float(recorded(settings).mean()), float(bare(settings).mean())
    content = {
        "machine": machine(),
        "record_every": settings.record_every,
        "num_records": options.records,
        "seconds_per_step": without / settings.record_every,
        "seconds_per_record": with_records - without,
        "share": with_records / without - 1,
    }
    print(json.dumps(content, indent=1))
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
