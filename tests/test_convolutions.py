"""Convolutions that are rearranged for compiled loops on a CPU give the same numbers in every layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pseudolangevin as pl
from pseudolangevin.gradients import default_chunk_size, exact_sums, fast_convolutions

LAYOUTS = {"last": ("NHWC", "HWIO", "NHWC"), "first": ("NCHW", "OIHW", "NCHW"), "mixed": ("CNHW", "OHWI", "NHWC")}
SHAPES = {"N": 6, "H": 7, "W": 5, "C": 2, "I": 2, "O": 3}


def network(layout: str):
    def apply(weights, images):
        hidden = lax.conv_general_dilated(
            images, weights["kernel"], (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=LAYOUTS[layout]
        )
        return jax.nn.relu(hidden).reshape(images.shape[LAYOUTS[layout][0].index("N")], -1) @ weights["head"]

    return apply


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_chains_are_the_same_in_every_layout(layout):
    image, kernel, _ = LAYOUTS[layout]
    rng = np.random.default_rng(0)
    images = rng.normal(size=[SHAPES[a] for a in image]).astype(np.float32)
    sizes = SHAPES | {"H": 3, "W": 3}
    weights = {
        "kernel": jnp.asarray(rng.normal(size=[2, *(sizes[a] for a in kernel)]), jnp.float32),
        "head": jnp.asarray(rng.normal(size=(2, 60, 4)), jnp.float32),
    }
    plain = jax.grad(lambda w: jnp.sum(jnp.sin(network(layout)(w, images))))
    fast = fast_convolutions(plain)
    expected = jax.jit(jax.vmap(plain))(weights)
    program = jax.jit(jax.vmap(fast)).lower(weights).as_text()
    found = jax.jit(jax.vmap(fast))(weights)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)
    assert "feature_group_count = 2" not in program  # chains one after the other
    assert program.count("[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]") == program.count("stablehlo.convolution")


def test_chunks_are_bounded_by_the_bytes_of_the_intermediate_arrays():
    dataset = pl.Dataset(np.ones((10_000, 4), np.float32), np.zeros(10_000, np.int32))

    def network(width: int):
        return pl.classification(lambda w, x: jnp.tanh(x @ w["a"][:, :width]) @ w["b"][:width])

    small, wide = network(4), network(8_192)
    weights = {"a": jnp.ones((4, 8_192)), "b": jnp.ones((8_192, 3))}
    sizes = [default_chunk_size(None, weights, p.per_example_loss, dataset) for p in (small, wide)]
    assert sizes[0] == 4_096
    assert 2**21 < sizes[1] * 8_192 * 4 * 2 < 2**23
    assert default_chunk_size(77, weights, wide.per_example_loss, dataset) == 77
    loss = exact_sums(wide, weights, dataset, None, with_gradient=False)
    assert loss.gradient is None
    assert float(loss.loss.high) == pytest.approx(np.log(3), rel=1e-4)  # of scores of 8 192
