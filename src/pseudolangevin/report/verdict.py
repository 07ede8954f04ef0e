"""The certificate as the page shows it: one list of lines, each passed, failed or undecided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .view import power_of_ten, scientific

Verdict: TypeAlias = Literal["passed", "failed", "undecided", "info"]
ALL = "all"
"""Where a line without a temperature stands."""
EFFECTIVE_SAMPLES = "effective samples of "
"""How the certificate's lines about them begin."""
_ORDER: tuple[Verdict, ...] = ("failed", "undecided", "info", "passed")


@dataclass(frozen=True)
class Line:
    """One check."""

    verdict: Verdict
    order: int
    """Its place in the certificate."""
    name: str
    temperature: str
    where: str
    value: str
    expected: str
    detail: str


@dataclass(frozen=True)
class Summary:
    """The whole certificate, what failed first; without a certificate, why there is none."""

    verdict: Verdict | Literal["unchecked"]
    lines: list[Line]
    reason: str = ""
    notes: tuple[str, ...] = ()
    advice: str = ""
    """What would decide it, where it is undecided."""

    def count(self, verdict: Verdict) -> int:
        """Lines with this verdict."""
        return sum(line.verdict == verdict for line in self.lines)

    def effective_samples(self) -> dict[str, dict[str, str]]:
        """Its numbers of effective samples: of which observable, at which temperature."""
        found: dict[str, dict[str, str]] = {}
        for line in sorted(self.lines, key=lambda line: line.order):
            if line.name.startswith(EFFECTIVE_SAMPLES):
                found.setdefault(line.name.removeprefix(EFFECTIVE_SAMPLES), {})[line.temperature] = line.value
        return found

    def overview(self) -> tuple[list[str], list[tuple[str, list[list[Line]]]]]:
        """The lines as a table: the temperatures across; for each check its lines at each of them, chain by chain."""
        ordered = sorted(self.lines, key=lambda line: line.order)
        columns = list(dict.fromkeys(line.temperature for line in ordered))
        table: dict[str, list[list[Line]]] = {}
        for line in ordered:
            cells = table.setdefault(line.name, [[] for _ in columns])
            cells[columns.index(line.temperature)].append(line)
        return columns, list(table.items())


def summarize(certificate: Any, reason: str = "") -> Summary:
    """Read a certificate: an object or mapping with `passed` and `lines` of name, value, uncertainty and passed.

    `passed` None means undecided, and a `verdict` in words goes before `passed`. Where a line says more (temperature,
    chain, layer, expected, tolerance, message), it is shown.
    """
    if certificate is None:
        return Summary("unchecked", [], reason or "No certificate was computed.")
    lines = [_line(line, order) for order, line in enumerate(_get(certificate, "lines") or [])]
    lines.sort(key=lambda line: _ORDER.index(line.verdict))
    notes, advice = tuple(map(str, _get(certificate, "notes") or ())), str(_get(certificate, "advice") or "")
    return Summary(_verdict(certificate), lines, notes=notes, advice=advice)


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _verdict(thing: Any) -> Verdict:
    said = _get(thing, "verdict")
    if said is not None:
        word = str(getattr(said, "value", said)).lower()
        for verdict in _ORDER:
            if word in (verdict, verdict.removesuffix("ed")):
                return verdict
    passed = _get(thing, "passed")
    if passed is None or isinstance(passed, str):
        return "undecided"
    return "passed" if bool(passed) else "failed"


def _line(line: Any, order: int) -> Line:
    temperature, chain, layer = (_get(line, name) for name in ("temperature", "chain", "layer"))
    at = ALL if temperature is None else f"T = {_scientific(temperature)}"
    where = [at] if temperature is not None else []
    if layer is not None:
        where.append(str(layer))
    if chain is not None:
        where.append(f"chain {chain}")
    detail = "; ".join(str(note) for name in ("message", "note") if (note := _get(line, name)))
    value = with_error(_get(line, "value"), _get(line, "uncertainty"))
    expected = _expected(_get(line, "expected"), _get(line, "tolerance"))
    verdict = _verdict(line)
    if _get(line, "required") is False and verdict != "passed":
        verdict = "info"
    return Line(verdict, order, str(_get(line, "name")), at, ", ".join(where), value, expected, detail)


def _expected(expected: Any, tolerance: Any) -> str:
    if _number(expected) is None:
        return ""
    within = f" ± {format_number(tolerance)}" if _number(tolerance) else ""
    return format_number(expected) + within


def with_error(value: Any, error: Any) -> str:
    """A value with its uncertainty, to two digits of the latter: 0.3249 ± 0.0012."""
    value, error = _number(value), _number(error)
    if value is None:
        return "—"
    if error is None or error <= 0:
        return format_number(value, 4)
    digits = 1 - math.floor(math.log10(error))
    if abs(value) >= 1e6 or max(abs(value), error) < 1e-3:
        power = math.floor(math.log10(max(abs(value), error)))
        digits = min(max(0, digits + power), 12)
        text = f"({value / 10.0**power:.{digits}f} ± {error / 10.0**power:.{digits}f})×{power_of_ten(power)}"
        return text.replace("-", "−")
    digits = min(max(0, digits), 12)
    return f"{value:.{digits}f} ± {error:.{digits}f}".replace("-", "−")


def format_number(value: Any, digits: int = 4) -> str:
    """A number to a few digits, or a dash."""
    number = _number(value)
    if number is None:
        return "—"
    text = f"{number:.{digits}g}"
    return scientific(number, digits) if "e" in text else text.replace("-", "−")


def _scientific(value: Any) -> str:
    number = _number(value)
    return str(value) if number is None else scientific(number)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
