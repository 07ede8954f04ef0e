"""The effect of correlated mini-batch noise on the sampled distribution, measured and predicted.

    python -m examples.bias_law --out docs/bias-law.png

Pseudo-Langevin subtracts the variance of every component of the mini-batch noise, but not the correlations between
components. For an isotropic quadratic potential the effect is known exactly: along a direction in which the correlation
matrix of the noise has the eigenvalue l, the temperature is

    T (1 + (1 + c1²) ratio (l - 1)),

where c1 is the momentum retention. The direction is hotter for l > 1 and colder for l < 1. The mean over directions is
T, and every direction approaches T as the temperature ratio approaches zero.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import pseudolangevin as pl

DIMENSION = 8
TEMPERATURE = 0.5
STIFFNESS = 0.05  # soft, so that the error of the finite time step is small and known
MOMENTUM_RETENTION = 0.9
CORRELATION = 0.5
EIGENVALUES = {1 + (DIMENSION - 1) * CORRELATION: "collective direction", 1 - CORRELATION: "all other directions"}


def noisy_quadratic() -> tuple[pl.Potential, pl.Dataset]:
    """Return k|w|²/2 + b·w per example, where the b have zero mean, unit variance and pairwise correlation."""
    raw = np.random.default_rng(0).normal(size=(512, DIMENSION))
    orthonormal = np.linalg.qr(raw - raw.mean(axis=0))[0] * np.sqrt(512)
    covariance = (1 - CORRELATION) * np.eye(DIMENSION) + CORRELATION
    rows = orthonormal @ np.linalg.cholesky(covariance).T
    potential = pl.Potential(lambda w, batch: 0.5 * STIFFNESS * jnp.sum(w**2) + batch[0] @ w)
    return potential, pl.Dataset(rows.astype(np.float32), np.zeros(512))


def measured_temperatures(ratio: float, num_chains: int, num_steps: int) -> np.ndarray:
    """Return the temperature along the directions of each eigenvalue, divided by T, and its standard error."""
    potential, dataset = noisy_quadratic()
    sampler = pl.pseudo_langevin(
        potential,
        dataset,
        batch_size=8,
        temperature_ratio=ratio,
        momentum_retention=MOMENTUM_RETENTION,
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
    mean = samples.mean(axis=-1)
    squares = [DIMENSION * mean**2, ((samples - mean[..., None]) ** 2).sum(axis=-1) / (DIMENSION - 1)]
    time_step = 1 - STIFFNESS / float(jax.tree.leaves(result.states.masses)[0].mean()) / 4
    by_chain = np.stack(squares).mean(axis=-1) * STIFFNESS * time_step / TEMPERATURE
    return np.stack([by_chain.mean(axis=1), by_chain.std(axis=1, ddof=1) / np.sqrt(num_chains)], axis=1)


def predicted_temperature(ratio: np.ndarray, eigenvalue: float) -> np.ndarray:
    """Return the predicted temperature, divided by T."""
    return 1 + (1 + MOMENTUM_RETENTION**2) * ratio * (eigenvalue - 1)


def main(arguments: list[str] | None = None) -> float:
    """Measure, draw, and return the largest deviation from the prediction in standard errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bias-law.png"))
    parser.add_argument("--chains", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.02, 0.1, 0.2, 0.3])
    options = parser.parse_args(arguments)
    ratios = np.array(options.ratios)
    measured = np.stack([measured_temperatures(ratio, options.chains, options.steps) for ratio in options.ratios])

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    grid = np.linspace(0, ratios.max() * 1.05, 50)
    worst = 0.0
    for index, (eigenvalue, label) in enumerate(EIGENVALUES.items()):
        values, errors = measured[:, index].T
        color = ("#d55e00", "#0072b2")[index]
        axes.plot(grid, predicted_temperature(grid, eigenvalue), color=color, lw=1.2)
        axes.errorbar(ratios, values, 2 * errors, fmt="o", color=color, ms=4, label=f"{label}, l = {eigenvalue:g}")
        worst = max(worst, float(np.max(np.abs(values - predicted_temperature(ratios, eigenvalue)) / errors)))
    axes.axhline(1, color="0.6", lw=0.8)
    axes.set(xlabel="temperature ratio", ylabel="measured temperature / T")
    axes.set_title("Correlated mini-batch noise: lines predicted, points measured (± 2 s.e.)", fontsize=10)
    axes.legend(frameon=False)
    figure.savefig(options.out, dpi=150)
    print(f"largest deviation from the prediction: {worst:.1f} standard errors; picture: {options.out}")
    return worst


if __name__ == "__main__":
    main()
