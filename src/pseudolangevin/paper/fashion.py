"""Fig. 6: projected FashionMNIST, test error against time for Adam and at three temperatures, four starts each.

As in the paper: random starts, S = 1 % of the data, a temperature ratio of 0.01, and the gradient variance measured at
the start and then every 5000 steps or more. The masses of random weights are light, so the chain is hot and learns
quickly until the second measurement; equilibrium would take about 1/(4·S·T·𝒯) steps from there, half a million at
T = 1e-7. Images are read from OUT/fashion-mnist or from the Debian package. Chains with a dead class are counted and
left out of the averages.

The paper gives λ = 1e3. With N = 101 610 the minimum of U then has a training error of 0.22, above the published 0.10
to 0.12; with λ/N = 1e-3, as in the paper's network of a million weights, errors are near the published ones. The
main groups use λ = 101.61, and one temperature is run with λ = 1e3 as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from .. import models
from ..apps.fit import trained_starts
from ..data import Dataset, tasks
from ..diagnostics.averages import Average, average
from ..potential import classification
from ..samplers.adam import Adam
from ..samplers.langevin import PseudoLangevin
from .results import OVERFITTING, Row, Stage, published_numbers, published_value, rise, row
from .spins import Chains, SpinTask, summary


@dataclass(frozen=True)
class Group:
    """Chains at one temperature, or trainings by Adam, from all starts."""

    temperature: float | None
    """None for Adam."""
    chains: Chains
    weight_decay: float

    def label(self, main: float) -> str:
        """Return the name of the group; the weight decay is named where it is not the main one."""
        name = "Adam" if self.temperature is None else f"T = {self.temperature:g}"
        return name if self.weight_decay == main else f"{name}, weight decay {self.weight_decay:g}"


@dataclass(frozen=True)
class Settings:
    """Settings of one scale."""

    hidden_units: int
    num_train: int
    num_starts: int
    groups: tuple[Group, ...]
    """The weight decay of the first group is the main one."""
    chunk_size: int
    start_steps: int
    """Steps of Adam after which a random start must have no dead class."""
    gap: float
    """Largest difference of a test error from that of Adam, stopped early, where nothing is published."""
    overfitting: float | None = OVERFITTING
    """Smallest rise of Adam's test error after its minimum; None where the network is too small to overfit."""
    seed: int = 0


def _langevin(num_steps: int, seconds: float, record_every: int = 500, **options: Any) -> Chains:
    return Chains(num_steps, record_every, seconds, {"warmup_refreshes": 0} | options)


SMOKE = {"batch_size": 200, "refresh_every": 1_600, "warmup_refreshes": 6}
SETTINGS = {
    "paper": Settings(
        hidden_units=500,
        num_train=50_000,
        num_starts=4,
        groups=(
            Group(1e-7, _langevin(100_000, 40), 101.61),
            Group(5e-8, _langevin(200_000, 40), 101.61),
            Group(5e-7, _langevin(50_000, 20), 101.61),
            Group(None, Chains(90_000, 1_000, 20, {"learning_rate": 1e-4}), 101.61),
            Group(1e-7, _langevin(30_000, 20), 1e3),
        ),
        chunk_size=10_000,
        start_steps=1_500,
        gap=0.01,
    ),
    "smoke": Settings(
        hidden_units=50,
        num_train=5_000,
        num_starts=2,
        groups=(
            Group(2e-5, _langevin(6_000, 60, 200, **SMOKE), 100.0),
            Group(1e-4, _langevin(6_000, 60, 200, **SMOKE), 100.0),
            Group(None, Chains(8_000, 200, 40, {"learning_rate": 1e-3}), 100.0),
        ),
        chunk_size=5_000,
        start_steps=400,
        gap=0.02,
        overfitting=None,
    ),
}


def projected(dataset: Dataset) -> Dataset:
    """Return the published projection: signs of pixel sums with random signs (eq:projectedFMNIST).

    The matrix is that of the published study. Sums are of whole numbers from 0 to 255, and therefore exact.
    """
    signs = np.random.default_rng(42).choice([-1, 1], size=(784, 100)).astype(np.float32)
    inputs = np.sign(np.rint(255 * np.asarray(dataset.inputs)) @ signs).astype(np.int8)
    return Dataset(inputs, dataset.targets)


def images(out: Path) -> list[Dataset]:
    """Return 50 000 images to train, 10 000 to validate and 10 000 to test, with pixels in [0, 1]."""
    folder = out / "fashion-mnist"
    found = tasks.fashion_mnist(jax.random.key(0), folder=folder if folder.is_dir() else None, projected=False)
    return [part for part in found if part is not None]


@dataclass(frozen=True)
class Curves:
    """Records of all starts of one group."""

    label: str
    temperature: float | None
    main: bool
    """Whether the weight decay is the main one."""
    trace: xr.Dataset
    """Trace with the dimensions chain (start) and draw."""
    seconds_per_step: float

    @property
    def alive(self) -> np.ndarray:
        """Starts to average over: those without a dead class at the end, or all if there is none."""
        alive = ~self.trace["dead_class"].isel(draw=-1).any("class").values
        return np.flatnonzero(alive if alive.any() else ~alive)

    @property
    def test_errors(self) -> np.ndarray:
        """Test errors of these starts, (start, draw)."""
        return self.trace["test_error"].values[self.alive]

    @property
    def early_stopped(self) -> np.ndarray:
        """Test errors of these starts at the step with the lowest validation error, for Adam."""
        steps = self.trace["step"].values
        best = self.trace["best_step"].values[self.alive, -1]
        return np.array([e[max(0, np.searchsorted(steps, b))] for e, b in zip(self.test_errors, best, strict=True)])


def reproduce(settings: Settings, out: Path) -> Iterator[Stage]:
    """Run the groups one after the other from the same starts."""
    pixels = images(out)
    train, validation, test = (projected(part) for part in pixels)
    train = train.head(settings.num_train)
    network = models.feedforward((100, settings.hidden_units, 100, 10), output_activation="relu")
    main = settings.groups[0].weight_decay
    potential = classification(network.apply, weight_decay=main)
    short = {"num_starts": settings.num_starts, "num_steps": settings.start_steps, "key": settings.seed}
    starts = trained_starts(potential, train, network.init, untrained=True, **short)
    starts = jax.tree.map(lambda w: w[None], starts)
    task = ...
