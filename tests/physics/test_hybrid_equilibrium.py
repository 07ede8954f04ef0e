"""Equilibrium of hybrid Monte Carlo: compared with theory and with pseudo-Langevin.

Standard errors come from the spread of the means of independent chains, so autocorrelation is in them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erfc

import pseudolangevin as pl

from ..compilation import optimized_steps

pytestmark = pytest.mark.usefixtures("_no_directions")


def mean_and_error(values):
    """Return mean and standard error of an array (chain, draw)."""
    means = np.asarray(values, np.float64).mean(axis=1)
    return means.mean(), means.std(ddof=1) / len(means) ** 0.5


def gaussian(dimension, num_examples, seed=0):
    """Return U = ½|w − x̄|² + constant; every mini-batch has another centre."""
    inputs = np.random.default_rng(seed).normal(size=(num_examples, dimension)).astype(np.float32)
    potential = pl.Potential(lambda w, batch: 0.5 * jnp.sum((batch[0] - w) ** 2, axis=-1))
    return potential, pl.Dataset(inputs, np.zeros(num_examples, np.float32))


def test_acceptance_on_a_gaussian_agrees_with_theory():
    """With cos θ = 1 − δt²/2, s² = 1 − δt²/4, φ = Lθ, velocity Verlet on U = w²/2, M = 1, is the linear map A:

        w' = w·cos φ + p·sin φ/s,        p' = p·cos φ − w·s·sin φ.

    At equilibrium w and p are independent N(0, T), so ⟨ΔH⟩/T = ½(tr AᵀA − 2) = ½·sin²φ·(s − 1/s)² per dimension.
    For d ≫ 1 dimensions ΔH/T is normal; its variance is twice its mean μ because ⟨exp(−ΔH/T)⟩ = 1; then the mean of
    min(1, exp(−ΔH/T)) is erfc(√μ/2). Corrections are of relative order 1/d.
    """
    dimension, num_chains, temperature, time_step, num_steps = 500, 32, 0.3, 0.5, 4
    theta, s = np.arccos(1 - time_step**2 / 2), np.sqrt(1 - time_step**2 / 4)
    mean = dimension * 0.5 * np.sin(num_steps * theta) ** 2 * (s - 1 / s) ** 2
    assert 0.1 < mean < 1

    potential, dataset = gaussian(dimension, num_examples=2)
    sampler = pl.hybrid_monte_carlo(potential, dataset, num_leapfrog_steps=num_steps, time_step=time_step)
    noise = np.random.default_rng(1).normal(size=(1, num_chains, dimension))
    starts = np.asarray(dataset.inputs).mean(axis=0) + temperature**0.5 * noise
    result = pl.sample(
        sampler, starts.astype(np.float32), temperatures=[temperature], num_chains=num_chains,
        num_steps=120, record_every=1, key=0,
    )  # fmt: skip
    errors = result.trace["energy_error"].values[0]
    acceptance = result.trace["acceptance"].values[0, :, -1:]
    for values, expected in [
        (errors, mean),
        (np.exp(-errors), 1.0),
        (np.minimum(1, np.exp(-errors)), erfc(np.sqrt(mean) / 2)),
        (acceptance, erfc(np.sqrt(mean) / 2)),
        (result.trace["kinetic_temperature"].values[0], temperature),
    ]:
        measured, error = mean_and_error(values)
        assert abs(measured - expected) < 3 * error
        assert error < 0.05


def test_minibatch_hmc_samples_the_full_data_set_exactly():
    """The centre of a batch of 4 is half a thermal standard deviation away: only Metropolis corrects it."""
    dimension, num_chains, temperature = 3, 256, 1.0
    potential, dataset = gaussian(dimension, num_examples=40)
    sampler = pl.minibatch_hybrid_monte_carlo(potential, dataset, batch_size=4, num_leapfrog_steps=3, time_step=0.4)
    result = pl.sample(
        sampler, np.zeros(dimension, np.float32), temperatures=[temperature], num_chains=num_chains,
        num_steps=120, record_every=1, keep_weights_every=1, key=1,
    )  # fmt: skip
    draws = np.asarray(result.samples)[0, :, 20:, :] - np.asarray(dataset.inputs, np.float64).mean(axis=0)
    assert 0.3 < float(result.trace["acceptance"][..., -1].mean()) < 0.9
    for component in range(dimension):
        for values, expected in [(draws[:, :, component], 0.0), (draws[:, :, component] ** 2, temperature)]:
            measured, error = mean_and_error(values)
            assert abs(measured - expected) < 3 * error
            assert error < 0.05


def test_hmc_agrees_with_pseudo_langevin():
    """On a network of 240 weights, at four times the transition: T = 4/P.

    The bias of the loss, 0.7·𝒯 on this task, is below the standard error at 𝒯 = 0.002. pL starts where hMC ended.
    """
    train, _ = pl.tasks.spin_vectors(
        jax.random.key(0), num_train=400, num_test=1, dimension=20, num_classes=4, flip_probability=0.2
    )
    potential = pl.classification(lambda w, x: jax.nn.relu(x.astype(jnp.float32) @ w[0]) @ w[1], weight_decay=5.0)
    keys = jax.random.split(jax.random.key(1))
    weights = [0.3 * jax.random.normal(key, shape) for key, shape in zip(keys, ((20, 10), (10, 4)), strict=True)]
    hybrid = pl.hybrid_monte_carlo(potential, train, num_leapfrog_steps=12, time_step=0.5)
    pseudo = pl.pseudo_langevin(potential, train, batch_size=100, temperature_ratio=0.002, refresh_every=2_000)
    options: dict[str, Any] = {"temperatures": [0.01], "num_chains": 24, "key": 0}
    with optimized_steps():
        exact = pl.sample(hybrid, weights, num_steps=120, record_every=1, **options)
        trace = pl.sample(pseudo, exact.weights, num_steps=3_000, record_every=50, **options).trace
    for name in ("loss", "squared_norm", "error"):
        ours, our_error = mean_and_error(exact.trace[name].values[0, :, 20:])  # one or two moves forget the start
        other, other_error = mean_and_error(trace[name].values[0])
        error = np.hypot(our_error, other_error)
        assert abs(ours - other) < 3 * error, name
        assert error < 0.02 * ours, name
