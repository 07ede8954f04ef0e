"""Arithmetic on pytrees, names of tensors, and packing into one vector."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin._trees import Stream, normal_like, stream_key

TREE: dict[str, Any] = {
    "a": {"kernel": jnp.asarray([[1.0, -2.0], [3.0, 4.0]]), "bias": jnp.asarray([0.5, 0.25])},
    "b": jnp.asarray(2.0),
}


def test_sums_means_and_quantiles():
    assert trees.num_weights(TREE) == 7
    assert float(trees.squared_norm(TREE)) == 1 + 4 + 9 + 16 + 0.25 + 0.0625 + 4
    assert float(trees.dot(TREE, jax.tree.map(jnp.zeros_like, TREE))) == 0
    assert float(trees.mean(TREE)) == pytest.approx((1 - 2 + 3 + 4 + 0.5 + 0.25 + 2) / 7, rel=1e-6)
    np.testing.assert_allclose(trees.by_layer(trees.dot, TREE, TREE), [30.3125, 4.0])
    assert np.isnan(trees.largest(TREE | {"b": jnp.asarray(jnp.nan)}))
    np.testing.assert_allclose(trees.quantiles(TREE, (0.0, 0.5, 1.0)), [-2, 1, 4])
    large = {"a": jnp.arange(2.0**21).reshape(2**11, 2**10), "b": jnp.asarray(2.0**20)}  # every second row
    np.testing.assert_allclose(trees.quantiles(large, (0.25, 0.75)), [2**19, 3 * 2**19], rtol=0.01)


def test_only_floating_point_numbers_count_as_non_finite():
    tree = {"w": jnp.ones(3), "count": jnp.asarray(1), "key": jax.random.key(0)}
    assert bool(trees.all_finite(tree))
    for bad in (jnp.inf, jnp.nan):
        assert not bool(trees.all_finite(tree | {"w": jnp.asarray([1.0, bad, 0.0])}))


def test_layers_are_the_top_level_entries():
    assert list(trees.layers({"params": TREE})) == list(trees.layers(TREE)) == ["a", "b"]
    assert list(trees.layers({"params": {"only": {"kernel": jnp.ones(2), "bias": jnp.ones(1)}}})) == ["bias", "kernel"]
    assert list(trees.layers([jnp.ones(2), jnp.ones(3)])) == ["0", "1"]
    assert list(trees.layers(jnp.ones(2))) == ["weights"]
    assert list(trees.layers({"empty": {}, "a": jnp.ones(1), "b": jnp.ones(1)})) == ["a", "b"]


def test_the_fingerprint_differs_where_weights_differ():
    nearly = TREE | {"b": jnp.nextafter(TREE["b"], jnp.inf)}
    assert int(trees.fingerprint(TREE)) == int(jax.jit(trees.fingerprint)(TREE)) != int(trees.fingerprint(nearly))


WEIGHTS = {
    "embedding": {"table": jnp.ones((3, 2))},
    "layer1": {"kernel": jnp.full((2, 2), 2.0), "bias": jnp.zeros(2)},
    "layer2": {"kernel": jnp.full((2, 1), 3.0), "bias": jnp.zeros(1)},
}


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        ("layer2.*", ["layer2.bias", "layer2.kernel"]),
        ("!embedding*", ["layer1.bias", "layer1.kernel", "layer2.bias", "layer2.kernel"]),
        (["!layer*", "layer2.bias"], ["embedding.table", "layer2.bias"]),
    ],
)
def test_patterns_choose_tensors(selection, names):
    assert [name for name, taken in trees.named_leaves(trees.chosen(WEIGHTS, selection)) if taken] == names


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ("layer3.*", "matches no tensor; the names are embedding.table, layer1.bias"),
        (["*", "!*"], "chooses no tensor"),
        ([], "is not a pattern"),
    ],
)
def test_bad_selections_are_rejected(selection, message):
    with pytest.raises(ValueError, match=message):
        pl.subset(pl.Potential(lambda w, batch: batch[0]), WEIGHTS, selection)


def test_packing_and_unpacking(monkeypatch):
    packed = trees.pack(TREE)
    assert jax.tree.leaves(packed)[0].shape == (7,)
    jax.tree.map(np.testing.assert_array_equal, trees.unpack(packed), TREE)
    assert trees.unpack(TREE) is TREE
    assert trees.pack_like(TREE, TREE) is TREE
    doubled = jax.tree.map(jnp.add, packed, trees.pack_like(packed, TREE))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, 2 * b), trees.unpack(doubled), TREE)
    assert trees.is_packable(TREE, TREE)
    assert not trees.is_packable(TREE, TREE | {"b": jnp.ones(1)})  # one mass for several weights
    assert not trees.is_packable(TREE, TREE | {"b": TREE["b"].astype(jnp.bfloat16)})
    monkeypatch.setattr(trees, "LARGE_TENSOR", 7)
    assert not trees.is_packable(TREE)


def test_a_segment_with_packed_tensors_gives_the_same_chain(small_task, monkeypatch):
    sampler = pl.pseudo_langevin(small_task.potential, small_task.train, batch_size=50, variance_examples=200)
    state = jax.jit(lambda s, w: s.init(jax.random.key(0), w, 1e-3))(sampler, small_task.weights)
    packed_state = sampler.pack(state)
    per_weight = ("weights", "half_step_momentum", "masses", "gradient_variance")
    assert all(isinstance(getattr(packed_state, name), trees.Flat) for name in per_weight)
    key = stream_key(state.key, Stream.NOISE)
    noise = [normal_like(key, s.weights, 3) for s in (packed_state, state)]
    np.testing.assert_array_equal(noise[0].vector, trees.ravel(noise[1]))
    shared = state._replace(masses=jax.tree.map(lambda m: jnp.mean(m, keepdims=True), state.masses))
    assert sampler.pack(shared) is shared

    packed = jax.jit(lambda s, state: s.segment(state, 20))(sampler, state)
    monkeypatch.setattr(trees, "is_packable", lambda *_: False)
    separate = jax.jit(lambda s, state: s.segment(state, 20))(sampler, state)
    moved = np.asarray(trees.ravel(separate.weights) - trees.ravel(state.weights))
    # Rounding alone: 2⁻²⁴ of every number, 20 times.
    difference = np.asarray(trees.ravel(packed.weights) - trees.ravel(separate.weights))
    assert np.linalg.norm(difference) < 1e-5 * np.linalg.norm(moved)
    assert isinstance(packed.weights, dict)
    assert int(packed.step) == 20
