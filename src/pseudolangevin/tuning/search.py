"""`tune`: the settings that diffuse fastest in wall-clock time, within a bias budget, found by the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..checks import check_integer, check_interval, check_positive
from ..gradients import DEFAULT_CHUNK_SIZE
from ..layout import check_temperatures
from ..samplers.base import Sampler
from ..types import Weights
from .bench import Bench
from .hybrid import HybridSearch
from .langevin import Grid, LangevinSearch
from .result import Tuned

BATCH_SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""The batch sizes tried by default, as shares of the data set."""


def tune(
    sampler: Sampler,
    weights: Weights,
    *,
    temperature: float,
    seconds: float = 120.0,
    max_seconds: float | None = None,
    bias_budget: float = 0.02,
    batch_sizes: Sequence[int] | None = None,
    temperature_ratios: Sequence[float] = (0.01, 0.03, 0.1, 0.3),
    momentum_retentions: Sequence[float] | None = None,
    reset_probabilities: Sequence[float] = (0.0, 0.1),
    num_leapfrog_steps: Sequence[int] = (30, 100, 300, 1_000),
    observe_examples: int | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    key: int = 0,
    report: Callable[[str], None] | None = None,
) -> Tuned:
    """Find the settings with the largest D*, diffusion in wall-clock time (`diagnostics.diffusion`), on this machine.

    For `pseudo_langevin`: batch size S, temperature ratio 𝒯, friction c1 and the reset of masses, such that loss, |w|²
    and error stay within `bias_budget` of full-batch sampling at this temperature (hybrid Monte Carlo, or, where that
    does not equilibrate in its share of the time, the extrapolation 𝒯 → 0). The interval between measurements of 𝒱
    follows from S and 𝒯: half a relaxation time, unless that costs more than a tenth of the run. For
    `hybrid_monte_carlo`, which has no bias: δt and the number of leapfrog steps.

    All candidates start from the same weights, which a run with the smallest 𝒯 brings towards equilibrium first. Start
    from trained weights all the same; and where no average settles (T far below 1/P), what is compared is the local
    equilibrium around them.

    Args:
        sampler: what to tune, from `pseudo_langevin` or `hybrid_monte_carlo`; settings that are not searched stay.
        weights: the start of one chain.
        temperature: T.
        seconds: time for everything but compilation; the candidate being measured when it is up is finished.
        max_seconds: the same with compilation; default: three times `seconds`.
        bias_budget: largest accepted relative bias of loss, |w|² and error.
        batch_sizes: S to try; default: 1, 3, 10, 30 and 100 % of the data set.
        temperature_ratios: 𝒯 to try.
        momentum_retentions: c1 to try, the first one first, larger ones only where a larger 𝒯 is left to try or nothing
            keeps the budget; default: the sampler's own, √0.999 and √0.9. Masses go as 1/(1 − c1²) and friction as
            1 − c1², so that diffusion over long times does not depend on c1; heavy weights with little friction follow
            steep directions more exactly (at the same 𝒯 the error of the time step is smaller), light ones forget
            sooner.
        reset_probabilities: ρ_reset to try. With 0, masses are only ever raised, so 𝒯_i falls below 𝒯: slower, and
            less biased.
        num_leapfrog_steps: of hybrid Monte Carlo.
        observe_examples: judge loss and error on the first so many examples; default: all. Where a pass over all of
            them takes as long as many steps, fewer of them give more records and so a surer judgement.
        chunk_size: examples held at once when visiting all of them.
        key: seed.
        report: called with a line of text on every finding, for example `print`.

    Example:
        >>> tuned = tune(pseudo_langevin(potential, train), weights, temperature=3e-5)  # doctest: +SKIP
        >>> print(tuned)  # doctest: +SKIP
        >>> result = sample(tuned.sampler, weights, temperatures=[3e-5], num_steps=100_000, key=1)  # doctest: +SKIP
    """
    (temperature,) = check_temperatures([temperature])
    check_positive("seconds", seconds)
    check_interval("bias_budget", bias_budget, 0, 1, "0.02 allows 2 %", open_ends=True)
    check_integer("chunk_size", chunk_size, minimum=1)
    if observe_examples is not None:
        check_integer("observe_examples", observe_examples, minimum=1)
    max_seconds = 3 * seconds if max_seconds is None else max_seconds
    check_positive("max_seconds", max_seconds)
    bench = Bench(
        sampler,
        weights,
        temperature,
        float(seconds),
        max_seconds,
        chunk_size,
        key,
        report or (lambda _: None),
        observe_examples,
    )
    search: LangevinSearch | HybridSearch
    if sampler.name == "pseudo_langevin":
        grid = Grid(
            _batch_sizes(batch_sizes, sampler.dataset.num_examples),
            _listed("temperature_ratios", temperature_ratios),
            _retentions(momentum_retentions, sampler),
            _listed("reset_probabilities", reset_probabilities, ascending=False),
        )
        for size in grid.batch_sizes:  # refuse what cannot be made before anything runs
            for ratio in grid.temperature_ratios:
                for retention in grid.momentum_retentions:
                    for reset in grid.reset_probabilities:
                        bench.langevin(
                            batch_size=size,
                            temperature_ratio=ratio,
                            max_temperature_ratio=ratio,
                            momentum_retention=retention,
                            reset_probability=reset,
                        )
        search = LangevinSearch(bench, grid, bias_budget)
    elif sampler.name == "hybrid_monte_carlo":
        for num_steps in _listed("num_leapfrog_steps", num_leapfrog_steps):
            check_integer("num_leapfrog_steps", num_steps, minimum=1)
        search = HybridSearch(bench, num_leapfrog_steps)
    else:
        raise ValueError(f"sampler = {sampler.name}: only pseudo_langevin and hybrid_monte_carlo can be tuned")
    tried, best = search.run()
    return Tuned(
        sampler=search.sampler(best),
        temperature=temperature,
        bias_budget=bias_budget,
        best=best,
        tried=tuple(tried),
        reference=search.reference,
        notes=tuple(search.notes),
        seconds=bench.elapsed,
        weights=bench.weights,
    )


def _batch_sizes(given: Sequence[int] | None, num_examples: int) -> list[int]:
    if given is not None:
        return list(_listed("batch_sizes", given))
    return sorted({max(2, round(share * num_examples)) for share in BATCH_SHARES})


def _retentions(given: Sequence[float] | None, sampler: Sampler) -> list[float]:
    own = float(sampler.settings["momentum_retention"])
    if given is not None:
        return list(_listed("momentum_retentions", given, ascending=False))
    return [own] + [c for c in (math.sqrt(0.999), math.sqrt(0.9)) if not math.isclose(c, own)]


def _listed(name: str, values: Sequence, *, ascending: bool = True) -> list:
    """The values as a list without repetitions; refuse an empty one."""
    found = list(dict.fromkeys(values))
    if not found:
        raise ValueError(f"{name} is empty; pass at least one value")
    return sorted(found) if ascending else found
