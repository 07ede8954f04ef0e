"""What is recorded of a chain: loss, potential, norm, error, temperatures, noise.

Everything is measured on the whole training set (or a fixed subset of it) with exact, chunked sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import trees
from .data import Dataset
from .gradients import exact_sums
from .potential import Potential
from .samplers.base import ChainState, Kernel
from .samplers.langevin_kernel import RATIO_QUANTILES
from .types import Array, Status, Weights

LONG_NAMES = {
    "loss": "mean loss, without the regulariser",
    "potential": "U = loss + λ/(2N)·|w|²",
    "squared_norm": "|w|²",
    "error": "share of misclassified training examples",
    "test_loss": "mean loss on the test set",
    "test_error": "share of misclassified test examples",
    "kinetic_temperature": "⟨p²/M⟩ with the momentum at the time of the weights",
    "virial_temperature": "⟨w·∇U⟩/N with the exact gradient",
    "layer_virial_temperature": "⟨w·∇U⟩/N within each layer",
    "temperature_ratio": "quantiles of 𝒯_i in force",
    "max_temperature_ratio": "largest 𝒯_i in force",
    "peak_temperature_ratio": "largest 𝒯_i found by the last refresh, before masses were raised",
    "stale_heat": "excess of temperature from noise above the old 𝒱, found by the last refresh (0 in the warm-up)",
    "gradient_variance": "mean 𝒱 of each layer",
    "raised_share": "share of masses raised by the last refresh",
    "clipped_share": "share of the weights whose mini-batch noise alone is hotter than T, so that none was injected",
    "refresh_interval": "steps between measurements of 𝒱",
    "num_resets": "how often masses and momenta were started anew",
    "acceptance": "share of moves accepted since the warm-up (during it: since the start)",
    "energy_error": "ΔH/T of the last trajectory",
    "time_step": "δt of the next move",
    "validation_loss": "mean loss on the validation set, when it was last computed",
    "validation_error": "share of misclassified validation examples, when it was last computed",
    "validation_step": "step at which the validation set was last computed",
    "best_step": "step of the best validation so far",
    "dead_class": "whether the score of a class is the same for (nearly) every example",
    "status": "0 running; otherwise why the chain stopped",
}

EXTRA_DIMENSIONS = {
    "layer_virial_temperature": "layer",
    "gradient_variance": "layer",
    "stale_heat": "layer",
    "temperature_ratio": "quantile",
    "dead_class": "class",
}


@dataclass(frozen=True)
class Observer:
    """Which observables to record."""

    potential: Potential
    chunk_size: int | None = None

    def observe(self, kernel: Kernel, state: ChainState, train: Dataset, test: Dataset | None) -> dict[str, Array]:
        """All observables of one chain; `loss` and `potential` as (high, low) pairs, see `compensated`."""
        weights = state.weights
        sums = exact_sums(self.potential, weights, train, self.chunk_size)
        squared_norm = trees.squared_norm(weights)
        regularizer = self.potential.regularizer(weights)
        broken = (state.status == Status.RUNNING) & ~jnp.isfinite(sums.loss.high + sums.loss.low + regularizer)
        record = {
            "loss": jnp.stack(sums.loss),
            "squared_norm": squared_norm,
            "regularizer": regularizer,
            "virial_temperature": trees.dot(weights, sums.gradient) / float(trees.num_weights(weights)),
            "layer_virial_temperature": layer_virial_temperatures(weights, sums.gradient),
            "status": jnp.where(broken, Status.NON_FINITE_ENERGY, state.status),
        }
        if self.potential.per_example_error is not None:
            record["error"] = sums.error
        if sums.dead_class is not None:
            record["dead_class"] = sums.dead_class
        if test is not None:
            test_sums = exact_sums(self.potential, weights, test, self.chunk_size)
            record["test_loss"] = test_sums.loss.high + test_sums.loss.low
            if self.potential.per_example_error is not None:
                record["test_error"] = test_sums.error
        return record | kernel.measure(state, sums.gradient)


def layer_virial_temperatures(weights: Weights, gradient: Weights) -> Array:
    """⟨w·∇U⟩/N of each layer; every one equals T at equilibrium, by the equipartition theorem."""
    pairs = zip(trees.layers(weights).values(), trees.layers(gradient).values(), strict=True)
    return jnp.stack([trees.dot(w, g) / float(trees.num_weights(w)) for w, g in pairs])


def to_host(record: Mapping[str, Array | np.ndarray]) -> dict[str, np.ndarray]:
    """A record as float64 NumPy arrays, the compensated pairs added up, and U formed from them."""
    host = jax.device_get(dict(record))  # all copies at once: on a GPU each waits tens of microseconds
    host["loss"] = host["loss"].astype(np.float64).sum(axis=-1)
    host["potential"] = host["loss"] + host.pop("regularizer")
    return {
        name: value.astype(np.float64) if np.issubdtype(value.dtype, np.floating) else value
        for name, value in host.items()
    }


def coordinates(weights: Weights, record: dict[str, np.ndarray]) -> dict[str, Any]:
    """Coordinates of the dimensions that a record has besides the chain's."""
    coords: dict[str, Any] = {"layer": list(trees.layers(weights))}
    if "temperature_ratio" in record:
        coords["quantile"] = list(RATIO_QUANTILES)
    if "dead_class" in record:
        coords["class"] = np.arange(record["dead_class"].shape[-1])
    return coords
