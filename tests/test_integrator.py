"""The step against plain NumPy, its limiting cases, and its scaling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudolangevin import integrator


def problem(seed: int = 0, size: int = 7):
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=size),
        "h": rng.normal(size=size),
        "m": rng.uniform(0.5, 3.0, size),
        "v": rng.uniform(0.0, 0.005, size),
        "xi": rng.normal(size=size),
        "k": rng.uniform(0.1, 2.0, size),
    }


@pytest.mark.parametrize("c1", [0.9, 0.99499])
@pytest.mark.parametrize("time_step", [1.0, 0.3])
def test_one_step_equals_the_formula_in_float64(c1, time_step):
    p = problem()
    T = 0.7
    w = p["w"] + time_step * p["h"] / p["m"]
    g = p["k"] * w + np.sin(w)
    scale = np.sqrt((1 - c1**4) * p["m"] * T - ((1 + c1**2) * time_step / 2) ** 2 * p["v"])
    h = c1**2 * p["h"] - (1 + c1**2) * time_step / 2 * g + scale * p["xi"]
    with jax.enable_x64(True):
        a = {name: jnp.asarray(value) for name, value in p.items()}
        new_w, new_h = integrator.step(
            a["w"], a["h"], lambda w: a["k"] * w + jnp.sin(w), a["xi"], a["m"], a["v"], jnp.asarray(T), c1, time_step
        )
        assert new_w.dtype == jnp.float64
        np.testing.assert_allclose(new_w, w, rtol=0, atol=1e-12)
        np.testing.assert_allclose(new_h, h, rtol=0, atol=1e-12)


def test_without_variance_it_is_bussi_parrinello():
    """Two half kicks and two half thermostats around each drift, written out with momenta at full steps."""
    p = problem(1)
    c1, T, dt = 0.9, 0.5, 0.4
    rng = np.random.default_rng(2)
    first, third, fourth = rng.normal(size=(3, 7))
    c2 = np.sqrt((1 - c1**2) * p["m"] * T)
    gradient = lambda w: p["k"] * w  # noqa: E731
    # p → thermostat, kick, drift, kick, thermostat; then the first half of the next step.
    momentum = p["h"]
    half = c1 * momentum + c2 * first - dt / 2 * gradient(p["w"])
    w = p["w"] + dt * half / p["m"]
    kicked = half - dt / 2 * gradient(w)
    next_half = c1 * (c1 * kicked + c2 * third) + c2 * fourth - dt / 2 * gradient(w)
    # The two thermostats that meet are one draw of variance (1 + c1²)·c2².
    combined = (c1 * third + fourth) / np.sqrt(1 + c1**2)
    # The integrator merges them with both half kicks; the half kick between them is damped by c1².
    expected = c1**2 * half - (1 + c1**2) * dt / 2 * gradient(w) + np.sqrt(1 + c1**2) * c2 * combined
    np.testing.assert_allclose(next_half, expected, atol=1e-12)
    with jax.enable_x64(True):
        zero, temperature = jnp.zeros(7), jnp.asarray(T)
        h = integrator.half_step(
            jnp.asarray(momentum),
            jnp.asarray(gradient(p["w"])),
            jnp.asarray(first),
            jnp.asarray(p["m"]),
            zero,
            temperature,
            c1,
            dt,
        )
        np.testing.assert_allclose(h, half, atol=1e-12)
        new_w, new_h = integrator.step(
            jnp.asarray(p["w"]),
            h,
            lambda w: jnp.asarray(p["k"]) * w,
            jnp.asarray(combined),
            jnp.asarray(p["m"]),
            zero,
            temperature,
            c1,
            dt,
        )
        np.testing.assert_allclose(new_w, w, atol=1e-12)
        np.testing.assert_allclose(new_h, next_half, atol=1e-12)


def test_without_friction_it_is_velocity_verlet():
    p = problem(3)
    dt = 0.2
    with jax.enable_x64(True):
        k, m, zero = jnp.asarray(p["k"]), jnp.asarray(p["m"]), jnp.zeros(7)
        w, momentum = jnp.asarray(p["w"]), jnp.asarray(p["h"])
        h = integrator.half_step(momentum, k * w, None, m, zero, jnp.asarray(1.0), 1.0, dt)
        for _ in range(5):
            w, h = integrator.step(w, h, lambda w: k * w, None, m, zero, jnp.asarray(1.0), 1.0, dt)
        momentum = integrator.full_step(h, k * w, dt)
    x, q = p["w"].copy(), p["h"].copy()
    for _ in range(5):
        q = q - dt / 2 * p["k"] * x
        x = x + dt * q / p["m"]
        q = q - dt / 2 * p["k"] * x
    np.testing.assert_allclose(w, x, atol=1e-12)
    np.testing.assert_allclose(momentum, q, atol=1e-12)


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_the_trajectory_does_not_change_if_time_step_and_masses_are_scaled(scale):
    """δt → s·δt, M → s²·M, h → s·h leaves the weights' trajectory as it is."""
    p = problem(4)
    noise = np.random.default_rng(5).normal(size=(20, 7))

    def trajectory(s: float) -> np.ndarray:
        with jax.enable_x64(True):
            w, h = jnp.asarray(p["w"]), s * jnp.asarray(p["h"])
            for xi in noise:
                w, h = integrator.step(
                    w,
                    h,
                    lambda w: jnp.asarray(p["k"]) * w,
                    jnp.asarray(xi),
                    s**2 * jnp.asarray(p["m"]),
                    jnp.asarray(p["v"]),
                    jnp.asarray(0.3),
                    0.95,
                    0.5 * s,
                )
            return np.asarray(w)

    np.testing.assert_allclose(trajectory(scale), trajectory(1.0), atol=1e-12)


def test_injected_noise_vanishes_at_the_limit_and_is_never_nan():
    """At 𝒯 = 1/(1 + c1²) there is mini-batch noise only; just above it, rounding must not give NaN."""
    c1, T, m = 0.9, 1.0, 2.0
    v = 4 * (1 - c1**2) * T * m / (1 + c1**2)
    for factor in (1.0, 1 + 1e-6):
        arguments = (jnp.zeros(1), jnp.zeros(1), lambda w: w, jnp.ones(1), jnp.asarray([m]), jnp.asarray([v * factor]))
        _, h = integrator.step(*arguments, jnp.asarray(T), c1, 1.0)
        assert np.isfinite(h).all()
        np.testing.assert_allclose(h, 0.0, atol=1e-3)
