"""Fig. 6: projected FashionMNIST, test error against time for Adam and at three temperatures, four starts each.

As in the paper: random starts, S = 1 % of the data, a temperature ratio of 0.01, and the gradient variance measured at
the start and then every 5000 steps or more. Masses of random weights are light, so the chain is hot and learns quickly
until the second measurement; from there equilibrium would take about 1/(4·S·T·𝒯) steps, half a million at T = 1e-7.
Images are read from OUT/fashion-mnist or from the Debian package. Chains with a dead class are left out of the averages.

The paper gives λ = 1e3. With N = 101 610 the minimum of U then has a training error of 0.22, above the published 0.10
to 0.12; with λ/N = 1e-3, as in the paper's network of a million weights, errors are near the published ones. The main
groups use λ = 101.61, and one temperature is run with λ = 1e3 as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from .. import Dataset, adam, classification, models, pseudo_langevin, tasks
from ..diagnostics.averages import Average, average
from .results import Row, Stage, published_numbers, published_value, rise, row
from .spins import Chains, Task, summary


@dataclass(frozen=True)
class Group:
    """Chains at one temperature, or trainings by Adam, from all starts."""

    temperature: float | None
    """None for Adam."""
    chains: Chains
    weight_decay: float | None = None
    """λ, where it is not the main one."""

    @property
    def name(self) -> str:
        """Name for rows and panels."""
        name = "Adam" if self.temperature is None else f"T = {self.temperature:g}"
        return name if self.weight_decay is None else f"{name}, weight decay {self.weight_decay:g}"


@dataclass(frozen=True)
class Settings:
    """Settings of one scale."""

    hidden_units: int
    num_train: int
    num_starts: int
    weight_decay: float
    groups: tuple[Group, ...]
    start_steps: int
    """Steps of Adam after which a random start must have no dead class."""
    gap: float
    """Largest accepted difference of a test error from that of Adam, stopped early, where nothing is published."""
    overfitting: float | None = 0.003
    """Rise of the test error after its minimum that is overfitting; Adam must overfit, unless None."""
    seed: int = 0


PAPER, SMOKE = {"warmup_refreshes": 0}, {"batch_size": 200, "refresh_every": 1_600, "warmup_refreshes": 6}
SETTINGS = {
    "paper": Settings(
        *(500, 50_000, 4, 101.61),
        groups=(
            Group(1e-7, Chains(100_000, 500, 40, PAPER)),
            Group(5e-8, Chains(200_000, 500, 40, PAPER)),
            Group(5e-7, Chains(50_000, 500, 20, PAPER)),
            Group(None, Chains(90_000, 1_000, 20, {"learning_rate": 1e-4})),
            Group(1e-7, Chains(30_000, 500, 20, PAPER), 1e3),
        ),
        start_steps=1_500,
        gap=0.01,
    ),
    "smoke": Settings(
        *(50, 5_000, 2, 100.0),
        groups=(
            Group(2e-5, Chains(6_000, 200, 60, SMOKE)),
            Group(1e-4, Chains(6_000, 200, 60, SMOKE)),
            Group(None, Chains(8_000, 200, 40, {"learning_rate": 1e-3})),
        ),
        start_steps=400,
        gap=0.02,
        overfitting=None,
    ),
}


def projected(images: Dataset) -> Dataset:
    """Return the published projection: signs of sums of pixels with the random signs of the study's own generator."""
    signs = np.random.default_rng(42).choice([-1, 1], size=(784, 100)).astype(np.float32)
    pixels = np.rint(255 * np.asarray(images.inputs))  # whole numbers, so that the sums are exact
    return Dataset(np.sign(pixels @ signs).astype(np.int8), images.targets)


def reproduce(settings: Settings, out: Path) -> Iterator[Stage]:
    """Run the groups one after the other from the same starts."""
    folder = out / "fashion-mnist" if (out / "fashion-mnist").is_dir() else None
    images = tasks.fashion_mnist(jax.random.key(0), folder=folder, projected=False)
    train, validation, test = map(projected, images)
    network = models.feedforward((100, settings.hidden_units, 100, 10), output_activation="relu")
    potential = partial(classification, network.apply)
    task = Task(train.head(settings.num_train), test, network, potential(weight_decay=settings.weight_decay))
    few = {"num_starts": settings.num_starts, "untrained": True, "seed": settings.seed}
    starts = task.starts(settings.start_steps, **few)
    found: list[tuple[Group, xr.Dataset]] = []
    record: dict[str, Any] = asdict(settings) | {"measured": {}}
    for group in settings.groups:
        sampler = pseudo_langevin
        if group.temperature is None:
            sampler = partial(adam, validation=validation, validate_every=group.chains.record_every)
        chosen = task
        if group.weight_decay is not None:
            chosen = replace(task, potential=potential(weight_decay=group.weight_decay))
        options = {"num_chains": settings.num_starts, "key": settings.seed, "test": test}
        temperatures = None if group.temperature is None else [group.temperature]
        result = group.chains.sample(sampler, chosen, starts, temperatures=temperatures, **options)
        found.append((group, result.trace.isel(temperature=0)))
        record["measured"][group.name] = summary(result) | {"test_error": result.trace["test_error"].values[0]}
        pictures = [np.asarray(part.inputs[:4]) for part in (images.train, train)]
        yield rows_of(found, settings, task.num_weights), draw(found, *pictures), record


def rows_of(found: list[tuple[Group, xr.Dataset]], settings: Settings, num_weights: int) -> list[Row]:
    """Return the rows on errors, on overfitting, and on differences from Adam; traces are those of all starts."""
    rows: list[Row] = []
    numbers = published_numbers()["fashion"]
    known = numbers if numbers["num_weights"] == num_weights else {}
    sampled: dict[float, tuple[Average, float | None]] = {}
    best: Average | None = None
    for group, trace in found:
        dead = trace["dead_class"].isel(draw=-1).any("class").values
        alive = trace.isel(chain=np.flatnonzero(dead if dead.all() else ~dead))
        errors, limit = alive["test_error"].values, {"tolerance": 0.006 if known else None}
        if group.temperature is None:
            steps = alive["step"].values
            at = [np.searchsorted(steps, step) for step in alive["best_step"].values[:, -1]]
            best = _over_starts(errors[np.arange(len(at)), at])
            late, rising = _over_starts(errors[:, -1]), None if settings.overfitting is None else settings.overfitting
            rows.append(
                row("test_error of Adam, stopped early", best, published=known.get("adam_best_test_error"), **limit)
            )
            rows.append(row("test_error of Adam at the end", late, published=known.get("adam_late_test_error")))
            rows.append(row("rise of the test error after its minimum, Adam", late.mean - best.mean, at_least=rising))
        else:
            for name in ("test_error", "error"):
                value = published_value("fashion", num_weights, "pL", group.temperature, name)
                measured = average(alive[name].values, burn_in=0.5)
                judged = limit if name == "test_error" and value is not None else {}
                rows.append(row(f"{name} at {group.name}", measured, published=value, **judged))
                if name == "test_error" and group.weight_decay is None:
                    sampled[group.temperature] = (measured, value)
            quantity = f"rise of the test error after its minimum, {group.name}"
            rows.append(row(quantity, rise(errors.mean(axis=0)), tolerance=settings.overfitting or 0.003))
        rows.append(row(f"starts with a dead class, {group.name}", dead.sum(), tolerance=len(dead) // 2))
    for temperature, (measured, value) in sampled.items() if best is not None else ():
        known_difference = None if value is None else value - known["adam_best_test_error"]
        quantity = f"test_error at T = {temperature:g} minus that of Adam, stopped early"
        tolerance = settings.gap if value is None else 0.006
        rows.append(row(quantity, measured.mean - best.mean, published=known_difference, tolerance=tolerance))
    return rows


def _over_starts(values: np.ndarray) -> Average:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return Average(float(values.mean()), float(error), float(len(values)))


def draw(found: list[tuple[Group, xr.Dataset]], images: np.ndarray, projections: np.ndarray) -> Figure:
    """Draw images with their projections, and the test error along the runs, one colour for each start."""
    figure = Figure(figsize=(3 * len(found) + 3, 4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, len(found)))
    for pair, image, projection in zip(left.subplots(len(images), 2), images, projections, strict=True):
        for axes, picture in zip(pair, (image.reshape(28, 28), projection.reshape(10, 10)), strict=True):
            axes.imshow(picture, cmap="gray")
            axes.set_axis_off()
    lowest = min(float(trace["test_error"].min()) for _, trace in found)
    for axes, (group, trace) in zip(right.subplots(1, len(found), sharey=True, squeeze=False)[0], found, strict=True):
        axes.plot(trace["step"], trace["test_error"].values.T, lw=1)
        axes.set(title=group.name, xlabel="steps", ylim=(lowest - 0.005, lowest + 0.065))
    return figure
