"""Share of a run's time that recording takes: `pseudolangevin sample` against the same steps without records.

    python benchmarks/recording.py benchmarks/results/recording.json [--set num_steps=60000 …]

Both are timed for a short and a long run, and the difference is taken, so that compilation and the making of the folder
cancel. What remains is the cost of observables, files and checkpoints, per step.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import jax

from pseudolangevin.apps.bench import machine
from pseudolangevin.runs import build, config, session
from pseudolangevin.samplers.base import MAX_STEPS


def seconds_recorded(settings: config.Settings, num_steps: int) -> float:
    """Return the time of a run in a folder."""
    with tempfile.TemporaryDirectory() as parent:
        began = time.perf_counter()
        session.start(settings.model_copy(update={"num_steps": num_steps}), Path(parent) / "run", progress=False)
        return time.perf_counter() - began


def seconds_bare(settings: config.Settings, num_steps: int) -> float:
    """Return the time of the same steps without records."""
    experiment = build.build(settings)
    began = time.perf_counter()
    states = experiment.run.start(experiment.starting_weights(), settings.seed)
    for record in experiment.run.records(states, stop=num_steps, every=MAX_STEPS, progress=False):
        jax.block_until_ready(record.states)
    return time.perf_counter() - began


def main() -> None:
    """Time both, in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--records", type=int, default=10, help="number of records of the long run")
    options = parser.parse_args()
    settings = config.parse('start.kind = "random"', options.overrides)
    short, long = 2 * settings.record_every, (2 + options.records) * settings.record_every
    steps = long - short
    recorded, bare = (
        (-function(settings, short) + function(settings, long)) / steps for function in (seconds_recorded, seconds_bare)
    )
    content = {
        "machine": machine(),
        "record_every": settings.record_every,
        "num_records": options.records,
        "seconds_per_step": bare,
        "seconds_per_step_with_records": recorded,
        "share": recorded / bare - 1,
    }
    print(json.dumps(content, indent=1))
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
