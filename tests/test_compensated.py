"""Compensated sums against exact arithmetic, compiled and not."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pseudolangevin.compensated import Sum

from pseudolangevin import compensated

EPSILON = float(np.finfo(np.float32).eps)

compiled_total = jax.jit(compensated.total)
compiled_squares = jax.jit(compensated.total_of_squares)


def value(pair: Sum) -> float:
    return float(pair.high) + float(pair.low)


def exact(values: np.ndarray) -> float:
    return math.fsum(values.astype(np.float64).ravel())


@pytest.mark.parametrize("num", [1, 2, 1000, 55_800])
def test_total_of_losses_is_as_good_as_float64(num):
    losses = np.random.default_rng(0).exponential(0.3, num).astype(np.float32)
    assert value(compiled_total(jnp.asarray(losses))) == pytest.approx(exact(losses), rel=1e-12)


def test_total_is_far_better_than_a_plain_sum():
    values = np.random.default_rng(1).exponential(0.3, 100_000).astype(np.float32)
    plain = abs(float(jnp.sum(jnp.asarray(values))) - exact(values))
    ours = abs(value(compiled_total(jnp.asarray(values))) - exact(values))
    assert ours < 1e-4 * plain


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=64).map(
        lambda v: np.resize(np.asarray(v, np.float32), 64)
    ),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_cancellation_leaves_an_error_of_the_square_of_epsilon(values):
    """Sums whose terms cancel: the error is relative to the terms, not to the result."""
    shuffled = np.concatenate([values, -values[::-1], np.asarray([1e-3], np.float32)])
    error = abs(value(compiled_total(jnp.asarray(shuffled))) - exact(shuffled))
    assert error <= 4 * len(shuffled) * EPSILON**2 * np.abs(shuffled.astype(np.float64)).sum() + 1e-12


def test_a_small_number_survives_between_two_large_ones():
    values = jnp.asarray([1e8, 1.0, -1e8, 3e-5], jnp.float32)
    assert value(compiled_total(values)) == pytest.approx(1.0 + float(np.float32(3e-5)), rel=1e-7)


def test_sum_of_squares_keeps_the_rounding_error_of_each_square():
    values = np.random.default_rng(2).normal(size=11_160).astype(np.float32)
    expected = math.fsum(values.astype(np.float64) ** 2)
    assert value(compiled_squares(jnp.asarray(values))) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("num", [7, 55_800])
def test_scaling_keeps_the_precision(num):
    losses = np.random.default_rng(3).exponential(0.3, num).astype(np.float32)
    scaled = jax.jit(lambda x: compensated.scale(compensated.total(x), 1 / num))(jnp.asarray(losses))
    assert value(scaled) == pytest.approx(exact(losses) * float(np.float32(1 / num)), rel=1e-12)


def test_difference_of_two_near_energies_is_precise_to_its_own_size():
    """ΔU of 1e-7 between energies of 0.3, from 55 800 terms each, as a Metropolis step at T = 1e-6 needs."""
    rng = np.random.default_rng(4)
    before = rng.exponential(0.3, 55_800).astype(np.float32)
    after = (before + rng.normal(0, 1e-5, before.size)).astype(np.float32)

    @jax.jit
    def energy_change(old, new):
        mean = 1 / old.size
        left = compensated.scale(compensated.total(new), mean)
        return compensated.difference(left, compensated.scale(compensated.total(old), mean))

    expected = (exact(after) - exact(before)) / before.size
    measured = float(energy_change(jnp.asarray(before), jnp.asarray(after)))
    assert abs(expected) < 1e-6  # so a plain float32 difference of 0.3-sized numbers would be worthless
    assert measured == pytest.approx(expected, rel=1e-5)


def test_adding_is_exact_for_pairs():
    tiny = float(np.float32(1e-9))
    left, right = Sum(jnp.float32(1.0), jnp.float32(1e-9)), Sum(jnp.float32(-1.0), jnp.float32(1e-9))
    assert value(jax.jit(compensated.add)(left, right)) == pytest.approx(2 * tiny, rel=1e-7)
    assert value(compensated.add(compensated.zero(), left)) == pytest.approx(1.0 + tiny, rel=1e-15)


def test_it_maps_over_chains():
    values = np.random.default_rng(5).exponential(0.3, (3, 1001)).astype(np.float32)
    sums = jax.jit(jax.vmap(compensated.total))(jnp.asarray(values))
    for index in range(3):
        total = float(sums.high[index]) + float(sums.low[index])
        assert total == pytest.approx(exact(values[index]), rel=1e-12)


def test_it_works_in_float64_too():
    with jax.enable_x64(True):
        total = compensated.total(jnp.asarray([1e16, 1.0, -1e16]))
        assert total.high.dtype == jnp.float64
        assert value(total) == 1.0
