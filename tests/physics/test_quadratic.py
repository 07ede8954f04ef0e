"""Exactness on quadratic potentials with known gradient noise: the whole sampler, with real mini-batches.

The loss of example μ is ½·Σ_i k_i·w_i² + b_μ·w with Σ_μ b_μ = 0, so the mini-batch gradient is k·w plus the mean of S
rows of b: noise of covariance Cov(b)/S, whatever w. The dynamics are linear, and their stationary covariance is known.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import pseudolangevin as pl
from pseudolangevin.samplers.base import advance

from ..compilation import optimized_steps

NUM_CHAINS = 1024
BATCH_SIZE = 8
C1 = 0.9
T = 0.5


def quadratic_problem(covariance: np.ndarray, stiffness: np.ndarray, ratio: float):
    """A sampler whose mini-batch noise has exactly the given covariance, and the masses for the given ratio."""
    dimension = len(stiffness)
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(400, dimension))
    raw -= raw.mean(axis=0)
    orthogonal = np.linalg.qr(raw)[0] * np.sqrt(400)
    rows = orthogonal @ np.linalg.cholesky(covariance * BATCH_SIZE).T
    k = jnp.asarray(stiffness, jnp.float32)

    def loss(w, batch):
        return 0.5 * jnp.sum(k * w**2) + batch[0] @ w

    dataset = pl.Dataset(rows.astype(np.float32), np.zeros(400))
    sampler = pl.pseudo_langevin(
        pl.Potential(loss), dataset, batch_size=BATCH_SIZE, temperature_ratio=ratio, momentum_retention=C1
    )
    variance = np.diag(covariance)
    masses = variance / (4 * (1 - C1**2) * T * ratio)
    return sampler, variance, masses


def run(sampler, variance, masses, *, subtract: bool, burn_in: int, num_blocks: int, stride: int):
    """Weights of many chains, with 𝒱 and masses set to their exact values: (chains, blocks, dimension)."""
    kernel, dataset = sampler.kernel, sampler.dataset
    dimension = len(masses)

    def start(key):
        state = kernel.init(key, jnp.zeros(dimension), jnp.asarray(T), dataset)
        mass = jnp.asarray(masses, jnp.float32)
        momentum = jnp.sqrt(mass * T) * jax.random.normal(jax.random.fold_in(key, 7), (dimension,))
        used = jnp.asarray(variance if subtract else 0 * variance, jnp.float32)
        return state._replace(masses=mass, gradient_variance=used, half_step_momentum=momentum)

    @jax.jit
    def all_chains(keys, dataset):
        def one(key):
            state = advance(kernel, start(key), dataset, burn_in)

            def block(state, _):
                state = advance(kernel, state, dataset, stride)
                return state, state.weights

            return jax.lax.scan(block, state, length=num_blocks)[1]

        return jax.vmap(one)(keys)

    return np.asarray(all_chains(jax.random.split(jax.random.key(3), NUM_CHAINS), dataset), np.float64)


def second_moments(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Covariance about zero and its standard error, from chain to chain."""
    per_chain = np.einsum("cbi,cbj->cij", samples, samples) / samples.shape[1]
    return per_chain.mean(axis=0), per_chain.std(axis=0, ddof=1) / np.sqrt(len(per_chain))


STIFFNESS = np.array([0.4, 1.0, 3.0, 8.0])
VARIANCES = np.array([1.0, 0.5, 2.0, 4.0])
RATIO = 0.3


def test_independent_noise_gives_the_exact_variance_of_the_discretised_dynamics():
    sampler, variance, masses = quadratic_problem(np.diag(VARIANCES), STIFFNESS, RATIO)
    samples = run(sampler, variance, masses, subtract=True, burn_in=400, num_blocks=30, stride=20)
    measured, error = second_moments(samples)
    frequency_squared = STIFFNESS / masses
    exact = T / STIFFNESS / (1 - frequency_squared / 4)
    deviation = (np.diag(measured) - exact) / np.diag(error)
    assert np.abs(deviation).max() < 3, deviation
    assert (np.diag(error) / exact).max() < 0.02  # the test would see an error of a few per cent


def test_without_the_correction_the_temperature_is_off_by_the_predicted_factor():
    sampler, variance, masses = quadratic_problem(np.diag(VARIANCES), STIFFNESS, RATIO)
    samples = run(sampler, variance, masses, subtract=False, burn_in=400, num_blocks=30, stride=20)
    measured, error = second_moments(samples)
    exact = T / STIFFNESS / (1 - STIFFNESS / masses / 4) * (1 + (1 + C1**2) * RATIO)
    assert np.abs((np.diag(measured) - exact) / np.diag(error)).max() < 3


@pytest.mark.parametrize("ratio", [0.05, 0.3])
def test_correlated_noise_follows_the_discrete_lyapunov_equation(ratio):
    """Correlations between components are not corrected; the resulting bias is a known function of 𝒯."""
    correlation = np.full((4, 4), 0.7) + 0.3 * np.eye(4)
    covariance = np.sqrt(np.outer(VARIANCES, VARIANCES)) * correlation
    sampler, variance, masses = quadratic_problem(covariance, STIFFNESS, ratio)
    samples = run(sampler, variance, masses, subtract=True, burn_in=800, num_blocks=30, stride=20)
    measured, error = second_moments(samples)
    exact = stationary_covariance(covariance, variance, masses)
    assert np.abs((measured - exact) / error).max() < 3.3  # ten independent entries
    if ratio == 0.3:  # the bias is real: the uncorrelated answer is far away
        uncorrelated = np.diag(T / STIFFNESS / (1 - STIFFNESS / masses / 4))
        assert np.abs((measured - uncorrelated) / error).max() > 10


def stationary_covariance(covariance: np.ndarray, variance: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Σ = A·Σ·Aᵀ + Q for (w, h), from the step's formula with δt = 1."""
    one, kick = np.eye(4), (1 + C1**2) / 2
    stiffness, inverse_mass = np.diag(STIFFNESS), np.diag(1 / masses)
    matrix = np.block([[one, inverse_mass], [-kick * stiffness, C1**2 * one - kick * stiffness @ inverse_mass]])
    injected = (1 - C1**4) * masses * T - kick**2 * variance
    noise = np.zeros((8, 8))
    noise[4:, 4:] = kick**2 * covariance + np.diag(injected)
    return scipy.linalg.solve_discrete_lyapunov(matrix, noise)[:4, :4]


def test_the_whole_sampler_from_estimated_noise_reaches_the_right_variance():
    """Nothing set by hand: 𝒱 estimated, masses chosen, refreshed and reset; kinetic and virial temperatures agree."""
    sampler, _, _ = quadratic_problem(np.diag(VARIANCES), STIFFNESS, 0.05)
    with optimized_steps():
        result = pl.sample(
            sampler, jnp.zeros(4), temperatures=[T], num_chains=128, num_steps=12_000, record_every=100, key=0
        )
    steady = result.trace.isel(temperature=0, draw=slice(40, None))
    for name in ("kinetic_temperature", "virial_temperature"):
        per_chain = steady[name].mean("draw").values
        error = per_chain.std(ddof=1) / np.sqrt(len(per_chain))
        # The estimate of 𝒱 has an error of a few per cent, of which 𝒯 = 0.05 lets through a tenth.
        assert abs(per_chain.mean() - T) < 3 * error + 0.005 * T
    assert steady.num_resets.max() >= 1
