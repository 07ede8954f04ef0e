"""Measurements and tunings that took no time, for tests of what is made of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

from pseudolangevin.diagnostics import Diffusion
from pseudolangevin.samplers.base import Sampler
from pseudolangevin.tuning import Bias, Measured, Tried, Tuned


def diffusion(coefficient: float, interval: float = 0.1) -> Diffusion:
    """A straight line."""
    seconds = np.asarray(interval * np.arange(1, 17), np.float64)
    displacement = np.asarray(coefficient * seconds[None], np.float64)
    return Diffusion(np.arange(1.0, 17.0), seconds, displacement, np.asarray(0.01 * displacement, np.float64))


def measured(sampler: Sampler, coefficient: float, **changes: Any) -> Measured:
    weights = {"a": jnp.zeros((1, 3))}
    values: dict[str, Any] = {
        "sampler": sampler,
        "num_steps": 1_000,
        "seconds": 2.0,
        "refresh_seconds": 0.1,
        "variance_share": 0.05,
        "diffusion": diffusion(coefficient),
        "observables": {},
        "states": SimpleNamespace(weights=weights, masses=weights, gradient_variance={"a": jnp.ones((1, 3))}),
        "stopped": False,
        "preparation_seconds": 0.0,
    }
    return Measured(**(values | changes))


def tried(coefficient: float, settings: dict[str, Any], bias: float = 0.01, milliseconds: float = 2.0) -> Tried:
    biases = {} if "num_leapfrog_steps" in settings else {"loss": Bias(bias, 0.001)}
    return Tried(settings, coefficient, 0.01, milliseconds, 0.05, biases, abs(bias) <= 0.02, "", diffusion(coefficient))


def tuned(sampler: Sampler, candidates: list[Tried], temperature: float = 1e-3) -> Tuned:
    best = max((t for t in candidates if t.within_budget), key=lambda t: t.relative_diffusion)
    weights = {"a": jnp.ones((1, 1, 3))}
    return Tuned(sampler, temperature, 0.02, best, tuple(candidates), "full-batch sampling", ("a note",), 1.0, weights)
