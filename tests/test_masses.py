"""Masses from noise: the formula, the floor, the groups."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudolangevin import masses

VARIANCE = {"kernel": jnp.asarray([[1.0, 2.0], [3.0, 6.0]]), "bias": jnp.asarray([0.5, 0.0])}
T, C1, DT = 1e-3, 0.9, 0.7


def test_masses_from_noise_and_temperature_ratios_are_the_formula_and_its_inverse():
    mass = jax.tree.map(lambda v: v + 0.1, VARIANCE)
    ratios = masses.temperature_ratios(VARIANCE, mass, jnp.asarray(T), C1, DT)
    v, m = np.asarray(VARIANCE["kernel"]), np.asarray(mass["kernel"])
    np.testing.assert_allclose(ratios["kernel"], DT**2 * v / (4 * (1 - C1**2) * T * m), rtol=1e-6)
    assert float(ratios["bias"][1]) == 0
    for ratio in (0.01, 0.3):
        mass = masses.from_noise(VARIANCE, jnp.asarray(T), ratio, C1, DT)
        ratios = masses.temperature_ratios(VARIANCE, mass, jnp.asarray(T), C1, DT)
        np.testing.assert_allclose(ratios["kernel"], ratio, rtol=1e-6)


def test_the_floor_is_a_share_of_the_mean_of_the_tensor():
    floored = masses.floor_variance(VARIANCE, 0.5)
    np.testing.assert_allclose(floored["kernel"], [[1.5, 2.0], [3.0, 6.0]])
    np.testing.assert_allclose(floored["bias"], [0.5, 0.125])
    untouched = masses.floor_variance(VARIANCE, 0.0)
    np.testing.assert_array_equal(untouched["bias"], VARIANCE["bias"])
    with_silent_tensor = masses.floor_variance(VARIANCE | {"dead": jnp.zeros(3)}, 0.1)
    np.testing.assert_allclose(with_silent_tensor["dead"], 0.1 * 0.25)  # the smallest mean of the others
    np.testing.assert_allclose(with_silent_tensor["kernel"], VARIANCE["kernel"])
    without_noise = masses.floor_variance({"a": jnp.zeros(3), "b": jnp.zeros(2)}, 0.1)
    np.testing.assert_array_equal(without_noise["a"], 0)


def test_masses_of_a_group_are_those_of_its_noisiest_weight():
    groups: Any = {"weight": VARIANCE["kernel"], "row": [[3.0, 6.0]], "tensor": [[6.0]]}
    for granularity, kernel in groups.items():
        largest = masses.by_group(jnp.max, VARIANCE | {"scalar": jnp.ones(())}, granularity)
        np.testing.assert_array_equal(largest["kernel"], kernel)
        np.testing.assert_array_equal(largest["bias"], [0.5] if granularity == "tensor" else VARIANCE["bias"])
        assert largest["scalar"].shape == ()
    np.testing.assert_array_equal(masses.by_group(jnp.mean, VARIANCE, "tensor")["kernel"], [[3.0]])


def test_the_minimum_bounds_the_frequency_of_the_regularizer():
    stiffness, frequency = 0.3, 0.1
    minimum = stiffness * (DT / frequency) ** 2
    assert np.sqrt(stiffness / minimum) * DT == pytest.approx(frequency)
    raised = masses.stabilized({"m": jnp.asarray([minimum / 2, minimum * 2])}, {"m": stiffness}, DT, frequency)
    np.testing.assert_allclose(raised["m"], [minimum, 2 * minimum], rtol=1e-6)
