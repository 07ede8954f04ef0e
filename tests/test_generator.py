"""Random numbers as the CPU draws them, against those of JAX and the exact distribution function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy.special import erfinv

from pseudolangevin import generator


@pytest.mark.parametrize("num", [1, 2, 5, 364])
def test_the_bits_are_those_of_threefry(num: int) -> None:
    words = jax.random.key_data(jax.random.key(7))
    expected = threefry_2x32(words, jnp.arange(num + num % 2, dtype=jnp.uint32))[:num]
    np.testing.assert_array_equal(jax.jit(generator._bits, static_argnums=1)(words, num), expected)


def test_the_inverse_error_function_to_rounding_in_the_middle_and_in_the_tails() -> None:
    cells = np.concatenate([np.arange(5_000), np.arange(2**23 - 5_000, 2**23 + 5_000), np.arange(0, 2**24, 1_001)])
    cells = np.concatenate([cells, 2**24 - 1 - np.arange(5_000)]).astype(np.uint32)
    x = generator._uniform(jnp.asarray(cells << 8))
    exact = erfinv(np.asarray(x, np.float64))
    np.testing.assert_allclose(jax.jit(generator._inverse_erf)(x), exact, rtol=5e-7)


def test_normal_numbers_have_the_moments_of_their_distribution() -> None:
    num = 200_001
    drawn = np.asarray(generator.standard_normal(jax.random.key(3), num, jnp.float32), np.float64)
    assert drawn.shape == (num,)
    for power, exact, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs(np.mean(drawn**power) - exact) < 4 * np.sqrt(variance / num)
    assert np.unique(drawn).size > 0.98 * num  # no word is used twice


@pytest.mark.parametrize("limit", [2, 7, 55_800, 5_030_550, 2**31 - 1])
def test_integers_are_those_of_jax(limit: int) -> None:
    keys = jax.random.split(jax.random.key(limit % 100), 3)
    drawn = jax.vmap(lambda key: generator.integers(key, 50, limit))(keys)
    expected = jax.vmap(lambda key: jax.random.randint(key, (50,), 0, limit))(keys)
    np.testing.assert_array_equal(drawn, expected)
    assert drawn.dtype == expected.dtype


def test_other_generators_and_types_are_left_to_jax() -> None:
    key = jax.random.key(1, impl="rbg")
    np.testing.assert_array_equal(generator.integers(key, 9, 50), jax.random.randint(key, (9,), 0, 50))
    np.testing.assert_array_equal(generator.standard_normal(key, 9, jnp.float32), jax.random.normal(key, (9,)))
