"""Time Adam on a convolutional network alongside PyTorch, on a CPU: 9 098 weights, 10 000 + 10 000 FashionMNIST images.

    python -m benchmarks.cnn benchmarks/results/cnn-cpu.json [--data FOLDER] [--repeats 2] [--threads 2]

Both do the same: 800 steps with mini-batches of 100 images, and ten records of loss and error on both data sets.
Imports and reading the images are left out, compilation is included. Each run is a process of its own, and the two
libraries take turns. CPU seconds depend less on what else the machine does; with `--threads 1` a run has one core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import torch
from torch import nn

import pseudolangevin as pl
from examples.fashion_cnn import DEFAULT_FOLDER, Size, apply, fashion, init

SETTINGS = Size(10_000, 10_000, 1, (8, 16), 100, 8, 1e-3, 0.5, 0.1)
NUM_STEPS, NUM_RECORDS = 800, 10


def timed(call: Callable[[], float]) -> dict[str, float]:
    """Return the seconds and CPU seconds of a call, and its result, the last error on the test images."""
    began = time.perf_counter(), time.process_time()
    error = call()
    return {"seconds": time.perf_counter() - began[0], "cpu_seconds": time.process_time() - began[1], "error": error}


def ours(folder: Path) -> dict[str, dict[str, float]]:
    """Train with this library: the first time, compiled again without records, and with everything compiled."""
    train, test = fashion(folder, SETTINGS)
    weights = init(jax.random.key(0), 28, SETTINGS.channels)
    sampler = pl.adam(pl.classification(apply), train, batch_size=SETTINGS.batch_size, learning_rate=1e-3)

    def run(num_records: int) -> float:
        every = NUM_STEPS // num_records
        result = pl.sample(sampler, weights, num_steps=NUM_STEPS, record_every=every, key=0, test=test)
        return float(result.trace.test_error[0, 0, -1])

    return {
        "first": timed(lambda: run(NUM_RECORDS)),
        "compiled": timed(lambda: run(NUM_RECORDS)),
        "compiled, one record": timed(lambda: run(1)),
    }


def torchs(folder: Path, threads: int) -> dict[str, dict[str, float]]:
    """Train with PyTorch."""
    torch.set_num_threads(threads)
    sets = []
    for dataset in fashion(folder, SETTINGS):
        inputs, targets = (torch.from_numpy(np.array(part)) for part in dataset.batch)
        sets.append((inputs.movedim(-1, 1).contiguous(), targets.long()))
    first, second = SETTINGS.channels
    pad = nn.ZeroPad2d((0, 1, 0, 1))  # "SAME" for an even side and stride two

    def run(num_records: int) -> float:
        layers = [pad, nn.Conv2d(1, first, 3, 2), nn.ReLU(), pad, nn.Conv2d(first, second, 3, 2), nn.ReLU()]
        network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(49 * second, 10))
        optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        images, labels = sets[0]
        wrong = 0
        for step in range(1, NUM_STEPS + 1):
            rows = torch.randint(0, len(images), (SETTINGS.batch_size,))
            loss = nn.functional.cross_entropy(network(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % (NUM_STEPS // num_records) == 0:
                with torch.no_grad():
                    for inputs, targets in sets:
                        wrong, losses = 0, 0.0
                        for part, truth in zip(inputs.split(1000), targets.split(1000), strict=True):
                            scores = network(part)
                            losses += float(nn.functional.cross_entropy(scores, truth, reduction="sum"))
                            wrong += int((scores.argmax(1) != truth).sum())
        return wrong / len(sets[1][1])

    return {"first": timed(lambda: run(NUM_RECORDS)), "compiled, one record": timed(lambda: run(1))}


def in_a_process(which: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the times of one library, measured by another process with as many threads."""
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "JAX_PLATFORMS": "cpu"}
    command = [
        sys.executable,
        "-m",
        "benchmarks.cnn",
        "--only",
        which,
        "--data",
        str(options.data),
        "--threads",
        str(options.threads),
    ]
    if options.threads == 1 and hasattr(os, "sched_getaffinity"):
        command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Compare both libraries; write the times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--data", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["ours", "pytorch"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(ours(options.data) if options.only == "ours" else torchs(options.data, options.threads)))
        return
    runs = {which: [] for which in ("ours", "pytorch")}
    for _ in range(options.repeats):
        for which, found in runs.items():
            found.append(in_a_process(which, options))
            print(which, json.dumps(found[-1]), flush=True)
    medians = {
        which: {
            name: {unit: statistics.median(run[name][unit] for run in found) for unit in ("seconds", "cpu_seconds")}
            for name in found[0]
        }
        for which, found in runs.items()
    }
    ratio = {
        unit: medians["ours"]["first"][unit] / medians["pytorch"]["first"][unit] for unit in ("seconds", "cpu_seconds")
    }
    report = {
        "num_weights": 9_098,
        "threads": options.threads,
        "load_average": os.getloadavg(),
        "num_steps": NUM_STEPS,
        "num_records": NUM_RECORDS,
        "ratio": ratio,
        "medians": medians,
        "runs": runs,
    }
    print(json.dumps(ratio))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
