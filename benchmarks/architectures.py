"""Agreement of balanced Langevin with hybrid Monte Carlo beyond feed-forward networks.

    python -m benchmarks.architectures --out FILE --chains 16      # two minutes on a GPU
    python -m benchmarks.architectures --out FILE --chains 2 --length 0.5

A small convolutional network (FashionMNIST) and a small transformer (Equinox, next characters), the models of
`examples/`, are sampled by both methods at a temperature where both reach equilibrium from a trained start. Balanced
Langevin has its default settings. Compared are the means of the loss and of |w|², with standard errors that are
corrected for autocorrelation.
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
from pseudolangevin.adapters.equinox import from_equinox
from pseudolangevin.diagnostics import average

TOLERANCE = 0.01


@dataclass(frozen=True)
class Settings:
    """Settings of both methods; the first quarter of the steps and of the moves is left out."""

    temperature: float
    stiffness: float
    """Weight decay divided by N."""
    num_steps: int
    num_moves: int
    num_chains: int
    training_steps: int
    num_leapfrog_steps: int = 15
    time_step: float = 0.5


def convolutional(settings: Settings, folder: Path) -> tuple[Any, pl.Potential, pl.Dataset]:
    """Return weights, U and data of a network of two convolutions, for images of 7 × 7 pixels."""
    size = replace(fashion_cnn.SMALL, num_train=400, num_test=10, pooling=4, channels=(4, 8))
    weights = fashion_cnn.init(jax.random.key(0), 7, size.channels)
    potential = pl.classification(fashion_cnn.apply, weight_decay=settings.stiffness * num_weights(weights))
    return weights, potential, fashion_cnn.fashion(folder, size)[0]


def transformer(settings: Settings) -> tuple[Any, pl.Potential, pl.Dataset]:
    """Return weights, U and data of a transformer of one block of width 8, for windows of 8 characters."""
    size = replace(character_transformer.SMALL, context=8, stride=5)
    network, train, _ = character_transformer.model_and_data(size)
    model = from_equinox(network)
    potential = pl.next_token(model.apply, weight_decay=settings.stiffness * num_weights(model.weights))
    return model.weights, potential, train


def num_weights(weights: Any) -> int:
    """Return the number of weights."""
    return sum(w.size for w in jax.tree.leaves(weights))


def compared(name: str, weights: Any, potential: pl.Potential, train: pl.Dataset, settings: Settings) -> dict[str, Any]:
    """Return the averages of both methods on one network, and their differences."""
    trainer = pl.adam(potential, train, batch_size=train.num_examples // 2, learning_rate=3e-3)
    start = pl.sample(trainer, weights, num_chains=settings.num_chains, num_steps=settings.training_steps, key=0)
    moves: dict[str, Any] = {"num_leapfrog_steps": settings.num_leapfrog_steps, "time_step": settings.time_step}
    exact = pl.hybrid_monte_carlo(potential, train, **moves, warmup_moves=settings.num_moves // 6)
    samplers = {
        "hybrid_monte_carlo": (exact, settings.num_moves),
        "balanced_langevin": (pl.balanced_langevin(potential, train), settings.num_steps),
    }
    row: dict[str, Any] = {"network": name, "num_weights": num_weights(weights), "num_examples": train.num_examples}
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
        ours, reference = row["balanced_langevin"][quantity], row["hybrid_monte_carlo"][quantity]
        difference = ours["mean"] / reference["mean"] - 1
        error = np.hypot(ours["standard_error"], reference["standard_error"]) / reference["mean"]
        row[f"{quantity}_difference"] = {
            "relative": difference,
            "standard_error": float(error),
            "tolerance": TOLERANCE,
            "passed": bool(abs(difference) <= TOLERANCE),
        }
        print(f"{name}: {quantity} of balanced over hMC − 1 = {difference:+.4f} ± {error:.4f}", flush=True)
    return row


def averages(result: pl.Result) -> dict[str, Any]:
    """Return means over chains and draws after the first quarter."""
    trace = result.trace.isel(temperature=0, draw=slice(result.trace.sizes["draw"] // 4, None))
    found: dict[str, Any] = {}
    for quantity in ("loss", "squared_norm", "error"):
        mean = average(trace[quantity].values)
        found[quantity] = {**mean._asdict(), "effective_samples": round(mean.effective_samples, 1)}
    for name in ("kinetic_temperature", "virial_temperature", "acceptance", "friction_load"):
        if name in trace:
            found[name] = float(trace[name].mean())
    return found


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=fashion_cnn.DEFAULT_FOLDER)
    parser.add_argument("--chains", type=int, default=1, help="few on a CPU, 16 on a GPU")
    parser.add_argument("--length", type=float, default=1.0, help="steps and moves as a share of the standard ones")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    images, text = (
        Settings(
            t, k, int(steps * options.length), int(moves * options.length), options.chains, int(500 * options.length)
        )
        for t, k, steps, moves in [(1e-2, 0.06, 30_000, 600), (3e-3, 0.03, 30_000, 400)]
    )
    rows: list[dict[str, Any]] = []
    report = {
        "rows": rows,
        "data": "FashionMNIST" if options.data.exists() else "bars",
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }
    for name, model, settings in [
        ("convolutional", convolutional(images, options.data), images),
        ("transformer", transformer(text), text),
    ]:
        rows.append(compared(name, *model, settings))
        report["seconds"] = round(time.perf_counter() - began, 1)
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    return report


if __name__ == "__main__":
    main()
