"""Masses from noise: the formula, the floor, the groups."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudolangevin import masses

VARIANCE = {"kernel": jnp.asarray([[1.0, 2.0], [3.0, 6.0]]), "bias": jnp.asarray([0.5, 0.0])}
T, C1, DT = 1e-3, 0.9, 0.7


def test_the_temperature_ratio_is_the_formula():
    mass = jax.tree.map(lambda v: v + 0.1, VARIANCE)
    ratios = masses.temperature_ratios(VARIANCE, mass, jnp.asarray(T), C1, DT)
    v, m = np.asarray(VARIANCE["kernel"]), np.asarray(mass["kernel"])
    np.testing.assert_allclose(ratios["kernel"], DT**2 * v / (4 * (1 - C1**2) * T * m), rtol=1e-6)
    assert float(ratios["bias"][1]) == 0


@pytest.mark.parametrize("ratio", [0.01, 0.3])
def test_masses_from_noise_give_the_wanted_ratio(ratio):
    mass = masses.from_noise(VARIANCE, jnp.asarray(T), ratio, C1, DT)
    ratios = masses.temperature_ratios(VARIANCE, mass, jnp.asarray(T), C1, DT)
    np.testing.assert_allclose(ratios["kernel"], ratio, rtol=1e-6)


def test_the_floor_is_a_share_of_the_mean_of_the_tensor():
    floored = masses.floor_variance(VARIANCE, 0.5)
    np.testing.assert_allclose(floored["kernel"], [[1.5, 2.0], [3.0, 6.0]])
    np.testing.assert_allclose(floored["bias"], [0.5, 0.125])
    untouched = masses.floor_variance(VARIANCE, 0.0)
    np.testing.assert_array_equal(untouched["bias"], VARIANCE["bias"])


def test_a_silent_tensor_takes_the_smallest_mean_of_the_others():
    floored = masses.floor_variance(VARIANCE | {"dead": jnp.zeros(3)}, 0.1)
    np.testing.assert_allclose(floored["dead"], 0.1 * 0.25)
    np.testing.assert_allclose(floored["kernel"], VARIANCE["kernel"])
    without_noise = masses.floor_variance({"a": jnp.zeros(3), "b": jnp.zeros(2)}, 0.1)
    np.testing.assert_array_equal(without_noise["a"], 0)


@pytest.mark.parametrize(
    ("granularity", "shape", "expected"),
    [
        ("weight", (4, 3), (4, 3)),
        ("row", (4, 3), (1, 3)),
        ("row", (3,), (3,)),
        ("row", (), ()),
        ("tensor", (4, 3), (1, 1)),
        ("tensor", (), ()),
    ],
)
def test_groups(granularity, shape, expected):
    assert masses.group_shape(shape, granularity) == expected
    reduced = masses.by_group(jnp.max, {"w": jnp.ones(shape)}, granularity)
    assert reduced["w"].shape == expected
    assert masses.uniform({"w": jnp.ones(shape)}, 2.0, granularity)["w"].shape == expected


def test_masses_of_a_group_are_those_of_its_noisiest_weight():
    np.testing.assert_array_equal(masses.by_group(jnp.max, VARIANCE, "row")["kernel"], [[3.0, 6.0]])
    np.testing.assert_array_equal(masses.by_group(jnp.max, VARIANCE, "tensor")["kernel"], [[6.0]])
    np.testing.assert_array_equal(masses.by_group(jnp.max, VARIANCE, "row")["bias"], VARIANCE["bias"])
    np.testing.assert_array_equal(masses.by_group(jnp.mean, VARIANCE, "tensor")["kernel"], [[3.0]])


def test_the_minimum_bounds_the_frequency_of_the_regularizer():
    stiffness, frequency = 0.3, 0.1
    minimum = masses.stable_minimum(stiffness, DT, frequency)
    assert np.sqrt(stiffness / minimum) * DT == pytest.approx(frequency)
    raised = masses.at_least({"m": jnp.asarray([minimum / 2, minimum * 2])}, minimum)
    np.testing.assert_allclose(raised["m"], [minimum, 2 * minimum], rtol=1e-6)
