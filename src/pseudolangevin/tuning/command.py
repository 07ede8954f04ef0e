"""Tuning what a configuration file describes."""

from __future__ import annotations

import sys

import jax

from ..config.build import build, naming
from ..config.errors import ConfigError
from ..config.settings import Settings
from .result import Tuned
from .search import tune

TUNABLE = ("pseudo_langevin", "hybrid_monte_carlo")


def tune_settings(settings: Settings, *, seconds: float, bias_budget: float) -> Tuned:
    """Tune the sampler of a configuration at its lowest temperature, from the first of its starts."""
    if settings.sampler.name not in TUNABLE:
        raise ConfigError([f"sampler.name = {settings.sampler.name!r}: only {' and '.join(TUNABLE)} can be tuned"])
    experiment = build(settings)
    assert settings.temperatures is not None
    with naming("tune"):
        if not seconds > 0:
            raise ValueError(f"--seconds {seconds:g} is not positive; 120 is a good start")
        if not 0 < bias_budget < 1:
            raise ValueError(f"--budget {bias_budget:g} is outside (0, 1); 0.02 allows 2 %")
    starts = experiment.starting_weights()
    shapes = experiment.weights_shape
    leading = jax.tree.leaves(starts)[0].ndim - jax.tree.leaves(shapes)[0].ndim
    first = jax.tree.map(lambda w: w[(0,) * leading], starts)
    with naming("tune"):
        return tune(
            experiment.plan.sampler,
            first,
            temperature=min(settings.temperatures),
            seconds=seconds,
            bias_budget=bias_budget,
            key=settings.seed,
            report=lambda line: print(line, file=sys.stderr, flush=True),
        )
