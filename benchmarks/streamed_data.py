"""Data in host memory or on disk against data on the device: time per step of pseudo-Langevin, N = 101 610, S = 5 080.

    python benchmarks/streamed_data.py result.json [--examples 7300000] [--bit-examples 45000000] [--seconds 30]

The data set is more than seven times as large as what is on the device at a time when it is streamed: a few blocks of
mini-batches. It is streamed as int8, and as bits (`pl.Signs`), of which there are more examples.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from pseudolangevin.prefetch import AHEAD, BLOCK_BYTES, MAX_BLOCK_STEPS

import pseudolangevin as pl
from pseudolangevin import chains
from pseudolangevin.provenance import PACKAGES, version_of

STEPS = 1_000


def milliseconds_per_step(dataset: pl.Dataset, hidden_units: int, batch_size: int, seconds: float) -> list[float]:
    """Of every segment of `STEPS` steps after the first, which compiles."""
    network = pl.models.feedforward((100, hidden_units, 100, 10))
    potential = pl.classification(network.apply, weight_decay=10.0611)
    sampler = pl.naive_pseudo_langevin(
        potential, dataset, time_step=1e-4, batch_size=batch_size, subtract_variance=False
    )
    plan = chains.make_plan(sampler, temperatures=[1e-6], num_chains=1, num_steps=100 * STEPS, record_every=100 * STEPS)
    states = plan.init(network.init(jax.random.key(0)), 0)
    times, started = [], time.perf_counter()
    ticks = chains.run(
        sampler, plan.observer, states, dataset, None, stop=100 * STEPS, record_every=100 * STEPS, segment=STEPS
    )
    for record in ticks:
        jax.block_until_ready(record.states)
        times.append(time.perf_counter())
        if len(times) > 8 and times[-1] - started > seconds:
            break
    return [1e3 * float(t) / STEPS for t in np.diff(times)]


def on_the_device(input_bytes: int, batch_size: int) -> dict[str, int]:
    """The most that is there at a time of examples that are streamed."""
    per_step = batch_size * (input_bytes + 4)
    steps = max(1, min(MAX_BLOCK_STEPS, BLOCK_BYTES // per_step))
    return {"most_bytes_on_the_device_when_streamed": 2 * AHEAD * steps * per_step}


def main() -> None:
    """On the device, in host memory, memory-mapped."""
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
    rows = []
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
            times = milliseconds_per_step(make(), options.hidden, options.batch, options.seconds)
            rows.append({"data": name, "milliseconds_per_step": float(np.median(times)), "segments": len(times)})
            if rows[1:]:
                rows[-1] |= on_the_device(bits.shape[1] if "bits" in name else inputs.shape[1], options.batch)
            rows[-1]["over_data_on_the_device"] = rows[-1]["milliseconds_per_step"] / rows[0]["milliseconds_per_step"]
            print(json.dumps(rows[-1]), flush=True)
    content = {
        "device": jax.devices()[0].device_kind,
        "versions": {name: version_of(name) for name in PACKAGES},
        "num_examples": options.examples,
        "bytes_of_the_data": inputs.nbytes + targets.nbytes,
        "num_examples_as_bits": options.bit_examples,
        "bytes_of_the_bits": bits.nbytes + bit_targets.nbytes,
        "rows": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
