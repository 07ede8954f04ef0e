"""Fig. A.3: averages at one temperature against the size of the network, from hybrid Monte Carlo and pseudo-Langevin.

Pseudo-Langevin equilibrates first; hybrid Monte Carlo continues from its last weights, with its masses. At the largest
size hybrid Monte Carlo makes few moves, so agreement there means that it stays at the weights it was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import hybrid_monte_carlo, pseudo_langevin
from .results import Point, Row, Stage, draw_points
from .spins import Chains, adam_starts, averages_of, chains, keep_end, prior_start, spin_task, summary


class Size(NamedTuple):
    """Settings of one network."""

    hidden_units: int
    epochs: int  # epochs of Adam before sampling; 0 starts from the prior at 0.3 times the temperature
    num_chains: int
    langevin: Chains
    hybrid: Chains


def _moves(seconds: float, num_leapfrog_steps: int, time_step: float, warmup_moves: int, chunk_size: int) -> Chains:
    options = {"num_leapfrog_steps": num_leapfrog_steps, "time_step": time_step, "warmup_moves": warmup_moves}
    return chains(10_000, 1, seconds, chunk_size=chunk_size, **options)


def _following(num_steps: int, seconds: float, every: int = 1_024) -> Chains:
    """Return chains whose masses follow the gradient variance, which falls by orders of magnitude from the prior."""
    refresh = {"refresh_every": every, "max_refresh_interval": every, "warmup_refreshes": 7, "reset_probability": 1.0}
    return Chains(num_steps, 512, seconds, refresh)


SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        "temperature": 1e-6,
        "sizes": (
            Size(50, 5_000, 3, chains(300_000, 2_000, 20), _moves(20, 500, 20.0, 10, 55_800)),
            Size(500, 5, 3, chains(150_000, 1_000, 30), _moves(25, 100, 10.0, 10, 55_800)),
            Size(5_000, 0, 1, _following(20_480, 35), _moves(30, 10, 5.0, 4, 20_480)),
        ),
        "seed": 0,
    },
    "smoke": {
        "temperature": 4e-4,
        "sizes": tuple(Size(n, 10, 2, chains(8_000, 100, 40), _moves(30, 50, 5.0, 20, 5_000)) for n in (3, 6, 12)),
        "seed": 0,
    },
}


def reproduce(settings: Mapping[str, Any], out: Path) -> Iterator[Stage]:
    """Compare the samplers at every size."""
    temperature, seed = settings["temperature"], settings["seed"]
    points: list[Point] = []
    rows: list[Row] = []
    record: dict[str, Any] = {**settings, "measured": {}}
    for size in settings["sizes"]:
        task = spin_task(size.hidden_units)
        if size.epochs:
            starts = adam_starts(task, out, num_starts=size.num_chains, epochs=size.epochs, seed=seed)
        else:
            seeds = range(seed, seed + size.num_chains)
            drawn = [prior_start(task, 0.3 * temperature, seed=seed) for seed in seeds]
            starts = jax.tree.map(lambda *leaves: np.stack(leaves)[None], *drawn)
        options: dict[str, Any] = {"temperatures": [temperature], "num_chains": size.num_chains}
        langevin = size.langevin.sample(pseudo_langevin, task, starts, key=seed, **options)
        keep_end(out, task, temperature, langevin.weights)
        masses: dict[str, Any] = {"masses": jax.tree.map(lambda m: m[0], langevin.states.masses)}
        moves = replace(size.hybrid, settings={**size.hybrid.settings, **masses})
        hybrid = moves.sample(hybrid_monte_carlo, task, langevin.weights, key=seed + 1, **options)
        # Hybrid Monte Carlo starts at equilibrium: only its warm-up is discarded.
        discard = min(0.9, size.hybrid.settings["warmup_moves"] / hybrid.trace.sizes["draw"])
        averages = {"hMC": averages_of(hybrid, discard)[0], "pL": averages_of(langevin)[0]}
        points.append(Point(task.num_weights, temperature, averages))
        rows += points[-1].rows(f"N = {task.num_weights}", 0.05, 0.02)
        record["measured"][task.num_weights] = {"hMC": summary(hybrid), "pL": summary(langevin)}
        yield rows, draw_points(points, [point.num_weights for point in points], "number of weights N"), record
