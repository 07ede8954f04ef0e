"""Observables: the quantities recorded from a chain, with their labels and units.

Built-in observables are rows of one table. A user's own are functions f(weights, dataset), passed to `sample` as
`observables={"margin": f}`. Everything is measured on the full training set, or its first examples, with exact sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import _trees as trees
from ._trees import Array, Weights
from .data.dataset import Dataset
from .gradients import exact_means, exact_sums
from .samplers.base import RATIO_QUANTILES, Sampler, Status

OwnObservables = tuple[tuple[str, Callable[[Weights, Dataset], Any]], ...]


class Observable(NamedTuple):
    """Description of an observable in the trace."""

    label: str
    """Short name for axes and tables."""
    long_name: str
    """Explanation in one line."""
    unit: str = ""
    dims: tuple[str, ...] = ()
    """Dimensions besides (temperature, chain, draw)."""


OBSERVABLES = {
    "loss": Observable("loss", "mean loss, without the regulariser"),
    "potential": Observable("U", "potential U, the mean loss plus the regulariser"),
    "squared_norm": Observable("|w|²", "sum of the squared weights"),
    "error": Observable("error", "share of misclassified training examples"),
    "test_loss": Observable("test loss", "mean loss on the test set"),
    "test_error": Observable("test error", "share of misclassified test examples"),
    "kinetic_temperature": Observable(
        "kinetic temperature", "mean of p²/M, with the momentum at the time of the weights", "loss"
    ),
    "virial_temperature": Observable("virial temperature", "w·∇U/N with the exact gradient", "loss"),
    "layer_virial_temperature": Observable(
        "virial temperature by layer", "w·∇U/N within each layer", "loss", ("layer",)
    ),
    "centred_virial_temperature": Observable(
        "virial temperature about a reference",
        "(w − w0)·∇U/N within each layer, with w0 the weights at an earlier record; see pseudolangevin.stein",
        "loss",
        ("reference", "layer"),
    ),
    "direction_position": Observable(
        "position along directions", "projection of the weights on fixed directions", dims=("reference", "direction")
    ),
    "direction_gradient": Observable(
        "gradient along directions", "projection of ∇U on fixed directions", "loss", ("reference", "direction")
    ),
    "temperature_ratio": Observable("temperature ratio", "quantiles of the current ratios", dims=("quantile",)),
    "max_temperature_ratio": Observable("largest temperature ratio", "largest current ratio of any weight"),
    "peak_temperature_ratio": Observable(
        "peak temperature ratio", "largest ratio found by the last refresh, before masses were raised"
    ),
    "gradient_variance": Observable("gradient variance", "mean gradient variance of each layer", dims=("layer",)),
    "raised_share": Observable("raised share", "share of the masses raised by the last refresh"),
    "clipped_share": Observable(
        "clipped share", "share of the weights whose mini-batch noise alone exceeds the thermal noise"
    ),
    "refresh_interval": Observable("refresh interval", "steps between measurements of the variance", "steps"),
    "num_resets": Observable("resets", "number of times that all masses were set and all momenta redrawn"),
    "warmup_end": Observable("end of warm-up", "step at which the masses were fixed; -1 before", "steps"),
    "friction_load": Observable("friction load", "load of the friction at the last refresh; at most 1 is harmless"),
    "acceptance": Observable("acceptance", "share of moves accepted since the warm-up (during it: since the start)"),
    "energy_error": Observable("energy error", "energy error of the last trajectory", "T"),
    "current_temperature": Observable("temperature", "current temperature of an annealed chain", "loss"),
    "swap_acceptance": Observable("swap acceptance", "share of accepted swaps with the next hotter temperature"),
    "replica_temperature": Observable("replica", "temperature at which the current replica started", "loss"),
    "round_trips": Observable("round trips", "trips of the current replica to the hottest temperature and back"),
    "time_step": Observable("time step", "time step of the next move"),
    "validation_loss": Observable("validation loss", "mean loss on the validation set at the last validation"),
    "validation_error": Observable(
        "validation error", "share of misclassified validation examples at the last validation"
    ),
    "validation_step": Observable("validation step", "step of the last validation", "steps"),
    "best_step": Observable("best step", "step of the best validation so far", "steps"),
    "dead_class": Observable(
        "dead class", "whether the score of a class is the same for nearly every example", dims=("class",)
    ),
    "status": Observable("status", "0 while running; otherwise the reason why the chain stopped"),
}


def check_own(observables: Mapping[str, Callable[[Weights, Dataset], Any]] | None) -> OwnObservables:
    """Return a user's observables as a tuple; raise unless they are named functions."""
    if not isinstance(observables, Mapping | None):
        raise ValueError(f"observables = {str(observables)[:60]!r} is not a dict; pass names and functions")
    dims = {dim for observable in OBSERVABLES.values() for dim in observable.dims}
    for name, function in (observables or {}).items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"observables has the name {name!r}; use a Python identifier, such as 'margin'")
        if name in OBSERVABLES or name in ("temperature", "chain", "draw", "step", *dims):
            raise ValueError(f"observables has the name {name!r}, which the trace uses already; choose another")
        if not callable(function):
            raise ValueError(f"observables[{name!r}] = {function!r} is not callable; pass f(weights, dataset)")
    return tuple((observables or {}).items())


def observe(
    sampler: Sampler, state: Any, train: Dataset, test: Dataset | None, own: OwnObservables, chunk_size: int | None
) -> tuple[dict[str, Array], Weights, Weights]:
    """Return all observables of one chain, its position and the exact gradient there.

    The observable `loss` is a (high, low) pair of a compensated sum.
    """
    potential, weights = sampler.potential, sampler.position(state)
    # Training needs no virial temperature, and a pass without gradient takes a third of the time.
    sums = exact_sums(potential, weights, train, chunk_size, with_gradient=sampler.uses_temperature)
    regularizer = potential.regularizer(weights)
    broken = (state.status == Status.RUNNING) & ~jnp.isfinite(sums.loss.high + sums.loss.low + regularizer)
    record = {
        "loss": jnp.stack(sums.loss),
        "squared_norm": trees.squared_norm(weights),
        "regularizer": regularizer,
        "status": jnp.where(broken, Status.NON_FINITE_ENERGY, state.status),
    }
    if sampler.uses_temperature:
        record["virial_temperature"] = trees.dot(weights, sums.gradient) / float(trees.num_weights(weights))
        record["layer_virial_temperature"] = layer_virial_temperatures(weights, sums.gradient)
    if potential.per_example_error is not None:
        record["error"] = sums.error
    if sums.dead_class is not None:
        record["dead_class"] = sums.dead_class
    if test is not None:
        quantities = [q for q in (potential.per_example_loss, potential.per_example_error) if q is not None]
        means = exact_means(quantities, weights, test, chunk_size)
        record |= {name: m.high + m.low for name, m in zip(("test_loss", "test_error"), means, strict=False)}
    for name, function in own:
        record[name] = jnp.asarray(function(weights, train))
    return record | sampler.measure(state, sums.gradient), weights, sums.gradient


def layer_virial_temperatures(weights: Weights, gradient: Weights) -> Array:
    """Return ⟨w·∇U⟩/N of each layer, which equals T at equilibrium by the equipartition theorem."""
    pairs = zip(trees.layers(weights).values(), trees.layers(gradient).values(), strict=True)
    return jnp.stack([trees.dot(w, g) / float(trees.num_weights(w)) for w, g in pairs])


def to_host(record: Mapping[str, Array | np.ndarray]) -> dict[str, np.ndarray]:
    """Return a record as float64 NumPy arrays, with the compensated pairs added and U computed from them."""
    host = jax.device_get(dict(record))  # all copies at once: on a GPU each waits tens of microseconds
    host["loss"] = host["loss"].astype(np.float64).sum(axis=-1)
    host["potential"] = host["loss"] + host.pop("regularizer")
    return {
        name: value.astype(np.float64) if np.issubdtype(value.dtype, np.floating) else value
        for name, value in host.items()
    }


def variable(name: str, values: np.ndarray) -> tuple[tuple[str, ...], np.ndarray, dict[str, str]]:
    """Return an observable (temperature, chain, draw, …) as a variable of the trace: dimensions, values, attributes."""
    extra = values.ndim - 3
    own = Observable(name, name, dims=tuple(f"{name}_dim{axis}" for axis in range(extra)))
    row = OBSERVABLES.get(name, own)
    attributes = {"label": row.label, "unit": row.unit, "long_name": row.long_name}
    return ("temperature", "chain", "draw", *row.dims), values, attributes


def coordinates(weights: Weights, names: Sequence[str], num_classes: int) -> dict[str, Any]:
    """Return the coordinates of the dimensions that a trace has besides (temperature, chain, draw)."""
    coords: dict[str, Any] = {"layer": list(trees.layers(weights))}
    if "temperature_ratio" in names:
        coords["quantile"] = list(RATIO_QUANTILES)
    if "dead_class" in names:
        coords["class"] = np.arange(num_classes)
    return coords
