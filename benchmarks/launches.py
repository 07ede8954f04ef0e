"""Launches of GPU kernels in one step, from programs compiled for an H200; no GPU is needed.

    pip install jax-cuda12-plugin jax-cuda12-pjrt nvidia-cuda-nvcc-cu12    # of the version of jax
    python benchmarks/launches.py benchmarks/results/launches.json

A step of a small network is limited by its launches, which take about 2 µs each. XLA compiles the segment of a run for
the description of an H200 below. The innermost loop of the program is two steps.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

import pseudolangevin as pl
from pseudolangevin.apps.bench import Problem
from pseudolangevin.chains import _segment
from pseudolangevin.samplers import SAMPLERS

LIMITS = {
    **{"threads_per_block_limit": 1024, "threads_per_warp": 32, "threads_per_core_limit": 2048, "core_count": 132},
    **{"shared_memory_per_block": 49152, "shared_memory_per_core": 233472, "shared_memory_per_block_optin": 232448},
    **{"block_dim_limit_x": 2147483647, "block_dim_limit_y": 65535, "block_dim_limit_z": 65535, "fpus_per_core": 128},
    **{"registers_per_core_limit": 65536, "registers_per_block_limit": 65536, "l2_cache_size": 52428800},
    **{"memory_bandwidth": 4800000000000, "device_memory_size": 150754820096, "clock_rate_ghz": 1.98},
}
DEVICE = " ".join(f"{name}: {value}" for name, value in LIMITS.items())
TARGET = f"""gpu_device_info {{ {DEVICE} cuda_compute_capability {{ major: 9 }} }} platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 7 }} runtime_version {{ major: 12 minor: 8 }}
device_description_str: "NVIDIA H200" """
LAUNCH = re.compile(r" (fusion|custom-call|copy|sort|reduce|dot)\(")


def launches(name: str, num_chains: int, batch_size: int, num_weights: int = 11_160) -> float:
    """Return the launches of one step of a sampler on the paper's network."""
    problem = Problem(num_weights)
    num = problem.num_examples
    dataset = pl.Dataset(jnp.zeros((num, 100), jnp.int8), jnp.zeros((num,), jnp.int32))
    sampler = SAMPLERS[name](problem.potential, dataset, batch_size=batch_size)
    run = pl.Run(sampler, temperatures=[problem.temperature], num_chains=num_chains)
    states = run.abstract_states(problem.network.init(jax.random.key(0)))
    topology = topologies.get_topology_desc(platform="cuda", target_config=TARGET, topology="1x1x1")
    device = SingleDeviceSharding(topology.devices[0])

    def there(tree: Any) -> Any:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=device), tree)

    traced = _segment.trace(there(sampler), there(states), 1, sampler.steps_per_block)
    text = traced.lower(lowering_platforms=("cuda",)).compile().as_text()
    loops = [part for part in text.split("\n\n") if "kind=kLoop" in part and "ENTRY" not in part]
    body = max(loops, key=lambda part: len(LAUNCH.findall(part)))
    return len(LAUNCH.findall(body)) / body.count("(backward)/pallas_call")  # once in a step


if __name__ == "__main__":
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"  # tuning needs a GPU; launches do not depend on it
    rows = [
        {"sampler": name, "chains": chains, "batch_size": size, "launches": launches(name, chains, size)}
        for name in ("pseudo_langevin", "balanced_langevin")
        for chains in (1, 8)
        for size in (558, 5_580)
    ]
    content = {"compiler": f"XLA for an H200, jax {jax.__version__}", "num_weights": 11_160, "rows": rows}
    Path(sys.argv[1]).write_text(json.dumps(content, indent=1) + "\n")
