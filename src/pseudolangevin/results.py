"""The result of a run, with its averages, predictions and plots."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from . import _trees as trees
from ._trees import Weights
from .samplers.base import Sampler, Status

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@dataclass(frozen=True)
class Result:
    """Result of a run."""

    trace: xr.Dataset
    """Observables with dimensions (temperature, chain, draw) and the coordinate `step` along draw."""
    weights: Weights
    """Final weights of every chain, at the same time as the records: leading axes (temperature, chain)."""
    samples: Weights | None
    """Kept weights, leading axes (temperature, chain, kept draw); None unless `keep_weights_every` was given."""
    states: Any
    """Final states, leading axis over all chains, temperature by temperature."""
    sampler: Sampler
    seconds: float = math.nan
    """Time that the run took."""

    def __repr__(self) -> str:
        temperatures, chains, draws = self.trace["loss"].shape
        kept = "none" if self.samples is None else str(jax.tree.leaves(self.samples)[0].shape[2])
        running = int((self.trace["status"].values[..., -1] == Status.RUNNING).sum()) if draws else 0
        return (
            f"<Result of {self.sampler.name}: N = {self.num_weights}, {temperatures} temperatures × {chains} chains × "
            f"{draws} records, {running} chains running, {kept} weights kept; see .trace, .weights, .samples>"
        )

    @property
    def num_weights(self) -> int:
        """Number of weights of one chain, the paper's N."""
        return trees.num_weights(self.weights) // math.prod(self.trace["status"].shape[:2])

    def averages(self, discard: float = 0.5) -> pd.DataFrame:
        """Return mean, standard error and effective samples of every scalar observable at every temperature.

        The share `discard` of the records, at the start, and chains that failed are left out.
        """
        import pandas as pd  # noqa: PLC0415 (slow to import)

        tools = _above("diagnostics.averages")
        trace = tools.kept(self.trace, discard)
        names = [n for n, v in trace.data_vars.items() if v.ndim == 3 and v.dtype.kind == "f"]
        averages = {name: tools.average_by_temperature(trace[name], trace) for name in names}
        temperatures = trace["temperature"].values
        rows = {(temperatures[t], name): averages[name][t] for t in np.argsort(temperatures) for name in names}
        index = pd.MultiIndex.from_tuples(rows, names=["temperature", "observable"])
        return pd.DataFrame(list(rows.values()), index)

    def ensemble(self, temperature: float | None = None, discard: float = 0.5) -> Weights:
        """Return the sampled weights of one temperature along one leading axis, without those of failed chains.

        They are the kept weights of the run without the share `discard` at the start of each chain, or the final ones
        if none were kept (`keep_weights_every`).
        """
        index = self.temperature_index(temperature)
        healthy = np.flatnonzero(_above("diagnostics.averages").healthy_chains(self.trace)[index])
        if not healthy.size:
            at = self.trace["temperature"].values[index]
            raise ValueError(f"every chain at T = {at:g} stopped, so there is no ensemble; see result.trace.status")
        if self.samples is None:
            return jax.tree.map(lambda w: np.asarray(w)[index, healthy], self.weights)
        num_kept = jax.tree.leaves(self.samples)[0].shape[2]
        first = _above("diagnostics.averages").kept(np.arange(num_kept), discard)[0]
        return jax.tree.map(lambda w: np.concatenate([w[index, chain, first:] for chain in healthy]), self.samples)

    def predict(
        self,
        inputs: Any,
        temperature: float | None = None,
        *,
        discard: float = 0.5,
        noise_scale: float | None = None,
        chunk_size: int | None = None,
    ) -> Any:
        """Return the predictions of the ensemble: means, total and epistemic uncertainty, scores.

        Args:
            inputs: arrays with one leading example axis.
            temperature, discard: as for `ensemble`.
            noise_scale: for regressions, standard deviation of a target around its prediction; default √(P·T), with
                which exp(−U/T) is the posterior.
            chunk_size: examples held at once.
        """
        at = float(self.trace["temperature"].values[self.temperature_index(temperature)])
        noise = noise_scale**2 if noise_scale is not None else self.sampler.dataset.num_examples * at
        members = self.ensemble(temperature, discard)
        predict = _above("diagnostics.ensemble").predict
        return predict(self.sampler.potential, members, inputs, noise_variance=noise or None, chunk_size=chunk_size)

    def evaluate(self, test: Any, temperature: float | None = None, **options: Any) -> pd.DataFrame:
        """Return scores on a test set: one row for the ensemble, one for the mean of its members, one for each member.

        Columns are the `score_names` of the predictions (see `diagnostics.ensemble`); arguments are those of `predict`.
        """
        import pandas as pd  # noqa: PLC0415 (slow to import)

        found = self.predict(test.inputs, temperature, **options)
        members = {f"member {i}": member.scores(test.targets) for i, member in enumerate(found.members())}
        mean = pd.DataFrame(members).mean(axis=1).to_dict()
        return pd.DataFrame({"ensemble": found.scores(test.targets), "mean of members": mean, **members}).T

    def to_arviz(self, temperature: float | None = None) -> Any:
        """Return the trace as ArviZ data; see `adapters.arviz`."""
        return _above("adapters.arviz").to_arviz(self, temperature)

    def plot(self, discard: float = 0.5) -> Any:
        """Return a matplotlib figure with the averages and traces of the main observables."""
        return _above("runs.report").summary_figure(self.trace, discard=discard)

    def temperature_index(self, temperature: float | None) -> int:
        """Return the index of a temperature, which may be left out if there is only one."""
        known = self.trace["temperature"].values
        if temperature is None and len(known) > 1:
            raise ValueError(f"the run has {len(known)} temperatures; pass one of temperature={known.tolist()}")
        matches = np.flatnonzero(np.isclose(known, known[0] if temperature is None else temperature, rtol=1e-6, atol=0))
        if not matches.size:
            raise ValueError(f"temperature = {temperature!r} was not sampled; choose one of {known.tolist()}")
        return int(matches[0])


def _above(module: str) -> Any:
    """Return a module of a higher level, which is imported when a method needs it."""
    return import_module(f".{module}", __package__)
