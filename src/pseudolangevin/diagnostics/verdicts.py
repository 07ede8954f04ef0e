"""How a number with an error becomes a verdict: passed, failed or undecided.

Every line of a certificate asks whether a bias is within a tolerance. With the measured deviation d from what is
expected, its standard error s and the tolerance τ,

    failed      d − τ > q_fail·s          the bias is larger than the tolerance, beyond doubt
    passed      d + q_pass·s ≤ τ          the bias is smaller than the tolerance, with 95 % confidence
    undecided   otherwise                 more samples are needed, and the line says how many

A certificate fails when *any* line fails, so q_fail shares out one false alarm in a hundred over all lines
(Bonferroni). It passes only when *all* lines pass, so q_pass needs no such correction (an intersection–union test).
Both are quantiles of Student's distribution, so few samples have to say it louder. q_pass has a degree of freedom
for every effective sample; q_fail has a fifth of that for averages along a chain, whose autocorrelation time had
to be estimated from the same draws. All of this holds from about 20 effective samples on: those of a shorter series are
overestimated, its error underestimated, and a rule that trusted them would raise false alarms up to a hundred times
as often as it says. Below 20 a line fails only by an error that is known beforehand (`known_error`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from scipy import stats

Side: TypeAlias = Literal["both", "above", "below"]
"""Which deviations are bad: any, only values above the expected one, or only those below."""

FALSE_ALARM = 0.01
"""Chance that a run without bias beyond the tolerances fails, where its lines have 20 effective samples or more."""
PASS_CONFIDENCE = 0.95
"""Confidence with which every passed line is within its tolerance."""
MIN_EFFECTIVE_SAMPLES = 20
"""Below this the autocorrelation time itself is a guess, and usually too small: nothing passes, and nothing fails by
its own error."""
SAMPLES_PER_FREEDOM = 5
"""Effective samples per degree of freedom of an error that knows about autocorrelation; found with AR(1) series, for
which false alarms are then as rare as they should be."""
LARGEST_FACTOR = 100
"""How much longer a run may be asked for; beyond that the deviation is as good as equal to the tolerance."""


class Verdict(StrEnum):
    """What is known about a line, or about a whole certificate."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Line:
    """One line of a certificate."""

    name: str
    temperature: float | None
    """T, or None where the sampler has none."""
    chain: int | None
    """The chain, or None where the line is about all chains at the temperature."""
    value: float
    uncertainty: float
    """Standard error of `value`; 0 where it is exact, NaN where it is unknown."""
    expected: float
    """The right value, or the limit."""
    tolerance: float
    """How far `value` may be from `expected`."""
    verdict: Verdict
    message: str
    required: bool = True
    """False: the verdict does not count for the whole: for information, or because the check could not be made."""
    more_steps: float = 0.0
    """Steps of every chain that an undecided line still needs; infinite where the run is too short by far."""
    more_draws: float = 0.0
    """Draws of mini-batch noise that an undecided line still needs."""

    @property
    def passed(self) -> bool:
        """Whether the line holds."""
        return self.verdict is Verdict.PASSED

    @property
    def label(self) -> str:
        """The verdict in a word; of a line that does not hold and does not count, only that it is information."""
        return str(self.verdict) if self.required or self.passed else "info"


@dataclass(frozen=True)
class Measurement:
    """A number waiting for its verdict."""

    name: str
    temperature: float | None
    chain: int | None
    value: float
    standard_error: float
    expected: float
    tolerance: float
    side: Side = "both"
    effective_samples: float = math.inf
    num_draws: int | None = None
    """Retained draws behind it; None where it is not an average over the trace."""
    upper: float | None = None
    """An upper bound on `value` at the pass confidence, where it is not just a multiple of the standard error."""
    known_error: float | None = None
    """A standard error known beforehand: lets a line fail where the samples are too few to estimate one."""
    settles: bool = False
    """Whether the deviation itself is expected to shrink in a longer run."""
    remedy: str = ""
    """Said when it fails."""
    comment: str = ""
    """Said in any case."""
    required: bool = True
    """False: for information."""

    @property
    def deviation(self) -> float:
        """How far off, counted in the bad direction."""
        difference = self.value - self.expected
        return {"both": abs(difference), "above": difference, "below": -difference}[self.side]


MARGIN = 1.3
"""By how much a run is asked to be longer than its estimate."""


@dataclass(frozen=True)
class RunLength:
    """What turns a factor in samples into records and steps, or into draws of the mini-batch noise."""

    num_records: int
    steps_per_record: int
    noise_draws: int = 0

    @property
    def num_steps(self) -> int:
        """Steps of every chain so far."""
        return self.num_records * self.steps_per_record

    def more_steps(self, factor: float) -> float:
        """How many more steps a run needs to have `factor` times the samples.

        The factor comes from few samples and is uncertain itself, so somewhat more is asked for.
        """
        if not factor <= LARGEST_FACTOR:
            return math.inf
        return max(1, math.ceil((MARGIN * factor - 1) * self.num_records)) * self.steps_per_record

    def more(self, factor: float) -> str:
        """The same in words."""
        steps = self.more_steps(factor)
        if math.isinf(steps):
            return f"a run more than {LARGEST_FACTOR} times as long is needed"
        return f"about {steps // self.steps_per_record:,} more records ({steps:,} steps) are needed"


def judge(measurement: Measurement, num_lines: int, length: RunLength) -> Line:
    """Apply the rule of this file to one of `num_lines` measurements."""
    verdict, factor = _verdict(measurement, num_lines)
    words = [measurement.comment] if measurement.comment else []
    more_steps = more_draws = 0.0
    if verdict is Verdict.FAILED and measurement.remedy:
        words.append(measurement.remedy)
    if verdict is Verdict.UNDECIDED:
        if measurement.num_draws is None:
            words.append(f"about {min(factor, LARGEST_FACTOR):.1f} times as many draws are needed")
            more_draws = (min(factor, LARGEST_FACTOR) - 1) * length.noise_draws
        else:
            words.append(length.more(factor))
            more_steps = length.more_steps(factor)
    if not measurement.required:
        words.insert(0, "for information")
    return Line(
        measurement.name,
        measurement.temperature,
        measurement.chain,
        measurement.value,
        measurement.standard_error,
        measurement.expected,
        measurement.tolerance,
        verdict,
        "; ".join(words),
        measurement.required,
        more_steps,
        more_draws,
    )


def _verdict(measurement: Measurement, num_lines: int) -> tuple[Verdict, float]:
    """The verdict, and for an undecided one how many times the samples are needed."""
    deviation, error = measurement.deviation, measurement.standard_error
    samples, tolerance = measurement.effective_samples, measurement.tolerance
    if not (math.isfinite(deviation) and math.isfinite(error) and samples > 2):
        minimum = MIN_EFFECTIVE_SAMPLES / max(measurement.num_draws or 1, 1)
        return Verdict.UNDECIDED, max(2.0, minimum)
    sides = 2 if measurement.side == "both" else 1
    false_alarm = FALSE_ALARM / (sides * num_lines)
    along_chain = measurement.num_draws is not None
    fail_quantile = _quantile(false_alarm, max(2.0, samples / SAMPLES_PER_FREEDOM) if along_chain else samples)
    pass_quantile = _quantile(1 - PASS_CONFIDENCE, samples)
    if samples >= MIN_EFFECTIVE_SAMPLES and deviation - tolerance > fail_quantile * error:
        return Verdict.FAILED, 1.0
    if samples < MIN_EFFECTIVE_SAMPLES and measurement.known_error is not None:
        largest = max(measurement.known_error, error)
        if deviation - tolerance > _quantile(false_alarm, math.inf) * largest:
            return Verdict.FAILED, 1.0
    reach = pass_quantile * error if measurement.upper is None else measurement.upper - measurement.value
    if samples >= MIN_EFFECTIVE_SAMPLES and deviation + reach <= tolerance:
        return Verdict.PASSED, 1.0
    if measurement.upper is not None:
        return Verdict.UNDECIDED, 2.0
    quantile = pass_quantile if deviation <= tolerance else fail_quantile
    distance = abs(tolerance - deviation)
    needed = (quantile * error / distance) ** 2 if distance > 0 else math.inf
    if measurement.settles:
        needed = min(needed, 2.0)
    return Verdict.UNDECIDED, max(needed, MIN_EFFECTIVE_SAMPLES / samples, 1.1)


def _quantile(tail: float, samples: float) -> float:
    return float(stats.t.isf(tail, samples - 1)) if math.isfinite(samples) else float(stats.norm.isf(tail))


def overall(lines: list[Line]) -> Verdict:
    """Failed if any line that counts failed; passed if all that count passed; undecided otherwise."""
    verdicts = {line.verdict for line in lines if line.required}
    if Verdict.FAILED in verdicts:
        return Verdict.FAILED
    return Verdict.PASSED if verdicts == {Verdict.PASSED} else Verdict.UNDECIDED
