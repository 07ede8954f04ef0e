"""The verdict rule: how numbers with errors become passed, failed or undecided, and what a certificate reports.

Every line of a certificate checks whether a bias is within a tolerance. With the measured deviation d from the expected
value, its standard error s and the tolerance τ,

    failed      d − τ > q_fail·s          the bias is certainly larger than the tolerance
    passed      d + q_pass·s ≤ τ          the bias is smaller than the tolerance, with 95 % confidence
    undecided   otherwise                 more samples are needed, and the line states how many

A certificate fails when *any* line fails, so q_fail shares one false alarm in a hundred among all lines (Bonferroni).
It passes only when *all* lines pass, so q_pass needs no such correction (an intersection-union test). Both are
quantiles of Student's distribution. q_pass has one degree of freedom per effective sample; for averages along a chain
q_fail has a fifth of that, because their autocorrelation time is estimated from the same draws.

The rule holds from about 20 effective samples on. Those of a shorter series are overestimated, and false alarms would
be up to a hundred times as frequent as intended. Below 20 a line fails only by an error known beforehand.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from io import StringIO
from pathlib import Path
from typing import Any, Literal, TypeAlias

from .averages import plus_minus

FALSE_ALARM = 0.01  # probability that a run without bias beyond the tolerances fails
MIN_EFFECTIVE_SAMPLES = 20  # effective samples below which nothing passes, and nothing fails by its estimated error
SAMPLES_PER_FREEDOM = 5  # effective samples per degree of freedom along a chain; false alarms of AR(1) series are right
LARGEST_FACTOR = 100  # largest factor by which a run is recommended to be longer


class Verdict(StrEnum):
    """Verdict on a line or on a certificate."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Line:
    """One line of a certificate."""

    name: str
    temperature: float | None  # temperature T; None for a sampler without temperature
    chain: int | None  # index of the chain; None for a line about all chains at the temperature
    value: float
    uncertainty: float  # standard error of `value`; 0 where the value is exact, NaN where the error is unknown
    expected: float  # the correct value, or the limit
    tolerance: float  # largest acceptable distance of `value` from `expected`
    verdict: Verdict
    message: str
    required: bool = True  # whether the verdict counts for the certificate; False for lines that are for information
    more_steps: float = 0.0  # steps of every chain that an undecided line still needs; infinite for very many
    more_draws: float = 0.0  # draws of mini-batch noise that an undecided line still needs

    @property
    def passed(self) -> bool:
        """Whether the line passed."""
        return self.verdict is Verdict.PASSED

    @property
    def label(self) -> str:
        """The verdict as a word; "info" for a line that did not pass and does not count."""
        return str(self.verdict) if self.required or self.passed else "info"


@dataclass(frozen=True)
class Measurement:
    """A measured number, before its verdict."""

    value: float
    standard_error: float
    expected: float
    tolerance: float
    side: Literal["both", "above", "below"] = "both"  # direction of bad deviations from the expected value
    name: str = ""  # which of several measurements of a line, such as a layer
    effective_samples: float = math.inf
    num_draws: int | None = None  # retained draws that were averaged; None for a number that is not from the trace
    upper: float | None = None  # upper bound on `value` with 95 % confidence, if it does not follow from the error
    known_error: float = math.inf  # standard error known beforehand, by which the line can fail with few samples
    needed_error: float = math.inf  # largest standard error with which `consistent` passes
    p_value: float | None = None  # probability of such a deviation by chance, for a line with a test of its own
    longer: float = 2.0  # factor by which an undecided run must be longer, if the rule cannot tell; 0 if in vain
    settles: bool = False  # whether the deviation itself is expected to shrink in a longer run
    remedy: str = ""  # part of the message when the line fails
    comment: str = ""  # part of the message in any case
    required: bool = True  # whether the line counts for the certificate

    @property
    def deviation(self) -> float:
        """Distance from the expected value, counted in the bad direction."""
        difference = self.value - self.expected
        return {"both": abs(difference), "above": difference, "below": -difference}[self.side]


@dataclass(frozen=True)
class RunLength:
    """Length of a run, to convert a factor in samples into steps or draws of mini-batch noise."""

    num_records: int
    steps_per_record: int
    noise_draws: int = 0

    @property
    def num_steps(self) -> int:
        """Steps of every chain."""
        return self.num_records * self.steps_per_record

    def more_steps(self, factor: float, margin: float = 1.3) -> float:
        """Return the additional steps for `factor` times the samples; the factor is uncertain, hence the margin."""
        if not factor <= LARGEST_FACTOR:
            return math.inf
        return max(1, math.ceil((margin * factor - 1) * self.num_records)) * self.steps_per_record

    def more(self, factor: float) -> str:
        """Return the additional records and steps as text."""
        steps = self.more_steps(factor)
        if math.isinf(steps):
            return f"a run more than {LARGEST_FACTOR} times as long is needed"
        return f"about {steps // self.steps_per_record:,} more records ({steps:,} steps) are needed"


Judgement: TypeAlias = tuple[Verdict, float]  # verdict, and for an undecided one the factor in samples that is needed
Rule: TypeAlias = Callable[[Measurement, int], Judgement]


def within_tolerance(m: Measurement, num_lines: int) -> Judgement:
    """Apply the rule of this module to one of `num_lines` measurements."""
    deviation, error, samples, tolerance = m.deviation, m.standard_error, m.effective_samples, m.tolerance
    if not (math.isfinite(deviation) and math.isfinite(error) and samples > 2):
        return Verdict.UNDECIDED, max(2.0, MIN_EFFECTIVE_SAMPLES / max(m.num_draws or 1, 1))
    false_alarm = FALSE_ALARM / ((2 if m.side == "both" else 1) * num_lines)
    freedom = samples if m.num_draws is None else max(2.0, samples / SAMPLES_PER_FREEDOM)
    fail_quantile, pass_quantile = _quantile(false_alarm, freedom), _quantile(0.05, samples)
    reach = pass_quantile * error if m.upper is None else m.upper - m.value
    if samples >= MIN_EFFECTIVE_SAMPLES:
        by_chance = m.p_value is not None and m.p_value >= FALSE_ALARM / num_lines
        if deviation - tolerance > fail_quantile * error and not by_chance:
            return Verdict.FAILED, 0.0
        if deviation + reach <= tolerance:
            return Verdict.PASSED, 0.0
    elif deviation - tolerance > _quantile(false_alarm, math.inf) * max(m.known_error, error):
        return Verdict.FAILED, 0.0
    if m.upper is not None or m.p_value is not None:
        return Verdict.UNDECIDED, m.longer
    quantile = pass_quantile if deviation <= tolerance else fail_quantile
    distance = abs(tolerance - deviation)
    needed = (quantile * error / distance) ** 2 if distance > 0 else math.inf
    if m.settles:
        needed = min(needed, 2.0)
    return Verdict.UNDECIDED, max(needed, MIN_EFFECTIVE_SAMPLES / samples, 1.1)


def enough(m: Measurement, num_lines: int) -> Judgement:
    """Pass a number that reached what is expected; leave it undecided otherwise."""
    del num_lines
    return (Verdict.PASSED, 0.0) if m.deviation <= m.tolerance else (Verdict.UNDECIDED, m.longer)


def consistent(m: Measurement, num_lines: int) -> Judgement:
    """Pass a number within its tolerance and three standard errors, once these are at most `needed_error`.

    A slope to 3 % would take thousands of independent samples. This rule is a test of consistency instead: it fails as
    other lines do, and it passes as soon as a distribution of the wrong shape would have shown.
    """
    excess, error = m.deviation - m.tolerance, m.standard_error
    if not math.isfinite(error):
        return Verdict.UNDECIDED, m.longer
    if excess > error * _quantile(FALSE_ALARM / (2 * num_lines), math.inf):
        return Verdict.FAILED, 0.0
    if error > m.needed_error:
        return Verdict.UNDECIDED, (error / m.needed_error) ** 2
    return (Verdict.PASSED, 0.0) if excess <= 3 * error else (Verdict.UNDECIDED, 2.0)


def judge(
    name: str,
    m: Measurement,
    num_lines: int,
    length: RunLength,
    *,
    rule: Rule = within_tolerance,
    temperature: float | None = None,
    chain: int | None = None,
) -> Line:
    """Return the line of a certificate for one of `num_lines` measurements, with its message."""
    verdict, factor = rule(m, num_lines)
    name = f"{name}, {m.name}" if m.name else name
    words = ["" if m.required else "for information", m.comment, m.remedy if verdict is Verdict.FAILED else ""]
    more_steps = more_draws = 0.0
    if verdict is Verdict.UNDECIDED and factor > 0:
        if m.num_draws is None:
            factor = min(factor, LARGEST_FACTOR)
            words.append(f"about {factor:.1f} times as many draws are needed")
            more_draws = (factor - 1) * length.noise_draws
        else:
            words.append(length.more(factor))
            more_steps = length.more_steps(factor)
    message = "; ".join(filter(None, words))
    numbers = (m.value, m.standard_error, m.expected, m.tolerance)
    return Line(name, temperature, chain, *numbers, verdict, message, m.required, more_steps, more_draws)


@dataclass(frozen=True)
class Certificate:
    """Lines of evidence, and the verdict that follows from them."""

    lines: tuple[Line, ...]
    notes: tuple[str, ...]  # what was not examined, and why
    sampler: str
    num_weights: int
    burn_in: float
    length: RunLength  # length of the run

    @property
    def verdict(self) -> Verdict:
        """Failed if any line that counts failed, passed if all that count passed, undecided otherwise."""
        found = {line.verdict for line in self.lines if line.required}
        if Verdict.FAILED in found:
            return Verdict.FAILED
        return Verdict.PASSED if found == {Verdict.PASSED} else Verdict.UNDECIDED

    @property
    def passed(self) -> bool:
        """Whether the samples can be trusted; False when undecided."""
        return self.verdict is Verdict.PASSED

    @property
    def failed_lines(self) -> tuple[Line, ...]:
        """The lines that count and failed."""
        return self._lines(Verdict.FAILED)

    def _lines(self, verdict: Verdict) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.required and line.verdict is verdict)

    @property
    def summary(self) -> str:
        """The verdict, and the lines that decide it, in one sentence."""
        passed, failed, undecided = map(self._lines, Verdict)
        num_lines = len(passed + failed + undecided)
        text = f"certificate {self.verdict}: {len(passed)} of {num_lines} lines passed"
        text += f"; failed: {_names(failed)}" if failed else ""
        return text + (f"; undecided: {_names(undecided)}" if undecided else "")

    @property
    def advice(self) -> str:
        """What would decide an undecided certificate; empty for others."""
        return self.advice_for(None)

    def advice_for(self, folder: Path | None) -> str:
        """Return the advice with the command that continues the run in a folder."""
        if self.verdict is not Verdict.UNDECIDED:
            return ""
        lines, parts = self._lines(Verdict.UNDECIDED), []
        if steps := max((int(line.more_steps) for line in lines if math.isfinite(line.more_steps)), default=0):
            total = self.length.num_steps + steps
            command = f"; `pseudolangevin resume {folder} --steps {total}`" if folder else f", {total:,} in all"
            parts.append(f"about {steps:,} more steps per chain{command}")
        if far := [line for line in lines if math.isinf(line.more_steps)]:
            longer = "even longer" if steps else f"a run more than {LARGEST_FACTOR} times as long"
            parts.append(f"{longer} for {_names(far)}")
        if draws := math.ceil(max((line.more_draws for line in lines), default=0.0)):
            draws += self.length.noise_draws
            again = f"`pseudolangevin check {folder} --noise-draws {draws}`"
            parts.append(f"more draws of noise: {again if folder else f'certificate(..., noise_draws={draws})'}")
        others = [line for line in lines if not (line.more_steps or line.more_draws)]
        parts += [f"{line.name}: {line.message}" for line in others[:1]]
        return f"undecided: {'; '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings, ready for JSON; unknown numbers are None."""

        def plain(value: Any) -> Any:
            return None if isinstance(value, float) and not math.isfinite(value) else value

        about = {name: getattr(self, name) for name in ("passed", "sampler", "num_weights", "burn_in", "advice")}
        lines = [{name: plain(value) for name, value in asdict(line).items()} for line in self.lines]
        return {"verdict": self.verdict.value, **about, "notes": list(self.notes), "lines": lines}

    def to_text(self, *, width: int = 160, folder: Path | None = None) -> str:
        """Return the table of lines, the notes, the summary and the advice."""
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415

        table = Table(box=None, pad_edge=False)
        for title in ("T", "chain", "line", "value ± error", "expected ± tolerance", "verdict", ""):
            table.add_column(title, no_wrap=title not in ("line", ""), justify="right" if "±" in title else "left")
        for line in self.lines:
            temperature = "" if line.temperature is None else f"{line.temperature:g}"
            value, expected = plus_minus(line.value, line.uncertainty), plus_minus(line.expected, line.tolerance)
            where = "all" if line.chain is None else str(line.chain)
            table.add_row(temperature, where, line.name, value, expected, line.label, line.message)
        stream = StringIO()
        Console(file=stream, width=width, color_system=None).print(table)
        rows = [row.rstrip() for row in stream.getvalue().splitlines()]
        last = [*(f"note: {note}" for note in self.notes), self.summary, self.advice_for(folder)]
        return "\n".join([*rows, *filter(None, last)])

    def __str__(self) -> str:
        """Return the certificate as a table."""
        return self.to_text()


def _names(lines: Sequence[Line]) -> str:
    """Return the names of lines, each once, with their numbers."""
    counted = Counter(line.name for line in lines)
    return ", ".join(f"{name} (x{count})" if count > 1 else name for name, count in counted.items())


def _quantile(tail: float, samples: float) -> float:
    from scipy import stats  # noqa: PLC0415

    return float(stats.t.isf(tail, samples - 1)) if math.isfinite(samples) else float(stats.norm.isf(tail))
