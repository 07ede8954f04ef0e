"""Lines of a certificate about all chains at a temperature, and about pairs of temperatures."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy import stats

from . import convergence
from .averages import Floats, average
from .chain_lines import Tolerances
from .ensemble import MIN_SAMPLES, EnsembleCheck, two_temperature_check
from .verdicts import FALSE_ALARM, MIN_EFFECTIVE_SAMPLES, SAMPLES_PER_FREEDOM, Line, RunLength, Verdict

MIN_POOLED_SAMPLES = 100
"""Effective samples wanted over all chains at a temperature."""
CONSISTENT = 3.0
"""Standard errors within which a slope is as expected."""
OBSERVABLES = {"potential": "U", "squared_norm": "|w|²"}


def convergence_lines(
    values: dict[str, Floats], temperature: float | None, tolerances: Tolerances, num_lines: int, length: RunLength
) -> Iterator[Line]:
    """R-hat and effective sample size of U and |w|² over the chains, values with axes (chain, draw)."""
    for variable, title in OBSERVABLES.items():
        chains = values[variable]
        effective = convergence.effective_samples(chains)
        enough = effective >= MIN_POOLED_SAMPLES
        factor = MIN_POOLED_SAMPLES / effective if effective > 0 else math.inf
        yield Line(
            f"effective samples of {title}",
            temperature,
            None,
            effective,
            0.0,
            MIN_POOLED_SAMPLES,
            0.0,
            Verdict.PASSED if enough else Verdict.UNDECIDED,
            "" if enough else length.more(factor),
            more_steps=0.0 if enough else length.more_steps(factor),
        )
        if len(chains) > 1:
            yield _rhat_line(chains, title, temperature, tolerances.rhat, num_lines, length)


def _rhat_line(
    chains: Floats, title: str, temperature: float | None, tolerance: float, num_lines: int, length: RunLength
) -> Line:
    """R-hat, which fails only where the means of the chains differ beyond their own errors.

    A large R-hat from few samples may be chance: R-hat² − 1 is about χ²/(effective samples) for chains that agree.
    """
    value = convergence.rhat(chains)
    means = [average(chain) for chain in chains]
    samples = min(mean.effective_samples for mean in means)
    verdict, message = Verdict.UNDECIDED, length.more(2.0)
    if samples >= MIN_EFFECTIVE_SAMPLES and value - 1 > tolerance:
        errors = np.array([mean.standard_error for mean in means])
        centred = np.array([mean.mean for mean in means]) - average(chains).mean
        # Errors from few samples are uncertain; Hotelling's bound on their ratio is an F distribution.
        statistic = float(np.sum((centred / errors) ** 2)) / (len(chains) - 1)
        if stats.f.sf(statistic, len(chains) - 1, samples / SAMPLES_PER_FREEDOM - 1) < FALSE_ALARM / num_lines:
            verdict, message = Verdict.FAILED, "chains disagree: each explores a region of its own; run longer"
    elif samples >= MIN_EFFECTIVE_SAMPLES and value - 1 <= tolerance:
        verdict, message = Verdict.PASSED, ""
    more_steps = length.more_steps(2.0) if verdict is Verdict.UNDECIDED else 0.0
    name = f"R-hat of {title}"
    return Line(name, temperature, None, value, 0.0, 1.0, tolerance, verdict, message, more_steps=more_steps)


def ensemble_line(
    first: Floats,
    second: Floats,
    temperatures: tuple[float, float],
    tolerances: Tolerances,
    num_lines: int,
    length: RunLength,
) -> Line:
    """The two-temperature check of neighbouring temperatures, U with axes (chain, draw).

    A slope to 3 % would take thousands of independent samples. So this line is a test of consistency: it fails as all
    lines do, and it passes when the slope is as expected within three standard errors, once these are small enough that
    a distribution of the wrong shape would have shown.
    """
    check = two_temperature_check(first, second, temperatures)
    name = f"ensemble, T = {temperatures[0]:g} and {temperatures[1]:g}"
    if not check.overlap:
        return _no_overlap(name, check, temperatures, tolerances)
    off, error = abs(check.ratio - 1) - tolerances.temperature, check.standard_error
    message = f"{check.num_samples[0]:.0f} and {check.num_samples[1]:.0f} independent samples"
    verdict, factor = Verdict.UNDECIDED, 2.0
    if not math.isfinite(error):
        factor = 2 * MIN_SAMPLES / max(1.0, min(check.num_samples))
    else:
        message = f"{check.deviation:+.1f} standard errors off; {message}"
        if off > error * stats.norm.isf(FALSE_ALARM / (2 * num_lines)):
            verdict = Verdict.FAILED
            message = f"{message}; the energies at the two temperatures are not both Boltzmann-distributed"
        elif error > tolerances.ensemble_error:
            factor = (error / tolerances.ensemble_error) ** 2
        elif off <= CONSISTENT * error:
            verdict = Verdict.PASSED
    more_steps = 0.0
    if verdict is Verdict.UNDECIDED:
        message, more_steps = f"{message}; {length.more(factor)}", length.more_steps(factor)
    return Line(
        name,
        temperatures[0],
        None,
        check.ratio,
        error,
        1.0,
        tolerances.temperature,
        verdict,
        message,
        more_steps=more_steps,
    )


def _no_overlap(name: str, check: EnsembleCheck, temperatures: tuple[float, float], tolerances: Tolerances) -> Line:
    message = (
        f"no overlap: mean energies are {check.separation:.0f} standard deviations apart; add a temperature between, "
        f"next to {temperatures[0]:g}: {check.suggested_temperature:.4g}"
    )
    return Line(
        name,
        temperatures[0],
        None,
        math.nan,
        math.nan,
        1.0,
        tolerances.temperature,
        Verdict.UNDECIDED,
        message,
        required=False,
    )
