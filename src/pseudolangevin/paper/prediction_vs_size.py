"""Fig. A.3: averages at one temperature against the size of the network, from hybrid Monte Carlo and pseudo-Langevin.

Pseudo-Langevin equilibrates first; hybrid Monte Carlo continues from its last weights, with its masses. At the largest
size hybrid Monte Carlo makes few moves, so agreement there means that it stays at the weights it was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._trees import Weights
from ..diagnostics.averages import Average
from ..samplers.hybrid import HybridMonteCarlo
from ..samplers.langevin import PseudoLangevin
from .results import LABELS, Row, Stage, compared, draw_averages, published_value
from .spins import (
    Chains,
    SpinTask,
    adam_starts,
    averages_of,
    end_of,
    hybrid_chains,
    keep,
    prior_start,
    spin_task,
    summary,
)


@dataclass(frozen=True)
class Size:
    """Settings of one network."""

    hidden_units: int
    epochs: int
    """Epochs of Adam before sampling; 0 starts from the prior at 0.3 times the temperature."""
    num_chains: int
    langevin: Chains
    hybrid: Chains


@dataclass(frozen=True)
class Settings:
    """Settings of one scale."""

    temperature: float
    sizes: tuple[Size, ...]
    seed: int = 0


# From the prior the gradient variance falls by orders of magnitude, so that the masses must follow it.
FOLLOWING = {"refresh_every": 1_024, "max_refresh_interval": 1_024, "warmup_refreshes": 7, "reset_probability": 1.0}
SETTINGS = {
    "paper": Settings(
        1e-6,
        (
            Size(50, 5_000, 3, Chains(300_000, 2_000, 20), hybrid_chains(100_000, 20, 500, 20.0, 10, 55_800)),
            Size(500, 5, 3, Chains(150_000, 1_000, 30), hybrid_chains(100_000, 25, 100, 10.0, 10, 55_800)),
            Size(5_000, 0, 1, Chains(20_480, 512, 35, FOLLOWING), hybrid_chains(100_000, 30, 10, 5.0, 4, 20_480)),
        ),
    ),
    "smoke": Settings(
        4e-4,
        tuple(
            Size(
                units, 10, 2, Chains(8_000, 100, 40), hybrid_chains(100_000, 30, 50, 5.0, 20, 5 * (201 * units + 1_110))
            )
            for units in (3, 6, 12)
        ),
    ),
}


def reproduce(settings: Settings, out: Path) -> Iterator[Stage]:
    """Compare the samplers at every size."""
    rows: list[Row] = []
    num_weights: list[int] = []
    averages: dict[str, dict[str, list[Average]]] = {label: {name: [] for name in LABELS} for label in ("hMC", "pL")}
    published: dict[str, dict[str, list[float | None]]] = {label: {name: [] for name in LABELS} for label in averages}
    record: dict[str, Any] = asdict(settings) | {"measured": {}}
    for size in settings.sizes:
        task = spin_task(size.hidden_units)
        num_weights.append(task.num_weights)
        starts = _starts(task, size, settings, out)
        chains = ([settings.temperature], size.num_chains)
        langevin = size.langevin.sample(PseudoLangevin, task, starts, *chains, key=settings.seed)
        keep(end_of(out, task, settings.temperature), langevin.weights)
        masses = jax.tree.map(lambda m: m[0], langevin.states.masses)
        moves = replace(size.hybrid, options=size.hybrid.options | {"masses": masses})
        hybrid = moves.sample(HybridMonteCarlo, task, langevin.weights, *chains, key=settings.seed + 1)
        # Hybrid Monte Carlo starts at equilibrium: only its warm-up is discarded.
        discard = min(0.9, size.hybrid.options["warmup_moves"] / hybrid.trace.sizes["draw"])
        found = {"hMC": averages_of(hybrid.trace, discard), "pL": averages_of(langevin.trace)}
        for name in LABELS:
            for label in found:
                averages[label][name] += found[label][name]
                published[label][name].append(_published(task.num_weights, label, settings.temperature, name))
            measured = {label: found[label][name][0] for label in found}
            known = {label: published[label][name][-1] for label in found}
            quantity = f"{name} at N = {task.num_weights}"
            rows += compared(quantity, measured, known, tolerance=0.05, limit=0.02)
        record["measured"][task.num_weights] = {"hMC": summary(hybrid), "pL": summary(langevin)}
        yield rows, draw_averages(num_weights, "number of weights N", averages, published), record


def _starts(task: SpinTask, size: Size, settings: Settings, out: Path) -> Weights:
    if size.epochs:
        return adam_starts(task, out, num_starts=size.num_chains, epochs=size.epochs, seed=settings.seed)
    seeds = range(settings.seed, settings.seed + size.num_chains)
    drawn = [prior_start(task, 0.3 * settings.temperature, seed=seed) for seed in seeds]
    return jax.tree.map(lambda *leaves: np.stack(leaves)[None], *drawn)


def _published(num_weights: int, label: str, temperature: float, name: str) -> float | None:
    for section, column in (("thermodynamics", name), ("generalization", {"error": "train_error"}.get(name, name))):
        value = published_value(section, num_weights, label, temperature, column)
        if value is not None:
            return value
    return None
