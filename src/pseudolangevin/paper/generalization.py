"""Fig. 5 and A.5: test error, loss and gradient variance against temperature, and sampling beside Adam.

The phases run one after another, each within its share of one budget of seconds: at a million weights a chain fills the
device, so that chains side by side gain nothing. From random weights, the low temperature passes the best test error
and goes on to overfit as Adam does.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from .. import trees
from ..data import Dataset
from ..diagnostics.averages import Average, average
from ..gradients import exact_mean
from ..potential import Potential
from ..reports import DeadClassWarning
from ..samplers.adam import adam
from ..samplers.base import Sampler
from ..samplers.langevin import pseudo_langevin
from ..types import Array, Weights
from .generalization_view import ADAM, OVERFITTED, RANDOM, THERMAL, Outcome, Phase, draw, rows_of
from .results import Reproduction
from .spins import SpinTask, keep_end, living_starts, spin_task
from .starts import lively_starts, thermal_start
from .timed import Budget, TimedRun, sample_for


@dataclass(frozen=True)
class Pace:
    """How fast a phase goes."""

    refresh_every: int
    warmup_refreshes: int
    """k; a multiple of `refresh_every`/2ᵏ is recorded, so that all segments are of one length and compile once."""
    temperature_ratio: float = 0.01
    reset_probability: float = 0.1
    max_refresh_interval: int = 50_000
    mass_floor: float = 0.01
    record_every: int = 500

    def sampler(self, task: SpinTask, batch_size: int) -> Sampler:
        """pL at this pace."""
        options = {name: value for name, value in asdict(self).items() if name != "record_every"}
        return pseudo_langevin(task.potential, task.train, batch_size=batch_size, **options)


@dataclass(frozen=True)
class Settings:
    """Numbers of one scale."""

    hidden_units: int
    batch_size: int
    phases: tuple[Phase, ...]
    total_seconds: float
    """Of everything, compilation included."""
    paces: Mapping[str, Pace]
    """Of the curves from random weights, and two that measure 𝒱 often, for equilibrium."""
    adam_batch_size: int
    """128 in the paper; larger ones take as long on a GPU, and overfitting is seen sooner."""
    learning_rate: float
    adam_record_every: int
    observe_examples: int
    test_examples: int
    """Of the test set, along the run; the last weights are tested on all of it."""
    chunk_size: int
    alive_after: int
    """Steps after which a random start must still know all classes."""
    cheap_starts: bool = True
    """Whether the start is chosen before any training."""
    seed: int = 0

    def record_every(self, phase: Phase) -> int:
        """Steps between records of a phase."""
        return self.paces[phase.pace].record_every if phase.temperature else self.adam_record_every


NUM_STARTS = 12
"""Random starts: all but the last are tried, the last is taken as it is."""
KNOWS_ALL = 0.15
"""An error above this says that a class is lost; without its class a tenth of the examples is misclassified."""

SETTINGS = {
    "paper": Settings(
        hidden_units=5_000,
        batch_size=50_305,
        phases=(
            Phase("3e-7", 3e-7, THERMAL, 20_480, 66, "equilibrium", 0.55),
            Phase("2e-7", 2e-7, THERMAL, 20_480, 28, "equilibrium", 0.75),
            Phase("1e-6", 1e-6, THERMAL, 30_720, 40, "equilibrium", 0.2),
            Phase("3e-7 from random weights", 3e-7, RANDOM, 6_000, 30),
            Phase("1e-7 from random weights", 1e-7, RANDOM, 50_000, 75),
            Phase(ADAM, None, RANDOM, 2_000_000, 40),
            Phase(OVERFITTED, None, RANDOM, 2_000_000, 32),
            Phase("1e-7 from overfitted weights", 1e-7, OVERFITTED, 12_288, 14, "equilibrium"),
            Phase("1e-5", 1e-5, "3e-7 from random weights", 8_192, 14, "equilibrium"),
            Phase("1e-4", 1e-4, "1e-5", 8_192, 20, "hot"),
        ),
        total_seconds=330,
        paces={
            "published": Pace(4_000, 3),
            "equilibrium": Pace(1_024, 7, max_refresh_interval=1_024, record_every=512),
            "hot": Pace(256, 6, 0.003, max_refresh_interval=256, mass_floor=0.1, record_every=512),
        },
        adam_batch_size=1_024,
        learning_rate=3e-4,
        adam_record_every=1_000,
        observe_examples=150_000,
        test_examples=200_000,
        chunk_size=25_000,
        alive_after=4_000,
    ),
    "smoke": Settings(
        hidden_units=50,
        batch_size=558,
        phases=(
            Phase("3e-5 from random weights", 3e-5, RANDOM, 6_000, 30),
            Phase("6e-5", 6e-5, THERMAL, 3_000, 12),
            Phase("1e-4", 1e-4, THERMAL, 3_000, 12),
            Phase(ADAM, None, RANDOM, 20_000, 20),
            Phase("1e-6 from Adam", 1e-6, ADAM, 3_000, 12),
        ),
        total_seconds=300,
        paces={"published": Pace(1_600, 4, record_every=100)},
        adam_batch_size=128,
        learning_rate=1e-3,
        adam_record_every=500,
        observe_examples=10_000,
        test_examples=10_044,
        chunk_size=4_096,
        alive_after=500,
        cheap_starts=False,
    ),
}


def reproduce(scale: str, out: Path) -> Reproduction:
    """Run the phases, writing what there is after each."""
    settings = SETTINGS[scale]
    started = time.perf_counter()
    budget = Budget(0.96 * settings.total_seconds, {p.name: p.share for p in settings.phases})
    task = spin_task(settings.hidden_units)
    starts = (
        lively_starts(task.network, task.train, NUM_STARTS, seed=settings.seed)
        if settings.cheap_starts
        else living_starts(task, 1, seed=settings.seed)
    )
    samplers = {name: pace.sampler(task, settings.batch_size) for name, pace in settings.paces.items()}
    samplers |= {ADAM: _trainer(task, settings), OVERFITTED: _overfitter(task, settings)}
    ends: dict[str, Weights] = {}
    outcomes: list[Outcome] = []
    for index, phase in enumerate(settings.phases):
        chosen = samplers[phase.name if phase.temperature is None else phase.pace]
        seed = settings.seed + index
        if phase.start == RANDOM:
            start = _that_lives(phase, chosen, starts, task, settings, seed)
        elif phase.start == THERMAL:
            assert phase.temperature is not None
            system = (task.network, task.train, task.potential, phase.temperature)
            start = thermal_start(*system, scores=phase.scores, seed=settings.seed)
        else:
            start = ends[phase.start]
        run = _run(phase, chosen, start, task, settings, budget.take(phase.name), seed)
        ends[phase.name] = run.weights
        if phase.temperature is not None and phase.start != RANDOM:
            keep_end(out, task, phase.temperature, run.weights)
        outcomes.append(_outcome(phase, run, task, settings))
        recorded = asdict(settings) | {
            "num_weights": task.num_weights,
            "num_examples": task.train.num_examples,
            "phases_left": [p.name for p in settings.phases[index + 1 :]],
            "measured": {o.phase.name: o.record for o in outcomes},
        }
        rows, figure = rows_of(outcomes, scale), draw(outcomes, scale)
        seconds = time.perf_counter() - started
        reproduction = Reproduction("generalization", scale, rows, figure, recorded, settings.seed, seconds)
        reproduction.write(out)  # whatever comes, this much is there
    return reproduction


def _trainer(task: SpinTask, settings: Settings) -> Sampler:
    """Adam on the first 0.82·P examples; the others, or as many as the test uses, are its validation set."""
    num_training = round(0.82 * task.train.num_examples)
    held_out = jax.tree.map(lambda a: a[num_training : num_training + settings.test_examples], task.train)
    return adam(
        task.potential,
        task.train.head(num_training),
        batch_size=settings.adam_batch_size,
        learning_rate=settings.learning_rate,
        validation=held_out,
        validate_every=settings.adam_record_every,
    )


def _overfitter(task: SpinTask, settings: Settings) -> Sampler:
    """Adam on all examples, in large batches and with large steps: to a low loss soon."""
    return adam(task.potential, task.train, batch_size=settings.batch_size // 8, learning_rate=1e-3)


def _that_lives(
    phase: Phase, sampler: Sampler, starts: Weights, task: SpinTask, settings: Settings, seed: int
) -> Weights:
    """The first start that still knows all classes after some thousand steps.

    A class with a signal at the start may lose it on the way, for good.
    """
    num_starts = jax.tree.leaves(starts)[0].shape[1]
    for index in range(num_starts):
        start = jax.tree.map(lambda w, i=index: w[0, i], starts)
        if index == num_starts - 1:
            break
        record_every = settings.record_every(phase)
        short = replace(phase, max_steps=record_every * max(1, settings.alive_after // record_every))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeadClassWarning)
            trace = _run(short, sampler, start, task, settings, float("inf"), seed, quiet=True).trace
        if not trace["dead_class"].values[..., -1, :].any() and trace["error"].values[..., -1] < KNOWS_ALL:
            break
    return start


def _run(
    phase: Phase,
    sampler: Sampler,
    start: Weights,
    task: SpinTask,
    settings: Settings,
    seconds: float,
    key: int,
    *,
    quiet: bool = False,
) -> TimedRun:
    name = f"T = {phase.name}" if phase.temperature else phase.name
    return sample_for(
        seconds,
        sampler,
        start,
        temperatures=None if phase.temperature is None else [phase.temperature],
        num_chains=1,
        record_every=settings.record_every(phase),
        max_steps=phase.max_steps,
        key=key,
        test=task.test.head(min(settings.test_examples, task.test.num_examples)),
        observe_examples=settings.observe_examples,
        chunk_size=settings.chunk_size,
        label=None if quiet else name,
    )


def _outcome(phase: Phase, run: TimedRun, task: SpinTask, settings: Settings) -> Outcome:
    trace = run.trace.isel(temperature=0, chain=0)
    steps, test_errors = trace["step"].values, trace["test_error"].values
    whole = float(
        share_misclassified(
            task.potential, jax.tree.map(lambda w: w[0, 0], run.weights), task.test, settings.chunk_size
        )
    )
    record: dict[str, Any] = {
        "steps_done": run.num_steps,
        "seconds_used": round(run.seconds, 1),
        "seconds_per_record": round(float(np.median(np.diff(run.times))), 4) if len(run.times) > 1 else None,
        "last_test_error_on_the_whole_test_set": whole,
        "dead_classes": int(trace["dead_class"].values[-1].sum()),
        "steps": steps.tolist(),
        "test_error": [round(float(e), 5) for e in test_errors],
        "loss": [round(float(e), 5) for e in trace["loss"].values],
    }
    if phase.name == OVERFITTED:
        return Outcome(phase, steps, test_errors, {}, record=record)
    if phase.temperature is None:
        best_step = int(trace["best_step"].values[-1])
        # Step 0 is the start itself, which has no record.
        best = float(test_errors[np.flatnonzero(steps == best_step)[0]]) if best_step in steps else float("nan")
        return Outcome(phase, steps, test_errors, {}, best_test_error=best, record=record | {"best_step": best_step})
    averages = {n: average(trace[n].values, burn_in=0.5) for n in ("loss", "squared_norm", "error", "test_error")}
    # The last weights tell how the part of the test set that was measured differs from all of it.
    part = averages["test_error"]
    averages["test_error"] = part._replace(mean=part.mean + whole - float(test_errors[-1]))
    averages["gradient_variance"] = _variance(first_two_layers(trace, run.weights))
    layers = tuple(_variance(values) for values in trace["gradient_variance"].values.T)
    virial = average(trace["virial_temperature"].values, burn_in=0.5).mean / phase.temperature
    record |= {"averages": {name: value.mean for name, value in averages.items()}}
    record |= {"layer_gradient_variances": [v.mean for v in layers], "virial_over_temperature": virial}
    record |= {"squared_norm": [round(float(v), 1) for v in trace["squared_norm"].values]}
    prior = phase.temperature / task.potential.smallest_stiffness(task.num_weights)
    record |= {"squared_norm_over_prior_by_layer": _over_prior(run.weights, prior)}
    return Outcome(phase, steps, test_errors, averages, layers, record=record)


def _over_prior(weights: Weights, variance: float) -> dict[str, float]:
    """Mean square of every layer's weights, over what the prior gives them."""
    mean_squares = {n: trees.squared_norm(w) / trees.num_weights(w) for n, w in trees.layers(weights).items()}
    return {name: float(value) / variance for name, value in mean_squares.items()}


def _variance(values: np.ndarray) -> Average:
    """Mean of the second half; 𝒱 stays as it is between refreshes, so that its records know no error."""
    return average(values, burn_in=0.5)._replace(standard_error=float("nan"), effective_samples=float("nan"))


def first_two_layers(trace: xr.Dataset, weights: Weights) -> np.ndarray:
    """Mean 𝒱 over the weights of the first two layers, 99.4 % of all at the largest size, at every record."""
    sizes = np.array([trees.num_weights(layer) for layer in trees.layers(weights).values()][:2], float)
    return trace["gradient_variance"].values[:, :2] @ sizes / sizes.sum()


@partial(jax.jit, static_argnames=("potential", "chunk_size"))
def share_misclassified(potential: Potential, weights: Weights, dataset: Dataset, chunk_size: int) -> Array:
    """The share of misclassified examples."""
    assert potential.per_example_error is not None
    return exact_mean(potential.per_example_error, weights, dataset, chunk_size).high
