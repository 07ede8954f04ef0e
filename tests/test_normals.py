"""Normal numbers against the exact distribution function."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import erfinv

from pseudolangevin import normals, threefry


def test_the_inverse_error_function_to_rounding_in_the_middle_and_in_the_tails() -> None:
    cells = np.concatenate([np.arange(5_000), np.arange(2**23 - 5_000, 2**23 + 5_000), np.arange(0, 2**24, 1_001)])
    cells = np.concatenate([cells, 2**24 - 1 - np.arange(5_000)]).astype(np.uint32)
    x = normals._uniform(jnp.asarray(cells << 8))
    exact = erfinv(np.asarray(x, np.float64))
    np.testing.assert_allclose(jax.jit(normals._inverse_erf)(x), exact, rtol=5e-7)


def test_normal_numbers_have_the_moments_of_their_distribution() -> None:
    num = 200_001
    drawn = np.asarray(normals.standard_normal(jax.random.key(3), 5, threefry.numbered((num,))), np.float64)
    for power, exact, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs(np.mean(drawn**power) - exact) < 4 * np.sqrt(variance / num)
    assert np.unique(drawn).size > 0.98 * num  # no word is used twice
