"""Results as ArviZ sees them: InferenceData (ArviZ 0.x) or DataTree (ArviZ 1.x)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr

from ..chains import Result


def to_arviz(result: Result, temperature: float | None = None) -> Any:
    """The trace of a result for `arviz.summary`, `arviz.plot_trace` and the rest.

    Observables such as `loss` and `squared_norm`, functions of the sampled weights, are the group `posterior`; counts
    and flags such as `status` are `sample_stats`. Kept weights are left in `result.samples`.

    Args:
        result: from `sample` or `load`.
        temperature: take this one alone; default: all of them, with `temperature` as one more dimension.

    Example:
        >>> import arviz  # doctest: +SKIP
        >>> arviz.summary(to_arviz(result, 3e-5), var_names=["loss", "squared_norm"])  # doctest: +SKIP
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ 0.x announces ArviZ 1.x when imported
        try:
            import arviz  # noqa: PLC0415 (an optional dependency)
        except ImportError:
            raise ImportError("to_arviz needs ArviZ: pip install arviz") from None
    trace = result.trace
    if temperature is not None:
        known = trace["temperature"].values
        index = int(np.argmin(np.abs(np.log(known / temperature)))) if temperature > 0 else 0
        if not np.isclose(known[index], temperature, rtol=1e-6):
            raise ValueError(f"temperature = {temperature!r} was not sampled; choose one of {known.tolist()}")
        trace = trace.isel(temperature=index)
    trace = trace.transpose("chain", "draw", ...)
    floats = [name for name, values in trace.data_vars.items() if np.issubdtype(values.dtype, np.floating)]
    groups: Any = {"posterior": trace[floats], "sample_stats": trace.drop_vars(floats)}
    if hasattr(arviz, "InferenceData"):
        return arviz.InferenceData(**groups)
    return xr.DataTree.from_dict({f"/{name}": group for name, group in groups.items()})
