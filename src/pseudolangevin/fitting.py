"""Training by sampling: weights that generalise as at equilibrium, without a validation set or early stopping."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
import xarray as xr

from .chains import MAX_STEPS, sample
from .checks import check_integer, check_positive
from .data import Dataset
from .layout import as_key
from .potential import Potential
from .predictions import Predictions, predict
from .samplers.langevin import pseudo_langevin
from .temperature import TemperatureRange, find_temperature
from .types import HEALTHY, Key, Weights

RELAXATIONS = 12
"""Default length of a fit, in relaxation times of the directions that the data set."""
MIN_STEPS = 1_000
LONGEST_REFRESH = 20_000
WARMUP_REFRESHES = 6
"""On the way from random weights 𝒱 falls by orders of magnitude, and masses fall only when started anew. In the
warm-up every refresh does so: after 1/256 of the run, 3/256, 7/256, … up to a quarter of it."""


@dataclass(frozen=True)
class Fit:
    """Weights from exp(−U/T): one of them, many of them, and how they were come by."""

    temperature: float
    weights: Weights
    """One sample, the last. At equilibrium any sample is as good as any other: loss and error fluctuate little at
    intermediate temperatures, so there is no best one to wait for and nothing to stop early."""
    ensemble: Weights
    """Samples of the second half of the run, all chains together: the weights with one leading axis."""
    history: xr.Dataset
    """The trace, dimensions (temperature, chain, draw)."""
    search: TemperatureRange | None
    """How the temperature was found; None where it was given."""
    potential: Potential
    num_examples: int
    """P of the training set."""
    cost: int
    """Examples visited by the steps of the chains and by the search; measurements of 𝒱 and records come on top."""

    @property
    def num_members(self) -> int:
        """Samples in the ensemble."""
        return int(jax.tree.leaves(self.ensemble)[0].shape[0])

    def predict(self, inputs: Any) -> Predictions:
        """What the ensemble predicts: see `predictions` for means, entropies, calibration and likelihoods."""
        return predict(self.potential, self.ensemble, inputs, noise_variance=self._noise_variance)

    def predict_one(self, inputs: Any) -> Predictions:
        """What the one sample `weights` predicts."""
        one = jax.tree.map(lambda w: w[None], self.weights)
        return predict(self.potential, one, inputs, noise_variance=self._noise_variance)

    @property
    def _noise_variance(self) -> float:
        """U/T = Σ|f − y|²/(2·P·T): Gaussian targets of variance P·T."""
        return self.num_examples * self.temperature


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
    """Sample at an intermediate temperature and keep what is found there.

    Args:
        potential: U, from `classification` or `regression`.
        dataset: the training set, all of it: nothing is held out.
        weights: random weights to start from; with leading axes (1, chain), each chain its own (then give T).
        temperature: T, or "auto": `find_temperature` first, and start from where it ended.
        num_steps: steps of every chain; default: twelve relaxation times 1/(4·S·T·𝒯), at least 1000. Rounded to a
            multiple of the records. The first half equilibrates, the second gives the ensemble.
        num_chains: independent chains, whose samples make one ensemble.
        samples_per_chain: members that each chain gives to the ensemble.
        batch_size: examples per mini-batch, S; default 1 % of the data set.
        temperature_ratio: 𝒯. At 0.03 the loss is about 0.5 % above its exact average, and the chain moves three times
            faster than at the paper's 0.01.
        search_epochs: budget of `find_temperature`; default: its own.
        test: optional, for `test_loss` and `test_error` in the history; nothing is decided by it.
        key: random key, or an integer seed.
        progress: show a progress bar; default: when the output is a terminal.

    Example:
        >>> fitted = fit(potential, train, network.init(key))  # doctest: +SKIP
        >>> fitted.predict(test.inputs).error(test.targets)  # doctest: +SKIP
    """
    check_integer("samples_per_chain", samples_per_chain, minimum=1)
    check_integer("num_chains", num_chains, minimum=1)
    size = max(2, round(0.01 * dataset.num_examples)) if batch_size is None else batch_size
    check_integer("batch_size", size, minimum=2, maximum=dataset.num_examples)
    check_positive("temperature_ratio", temperature_ratio)
    key = as_key(key)
    search = None
    if temperature == "auto":
        search = find_temperature(
            potential, dataset, weights, epochs=search_epochs, key=jax.random.fold_in(key, 1), progress=progress
        )
        temperature, weights = search.temperature, search.weights
    elif isinstance(temperature, str):
        raise ValueError(f'temperature = {temperature!r}: give a number, or "auto"')
    check_positive("temperature", temperature, 'exp(−U/T) needs T > 0; "auto" finds one')
    if num_steps is None:
        num_steps = default_steps(temperature, size, temperature_ratio)
    num_records = 2 * samples_per_chain
    check_integer("num_steps", num_steps, minimum=num_records, maximum=MAX_STEPS, remedy="or ask for fewer samples")
    # Records fall on multiples of the shortest refresh interval, so that all segments are of one length.
    tick = max(1, min(LONGEST_REFRESH, num_steps // 4) // 2**WARMUP_REFRESHES)
    record_every = max(1, round(num_steps / num_records / tick)) * tick
    num_steps = record_every * num_records
    sampler = pseudo_langevin(
        potential,
        dataset,
        batch_size=size,
        temperature_ratio=temperature_ratio,
        refresh_every=tick * 2**WARMUP_REFRESHES,
        warmup_refreshes=WARMUP_REFRESHES,
    )
    result = sample(
        sampler,
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
    healthy = np.flatnonzero(np.isin(result.trace["status"].values[0, :, -1], HEALTHY))
    if healthy.size == 0:
        raise RuntimeError(
            f"every chain at T = {temperature:g} stopped; lower temperature_ratio = {temperature_ratio:g}, or start "
            "from other weights"
        )
    ensemble = jax.tree.map(
        lambda w: np.concatenate(w[0, healthy, samples_per_chain:]).reshape(-1, *w.shape[3:]), result.samples
    )
    return Fit(
        temperature=float(temperature),
        weights=jax.tree.map(lambda w: w[0, healthy[0]], result.weights),
        ensemble=ensemble,
        history=result.trace,
        search=search,
        potential=potential,
        num_examples=dataset.num_examples,
        cost=num_chains * num_steps * size + (0 if search is None else search.cost),
    )


def default_steps(temperature: float, batch_size: int, temperature_ratio: float) -> int:
    """Twelve relaxation times 1/(4·S·T·𝒯), at least 1000 steps."""
    relaxation = 1 / (4 * batch_size * temperature * temperature_ratio)
    return max(MIN_STEPS, math.ceil(RELAXATIONS * relaxation))
