"""The paper's feed-forward network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Num

from .._checks import check_choice
from .._trees import Array, Batch, Key, Weights
from . import fast


@dataclass(frozen=True)
class FeedForward:
    """Fully connected layers, a⁽ˡ⁾ = z⁽ˡ⁻¹⁾·W⁽ˡ⁾ + b⁽ˡ⁾, z⁽ˡ⁾ = max(0, a⁽ˡ⁾) (eq:FFN)."""

    sizes: tuple[int, ...]
    output_activation: str
    hidden_activation: str = "relu"

    def init(self, key: Key) -> Weights:
        """Return random weights, uniform in ±1/√(inputs of the layer), kernels and biases alike."""
        weights = {}
        for index, (num_in, num_out) in enumerate(zip(self.sizes[:-1], self.sizes[1:], strict=True), start=1):
            kernel_key, bias_key = jax.random.split(jax.random.fold_in(key, index))
            bound = num_in**-0.5
            weights[f"layer{index}"] = {
                "kernel": jax.random.uniform(kernel_key, (num_in, num_out), jnp.float32, -bound, bound),
                "bias": jax.random.uniform(bias_key, (num_out,), jnp.float32, -bound, bound),
            }
        return weights

    def apply(self, weights: Weights, inputs: Num[Array, "examples in"]) -> Float[Array, "examples out"]:
        """Return the logits z⁽ˡ⁾ of the last layer, before the softmax."""
        return self.trace(weights, inputs)[0]

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.sizes) - 1

    def loss_hooks(self, output_loss: Callable[[Array, Any], Array], *, is_cross_entropy: bool) -> dict[str, Any]:
        """Return faster versions of a potential's `gradient`, `slopes` and `gradient_moments` for this network.

        Args:
            output_loss: maps (outputs, targets) of S examples to S losses.
            is_cross_entropy: whether `output_loss` is the cross-entropy of integer labels.
        """

        def total_loss(weights: Weights, batch: Batch, coefficients: Array) -> Array:
            return jnp.sum(coefficients * output_loss(self.apply(weights, batch[0]), batch[1]))

        def gradient(
            weights: Weights, batch: Batch, coefficients: Array | None, precision: str | None, split: bool
        ) -> Weights:
            def plain(weights: Weights, batch: Batch, coefficients: Array) -> Weights:
                with jax.default_matmul_precision(precision):
                    return jax.grad(total_loss)(weights, batch, coefficients)

            # A constant of the program: on a GPU, making the array would be a launch.
            mean: Any = np.full(batch[1].shape[:1], 1 / batch[1].shape[0], weights["layer1"]["kernel"].dtype)
            each = mean if coefficients is None else coefficients
            return fast.cross_entropy_gradient(self, plain, weights, batch, each, precision, split)

        def slopes(weights: Weights, velocity: Weights, batch: Batch, precision: str | None, split: bool) -> Array:
            def plain(weights: Weights, velocity: Weights, batch: Batch) -> Array:
                def losses(weights: Weights) -> Array:
                    return output_loss(self.apply(weights, batch[0]), batch[1])

                with jax.default_matmul_precision(precision):
                    return jax.jvp(losses, (weights,), (velocity,))[1]

            return fast.cross_entropy_slopes(self, plain, weights, velocity, batch, precision, split)

        moments = {"gradient_moments": partial(fast.layer_moments, self, output_loss)}
        has_kernels = is_cross_entropy and self.hidden_activation == "relu"
        return moments | ({"gradient": gradient, "slopes": slopes} if has_kernels else {})

    def trace(
        self, weights: Weights, inputs: Num[Array, "examples in"], offsets: Sequence[Array] | None = None
    ) -> tuple[Float[Array, "examples out"], list[Array]]:
        """Return the logits and the inputs of every layer, with `offsets` added to the pre-activations a⁽ˡ⁾.

        The derivative with respect to an offset is the derivative with respect to the pre-activation of each example,
        from which the gradients of single examples follow.
        """
        if inputs.shape[1:] != (self.sizes[0],):
            found = f"an input has shape {inputs.shape[1:]} and the network takes {self.sizes[0]} components"
            raise ValueError(f"{found}; change the first of its sizes, or the inputs")
        hidden, layer_inputs = inputs, []
        for index in range(1, self.depth + 1):
            layer = weights[f"layer{index}"]
            hidden = hidden.astype(layer["kernel"].dtype)
            layer_inputs.append(hidden)
            hidden = hidden @ layer["kernel"] + layer["bias"]
            if offsets is not None:
                hidden = hidden + offsets[index - 1]
            activation = self.hidden_activation if index < self.depth else self.output_activation
            hidden = getattr(jax.nn, activation)(hidden)
        return hidden, layer_inputs


def feedforward(
    sizes: Sequence[int], *, output_activation: str = "relu", hidden_activation: str = "relu"
) -> FeedForward:
    """Return a feed-forward network, with ReLU on every layer unless another activation is chosen.

    Args:
        sizes: the widths from the input to the output; the paper's are (100, L1, 100, 10).
        output_activation: "relu" as in the paper, or "identity". With "relu" a class can lose every signal ("dead
            classes" are reported while sampling).
        hidden_activation: "relu" as in the paper, "tanh", "gelu" or "silu"; the fused kernels are for "relu" only.

    Example:
        >>> network = feedforward((100, 50, 100, 10))
        >>> weights = network.init(jax.random.key(0))
        >>> network.apply(weights, jnp.ones((3, 100))).shape
        (3, 10)
    """
    sizes = tuple(sizes) if isinstance(sizes, Sequence) else (sizes,)
    if len(sizes) < 2 or any(not isinstance(size, int) or size < 1 for size in sizes):
        raise ValueError(f"sizes = {sizes}: give at least an input and an output width, all positive integers")
    check_choice("output_activation", output_activation, ("identity", "relu"))
    check_choice("hidden_activation", hidden_activation, ("relu", "tanh", "gelu", "silu"))
    return FeedForward(sizes, output_activation, hidden_activation)
