"""The network of the paper against NumPy; its interpreted GPU kernels and its CPU gradient against plain gradients."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import chains
from pseudolangevin import models as fast
from pseudolangevin.gradients import Friction, minibatch_gradient
from pseudolangevin.models import Blocks, FeedForward

BLOCKS = Blocks(rows=16, hidden=16, back_rows=32, back_hidden=32, splits=2)


@pytest.fixture(autouse=True, scope="module")
def _several_reads_of_slopes() -> Iterator[None]:
    """The forward kernel reads the slopes of these small batches in several parts, as those of large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "SLOPES", 16)
        yield


def problem(network: FeedForward, num_examples: int) -> tuple[pl.Potential, dict, pl.Dataset]:
    num_in, num_classes = network.sizes[0], network.sizes[-1]
    key = jax.random.key(1)
    train, _ = pl.tasks.spin_vectors(key, num_train=num_examples, num_test=1, dimension=num_in, num_classes=num_classes)
    weights = jax.tree.map(lambda w: 2 * w, jax.jit(network.init)(jax.random.key(3)))
    return pl.classification(network.apply, weight_decay=3.0), weights, train


@cache
def by_kernels(network: FeedForward) -> Callable[..., dict]:
    """Return the gradient by kernels, compiled once for each network: programs of the interpreter are long."""
    return jax.jit(partial(fast.by_kernels, network, 1, blocks=BLOCKS, interpret=True))


def relative_error(got: dict, reference: dict) -> float:
    distances = jax.tree.map(lambda a, b: np.linalg.norm(a - np.asarray(b)) / np.linalg.norm(b), got, reference)
    return max(float(d) for d in jax.tree.leaves(distances))


@partial(jax.jit, static_argnums=0)
def rounded_gradient(network: FeedForward, weights: dict, train: pl.Dataset) -> dict:
    """Return the gradient by explicit backpropagation, with factors rounded as in the kernels."""

    def rounded(array: jax.Array) -> jax.Array:
        return array.astype(jnp.bfloat16).astype(jnp.float32)

    one, two, three = (weights[f"layer{i}"] for i in (1, 2, 3))
    x, labels = train.inputs.astype(jnp.float32), train.targets
    h = jnp.maximum(x @ rounded(one["kernel"]) + rounded(one["bias"]), 0)
    z = rounded(h) @ rounded(two["kernel"]) + two["bias"]
    a = rounded(jnp.maximum(z, 0))
    scores = a @ rounded(three["kernel"]) + three["bias"]
    relu = network.output_activation == "relu"
    probabilities = jax.nn.softmax(jnp.maximum(scores, 0) if relu else scores)
    error = (probabilities - jax.nn.one_hot(labels, scores.shape[1])) / len(labels)
    error = jnp.where(scores > 0, error, 0) if relu else error
    dz = jnp.where(z > 0, rounded(error) @ rounded(three["kernel"]).T, 0)
    dh = rounded(jnp.where(h > 0, rounded(dz) @ rounded(two["kernel"]).T, 0))
    return {
        "layer1": {"kernel": x.T @ dh, "bias": dh.sum(0)},
        "layer2": {"kernel": rounded(h).T @ rounded(dz), "bias": rounded(dz).sum(0)},
        "layer3": {"kernel": a.T @ rounded(error), "bias": rounded(error).sum(0)},
    }


@pytest.mark.parametrize(
    ("sizes", "output_activation", "num_examples"),
    [((20, 40, 30, 5), "relu", 70), ((126, 32, 126, 16), "identity", 32)],
    ids=["nothing divides", "largest that fits"],
)
def test_kernels_give_the_gradient(sizes: tuple[int, ...], output_activation: str, num_examples: int) -> None:
    network = pl.models.feedforward(sizes, output_activation=output_activation)
    potential, weights, train = problem(network, num_examples)
    gradient = by_kernels(network)(weights, train.batch)
    reference = jax.jit(jax.grad(potential.loss))(weights, train.batch)
    assert relative_error(gradient, rounded_gradient(network, weights, train)) < 1e-4  # the order of sums
    assert relative_error(gradient, reference) < 0.05  # the rounding itself: 8 bits, of few examples


def a_friction(weights: dict, limit: float) -> Friction:
    """Return a friction on 40 of 70 examples, next to a gradient on 50 of them, which it exceeds by far."""
    velocity = jax.tree.map(jnp.cos, weights)
    return Friction(
        velocity, jnp.float32(0.5), jnp.float32(1.5), strength=0.3, limit=limit, num_kicked=50, num_examples=40
    )


@pytest.mark.parametrize("limit", [1e6, 7.0], ids=["free", "bounded"])
def test_the_friction_is_a_gradient_with_centred_slopes_as_coefficients(limit: float) -> None:
    network = pl.models.feedforward((20, 40, 30, 5))
    potential, weights, train = problem(network, 50)
    friction = a_friction(weights, limit)

    def losses(weights: dict) -> jax.Array:
        return potential.per_example_loss(weights, train.batch)

    slopes = np.asarray(jax.jvp(losses, (weights,), (friction.velocity,))[1])[:40] / 0.5
    centred = slopes - slopes.mean()
    assert (limit < np.sum(centred**2)) == (limit == 7.0)
    coefficients = np.full(50, 1 / 50)
    coefficients[:40] += 1.5 * 0.3 * centred * min(1, limit / np.sum(centred**2))
    reference = jax.grad(lambda w: jnp.sum(jnp.asarray(coefficients, jnp.float32) * losses(w)))(weights)
    plain = pl.classification(network.apply)
    assert relative_error(minibatch_gradient(plain, weights, train.batch, friction=friction), reference) < 1e-5
    assert relative_error(by_kernels(network)(weights, train.batch, friction), reference) < 0.05


def test_slopes_by_the_kernel_agree_with_automatic_differentiation() -> None:
    network = pl.models.feedforward((20, 40, 30, 5))
    potential, weights, train = problem(network, 70)
    velocity = jax.tree.map(jnp.cos, weights)
    packed = jnp.concatenate([fast.pack(weights, 64, 1.0), fast.pack(velocity, 64, 0.0)])
    slopes = jax.jvp(lambda w: potential.per_example_loss(w, train.batch), (weights,), (velocity,))[1]
    inputs = fast._packed_batch(train.batch, 10)
    found = np.asarray(fast.slopes_by_kernel(network, packed, 64, inputs, 70, BLOCKS, interpret=True))[:70]
    assert np.median(np.abs(found - slopes)) < 0.01 * np.std(slopes)
    assert np.corrcoef(found, slopes)[0, 1] > 0.995  # a unit near zero may be active in one of them only


def test_the_gradient_of_a_chain_does_not_depend_on_other_chains() -> None:
    network = pl.models.feedforward((20, 40, 30, 5))
    _, weights, train = problem(network, 50)
    several = jax.tree.map(lambda w: jnp.stack([w, 2 * w, -w]), weights)
    one = by_kernels(network)
    together = jax.jit(jax.vmap(lambda w: one(w, train.batch, a_friction(w, 7.0))))(several)
    for chain in range(3):
        own = jax.tree.map(lambda w, c=chain: w[c], several)
        alone = one(own, train.batch, a_friction(own, 7.0))
        jax.tree.map(lambda a, b, c=chain: np.testing.assert_array_equal(a[c], b), together, alone)


def test_a_step_uses_the_kernels_on_a_gpu_only() -> None:
    network = pl.models.feedforward((20, 40, 30, 5))
    potential, weights, train = problem(network, 200)

    def calls(platform: str, precision: str | None) -> int:
        sampler = pl.pseudo_langevin(potential, train, batch_size=20, precision=precision)
        states = pl.Run(sampler, temperatures=[1e-4], num_chains=3).abstract_states(weights)
        traced = chains._segment.trace(sampler, states, 4, 1)
        return traced.lower(lowering_platforms=(platform,)).as_text().count("xla.gpu.triton")

    assert calls("cuda", None) == 2  # forward and backward, once for all chains
    assert calls("cuda", "tensorfloat32") == 0
    assert calls("cpu", None) == 0


def test_problems_that_the_kernels_apply_to() -> None:
    def applies(sizes: tuple[int, ...], num: int = 10, dtype: Any = jnp.int8, precision: str | None = None) -> bool:
        inputs = jnp.zeros((num, sizes[0]), dtype)
        return fast.kernels_apply(pl.models.feedforward(sizes), inputs, precision)

    assert applies((20, 40, 30, 5))
    assert applies((20, 40, 30, 5), precision="bfloat16")
    assert not applies((20, 40, 30, 5), precision="highest")
    assert not applies((20, 40, 30, 5), dtype=jnp.float32)  # rounding would change the data
    assert applies((20, 40, 30, 5), dtype=jnp.float32, precision="bfloat16")
    for sizes in [(127, 40, 30, 5), (20, 40, 127, 5), (20, 40, 30, 17), (20, 40, 5), (20, 40, 30, 30, 5)]:
        assert not applies(sizes)
    assert not applies((20, 5_000, 30, 5), num=128)
    assert applies((20, 5_000, 30, 5), num=5_000)


def assert_close_to_double(potential: pl.Potential, got: dict, weights: dict, train: pl.Dataset) -> None:
    """Compare with the plain gradient in float64, to the rounding of sums of a few hundred products in float32."""
    with jax.enable_x64(True):
        doubled = jax.tree.map(lambda w: jnp.asarray(np.asarray(w), jnp.float64), weights)
        batch = tuple(jnp.asarray(np.asarray(array)) for array in train.batch)
        exact = jax.tree.map(np.asarray, jax.jit(jax.grad(potential.loss))(doubled, batch))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(got))
    assert relative_error(got, exact) < 2e-6


@pytest.mark.parametrize(
    ("sizes", "output_activation", "chunk"),
    [((20, 40, 30, 5), "relu", 1024), ((20, 40, 30, 5), "relu", 20), ((20, 5), "identity", 35)],
    ids=["one chunk", "chunks and a rest", "one layer, equal chunks"],
)
def test_the_gradient_with_features_first(monkeypatch, sizes, output_activation, chunk) -> None:
    monkeypatch.setattr(fast, "DENSE_CHUNK", chunk)
    network = pl.models.feedforward(sizes, output_activation=output_activation)
    potential, weights, train = problem(network, 70)
    gradient, mean = fast._by_chains(fast._dense_gradient, network), jnp.full((70,), 1 / 70, jnp.float32)
    assert_close_to_double(potential, jax.jit(gradient)(weights, train.batch, mean), weights, train)
    several = jax.tree.map(lambda w: jnp.stack([0 * w, 100 * w]), weights)  # chains with a common batch; large logits
    together = jax.jit(jax.vmap(gradient, in_axes=(0, None, None)))(several, train.batch, mean)
    large = jax.tree.map(lambda w: 100 * w, weights)
    assert_close_to_double(potential, jax.tree.map(lambda g: g[1], together), large, train)


def test_cases_in_which_the_gradient_with_features_first_is_used(monkeypatch) -> None:
    def marked(network: object, num_chains: int, weights: dict, *_: object) -> dict:
        return jax.tree.map(lambda w: jnp.full_like(w, 7), weights)

    monkeypatch.setattr(fast, "_dense_gradient", marked)
    network = pl.models.feedforward((20, 40, 30, 5))
    _, weights, train = problem(network, 70)

    def used(potential: pl.Potential, batch: tuple = train.batch, **options: Any) -> bool:
        return bool(jnp.all(minibatch_gradient(potential, weights, batch, **options)["layer1"]["bias"] == 7))

    potential = pl.classification(network.apply)
    assert used(potential)
    assert used(potential, (train.inputs.astype(jnp.float32), train.targets), precision="highest")
    assert not used(potential, split=True)
    assert not used(pl.classification(lambda w, x: 1.0 * network.apply(w, x)))
    assert not used(pl.regression(network.apply), (train.inputs, jnp.zeros((70, 5))))


@pytest.mark.parametrize(("hidden", "activation"), [("relu", "relu"), ("relu", "identity"), ("tanh", "identity")])
def test_the_forward_pass_is_that_of_numpy(hidden, activation):
    network = pl.models.feedforward((6, 5, 4, 3), hidden_activation=hidden, output_activation=activation)
    weights = network.init(jax.random.key(0))
    inputs = np.random.default_rng(0).choice([-1, 1], size=(20, 6)).astype(np.int8)
    z = inputs.astype(np.float64)
    for index in (1, 2, 3):
        layer = {name: np.asarray(value, np.float64) for name, value in weights[f"layer{index}"].items()}
        z = z @ layer["kernel"] + layer["bias"]
        if index < 3 or activation == "relu":
            z = np.tanh(z) if hidden == "tanh" else np.maximum(z, 0)
    np.testing.assert_allclose(network.apply(weights, jnp.asarray(inputs)), z, rtol=1e-5, atol=1e-6)
    assert (z < 0).any() == (activation == "identity")


def test_initial_weights_fill_the_interval_of_each_layer_of_the_networks_in_the_paper():
    weights = pl.models.feedforward((100, 50, 100, 10)).init(jax.random.key(3))
    for layer, num_in in (("layer1", 100), ("layer2", 50), ("layer3", 100)):
        kernel = np.asarray(weights[layer]["kernel"]) * np.sqrt(num_in)
        assert np.abs(kernel).max() <= 1 + 1e-6
        assert abs(np.mean(kernel**2) - 1 / 3) < 3 * np.sqrt((1 / 5 - 1 / 9) / kernel.size)  # moments of ±1
        assert abs(np.mean(kernel)) < 3 * np.sqrt(1 / 3 / kernel.size)
        assert weights[layer]["kernel"].dtype == jnp.float32
