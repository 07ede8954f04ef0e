"""Fig. A.1: pseudo-Langevin and hybrid Monte Carlo beside their naive and mini-batch variants.

The paper does not say whether naive pL subtracts 𝒱; both are run. Its time step is the one that gives the noisiest
weight the temperature ratio 𝒯 of pL.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from ..samplers.hybrid import hybrid_monte_carlo, minibatch_hybrid_monte_carlo
from ..samplers.langevin import DEFAULT_MOMENTUM_RETENTION, naive_pseudo_langevin, pseudo_langevin
from ..tuning.measure import Measured
from .race import REFRESH_EVERY, Course, at_least, describe, equilibrate, plot_displacements, prepare, race, ratio
from .results import Reproduction, row

SETTINGS = {
    "paper": (Course(5_000, 1e-6, 12, 1, 4, 4, 20_480), 3),
    "smoke": (Course(10, 2e-4, 8, 6, 8, 6, 15_600), 20),
}
"""The course, and the leapfrog steps of both kinds of hMC."""
TEMPERATURE_RATIO = 0.01


def reproduce(scale: str, out: Path) -> Reproduction:
    """Five samplers from the same start."""
    started = time.perf_counter()
    course, leapfrog_steps = SETTINGS[scale]
    task, start, origin = prepare(course, out)
    equilibrated = equilibrate(course, task, start)
    time_step = naive_time_step(equilibrated, course.temperature)
    system = (task.potential, task.train)
    samplers = {
        "pL": pseudo_langevin(*system, refresh_every=REFRESH_EVERY, reset_probability=0.0),
        "naive pL, 𝒱 subtracted": naive_pseudo_langevin(*system, time_step=time_step, refresh_every=REFRESH_EVERY),
        "naive pL": naive_pseudo_langevin(*system, time_step=time_step, subtract_variance=False),
        "hMC": hybrid_monte_carlo(
            *system,
            num_leapfrog_steps=leapfrog_steps,
            time_step=0.05,
            warmup_moves=4,
            chunk_size=course.chunk_size,
        ),
        "mb-hMC": minibatch_hybrid_monte_carlo(
            *system,
            num_leapfrog_steps=leapfrog_steps,
            time_step=0.01,
            warmup_moves=20,
            chunk_size=course.chunk_size,
        ),
    }
    runs = race(course, samplers, equilibrated.weights)
    rows = [
        row(
            f"D*/N in 1/s, {label.replace('𝒱', 'V')}",
            run.relative_diffusion,
            standard_error=None if run.diffusion is None else float(run.diffusion.coefficient_error[0]),
        )
        for label, run in runs.items()
    ]
    others = [label for label in runs if label != "pL"]
    rows += [
        at_least(f"D* of pL over {label.replace('𝒱', 'V')}", 1.0, ratio(runs["pL"].diffusion, runs[label].diffusion))
        for label in others
    ]
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    curves = {label.replace("𝒱", r"$\mathcal{V}$"): run.diffusion for label, run in runs.items()}
    plot_displacements(figure.subplots(), curves, f"N = {task.num_weights}, T = {course.temperature:g}")
    settings = asdict(course) | {
        "num_weights": task.num_weights,
        "start": origin,
        "naive_time_step": time_step,
        "leapfrog_steps": leapfrog_steps,
        "runs": {label: describe(run) for label, run in runs.items()},
    }
    return Reproduction("variants", scale, rows, figure, settings, course.seed, time.perf_counter() - started)


def naive_time_step(equilibrated: Measured, temperature: float) -> float:
    """δt with which a mass of one gives the noisiest weight the ratio 𝒯 = δt²·𝒱/(4·(1 − c1²)·M·T)."""
    noisiest = max(float(jnp.max(v)) for v in jax.tree.leaves(equilibrated.states.gradient_variance))
    return math.sqrt(4 * (1 - DEFAULT_MOMENTUM_RETENTION**2) * temperature * TEMPERATURE_RATIO / noisiest)
