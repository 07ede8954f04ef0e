"""Agreement of pseudo-Langevin with hybrid Monte Carlo beyond feed-forward networks.

    python -m benchmarks.architectures --out benchmarks/results/architectures-cpu.json

A small convolutional network (Flax, FashionMNIST) and a small transformer (Equinox, next characters), the models of
`examples/`, are sampled by both methods at a temperature where both reach equilibrium from a trained start. Compared
are the means of the loss and of |w|², with standard errors that are corrected for autocorrelation.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import pseudolangevin as pl
from examples import character_transformer, fashion_cnn
from pseudolangevin.adapters import Model
from pseudolangevin.adapters.equinox import from_equinox
from pseudolangevin.adapters.flax import from_flax
from pseudolangevin.diagnostics import average

TOLERANCE = 0.02


@dataclass(frozen=True)
class Settings:
    """Settings of both methods; the first quarter of the steps of pL and moves of hMC is left out."""

    temperature: float
    stiffness: float
    """Weight decay divided by N."""
    num_steps: int
    num_moves: int
    num_chains: int
    temperature_ratio: float = 0.002
    mass_floor: float = 0.1
    batch_size: int = 300
    num_leapfrog_steps: int = 15
    time_step: float = 0.5


def convolutional(settings: Settings, folder: Path) -> tuple[Model, pl.Potential, pl.Dataset]:
    """Return a network of two convolutions, for images of 7 × 7 pixels."""
    size = replace(fashion_cnn.SMALL, num_train=400, num_test=10, pooling=4, channels=(4, 8))
    network, train, _ = fashion_cnn.model_and_data(size, folder)
    model = from_flax(network)
    return model, pl.classification(model.apply, weight_decay=settings.stiffness * num_weights(model)), train


def transformer(settings: Settings) -> tuple[Model, pl.Potential, pl.Dataset]:
    """Return a transformer of one block of width 8, for windows of 8 characters."""
    size = replace(character_transformer.SMALL, context=8, stride=5)
    network, train, _ = character_transformer.model_and_data(size)
    model = from_equinox(network)
    return model, pl.next_token(model.apply, weight_decay=settings.stiffness * num_weights(model)), train


def num_weights(model: Model) -> int:
    """Return the number of weights."""
    return sum(w.size for w in jax.tree.leaves(model.weights))


def compared(name: str, model: Model, potential: pl.Potential, train: pl.Dataset, settings: Settings) -> dict[str, Any]:
    """Return the averages of both methods on one network, and their differences."""
    trainer = pl.adam(potential, train, batch_size=settings.batch_size, learning_rate=3e-3)
    start = pl.sample(trainer, model.weights, num_chains=settings.num_chains, num_steps=500, key=0)
    samplers = {
        "pseudo_langevin": (
            pl.pseudo_langevin(
                potential,
                train,
                batch_size=settings.batch_size,
                temperature_ratio=settings.temperature_ratio,
                mass_floor=settings.mass_floor,
                variance_max_batches=200,
            ),
            settings.num_steps,
        ),
        "hybrid_monte_carlo": (
            pl.hybrid_monte_carlo(
                potential,
                train,
                num_leapfrog_steps=settings.num_leapfrog_steps,
                time_step=settings.time_step,
                warmup_moves=settings.num_moves // 6,
            ),
            settings.num_moves,
        ),
    }
    row: dict[str, Any] = {"network": name, "num_weights": num_weights(model), "num_examples": train.num_examples}
    row["settings"] = asdict(settings)
    for method, (sampler, length) in samplers.items():
        began = time.perf_counter()
        result = pl.sample(
            sampler,
            start.weights,
            temperatures=[settings.temperature],
            num_chains=settings.num_chains,
            num_steps=length,
            record_every=max(1, length // 200),
            key=1,
        )
        row[method] = averages(result) | {"seconds": round(time.perf_counter() - began, 1)}
        print(name, method, row[method], flush=True)
    for quantity in ("loss", "squared_norm"):
        ours, reference = row["pseudo_langevin"][quantity], row["hybrid_monte_carlo"][quantity]
        difference = ours["mean"] / reference["mean"] - 1
        error = np.hypot(ours["standard_error"], reference["standard_error"]) / reference["mean"]
        row[f"{quantity}_difference"] = {
            "relative": difference,
            "standard_error": float(error),
            "tolerance": TOLERANCE,
            "passed": bool(abs(difference) <= TOLERANCE),
        }
        print(f"{name}: {quantity} of pL over hMC − 1 = {difference:+.4f} ± {error:.4f}", flush=True)
    return row


def averages(result: pl.Result) -> dict[str, Any]:
    """Return means over chains and draws after the first quarter."""
    trace = result.trace.isel(temperature=0, draw=slice(result.trace.sizes["draw"] // 4, None))
    found: dict[str, Any] = {}
    for quantity in ("loss", "squared_norm", "error"):
        mean = average(trace[quantity].values)
        found[quantity] = {**mean._asdict(), "effective_samples": round(mean.effective_samples, 1)}
    for name in ("kinetic_temperature", "virial_temperature", "acceptance"):
        if name in trace:
            found[name] = float(trace[name].mean())
    return found


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=fashion_cnn.DEFAULT_FOLDER)
    parser.add_argument("--chains", type=int, default=1, help="one is best on a CPU; 32 on a GPU")
    parser.add_argument("--length", type=float, default=1.0, help="steps and moves as a share of the standard ones")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    images, text = (
        Settings(t, k, int(steps * options.length), int(moves * options.length), options.chains)
        for t, k, steps, moves in [(1e-2, 0.06, 40_000, 800), (3e-3, 0.03, 10_000, 300)]
    )
    rows = [
        compared("convolutional", *convolutional(images, options.data), images),
        compared("transformer", *transformer(text), text),
    ]
    report = {
        "rows": rows,
        "data": "FashionMNIST" if options.data.exists() else "bars",
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "seconds": round(time.perf_counter() - began, 1),
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    return report


if __name__ == "__main__":
    main()
