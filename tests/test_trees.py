"""Arithmetic on pytrees."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudolangevin import trees


class Pair(NamedTuple):
    first: jax.Array
    second: jax.Array


TREE = {
    "a": {"kernel": jnp.asarray([[1.0, -2.0], [3.0, 4.0]]), "bias": jnp.asarray([0.5, 0.25])},
    "b": jnp.asarray(2.0),
}


def test_counting_norms_and_products():
    assert trees.num_weights(TREE) == 7
    assert float(trees.squared_norm(TREE)) == 1 + 4 + 9 + 16 + 0.25 + 0.0625 + 4
    doubled = jax.tree.map(lambda x: 2 * x, TREE)
    assert float(trees.dot(TREE, doubled)) == 2 * float(trees.squared_norm(TREE))
    assert float(trees.mean(TREE)) == pytest.approx((1 - 2 + 3 + 4 + 0.5 + 0.25 + 2) / 7, rel=1e-6)
    assert trees.ravel(TREE).shape == (7,)
    assert float(trees.squared_norm(trees.zeros_like(TREE))) == 0


@pytest.mark.parametrize("large", [trees.LARGE, 20_000, 10_000])
def test_normal_noise_has_the_tree_s_shape_and_is_independent_between_leaves(monkeypatch, large):
    """As one vector; one of two tensors by itself; both."""
    monkeypatch.setattr(trees, "LARGE", large)
    tree = {"a": jnp.zeros((100, 100)), "b": jnp.zeros((200, 100))}
    noise = trees.normal_like(jax.random.key(0), tree)
    a, b = np.asarray(noise["a"]).ravel(), np.asarray(noise["b"]).ravel()
    standard_error = 1 / np.sqrt(a.size)
    assert abs(a.mean()) < 3 * standard_error
    assert abs(a.var() - 1) < 3 * np.sqrt(2) * standard_error
    assert abs(b.var() - 1) < 3 * np.sqrt(2) * standard_error
    for half in (b[: a.size], b[a.size :]):
        assert abs(np.mean(a * half)) < 3 * standard_error
    again = trees.normal_like(jax.random.key(0), tree)
    np.testing.assert_array_equal(noise["a"], again["a"])


def test_noise_keeps_each_leaf_s_precision():
    with jax.enable_x64(True):
        noise = trees.normal_like(jax.random.key(0), {"a": jnp.zeros(3, jnp.float32), "b": jnp.zeros(3, jnp.float64)})
        assert (noise["a"].dtype, noise["b"].dtype) == (jnp.float32, jnp.float64)


def test_extremes_and_quantiles(monkeypatch):
    assert float(trees.largest(TREE)) == 4
    assert np.isnan(trees.largest(TREE | {"b": jnp.asarray(jnp.nan)}))
    np.testing.assert_allclose(trees.quantiles(TREE, (0.0, 0.5, 1.0)), [-2, 1, 4])
    tree = {"a": jnp.arange(10_000.0).reshape(100, 100), "b": jnp.asarray(5_000.0), "c": jnp.full((3,), 5_000.0)}
    monkeypatch.setattr(trees, "QUANTILE_ENTRIES", 2_000)
    np.testing.assert_allclose(trees.quantiles(tree, (0.25, 0.75)), [2_500, 7_500], rtol=0.1)


def test_select_takes_a_whole_tree():
    other = trees.zeros_like(TREE)
    assert float(trees.squared_norm(trees.select(jnp.asarray(True), TREE, other))) > 0
    assert float(trees.squared_norm(trees.select(jnp.asarray(False), TREE, other))) == 0


def test_finiteness_looks_at_floats_alone():
    tree = {"w": jnp.ones(3), "count": jnp.asarray(1), "key": jax.random.key(0)}
    assert bool(trees.all_finite(tree))
    assert not bool(trees.all_finite(tree | {"w": jnp.asarray([1.0, jnp.inf, 0.0])}))
    assert not bool(trees.all_finite(tree | {"w": jnp.asarray([1.0, jnp.nan, 0.0])}))


def test_layers_are_the_top_level_entries():
    assert list(trees.layers(TREE)) == ["a", "b"]
    assert list(trees.layers({"params": TREE})) == ["a", "b"]
    assert list(trees.layers({"params": {"only": {"kernel": jnp.ones(2), "bias": jnp.ones(1)}}})) == ["bias", "kernel"]
    assert list(trees.layers([jnp.ones(2), jnp.ones(3)])) == ["0", "1"]
    assert list(trees.layers(Pair(jnp.ones(2), jnp.ones(3)))) == ["first", "second"]
    assert list(trees.layers(jnp.ones(2))) == ["weights"]
    assert list(trees.layers({"empty": {}, "a": jnp.ones(1), "b": jnp.ones(1)})) == ["a", "b"]


def test_by_layer_stacks_in_the_order_of_layers():
    np.testing.assert_allclose(trees.by_layer(trees.squared_norm, TREE), [30.3125, 4.0])
