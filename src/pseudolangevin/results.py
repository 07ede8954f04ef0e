"""The result of a run, and what is read from it in one call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from . import _trees as trees
from ._trees import Weights
from .samplers.base import Sampler, Status

if TYPE_CHECKING:
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
        """Return a summary."""
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
