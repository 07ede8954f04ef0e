"""The paper's network against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees


@pytest.mark.parametrize(("width", "published"), [(50, 11_160), (500, 101_610), (5000, 1_006_110)])
def test_the_sizes_of_the_networks_in_the_paper(width, published):
    shapes = jax.eval_shape(pl.models.feedforward((100, width, 100, 10)).init, jax.random.key(0))
    assert trees.num_weights(shapes) == published == 201 * width + 1110


@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_the_forward_pass_is_that_of_numpy(activation):
    network = pl.models.feedforward((6, 5, 4, 3), output_activation=activation)
    weights = network.init(jax.random.key(0))
    inputs = np.random.default_rng(0).choice([-1, 1], size=(20, 6)).astype(np.int8)
    z = inputs.astype(np.float64)
    for index in (1, 2, 3):
        layer = {name: np.asarray(value, np.float64) for name, value in weights[f"layer{index}"].items()}
        z = z @ layer["kernel"] + layer["bias"]
        if index < 3 or activation == "relu":
            z = np.maximum(z, 0)
    np.testing.assert_allclose(network.apply(weights, jnp.asarray(inputs)), z, rtol=1e-5, atol=1e-6)
    negative = (z < 0).any()
    assert negative == (activation == "identity")


def test_initial_weights_fill_the_interval_of_each_layer():
    weights = pl.models.feedforward((100, 50, 100, 10)).init(jax.random.key(3))
    for layer, num_in in (("layer1", 100), ("layer2", 50), ("layer3", 100)):
        kernel = np.asarray(weights[layer]["kernel"]) * np.sqrt(num_in)
        assert np.abs(kernel).max() <= 1 + 1e-6
        variance, fourth = 1 / 3, 1 / 5
        assert abs(np.mean(kernel**2) - variance) < 3 * np.sqrt((fourth - variance**2) / kernel.size)
        assert abs(np.mean(kernel)) < 3 * np.sqrt(variance / kernel.size)
        assert weights[layer]["kernel"].dtype == jnp.float32
