"""The bench on which candidates are tried: one system at one temperature, one clock.

𝒯 and the reset probability enter a Langevin kernel only when 𝒱 is measured, so here they are arguments of one compiled
refresh, and a candidate that differs in nothing else compiles nothing. Every candidate begins by measuring 𝒱 and
starting masses and momenta anew, at the common weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax

from ..chains import make_plan
from ..data import Dataset
from ..samplers import base
from ..samplers.base import Kernel, Sampler
from ..samplers.hybrid import hybrid_monte_carlo
from ..samplers.hybrid_kernel import HybridKernel
from ..samplers.langevin import pseudo_langevin
from ..samplers.langevin_kernel import LangevinKernel
from ..types import Weights
from .measure import Measured, measure, watch

MIN_SEGMENT, MAX_SEGMENT = 50, 200
"""Steps between records of a Langevin sampler: the memory of its momenta, or a part of it where that is long."""


def _now() -> float:
    return time.perf_counter()


@dataclass
class Bench:
    """Where candidates are measured, and when time is up."""

    base: Sampler
    """Its settings hold wherever a candidate does not change them."""
    weights: Weights
    """Where the next candidate starts: of one chain, or with leading axes (1, 1)."""
    temperature: float
    seconds: float
    max_seconds: float
    """With compilation."""
    chunk_size: int
    key: int
    report: Callable[[str], None]
    observe_examples: int | None = None
    """Loss and error are those of the first so many examples."""
    started: float = field(default_factory=_now)
    states: Any = None
    """The common start of Langevin candidates."""
    preparing: float = 0.0
    """Seconds that went into compilation."""
    samplers: dict[tuple[int, float], Sampler] = field(default_factory=dict)
    """One per batch size and friction: what compiles anew."""

    @property
    def elapsed(self) -> float:
        """Seconds since tuning began."""
        return _now() - self.started

    def left(self, share: float = 1.0) -> float:
        """Seconds until this share of the time is used: compilation is not counted, but there is an end to it."""
        return min(share * self.seconds + self.preparing, self.max_seconds) - self.elapsed

    def langevin(self, **changes: Any) -> Sampler:
        """The base with some settings changed."""
        return pseudo_langevin(self.base.potential, self.base.dataset, **(dict(self.base.settings) | changes))

    def hybrid(self, masses: float | Weights, num_leapfrog_steps: int, time_step: float, warmup_moves: int) -> Sampler:
        """Hybrid Monte Carlo on the same system; what else the base says of it, if it is one, stays."""
        own = self.base.settings if isinstance(self.base.kernel, HybridKernel) else {}
        others = {"chunk_size": self.chunk_size} | {k: own[k] for k in ("chunk_size", "target_acceptance") if k in own}
        return hybrid_monte_carlo(
            self.base.potential,
            self.base.dataset,
            num_leapfrog_steps=num_leapfrog_steps,
            time_step=time_step,
            masses=masses,
            warmup_moves=warmup_moves,
            **others,
        )

    def measure_hybrid(self, sampler: Sampler, seconds: float, *, observe: bool = True) -> Measured:
        """Moves of hybrid Monte Carlo from the common weights, those of its warm-up left out."""
        kernel = sampler.kernel
        assert isinstance(kernel, HybridKernel)
        run = measure(
            sampler,
            self.weights,
            temperature=self.temperature,
            segment=1,
            seconds=self._at_most(seconds),
            discard_steps=kernel.warmup_moves - 1,  # so that all moves after the warm-up are seen
            observe=observe,
            observe_examples=self.observe_examples,
            chunk_size=self.chunk_size,
            key=self.key,
        )
        self.preparing += run.preparation_seconds
        return run

    def measure_langevin(
        self, settings: Mapping[str, Any], seconds: float, *, num_raises: int = 0, observe: bool = True
    ) -> Measured:
        """A candidate, from the common weights and with masses of its own.

        Before the clock runs 𝒱 is measured `num_raises` times, a segment apart: masses that are only ever raised answer
        to the noisiest of many places, and it is the sampler after many refreshes that is to be judged.
        """
        started = _now()
        sampler = self._sampler(settings)
        if self.states is None:
            plan = make_plan(sampler, temperatures=[self.temperature], num_chains=1, num_steps=1)
            self.states = plan.init(self.weights, self.key)
        states = _refresh(sampler.kernel, self.states, settings["temperature_ratio"], 1.0, sampler.dataset)
        jax.block_until_ready(states)
        if num_raises:
            segments = _segments(
                sampler, dict(settings) | {"refresh_every": 1}, states, segment_of(settings["momentum_retention"])
            )
            _, states = jax.block_until_ready(next(segments))  # the first compiles
        self.preparing += _now() - started
        for _ in range(num_raises - 1):
            _, states = next(segments)
        return self._watch(sampler, settings, states, seconds, observe=observe)

    def time_langevin(self, settings: Mapping[str, Any], old_batch_size: int, seconds: float) -> Measured:
        """Steps alone, with another batch size: 𝒱 and the masses that follow from it go as 1/S."""
        states = _rescaled(self.states, old_batch_size / settings["batch_size"])
        never = dict(settings) | {"refresh_every": math.inf}
        return self._watch(self._sampler(settings), never, states, seconds, observe=False)

    def _sampler(self, settings: Mapping[str, Any]) -> Sampler:
        place = (settings["batch_size"], settings["momentum_retention"])
        if place not in self.samplers:
            self.samplers[place] = self.langevin(batch_size=place[0], momentum_retention=place[1])
        return self.samplers[place]

    def _watch(
        self, sampler: Sampler, settings: Mapping[str, Any], states: Any, seconds: float, *, observe: bool
    ) -> Measured:
        segment = segment_of(settings["momentum_retention"])
        run = watch(
            sampler,
            _segments(sampler, settings, states, segment),
            seconds=self._at_most(seconds),
            discard_steps=int(states.step[0]) + segment,
            displacement_every=stride_of(settings["momentum_retention"]),
            observe=observe,
            observe_examples=self.observe_examples,
            chunk_size=self.chunk_size,
        )
        self.preparing += run.preparation_seconds
        return run

    def adopt(self, run: Measured) -> None:
        """Let what follows start where this run ended."""
        self.weights, self.states = run.weights, run.states

    def _at_most(self, seconds: float) -> float:
        return max(0.0, min(seconds, self.left()))


def _segments(sampler: Sampler, settings: Mapping[str, Any], states: Any, segment: int) -> Iterator[tuple[int, Any]]:
    """Steps, and measurements of 𝒱 every `refresh_every` of them."""
    kernel, dataset = sampler.kernel, sampler.dataset
    step, since = int(states.step[0]), 0
    while True:
        if since >= settings["refresh_every"]:
            states = _refresh(kernel, states, settings["temperature_ratio"], settings["reset_probability"], dataset)
            since = 0
        states = _advance(kernel, states, dataset, num_steps=segment)
        step, since = step + segment, since + segment
        yield step, states


def segment_of(momentum_retention: float) -> int:
    """Steps between records and, at the least, between measurements of 𝒱."""
    return _divided(momentum_retention)[0]


def stride_of(momentum_retention: float) -> int:
    """Steps of the shortest displacement: the memory of the momenta, 1/(1 − c1²), or more; in whole segments."""
    segment, count = _divided(momentum_retention)
    return segment * count


def _divided(momentum_retention: float) -> tuple[int, int]:
    """The memory of the momenta as segments: steps of each, and how many."""
    memory = max(MIN_SEGMENT, round(1 / (1 - momentum_retention**2)))
    count = math.ceil(memory / MAX_SEGMENT)
    return math.ceil(memory / count), count


@partial(jax.jit, static_argnames=("kernel", "num_steps"), donate_argnames="states")
def _advance(kernel: Kernel, states: Any, dataset: Dataset, num_steps: int) -> Any:
    return jax.vmap(lambda state: base.advance(kernel, state, dataset, num_steps))(states)


@partial(jax.jit, static_argnames="kernel")
def _refresh(kernel: LangevinKernel, states: Any, ratio: float, reset_probability: float, dataset: Dataset) -> Any:
    """Measure 𝒱 now, with 𝒯 = 𝒯max = `ratio`; not donated, so that the common start stays."""
    assert kernel.control is not None
    control: Any = replace(
        kernel.control,
        temperature_ratio=ratio,
        max_temperature_ratio=ratio,
        reset_probability=reset_probability,
        warmup_refreshes=0,
    )
    turned = replace(kernel, control=control)
    return jax.vmap(lambda state: turned.refresh(state, dataset))(states)


@jax.jit
def _rescaled(states: Any, factor: float) -> Any:
    """Noise of another size, and the masses and momenta that go with it."""

    def times(scale: Any, tree: Weights) -> Weights:
        return jax.tree.map(lambda leaf: scale * leaf, tree)

    return states._replace(
        masses=times(factor, states.masses),
        gradient_variance=times(factor, states.gradient_variance),
        half_step_momentum=times(factor**0.5, states.half_step_momentum),
    )
