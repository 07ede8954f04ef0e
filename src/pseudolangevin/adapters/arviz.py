"""Results as ArviZ data, InferenceData (ArviZ 0.x) or DataTree (ArviZ 1.x)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr

from .._trees import named_leaves
from ..chains import Result
from ..observables import OBSERVABLES


def to_arviz(result: Result, temperature: float | None = None) -> Any:
    """Return the trace of a result for `arviz.summary`, `arviz.plot_trace` and other functions of ArviZ.

    Observables of the weights and momenta, and the user's own, are the group `posterior`; records of the sampler about
    itself, such as `status` and `temperature_ratio`, are the group `sample_stats`.

    Args:
        result: result of `sample` or `load`.
        temperature: the temperature to select; default: all of them, as an additional dimension.
    """
    physical = ["loss", "potential", "squared_norm", "error", "test_loss", "test_error", "kinetic_temperature"]
    physical += ["virial_temperature", "layer_virial_temperature"]
    sampled = [name for name in result.trace.data_vars if name in physical or name not in OBSERVABLES]
    groups = {"posterior": result.trace[sampled], "sample_stats": result.trace.drop_vars(sampled)}
    return _as_arviz(result, temperature, groups)


def samples_to_arviz(result: Result, temperature: float | None = None) -> Any:
    """Return the kept weights of a result, one variable per tensor, named by its path such as `layer1.kernel`."""
    if result.samples is None:
        raise ValueError("the result has no samples; run sample(…, keep_weights_every=1)")
    variables = {}
    for name, values in named_leaves(result.samples):
        axes = (f"{name}_{axis}" for axis in range(np.ndim(values) - 3))
        variables[name] = (("temperature", "chain", "draw", *axes), np.asarray(values))
    coords = {name: result.trace[name] for name in ("temperature", "chain")}
    return _as_arviz(result, temperature, {"posterior": xr.Dataset(variables, coords)})


def _as_arviz(result: Result, temperature: float | None, groups: dict[str, Any]) -> Any:
    """Return one temperature, or all; chains and draws come first, as ArviZ requires."""
    chosen = {} if temperature is None else {"temperature": result.temperature_index(temperature)}
    groups = {name: group.isel(chosen).transpose("chain", "draw", ...) for name, group in groups.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ 0.x announces ArviZ 1.x when imported
        import arviz  # noqa: PLC0415
    if hasattr(arviz, "InferenceData"):
        return arviz.InferenceData(**groups)
    return xr.DataTree.from_dict({f"/{name}": group for name, group in groups.items()})
