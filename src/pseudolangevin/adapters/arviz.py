"""Results as ArviZ sees them, InferenceData (ArviZ 0.x) or DataTree (ArviZ 1.x), and weights back from there."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
import xarray as xr

from ..chains import Result
from ..trees import named_leaves
from ..types import Weights

SAMPLED = (
    "loss",
    "potential",
    "squared_norm",
    "error",
    "test_loss",
    "test_error",
    "kinetic_temperature",
    "virial_temperature",
    "layer_virial_temperature",
)
"""Functions of a chain's weights and momenta: what has a distribution to summarise."""


def to_arviz(result: Result, temperature: float | None = None) -> Any:
    """The trace of a result for `arviz.summary`, `arviz.plot_trace` and the rest.

    Observables such as `loss` and `squared_norm`, functions of the sampled weights, are the group `posterior`; what the
    sampler notes about itself, such as `status` and `temperature_ratio`, much of it constant, is `sample_stats`. For
    the weights themselves see `samples_to_arviz`.

    Args:
        result: from `sample` or `load`.
        temperature: take this one alone; default: all of them, with `temperature` as one more dimension.

    Example:
        >>> import arviz  # doctest: +SKIP
        >>> second_half = slice(result.trace.sizes["draw"] // 2, None)  # doctest: +SKIP
        >>> arviz.summary(to_arviz(result, 3e-5).isel(draw=second_half), round_to="none")  # doctest: +SKIP
    """
    trace = _at(result.trace, temperature)
    sampled = [name for name in SAMPLED if name in trace]
    return _as_arviz({"posterior": trace[sampled], "sample_stats": trace.drop_vars(sampled)})


def samples_to_arviz(result: Result, temperature: float | None = None) -> Any:
    """The kept weights of a result, one variable for each tensor, named by its path such as `layer1.kernel`.

    Args:
        result: from `sample` with `keep_weights_every`, or from `load`.
        temperature: take this one alone; default: all of them, with `temperature` as one more dimension.

    Example:
        >>> arviz.rhat(samples_to_arviz(result, 3e-5), var_names=["layer3.bias"])  # doctest: +SKIP
    """
    if result.samples is None:
        raise ValueError("the result holds no samples; run sample(…, keep_weights_every=1)")
    variables = {}
    for name, values in named_leaves(result.samples):
        own = tuple(f"{name}_{axis}" for axis in range(np.ndim(values) - 3))
        variables[name] = (("temperature", "chain", "draw", *own), np.asarray(values))
    coords = {"temperature": result.trace["temperature"], "chain": result.trace["chain"]}
    return _as_arviz({"posterior": _at(xr.Dataset(variables, coords), temperature)})


def samples_from_arviz(data: Any, weights: Weights, group: str = "posterior") -> Weights:
    """Weights from an InferenceData or DataTree: of this package, or of any other that names its variables alike.

    Args:
        data: with a group that has one variable for each tensor of `weights`, named by its path, with dimensions
            (chain, draw, …) or (temperature, chain, draw, …) in any order before the tensor's own.
        weights: one chain's, for the structure and the shapes.
        group: where the variables are.

    Returns:
        The pytree with leading axes (temperature, chain, draw), temperature of length one where there is none. The last
        draws start new chains: sample(sampler, jax.tree.map(lambda w: w[:, :, -1], samples), …).
    """
    try:
        variables = data[group]
    except KeyError:
        raise ValueError(f"data has no group {group!r}; name the group that holds the weights") from None
    leaves = []
    for name, leaf in named_leaves(weights):
        if name not in variables:
            raise ValueError(f"the group {group!r} has no variable {name!r}; it has {sorted(map(str, variables))}")
        variable = variables[name]
        for dimension in ("chain", "draw"):
            if dimension not in variable.dims:
                raise ValueError(f"{name} has dimensions {variable.dims}; it needs (chain, draw, …)")
        if "temperature" not in variable.dims:
            variable = variable.expand_dims("temperature")
        values = variable.transpose("temperature", "chain", "draw", ...).values
        if values.shape[3:] != leaf.shape:
            raise ValueError(
                f"{name} has shape {values.shape[3:]} beside chains and draws, the weights' is {leaf.shape}"
            )
        leaves.append(values.astype(leaf.dtype))
    return jax.tree.unflatten(jax.tree.structure(weights), leaves)


def _at(trace: xr.Dataset, temperature: float | None) -> xr.Dataset:
    """One temperature, or all; chains and draws first, as ArviZ wants them."""
    if temperature is not None:
        known = trace["temperature"].values
        index = int(np.argmin(np.abs(np.log(known / temperature)))) if temperature > 0 else 0
        if not np.isclose(known[index], temperature, rtol=1e-6):
            raise ValueError(f"temperature = {temperature!r} was not sampled; choose one of {known.tolist()}")
        trace = trace.isel(temperature=index)
    return trace.transpose("chain", "draw", ...)


def _as_arviz(groups: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ 0.x announces ArviZ 1.x when imported
        try:
            import arviz  # noqa: PLC0415 (an optional dependency)
        except ImportError:
            raise ImportError("ArviZ is not installed: pip install arviz") from None
    if hasattr(arviz, "InferenceData"):
        return arviz.InferenceData(**groups)
    return xr.DataTree.from_dict({f"/{name}": group for name, group in groups.items()})
