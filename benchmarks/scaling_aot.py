"""Memory and messages of large networks on many devices, from programs compiled for abstract shapes.

    python benchmarks/scaling_aot.py --out benchmarks/results/scaling-aot.json

For 1e8, 1e9 and 1e10 weights on 1, 8, 64 and 512 simulated devices, XLA compiles the programs of a pseudo-Langevin
chain for the CPU and reports their memory on each device and the messages of one step. Nothing is run, and no weight is
allocated. The compiler for GPUs fuses in other ways, so its temporary memory differs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin import chains
from pseudolangevin.placement import Placement, sharding

WIDTHS = {"1e8": 10_240, "1e9": 31_744, "1e10": 99_840}
"""Hidden layers of the network 100 → L → L → 10; multiples of 512."""
SPLITS = {1: [(1, 1)], 8: [(1, 8), (8, 1)], 64: [(1, 64), (8, 8)], 512: [(8, 64)]}
"""(data, weights) for every number of devices."""
NUM_EXAMPLES, NUM_INPUTS, NUM_CLASSES, BATCH_SIZE, CHUNK_SIZE = 65_536, 100, 10, 512, 512
COLLECTIVE = re.compile(r"= (.+?) (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(?:-start)?\(")
SHAPE = re.compile(r"(f32|s32|u32|f16|bf16|pred)\[([\d,]*)\]")
BYTES = {"f32": 4, "s32": 4, "u32": 4, "f16": 2, "bf16": 2, "pred": 1}


def main() -> None:
    """Start one process for each number of devices, which is fixed when JAX starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--devices", nargs="+", type=int, choices=SPLITS, default=list(SPLITS))
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        rows = [
            row for size in arguments.sizes for split in SPLITS[arguments.worker] for row in compile_all(size, *split)
        ]
        arguments.out.write_text(json.dumps(rows))
        return
    rows, began = [], time.perf_counter()
    for devices in arguments.devices:
        part = arguments.out.with_suffix(f".{devices}.part")
        command = [sys.executable, __file__, "--out", str(part), "--worker", str(devices), "--sizes", *arguments.sizes]
        flags = f"--xla_force_host_platform_device_count={devices}"
        subprocess.run(command, env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}, check=True)
        rows += json.loads(part.read_text())
        part.unlink()
    report = {
        "rows": rows,
        "network": "100 → L → L → 10, one chain of pseudo_langevin, float32",
        "batch_size": BATCH_SIZE,
        "chunk_size": CHUNK_SIZE,
        "num_examples": NUM_EXAMPLES,
        "compiler": f"XLA for CPU, jax {jax.__version__}, simulated devices",
        "seconds": round(time.perf_counter() - began),
    }
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


def compile_all(size: str, data: int, weights: int) -> list[dict[str, Any]]:
    """Return the memory of every program of a run on each device, in bytes."""
    mesh = Placement(data=data, weights=weights).mesh()

    def placed(tree: Any) -> Any:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding(x.shape, mesh) if mesh else None), tree
        )

    split = NamedSharding(mesh, PartitionSpec("data")) if mesh else None
    examples = (
        jax.ShapeDtypeStruct((NUM_EXAMPLES, NUM_INPUTS), jnp.float32, sharding=split),
        jax.ShapeDtypeStruct((NUM_EXAMPLES,), jnp.int32, sharding=split),
    )
    dataset = pl.Dataset.tree_unflatten(mesh, examples)
    network = pl.models.feedforward((NUM_INPUTS, WIDTHS[size], WIDTHS[size], NUM_CLASSES))
    potential = pl.classification(network.apply, weight_decay=10.0)
    sampler = pl.pseudo_langevin(potential, dataset, batch_size=BATCH_SIZE)
    one = jax.eval_shape(network.init, jax.random.key(0))
    starts = placed(jax.tree.map(lambda w: jax.ShapeDtypeStruct((1, *w.shape), w.dtype), one))
    temperatures = placed(jax.ShapeDtypeStruct((1,), jnp.float32))
    keys = placed(jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1)))
    states = placed(chains._start.eval_shape(sampler, starts, temperatures, keys, False))
    num_weights = trees.num_weights(one)
    programs = {
        "init": lambda: chains._start.lower(sampler, starts, temperatures, keys, False),
        "advance": lambda: chains._segment.lower(sampler, states, 10, 1),
        "refresh": lambda: chains._refresh.lower(sampler, states),
        "observe": lambda: chains._observe.lower(sampler, states, (), [dataset, None], (), CHUNK_SIZE),
    }
    rows = []
    for name, lower in programs.items():
        began = time.perf_counter()
        compiled = lower().compile()
        memory = compiled.memory_analysis()
        total = memory.argument_size_in_bytes + memory.temp_size_in_bytes
        total += memory.output_size_in_bytes - memory.alias_size_in_bytes
        row = {
            "size": size,
            "num_weights": num_weights,
            "devices": data * weights,
            "data": data,
            "weights": weights,
            "program": name,
            "arguments": memory.argument_size_in_bytes,
            "temporary": memory.temp_size_in_bytes,
            "bytes_per_device": total,
            "bytes_per_weight_held": total * weights / num_weights,
            "compile_seconds": round(time.perf_counter() - began, 1),
        }
        if name == "advance":
            row["message_bytes_per_step"] = message_bytes(compiled.as_text())
        rows.append(row)
        print(row, flush=True)
    return rows


def message_bytes(program: str) -> int:
    """Return the bytes of all results of collective operations; in `advance` all are inside its loop over steps."""
    total = 0
    for result, _ in COLLECTIVE.findall(program):
        for kind, shape in SHAPE.findall(result):
            total += BYTES[kind] * math.prod(int(length) for length in shape.split(",") if length)
    return total


if __name__ == "__main__":
    main()
