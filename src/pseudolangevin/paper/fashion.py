"""Fig. 6: projected FashionMNIST, test error along runs of Adam and at three temperatures, from the same random starts.

The chains are those of the published figure data: pL on all 60 000 images, 52 000 steps from random weights, averages
over the second half. They are not at equilibrium, which takes 1/(4·S·T·𝒯) steps, 800 000 at T = 5e-8. Images are read
from OUT/fashion-mnist or from the Debian package. The λ = 1e3 of the text is read as λ/N = 1e-3, here λ = 101.61; see
docs/reproductions.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .. import Dataset, tasks
from .results import Row, adam_rows, alive_at, published_average, published_numbers, rise, row
from .spins import Chains, Phase, Task, chains, measure_phases, network_task, num_weights

# The smallest variance in the public code, 1e-8, is about 0.2 % of the mean.
_pl = partial(chains, warmup_refreshes=0, mass_floor=0.002)


def _cooled(lengths: Mapping[float, Chains]) -> tuple[Phase, ...]:
    """Return phases of balanced Langevin, cooled from one temperature to the next."""
    names = [f"balanced, T = {t:g}" for t in lengths]
    return tuple(map(Phase, names, zip(lengths), lengths.values(), ["random", *names[:-1]]))


SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        **{"hidden_units": 500, "num_starts": 6, "weight_decay": 101.61, "seed": 0},
        **{"num_train": 60_000, "num_train_adam": 50_000},
        "phases": (
            Phase("pL", (5e-8, 1e-7, 5e-7), _pl(52_000, 500, 180, batch_size=600)),
            Phase("pL, ratio 0.05", (5e-8,), _pl(52_000, 500, 60, batch_size=600, temperature_ratio=0.05)),
            Phase("Adam", (), chains(90_000, 1_000, 30, learning_rate=1e-4)),
            *_cooled({5e-7: chains(30_000, 500, 40), 1e-7: chains(60_000, 1_000, 80), 5e-8: chains(60_000, 1_000, 80)}),
            Phase("pL, weight decay 1000", (5e-8, 1e-7, 5e-7), _pl(10_000, 500, 20, batch_size=600), "random", 1e3),
        ),
        "start_steps": 1_500,  # steps of Adam after which a random start must have no dead class
        "overfitting": 0.003,  # smallest accepted rise of Adam's test error after its minimum; None: not judged
    },
    "smoke": {
        **{"hidden_units": 50, "num_starts": 2, "weight_decay": 11.16, "seed": 0},
        **{"num_train": 5_000, "num_train_adam": 4_000},
        "phases": (
            Phase("pL", (2e-5, 1e-4), _pl(6_000, 200, 60, batch_size=200, refresh_every=1_600)),
            Phase("Adam", (), chains(8_000, 200, 40, learning_rate=1e-3)),
            *_cooled(dict.fromkeys((1e-4, 2e-5), chains(6_000, 200, 60, batch_size=500))),
        ),
        **{"start_steps": 400, "overfitting": None},  # the network is too small to overfit
    },
}


def projected(images: Dataset) -> Dataset:
    """Return the published projection: signs of sums of pixels with the random signs of the study's own generator."""
    signs = np.random.default_rng(42).choice([-1, 1], size=(784, 100)).astype(np.float32)
    pixels = np.rint(255 * np.asarray(images.inputs))  # whole numbers, so that the sums are exact
    return Dataset(np.sign(pixels @ signs).astype(np.int8), images.targets)


@cache
def splits(out: Path) -> tuple[Dataset, Dataset, Dataset]:
    """Return the images to train with, their projections, and those to test with."""
    folder = out / "fashion-mnist" if (out / "fashion-mnist").is_dir() else None
    train, test = tasks.fashion_mnist(folder=folder)
    return train, projected(train), projected(test)


def measure(settings: Mapping[str, Any], parts: Any, out: Path) -> None:
    """Run the phases one after the other from the same starts."""

    def pictures() -> dict[str, Any]:
        images, train, _ = splits(out)
        return {"images": np.rint(255 * np.asarray(images.inputs[:4])).astype(int), "projections": train.inputs[:4]}

    def task_of(phase: Phase) -> Task:
        weight_decay = phase.weight_decay or settings["weight_decay"]
        _, train, test = splits(out)
        train = train.head(settings["num_train_adam" if phase.sampler == "Adam" else "num_train"])
        return network_task(settings["hidden_units"], train, test, weight_decay, kind="fashion")

    parts.measure("images", 10, pictures)
    measure_phases(settings["phases"], settings, parts, out, task_of)


def rows(found: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Row]:
    """Return the rows on errors, on overfitting, and on differences from Adam."""
    size, made = num_weights(settings["hidden_units"]), list[Row]()
    table = published_numbers("fashion", size)
    trained = adam_rows(found, table, 0.006, settings["overfitting"])
    sampled = [panel for panel in _panels(found, settings) if panel[0].temperatures]
    for phase, index, where in sampled:
        value, temperature = found[phase.name], phase.temperatures[index]
        dead, energy = value["dead"][index], value["averages"][index]["potential"].mean
        same = [(found[p.name], i, name) for p, i, name in sampled if p.weight_decay == phase.weight_decay]
        hotter = [(v["averages"][i]["potential"].mean, n) for v, i, n in same if v["temperatures"][i] >= temperature]
        least, other = min(hotter)
        text = f"The chains are not at equilibrium: U is {energy:.3f}, and {least:.3f} in {other}, which is not colder."
        made.append(row(f"starts with a dead class, {where}", dead.sum(), tolerance=len(dead) // 2))
        for name, tolerance in (("test_error", 0.004), ("error", 0.015)):
            measured, compared = value["averages"][index][name], phase.sampler == "balanced" or phase.name == "pL"
            known = published_average(size, "pL", temperature, name, ["fashion"])
            reason = text if energy > 1.01 * least else None  # at equilibrium U rises with T
            options: dict[str, Any] = {"tolerance": tolerance if compared else None, "reason": reason}
            made.append(row(f"{name}, {where}", measured, published=known, **options))
            if name == "test_error" and trained and phase.weight_decay is None:
                quantity = f"test_error, {where}, minus the best of Adam"
                known -= table.get("adam_best_test_error", np.nan)
                made.append(row(quantity, measured.mean - trained[0].measured, published=known))
        mean = value["test_error"][index][alive_at(value, index)].mean(axis=0)
        made.append(row(f"rise of the test error after its minimum, {where}", rise(mean), tolerance=0.003))
    return made + trained


def _panels(found: Mapping[str, Any], settings: Mapping[str, Any]) -> list[tuple[Phase, int, str]]:
    """Return the measured phases, with an index and a name for each of their temperatures."""
    made = []
    for phase in (p for p in settings["phases"] if p.name in found):
        several = [f"{phase.name}, T = {t:g}" for t in phase.temperatures]
        made += [(phase, *named) for named in enumerate(several if len(several) > 1 else [phase.name])]
    return made


def draw(found: Mapping[str, Any], settings: Mapping[str, Any]) -> Figure:
    """Draw images with their projections, and the test error along the runs, one colour for each start."""
    panels, size = _panels(found, settings), num_weights(settings["hidden_units"])
    columns = max(1, -(-len(panels) // 2))
    figure = Figure(figsize=(2.6 * columns + 2.5, 5.5), layout="constrained")
    grid = figure.add_gridspec(1, 2, width_ratios=(1.2, columns))
    left, right = (figure.add_subfigure(grid[column]) for column in (0, 1))
    pictures = zip(found["images"]["images"], found["images"]["projections"], strict=True)
    for pair, (image, projection) in zip(left.subplots(4, 2), pictures, strict=True):
        for axes, picture in zip(pair, (image.reshape(28, 28), projection.reshape(10, 10)), strict=True):
            axes.imshow(picture, cmap="gray")
            axes.set_axis_off()
    grid_of_axes = right.subplots(2, columns, sharey=True, squeeze=False)
    lowest = min((np.nanmin(found[phase.name]["test_error"][index]) for phase, index, _ in panels), default=0.0)
    for axes, (phase, index, name) in zip(grid_of_axes.ravel(), panels, strict=False):
        value = found[phase.name]
        for start, curve in enumerate(value["test_error"][index]):
            if not value["dead"][index][start]:  # a start that lost a class is not drawn
                axes.plot(value["step"], curve, lw=1, color=f"C{start}")
        axes.set_title(name, fontsize=8)
        axes.set(xlabel="steps", ylim=(lowest - 0.005, lowest + 0.045))
        axes.locator_params(axis="x", nbins=4)
        for temperature in phase.temperatures[index : index + 1]:
            known = published_average(size, "pL", temperature, "test_error", ["fashion"])
            axes.axhline(known, color="0.4", lw=0.8, ls="--")  # NaN: not published
    for axes in grid_of_axes.ravel()[len(panels) :]:
        axes.set_visible(False)
    for axes in grid_of_axes[:, 0]:
        axes.set_ylabel("test error")
    return figure
