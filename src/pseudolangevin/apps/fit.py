"""Training by sampling, and trained starts in which every class has a signal."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.sharding import Mesh

from .._checks import check_integer, check_positive
from .._random import as_key
from .._trees import Key, Weights
from ..chains import ChainStoppedWarning, DeadClassWarning, Run, sample
from ..data import Dataset
from ..diagnostics.averages import healthy_chains
from ..diagnostics.ensemble import Predictions, predict
from ..placement import Placement
from ..potential import Potential
from ..samplers.adam import Adam
from ..samplers.langevin import PseudoLangevin

if TYPE_CHECKING:
    from .temperature import TemperatureRange


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
    max_seconds: float | None = None,
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
        max_seconds: time limit of the training.
        on_pause: function called every 500 steps; an exception that it raises ends the training.
        key: random key, or an integer seed; the weights of candidate i are `init(jax.random.fold_in(key, i))`.
        progress: show a progress bar; default: when the output is a terminal.
        **adam: further settings of `adam`.

    Example:
        >>> starts = trained_starts(potential, train, network.init, num_steps=2_000, num_starts=2)  # doctest: +SKIP
    """
    for name, value in [("num_starts", num_starts), ("candidates", candidates), ("num_steps", num_steps)]:
        check_integer(name, value, minimum=1)
    key, total = as_key(key), num_starts * candidates
    first = jax.vmap(lambda index: init(jax.random.fold_in(key, index)))(jnp.arange(total))
    run = Run(
        Adam(potential, dataset, batch_size=min(batch_size, dataset.num_examples), learning_rate=learning_rate, **adam),
        num_chains=total,
        observe_examples=min(10_000, dataset.num_examples),
        placement=placement,
    )
    states = run.start(jax.tree.map(lambda w: w[None], first), key)
    observed: dict[str, np.ndarray] = {}
    every = num_steps if max_seconds is None else min(500, num_steps)
    limits: dict[str, Any] = {"stop": num_steps, "every": every, "pause_every": 500, "max_seconds": max_seconds}
    with warnings.catch_warnings():
        for expected in (ChainStoppedWarning, DeadClassWarning):
            warnings.simplefilter("ignore", expected)
        for record in run.records(states, **limits, progress=progress):
            states, observed = record.states, record.observables or observed
            if on_pause is not None:
                on_pause()
    failed = ~np.isfinite(observed["loss"])
    dead = failed | np.any(observed.get("dead_class", failed[:, None]), axis=-1)
    chosen = np.lexsort((observed["loss"], dead))[:num_starts]
    if failed[chosen].any():
        broken = f"{failed.sum()} of {total} trainings did not stay finite"
        raise ValueError(f"{broken}; lower learning_rate = {learning_rate:g}, or give other random weights")
    if dead[chosen].any():
        message = (
            f"{dead[chosen].sum()} of {num_starts} starts have a dead class, whose score is the same for nearly every "
            'example; raise candidates, change the seed, or use output_activation = "identity"'
        )
        warnings.warn(message, DeadClassWarning, stacklevel=2)
    return jax.tree.map(lambda w: w[chosen], first if untrained else states.weights)


@dataclass(frozen=True)
class Fit:
    """Weights from exp(−U/T): one sample, an ensemble, and the trace of the run that produced them."""

    temperature: float
    weights: Weights
    """The last sample. At equilibrium all samples are equivalent, so there is no best one and no early stopping."""
    ensemble: Weights
    """Samples of the second half of the run, those of all chains along one leading axis."""
    history: xr.Dataset
    """Trace with the dimensions (temperature, chain, draw)."""
    search: TemperatureRange | None
    """Result of the search for the temperature; None if the temperature was given."""
    potential: Potential
    num_examples: int
    """Number P of training examples."""
    cost: int
    """Examples visited by the steps of the chains and by the search, without records and variance measurements."""

    @property
    def num_members(self) -> int:
        """Number of samples in the ensemble."""
        return int(jax.tree.leaves(self.ensemble)[0].shape[0])

    def predict(self, inputs: Any, members: Weights | None = None) -> Predictions:
        """Return the predictions of the ensemble, or of other members: means, entropies, calibration, likelihoods."""
        # exp(−U/T) with U = Σ|f − y|²/(2P) is the posterior of Gaussian targets with the variance P·T.
        members = self.ensemble if members is None else members
        return predict(self.potential, members, inputs, noise_variance=self.num_examples * self.temperature)

    def predict_one(self, inputs: Any) -> Predictions:
        """Return the predictions of the single sample `weights`."""
        return self.predict(inputs, jax.tree.map(lambda w: w[None], self.weights))


def fit(
    potential: Potential,
    dataset: Dataset,
    weights: Weights,
    *,
    temperature: float | Literal["auto"] = "auto",
    num_steps: int | None = None,
    num_chains: int = 1,
    samples_per_chain: int = 20,
    batch_size: int | None = None,
    temperature_ratio: float = 0.03,
    search_epochs: float | None = None,
    test: Dataset | None = None,
    key: Key | int = 0,
    progress: bool | None = None,
) -> Fit:
    """Train a network by sampling its weights at an intermediate temperature, without validation set or early stopping.

    The first half of the run equilibrates; the second half gives the ensemble.

    Args:
        potential: U, from `classification` or `regression`.
        dataset: the complete training set; nothing is held out.
        weights: random weights to start from; with a given T also with leading axes (1, chain).
        temperature: T, or "auto": call `find_temperature` and start from the weights that it returns.
        num_steps: steps of every chain; default: twelve relaxation times 1/(4·S·T·𝒯), at least 1000.
        num_chains: independent chains, whose samples form one ensemble.
        samples_per_chain: samples of each chain in the ensemble.
        batch_size: examples per mini-batch, S; default 1 % of the data set.
        temperature_ratio: 𝒯. At 0.03 the loss is about 0.5 % above its exact average.
        search_epochs: budget of `find_temperature`.
        test: data set for `test_loss` and `test_error` in the history; no decision depends on it.
        key: random key, or an integer seed.
        progress: show a progress bar; default: when the output is a terminal.

    Example:
        >>> fitted = fit(potential, train, network.init(key))  # doctest: +SKIP
        >>> fitted.predict(test.inputs).error(test.targets)  # doctest: +SKIP
    """
    from .temperature import find_temperature  # noqa: PLC0415 (uses `trained_starts`)

    size = max(2, round(0.01 * dataset.num_examples)) if batch_size is None else batch_size
    check_integer("batch_size", size, minimum=2, maximum=dataset.num_examples)
    check_integer("samples_per_chain", samples_per_chain, minimum=1)
    check_positive("temperature_ratio", temperature_ratio)
    key, search = as_key(key), None
    if temperature == "auto":
        search = find_temperature(
            potential, dataset, weights, epochs=search_epochs, key=jax.random.fold_in(key, 1), progress=progress
        )
        temperature, weights = search.temperature, search.weights
    elif isinstance(temperature, str):
        raise ValueError(f'temperature = {temperature!r}: give a number, or "auto"')
    check_positive("temperature", temperature, 'exp(-U/T) needs T > 0; "auto" finds one')
    if num_steps is None:
        num_steps = max(1_000, math.ceil(12 / (4 * size * temperature * temperature_ratio)))
    check_integer("num_steps", num_steps, minimum=2 * samples_per_chain, remedy="or ask for fewer samples")
    record_every = num_steps // (2 * samples_per_chain)
    num_steps = record_every * 2 * samples_per_chain
    result = sample(
        PseudoLangevin(
            potential,
            dataset,
            batch_size=size,
            temperature_ratio=temperature_ratio,
            # The variance falls from random weights on; masses follow at warm-up refreshes, in a quarter of the run.
            refresh_every=max(64, min(20_000, num_steps // 4)),
            warmup_refreshes=6,
        ),
        weights,
        temperatures=[temperature],
        num_chains=num_chains,
        num_steps=num_steps,
        record_every=record_every,
        keep_weights_every=1,
        test=test,
        key=jax.random.fold_in(key, 2),
        progress=progress,
    )
    healthy = np.flatnonzero(healthy_chains(result.trace)[0])
    if healthy.size == 0:
        raise RuntimeError(f"chains at T = {temperature:g} stopped; lower temperature_ratio = {temperature_ratio:g}")
    return Fit(
        temperature=float(temperature),
        weights=jax.tree.map(lambda w: w[0, healthy[0]], result.weights),
        ensemble=jax.tree.map(lambda w: np.concatenate(w[0, healthy, samples_per_chain:]), result.samples),
        history=result.trace,
        search=search,
        potential=potential,
        num_examples=dataset.num_examples,
        cost=num_chains * num_steps * size + (0 if search is None else search.cost),
    )
