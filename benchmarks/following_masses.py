"""What masses that follow the weights do to the samples, where everything is known: one weight, w·x against y.

    python benchmarks/following_masses.py benchmarks/results/following-masses.json

The gradient of an example is w·x² − x·y, so 𝒱 and with it the nominal mass grow with w². ⟨w²⟩ for several 𝒯, ρ_reset
and intervals between measurements of 𝒱, beside that of exp(−U/T) and that of M(w)·exp(−U/T), by quadrature.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

import pseudolangevin as pl

TEMPERATURE, NUM_CHAINS, NUM_EXAMPLES, BATCH_SIZE = 0.25, 128, 400, 20
CASES = ((0.003, 1.0, 20), (0.01, 1.0, 20), (0.01, 0.1, 20), (0.01, 0.0, 20), (0.01, 1.0, 2_000))
"""𝒯, ρ_reset, steps between measurements of 𝒱."""


def dataset() -> pl.Dataset:
    """x ~ N(0, 1), y ~ N(0, 1/4)."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(NUM_EXAMPLES, 1)).astype(np.float32)
    return pl.Dataset(inputs, 0.5 * rng.normal(size=NUM_EXAMPLES).astype(np.float32))


def expected(data: pl.Dataset, *, weighted: bool) -> float:
    """⟨w²⟩ of exp(−U/T), or of M(w)·exp(−U/T)."""
    x, y = np.asarray(data.inputs[:, 0], float), np.asarray(data.targets, float)
    w = np.linspace(-4, 4, 2_001)
    energy = 0.5 * np.mean((w[:, None] * x - y) ** 2, axis=1)
    mass = np.var(w[:, None] * x**2 - x * y, axis=1) if weighted else 1.0
    density = mass * np.exp(-(energy - energy.min()) / TEMPERATURE)
    return float(np.sum(w**2 * density) / np.sum(density))


def measured(data: pl.Dataset, ratio: float, reset: float, interval: int) -> tuple[float, float]:
    """⟨w²⟩ and its standard error over the chains."""
    sampler = pl.pseudo_langevin(
        pl.regression(lambda w, x: x @ w["w"], weight_decay=0.0),
        data,
        batch_size=BATCH_SIZE,
        temperature_ratio=ratio,
        reset_probability=reset,
        refresh_every=interval,
        max_refresh_interval=interval,
        warmup_refreshes=0,
        variance_from="examples",
    )
    num_steps = round(160 / ratio)
    result = pl.sample(
        sampler,
        {"w": np.zeros(1, np.float32)},
        temperatures=[TEMPERATURE],
        num_chains=NUM_CHAINS,
        num_steps=num_steps,
        record_every=num_steps // 80,
        key=0,
        progress=False,
    )
    squares = result.trace["squared_norm"].values[0, :, 20:].mean(axis=1)
    return float(squares.mean()), float(squares.std() / NUM_CHAINS**0.5)


def main() -> None:
    """All cases, as multiples of what is right."""
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
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "temperature": TEMPERATURE,
        "num_examples": NUM_EXAMPLES,
        "batch_size": BATCH_SIZE,
        "weighted_by_the_mass_over_right": expected(data, weighted=True) / right,
        "rows": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
