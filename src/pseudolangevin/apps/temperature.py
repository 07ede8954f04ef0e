"""Trained starts without dead classes, and the temperatures at which samples generalise best.

Below the transition (near T = 1/P in the networks studied) samples overfit; above it, thermal noise and the test error
grow with T. The recommended temperature is therefore the coldest one that shows no sign of overfitting.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.sharding import Mesh

from .. import _trees as trees
from .._trees import Key, Weights, as_key, check_integer, check_positive
from ..chains import Run, sample
from ..data import Dataset
from ..diagnostics.averages import healthy_chains
from ..observables import DeadClassWarning
from ..placement import Placement
from ..potential import Potential
from ..results import Result
from ..samplers.adam import Adam
from ..samplers.balanced import BalancedLangevin


def trained_starts(
    potential: Potential,
    dataset: Dataset,
    init: Callable[[Key], Weights],
    *,
    num_steps: int,
    num_starts: int = 1,
    candidates: int = 4,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    untrained: bool = False,
    placement: Placement | Mesh | None = None,
    on_pause: Callable[[], object] | None = None,
    key: Key | int = 0,
    progress: bool | None = None,
    **adam: Any,
) -> Weights:
    """Return starts without dead classes, along one leading axis: the best of several short trainings by Adam.

    With ReLU on the scores, the score of a class can be zero for every example; its gradient vanishes, and the class is
    never learned. The candidates are trained together. Those without a dead class come first, then the lowest loss.

    Args:
        potential: U.
        dataset: the training set.
        init: function from a key to random weights, such as `network.init`; `lambda key: weights` for given ones.
        num_steps: training steps.
        num_starts: starts to return.
        candidates: trainings for each start.
        batch_size: examples per mini-batch, or all of a smaller data set.
        learning_rate: learning rate of Adam.
        untrained: return the random weights that the chosen trainings began with.
        placement: devices, as in `Run`.
        on_pause: function called every 500 steps; an exception that it raises ends the training.
        key: random key, or an integer seed; the weights of candidate i are `init(jax.random.fold_in(key, i))`.
        progress: show a progress bar; default: when the output is a terminal.
        **adam: further settings of `adam`.

    Example:
        >>> starts = trained_starts(potential, train, network.init, num_steps=2_000, num_starts=2)
    """
    for name, value in [("num_starts", num_starts), ("candidates", candidates), ("num_steps", num_steps)]:
        check_integer(name, value, minimum=1)
    key, total = as_key(key), num_starts * candidates
    first = jax.vmap(lambda index: init(jax.random.fold_in(key, index)))(jnp.arange(total))
    size, num_observed = min(batch_size, dataset.num_examples), min(10_000, dataset.num_examples)
    sampler = Adam(potential, dataset, batch_size=size, learning_rate=learning_rate, **adam)
    run = Run(sampler, num_chains=total, observe_examples=num_observed, placement=placement)
    states, observed = run.start(jax.tree.map(lambda w: w[None], first), key), dict[str, np.ndarray]()
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # trainings that fail are not chosen
        for record in run.records(states, stop=num_steps, every=num_steps, pause_every=500, progress=progress):
            states, observed = record.states, record.observables or observed
            if on_pause is not None:
                on_pause()
    failed = ~np.isfinite(observed["loss"])
    dead = failed | np.any(observed.get("dead_class", failed[:, None]), axis=-1)
    chosen = np.lexsort((observed["loss"], dead))[:num_starts]
    if failed[chosen].any():
        broken = f"{failed.sum()} of {total} trainings did not stay finite"
        raise ValueError(f"{broken}; lower learning_rate = {learning_rate:g}, or give other random weights")
    if num_dead := dead[chosen].sum():
        why = f"{num_dead} of {num_starts} starts have a dead class, whose score is the same for nearly every example"
        remedy = 'raise candidates, change the seed, or use output_activation = "identity"'
        warnings.warn(f"{why}; {remedy}", DeadClassWarning, stacklevel=2)
    return jax.tree.map(lambda w: w[chosen], first if untrained else states.weights)


def safe_learning_rate(weights: Weights) -> float:
    """Return a learning rate of Adam for one set of weights; at 1e-3, a million weights can lose a class."""
    return 1e-3 * min(1.0, 5e4 / trees.num_weights(weights))


@dataclass(frozen=True)
class TemperatureRange:
    """Intermediate temperatures, and the curve that justifies them; printable."""

    temperature: float  # recommended, the cold end of the range: the coldest one scanned without a sign of overfitting
    high: float  # temperature at which the loss has risen by 1 %
    conclusive: bool  # whether both ends have a reason, and the cold one is not the budget
    notes: tuple[str, ...]  # reasons of the ends, and what is missing
    curve: xr.Dataset  # averages over the second half of each chain, and whether it is valid, against temperature
    cost: int  # examples visited, measurements included
    bayesian_temperature: float  # 1/P, at which exp(−U/T) is the ordinary posterior
    weights: Weights  # last weights at the recommended temperature: a start for sampling there

    @property
    def epochs(self) -> float:
        """Cost in passes through the training set."""
        return self.cost * self.bayesian_temperature

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the weights, for JSON; unknown numbers are None."""
        found = {name: value for name, value in vars(self).items() if name not in ("curve", "weights")}
        found |= {"epochs": self.epochs, "curve": self.curve.to_dataframe().reset_index().to_dict("list")}
        return json.loads(json.dumps(found), parse_constant=lambda _: None)

    def __str__(self) -> str:
        """Return the result, the curve as a table, and the notes."""
        certainty = "" if self.conclusive else " (inconclusive)"
        lines = [
            f"recommended T = {self.temperature:.3g}   range up to {self.high:.3g}{certainty}",
            f"Bayesian 1/P = {self.bayesian_temperature:.3g}   cost {self.epochs:.1f} epochs",
            self.curve.to_dataframe().reset_index().to_string(index=False, float_format="{:.4g}".format),
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def find_temperature(
    potential: Potential,
    dataset: Dataset,
    weights: Weights,
    *,
    temperatures: Sequence[float] | None = None,
    num_temperatures: int = 6,
    epochs: float | None = None,
    key: Key | int = 0,
    progress: bool | None = False,
) -> TemperatureRange:
    """Find the temperatures at which samples generalise best, from the training set alone.

    A fifth of the budget trains the network by Adam. From there, chains at all temperatures run together, and `judge`
    reads the range from their averages. The budget decides how cold the temperature grid begins: directions determined
    by the data relax in 1/(4·T·𝒯) examples. Temperatures at which |w|² of the prior is below twice that of the trained
    network are not recommended: samples that generalise are close to the prior.

    Args:
        potential: U.
        dataset: the training set.
        weights: random weights, such as `network.init(key)`.
        temperatures: temperature grid; default: from the coldest one at which a chain has half a relaxation time, to
            sixteen times that or to 8/P.
        num_temperatures: size of the default grid.
        epochs: budget, in passes through the training set; default: 25, or a million examples where that is more.

    Example:
        >>> found = pl.find_temperature(potential, train, network.init(key))
        >>> result = pl.sample(sampler, found.weights, temperatures=[found.temperature], num_steps=20_000, key=1)
    """
    num_temperatures = num_temperatures if temperatures is None else len(temperatures)
    check_integer("num_temperatures", num_temperatures, minimum=3, maximum=100, remedy="a minimum needs at least 3")
    num_examples, num_weights = dataset.num_examples, trees.num_weights(weights)
    epochs = max(25.0, 1e6 / num_examples) if epochs is None else epochs
    check_positive("epochs", epochs)
    potential.check(weights, dataset)
    keys, observed = jax.random.split(as_key(key)), min(1_000, num_examples)
    start_loss = float(potential.loss(weights, dataset.head(observed).batch))
    training_steps = int(np.clip(0.2 * epochs * num_examples / 128, 32, 20_000))
    training: dict[str, Any] = {"num_steps": training_steps, "candidates": 1, "progress": progress, "key": keys[0]}
    training["learning_rate"] = safe_learning_rate(weights)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # chains that fail are marked as invalid
        start = jax.tree.map(lambda w: w[0], trained_starts(potential, dataset, lambda _: weights, **training))
    # |w|² of the prior is N·T over the stiffness; a prior that is the same at every T bounds none.
    bounds = potential.tempered_energy == "potential"
    coldest = 4 * float(potential.regularizer(start)) / num_weights if bounds else 0.0

    # A step visits S examples. Nine measurements visit up to 10·S for the variance and 34·S for the load of the
    # friction: as many as 400 steps. There are four records.
    training_cost = training_steps * min(128, num_examples) + min(10_000, num_examples) + observed
    examples = (epochs * num_examples - training_cost) / num_temperatures - 4 * observed
    batch_size = int(np.clip(examples / 1_600, min(16, num_examples), max(16, num_examples // 100)))
    num_steps = 8 * max(2, int(examples / batch_size - 400) // 8)
    ratio = 0.1 * min(1.0, 1e5 / num_weights) ** 0.5  # keeps the chains of large networks finite
    if temperatures is None:
        cold = max(coldest, 0.5 / (4 * num_steps * batch_size * ratio))
        temperatures = np.geomspace(cold, max(16 * cold, 8 / num_examples), num_temperatures).tolist()
    sampler = BalancedLangevin(
        potential,
        dataset,
        batch_size=batch_size,
        friction_batch_size=batch_size // 2,  # batches are small, and fewer examples would ask for heavier masses
        temperature_ratio=ratio,
        refresh_every=num_steps // 4,
        max_refresh_interval=num_steps // 4,
        num_warmup=num_steps // 8,  # the masses are fixed at the first refresh from there: after a quarter of the steps
        variance_examples=min(num_examples, 10 * batch_size),
        mass_floor=0.1,  # at 0.01, chains on FashionMNIST did not stay finite
    )
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        result = sample(
            sampler,
            start,
            temperatures=sorted(temperatures),
            num_warmup=num_steps // 2,
            num_steps=num_steps // 2,
            record_every=num_steps // 8,
            observe_examples=observed,
            key=keys[1],
            progress=progress,
        )
    curve = _curve(result)
    found = judge(curve, start_loss=start_loss, coldest=coldest)
    index = result.temperature_index(found[0])
    if curve["valid"].values[index]:
        start = jax.tree.map(lambda w: w[index, 0], result.weights)
    cost = training_cost + num_temperatures * (4 * observed + batch_size * (num_steps + 400))
    return TemperatureRange(*found, curve, cost, 1 / num_examples, start)


def judge(curve: xr.Dataset, *, start_loss: float, coldest: float = 0.0) -> tuple[float, float, bool, tuple[str, ...]]:
    """Return temperature, high, conclusive and notes of the `TemperatureRange` that a curve gives.

    The mean gradient variance 𝒱 of the hidden layers is the paper's order parameter, a hundred times larger below the
    transition than above it. The range begins, above `coldest`, where 𝒱 falls below four times its minimum, and ends
    where the loss has risen by 1 %. Chains whose loss is nearer to `start_loss`, that of the random weights, than to
    the lowest one do not count: they have not learned, and their 𝒱 may be small as well.
    """
    temperatures, losses, variances = (curve[name].values for name in ("temperature", "loss", "gradient_variance"))
    usable = curve["valid"].values & (variances > 0) & (temperatures >= coldest * (1 - 1e-6))
    usable &= losses <= (start_loss + np.min(losses, where=usable, initial=start_loss)) / 2
    notes = []
    if not curve["valid"].values.all():
        notes.append("invalid chains stopped or lost a class; try other random weights, or an identity output")
    if not usable.any():
        middle = float(temperatures[len(temperatures) // 2])
        nothing = "nothing can be judged: no chain learned, or the prior is too narrow; raise epochs or temperatures"
        return middle, middle, False, (*notes, nothing)
    temperatures, losses, variances = temperatures[usable], losses[usable], variances[usable]
    overfitted = np.flatnonzero(variances[: variances.argmin()] > 4 * variances.min())
    first, conclusive = int(overfitted.max(initial=-1)) + 1, True
    if first > 0:
        notes.append("colder samples overfit: their gradient variance is more than four times the smallest one")
    elif temperatures[0] <= coldest * (1 + 1e-6):
        notes.append("no overfitting was seen; the cold end is where |w|² of the prior is twice that of a training")
    else:
        conclusive = False
        notes.append("no overfitting was seen; raise epochs for a colder scan")
    level, high = losses[first] + 0.01 * abs(losses[first]), temperatures[-1]
    risen = first + np.flatnonzero(losses[first:] > level)
    if risen.size:
        sides = [risen[0] - 1, risen[0]]
        high = np.exp(np.interp(level, losses[sides], np.log(temperatures[sides])))
    else:
        conclusive = False
        notes.append("the loss does not rise up to the hottest temperature scanned; give hotter temperatures")
    return float(temperatures[first]), float(high), conclusive, tuple(notes)


def _curve(result: Result) -> xr.Dataset:
    """Return averages against temperature."""
    trace, valid = result.trace.isel(chain=0, drop=True), healthy_chains(result.trace)[:, 0]
    if "dead_class" in trace:
        valid = valid & ~trace["dead_class"].isel(draw=-1).any("class").values
    curve = trace.mean("draw", skipna=False)
    sizes = [trees.num_weights(layer) for layer in trees.layers(result.weights).values()]
    hidden = slice(max(1, len(sizes) - 1))
    variance = np.average(curve["gradient_variance"].values[:, hidden], axis=1, weights=sizes[hidden])
    names = [name for name in ("loss", "error", "squared_norm", "kinetic_temperature") if name in curve]
    return curve[names].assign(gradient_variance=("temperature", variance), valid=("temperature", valid))
