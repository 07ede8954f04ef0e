"""Training by sampling: weights, an ensemble and predictions at a temperature given or found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
import xarray as xr

from .._checks import check_integer, check_positive
from .._random import as_key
from .._trees import Key, Weights
from ..chains import sample
from ..data import Dataset
from ..diagnostics.averages import healthy_chains
from ..diagnostics.ensemble import Predictions, predict
from ..potential import Potential
from ..samplers.langevin import PseudoLangevin
from .temperature import TemperatureRange, find_temperature


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
