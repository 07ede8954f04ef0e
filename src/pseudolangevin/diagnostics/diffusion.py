"""How fast the weights move: mean squared displacement against steps and wall-clock time, and the paper's D*.

    d²(Δt) = ⟨|w(t + Δt) − w(t)|²⟩,        D* = d²(Δt)/Δt  at the shortest Δt between sampled vectors

(section "Better performance of the pL algorithm"). Quoted per weight, D*/N, in 1/s. Within the memory of the momenta,
1/(1 − c1²) steps, weights fly rather than diffuse and d²/Δt still grows; beyond the relaxation time it falls. So D* is
meant for intervals longer than the first, and two samplers may also be compared at the same Δt (`Diffusion.at`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from .. import trees
from ..checks import check_integer, check_positive
from ..types import Array, Weights
from .averages import Floats, average, discard

OBSERVABLES = ("loss", "squared_norm", "error")


class HasSamples(Protocol):
    """What `diffusion` needs of a result."""

    @property
    def trace(self) -> xr.Dataset:
        """The records, with the coordinate `step` and the attribute `keep_weights_every`."""

    @property
    def samples(self) -> Weights | None:
        """Kept weights, leading axes (temperature, chain, kept draw)."""


@dataclass(frozen=True)
class Diffusion:
    """Mean squared displacement per weight, d²/N."""

    steps: Floats
    """Δt in steps (lag,)."""
    seconds: Floats
    """Δt in seconds of sampling (lag,), at the mean time per step."""
    displacement: Floats
    """d²/N (temperature, lag), the mean over chains and starts."""
    standard_error: Floats
    """Of `displacement`, from the scatter over chains and starts; NaN where there is one pair alone."""

    @property
    def coefficient(self) -> Floats:
        """D*/N of every temperature, in 1/s: at the shortest interval."""
        return self.displacement[:, 0] / self.seconds[0]

    @property
    def coefficient_error(self) -> Floats:
        """Standard error of `coefficient`."""
        return self.standard_error[:, 0] / self.seconds[0]

    def to_dict(self) -> dict[str, list[float]]:
        """The curve of the first temperature, ready for JSON."""
        return {"seconds": self.seconds.tolist(), "displacement_per_weight": self.displacement[0].tolist()}

    def at(self, seconds: float) -> Floats:
        """d²(Δt)/(N·Δt) at Δt = `seconds`, interpolated; NaN outside of the intervals measured."""
        inside = self.seconds[0] * (1 - 1e-9) <= seconds <= self.seconds[-1] * (1 + 1e-9)
        if not inside:
            return np.full(len(self.displacement), math.nan)
        return np.array([np.interp(seconds, self.seconds, row) for row in self.displacement]) / seconds


class Displacements:
    """d² along a run that stores no samples: a few reference points, the k-th renewed every 2ᵏ records.

    Reference k sees the intervals of 1 … 2ᵏ records, so that m references (copies of the weights, where the chains
    live) cover the intervals up to 2^(m−1) records, short ones most often.

    Args:
        num_references: m.

    Example:
        >>> displacements = Displacements()
        >>> for step in range(1, 9):
        ...     displacements.observe(step, 0.5 * step, jnp.full((1, 4), 3.0 * step))
        >>> float(displacements.diffusion().coefficient[0])
        18.0
    """

    def __init__(self, num_references: int = 8) -> None:
        """Nothing seen yet."""
        check_integer("num_references", num_references, minimum=1, maximum=30)
        self._references: list[tuple[int, Weights] | None] = [None] * num_references
        self._num_records = 0
        self._first = self._last = (0, 0.0)
        self._pairs: dict[int, list[np.ndarray]] = defaultdict(list)

    def observe(self, step: int, seconds: float, weights: Weights) -> None:
        """The chains at one record.

        Args:
            step: how many steps they have done.
            seconds: how long that took; only differences matter.
            weights: of all chains, with one leading axis; copied where needed.
        """
        for reference in _distinct(self._references):
            distance = np.asarray(_mean_squared_distance(reference[1], weights), np.float64)
            self._pairs[step - reference[0]].append(distance)
        renewed = (step, jax.tree.map(jnp.copy, weights))
        for k in range(len(self._references)):
            if self._num_records % 2**k == 0:
                self._references[k] = renewed
        if self._num_records == 0:
            self._first = (step, seconds)
        self._last = (step, seconds)
        self._num_records += 1

    @property
    def num_pairs(self) -> int:
        """Pairs of records seen."""
        return sum(map(len, self._pairs.values()))

    def diffusion(self, num_temperatures: int = 1) -> Diffusion:
        """What was seen, the chains lying temperature by temperature."""
        if not self._pairs:
            raise ValueError("a displacement needs two records; run longer or record more often")
        lags = np.array(sorted(self._pairs), np.float64)
        seconds_per_step = (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])
        means, errors = [], []
        for lag in lags:
            values = np.stack(self._pairs[int(lag)], axis=-1).reshape(num_temperatures, -1)
            num = values.shape[1]
            means.append(values.mean(axis=1))
            errors.append(values.std(axis=1, ddof=1) / math.sqrt(num) if num > 1 else np.full(num_temperatures, np.nan))
        return Diffusion(lags, lags * seconds_per_step, np.stack(means, -1), np.stack(errors, -1))


def diffusion(result: HasSamples, *, seconds_per_step: float = 1.0, burn_in: float = 0.0) -> Diffusion:
    """Displacements from the kept weights of a run (`keep_weights_every`), over all temperatures and chains.

    Args:
        result: from `sample` or `load`.
        seconds_per_step: of the sampler alone, to have Δt in seconds; by default Δt is in steps.
        burn_in: share of the kept draws to discard at the start.

    Example:
        >>> result = sample(sampler, weights, num_steps=1_000, keep_weights_every=1, …)  # doctest: +SKIP
        >>> diffusion(result, seconds_per_step=5e-5).coefficient  # doctest: +SKIP
    """
    check_positive("seconds_per_step", seconds_per_step)
    if result.samples is None:
        raise ValueError("the result holds no kept weights; sample with keep_weights_every=1")
    leaves = jax.tree.leaves(result.samples)
    num_temperatures, num_chains, num_kept = leaves[0].shape[:3]
    steps = np.asarray(result.trace["step"])
    kept_every = result.trace.attrs["keep_weights_every"]
    kept_steps = steps[kept_every - 1 :: kept_every]
    displacements = Displacements(max(1, num_kept.bit_length()))
    for draw in discard(np.arange(num_kept, dtype=np.float64), burn_in).astype(int):
        weights = jax.tree.map(
            lambda w, draw=draw: jnp.asarray(w[:, :, draw]).reshape(num_temperatures * num_chains, *w.shape[3:]),
            result.samples,
        )
        displacements.observe(int(kept_steps[draw]), float(kept_steps[draw]) * seconds_per_step, weights)
    return displacements.diffusion(num_temperatures)


def effective_samples_per_second(
    trace: xr.Dataset, seconds_per_step: float, *, burn_in: float = 0.5, names: Iterable[str] = OBSERVABLES
) -> dict[str, Floats]:
    """Independent samples of each observable that all chains of a temperature make in a second.

    Args:
        trace: from `sample` or a timed run.
        seconds_per_step: of all chains together.
        burn_in: share of the records to discard.
        names: observables; those that the trace does not have are left out.
    """
    check_positive("seconds_per_step", seconds_per_step)
    steps = np.asarray(trace["step"], np.float64)
    interval = float(steps[0])
    found = {}
    for name in names:
        if name in trace:
            kept = discard(np.asarray(trace[name].values), burn_in)
            seconds = kept.shape[-1] * interval * seconds_per_step
            found[name] = np.array([average(chains).effective_samples for chains in kept]) / seconds
    return found


def _distinct(references: list[tuple[int, Weights] | None]) -> list[tuple[int, Weights]]:
    """Each reference point once: one that was taken for several k has one interval, not several."""
    return list({reference[0]: reference for reference in references if reference is not None}.values())


@jax.jit
def _mean_squared_distance(left: Weights, right: Weights) -> Array:
    """|a − b|²/N of every chain."""

    def one(a: Weights, b: Weights) -> Array:
        difference = jax.tree.map(jnp.subtract, a, b)
        return trees.squared_norm(difference) / trees.num_weights(a)

    return jax.vmap(one)(left, right)
