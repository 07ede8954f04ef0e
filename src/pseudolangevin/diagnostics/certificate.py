"""The certificate: what a run can show for its samples, line by line, each passed, failed or undecided."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import xarray as xr

from .. import trees
from ..chains import Result
from ..checks import check_integer, check_interval, check_positive
from ..samplers.hybrid_kernel import HybridKernel
from ..samplers.langevin_kernel import LangevinKernel
from ..types import HEALTHY, Status
from . import rendering
from .averages import discard
from .chain_lines import Chain, Tolerances, chain_lines
from .noise import draw
from .noise_histogram import NoiseHistogram, noise_histogram
from .noise_lines import noise_lines
from .temperature_lines import OBSERVABLES, convergence_lines, ensemble_line
from .verdicts import Line, Measurement, RunLength, Verdict, judge, overall


@dataclass(frozen=True)
class Certificate:
    """The lines, and what follows from them."""

    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    """What was not looked at, and why."""
    sampler: str
    num_weights: int
    burn_in: float
    noise: tuple[NoiseHistogram, ...] = ()
    """The mini-batch noise that was drawn at the end of every chain."""
    length: RunLength = field(default_factory=lambda: RunLength(0, 1))
    """Of the run that was looked at."""

    @property
    def verdict(self) -> Verdict:
        """Failed if any line failed, passed if all passed, undecided otherwise."""
        return overall(list(self.lines))

    @property
    def passed(self) -> bool:
        """Whether the samples can be trusted; False when undecided."""
        return self.verdict is Verdict.PASSED

    @property
    def failed_lines(self) -> tuple[Line, ...]:
        """The lines that count and failed."""
        return tuple(line for line in self.lines if line.required and line.verdict is Verdict.FAILED)

    @property
    def advice(self) -> str:
        """What would decide an undecided certificate, in a line; empty for others."""
        return rendering.advice(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, ready for JSON; unknown numbers are None."""

        def plain(value: Any) -> Any:
            if isinstance(value, Verdict):
                return value.value
            return None if isinstance(value, float) and not math.isfinite(value) else value

        return {
            "verdict": self.verdict.value,
            "passed": self.passed,
            "sampler": self.sampler,
            "num_weights": self.num_weights,
            "burn_in": self.burn_in,
            "notes": list(self.notes),
            "advice": self.advice,
            "lines": [{name: plain(value) for name, value in asdict(line).items()} for line in self.lines],
        }

    def __str__(self) -> str:
        """A table for a person."""
        return rendering.to_text(self)


def certificate(
    result: Result,
    *,
    tolerance: float = 0.03,
    layer_tolerance: float = 0.1,
    ks_tolerance: float = 0.1,
    rhat_tolerance: float = 0.05,
    ensemble_error: float = 0.07,
    burn_in: float = 0.5,
    noise_draws: int = 1_000,
    key: int = 0,
) -> Certificate:
    """Say, with errors, whether the chains of a run sample exp(−U/T).

    Every line asks whether a bias is within a tolerance, and answers passed, failed or undecided (see `verdicts` for
    the rule and its error rates: with 20 effective samples or more, a run without bias beyond the tolerances fails once
    in a hundred certificates, and a passed line is within its tolerance with 95 % confidence). Too few samples are
    undecided, with how many more are needed; only a drift far beyond thermal fluctuations fails earlier.

    A correct pseudo-Langevin run is biased: with 𝒯 = 0.01 temperatures may be off by up to 2𝒯 = 2 %, because
    correlations of the mini-batch noise are not corrected. The default tolerance of 3 % leaves room for that and not
    for a temperature that is wrong by 5 %.

    Args:
        result: from `sample`.
        tolerance: bias budget on temperatures, relative: kinetic and virial temperature, heat and misplaced energy of a
            wrong 𝒱, heat of a stale one, energy moved by collective noise, drift of U in units of N·T/2 and relative
            drift of |w|².
        layer_tolerance: the same for single layers, where collective noise concentrates: virial temperature, misplaced
            energy, heat of a stale 𝒱.
        ks_tolerance: how far below 0.95 the share of Kolmogorov–Smirnov tests of the noise's shape with p > 0.05 may
            fall.
        rhat_tolerance: how far above 1 R-hat may be.
        ensemble_error: standard error to which the slope of ln[P2(U)/P1(U)] must be known, relative, for that line to
            pass.
        burn_in: share of the records discarded at the start of every chain; equilibrium is judged on the rest.
        noise_draws: mini-batch gradients drawn at the final weights of every chain, 2 or more; 0 leaves these lines
            out.
        key: seed of those draws.

    Example:
        >>> cert = certificate(result)  # doctest: +SKIP
        >>> print(cert.verdict, [line.name for line in cert.failed_lines])  # doctest: +SKIP
    """
    for name, value in [
        ("tolerance", tolerance),
        ("layer_tolerance", layer_tolerance),
        ("ks_tolerance", ks_tolerance),
        ("rhat_tolerance", rhat_tolerance),
        ("ensemble_error", ensemble_error),
    ]:
        check_positive(name, value)
    check_interval("burn_in", burn_in, 0.0, 0.95, "it is the share of the records to discard")
    check_noise_draws(noise_draws)
    tolerances = Tolerances(tolerance, layer_tolerance, ks_tolerance, rhat_tolerance, ensemble_error)
    run = _Run(result, tolerances, burn_in, noise_draws)
    notes = []
    per_chain = [m for chain in run.chains() for m in chain_lines(chain, tolerances)]
    if not run.observes_everything:
        notes.append("virial temperature and ensemble check need the whole training set: leave out observe_examples")
    if noise_draws and run.noise_is_measured:
        per_chain += run.noise(noise_draws, key)
    elif run.noise_is_measured:
        notes.append("mini-batch noise was not looked at: noise_draws = 0")
    if run.noise_is_measured and not any(m.name == "heat of stale 𝒱" for m in per_chain):
        notes.append("no refresh after the warm-up among the retained draws: the heat of a stale 𝒱 is not known")
    if result.trace.sizes["chain"] < 2:
        notes.append("R-hat needs at least two chains")
    if result.trace.sizes["temperature"] < 2 and result.sampler.uses_temperature:
        notes.append("the ensemble check needs two temperatures close to each other")
    # All lines that come by chance share the false alarms between them.
    num_lines = sum(m.required for m in per_chain) + 3 * result.trace.sizes["temperature"]
    lines = run.status_lines() + run.missing_lines() + [judge(m, num_lines, run.length) for m in per_chain]
    lines += run.convergence(num_lines) + run.ensemble(num_lines)
    order = [run.label(t) for t in range(result.trace.sizes["temperature"])]
    lines.sort(key=lambda line: (order.index(line.temperature), line.chain is None, line.chain or 0))
    noise = tuple(run.histograms)
    return Certificate(tuple(lines), tuple(notes), result.sampler.name, result.num_weights, burn_in, noise, run.length)


def check_noise_draws(noise_draws: Any) -> None:
    """Refuse a number of draws that nothing can be learned from: the spread of noise takes two of them."""
    check_integer("noise_draws", noise_draws, minimum=0)
    if noise_draws == 1:
        raise ValueError("noise_draws = 1 has no spread; pass 2 or more, or 0 to leave the noise out")


class _Run:
    """A result seen by the certificate: retained draws, healthy chains, labels."""

    def __init__(self, result: Result, tolerances: Tolerances, burn_in: float, noise_draws: int) -> None:
        self._result = result
        self._tolerances = tolerances
        num_records = result.trace.sizes["draw"]
        first = num_records - discard(np.zeros(num_records), burn_in).size
        step = np.asarray(result.trace["step"].values)
        kernel = result.sampler.kernel
        # While the time step is adapted a Metropolis chain has no stationary distribution.
        self._warmup = kernel.warmup_moves if isinstance(kernel, HybridKernel) else 0
        first = max(first, int(np.sum(step <= self._warmup)))
        self._retained: xr.Dataset = result.trace.isel(draw=slice(first, None))
        self.length = RunLength(num_records, int(step[0]), noise_draws)
        layers = trees.layers(result.weights).values()
        self._layer_sizes = tuple(trees.num_weights(layer) // result.trace["status"][..., 0].size for layer in layers)
        self._healthy = result.trace["status"].isin(HEALTHY).all("draw").values
        self.histograms: list[NoiseHistogram] = []

    def label(self, temperature: int) -> float | None:
        """T, or None for a sampler without."""
        if not self._result.sampler.uses_temperature:
            return None
        return float(self._result.trace["temperature"].values[temperature])

    def _indices(self) -> Iterator[tuple[int, int]]:
        """(temperature, chain) of the chains that did not stop."""
        yield from ((int(t), int(c)) for t, c in np.argwhere(self._healthy))

    def status_lines(self) -> list[Line]:
        """Whether each chain ran to the end."""
        lines = []
        status = self._result.trace["status"].values[:, :, -1]
        for (t, c), value in np.ndenumerate(status):
            healthy = bool(self._healthy[t, c])
            verdict, message = (Verdict.PASSED, "") if healthy else (Verdict.FAILED, Status(int(value)).explanation)
            lines.append(Line("status", self.label(t), c, float(value), 0.0, 0.0, 0.0, verdict, message))
        return lines

    @property
    def observes_everything(self) -> bool:
        """Whether the trace was measured on the whole training set, as U and its gradient are defined."""
        num_examples = self._result.sampler.dataset.num_examples
        return bool(self._result.trace.attrs.get("observed_examples", num_examples) >= num_examples)

    def missing_lines(self) -> list[Line]:
        """Why a certificate without its most important lines cannot pass."""
        lines = []
        num_draws = self._retained.sizes["draw"]
        for t in range(len(self._healthy)):
            if self._result.sampler.uses_temperature and not self.observes_everything:
                observed = float(self._result.trace.attrs["observed_examples"])
                whole = float(self._result.sampler.dataset.num_examples)
                message = "no virial temperature and no ensemble check: record without observe_examples"
                lines.append(
                    Line(
                        "observed examples", self.label(t), None, observed, 0.0, whole, 0.0, Verdict.UNDECIDED, message
                    )
                )
            if not num_draws:
                message = f"all records are from the warm-up of {self._warmup} moves: run longer"
                name, more = "retained draws", self.length.more_steps(self._warmup / self.length.num_steps + 1)
                lines.append(
                    Line(name, self.label(t), None, 0.0, 0.0, 1.0, 0.0, Verdict.UNDECIDED, message, more_steps=more)
                )
        return lines

    def chains(self) -> Iterator[Chain]:
        """The retained draws of every healthy chain."""
        if not self._retained.sizes["draw"]:
            return
        for t, c in self._indices():
            trace = self._retained.isel(temperature=t, chain=c)
            if not self.observes_everything:
                trace = trace.drop_vars(["virial_temperature", "layer_virial_temperature"])
            yield Chain(trace, self.label(t), c, self._result.num_weights, self._layer_sizes, self._result.sampler)

    @property
    def noise_is_measured(self) -> bool:
        """Whether there is a 𝒱 in force to compare the mini-batch noise with."""
        kernel = self._result.sampler.kernel
        return isinstance(kernel, LangevinKernel) and kernel.control is not None

    def noise(self, num_draws: int, seed: int) -> list[Measurement]:
        """Draw mini-batch noise at the final weights of every healthy chain."""
        kernel = self._result.sampler.kernel
        assert isinstance(kernel, LangevinKernel)
        measurements: list[Measurement] = []
        for t, c in self._indices():
            index = t * self._healthy.shape[1] + c
            state = jax.tree.map(lambda leaf, i=index: leaf[i], self._result.states)
            key = jax.random.fold_in(jax.random.key(seed), index)
            draws = draw(self._result.sampler, state, key, num_draws=num_draws)
            temperature = self.label(t)
            assert temperature is not None
            self.histograms.append(noise_histogram(draws.noise, temperature, c))
            measurements += noise_lines(draws, temperature, c, kernel.momentum_retention, self._tolerances)
        return measurements

    def _pooled(self, temperature: int) -> dict[str, np.ndarray]:
        """U and |w|² of the healthy chains at a temperature, axes (chain, draw)."""
        chains = np.flatnonzero(self._healthy[temperature])
        retained = self._retained.isel(temperature=temperature, chain=chains)
        return {name: np.asarray(retained[name].values, np.float64) for name in OBSERVABLES}

    def convergence(self, num_lines: int) -> list[Line]:
        """R-hat and effective sample size at every temperature."""
        if not self._retained.sizes["draw"]:
            return []
        return [
            line
            for t in range(len(self._healthy))
            if self._healthy[t].any()
            for line in convergence_lines(self._pooled(t), self.label(t), self._tolerances, num_lines, self.length)
        ]

    def ensemble(self, num_lines: int) -> list[Line]:
        """The two-temperature check of neighbours."""
        if not (self._result.sampler.uses_temperature and self.observes_everything and self._retained.sizes["draw"]):
            return []
        temperatures = self._result.trace["temperature"].values
        order = [int(t) for t in np.argsort(temperatures) if self._healthy[t].any()]
        return [
            ensemble_line(
                self._pooled(low)["potential"],
                self._pooled(high)["potential"],
                (float(temperatures[low]), float(temperatures[high])),
                self._tolerances,
                num_lines,
                self.length,
            )
            for low, high in pairwise(order)
        ]
