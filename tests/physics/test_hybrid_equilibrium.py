"""Equilibrium of hybrid Monte Carlo: compared with theory, with BlackJAX and with pseudo-Langevin.

Standard errors come from the spread of the means of independent chains, so autocorrelation is in them.
"""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erfc

import pseudolangevin as pl

from ..compilation import optimized_steps


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
        num_steps=60, record_every=1, key=0,
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


@pytest.fixture(scope="module")
def network():
    """A network of 240 weights in two arrays, and its task."""
    train, _ = pl.tasks.spin_vectors(
        jax.random.key(0), num_train=400, num_test=1, dimension=20, num_classes=4, flip_probability=0.2
    )

    def apply(weights, inputs):
        return jax.nn.relu(inputs.astype(jnp.float32) @ weights["first"]) @ weights["second"]

    potential = pl.classification(apply, weight_decay=5.0)
    first, second = jax.random.split(jax.random.key(1))
    weights = {
        "first": 0.3 * jax.random.normal(first, (20, 10)),
        "second": 0.3 * jax.random.normal(second, (10, 4)),
    }
    return potential, train, weights


TEMPERATURE = 0.01
"""Four times the transition, 1/P = 0.0025."""
NUM_CHAINS = 24
DISCARD = 20
"""Moves until hMC has forgotten its start (one or two are enough)."""


@pytest.fixture(scope="module")
def reference(network):
    potential, train, weights = network
    sampler = pl.hybrid_monte_carlo(potential, train, num_leapfrog_steps=12, time_step=0.5)
    with optimized_steps():
        return pl.sample(
            sampler, weights, temperatures=[TEMPERATURE], num_chains=NUM_CHAINS, num_steps=160, record_every=1, key=0
        )


def averages(trace, name, discard):
    return mean_and_error(trace[name].values[0, :, discard:])


def test_hmc_agrees_with_blackjax(network, reference):
    potential, train, weights = network
    algorithm = blackjax.hmc(
        lambda w: -potential.energy(w, train.batch) / TEMPERATURE,
        step_size=0.03,  # with momenta N(0, 1); in these units ours is δt·√T = 0.05
        inverse_mass_matrix=jnp.ones(240),
        num_integration_steps=15,
    )

    @jax.jit
    @jax.vmap
    def chain(key):
        def move(state, key):
            state, _ = algorithm.step(key, state)
            w = state.position
            return state, (potential.loss(w, train.batch), jnp.sum(w["first"] ** 2) + jnp.sum(w["second"] ** 2))

        return jax.lax.scan(move, algorithm.init(weights), jax.random.split(key, 160))[1]

    losses, norms = chain(jax.random.split(jax.random.key(7), NUM_CHAINS))
    for name, theirs in [("loss", losses), ("squared_norm", norms)]:
        ours, our_error = averages(reference.trace, name, DISCARD)
        other, other_error = mean_and_error(theirs[:, DISCARD:])
        error = np.hypot(our_error, other_error)
        assert abs(ours - other) < 3 * error, name
        assert error < 0.02 * ours, name


def test_hmc_agrees_with_pseudo_langevin(network, reference):
    """The bias of the loss, 0.7·𝒯 on this task, is below the standard error at 𝒯 = 0.002. pL starts where hMC ended."""
    potential, train, _ = network
    sampler = pl.pseudo_langevin(potential, train, batch_size=100, temperature_ratio=0.002, refresh_every=2_000)
    with optimized_steps():
        trace = pl.sample(
            sampler, reference.weights, temperatures=[TEMPERATURE], num_chains=NUM_CHAINS,
            num_steps=5_000, record_every=50, key=0,
        ).trace  # fmt: skip
    for name in ("loss", "squared_norm", "error"):
        ours, our_error = averages(reference.trace, name, DISCARD)
        other, other_error = averages(trace, name, 0)
        error = np.hypot(our_error, other_error)
        assert abs(ours - other) < 3 * error, name
        assert error < 0.02 * ours, name
