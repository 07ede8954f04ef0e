"""Data sets, mini-batches, and folds over all examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin.data.dataset import fold_chunks
from pseudolangevin.gradients import exact_sums


def numbered(num_examples: int) -> pl.Dataset:
    """Return a data set in which every example is its own number."""
    return pl.Dataset(np.arange(num_examples, dtype=np.int32), np.arange(num_examples, dtype=np.int32))


@pytest.mark.parametrize(("num_examples", "chunk_size"), [(1, 1), (7, 50), (12, 4), (40, 11)])
def test_a_fold_visits_every_example_once_and_in_order(num_examples, chunk_size):
    def fold(carry, batch, mask):
        counts, previous, in_order = carry
        indices = batch[0]
        assert indices.shape == (min(chunk_size, num_examples),)  # bounded memory
        first_new = jnp.min(jnp.where(mask, indices, num_examples))
        counts = counts.at[indices].add(mask.astype(jnp.int32))
        return counts, jnp.max(indices), in_order & (first_new == previous + 1)

    start = (jnp.zeros(num_examples, jnp.int32), jnp.asarray(-1, jnp.int32), jnp.asarray(True))
    counts, last, in_order = fold_chunks(fold, start, numbered(num_examples), chunk_size)
    np.testing.assert_array_equal(counts, 1)
    assert int(last) == num_examples - 1
    assert bool(in_order)


def test_the_data_are_arguments_of_compiled_functions_and_not_constants(linear_task):
    potential, weights, num = linear_task.potential, linear_task.weights, linear_task.train.num_examples
    sampler = pl.pseudo_langevin(potential, linear_task.train, batch_size=16)
    for function in (
        lambda s: exact_sums(potential, weights, s.dataset, 128).gradient,
        lambda s: s.segment(s.init(jax.random.key(0), weights, 1e-3), 3).weights,
    ):
        assert all(np.size(constant) < num for constant in jax.make_jaxpr(function)(sampler).consts)
    closed = jax.make_jaxpr(lambda w: potential.energy(w, linear_task.train.batch))(weights)  # the check can fail
    assert any(np.size(constant) >= num for constant in closed.consts)
