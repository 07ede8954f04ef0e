"""What correlated mini-batch noise does to the sampled distribution, measured and predicted.

Pseudo-Langevin subtracts the variance of every component of the mini-batch noise, not the correlations between
components. On an isotropic quadratic potential the consequence is exact: along a direction in which the correlation
matrix of the noise has the eigenvalue ℓ, the temperature is

    T·(1 + (1 + c1²)·𝒯·(ℓ − 1)),

hotter where ℓ > 1, colder where ℓ < 1, right on average, and right everywhere for 𝒯 → 0. This script measures it with
the real sampler and draws docs/bias-law.png.

    python examples/bias_law.py --out docs/bias-law.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

import pseudolangevin as pl

DIMENSION = 8
BATCH_SIZE = 8
TEMPERATURE = 0.5
STIFFNESS = 0.05
"""Soft, so that the error of the finite time step, (ωδt)²/4, is small and known."""
MOMENTUM_RETENTION = 0.9
CORRELATION = 0.5
EIGENVALUES = {1 + (DIMENSION - 1) * CORRELATION: "collective direction", 1 - CORRELATION: "all other directions"}


def noisy_quadratic() -> tuple[pl.Potential, pl.Dataset]:
    """½k|w|² plus b_μ·w, the b of unit variance and pairwise correlation CORRELATION, with exactly zero mean."""
    raw = np.random.default_rng(0).normal(size=(512, DIMENSION))
    raw -= raw.mean(axis=0)
    orthonormal = np.linalg.qr(raw)[0] * np.sqrt(512)
    covariance = (1 - CORRELATION) * np.eye(DIMENSION) + CORRELATION
    rows = orthonormal @ np.linalg.cholesky(covariance).T
    potential = pl.Potential(lambda w, batch: 0.5 * STIFFNESS * jnp.sum(w**2) + batch[0] @ w)
    return potential, pl.Dataset(rows.astype(np.float32), np.zeros(512))


def measured_temperatures(ratio: float, num_chains: int, num_steps: int) -> dict[float, tuple[float, float]]:
    """For each eigenvalue: temperature along its directions over T, corrected for the time step, and its error."""
    potential, dataset = noisy_quadratic()
    sampler = pl.pseudo_langevin(
        potential,
        dataset,
        batch_size=BATCH_SIZE,
        temperature_ratio=ratio,
        momentum_retention=MOMENTUM_RETENTION,
        variance_max_batches=2_000,
        variance_tolerance=0.03,
    )
    result = pl.sample(
        sampler,
        jnp.zeros(DIMENSION),
        temperatures=[TEMPERATURE],
        num_chains=num_chains,
        num_steps=num_steps,
        record_every=num_steps // 20,
        keep_weights_every=1,
        key=1,
    )
    samples = np.asarray(result.samples, np.float64)[0, :, 5:]
    collective = samples.mean(axis=-1, keepdims=True) * np.sqrt(DIMENSION)
    others = samples - samples.mean(axis=-1, keepdims=True)
    mass = float(jax.tree.leaves(result.states.masses)[0].mean())
    discretisation = 1 - STIFFNESS / mass / 4
    estimates = {}
    for eigenvalue, square in zip(
        EIGENVALUES, [(collective**2).sum(-1), (others**2).sum(-1) / (DIMENSION - 1)], strict=True
    ):
        per_chain = square.mean(axis=-1) * STIFFNESS * discretisation / TEMPERATURE
        estimates[eigenvalue] = (per_chain.mean(), per_chain.std(ddof=1) / np.sqrt(num_chains))
    return estimates


def predicted_temperature(ratio: float | np.ndarray, eigenvalue: float) -> float | np.ndarray:
    """The law above, over T."""
    return 1 + (1 + MOMENTUM_RETENTION**2) * ratio * (eigenvalue - 1)


def main(arguments: list[str] | None = None) -> float:
    """Measure, draw, and return the largest deviation from the law in standard errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bias-law.png"))
    parser.add_argument("--chains", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.02, 0.1, 0.2, 0.3])
    options = parser.parse_args(arguments)
    ratios = options.ratios
    measured = [measured_temperatures(ratio, options.chains, options.steps) for ratio in ratios]

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    grid = np.linspace(0, max(ratios) * 1.05, 50)
    worst = 0.0
    for (eigenvalue, label), color in zip(EIGENVALUES.items(), ["#d55e00", "#0072b2"], strict=True):
        values, errors = np.array([estimate[eigenvalue] for estimate in measured]).T
        axes.plot(grid, predicted_temperature(grid, eigenvalue), color=color, lw=1.2)
        axes.errorbar(ratios, values, 2 * errors, fmt="o", color=color, ms=4, label=f"{label}, ℓ = {eigenvalue:g}")
        deviations = np.abs(values - predicted_temperature(np.array(ratios), eigenvalue)) / errors
        worst = max(worst, float(deviations.max()))
    axes.axhline(1, color="0.6", lw=0.8)
    axes.set(xlabel="temperature ratio 𝒯".replace("𝒯", r"$\mathcal{T}$"), ylabel="measured temperature / T")
    axes.set_title("Correlated mini-batch noise: lines predicted, points measured (±2 s.e.)", fontsize=10)
    axes.legend(frameon=False)
    figure.savefig(options.out, dpi=150)
    print(f"largest deviation from the law: {worst:.1f} standard errors; picture: {options.out}")
    return worst


if __name__ == "__main__":
    main()
