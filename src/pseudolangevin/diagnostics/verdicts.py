"""The verdict rule: how numbers with errors become passed, failed or undecided, and what a certificate reports.

Every line checks whether a bias is within a tolerance. With the measured deviation d from the expected value, its
standard error s and the tolerance τ,

    failed      d − τ > q_fail·s          the bias is certainly larger than the tolerance
    passed      d + q_pass·s ≤ τ          the bias is smaller than the tolerance, with 95 % confidence
    undecided   otherwise                 more samples are needed, and the line states how many

A certificate fails when *any* line fails, so q_fail shares one false alarm in a hundred among all lines (Bonferroni).
It passes only when *all* lines pass, so q_pass needs no such correction (an intersection-union test). Both are
quantiles of Student's distribution. q_pass has one degree of freedom per effective sample, q_fail a fifth for averages
along a chain, whose autocorrelation time is estimated from the same draws. The effective samples of a short series are
overestimated, so below 20 a line neither passes nor fails. Lines about the worst of many weights or directions have a
bound on the deviation and a p-value of their own.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeAlias

from scipy import stats

from .averages import MIN_EFFECTIVE_SAMPLES, plus_minus

FALSE_ALARM = 0.01  # probability that a run without bias beyond the tolerances fails
LONGEST = 100  # largest factor by which a run is recommended to be longer
Side: TypeAlias = Literal["both", "above", "below"]  # direction of bad deviations


class Verdict(StrEnum):
    """Verdict on a line or on a certificate."""

    PASSED = "passed"
    UNDECIDED = "undecided"
    FAILED = "failed"


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
    side: Side = "both"  # direction of bad deviations from the expected value

    @property
    def passed(self) -> bool:
        """Whether the line passed."""
        return self.verdict is Verdict.PASSED

    @property
    def label(self) -> str:
        """The verdict as a word; "info" for a line that did not pass and does not count."""
        return str(self.verdict) if self.required or self.passed else "info"

    @property
    def kind(self) -> str:
        """Name of the row of the summary that the line belongs to."""
        name = re.split(r", | of (?:U|\|w\|²|the loss)$", self.name)[0]
        return name if self.chain is None or self.name == "status" else f"{name} of single chains"

    @property
    def badness(self) -> tuple[bool, int, float]:
        """A number by which lines are sorted: whether it counts, the verdict, and the share of the tolerance in use."""
        away = _deviation(self) + 2 * self.uncertainty
        share = away / self.tolerance if self.tolerance > 0 and math.isfinite(away) else 0.0
        return self.required, list(Verdict).index(self.verdict), share


@dataclass(frozen=True)
class Measurement:
    """A measured number, before its verdict."""

    name: str
    value: float
    standard_error: float
    expected: float
    tolerance: float
    remedy: str = ""  # part of the message when the line fails
    side: Side = "both"
    enough: bool = False  # whether the line asks for enough of something, so that it cannot fail
    effective_samples: float = math.inf
    num_draws: int | None = None  # retained draws that were averaged; None for a number that is not from the trace
    bound: float | None = None  # upper bound on the deviation, where it does not follow from the error
    p_value: float | None = None  # probability of such a deviation by chance, for a line with a test of its own
    longer: float = 2.0  # factor by which an undecided run must be longer, if the rule cannot tell; 0 if in vain
    settles: bool = False  # whether the deviation itself is expected to shrink in a longer run
    comment: str = ""  # part of the message in any case
    required: bool = True  # whether the line counts for the certificate

    def verdict(self, num_lines: int) -> tuple[Verdict, float]:
        """Return the verdict on one of `num_lines` lines, and the factor in samples that an undecided one needs."""
        error, samples, tolerance = self.standard_error, self.effective_samples, self.tolerance
        deviation = _deviation(self)
        if self.enough:
            return (Verdict.PASSED, 0.0) if deviation <= tolerance else (Verdict.UNDECIDED, self.longer)
        if not (math.isfinite(deviation) and math.isfinite(error) and samples > 2):
            factor = MIN_EFFECTIVE_SAMPLES / max(self.num_draws or 1, 1)
            return Verdict.UNDECIDED, max(self.longer, factor) if self.longer else 0.0
        freedom = samples if self.num_draws is None else independent(samples)
        false_alarm = FALSE_ALARM / ((2 if self.side == "both" else 1) * num_lines)
        fail_quantile, pass_quantile = stats.t.isf([false_alarm, 0.05], [freedom - 1, samples - 1]).tolist()
        bound = deviation + pass_quantile * error if self.bound is None else self.bound
        if samples >= MIN_EFFECTIVE_SAMPLES:
            by_chance = self.p_value is not None and self.p_value >= FALSE_ALARM / num_lines
            if deviation - tolerance > fail_quantile * error and not by_chance:
                return Verdict.FAILED, 0.0
            if bound <= tolerance:
                return Verdict.PASSED, 0.0
        if self.bound is not None or self.p_value is not None:
            return Verdict.UNDECIDED, self.longer
        quantile, distance = pass_quantile if deviation <= tolerance else fail_quantile, abs(tolerance - deviation)
        needed = (quantile * error / distance) ** 2 if distance > 0 else math.inf
        if deviation <= 2 * error:  # it may be chance, and then shrinks as the error does
            needed = ((pass_quantile + 1) * error / tolerance) ** 2 if tolerance > 0 else needed
        needed = min(needed, 2.0) if self.settles else needed
        return Verdict.UNDECIDED, max(needed, MIN_EFFECTIVE_SAMPLES / samples, 1.1)

    def line(self, num_lines: int, length: RunLength, temperature: float | None, chain: int | None) -> Line:
        """Return the line of a certificate of `num_lines` lines, with its message."""
        verdict, factor = self.verdict(num_lines)
        words = ["" if self.required else "for information", self.comment]
        more_steps = 0.0
        if verdict is Verdict.FAILED:
            words.append(self.remedy)
        elif verdict is Verdict.UNDECIDED and factor > 0:
            more_steps, needed = length.more_steps(factor), f"about {factor:.1f} times as many samples are needed"
            words.append(f"a run more than {LONGEST} times as long is needed" if math.isinf(more_steps) else needed)
        numbers = (self.value, self.standard_error, self.expected, self.tolerance)
        message = "; ".join(filter(None, words))
        return Line(self.name, temperature, chain, *numbers, verdict, message, self.required, more_steps, self.side)


def _deviation(line: Line | Measurement) -> float:
    """Return the distance of the value from the expected value in the bad direction."""
    difference = line.value - line.expected
    return {"both": abs(difference), "above": difference, "below": -difference}[line.side]


def independent(samples: float) -> float:
    """Return the samples that count for the error of an error along a chain; false alarms of AR(1) are right."""
    return max(2.0, samples / 5)


@dataclass(frozen=True)
class RunLength:
    """Length of a run, to convert a factor in samples into steps and seconds."""

    num_records: int
    steps_per_record: int
    num_steps: int
    seconds: float = math.nan  # time that the run has taken
    independence: float = 0.0  # effective samples per record; near 1, records more often give more samples

    @property
    def denser(self) -> int:
        """Factor by which records should be more frequent: 1, or more if nearly every record is a new sample."""
        return max(1, min(4, self.steps_per_record)) if self.independence > 0.5 else 1

    def more_steps(self, factor: float) -> float:
        """Return the additional steps for `factor` times the samples, and for 30 % more: the factor is uncertain."""
        if not factor <= LONGEST:
            return math.inf
        return max(1, math.ceil((1.3 * factor - 1) * self.num_records)) * max(1, self.steps_per_record // self.denser)

    def duration(self, num_steps: float) -> str:
        """Return the time that steps take, as text; empty if it is not known."""
        seconds = self.seconds * num_steps / max(1, self.num_steps)
        if not math.isfinite(seconds):
            return ""
        units = ((90, 1, "seconds"), (5400, 60, "minutes"), (172_800, 3600, "hours"), (math.inf, 86_400, "days"))
        _, unit, name = next(row for row in units if seconds < row[0])
        return f": about {max(1, math.ceil(seconds / unit))} {name}"


@dataclass(frozen=True)
class Certificate:
    """Lines of evidence, and the verdict that follows from them."""

    lines: tuple[Line, ...]
    notes: tuple[str, ...]  # what was not examined, and why
    sampler: str
    num_weights: int
    burn_in: float
    length: RunLength
    settings: dict[str, Any]  # of the sampler

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the lines that count; undecided if there are none."""
        found = (line.verdict for line in self.lines if line.required)
        return max(found, key=list(Verdict).index, default=Verdict.UNDECIDED)

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
    def advice(self) -> str:
        """Next command, with the time that it takes; empty for a certificate that passed."""
        return self._advice()

    def _advice(self, folder: Path | None = None) -> str:
        """Return the advice, as a command if the run is in a folder."""
        if self.passed:
            return ""
        if self.failed_lines:
            drifts = (line for line in self.lines if line.name.startswith(("stationarity", "R-hat")))
            # A drift explains the other failures.
            drifting = any(abs(line.value - line.expected) > line.tolerance for line in drifts)
            return self._continued(folder, self.length.num_steps, 1) if drifting else self._again(folder)
        lines = self._lines(Verdict.UNDECIDED)
        steps = max((int(line.more_steps) for line in lines if math.isfinite(line.more_steps)), default=0)
        parts = [self._continued(folder, steps, self.length.denser)] if steps else []
        if far := [line for line in lines if math.isinf(line.more_steps)]:
            longer = "even longer" if steps else f"a run more than {LONGEST} times as long"
            parts.append(f"{longer} for {_names(far)}")
        parts += [f"{line.name}: {line.message}" for line in lines if not line.more_steps][:1]
        return "; ".join(parts)

    def _continued(self, folder: Path | None, steps: int, denser: int) -> str:
        total, every = self.length.num_steps + steps, max(1, self.length.steps_per_record // denser)
        if self.sampler == "samples":
            return f"go on: {total:,} draws per chain" if denser == 1 else "go on, and keep draws more often"
        command, dense = f"num_steps={total}", f", record_every={every}"
        if folder:
            command, dense = f"pseudolangevin resume {folder} --steps {total}", f" --record-every {every}"
        todo = f"run longer: {command}" if denser == 1 else f"record more often: {command}{dense}"
        return todo + self.length.duration(steps)

    def _again(self, folder: Path | None) -> str:
        """Return the advice to sample again with a smaller step."""
        lines = self.failed_lines
        name = next((name for name in ("temperature_ratio", "time_step") if self.settings.get(name)), None)
        if name is None or any(line.message and line.name == "status" for line in lines):
            return f"sample again; {lines[0].message}"
        value, steps = f"{self.settings[name] / 2:.3g}", 2 * self.length.num_steps
        command = f"{name}={value}, num_steps={steps}"
        if folder:
            command = f"pseudolangevin sample {folder}/config.toml --out {folder}-2 --set sampler.{name}={value}"
            command += f" --set num_steps={steps}"
        return f"sample again: {command}{self.length.duration(steps)}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings, ready for JSON; unknown numbers are None."""

        def plain(value: Any) -> Any:
            return None if isinstance(value, float) and not math.isfinite(value) else value

        about = {name: getattr(self, name) for name in ("passed", "sampler", "num_weights", "burn_in", "advice")}
        lines = [{name: plain(value) for name, value in asdict(line).items()} for line in self.lines]
        return {"verdict": self.verdict.value, **about, "notes": list(self.notes), "lines": lines}

    def to_text(self, *, folder: Path | None = None, verbose: bool = False) -> str:
        """Return a table, the notes, the verdict with the lines that decide it, and the advice.

        The table has the worst line of every kind, or all if `verbose`. The command in the advice is for a run folder.
        """
        titles = ("line", "T", "chain", "value ± error", "expected ± tolerance", "verdict", "" if verbose else "passed")
        rows: list[tuple[str, ...]] = [titles]
        if verbose:
            rows += [_row(line.name, line, line.message) for line in self.lines]
        else:
            for kind in dict.fromkeys(line.kind for line in self.lines):
                lines = [line for line in self.lines if line.kind == kind]
                worst, num_passed = max(lines, key=lambda line: line.badness), sum(line.passed for line in lines)
                rows.append(_row(kind, worst, f"{num_passed} of {len(lines)}"))
        columns = []
        for column in zip(*rows, strict=True):
            pad = str.rjust if "±" in column[0] else str.ljust
            columns.append([pad(cell, max(map(len, column))) for cell in column])
        text = ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
        text += [f"note: {note}" for note in self.notes[:3]]
        passed, undecided, failed = map(self._lines, Verdict)
        summary = f"certificate {self.verdict}: {len(passed)} of {len(passed + undecided + failed)} lines passed"
        summary += f"; failed: {_names(failed)}" if failed else ""
        text.append(summary + (f"; undecided: {_names(undecided)}" if undecided else ""))
        if not verbose:
            first = {line.kind: line for line in reversed(failed)}
            text += [f"{kind}: {line.message}" for kind, line in reversed(first.items())][:4]
        return "\n".join([*text, *filter(None, [self._advice(folder)])])

    def __str__(self) -> str:
        return self.to_text()


def _row(name: str, line: Line, last: str) -> tuple[str, ...]:
    temperature = "" if line.temperature is None else f"{line.temperature:g}"
    value, expected = plus_minus(line.value, line.uncertainty), plus_minus(line.expected, line.tolerance)
    if line.side != "both":
        limit = line.expected + (line.tolerance if line.side == "above" else -line.tolerance)
        expected = f"at {'most' if line.side == 'above' else 'least'} {limit:.4g}"
    return name, temperature, "all" if line.chain is None else str(line.chain), value, expected, line.label, last


def _names(lines: Sequence[Line]) -> str:
    """Return the names of lines, each once, with their numbers."""
    counted = Counter(line.name for line in lines)
    return ", ".join(f"{name} (x{count})" if count > 1 else name for name, count in counted.items())
