"""Fig. A.3: averages at one temperature against the size of the network, from three samplers.

All start near equilibrium. Hybrid Monte Carlo has the masses of balanced Langevin. At the largest size it makes few
moves, so agreement there means that it stays at the weights it was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from .. import balanced_langevin, hybrid_monte_carlo, pseudo_langevin
from .results import COLORS, LABELS, Row, difference, draw_legend, known_average, read_average, row
from .spins import Chains, chains, described, near_equilibrium, spin_task


class Size(NamedTuple):
    """Settings of one network."""

    hidden_units: int
    equilibration_seconds: float
    langevin: Chains
    balanced: Chains
    hybrid: Chains

    @property
    def num_weights(self) -> int:
        """Number of weights, N."""
        return 201 * self.hidden_units + 1_110


def _size(hidden_units: int, seconds: float, langevin: Chains, balanced: Chains, moves: Any) -> Size:
    """Return a size; `moves` are the seconds of hMC, leapfrog steps, time step, warm-up moves and chunk size."""
    names = ("num_leapfrog_steps", "time_step", "warmup_moves", "chunk_size")
    hybrid = Chains(10_000, 1, moves[0], dict(zip(names, moves[1:], strict=True)))
    return Size(hidden_units, seconds, langevin, balanced, hybrid)


def _settings(temperature: float, *sizes: Size) -> dict[str, Any]:
    return {"temperature": temperature, "sizes": sizes, "seed": 0}


SETTINGS: dict[str, dict[str, Any]] = {
    "paper": _settings(
        1e-6,
        _size(5_000, 25, chains(8_192, 512, 12), chains(6_144, 512, 14, batch_size=50_305), (28, 5, 1.0, 3, 20_480)),
        _size(50, 15, chains(200_000, 2_000, 10), chains(40_000, 400, 10), (12, 200, 5.0, 10, 55_800)),
        _size(500, 15, chains(60_000, 1_000, 12), chains(20_000, 400, 12, batch_size=5_080), (20, 50, 5.0, 6, 55_800)),
    ),
    "smoke": _settings(
        4e-4,
        *(_size(n, 20, chains(8_000, 100, 40), chains(4_000, 50, 30), (30, 50, 1.0, 20, 5_000)) for n in (3, 6, 12)),
    ),
}


def measure(settings: Mapping[str, Any], parts: Any, out: Path) -> None:
    """Run the samplers at every size from the same weights."""

    def compare(size: Size) -> dict[str, Any]:
        task, key = spin_task(size.hidden_units), settings["seed"]
        start = near_equilibrium(task, settings["temperature"], out, size.equilibration_seconds)
        options = {"temperatures": [settings["temperature"]], "num_chains": jax.tree.leaves(start)[0].shape[1]}
        options |= task.measuring
        langevin = size.langevin.sample(pseudo_langevin, task, start, key=key, **options)
        balanced = size.balanced.sample(balanced_langevin, task, start, key=key + 1, **options)
        masses: dict[str, Any] = {"masses": jax.tree.map(lambda m: m[0], balanced.states.masses)}
        moves = replace(size.hybrid, settings={**size.hybrid.settings, **masses})
        hybrid = moves.sample(hybrid_monte_carlo, task, balanced.weights, key=key + 2, **options)
        # Hybrid Monte Carlo starts at equilibrium: only its warm-up is discarded.
        discard = min(0.9, size.hybrid.settings["warmup_moves"] / hybrid.trace.sizes["draw"])
        return {"hMC": described(hybrid, discard), "pL": described(langevin), "balanced": described(balanced)}

    for size in settings["sizes"]:
        seconds = size.equilibration_seconds + sum(x.max_seconds for x in (size.langevin, size.balanced, size.hybrid))
        parts.measure(f"N = {size.num_weights}", seconds, partial(compare, size))


def rows(found: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Row]:
    """Return the averages, and the differences of the samplers from hMC."""
    made: list[Row] = []
    for where, samplers in found.items():
        averages = {
            label: {n: read_average(value["averages"][0][n]) for n in LABELS} for label, value in samplers.items()
        }
        for label, values in averages.items():
            for name in LABELS:
                published = "pL" if label == "pL" else "hMC"
                known = known_average(int(where[4:]), published, settings["temperature"], name)
                quantity = f"{name} at {where}, {label}"
                made.append(row(quantity, values[name], published=known, tolerance=0.05, relative=True))
                if label != "hMC":
                    moves, chosen = samplers["hMC"]["steps"], (values[name], averages["hMC"][name])
                    reason = f"Hybrid Monte Carlo made {moves} moves only." if moves < 100 else None
                    made.append(difference(f"{quantity} over hMC", *chosen, 0.02, reason=reason))
    return made


def draw(found: Mapping[str, Any], settings: Mapping[str, Any]) -> Figure:
    """Draw the averages against N; published ones are hollow."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    sizes = sorted(int(where[4:]) for where in found)
    panels = figure.subplots(1, len(LABELS))
    for axes, (name, ylabel) in zip(panels, LABELS.items(), strict=True):
        for color, marker, label in zip(COLORS, "soD", ("hMC", "pL", "balanced"), strict=False):
            values = [read_average(found[f"N = {n}"][label]["averages"][0][name])[:2] for n in sizes]
            style = {"color": color, "fmt": f"{marker}-", "ms": 4, "lw": 1}
            axes.errorbar(sizes, *np.nan_to_num(np.array(values)).T, label=label, **style)
            known = [known_average(n, label, settings["temperature"], name) for n in sizes]
            if np.isfinite(known).any():
                axes.plot(sizes, known, marker, mfc="none", ms=9, color=color, label=f"{label}, published")
        axes.set(xscale="log", yscale="log" if name == "squared_norm" else "linear", ylabel=ylabel, xlabel="weights N")
    draw_legend(figure)
    return figure
