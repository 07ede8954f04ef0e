"""Data in host memory or on disk against data on the device: time per step, N = 101 610, mini-batches of 5 080.

    python benchmarks/streamed_data.py result.json [--examples 7300000] [--bit-examples 45000000] [--seconds 5]

The data set is more than seven times as large as what a streamed run has on the device at a time, a few blocks of
mini-batches. It is streamed as int8, and as bits (`pl.Signs`) with more examples.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import pseudolangevin as pl
from pseudolangevin.apps.bench import machine
from pseudolangevin.data.dataset import BLOCKS_AHEAD
from pseudolangevin.samplers.base import MAX_STEPS

STEPS = 1_000


def milliseconds_per_step(dataset: pl.Dataset, hidden_units: int, batch_size: int, seconds: float) -> list[float]:
    """Return the time per step of every thousand steps after the first, which compile."""
    network = pl.models.feedforward((100, hidden_units, 100, 10))
    potential = pl.classification(network.apply, weight_decay=10.0611)
    settings = {"time_step": 1e-4, "batch_size": batch_size, "subtract_variance": False}
    run = pl.Run(pl.naive_pseudo_langevin(potential, dataset, **settings), temperatures=[1e-6])
    states = run.start(network.init(jax.random.key(0)), 0)
    times, began = [], time.perf_counter()
    for record in run.records(states, stop=100 * STEPS, every=MAX_STEPS, pause_every=STEPS, progress=False):
        jax.block_until_ready(record.states)
        times.append(time.perf_counter())
        if len(times) > 8 and times[-1] - began > seconds:
            break
    return [1e3 * float(t) / STEPS for t in np.diff(times)]


def main() -> None:
    """Time data on the device, in host memory and in memory-mapped files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--examples", type=int, default=7_300_000)
    parser.add_argument("--bit-examples", type=int, default=45_000_000)
    parser.add_argument("--hidden", type=int, default=500)
    parser.add_argument("--batch", type=int, default=5_080)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 2, (options.examples, 100), np.int8) * np.int8(2) - np.int8(1)
    targets = rng.integers(0, 10, options.examples, np.int32)
    bits = rng.integers(0, 256, (options.bit_examples, 13), np.uint8)
    bit_targets = rng.integers(0, 10, options.bit_examples, np.int32)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/inputs.npy", inputs)
        np.save(f"{folder}/bits.npy", bits)

        def mapped(name: str) -> np.ndarray:
            return np.load(f"{folder}/{name}.npy", mmap_mode="r")

        datasets = {
            "on the device": lambda: pl.Dataset(inputs, targets),
            "in host memory": lambda: pl.StreamedDataset(inputs, targets),
            "memory-mapped file": lambda: pl.StreamedDataset(mapped("inputs"), targets),
            "bits in host memory": lambda: pl.StreamedDataset(pl.Signs(bits, 100), bit_targets),
            "memory-mapped file of bits": lambda: pl.StreamedDataset(pl.Signs(mapped("bits"), 100), bit_targets),
        }
        for name, make in datasets.items():
            dataset = make()
            times = milliseconds_per_step(dataset, options.hidden, options.batch, options.seconds)
            row: dict[str, Any] = {
                "data": name,
                "milliseconds_per_step": float(np.median(times)),
                "segments": len(times),
            }
            if isinstance(dataset, pl.StreamedDataset):
                steps = dataset.block_length(1, options.batch, STEPS)
                most = 2 * BLOCKS_AHEAD * steps * options.batch * dataset.bytes_per_example
                row["most_bytes_on_the_device_when_streamed"] = most
            rows.append(row)
            row["over_data_on_the_device"] = row["milliseconds_per_step"] / rows[0]["milliseconds_per_step"]
            print(json.dumps(row), flush=True)
    sizes = {"num_examples": options.examples, "bytes_of_the_data": inputs.nbytes + targets.nbytes}
    sizes |= {"num_examples_as_bits": options.bit_examples, "bytes_of_the_bits": bits.nbytes + bit_targets.nbytes}
    options.out.write_text(json.dumps({**machine(), **sizes, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
