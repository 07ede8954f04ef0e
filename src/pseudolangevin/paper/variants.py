"""Fig. A.1: pseudo-Langevin and hybrid Monte Carlo compared with their naive and mini-batch variants.

The paper does not state whether naive pL subtracts the gradient variance; both are measured. The time step of naive pL
gives the weight with the largest gradient variance the temperature ratio of pL.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
from matplotlib.figure import Figure

from ..samplers.base import Sampler
from ..samplers.hybrid import HybridMonteCarlo, MinibatchHybridMonteCarlo
from ..samplers.langevin import NaivePseudoLangevin, PseudoLangevin
from .results import Stage, plot_displacements
from .spins import Case, speed_record, speed_rows


@dataclass(frozen=True)
class Settings(Case):
    """Settings of one scale."""

    num_leapfrog_steps: int = 3


SETTINGS = {
    "paper": Settings(5_000, 1e-6, 20_000, equilibration_seconds=4, seconds=4, chunk_size=20_480),
    "smoke": Settings(10, 2e-4, 5_000, equilibration_seconds=8, seconds=6, chunk_size=15_600, num_leapfrog_steps=20),
}


def reproduce(settings: Settings, out: Path) -> Iterator[Stage]:
    """Measure five samplers from the same weights."""
    task, weights = settings.prepare(out)
    system = (task.potential, task.train)
    moves = {"num_leapfrog_steps": settings.num_leapfrog_steps, "chunk_size": settings.chunk_size}
    langevin = PseudoLangevin(*system, refresh_every=1_000, reset_probability=0.0)
    state = langevin.init(jax.random.key(settings.seed), weights, settings.temperature)
    largest = max(float(v.max()) for v in jax.tree.leaves(state.gradient_variance))
    # With a mass of one the temperature ratio is 𝒯 = δt²·𝒱/(4·(1 − c1²)·T).
    friction = 1 - langevin.momentum_retention**2
    time_step = math.sqrt(4 * friction * settings.temperature * langevin.temperature_ratio / largest)
    samplers: dict[str, Sampler] = {
        "pL": langevin,
        "naive pL, variance subtracted": NaivePseudoLangevin(*system, time_step=time_step, refresh_every=1_000),
        "naive pL": NaivePseudoLangevin(*system, time_step=time_step, subtract_variance=False),
        "hMC": HybridMonteCarlo(*system, time_step=0.05, warmup_moves=4, **moves),
        "mb-hMC": MinibatchHybridMonteCarlo(*system, time_step=0.01, warmup_moves=20, **moves),
    }
    speeds = settings.measure(samplers, weights)
    rows = speed_rows(speeds, [("pL", label) for label in speeds if label != "pL"])
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    title = f"N = {task.num_weights}, T = {settings.temperature:g}"
    plot_displacements(figure.subplots(), {label: speed.diffusion for label, speed in speeds.items()}, title)
    record = {"num_weights": task.num_weights, "measured": speed_record(samplers, speeds)}
    yield rows, figure, asdict(settings) | record
