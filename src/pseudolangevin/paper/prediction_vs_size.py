"""Fig. A.3: averages at one temperature against the size of the network, from three samplers.

All start near equilibrium. Hybrid Monte Carlo has the masses of balanced Langevin. At the largest size it makes few
moves, so agreement there means that it stays at the weights it was given.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from .results import COLORS, LABELS, Row, difference, draw_legend, published_average, row
from .spins import SAMPLERS, Chains, chains, described, near_equilibrium, num_weights, spin_task


@dataclass(frozen=True)
class Size:
    """Settings of one network."""

    hidden_units: int
    equilibration_seconds: float
    langevin: Chains
    balanced: Chains
    hybrid: Chains


def _moves(seconds: float, num_steps: int, time_step: float, warmup: int, chunk_size: int) -> Chains:
    options = {"num_leapfrog_steps": num_steps, "time_step": time_step, "warmup_moves": warmup}
    return chains(10_000, 1, seconds, chunk_size=chunk_size, **options)


_small = (20, chains(8_000, 100, 40), chains(4_000, 50, 30), _moves(30, 50, 1.0, 20, 5_000))
_middle = (15, chains(40_000, 1_000, 20), chains(20_000, 400, 20, batch_size=5_080), _moves(20, 50, 5.0, 6, 55_800))
_large = (30, chains(8_192, 512, 20), chains(6_144, 512, 20, batch_size=50_305), _moves(20, 5, 1.0, 3, 20_480))

SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        "temperature": 1e-6,
        "sizes": (
            Size(50, 60, chains(100_000, 1_000, 15), chains(40_000, 400, 15), _moves(12, 200, 5.0, 10, 55_800)),
            Size(500, *_middle),
            Size(5_000, *_large),
        ),
        "seed": 0,
    },
    "smoke": {"temperature": 4e-4, "sizes": tuple(Size(units, *_small) for units in (3, 6, 12)), "seed": 0},
}


def measure(settings: Mapping[str, Any], parts: Any, out: Path) -> None:
    """Run the samplers at every size from the same weights."""

    def compare(size: Size) -> dict[str, Any]:
        task, key, temperature = spin_task(size.hidden_units), settings["seed"], settings["temperature"]
        start = near_equilibrium(task, temperature, out, size.equilibration_seconds)
        options: dict[str, Any] = {"temperatures": [temperature]}
        langevin = size.langevin.sample(SAMPLERS["pL"], task, start, key=key, **options)
        balanced = size.balanced.sample(SAMPLERS["balanced"], task, start, key=key + 1, **options)
        masses = jax.tree.map(lambda m: m[0], balanced.states.masses)
        moves = replace(size.hybrid, settings={**size.hybrid.settings, "masses": masses})
        hybrid = moves.sample(SAMPLERS["hMC"], task, balanced.weights, key=key + 2, **options)
        # Hybrid Monte Carlo starts at equilibrium: only its warm-up is discarded.
        return {"hMC": described(hybrid, 0), "pL": described(langevin), "balanced": described(balanced)}

    for size in settings["sizes"]:
        seconds = size.equilibration_seconds + sum(x.max_seconds for x in (size.langevin, size.balanced, size.hybrid))
        parts.measure(f"N = {num_weights(size.hidden_units)}", seconds, partial(compare, size))


def rows(found: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Row]:
    """Return the averages, and the differences of the samplers from hMC."""
    made: list[Row] = []
    for where, samplers in found.items():
        reference, moves = samplers["hMC"]["averages"][0], samplers["hMC"]["steps"]
        reason = f"Hybrid Monte Carlo made {moves} moves only." if moves < 100 else None
        for (label, value), name in itertools.product(samplers.items(), LABELS):
            average, published = value["averages"][0][name], "pL" if label == "pL" else "hMC"
            few = value["averages"][0]["potential"].effective_samples
            text = f"The chains are not at equilibrium: U has {few:.1f} effective samples." if few < 10 else None
            known = published_average(int(where[4:]), published, settings["temperature"], name)
            quantity = f"{name} at {where}, {label}"
            made.append(row(quantity, average, published=known, tolerance=0.05, relative=True, reason=text))
            if label != "hMC":
                made.append(difference(f"{quantity} over hMC", average, reference[name], 0.02, reason=text or reason))
    return made


def draw(found: Mapping[str, Any], settings: Mapping[str, Any]) -> Figure:
    """Draw the averages against N; published ones are hollow."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    sizes = sorted(int(where[4:]) for where in found)
    for axes, (name, ylabel) in zip(figure.subplots(1, len(LABELS)), LABELS.items(), strict=True):
        for color, marker, label in zip(COLORS, "soD", ("hMC", "pL", "balanced"), strict=False):
            values = np.array([found[f"N = {n}"][label]["averages"][0][name][:2] for n in sizes])
            axes.errorbar(sizes, *np.nan_to_num(values).T, color=color, fmt=f"{marker}-", ms=4, lw=1, label=label)
            known = [published_average(n, label, settings["temperature"], name) for n in sizes]
            if np.isfinite(known).any():
                axes.plot(sizes, known, marker, mfc="none", ms=9, color=color, label=f"{label}, published")
        axes.set(xscale="log", yscale="log" if name == "squared_norm" else "linear", ylabel=ylabel, xlabel="weights N")
    draw_legend(figure)
    return figure
