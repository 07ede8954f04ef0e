"""Run folders made of random numbers, for the tests of what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

HOSTILE_LAYER = "</script><img src=x onerror=alert(1)>"

CONFIG = """
temperatures = [1e-5, 3e-5]
num_chains = 2
num_steps = 4000
record_every = 50
seed = 7

[task]
kind = "spin_vectors"
num_train = 55800
flip_probability = 0.355

[network]
sizes = [100, 50, 100, 10]

[potential]
weight_decay = 10.0611

[sampler]
name = "pseudo_langevin"
temperature_ratio = 0.01
max_temperature_ratio = 0.02
momentum_retention = 0.994987

[start]
num_steps = 999
"""


def make_trace(temperatures: int = 2, chains: int = 2, draws: int = 80, seed: int = 0) -> xr.Dataset:
    """A trace with every observable; the loss decays, then fluctuates around 0.2 + 0.1·(index of the temperature)."""
    rng = np.random.default_rng(seed)
    values = np.geomspace(1e-5, 3e-5, temperatures) if temperatures > 1 else np.full(temperatures, 1e-5)
    shape = (temperatures, chains, draws)
    noise = lambda scale, *more: scale * rng.normal(size=(*shape, *more))  # noqa: E731
    level = 0.2 + 0.1 * np.arange(temperatures)[:, None, None]
    decay = 0.2 * np.exp(-np.arange(draws) / 5)
    loss = level + decay + noise(0.002)
    temperature = values[:, None, None]
    ratios = 0.01 * np.sort(rng.uniform(0.3, 1.0, (*shape, 3)), axis=-1)
    dims = ("temperature", "chain", "draw")
    variables: dict[str, Any] = {
        "loss": (dims, loss),
        "potential": (dims, loss + 0.1),
        "squared_norm": (dims, 300 + noise(4.0)),
        "error": (dims, 0.1 + noise(0.001)),
        "test_error": (dims, 0.12 + noise(0.002)),
        "kinetic_temperature": (dims, temperature * (1 + noise(0.01))),
        "virial_temperature": (dims, temperature * (1 + noise(0.05))),
        "layer_virial_temperature": ((*dims, "layer"), temperature[..., None] * (1 + noise(0.05, 3))),
        "temperature_ratio": ((*dims, "quantile"), ratios),
        "max_temperature_ratio": (dims, np.full(shape, 0.01)),
        "peak_temperature_ratio": (dims, np.full(shape, 0.05)),
        "gradient_variance": ((*dims, "layer"), np.full((*shape, 3), 1e-5) * np.array([1.0, 2.0, 3.0])),
        "raised_share": (dims, rng.uniform(0, 0.2, shape)),
        "refresh_interval": (dims, np.full(shape, 5000)),
        "status": (dims, np.zeros(shape, np.int32)),
    }
    coords = {
        "temperature": values,
        "chain": np.arange(chains),
        "draw": np.arange(draws),
        "step": ("draw", 50 * (np.arange(draws) + 1)),
        "layer": np.array(["layer1", "layer2", "layer3"], dtype=object),
        "quantile": [0.05, 0.5, 0.95],
    }
    return xr.Dataset(variables, coords)


def stop_chain(trace: xr.Dataset, temperature: int, chain: int, draw: int) -> xr.Dataset:
    """The trace of a run in which a chain turned non-finite at a draw."""
    stopped = trace.copy(deep=True)
    for variable in stopped.data_vars.values():
        if np.issubdtype(variable.dtype, np.floating):
            variable.values[temperature, chain, draw:] = np.nan
    stopped["status"].values[temperature, chain, draw:] = 1
    return stopped


def make_samples(temperatures: int = 2, chains: int = 2, draws: int = 20) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Random walks: the displacement per component after t draws has mean square t."""
    rng = np.random.default_rng(1)
    shapes = {"layer1.kernel": (40, 50), "layer1.bias": (50,)}
    leaves = {name: rng.normal(size=(temperatures, chains, draws, *s)).cumsum(axis=2) for name, s in shapes.items()}
    return 200 * (np.arange(draws) + 1), leaves


def make_info() -> dict[str, Any]:
    return {
        "name": "first",
        "config": {"sampler": {"name": "pseudo_langevin", "max_temperature_ratio": 0.02, "momentum_retention": 0.995}},
        "provenance": {"device": "cpu", "seed": 7, "data_sha256": "abc", "versions": {"jax": "0.10.2"}},
        "metrics": [{"step": 4000, "seconds": 75.0, "steps_per_second": 53.3}],
        "num_weights": 11_160,
    }


def make_certificate() -> dict[str, Any]:
    line = {"name": "kinetic temperature", "temperature": 1e-5, "chain": 0, "value": 1.002, "uncertainty": 0.003}
    return {
        "verdict": "failed",
        "lines": [
            line | {"verdict": "passed", "expected": 1.0, "tolerance": 0.03, "message": ""},
            line | {"name": "R-hat", "verdict": "failed", "value": 1.4, "uncertainty": 0, "message": "run longer"},
            line | {"name": "drift", "verdict": "undecided", "message": "about 100 more records are needed"},
        ],
        "notes": ["the ensemble check needs two temperatures"],
    }


def write_run(path: Path, trace: xr.Dataset | None = None, *, room: int = 0) -> Path:
    """A run folder; `room` draws that are not recorded yet follow the trace."""
    trace = make_trace() if trace is None else trace
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.toml").write_text(CONFIG)
    (path / "provenance.json").write_text(json.dumps(make_info()["provenance"]))
    lines = []
    for draw, step in enumerate(trace["step"].values.tolist()):
        loss = [float(value) for value in trace["loss"].mean("chain").values[:, draw]]
        lines.append(json.dumps({"step": step, "seconds": step / 50, "steps_per_second": 50.0, "loss": loss}))
    (path / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    stored = trace.drop_vars("layer")  # its text has no settled form in Zarr
    if room:
        length = trace.sizes["draw"] + room
        stored = stored.drop_vars("step").reindex(draw=np.arange(length))
        stored["status"] = stored["status"].fillna(-1).astype(np.int32)
        stored = stored.assign_coords(step=("draw", 50 * (np.arange(length) + 1)))
    stored.to_zarr(path / "trace.zarr", mode="w", consolidated=False)
    return path


def write_samples(path: Path) -> None:
    steps, leaves = make_samples()
    variables = {
        name: (("temperature", "chain", "kept_draw", *(f"{name}_{axis}" for axis in range(leaf.ndim - 3))), leaf)
        for name, leaf in leaves.items()
    }
    samples = xr.Dataset(variables, {"step": ("kept_draw", steps)})
    samples.to_zarr(path / "weights.zarr", mode="w", consolidated=False)
