"""Results of random numbers, for the tests of the report."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import xarray as xr

from pseudolangevin import observables
from pseudolangevin.chains import Result
from pseudolangevin.diagnostics.certificate import Certificate
from pseudolangevin.diagnostics.verdicts import Line, RunLength, Verdict
from pseudolangevin.runs.report import report_html

HOSTILE = "</script></svg><img src=x onerror=alert(1)>\"'&<!-- $x^{ {{ 7*7 }}"
SESSION = {"started": "2026-01-01T10:00", "command": ["pseudolangevin", "sample"], "versions": {"jax": "0.10.2"}}
FACTS: dict[str, Any] = {
    "name": "first",
    "config": {"num_chains": 2, "sampler": {"name": "pseudo_langevin"}, "potential": {"weight_decay": 10.0611}},
    "provenance": SESSION | {"resumed": [SESSION | {"started": "2026-01-02T10:00", "from_step": 2000}]},
}


def make_trace(temperatures: int = 2, chains: int = 2, draws: int = 80) -> xr.Dataset:
    """A trace with observables of every kind; the loss fluctuates around 0.2 + 0.1·(index of the temperature)."""
    random = np.random.default_rng(0)
    values = np.geomspace(1e-5, 3e-5, temperatures)
    shape = (temperatures, chains, draws)
    scale = values[:, None, None]
    loss = 0.2 + 0.1 * np.arange(temperatures)[:, None, None] + random.normal(scale=0.002, size=shape)
    records = {
        "squared_norm": 300 + random.normal(scale=4.0, size=shape),
        "loss": loss,
        "error": 0.1 + random.normal(scale=0.001, size=shape),
        "margin": 1 - loss,
        "kinetic_temperature": scale * (1 + random.normal(scale=0.01, size=shape)),
        "layer_virial_temperature": scale[..., None] * (1 + random.normal(scale=0.05, size=(*shape, 3))),
        "gradient_variance": np.exp(random.normal(size=(*shape, 3))),
        "refresh_interval": np.full(shape, 5000),
        "status": np.zeros(shape, np.int32),
    }
    coords = {
        "temperature": values,
        "step": ("draw", 50 * (np.arange(draws) + 1)),
        "layer": ["first", "second", "third"],
    }
    return xr.Dataset({name: observables.variable(name, value) for name, value in records.items()}, coords)


def make_result(trace: xr.Dataset, *, samples: int = 0) -> Result:
    """A result of a network of the published size, with random walks as its kept weights."""
    shape = trace["status"].shape[:2]
    kept = None
    if samples:
        trace.attrs["keep_weights_every"] = trace.sizes["draw"] // samples
        kept = {"w": np.random.default_rng(1).normal(size=(*shape, samples, 500)).cumsum(axis=2)}
    return Result(trace, {"w": np.zeros((*shape, 11_160))}, kept, None, None, seconds=75.0)  # type: ignore[arg-type]


def make_certificate(*verdicts: str, name: str = "drift of U", message: str = "") -> Certificate:
    numbered = enumerate(map(Verdict, verdicts))
    lines = tuple(Line(name, 1e-5, chain, 1.002, 0.003, 1.0, 0.03, verdict, message) for chain, verdict in numbered)
    return Certificate(
        lines, ("R-hat needs two chains",), "pseudo_langevin", 11_160, 0.25, RunLength(80, 50, 4_000), {}
    )


@cache
def full_page() -> str:
    """A page with everything that a page can have."""
    trace = make_trace(3, draws=200)
    trace["loss"].values[1, 1, 150:] = np.nan
    trace["status"].values[1, 1, 150:] = 1
    verdicts = make_certificate("passed", "failed", "undecided", message="about 100 more records are needed")
    return report_html(make_result(trace, samples=20), verdicts, FACTS | {"name": "a_name_without_any_space" * 5})
