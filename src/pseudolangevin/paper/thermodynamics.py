"""Fig. 3d: loss, |w|² and error against temperature, from hybrid Monte Carlo, pseudo-Langevin and balanced Langevin.

Chains are cooled from the highest temperature, at several rates: below T = 1e-5 the landscape is glassy, and of two
averages of U at one temperature the lower one is nearer to equilibrium. Hybrid Monte Carlo continues from the weights
that were cooled most slowly. Then follows the paper's protocol: weights trained by 5000 epochs of Adam.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..diagnostics.averages import Average
from .results import COLORS, LABELS, Row, difference, published_average, row
from .spins import Chains, Phase, chains, ideal_loss, measure_phases, spin_task

NAMES = {**LABELS, "potential": "U"}


def _pair(num_steps: int, every: int, seconds: float) -> tuple[Chains, Chains]:
    """Return chains of balanced Langevin: larger batches in the cold, where a step moves the weights by less."""
    cold = chains(num_steps, every, seconds, batch_size=16_740, temperature_ratio=0.2)
    return chains(num_steps, every, seconds, batch_size=5_580, temperature_ratio=0.1), cold


SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        **{"hidden_units": 50, "num_weights": 11_160, "num_starts": 4, "start_steps": 3_000},
        "temperatures": (3e-5, 2e-5, 1e-5, 3e-6, 2e-6, 1e-6),
        "levels": (3e-5, 2e-5, 1.4e-5, 1e-5, 8e-6, 6.5e-6, 5e-6, 4e-6, 3e-6, 2.5e-6, 2e-6, 1.6e-6, 1.3e-6, 1e-6),
        "cold": 9e-6,  # temperature below which batches are larger
        # Chains of every cooling at one level: sampler and length. hMC follows the first, the slowest.
        "coolings": {
            "balanced": _pair(40_000, 400, 30),
            "balanced, 4 times as fast": _pair(10_000, 200, 10),
            "balanced, 16 times as fast": _pair(2_500, 100, 5),
            "pL": (chains(40_000, 400, 8, batch_size=558),) * 2,
        },
        "hybrid": chains(300, 1, 25, num_leapfrog_steps=200, time_step=0.03, warmup_moves=20, chunk_size=55_800),
        "adam": {"num_starts": 3, "epochs": 5_000, "seed": 0},
        "from Adam": {
            "balanced": _pair(60_000, 600, 40)[0],
            "pL": chains(400_000, 4_000, 40, batch_size=558),
            "hMC": chains(200, 1, 70, num_leapfrog_steps=500, time_step=0.03, warmup_moves=20, chunk_size=55_800),
        },
        "equilibrium": 1e-5,  # below it the landscape is glassy, and tolerances are wider
        # Loss of the ideal classifier on the published data: 0.3112 on the data that the public code makes, times the
        # ratio of the published losses to those of pL on these data, 1.030 at T = 3e-5 and 1.026 at 2e-5.
        "published_ideal_loss": 0.320,
        "seed": 0,
    },
    "smoke": {
        **{"hidden_units": 5, "num_weights": 2_115, "num_starts": 2, "start_steps": 500},
        **{"temperatures": (4e-4, 2e-4), "levels": (4e-4, 3e-4, 2e-4), "cold": 0.0},
        "coolings": {
            "balanced": (chains(6_000, 50, 40, batch_size=1_058),) * 2,
            "balanced, 4 times as fast": (chains(1_500, 25, 20, batch_size=1_058),) * 2,
            "pL": (chains(15_000, 125, 40, batch_size=1_058, temperature_ratio=0.002),) * 2,
        },
        "hybrid": chains(120, 1, 45, num_leapfrog_steps=60, time_step=0.1, warmup_moves=20, chunk_size=10_575),
        "adam": {"num_starts": 2, "epochs": 60, "seed": 0},
        "from Adam": {"balanced": chains(6_000, 50, 40, batch_size=1_058)},
        **{"equilibrium": 0.0, "published_ideal_loss": 0.320, "seed": 0},
    },
}


def phases_of(settings: Mapping[str, Any]) -> list[Phase]:
    """Return the chains of all parts: cooled at every rate, hMC from the slowest, and the paper's protocol."""
    made = list[Phase]()
    for label, pair in settings["coolings"].items():
        start = "trained"
        for t in settings["levels"]:
            made.append(Phase(f"cooled, {label}, T = {t:g}", (t,), pair[t < settings["cold"]], start))
            start = made[-1].name
        for t in sorted(settings["temperatures"]) if label == "balanced" else ():
            start = f"cooled, balanced, T = {t:g}"
            made.append(Phase(f"cooled, hMC, T = {t:g}", (t,), settings["hybrid"], start, discard=0.2))
    protocol = settings["from Adam"].items()
    return made + [
        Phase(f"from Adam, {label}", settings["temperatures"], length, "by Adam") for label, length in protocol
    ]


def measure(settings: Mapping[str, Any], parts: Any, out: Path) -> None:
    """Run the phases, one part for each."""
    parts.measure("data", 1, lambda: {"ideal_loss": ideal_loss(spin_task(settings["hidden_units"]))})
    measure_phases(phases_of(settings), settings, parts, out, lambda _: spin_task(settings["hidden_units"]), test=False)


def averages_of(found: Mapping[str, Any]) -> dict[str, dict[float, dict[str, Average]]]:
    """Return the averages by kind of run, such as "cooled, balanced", and temperature."""
    made: dict[str, dict[float, Any]] = {}
    for part, value in found.items():
        for temperature, averages in zip(value.get("temperatures", ()), value.get("averages", ()), strict=True):
            made.setdefault(part.partition(", T = ")[0], {})[temperature] = averages
    return made


def rows(found: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Row]:
    """Return the averages of all runs, compared with the published ones, with hMC, and with slower cooling.

    Published losses and errors, and the loss in U, are scaled by the ratio of the ideal losses; |w|² is not.
    """
    averages, made = averages_of(found), list[Row]()
    slow, reference = (averages.get(kind, {}) for kind in ("cooled, balanced", "cooled, hMC"))
    factor = found.get("data", {}).get("ideal_loss", np.nan) / settings["published_ideal_loss"]
    for t, (kind, by_temperature) in itertools.product(settings["temperatures"], averages.items()):
        if (values := by_temperature.get(t)) is None:
            continue
        where, cold, potential = f"at T = {t:g}, {kind}", t < settings["equilibrium"], values["potential"]
        if "fast" in kind:
            if t in slow:
                made.append(difference(f"U {where} over slow cooling", potential, slow[t]["potential"], None))
            continue
        published = partial(published_average, settings["num_weights"], "pL" if "pL" in kind else "hMC", t)
        lowest, known, reason = slow.get(t, values)["potential"].mean, published("potential"), None
        if potential.mean > 1.002 * lowest:
            text = f"U is {potential.mean:.4f}, and {lowest:.4f} after slow cooling"
            reason = f"The chains are not at equilibrium: {text}."
        elif cold and potential.mean < known:
            reason = f"U is {potential.mean:.4f}, lower than the published {known:.4f}: nearer to equilibrium."
        for name in NAMES:
            known = published(name)
            scaled = known + (factor - 1) * published("loss") if name == "potential" else factor * known
            scaled = np.nan if name == "squared_norm" else scaled
            limit: float | None = 0.02 if not cold else 0.01 if name == "potential" else 0.05
            if name == "potential" and cold and potential.mean < scaled:
                limit = None  # it passes, as it is nearer to equilibrium
            options: dict[str, Any] = {"scaled": scaled, "tolerance": limit, "relative": True, "reason": reason}
            made.append(row(f"{name} {where}", values[name], published=known, **options))
            if t in reference and kind in ("cooled, balanced", "cooled, pL"):
                chosen = (values[name], reference[t][name])
                made.append(difference(f"{name} {where} over hMC", *chosen, 0.02, reason=reason))
    return made


def draw(found: Mapping[str, Any], settings: Mapping[str, Any]) -> Figure:
    """Draw averages against temperature, and U relative to the slowest cooling for every rate and protocol."""
    figure = Figure(figsize=(11.5, 6.5), layout="constrained")
    panels, averages = figure.subplots(2, 3), averages_of(found)
    slow = averages.get("cooled, balanced", {})
    for color, marker, (kind, by_temperature) in zip(COLORS, "osD^v<>p", averages.items(), strict=False):
        style = {"color": color, "marker": marker, "ms": 4, "lw": 1}
        levels = sorted(by_temperature)
        for axes, (name, label) in zip(panels.flat, NAMES.items(), strict=False):
            axes.plot(levels, [by_temperature[t][name].mean for t in levels], label=kind, **style)
            axes.set(xscale="log", ylabel=label, xlabel="temperature T")
        common = [t for t in levels if t in slow]
        ratios = [100 * (by_temperature[t]["potential"].mean / slow[t]["potential"].mean - 1) for t in common]
        panels[1, 1].plot(common, ratios, **style)
    panels[1, 1].set(xscale="log", xlabel="temperature T", ylabel="U above slow cooling [%]")
    for (marker, label), (index, name) in itertools.product({"s": "hMC", "o": "pL"}.items(), enumerate(NAMES)):
        known = [published_average(settings["num_weights"], label, t, name) for t in settings["temperatures"]]
        style = {"marker": marker, "mfc": "none", "ms": 9, "color": "k", "ls": "", "label": f"published {label}"}
        if np.isfinite(known).any():
            panels.flat[index].plot(settings["temperatures"], known, **style)
    panels[1, 2].set_axis_off()
    panels[1, 2].legend(*panels[0, 0].get_legend_handles_labels(), loc="center", frameon=False, fontsize=8)
    return figure
