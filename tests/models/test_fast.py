"""The GPU kernels, run by Pallas' interpreter on the CPU, against the plain gradient."""

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import chains, fused
from pseudolangevin.kernels import Blocks
from pseudolangevin.models import FeedForward

BLOCKS = Blocks(rows=16, hidden=16, back_rows=32, back_hidden=32, splits=2)


def problem(network: FeedForward, num_examples: int) -> tuple[pl.Potential, dict, pl.Dataset]:
    num_in, num_classes = network.sizes[0], network.sizes[-1]
    key = jax.random.key(1)
    train, _ = pl.tasks.spin_vectors(key, num_train=num_examples, num_test=1, dimension=num_in, num_classes=num_classes)
    weights = jax.tree.map(lambda w: 2 * w, jax.jit(network.init)(jax.random.key(3)))
    return pl.classification(network.apply, weight_decay=3.0), weights, train


@cache
def by_kernels(network: FeedForward) -> Callable[..., dict]:
    """Compiled once for each network and number of examples: the interpreter's programs are long."""
    return jax.jit(partial(fused.by_kernels, network, blocks=BLOCKS, interpret=True))


def relative_error(got: dict, reference: dict) -> float:
    distances = jax.tree.map(lambda a, b: np.linalg.norm(a - np.asarray(b)) / np.linalg.norm(b), got, reference)
    return max(float(d) for d in jax.tree.leaves(distances))


@partial(jax.jit, static_argnums=0)
def rounded_gradient(network: FeedForward, weights: dict, train: pl.Dataset) -> dict:
    """Backpropagation by hand, with factors rounded where the kernels round them."""

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
        "layer2": {"kernel": rounded(h).T @ rounded(dz), "bias": dz.sum(0)},
        "layer3": {"kernel": a.T @ rounded(error), "bias": error.sum(0)},
    }


@pytest.mark.parametrize(
    ("sizes", "output_activation", "num_examples"),
    [((20, 40, 30, 5), "relu", 70), ((127, 32, 128, 16), "identity", 32), ((7, 3, 2, 2), "identity", 5)],
    ids=["nothing divides", "largest that fits", "smaller than a tile"],
)
def test_kernels_give_the_gradient(sizes: tuple[int, ...], output_activation: str, num_examples: int) -> None:
    network = pl.models.feedforward(sizes, output_activation=output_activation)
    potential, weights, train = problem(network, num_examples)
    gradient = by_kernels(network)(weights, train.batch)
    reference = jax.jit(jax.grad(potential.loss))(weights, train.batch)
    assert relative_error(gradient, rounded_gradient(network, weights, train)) < 1e-4  # the order of sums
    assert relative_error(gradient, reference) < 0.05  # the rounding itself: 8 bits, of few examples


def test_kernels_are_exact_where_rounding_is() -> None:
    """Weights and inputs that bfloat16 holds exactly leave the rounding of ∂z alone: the labels' pull on dead units."""
    network = pl.models.feedforward((127, 32, 128, 16), output_activation="identity")
    potential, weights, train = problem(network, 32)
    weights = jax.tree.map(lambda w: jnp.round(w * 8) / 8, weights)
    weights["layer2"] = jax.tree.map(jnp.zeros_like, weights["layer2"])
    gradient = by_kernels(network)(weights, train.batch)
    reference = jax.jit(jax.grad(potential.loss))(weights, train.batch)
    np.testing.assert_allclose(gradient["layer3"]["bias"], reference["layer3"]["bias"], atol=1e-7)
    for layer in ("layer1", "layer2"):  # nothing passes a layer of zeros: relu's derivative at zero is zero
        assert not np.any(gradient[layer]["kernel"])
        assert not np.any(reference[layer]["kernel"])


def test_chains_side_by_side() -> None:
    network = pl.models.feedforward((20, 40, 30, 5))
    _, weights, train = problem(network, 70)
    several = jax.tree.map(lambda w: jnp.stack([w, 2 * w, -w]), weights)
    one = by_kernels(network)
    together = jax.jit(jax.vmap(one, in_axes=(0, None)))(several, train.batch)
    for chain in range(3):
        alone = one(jax.tree.map(lambda w, c=chain: w[c], several), train.batch)
        jax.tree.map(lambda a, b, c=chain: np.testing.assert_array_equal(a[c], b), together, alone)


@pytest.mark.parametrize("num_chains", [1, 3])
def test_the_step_uses_the_kernels_on_a_gpu_and_only_there(num_chains: int) -> None:
    network = pl.models.feedforward((20, 40, 30, 5))
    potential, weights, train = problem(network, 200)

    def calls(platform: str, precision: str | None) -> int:
        sampler = pl.pseudo_langevin(potential, train, batch_size=20, precision=precision)
        plan = chains.make_plan(sampler, temperatures=[1e-4], num_chains=num_chains, num_steps=4)
        states = plan.abstract_states(weights)
        traced = chains._advance.trace(sampler.kernel, states, train, num_steps=4)
        return traced.lower(lowering_platforms=(platform,)).as_text().count("xla.gpu.triton")

    assert calls("cuda", None) == 2  # forward and backward, once for all chains
    assert calls("cuda", "tensorfloat32") == 0
    assert calls("cpu", None) == 0


def test_what_fits() -> None:
    network = pl.models.feedforward((20, 40, 30, 5))
    potential, weights, train = problem(network, 10)
    del weights
    assert fused.fits(potential, train.batch, None)
    assert fused.fits(potential, train.batch, "bfloat16")
    assert not fused.fits(potential, train.batch, "highest")
    assert not fused.fits(potential, train.batch, None, split=True)
    real = (train.inputs.astype(jnp.float32), train.targets)
    assert not fused.fits(potential, real, None)  # rounding would change the data
    assert fused.fits(potential, real, "bfloat16")
    for sizes in [(128, 40, 30, 5), (20, 40, 129, 5), (20, 40, 30, 17), (20, 40, 5), (20, 40, 30, 30, 5)]:
        other = pl.classification(pl.models.feedforward(sizes).apply)
        assert not fused.fits(other, train.batch, None)
    wide = pl.classification(pl.models.feedforward((20, 5_000, 30, 5)).apply)
    batches = {num: (jnp.zeros((num, 20), jnp.int8), jnp.zeros(num, jnp.int32)) for num in (128, 5_000)}
    assert not fused.fits(wide, batches[128], None)
    assert fused.fits(wide, batches[5_000], None)
    assert not fused.fits(pl.regression(network.apply), train.batch, None)
    assert not fused.fits(pl.classification(lambda w, x: 1.0 * network.apply(w, x)), train.batch, None)


def test_blocks_leave_no_split_empty_and_fewer_to_many_chains() -> None:
    for hidden, batch_size in [(50, 558), (500, 5_080), (5_000, 50_305), (3, 2)]:
        network = pl.models.feedforward((100, hidden, 100, 10))
        counts = [fused.blocks_for(network, batch_size, chains).splits for chains in (1, 8, 64, 1000)]
        assert counts == sorted(counts, reverse=True)
        assert all(1 <= c <= -(-batch_size // fused.blocks_for(network, batch_size, 1).back_rows) for c in counts)
