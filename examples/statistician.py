"""A Bayesian statistician: the posterior of a regression, its intervals, and a check of both.

    python -m examples.statistician            # a minute on two cores

The model is y = f(x, w) + noise with a known standard deviation, and the prior w ~ N(0, 1). Here f is a Fourier series,
so that the exact posterior is known and can be compared; any function of (weights, inputs) takes its place, such as
`network.apply`. Mini-batch chains sample the posterior, and the certificate tests them without the exact solution.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax.numpy as jnp
import numpy as np

import pseudolangevin as pl

NOISE = 0.3


def features(x: Any) -> Any:
    """Return 1, sin kx and cos kx for k = 1 … 4, as the last axis."""
    waves = [f(k * x) for k in range(1, 5) for f in (jnp.sin, jnp.cos)]
    return jnp.stack([jnp.ones_like(x), *waves], axis=-1)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Sample, certify, and compare means and intervals with the exact posterior; return what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400_000)
    options = parser.parse_args(arguments)

    rng = np.random.default_rng(0)
    x = rng.uniform(-np.pi, np.pi, 500).astype(np.float32)
    y = (np.where(x > 0, 1.0, -1.0) * np.abs(x) ** 0.5 + NOISE * rng.normal(size=500)).astype(np.float32)
    train = pl.Dataset(x, y)
    potential = pl.regression(lambda w, x: features(x) @ w, prior=pl.gaussian(1.0))
    result = pl.sample(
        # Momenta that forget in 33 steps instead of 333: with so few weights the friction needs no longer memory.
        pl.balanced_langevin(potential, train, batch_size=50, momentum_retention=0.985),
        jnp.zeros(9),
        temperatures=pl.posterior_temperature(train, noise_scale=NOISE),  # σ²/P: exp(−U/T) is the posterior
        num_chains=4,
        num_steps=options.steps,
        record_every=max(1, options.steps // 1_000),
        keep_weights_every=5,
        key=1,
    )
    certificate = pl.certificate(result)
    print(certificate)
    print(result.averages()[["mean", "standard_error", "effective_samples"]])

    grid = np.linspace(-3, 3, 61, dtype=np.float32)
    predictions = result.predict(grid, noise_scale=NOISE)
    known, new = np.asarray(features(x), np.float64), np.asarray(features(grid), np.float64)
    covariance = np.linalg.inv(known.T @ known / NOISE**2 + np.eye(9))
    mean = new @ covariance @ known.T @ y / NOISE**2
    spread = np.sqrt(np.einsum("ni,ij,nj->n", new, covariance, new))
    shift = (np.asarray(predictions.mean).ravel() - mean) / spread  # in posterior standard deviations
    ratio = np.asarray(predictions.spread).ravel() / spread
    print(f"posterior mean of f: off by {np.abs(shift).mean():.3f} of its standard deviations, in the mean over x")
    print(f"posterior standard deviation of f over the exact one: {ratio.min():.3f} to {ratio.max():.3f}")
    return {"certificate": certificate, "shift": shift, "ratio": ratio}


if __name__ == "__main__":
    main()
