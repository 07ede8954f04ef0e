"""Random numbers: the words are those of JAX, and indices and normal numbers have their distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p
from scipy import stats
from scipy.special import erfinv

from pseudolangevin import _trees as trees
from pseudolangevin._trees import draw_indices, normal_like, standard_normal

STEPS, CHAINS, EXAMPLES, BATCH = 200, 4, 50, 60


def test_the_words_are_those_of_jax():
    key, step, numbers = jax.random.key(7), jnp.asarray(2**31 + 5, jnp.uint32), trees.entry_numbers((5, 7, 3), 3)
    np.testing.assert_array_equal(np.ravel(numbers), np.arange(3, 108))
    inputs = (jnp.broadcast_to(k, numbers.shape) for k in (*jax.random.key_data(key), step))
    for word, reference in zip(trees.words(key, step, numbers), threefry2x32_p.bind(*inputs, numbers), strict=True):
        np.testing.assert_array_equal(word, reference)


@pytest.mark.parametrize("bound", [1, 3, 55_800, 2**16 + 1, 2**31 - 1])
def test_an_index_depends_on_all_64_bits(bound):
    high, low = np.random.default_rng(0).integers(0, 2**32, (2, 1000), dtype=np.uint32)
    high[:2], low[:2] = (0, 2**32 - 1), (0, 2**32 - 1)
    edges = [-(-(value << 64) // bound) for value in range(1, min(bound, 4))]  # the first number that yields the next
    values = [int(a) << 32 | int(b) for a, b in zip(high, low, strict=True)] + edges + [edge - 1 for edge in edges]
    upper, lower = (jnp.asarray([v >> shift & 0xFFFFFFFF for v in values], jnp.uint32) for shift in (32, 0))
    np.testing.assert_array_equal(trees.below((upper, lower), bound), [bound * value >> 64 for value in values])


@pytest.fixture(scope="module")
def indices():
    """Indices (chain, step, example)."""
    keys, steps = jax.random.split(jax.random.key(1), CHAINS), jnp.arange(STEPS)
    draw = jax.vmap(jax.vmap(lambda k, s: draw_indices(k, EXAMPLES, BATCH, s), in_axes=(None, 0)), in_axes=(0, None))
    return np.asarray(jax.jit(draw)(keys, steps))


def test_every_example_is_equally_likely(indices):
    for part in (indices, *indices):
        assert stats.chisquare(np.bincount(part.ravel(), minlength=EXAMPLES)).pvalue > 1e-3


@pytest.mark.parametrize("shift", [(0, 1, 0), (1, 0, 0), (0, 0, 1), (1, 1, 0)])
def test_batches_of_other_steps_chains_and_places_are_independent(indices, shift):
    """Pairs of indices in a contingency table of 10 × 10 groups of examples."""
    first, second = indices.ravel() % 10, np.roll(indices, shift, axis=(0, 1, 2)).ravel() % 10
    table = np.bincount(10 * first + second, minlength=100).reshape(10, 10)
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_the_inverse_error_function_is_precise_in_the_middle_and_in_the_tails():
    cells = np.concatenate([np.arange(5_000), np.arange(2**23 - 5_000, 2**23 + 5_000), np.arange(0, 2**24, 1_001)])
    cells = np.concatenate([cells, 2**24 - 1 - np.arange(5_000)])
    x = jnp.asarray((cells - (2**23 - 0.5)) * 2.0**-23, jnp.float32)
    np.testing.assert_allclose(jax.jit(trees.inverse_erf)(x), erfinv(np.asarray(x, np.float64)), rtol=5e-7)


def test_normal_numbers_are_normal_and_independent():
    draw = jax.jit(jax.vmap(lambda step: standard_normal(jax.random.key(2), step, trees.entry_numbers((2_000,)))))
    numbers = np.asarray(draw(jnp.arange(100)), np.float64)
    assert stats.kstest(numbers.ravel(), "norm").pvalue > 1e-3
    for products in (numbers[1:] * numbers[:-1], numbers[:, 1:] * numbers[:, :-1], numbers[1:, 1:] * numbers[:-1, :-1]):
        assert abs(products.mean()) < 4 / np.sqrt(products.size)
    for power, expected, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs(np.mean(numbers**power) - expected) < 4 * np.sqrt(variance / numbers.size)
    assert np.unique(numbers).size > 0.98 * numbers.size  # no word is used twice


def test_noise_depends_on_the_entry_and_not_on_the_shapes_of_the_tensors(monkeypatch):
    key, tree = jax.random.key(3), {"a": jnp.zeros((30, 4)), "b": jnp.zeros(7), "c": jnp.zeros((5, 5, 5))}
    as_one = normal_like(key, jnp.zeros(trees.num_weights(tree)), step=4)
    np.testing.assert_array_equal(trees.ravel(normal_like(key, tree, step=4)), as_one)
    monkeypatch.setattr(trees, "LARGE_TENSOR", 100)  # "a" and "c" come after the small ones
    separate = normal_like(key, tree, step=4)
    in_order = np.concatenate([np.ravel(separate[name]) for name in ("b", "a", "c")])
    np.testing.assert_allclose(in_order, as_one, rtol=1e-6)


def test_a_seed_and_both_kinds_of_keys_are_the_same():
    key, raw = jax.random.key(3), jax.random.PRNGKey(3)
    for same in (3, raw):
        np.testing.assert_array_equal(jax.random.key_data(trees.as_key(same)), jax.random.key_data(key))
    expected = jax.random.key_data(trees.key_for(key, trees.Stream.NOISE, 5))
    for same in (raw, trees.stream_keys(raw)):
        np.testing.assert_array_equal(trees.key_for(same, trees.Stream.NOISE, 5), expected)
    folded = trees.key_for(trees.stream_keys(key), trees.Stream.NOISE, 5)
    np.testing.assert_array_equal(jax.random.key_data(folded), expected)


def test_other_generators_and_precisions_use_jax_random():
    other = jax.random.key(0, impl="rbg")
    first, again, later = (normal_like(other, jnp.zeros(100), step=step) for step in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != later)
    assert set(np.asarray(draw_indices(other, 10, 1000, step=3))) == set(range(10))
    huge = [jax.ShapeDtypeStruct((2**16, 2**16), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.float32)]
    shapes = jax.eval_shape(lambda tree: normal_like(jax.random.key(0), tree), huge)
    assert [leaf.shape for leaf in shapes] == [(2**16, 2**16), (3,)]  # more entries than a step has numbers
    with jax.enable_x64(True):
        noise = normal_like(jax.random.key(0), {"a": jnp.zeros(3, jnp.float32), "b": jnp.zeros(3, jnp.float64)})
        assert (noise["a"].dtype, noise["b"].dtype) == (jnp.float32, jnp.float64)
