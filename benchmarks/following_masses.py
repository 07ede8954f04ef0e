"""Bias of masses that follow the weights, in a model with one weight that is solved by quadrature: w·x against y.

    python -m benchmarks.following_masses benchmarks/results/following-masses.json

The gradient of an example is w·x² − x·y, so the gradient variance, and with it the mass, grows with w². The script
prints ⟨w²⟩ for several temperature ratios, reset probabilities and intervals between measurements of the variance,
relative to that of exp(−U/T), and the value of M(w)·exp(−U/T).
"""

import argparse
import json
from pathlib import Path

import numpy as np

import pseudolangevin as pl
from pseudolangevin.apps.bench import machine

TEMPERATURE, NUM_EXAMPLES, BATCH_SIZE = 0.25, 400, 20
CASES = ((0.003, 1.0, 20), (0.01, 1.0, 20), (0.01, 0.1, 20), (0.01, 0.0, 20), (0.01, 1.0, 2_000))
"""Temperature ratio, reset probability, steps between measurements of the gradient variance."""


def dataset() -> pl.Dataset:
    """Return examples x ~ N(0, 1), y ~ N(0, 1/4)."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(NUM_EXAMPLES, 1)).astype(np.float32)
    return pl.Dataset(inputs, 0.5 * rng.normal(size=NUM_EXAMPLES).astype(np.float32))


def expected(data: pl.Dataset, *, weighted: bool) -> float:
    """Return ⟨w²⟩ of exp(−U/T), or of M(w)·exp(−U/T)."""
    x, y = np.asarray(data.inputs[:, 0], float), np.asarray(data.targets, float)
    w = np.linspace(-4, 4, 2_001)
    energy = 0.5 * np.mean((w[:, None] * x - y) ** 2, axis=1)
    mass = np.var(w[:, None] * x**2 - x * y, axis=1) if weighted else 1.0
    density = mass * np.exp(-(energy - energy.min()) / TEMPERATURE)
    return float(np.sum(w**2 * density) / np.sum(density))


def measured(
    data: pl.Dataset, ratio: float, reset: float, interval: int, num_chains: int = 128, relaxations: int = 40
) -> tuple[float, float]:
    """Return ⟨w²⟩ and its standard error over chains of some relaxation times, the first quarter left out."""
    sampler = pl.pseudo_langevin(
        pl.regression(lambda w, x: x @ w["w"], weight_decay=0.0),
        data,
        batch_size=BATCH_SIZE,
        temperature_ratio=ratio,
        reset_probability=reset,
        refresh_every=interval,
        max_refresh_interval=interval,
        warmup_refreshes=0,
    )
    num_steps = round(4 * relaxations / ratio)
    result = pl.sample(
        sampler,
        {"w": np.zeros(1, np.float32)},
        temperatures=[TEMPERATURE],
        num_chains=num_chains,
        num_steps=num_steps,
        record_every=num_steps // 80,
        key=0,
        progress=False,
    )
    squares = result.trace["squared_norm"].values[0, :, 20:].mean(axis=1)
    return float(squares.mean()), float(squares.std() / num_chains**0.5)


def main() -> None:
    """Write all cases, relative to the exact value."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    data = dataset()
    right = expected(data, weighted=False)
    rows = []
    for ratio, reset, interval in CASES:
        mean, error = measured(data, ratio, reset, interval)
        rows.append({"temperature_ratio": ratio, "reset_probability": reset, "refresh_every": interval})
        rows[-1] |= {"mean_square_over_right": mean / right, "standard_error": error / right}
        print(json.dumps(rows[-1]), flush=True)
    content = {
        **machine(),
        "temperature": TEMPERATURE,
        "num_examples": NUM_EXAMPLES,
        "batch_size": BATCH_SIZE,
        "weighted_by_the_mass_over_right": expected(data, weighted=True) / right,
        "rows": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
