"""Fig. 3d: loss, |w|² and error against temperature, from pseudo-Langevin and from hybrid Monte Carlo.

The paper's protocol: three starts trained with Adam for 5000 epochs; from each, both samplers are brought to
equilibrium at every temperature, all chains at once. Batches are 10 % of the data, not 1 %: at the same temperature
ratio the squared displacement of a step is ten times as large, at little more cost on a GPU. Below T = 1e-5 the
landscape is glassy: the published averages of the two samplers differ there by tens of thermal standard deviations, and
so may ours.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from ..diagnostics.averages import Average, average
from ..published import published_numbers
from ..samplers.hybrid import hybrid_monte_carlo
from ..samplers.langevin import pseudo_langevin
from .results import Reproduction, Row, relative_difference, row
from .spins import keep_end, spin_task, trained_starts
from .timed import sample_for

OBSERVABLES = {"loss": "mean cross-entropy", "squared_norm": "|w|²", "error": "training error"}
METHODS = {"hybrid_monte_carlo": "hMC", "pseudo_langevin": "pL"}
EQUILIBRIUM = 1e-5
"""Temperatures from here on reach equilibrium from any start; colder ones are glassy."""


@dataclass(frozen=True)
class Settings:
    """Numbers of one scale."""

    hidden_units: int
    epochs: int
    num_starts: int
    temperatures: tuple[float, ...]
    batch_size: int
    temperature_ratio: float
    langevin_steps: int
    langevin_record_every: int
    langevin_seconds: float
    leapfrog_steps: int
    time_step: float
    warmup_moves: int
    hybrid_moves: int
    hybrid_seconds: float
    chunk_size: int
    seed: int = 0


SETTINGS = {
    "paper": Settings(
        hidden_units=50,
        epochs=5_000,
        num_starts=3,
        temperatures=(1e-6, 3e-6, 1e-5, 3e-5),
        batch_size=5_580,
        temperature_ratio=0.01,
        langevin_steps=1_200_000,
        langevin_record_every=10_000,
        langevin_seconds=200,
        leapfrog_steps=500,
        time_step=0.03,
        warmup_moves=20,
        hybrid_moves=400,
        hybrid_seconds=150,
        chunk_size=55_800,
    ),
    "smoke": Settings(
        hidden_units=5,
        epochs=60,
        num_starts=2,
        temperatures=(2e-4, 4e-4),
        batch_size=1_058,
        temperature_ratio=0.002,
        langevin_steps=30_000,
        langevin_record_every=250,
        langevin_seconds=120,
        leapfrog_steps=60,
        time_step=0.1,
        warmup_moves=20,
        hybrid_moves=120,
        hybrid_seconds=90,
        chunk_size=10_575,
    ),
}


def reproduce(scale: str, out: Path) -> Reproduction:
    """Train, sample with both, compare."""
    settings = SETTINGS[scale]
    started = time.perf_counter()
    task = spin_task(settings.hidden_units)
    starts = trained_starts(
        task, settings.num_starts, epochs=settings.epochs, seed=settings.seed, cache=out / "thermodynamics-starts.npz"
    )
    langevin = sample_for(
        settings.langevin_seconds,
        pseudo_langevin(
            task.potential, task.train, batch_size=settings.batch_size, temperature_ratio=settings.temperature_ratio
        ),
        starts,
        temperatures=settings.temperatures,
        num_chains=settings.num_starts,
        record_every=settings.langevin_record_every,
        max_steps=settings.langevin_steps,
        key=settings.seed,
    )
    for index, temperature in enumerate(settings.temperatures):
        ended = jax.tree.map(lambda w, i=index: w[i : i + 1], langevin.weights)
        keep_end(out, task, temperature, ended)
    hybrid = sample_for(
        settings.hybrid_seconds,
        hybrid_monte_carlo(
            task.potential,
            task.train,
            num_leapfrog_steps=settings.leapfrog_steps,
            time_step=settings.time_step,
            warmup_moves=settings.warmup_moves,
            chunk_size=settings.chunk_size,
        ),
        starts,
        temperatures=settings.temperatures,
        num_chains=settings.num_starts,
        record_every=1,
        max_steps=settings.hybrid_moves,
        key=settings.seed + 1,
    )
    traces = {"hybrid_monte_carlo": hybrid.trace, "pseudo_langevin": langevin.trace}
    averages = {method: averages_of(trace) for method, trace in traces.items()}
    acceptance = hybrid.trace["acceptance"].isel(draw=-1).mean("chain").values
    recorded = asdict(settings) | {
        "num_weights": task.num_weights,
        "num_examples": task.train.num_examples,
        "langevin_steps_done": langevin.num_steps,
        "langevin_seconds_used": langevin.seconds,
        "hybrid_moves_done": hybrid.num_steps,
        "hybrid_seconds_used": hybrid.seconds,
        "hybrid_acceptance": {f"{t:g}": float(a) for t, a in zip(settings.temperatures, acceptance, strict=True)},
        "virial_over_temperature": {
            method: {f"{t:g}": virial(trace, t) for t in settings.temperatures} for method, trace in traces.items()
        },
    }
    return Reproduction(
        "thermodynamics",
        scale,
        rows_of(averages, scale),
        draw(averages, scale),
        recorded,
        settings.seed,
        time.perf_counter() - started,
    )


Averages = dict[float, dict[str, Average]]


def averages_of(trace: xr.Dataset) -> Averages:
    """Mean and error of every observable at every temperature, over the second half of all chains."""
    return {
        float(t): {name: average(trace[name].sel(temperature=t).values, burn_in=0.5) for name in OBSERVABLES}
        for t in trace["temperature"].values
    }


def virial(trace: xr.Dataset, temperature: float) -> float:
    """Virial temperature over T in the second half: one at equilibrium."""
    values = trace["virial_temperature"].sel(temperature=temperature).values
    return average(values, burn_in=0.5).mean / temperature


def published_value(method: str, temperature: float, observable: str, table: str = "thermodynamics") -> float | None:
    """The published average, where there is one."""
    section = published_numbers()[table]
    column = section["columns"].index(observable)
    for line in section[method]:
        if np.isclose(line[0], temperature, atol=0):
            return float(line[column])
    return None


def rows_of(averages: dict[str, Averages], scale: str) -> list[Row]:
    """Each sampler beside its published value, and the two beside each other."""
    rows = []
    for temperature in averages["pseudo_langevin"]:
        for name in OBSERVABLES:
            glassy = scale == "paper" and temperature < EQUILIBRIUM
            reference = {m: published_value(m, temperature, name) if scale == "paper" else None for m in METHODS}
            for method, label in METHODS.items():
                measured = averages[method][temperature][name]
                rows.append(
                    row(
                        f"{name} at T = {temperature:g}, {label}",
                        measured.mean,
                        standard_error=measured.standard_error,
                        published=reference[method],
                        tolerance=(0.1 if glassy else 0.03) if reference[method] is not None else None,
                        relative=True,
                    )
                )
            langevin, hybrid = (averages[m][temperature][name] for m in ("pseudo_langevin", "hybrid_monte_carlo"))
            difference, error = relative_difference(langevin, hybrid)
            exact, approximate = reference["hybrid_monte_carlo"], reference["pseudo_langevin"]
            known = approximate / exact - 1 if exact is not None and approximate is not None else None
            limit = 0.05 if glassy else 0.02
            quantity = f"{name} at T = {temperature:g}, pL over hMC − 1"
            rows.append(Row(quantity, known, difference, error, limit, abs(difference) <= limit))
    return rows


def draw(averages: dict[str, Averages], scale: str) -> Figure:
    """Three panels against T, both samplers, the published points, and the relative difference."""
    figure = Figure(figsize=(6, 8.5), layout="constrained")
    panels = figure.subplots(len(OBSERVABLES), 1, sharex=True)
    colors = {"hybrid_monte_carlo": "#0072b2", "pseudo_langevin": "#e69f00"}
    for axes, (name, label) in zip(panels, OBSERVABLES.items(), strict=True):
        for method, short in METHODS.items():
            temperatures = np.array(sorted(averages[method]))
            values = [averages[method][t][name] for t in temperatures]
            means, errors = np.array([v.mean for v in values]), np.array([v.standard_error for v in values])
            axes.errorbar(temperatures, means, errors, fmt="o-", color=colors[method], ms=5, label=f"{short}, measured")
            if scale == "paper":
                reference = [published_value(method, t, name) for t in temperatures]
                marker = {"hybrid_monte_carlo": "s", "pseudo_langevin": "D"}[method]
                axes.plot(
                    temperatures, reference, marker, mfc="none", ms=9, color=colors[method], label=f"{short}, published"
                )
        axes.set(xscale="log", ylabel=label)
        right = axes.twinx()
        difference = [
            abs(averages["pseudo_langevin"][t][name].mean / averages["hybrid_monte_carlo"][t][name].mean - 1)
            for t in temperatures
        ]
        right.plot(temperatures, difference, ":", color="0.5")
        right.set(ylabel="relative difference", ylim=(0, max(0.05, 1.2 * max(difference))))
    panels[0].legend(frameon=False, fontsize=8)
    panels[-1].set_xlabel("temperature T")
    return figure
