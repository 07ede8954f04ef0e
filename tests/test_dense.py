"""The gradient with features first, against the plain one in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import dense, fused

NUM_EXAMPLES = 70


def problem(sizes: tuple[int, ...], output_activation: str) -> tuple[pl.Potential, dict, pl.Dataset]:
    network = pl.models.feedforward(sizes, output_activation=output_activation)
    train, _ = pl.tasks.spin_vectors(
        jax.random.key(1), num_train=NUM_EXAMPLES, num_test=1, dimension=sizes[0], num_classes=sizes[-1]
    )
    weights = jax.tree.map(lambda w: 2 * w, jax.jit(network.init)(jax.random.key(3)))
    return pl.classification(network.apply), weights, train


def in_double(potential: pl.Potential, weights: dict, train: pl.Dataset) -> dict:
    with jax.enable_x64(True):
        doubled = jax.tree.map(lambda w: jnp.asarray(np.asarray(w), jnp.float64), weights)
        batch = tuple(jnp.asarray(np.asarray(array)) for array in train.batch)
        return jax.tree.map(np.asarray, jax.jit(jax.grad(potential.loss))(doubled, batch))


def assert_close(got: dict, exact: dict) -> None:
    """To the rounding of sums of a few hundred products in float32."""

    def check(a: jax.Array, b: np.ndarray) -> None:
        assert a.dtype == jnp.float32
        assert np.linalg.norm(np.asarray(a) - b) <= 2e-6 * np.linalg.norm(b)

    jax.tree.map(check, got, exact)


@pytest.mark.parametrize(
    ("sizes", "output_activation", "chunk"),
    [((20, 40, 30, 5), "relu", 1024), ((20, 40, 30, 5), "relu", 20), ((20, 5), "identity", 35)],
    ids=["whole", "chunks and a rest", "one layer, equal chunks"],
)
def test_it_is_the_gradient(monkeypatch, sizes: tuple[int, ...], output_activation: str, chunk: int) -> None:
    monkeypatch.setattr(dense, "CHUNK", chunk)
    potential, weights, train = problem(sizes, output_activation)
    assert potential.layered is not None
    exact = in_double(potential, weights, train)
    gradient = dense.gradient(potential.layered.network)
    assert_close(jax.jit(gradient)(weights, train.batch), exact)
    several = jax.tree.map(lambda w: jnp.stack([0 * w, w]), weights)  # chains with a batch in common
    together = jax.jit(jax.vmap(gradient, in_axes=(0, None)))(several, train.batch)
    assert_close(jax.tree.map(lambda g: g[1], together), exact)


def test_logits_of_any_size_are_fine() -> None:
    potential, weights, train = problem((20, 40, 30, 5), "identity")
    assert potential.layered is not None
    weights = jax.tree.map(lambda w: 100 * w, weights)
    found = jax.jit(dense.gradient(potential.layered.network))(weights, train.batch)
    assert_close(found, in_double(potential, weights, train))


def test_where_it_is_used(monkeypatch) -> None:
    def marked(network: object) -> object:
        return lambda weights, batch: jax.tree.map(lambda w: jnp.full_like(w, 7), weights)

    monkeypatch.setattr(dense, "gradient", marked)
    potential, weights, train = problem((20, 40, 30, 5), "relu")

    def used(potential: pl.Potential, batch: tuple, **options: object) -> bool:
        found = fused.loss_gradient(potential, weights, batch, **options)  # type: ignore[arg-type]
        return bool(jnp.all(found["layer1"]["bias"] == 7))

    assert used(potential, train.batch)
    assert used(potential, (train.inputs.astype(jnp.float32), train.targets), precision="highest")
    assert not used(potential, train.batch, split=True)
    network = potential.layered.network  # type: ignore[union-attr]
    assert not used(pl.classification(lambda w, x: 1.0 * network.apply(w, x)), train.batch)
    assert not used(pl.regression(network.apply), (train.inputs, jnp.zeros((NUM_EXAMPLES, 5))))
