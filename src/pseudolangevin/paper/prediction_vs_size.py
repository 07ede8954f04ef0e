"""Fig. A.3: averages at one temperature against the size of the network, from pseudo-Langevin and hybrid Monte Carlo.

Pseudo-Langevin goes first and equilibrates; hybrid Monte Carlo starts from where it ended. At the largest size an exact
gradient visits five million examples, so hybrid Monte Carlo makes few moves there and hardly leaves its start (the
paper's Fig. 4): agreement says that it stays where pseudo-Langevin brought it, no more.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from ..diagnostics.averages import Average, average
from ..published import published_numbers
from ..samplers.hybrid import hybrid_monte_carlo
from ..samplers.langevin import pseudo_langevin
from ..types import Weights
from .results import Reproduction, Row, relative_difference, row
from .spins import SpinTask, keep_end, spin_task, trained_starts
from .starts import side_by_side, thermal_start
from .thermodynamics import METHODS, OBSERVABLES, published_value
from .timed import sample_for


@dataclass(frozen=True)
class Size:
    """Numbers of one network."""

    hidden_units: int
    epochs: int
    """Adam before sampling; 0: from the prior at a lower temperature, see `starts.thermal_start`."""
    num_chains: int
    langevin_steps: int
    record_every: int
    langevin_seconds: float
    leapfrog_steps: int
    time_step: float
    """Initial; adapted during the warm-up. In units of the pseudo-Langevin masses, which hMC uses too."""
    warmup_moves: int
    hybrid_seconds: float
    chunk_size: int
    pace: Mapping[str, Any] = field(default_factory=dict)
    """How often pL measures 𝒱 and whether masses follow it."""
    seed: int = 0


FOLLOWING = {"refresh_every": 1_024, "max_refresh_interval": 1_024, "warmup_refreshes": 7, "reset_probability": 1.0}
"""From the prior 𝒱 falls by orders of magnitude while the data are found."""
COOLER = 0.3
"""The prior is drawn at this share of T: at T = 1e-6 itself a chain of a million weights turned non-finite."""
TEMPERATURE = {"paper": 1e-6, "smoke": 4e-4}
SIZES = {
    "paper": (
        Size(50, 5_000, 3, 300_000, 2_000, 20, 500, 20.0, 10, 20, 55_800),
        Size(500, 5, 3, 150_000, 1_000, 30, 100, 10.0, 10, 25, 55_800),
        Size(5_000, 0, 1, 20_480, 512, 35, 10, 5.0, 4, 30, 20_480, FOLLOWING),
    ),
    "smoke": (
        Size(3, 10, 2, 8_000, 100, 40, 50, 5.0, 20, 30, 8_565),
        Size(6, 10, 2, 8_000, 100, 40, 50, 5.0, 20, 30, 11_580),
        Size(12, 10, 2, 8_000, 100, 40, 50, 5.0, 20, 30, 17_610),
    ),
}


@dataclass(frozen=True)
class Comparison:
    """Both samplers at one size."""

    num_weights: int
    averages: dict[str, dict[str, Average]]
    record: dict[str, Any]


def reproduce(scale: str, out: Path) -> Reproduction:
    """Compare the samplers at every size."""
    started = time.perf_counter()
    temperature = TEMPERATURE[scale]
    comparisons: list[Comparison] = []
    for size in SIZES[scale]:
        comparisons.append(compare(size, temperature, out))
        settings = {"temperature": temperature, "sizes": [c.record for c in comparisons]}
        rows = [r for comparison in comparisons for r in rows_of(comparison, temperature, scale)]
        seconds = time.perf_counter() - started
        reproduction = Reproduction("prediction-vs-size", scale, rows, draw(comparisons), settings, size.seed, seconds)
        reproduction.write(out)  # the next size may take hours
    return reproduction


def compare(size: Size, temperature: float, out: Path) -> Comparison:
    """Equilibrate with pseudo-Langevin, then hand over to hybrid Monte Carlo."""
    task = spin_task(size.hidden_units)
    sampler = pseudo_langevin(task.potential, task.train, **size.pace)
    langevin = sample_for(
        size.langevin_seconds,
        sampler,
        _starts(task, size, temperature, out),
        temperatures=[temperature],
        num_chains=size.num_chains,
        record_every=size.record_every,
        max_steps=size.langevin_steps,
        key=size.seed,
    )
    keep_end(out, task, temperature, langevin.weights)
    hybrid = sample_for(
        size.hybrid_seconds,
        hybrid_monte_carlo(
            task.potential,
            task.train,
            num_leapfrog_steps=size.leapfrog_steps,
            time_step=size.time_step,
            masses=jax.tree.map(lambda m: m[0], langevin.states.masses),
            warmup_moves=size.warmup_moves,
            chunk_size=size.chunk_size,
        ),
        langevin.weights,
        temperatures=[temperature],
        num_chains=size.num_chains,
        record_every=1,
        max_steps=100_000,
        key=size.seed + 1,
    )
    # Hybrid Monte Carlo starts at equilibrium: only its warm-up is left out.
    share = min(0.9, size.warmup_moves / hybrid.trace.sizes["draw"])
    averages = {
        "hybrid_monte_carlo": {n: average(hybrid.trace[n][0].values, burn_in=share) for n in OBSERVABLES},
        "pseudo_langevin": {n: average(langevin.trace[n][0].values, burn_in=0.5) for n in OBSERVABLES},
    }
    record = asdict(size) | {
        "num_weights": task.num_weights,
        "langevin_steps_done": langevin.num_steps,
        "langevin_seconds_used": langevin.seconds,
        "langevin_virial_over_temperature": float(
            average(langevin.trace["virial_temperature"][0].values, burn_in=0.5).mean / temperature
        ),
        "hybrid_moves_done": hybrid.num_steps,
        "hybrid_seconds_used": hybrid.seconds,
        "hybrid_acceptance": float(hybrid.trace["acceptance"][0, :, -1].mean()),
        "hybrid_time_step": float(hybrid.trace["time_step"][0, :, -1].mean()),
    }
    print(record, flush=True)
    return Comparison(task.num_weights, averages, record)


def _starts(task: SpinTask, size: Size, temperature: float, out: Path) -> Weights:
    if size.epochs == 0:
        drawn = [
            thermal_start(task.network, task.train, task.potential, COOLER * temperature, seed=size.seed + i)
            for i in range(size.num_chains)
        ]
        return side_by_side(drawn)
    # The smallest network at paper scale starts as in `thermodynamics`.
    name = "thermodynamics-starts.npz" if size.epochs == 5_000 else f"starts-{size.hidden_units}.npz"
    return trained_starts(task, size.num_chains, epochs=size.epochs, seed=size.seed, cache=out / name)


def rows_of(comparison: Comparison, temperature: float, scale: str) -> list[Row]:
    """Both samplers, and their difference within the paper's 2 %."""
    rows: list[Row] = []
    for name in OBSERVABLES:
        values = {method: comparison.averages[method][name] for method in METHODS}
        for method, label in METHODS.items():
            reference = _published(comparison.num_weights, method, temperature, name) if scale == "paper" else None
            rows.append(
                row(
                    f"{name} at N = {comparison.num_weights}, {label}",
                    values[method].mean,
                    standard_error=values[method].standard_error,
                    published=reference,
                    tolerance=None if reference is None else 0.05,
                    relative=True,
                )
            )
        hybrid, langevin = values["hybrid_monte_carlo"], values["pseudo_langevin"]
        difference, error = relative_difference(langevin, hybrid)
        quantity = f"{name} at N = {comparison.num_weights}, pL over hMC − 1"
        rows.append(row(quantity, difference, standard_error=error, tolerance=0.02))
    return rows


def _published(num_weights: int, method: str, temperature: float, name: str) -> float | None:
    if num_weights == published_numbers()["thermodynamics"]["num_weights"]:
        return published_value(method, temperature, name)
    section = published_numbers()["generalization"]
    if method == "pseudo_langevin" and num_weights == section["num_weights"]:
        return published_value(method, temperature, "train_error" if name == "error" else name, "generalization")
    return None


def draw(comparisons: list[Comparison]) -> Figure:
    """Three panels against N, with the relative difference."""
    figure = Figure(figsize=(6, 8.5), layout="constrained")
    panels = figure.subplots(len(OBSERVABLES), 1, sharex=True)
    sizes = [c.num_weights for c in comparisons]
    for axes, (name, label) in zip(panels, OBSERVABLES.items(), strict=True):
        means = {}
        for method, color in (("hybrid_monte_carlo", "#0072b2"), ("pseudo_langevin", "#e69f00")):
            values = [c.averages[method][name] for c in comparisons]
            means[method] = np.array([v.mean for v in values])
            errors = np.nan_to_num([v.standard_error for v in values])
            axes.errorbar(sizes, means[method], errors, fmt="o-", color=color, label=METHODS[method])
        axes.set(xscale="log", ylabel=label, yscale="log" if name == "squared_norm" else "linear")
        difference = np.abs(means["pseudo_langevin"] / means["hybrid_monte_carlo"] - 1)
        right = axes.twinx()
        right.plot(sizes, difference, ":", color="0.5")
        right.set(ylabel="relative difference", ylim=(0, max(0.05, 1.2 * difference.max())))
    panels[0].legend(frameon=False)
    panels[-1].set_xlabel("number of weights N")
    return figure
