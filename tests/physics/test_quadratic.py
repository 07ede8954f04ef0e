"""Exactness on quadratic potentials with known gradient noise from real mini-batches.

The loss of example μ is ½·Σ_i k_i·w_i² + b_μ·w with Σ_μ b_μ = 0, so the mini-batch gradient is k·w plus the mean of S
rows of b: noise of covariance Cov(b)/S, whatever w. The dynamics are linear, and their stationary covariance is known.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import pseudolangevin as pl

from ..compilation import optimized_steps

pytestmark = pytest.mark.usefixtures("_no_directions")

NUM_CHAINS = 1024
BATCH_SIZE = 8
C1 = 0.9
T = 0.5


STIFFNESS = np.array([0.4, 1.0, 3.0, 8.0])
VARIANCES = np.array([1.0, 0.5, 2.0, 4.0])
RATIO = 0.3
POTENTIAL = pl.Potential(lambda w, batch: 0.5 * jnp.sum(jnp.asarray(STIFFNESS, jnp.float32) * w**2) + batch[0] @ w)


def sampler_with_noise(covariance: np.ndarray) -> pl.Sampler:
    """Return a sampler whose mini-batch noise has the given covariance."""
    raw = np.random.default_rng(0).normal(size=(400, 4))
    orthogonal = np.linalg.qr(raw - raw.mean(axis=0))[0] * np.sqrt(400)
    rows = orthogonal @ np.linalg.cholesky(covariance * BATCH_SIZE).T
    dataset = pl.Dataset(rows.astype(np.float32), np.zeros(400))
    return pl.pseudo_langevin(POTENTIAL, dataset, batch_size=BATCH_SIZE, temperature_ratio=0.05, momentum_retention=C1)


def masses_of(ratio: float) -> np.ndarray:
    return VARIANCES / (4 * (1 - C1**2) * T * ratio)


@jax.jit
@partial(jax.vmap, in_axes=(None, 0, None, None, None))
def chain(sampler, key, variance, mass, burn_in):
    """Return 30 positions and weights of a chain with these gradient variances and masses."""
    state = sampler.init(key, jnp.zeros(4), T)
    momentum = jnp.sqrt(mass * T) * jax.random.normal(jax.random.fold_in(key, 7), (4,))
    state = state._replace(masses=mass, gradient_variance=variance, half_step_momentum=momentum)

    def draw(state, _):
        state = sampler.segment(state, 20)
        return state, (sampler.position(state), state.weights)

    return jax.lax.scan(draw, sampler.segment(state, burn_in), length=30)[1]


def run(sampler: pl.Sampler, variance: np.ndarray, masses: np.ndarray, burn_in: int) -> list[np.ndarray]:
    """Return positions and weights (chain, draw, weight)."""
    keys = jax.random.split(jax.random.key(3), NUM_CHAINS)
    parts = chain(sampler, keys, *(jnp.asarray(x, jnp.float32) for x in (variance, masses)), burn_in)
    return [np.asarray(part, np.float64) for part in parts]


def second_moments(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the covariance about zero and its standard error, from chain to chain."""
    per_chain = np.einsum("cbi,cbj->cij", samples, samples) / samples.shape[1]
    return per_chain.mean(axis=0), per_chain.std(axis=0, ddof=1) / np.sqrt(len(per_chain))


def test_independent_noise_gives_the_exact_variance():
    """Positions in the middle of a drift have the variance T/k, weights at its end T/k/(1 − (ωδt)²/4)."""
    sampler, masses = sampler_with_noise(np.diag(VARIANCES)), masses_of(RATIO)
    positions, weights = run(sampler, VARIANCES, masses, burn_in=400)
    exact = T / STIFFNESS
    for samples, expected in ((positions, exact), (weights, exact / (1 - STIFFNESS / masses / 4))):
        measured, error = second_moments(samples)
        assert np.abs((np.diag(measured) - expected) / np.diag(error)).max() < 3
        assert (np.diag(error) / expected).max() < 0.02  # an error of a few per cent would be noticed


def test_correlated_noise_follows_the_discrete_lyapunov_equation():
    """Correlations between components are not corrected; the resulting bias is a known function of 𝒯."""
    correlation = np.full((4, 4), 0.7) + 0.3 * np.eye(4)
    covariance, masses = np.sqrt(np.outer(VARIANCES, VARIANCES)) * correlation, masses_of(RATIO)
    positions, _ = run(sampler_with_noise(covariance), VARIANCES, masses, burn_in=400)
    measured, error = second_moments(positions)
    exact = stationary_covariance(covariance, masses)
    assert np.abs((measured - exact) / error).max() < 3.3  # ten independent entries
    # The covariance without the correlations is far away.
    assert np.abs((measured - np.diag(T / STIFFNESS)) / error).max() > 10


def stationary_covariance(covariance: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Return the covariance of w + h/(2M), with Σ = A·Σ·Aᵀ + Q for (w, h) from the formula of the step with δt = 1."""
    one, kick = np.eye(4), (1 + C1**2) / 2
    stiffness, inverse_mass = np.diag(STIFFNESS), np.diag(1 / masses)
    matrix = np.block([[one, inverse_mass], [-kick * stiffness, C1**2 * one - kick * stiffness @ inverse_mass]])
    injected = (1 - C1**4) * masses * T - kick**2 * VARIANCES
    noise = np.zeros((8, 8))
    noise[4:, 4:] = kick**2 * covariance + np.diag(injected)
    middle = np.block([one, inverse_mass / 2])
    return middle @ scipy.linalg.solve_discrete_lyapunov(matrix, noise) @ middle.T


def test_records_are_exact_at_large_time_steps():
    """Recorded weights have the variance T/k at any stable ωδt; weights at the end of a drift do not."""
    frequencies = np.repeat([0.3, 1.0, 1.7], 1_000)
    stiffness = jnp.asarray(frequencies**2, jnp.float32)
    potential = pl.Potential(lambda w, batch: 0.5 * jnp.sum(stiffness * w**2) + 0 * batch[0])
    sampler = pl.full_batch_langevin(
        potential, pl.Dataset(np.zeros(1), np.zeros(1)), time_step=1.0, momentum_retention=C1
    )
    own = {"temperatures": lambda w, data: jnp.mean((stiffness * w**2).reshape(3, -1), axis=1)}
    run = pl.Run(sampler, temperatures=[T], num_chains=16, observables=own)
    positions, weights = [], []
    with optimized_steps():
        for record in run.records(run.start(jnp.zeros(3_000), 0), stop=2_000, every=10):
            assert record.observables is not None
            positions.append(record.observables["temperatures"])
            weights.append(np.mean((frequencies * np.asarray(record.states.weights)).reshape(16, 3, -1) ** 2, axis=2))
    expected = 1 / (1 - np.array([0.3, 1.0, 1.7]) ** 2 / 4)
    np.testing.assert_allclose(np.mean(positions[50:], axis=(0, 1)) / T, 1, atol=0.005)
    np.testing.assert_allclose(np.mean(weights[50:], axis=(0, 1)) / T, expected, rtol=0.005)
