"""Fig. 3a-c: the mini-batch noise is Gaussian, its correlations vanish in the total noise, and it has no memory.

The Kolmogorov-Smirnov tests compare the noise with the current gradient variance, which must not be older than a part
of the relaxation time 1/(4·S·T·𝒯): 15 000 steps at paper scale, 530 at scale smoke. All components share their
mini-batches, so the share of tests scatters by 0.016 between measurements; 20 of them give it to 0.004.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from .. import pseudo_langevin
from ..diagnostics import noise_study
from .results import COLORS, Row, draw_legend, published_numbers, row, scatter
from .spins import adam_starts, num_weights, spin_task

SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        "hidden_units": 50,
        "starts": {"num_starts": 3, "epochs": 5_000, "seed": 0},
        "sampler": {"batch_size": 558, "temperature_ratio": 0.03},
        "study": {"temperature": 1e-6, "num_steps": 30_000, "measure_every": 2_500, "num_draws": 250},
        **{"seconds": 40, "seed": 0},
    },
    "smoke": {
        "hidden_units": 10,
        "starts": {"num_starts": 1, "epochs": 60, "seed": 0},
        "sampler": {"batch_size": 1_560, "temperature_ratio": 0.03, "refresh_every": 80, "max_refresh_interval": 80},
        "study": {"temperature": 1e-5, "num_steps": 4_000, "measure_every": 200, "num_draws": 250},
        **{"seconds": 60, "seed": 0},
    },
}


def measure(settings: Mapping[str, Any], parts: Any, out: Path) -> None:
    """Run short chains and measure their noise at regular times, one part for each start."""

    def study(index: int) -> Any:
        task = spin_task(settings["hidden_units"])
        start = jax.tree.map(lambda w: w[0, index], adam_starts(task, out, **settings["starts"]))
        sampler = pseudo_langevin(task.potential, task.train, **settings["sampler"])
        return noise_study(sampler, start, key=settings["seed"] + index, **settings["study"])

    for index in range(settings["starts"]["num_starts"]):
        parts.measure(f"start {index}", settings["seconds"], partial(study, index))


def rows(found: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Row]:
    """Return the rows on normality, correlations and memory; errors come from the scatter between measurements."""
    names = ("ks_fraction", "correlation_std", "autocorrelation")
    share, spreads, memory = (np.concatenate([study[name] for study in found.values()]) for name in names)
    known = published_numbers("noise", num_weights(settings["hidden_units"]))
    # Gaussian noise of the right variance has a share between 0.93 and 0.96, in any network.
    published = published_numbers("noise")["fraction_of_ks_p_values_above_0.05"]
    made = [row("share of KS tests with p > 0.05", scatter(share), published=published, tolerance=0.015)]
    for index, (kind, tolerance) in enumerate({"minibatch": 0.25, "white": 0.03, "total": 0.03}.items()):
        options = {"published": known.get(f"correlation_std_{kind}_noise", math.nan), "tolerance": tolerance}
        quantity, value = f"standard deviation of the correlations, {kind} noise", scatter(spreads[:, index])
        made.append(row(quantity, value, relative=True, **options))
        after_one = memory[:, index, 1] / memory[:, index, 0]
        made.append(row(f"autocorrelation after one step, {kind} noise", scatter(after_one), tolerance=0.03))
    excess = spreads[:, 2] / spreads[:, 1] - 1
    return [*made, row("correlations of total over white noise, minus one", scatter(excess), tolerance=0.02)]


def draw(found: Mapping[str, Any], _: Mapping[str, Any]) -> Figure:
    """Draw distributions, correlations and autocorrelations at all times of the first run."""
    study, kinds = next(iter(found.values())), ("mini-batch", "white", "total")
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    panels = figure.subplots(1, 3)
    centers = (study["noise_edges"][1:] + study["noise_edges"][:-1]) / 2
    panels[0].plot(centers, study["noise_density"].T, color=COLORS[0], alpha=0.3, lw=1)
    panels[0].plot(centers, np.exp(-(centers**2) / 2) / np.sqrt(2 * np.pi), color="k", ls="--", label="N(0, 1)")
    panels[0].set(xlabel="mini-batch noise / standard deviation", ylabel="density")
    centers = (study["correlation_edges"][1:] + study["correlation_edges"][:-1]) / 2
    curves = study["autocorrelation"] / study["autocorrelation"][..., :1]
    for index, (kind, color) in enumerate(zip(kinds, COLORS, strict=False)):
        panels[1].plot(centers, study["correlation_density"][:, index].mean(axis=0), color=color, label=kind)
        panels[2].plot(curves[:, index].T, color=color, alpha=0.2, lw=1)
    panels[1].set(xlabel="correlation of two weights' noise", ylabel="density")
    panels[2].set(xlabel="steps", ylabel="autocorrelation")
    draw_legend(figure)
    return figure
