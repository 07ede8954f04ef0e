"""Masses that are reset to follow the weights change the distribution; masses that are only raised do not.

One weight, w·x against y: the gradient of an example is w·x² − x·y, so 𝒱 and with it the nominal mass grow with w².
Masses that follow w without delay make a mobility 1/M(w), and the density becomes M(w)·exp(−U/T) (docs/method.md).
"""

import numpy as np
import pytest

import pseudolangevin as pl

T, NUM_CHAINS = 0.25, 64


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    inputs, noise = rng.normal(size=(400, 1)).astype(np.float32), 0.5 * rng.normal(size=400).astype(np.float32)
    return pl.regression(lambda w, x: x @ w["w"], weight_decay=0.0), pl.Dataset(inputs, noise)


def mean_square(problem, *, temperature_ratio, reset_probability):
    """Return ⟨w²⟩ over chains that measure 𝒱 often, and its standard error."""
    potential, dataset = problem
    sampler = pl.pseudo_langevin(
        potential,
        dataset,
        batch_size=20,
        temperature_ratio=temperature_ratio,
        reset_probability=reset_probability,
        refresh_every=20,
        max_refresh_interval=20,
        warmup_refreshes=0,
        variance_from="examples",
    )
    num_steps = round(100 / temperature_ratio)
    result = pl.sample(
        sampler,
        {"w": np.zeros(1, np.float32)},
        temperatures=[T],
        num_chains=NUM_CHAINS,
        num_steps=num_steps,
        record_every=num_steps // 50,
        key=0,
    )
    squares = result.trace["squared_norm"].values[0, :, 15:].mean(axis=1)
    return squares.mean(), squares.std() / np.sqrt(NUM_CHAINS)


def predicted(problem, weighted):
    """Return ⟨w²⟩ of exp(−U/T), or of M(w)·exp(−U/T), by quadrature."""
    _, dataset = problem
    x, y = np.asarray(dataset.inputs[:, 0], float), np.asarray(dataset.targets, float)
    w = np.linspace(-4, 4, 2_001)
    energy = 0.5 * np.mean((w[:, None] * x - y) ** 2, axis=1)
    variance = np.var(w[:, None] * x**2 - x * y, axis=1)
    density = np.exp(-(energy - energy.min()) / T) * (variance if weighted else 1.0)
    return np.sum(w**2 * density) / np.sum(density)


def test_masses_that_are_only_raised_keep_the_distribution(problem):
    mean, error = mean_square(problem, temperature_ratio=0.01, reset_probability=0.0)
    assert mean == pytest.approx(predicted(problem, weighted=False), abs=3 * error)
    assert error < 0.05 * mean


def test_masses_reset_within_a_relaxation_time_weight_it_by_the_mass(problem):
    mean, error = mean_square(problem, temperature_ratio=0.004, reset_probability=1.0)
    assert mean == pytest.approx(predicted(problem, weighted=True), abs=3 * error)
    assert mean > 2 * predicted(problem, weighted=False)
