"""Spin-vector task of the paper: data, network and potential of one size, starts, chains, and speeds of samplers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from .. import Dataset, Potential, Result, Run, Sampler, classification, models, pseudo_langevin, sample, tasks
from .. import _trees as trees
from .._random import normal_like
from .._trees import Array, Key, Weights
from ..apps.temperature import trained_starts
from ..diagnostics.averages import DEFAULT_DISCARD, Average, average_by_temperature, kept
from ..diagnostics.diffusion import Diffusion, MeasuredDiffusion, measure_diffusion
from .results import COLORS, LABELS, Row, Stage, row


@dataclass(frozen=True)
class Task:
    """Data, network and potential."""

    train: Dataset
    test: Dataset
    network: models.FeedForward
    potential: Potential

    @property
    def shapes(self) -> Weights:
        """Shapes of the weights."""
        return jax.eval_shape(self.network.init, jax.random.key(0))

    @property
    def num_weights(self) -> int:
        """Number of weights, N."""
        return trees.num_weights(self.shapes)

    def starts(self, num_steps: int, *, seed: int = 0, **options: Any) -> Weights:
        """Return starts without dead classes, leading axes (1, start), from a training by Adam."""
        system = (self.potential, self.train, self.network.init)
        return jax.tree.map(lambda w: w[None], trained_starts(*system, num_steps=num_steps, key=seed, **options))


def spin_task(hidden_units: int, *, num_train: int | None = None, data_seed: int = 6) -> Task:
    """Return the task with N = 201·L1 + 1110 weights, P = 5N training examples (or P as given) and 0.18·P to test.

    The published data set is not available, and data sets differ: over seeds 0 to 15 the loss of the ideal classifier
    spreads from 0.297 to 0.328. Seed 6 has 0.324 at P = 55 800; the published averages imply about 0.320.
    """
    network = models.feedforward((100, hidden_units, 100, 10), output_activation="relu")
    num_train = num_train or 5 * (201 * hidden_units + 1_110)
    train, test = tasks.spin_vectors(jax.random.key(data_seed), num_train=num_train, num_test=round(0.18 * num_train))
    return Task(train, test, network, classification(network.apply, weight_decay=10.0611))


def ideal_loss(task: Task, flip_probability: float = 0.355) -> float:
    """Return the training loss of the ideal classifier, which has the reference vector of every class."""
    inputs, labels = np.asarray(task.train.inputs, np.float32), np.asarray(task.train.targets)
    references = np.sign([inputs[labels == k].mean(axis=0) for k in np.unique(labels)])  # exact for many examples
    scores = inputs @ references.T * (math.log(1 / flip_probability - 1) / 2)
    return float(np.mean(np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(labels)), labels]))


def stored(path: Path, task: Task, make: Callable[[], Weights]) -> Weights:
    """Return the weights in an .npz file, leading axes (1, chain); if it does not exist, make them and write it."""
    if not path.exists():
        np.savez(path, *map(np.asarray, jax.tree.leaves(make())))
    shapes, structure = jax.tree.flatten(task.shapes)
    with np.load(path, allow_pickle=False) as file:
        leaves = [file[name] for name in file.files]
    if [leaf.shape[2:] for leaf in leaves] != [leaf.shape for leaf in shapes]:
        raise ValueError(f"{path} holds weights of another network; remove it")
    return jax.tree.unflatten(structure, leaves)


def end_of(out: Path, task: Task, temperature: float) -> Path:
    """Return the file with the last weights of a long chain, from which comparisons of speed start."""
    return out / f"end-{task.num_weights}-{temperature:g}.npz"


def keep_end(out: Path, task: Task, temperature: float, weights: Weights) -> None:
    """Write that file."""
    np.savez(end_of(out, task, temperature), *map(np.asarray, jax.tree.leaves(weights)))


def adam_starts(task: Task, out: Path, *, num_starts: int, epochs: int, seed: int = 0) -> Weights:
    """Return starts of the paper's Adam, leading axes (1, start), from a file if they were trained before.

    Batches hold 128 examples; the learning rate is 1e-4, times 0.8 every 1000 epochs.
    """
    schedule: dict[str, Any] = {"learning_rate": 1e-4, "decay_factor": 0.8, "decay_epochs": 1_000}
    num_steps = round(epochs * task.train.num_examples / 128)
    path = out / f"starts-{task.num_weights}-{num_starts}x{epochs}.npz"
    return stored(path, task, lambda: task.starts(num_steps, num_starts=num_starts, seed=seed, **schedule))


def prior_start(task: Task, temperature: float, *, scores: float = 1.0, seed: int = 0) -> Weights:
    """Return weights from the prior N(0, N·T/λ), the last layer scaled down, without dead classes.

    Above the transition nearly all directions are set by the regulariser alone, and these weights are at temperature T
    at once; from the small weights of an initialisation, |w|² takes 𝒱/(4·T·𝒯·λ/N) steps to grow. The last layer is
    scaled such that the scores have the standard deviation `scores`, since those of the prior can be in the hundreds.
    """
    shapes, scale = task.shapes, math.sqrt(temperature / task.potential.smallest_stiffness(task.num_weights))

    @jax.jit
    def draw(key: Key, inputs: Array) -> tuple[Weights, Array]:
        weights = jax.tree.map(lambda noise: scale * noise, normal_like(key, shapes))
        outputs, last = task.network.apply(weights, inputs), max(weights)
        factor = jnp.minimum(1.0, scores / jnp.std(outputs))
        weights |= {last: jax.tree.map(lambda w: factor * w, weights[last])}
        return weights, jnp.min(jnp.mean(outputs > 0, axis=0))

    for candidate in range(seed, seed + 1_000):
        weights, smallest_share = draw(jax.random.key(candidate), task.train.inputs[:2_000])
        if smallest_share >= 0.01:  # of the examples with a positive score, in the worst class
            return jax.tree.map(np.asarray, weights)
    raise ValueError(f"seed = {seed}: each of 1000 draws from the prior has a dead class; try another seed")


@dataclass(frozen=True)
class Chains:
    """Length of some chains, and settings of their sampler."""

    num_steps: int
    record_every: int
    max_seconds: float
    settings: Mapping[str, Any]

    def sample(self, sampler: Callable[..., Sampler], task: Task, starts: Weights, **options: Any) -> Result:
        """Return the chains of a sampler, made from the settings; `options` are further arguments of `sample`."""
        options |= {"num_steps": self.num_steps, "record_every": self.record_every, "max_seconds": self.max_seconds}
        return sample(sampler(task.potential, task.train, **self.settings), starts, **options)


def chains(num_steps: int, record_every: int, max_seconds: float, **settings: Any) -> Chains:
    """Return chains whose sampler has the settings."""
    return Chains(num_steps, record_every, max_seconds, settings)


def averages_of(result: Result, discard: float = DEFAULT_DISCARD) -> list[dict[str, Average]]:
    """Return the averages of loss, |w|² and error at every temperature."""
    trace = kept(result.trace, discard)
    columns = [average_by_temperature(trace[name], trace) for name in LABELS]
    return [dict(zip(LABELS, averages, strict=True)) for averages in zip(*columns, strict=True)]


def summary(result: Result) -> dict[str, Any]:
    """Return the steps of a run, its virial temperatures over T, and the share of accepted moves."""
    trace = kept(result.trace)
    means = {"virial_over_temperature": trace["virial_temperature"] / trace["temperature"]}
    means |= {name: trace[name] for name in ("acceptance",) if name in trace}
    found = {name: [v.mean for v in average_by_temperature(values, trace)] for name, values in means.items()}
    return {"steps": int(result.trace["step"][-1])} | found


@dataclass(frozen=True)
class Case:
    """One size and temperature at which samplers are compared by the clock."""

    hidden_units: int
    temperature: float
    training_steps: int  # steps of Adam before sampling, unless the output folder has the end of a longer chain
    equilibration_seconds: float
    seconds: float  # measured time of every sampler
    chunk_size: int
    options: Mapping[str, Any] = field(default_factory=dict)  # settings of one reproduction
    seed: int = 0

    def prepare(self, out: Path) -> tuple[Task, Weights]:
        """Return the task and one chain's weights near equilibrium."""
        task = spin_task(self.hidden_units)

        def equilibrate() -> Weights:
            # Masses are only raised: after a reset, those of a million weights can be too light for later weights.
            long = chains(10**7, 1_000, self.equilibration_seconds, refresh_every=1_000, reset_probability=0.0)
            options: dict[str, Any] = {"temperatures": [self.temperature], "chunk_size": self.chunk_size}
            start = task.starts(self.training_steps, seed=self.seed)
            return long.sample(pseudo_langevin, task, start, key=self.seed, **options).weights

        weights = stored(end_of(out, task, self.temperature), task, equilibrate)
        return task, jax.tree.map(lambda w: w[0, 0], weights)

    def measure(self, sampler: Any, weights: Weights) -> MeasuredDiffusion:
        """Return the speed of a sampler.

        The shortest interval is one move, or the memory of the momenta, 1/(1 - c1²) steps. Before the clock starts,
        hybrid Monte Carlo adapts its time step, and the other samplers measure the gradient variance ten times, so that
        their masses are those of a long run.
        """
        options: dict[str, Any] = {"temperatures": [self.temperature], "chunk_size": self.chunk_size}
        run, every, discard = Run(sampler, **options), 1, getattr(sampler, "warmup_moves", None)
        if sampler.refreshes:
            every = max(50, round(1 / (1 - sampler.momentum_retention**2)))
            often = Run(replace(sampler, refresh_every=every, max_refresh_interval=every), **options)
            states = often.start(weights, self.seed)
            states = measure_diffusion(often, states, every=every, seconds=0, discard_steps=9 * every).states
        else:
            states = run.start(weights, self.seed)
        return measure_diffusion(run, states, every=every, seconds=self.seconds, discard_steps=discard)


def ratio(left: Diffusion | None, right: Diffusion | None, *, same_interval: bool = False) -> Average:
    """Return the ratio of two D*, each at its own shortest interval or both at the longer one; NaN if unknown."""
    if left is None or right is None or not right.coefficient[0] > 0:
        return Average(math.nan, math.nan, math.nan)
    if same_interval:
        interval = max(left.seconds[0], right.seconds[0])
        return Average(float(left.at(interval)[0] / right.at(interval)[0]), math.nan, math.nan)
    value = float(left.coefficient[0] / right.coefficient[0])
    errors = (float(d.coefficient_error[0] / d.coefficient[0]) for d in (left, right))
    return Average(value, value * math.hypot(*errors), math.nan)


def compare_speeds(
    cases: Sequence[Case],
    out: Path,
    samplers_of: Callable[[Case, Task, Weights], Mapping[str, Sampler]],
    pairs_of: Callable[[Case, Sequence[str]], Iterable[tuple[str, str, float, bool]]],
) -> Iterator[Stage]:
    """Measure samplers from the same weights, one after the other, in every case.

    `samplers_of` returns the samplers of a case by label. `pairs_of` returns pairs of labels (faster, slower), the
    smallest accepted ratio of their D*, and whether it is taken at the same interval.
    """
    rows: list[Row] = []
    curves: dict[str, dict[str, Diffusion | None]] = {}
    record: dict[str, Any] = {"cases": [asdict(case) for case in cases], "measured": {}}
    for case in cases:
        task, weights = case.prepare(out)
        where = f"N = {task.num_weights}, T = {case.temperature:g}"
        curves[where], record["measured"][where] = {}, {}
        for label, sampler in samplers_of(case, task, weights).items():
            speed = case.measure(sampler, weights)
            curves[where][label] = speed.diffusion
            rows.append(row(f"D*/N in 1/s, {where}, {label}", Average(speed.coefficient, speed.coefficient_error, 0)))
            print(f"{rows[-1].quantity}: {rows[-1].measured:.3g}", flush=True)
            record["measured"][where][label] = {
                "sampler": sampler.name,
                "settings": sampler.settings,
                "D*/N": speed.coefficient,
                "seconds_per_step": speed.seconds_per_step,
                "variance_share": speed.refresh_seconds / speed.seconds if speed.seconds else math.nan,
                "time_step": np.mean(getattr(speed.states, "time_step", math.nan)),
                "curve": None if speed.diffusion is None else speed.diffusion.to_dict(),
            }
        for faster, slower, least, same in pairs_of(case, list(curves[where])):
            value = ratio(curves[where][faster], curves[where][slower], same_interval=same)
            quantity = f"D*{' at the same interval' * same}, {where}, {faster} over {slower}"
            rows.append(row(quantity, value, at_least=least))
        yield rows, _draw(curves), record


def _draw(curves: Mapping[str, Mapping[str, Diffusion | None]]) -> Figure:
    """Draw d²/N against wall-clock time, one panel for each case."""
    figure = Figure(figsize=(5 * len(curves), 4.5), layout="constrained")
    for axes, (title, found) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
        for color, (label, curve) in zip(COLORS, found.items(), strict=False):
            if curve is not None and (moved := curve.displacement[0] > 0).any():  # all moves may have been rejected
                axes.plot(curve.seconds[moved], curve.displacement[0][moved], "o-", ms=3, color=color, label=label)
        axes.set(xscale="log", yscale="log", xlabel="wall-clock interval [s]", ylabel="d²/N", title=title)
        axes.legend(frameon=False, fontsize=7)
    return figure
