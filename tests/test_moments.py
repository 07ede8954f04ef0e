"""𝒱 from the gradients of single examples."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import gradients, moments, noise, trees


def flat(tree: object) -> np.ndarray:
    return np.asarray(trees.ravel(tree), np.float64)


@pytest.fixture(scope="module")
def problem() -> tuple[pl.Potential, dict, pl.Dataset]:
    train, _ = pl.tasks.spin_vectors(jax.random.key(1), num_train=253, num_test=1, dimension=8, num_classes=3)
    network = pl.models.feedforward((8, 6, 5, 3))
    weights = jax.tree.map(lambda w: 2 * w, network.init(jax.random.key(0)))
    return pl.classification(network.apply, weight_decay=5.0), weights, train


def by_numpy(potential: pl.Potential, weights: dict, train: pl.Dataset, batch_size: int) -> np.ndarray:
    def one(index: jax.Array) -> jax.Array:
        example = jax.tree.map(lambda a: a[index][None], train.batch)
        return trees.ravel(jax.grad(potential.loss)(weights, example))

    each = np.asarray(jax.vmap(one)(jnp.arange(train.num_examples)), np.float64)
    return each.var(axis=0) / batch_size


@pytest.mark.parametrize("known_layers", [True, False])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_every_example_once(problem: tuple, known_layers: bool, kind: str) -> None:
    potential, weights, train = problem
    if kind == "regression":
        potential = pl.regression(pl.models.feedforward((8, 6, 5, 3)).apply)
        train = pl.Dataset(train.inputs, jax.random.normal(jax.random.key(4), (train.num_examples, 3)))
    if not known_layers:
        potential = dataclasses.replace(potential, layered=None)
    got = moments.variance(
        potential, jax.random.key(0), weights, train, batch_size=7, num_examples=10_000, chunk_size=100
    )
    expected = by_numpy(potential, weights, train, 7)
    np.testing.assert_allclose(flat(got), expected, rtol=1e-4, atol=1e-6 * expected.max())


def test_agrees_with_mini_batches_within_their_error(problem: tuple) -> None:
    potential, weights, train = problem
    exact = flat(
        moments.variance(
            potential, jax.random.key(0), weights, train, batch_size=25, num_examples=10_000, chunk_size=300
        )
    )
    oracle = gradients.minibatch(potential, 25)
    num = 2_000
    drawn = jax.jit(
        lambda k: noise.from_minibatches(oracle, k, weights, train, max_batches=num, tolerance=1e-9).variance
    )
    ratio = flat(drawn(jax.random.key(5)))[exact > 0] / exact[exact > 0]
    assert not np.any(flat(drawn(jax.random.key(5)))[exact == 0])
    # A variance from n nearly Gaussian draws has the relative error √(2/n); components are correlated, so a loose 3.5.
    assert np.abs(ratio - 1).max() < 5 * np.sqrt(2 / num)
    assert abs(ratio.mean() - 1) < 3.5 * np.sqrt(2 / num)


def test_drawn_examples_are_unbiased(problem: tuple) -> None:
    potential, weights, train = problem
    exact = flat(
        moments.variance(potential, jax.random.key(0), weights, train, batch_size=4, num_examples=253, chunk_size=64)
    )

    def drawn(key: jax.Array) -> jax.Array:
        return trees.ravel(
            moments.variance(potential, key, weights, train, batch_size=4, num_examples=20, chunk_size=10)
        )

    estimates = np.asarray(jax.jit(jax.vmap(drawn))(jax.random.split(jax.random.key(2), 4_000)), np.float64)
    noisy = exact > 1e-3 * exact.max()
    error = estimates[:, noisy].std(axis=0) / np.sqrt(len(estimates))
    assert np.abs((estimates[:, noisy].mean(axis=0) - exact[noisy]) / error).max() < 4.5


def test_the_sampler_takes_what_it_is_told(problem: tuple) -> None:
    potential, weights, train = problem
    options: dict[str, Any] = {"batch_size": 25, "variance_block": 100, "variance_max_batches": 100}
    exact = flat(
        moments.variance(potential, jax.random.key(0), weights, train, batch_size=25, num_examples=253, chunk_size=64)
    )

    def in_force(**changes: Any) -> np.ndarray:
        sampler = pl.pseudo_langevin(potential, train, **options | changes)
        return flat(sampler.kernel.init(jax.random.key(0), weights, jnp.asarray(1e-4), train).gradient_variance)

    np.testing.assert_allclose(in_force(), exact, rtol=1e-4, atol=1e-6 * exact.max())
    drawn = in_force(variance_from="minibatches")
    assert 0.05 < np.std(drawn[exact > 0] / exact[exact > 0]) < 0.3
    some = in_force(variance_examples=100)
    assert np.any(some != in_force())
    unknown = dataclasses.replace(potential, layered=None)
    sampler = pl.pseudo_langevin(unknown, train, **options)
    auto = sampler.kernel.init(jax.random.key(0), weights, jnp.asarray(1e-4), train).gradient_variance
    np.testing.assert_allclose(flat(auto), drawn, rtol=1e-4, atol=1e-6 * exact.max())


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"variance_from": "batches"}, "variance_from = 'batches'"), ({"variance_examples": 1}, "variance_examples = 1")],
)
def test_refused(problem: tuple, changes: dict, message: str) -> None:
    potential, _, train = problem
    with pytest.raises(ValueError, match=message):
        pl.pseudo_langevin(potential, train, batch_size=25, **changes)
