"""Tensors as one vector: the same chains."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pseudolangevin.samplers.langevin_kernel import PER_WEIGHT, LangevinKernel

import pseudolangevin as pl
from pseudolangevin import flat, trees
from pseudolangevin.samplers.base import advance

from .conftest import SmallTask

TREE: dict[str, Any] = {"a": jnp.arange(6.0).reshape(2, 3), "b": [jnp.asarray(7.0), jnp.arange(4.0)]}


def test_there_and_back():
    packed = flat.pack(TREE)
    assert jax.tree.leaves(packed)[0].shape == (11,)
    jax.tree.map(np.testing.assert_array_equal, flat.unpack(packed), TREE)
    assert flat.unpack(TREE) is TREE
    assert flat.pack_like(TREE, TREE) is TREE
    doubled = jax.tree.map(jnp.add, packed, flat.pack_like(packed, TREE))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, 2 * b), doubled.tree, TREE)


def test_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flat.fits(TREE, TREE)
    assert not flat.fits(TREE, TREE | {"a": jnp.ones((1, 3))})  # a mass for a whole column
    assert not flat.fits(TREE, TREE | {"a": TREE["a"].astype(jnp.bfloat16)})
    monkeypatch.setattr(trees, "LARGE", 11)
    assert not flat.fits(TREE)


@pytest.fixture(scope="module")
def started(small_task: SmallTask) -> tuple[LangevinKernel, Any]:
    kernel = pl.pseudo_langevin(small_task.potential, small_task.train, batch_size=50, variance_examples=200).kernel
    assert isinstance(kernel, LangevinKernel)
    init = jax.jit(lambda w, data: kernel.init(jax.random.key(0), w, jnp.asarray(1e-3), data))
    return kernel, init(small_task.weights, small_task.train)


def test_chains_are_those_of_separate_tensors(
    small_task: SmallTask, started: tuple[LangevinKernel, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, state = started
    packed = jax.jit(lambda s, data: advance(kernel, s, data, 20))(state, small_task.train)
    monkeypatch.setattr(flat, "fits", lambda *_: False)
    separate = jax.jit(lambda s, data: advance(kernel, s, data, 20))(state, small_task.train)
    moved = np.asarray(trees.ravel(separate.weights) - trees.ravel(state.weights))
    # Rounding alone: 2⁻²⁴ of every number, 20 times.
    difference = np.asarray(trees.ravel(packed.weights) - trees.ravel(separate.weights))
    assert np.linalg.norm(difference) < 1e-5 * np.linalg.norm(moved)
    momenta = [np.asarray(trees.ravel(s.half_step_momentum)) for s in (packed, separate)]
    assert np.linalg.norm(momenta[0] - momenta[1]) < 1e-5 * np.linalg.norm(momenta[1])
    assert isinstance(packed.weights, dict)
    assert int(packed.step) == 20


def test_the_state_of_a_segment_is_packed_and_its_noise_the_same(
    small_task: SmallTask, started: tuple[LangevinKernel, Any]
) -> None:
    kernel, state = started
    packed = kernel.pack(state, small_task.train)
    assert all(isinstance(getattr(packed, name), flat.Flat) for name in PER_WEIGHT)
    noise = jax.jit(kernel.noise)
    np.testing.assert_array_equal(noise(packed).vector, trees.ravel(noise(state)))
    jax.tree.map(np.testing.assert_array_equal, kernel.unpack(packed).masses, state.masses)
    mesh = jax.make_mesh((1, 1, 1), ("chains", "data", "weights"))
    assert kernel.pack(state, small_task.train.with_mesh(mesh)) is state
    shared = state._replace(masses=jax.tree.map(lambda m: jnp.mean(m, keepdims=True), state.masses))
    assert kernel.pack(shared, small_task.train) is shared
