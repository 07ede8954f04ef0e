"""The step against plain NumPy, and its limiting cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudolangevin import integrator
from pseudolangevin.integrator import Thermostat

SIZE, T = 7, 0.5


class Problem:
    """A harmonic problem in float64, for NumPy and for the integrator."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.weights, self.momentum, self.noise = rng.normal(size=(3, SIZE))
        self.masses, self.stiffness = rng.uniform(0.5, 3.0, SIZE), rng.uniform(0.1, 2.0, SIZE)
        self.variance = rng.uniform(0.0, 0.005, SIZE)

    def gradient(self, w):
        return self.stiffness * w

    def step(self, w, h, noise, c1, time_step, *, variance=None):
        thermostat = Thermostat(jnp.asarray(self.masses), jnp.asarray(T), c1, time_step, variance)
        return integrator.step(w, h, self.gradient, noise, thermostat)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def test_one_step_equals_the_formula():
    p = Problem(0)
    for c1, time_step in ((0.9, 1.0), (0.99499, 0.3)):
        w = p.weights + time_step * p.momentum / p.masses
        scale = np.sqrt((1 - c1**4) * p.masses * T - ((1 + c1**2) * time_step / 2) ** 2 * p.variance)
        h = c1**2 * p.momentum - (1 + c1**2) * time_step / 2 * p.gradient(w) + scale * p.noise
        new_w, new_h = p.step(p.weights, p.momentum, p.noise, c1, time_step, variance=jnp.asarray(p.variance))
        assert new_w.dtype == jnp.float64
        np.testing.assert_allclose(new_w, w, rtol=0, atol=1e-12)
        np.testing.assert_allclose(new_h, h, rtol=0, atol=1e-12)


def test_without_variance_it_is_bussi_parrinello():
    """Two half kicks and two half thermostats around each drift, with momenta at full steps."""
    p, c1, dt = Problem(1), 0.9, 0.4
    first, third, fourth = np.random.default_rng(2).normal(size=(3, SIZE))
    c2 = np.sqrt((1 - c1**2) * p.masses * T)
    # Thermostat, kick, drift, kick, thermostat; then the first half of the next step.
    half = c1 * p.momentum + c2 * first - dt / 2 * p.gradient(p.weights)
    w = p.weights + dt * half / p.masses
    kicked = half - dt / 2 * p.gradient(w)
    next_half = c1 * (c1 * kicked + c2 * third) + c2 * fourth - dt / 2 * p.gradient(w)
    # The integrator merges two thermostats into one draw of variance (1 + c1²)·c2².
    combined = (c1 * third + fourth) / np.sqrt(1 + c1**2)
    start = jnp.asarray(p.momentum), p.gradient(p.weights), first
    h = integrator.half_step(*start, Thermostat(p.masses, jnp.asarray(T), c1, dt))
    np.testing.assert_allclose(h, half, atol=1e-12)
    new_w, new_h = p.step(p.weights, h, combined, c1, dt)
    np.testing.assert_allclose(new_w, w, atol=1e-12)
    np.testing.assert_allclose(new_h, next_half, atol=1e-12)


def test_injected_noise_vanishes_at_the_limit_and_is_never_nan():
    """At 𝒯 = 1/(1 + c1²) there is mini-batch noise only; just above it, rounding must not give NaN."""
    c1, m = 0.9, 2.0
    v = 4 * (1 - c1**2) * T * m / (1 + c1**2)
    for factor in (1.0, 1 + 1e-6):
        thermostat = Thermostat(jnp.asarray([m]), jnp.asarray(T), c1, 1.0, jnp.asarray([v * factor]))
        _, h = integrator.step(jnp.zeros(1), jnp.zeros(1), lambda w: w, jnp.ones(1), thermostat)
        assert np.isfinite(h).all()
        np.testing.assert_allclose(h, 0.0, atol=1e-3)
