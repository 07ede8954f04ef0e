"""Training by sampling: a run at a temperature given or found, and its ensemble."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import jax

from .._trees import Key, Weights, as_key, check_integer, check_positive
from ..chains import sample
from ..data import Dataset
from ..diagnostics.certificate import certificate
from ..potential import Potential
from ..results import Result
from ..samplers.balanced import BalancedLangevin
from .temperature import TemperatureRange, find_temperature, safe_learning_rate, trained_starts


class EquilibriumWarning(UserWarning):
    """A line of the certificate failed: the samples are not those of exp(−U/T)."""


@dataclass(frozen=True, repr=False)
class Fit(Result):
    """Result of `fit`: that of a run, with the search for its temperature and the cost."""

    search: TemperatureRange | None = None  # result of the search for the temperature; None if it was given
    cost: int = 0  # examples visited by training, steps and search, without records and variance measurements

    @property
    def temperature(self) -> float:
        """Temperature of the run."""
        return float(self.trace["temperature"].values[0])


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
    temperature_ratio: float = 0.1,
    training_steps: int | None = None,
    search_epochs: float | None = None,
    test: Dataset | None = None,
    key: Key | int = 0,
    progress: bool | None = None,
    **options: Any,
) -> Fit:
    """Train a network by sampling its weights at an intermediate temperature, without validation set or early stopping.

    Adam trains from the given weights, unless the search for the temperature has done it. Balanced Langevin samples
    from there; the second half of the run gives the ensemble. A warning names lines of the certificate that failed.

    Args:
        potential: U, from `classification` or `regression`.
        dataset: the complete training set; nothing is held out.
        weights: random weights to start from.
        temperature: T, or "auto": call `find_temperature` and start from the weights that it returns.
        num_steps: steps of every chain; default: twelve relaxation times 1/(4·S·T·𝒯), at least 1000.
        num_chains: independent chains, whose samples form one ensemble.
        samples_per_chain: samples of each chain in the ensemble.
        batch_size: examples per mini-batch, S; default 1 % of the data set.
        temperature_ratio: 𝒯, as in `balanced_langevin`.
        training_steps: steps of Adam before the first sample; default: a fifth of `num_steps`, at most 2000.
        search_epochs: budget of `find_temperature`.
        test: data set for `test_loss` and `test_error` in the trace; no decision depends on it.
        key: random key, or an integer seed.
        progress: as in `sample`.
        **options: further arguments of `sample`.

    Example:
        >>> fitted = pl.fit(potential, train, network.init(key))
        >>> fitted.evaluate(test)
    """
    size = max(2, round(0.01 * dataset.num_examples)) if batch_size is None else batch_size
    check_integer("batch_size", size, minimum=2, maximum=dataset.num_examples)
    check_integer("samples_per_chain", samples_per_chain, minimum=1)
    check_positive("temperature_ratio", temperature_ratio)
    keys, search = [jax.random.fold_in(as_key(key), i) for i in (1, 2, 3)], None
    if temperature == "auto":
        search = find_temperature(potential, dataset, weights, epochs=search_epochs, key=keys[0], progress=progress)
        temperature, weights = search.temperature, search.weights
        _say(progress, f"temperature {temperature:.3g}, found in {search.epochs:.3g} epochs")
    check_positive("temperature", temperature, 'exp(-U/T) needs T > 0; "auto" finds one')
    if num_steps is None:
        num_steps = max(1_000, math.ceil(12 / (4 * size * temperature * temperature_ratio)))
    check_integer("num_steps", num_steps, minimum=2 * samples_per_chain, remedy="or ask for fewer samples")
    # At least 100 records, of which every k-th is kept.
    every = max(1, num_steps // (2 * samples_per_chain * max(1, 50 // samples_per_chain)))
    keep = num_steps // (every * 2 * samples_per_chain)
    num_steps = every * keep * 2 * samples_per_chain
    if training_steps is None:
        training_steps = 0 if search is not None else min(2_000, num_steps // 5)
    check_integer("training_steps", training_steps, minimum=0)
    common: dict[str, Any] = {"num_chains": num_chains, "progress": progress}
    if training_steps:
        _say(progress, f"training: {training_steps} steps of Adam")
        training: dict[str, Any] = {"num_starts": num_chains, "candidates": 1, "batch_size": size, "key": keys[2]}
        training |= {"num_steps": training_steps, "learning_rate": safe_learning_rate(weights), "progress": progress}
        starts = trained_starts(potential, dataset, lambda _: weights, **training)
        weights = jax.tree.map(lambda w: w[None], starts)
    _say(progress, f"sampling: {num_chains} chains of {num_steps} steps at temperature {temperature:.3g}, batch {size}")
    often = max(64, min(5_000, num_steps // 4))
    result = sample(
        BalancedLangevin(potential, dataset, batch_size=size, temperature_ratio=temperature_ratio, refresh_every=often),
        weights,
        temperatures=[temperature],
        num_steps=num_steps,
        record_every=every,
        keep_weights_every=keep,
        test=test,
        key=keys[1],
        **common,
        **options,
    )
    if failed := {line.name: None for line in certificate(result).failed_lines if line.name != "status"}:
        remedy = "raise num_steps, or see print(pl.certificate(result))"
        message = f"the run is not at equilibrium: {', '.join(failed)} failed; {remedy}"
        warnings.warn(message, EquilibriumWarning, stacklevel=2)
    cost = num_chains * (num_steps + training_steps) * size + (0 if search is None else search.cost)
    return Fit(**vars(result), search=search, cost=cost)


def _say(progress: bool | None, line: str) -> None:
    if progress is not False:
        print(f"fit: {line}", file=sys.stderr, flush=True)
