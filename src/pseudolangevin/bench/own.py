"""The samplers of this package, timed: the compiled segment that the driver runs, and the refresh between segments."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from .. import chains
from ..chains import make_plan
from ..config.settings import SAMPLERS
from ..data import Dataset
from ..samplers.base import Sampler
from .clock import Deadline, Timing, steps_per_block, time_blocks
from .memory import PeakMemory, available_bytes, program_bytes
from .problem import QUIET_TEMPERATURE_RATIO, Problem
from .rows import OWN, Row, row, skipped

LEAPFROG_STEPS = 10
GUESSED_EFFICIENCY, GUESSED_LAUNCH = 0.1, 3e-5
"""A first guess of a step: a tenth of the machine's rate, and 30 µs; blocks are sized by it, nothing is reported."""
MAX_STEPS_PER_BLOCK = 2_000
START_BATCHES = 10
"""Mini-batches for the 𝒱 that the timed chains start with. Neither that nor 𝒯 changes the time of a step; the refresh
is timed with the default settings."""

Maker = Callable[..., Sampler]


@dataclass(frozen=True)
class Case:
    """How one sampler is made for timing, and how much arithmetic its step is."""

    settings: Callable[[Problem], dict[str, Any]]
    gradients: int
    flops: Callable[[Problem], float]
    products: str = "tensorfloat32"
    """In which precision most of it is done on a GPU."""


def _minibatch_flops(problem: Problem) -> float:
    return problem.batch_size * problem.gradient_flops


def _exact_flops(problem: Problem) -> float:
    return problem.num_examples * problem.gradient_flops


def _energy_flops(problem: Problem) -> float:
    return problem.num_examples * problem.forward_flops


def _move(problem: Problem) -> dict[str, Any]:
    return {"num_leapfrog_steps": LEAPFROG_STEPS, "time_step": 1e-4}


MOVE_GRADIENTS = LEAPFROG_STEPS + 2
"""The half kicks at both ends of a trajectory have a gradient each."""

CASES = {
    "pseudo_langevin": Case(lambda p: {"batch_size": p.batch_size}, 1, _minibatch_flops),
    "naive_pseudo_langevin": Case(lambda p: {"batch_size": p.batch_size, "time_step": 1e-3}, 1, _minibatch_flops),
    "adam": Case(lambda p: {"batch_size": p.batch_size}, 1, _minibatch_flops),
    "minibatch_hybrid_monte_carlo": Case(
        lambda p: {"batch_size": p.batch_size, **_move(p)},
        MOVE_GRADIENTS,
        lambda p: MOVE_GRADIENTS * _minibatch_flops(p) + _energy_flops(p),
    ),
    "full_batch_langevin": Case(lambda p: {"time_step": 1e-3}, 1, _exact_flops, "float32"),
    "hybrid_monte_carlo": Case(
        _move, MOVE_GRADIENTS, lambda p: MOVE_GRADIENTS * _exact_flops(p) + _energy_flops(p), "float32"
    ),
}


def measure(
    problem: Problem,
    dataset: Dataset,
    name: str,
    num_chains: int,
    rates: Mapping[str, float],
    deadline: Deadline,
    *,
    with_refresh: bool = True,
) -> Row:
    """One row: the named sampler with so many chains; or why there is none."""
    case = CASES[name]
    flops = case.flops(problem)
    guess = guessed_seconds(num_chains * flops, rates.get(case.products, rates["float32"]))
    start_steps = START_BATCHES if "variance_block" in _parameters(name) else 1
    if guess * (start_steps + 3) > deadline.left:
        reason = f"a step may take {guess:.2g} s, and {deadline.left:.0f} s were left"
        return skipped(problem.num_weights, OWN, name, reason, num_chains)
    peak = PeakMemory()
    start_sampler = _make(problem, dataset, name, START_BATCHES)
    plan = make_plan(
        start_sampler,
        temperatures=[problem.temperature] if start_sampler.uses_temperature else None,
        num_chains=num_chains,
        num_steps=MAX_STEPS_PER_BLOCK,
    )
    weights = problem.network().init(jax.random.key(0))
    num_steps = steps_per_block(guess, start_sampler.kernel.refresh_every or MAX_STEPS_PER_BLOCK)
    began = time.perf_counter()
    abstract = plan.abstract_states(weights)
    advance = chains._advance.lower(start_sampler.kernel, abstract, dataset, num_steps=num_steps).compile()
    compile_seconds = time.perf_counter() - began
    needed, available = program_bytes(advance), available_bytes()
    if needed is not None and needed > available:
        reason = f"needs {needed / 2**30:.3g} GiB, and the device has {available / 2**30:.3g} GiB"
        return skipped(problem.num_weights, OWN, name, reason, num_chains)
    chain = _Chains(plan.init(weights, 0), dataset)
    timing = time_blocks(lambda: chain.apply(advance), deadline)
    more: Row = {"compile_seconds": compile_seconds, "program_bytes": needed}
    if with_refresh and start_sampler.kernel.refresh_every is not None:
        more |= _refresh(problem, name, chain, timing, num_steps, deadline)
    return row(
        problem,
        OWN,
        name,
        num_chains=num_chains,
        timing=timing,
        steps_per_block=num_steps,
        gradients_per_step=case.gradients,
        flops_per_chain_step=flops,
        running_chains=int((chain.states.status == 0).sum()),
        **peak.since(),
        **more,
    )


def guessed_seconds(flops: float, rate: float) -> float:
    """A step with so much arithmetic, roughly."""
    return GUESSED_LAUNCH + flops / (GUESSED_EFFICIENCY * rate)


class _Chains:
    """States that compiled programs replace; their buffers are given away and must not be used again."""

    def __init__(self, states: Any, dataset: Dataset) -> None:
        self.states, self.dataset = states, dataset

    def apply(self, program: Any) -> None:
        self.states = jax.block_until_ready(program(self.states, self.dataset))


def _refresh(
    problem: Problem, name: str, chain: _Chains, timing: Timing, num_steps: int, deadline: Deadline
) -> dict[str, Any]:
    """The time of a refresh of 𝒱 with default settings, and what it adds to every step of its interval."""
    sampler = _make(problem, chain.dataset, name)
    step = timing.median / num_steps
    batches = sampler.settings.get("variance_max_batches", 0)
    if step * batches * 1.5 > deadline.left:
        reason = f"up to {batches} gradients may take {step * batches:.0f} s, and {deadline.left:.0f} s were left"
        return {"refresh_seconds": None, "refresh_skipped": reason}
    began = time.perf_counter()
    program = chains._refresh.lower(sampler.kernel, chain.states, chain.dataset).compile()
    compile_seconds = time.perf_counter() - began

    def refresh() -> None:
        chain.states = chain.states._replace(next_refresh=chain.states.step + 0)
        chain.apply(program)

    seconds = time_blocks(refresh, deadline).median  # the first loads the program
    base, longest = sampler.settings["refresh_every"], sampler.settings["max_refresh_interval"]
    return {
        "refresh_seconds": seconds,
        "refresh_compile_seconds": compile_seconds,
        "refresh_program_bytes": program_bytes(program),
        "refresh_interval": base,
        "seconds_per_step_with_refresh": step + seconds / base,
        "refresh_share": seconds / base / (step + seconds / base),
        "refresh_share_at_longest_interval": seconds / longest / (step + seconds / longest),
    }


def _make(problem: Problem, dataset: Dataset, name: str, start_batches: int | None = None) -> Sampler:
    settings = CASES[name].settings(problem)
    if start_batches is not None:
        quiet: dict[str, Any] = {"temperature_ratio": QUIET_TEMPERATURE_RATIO}
        quiet |= {"variance_block": start_batches, "variance_max_batches": start_batches}
        settings |= {key: value for key, value in quiet.items() if key in _parameters(name)}
    return SAMPLERS[name](problem.potential(), dataset, **settings)


def _parameters(name: str) -> set[str]:
    return set(inspect.signature(SAMPLERS[name]).parameters)
