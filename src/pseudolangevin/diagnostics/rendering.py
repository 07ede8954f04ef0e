"""A certificate as a table, for the terminal and as plain text."""

from __future__ import annotations

import math
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from .verdicts import LARGEST_FACTOR, Line, Verdict

if TYPE_CHECKING:
    from .certificate import Certificate

STYLES = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.UNDECIDED: "yellow"}


def to_rich(certificate: Certificate, *, only_open: bool = False, folder: Path | None = None) -> Group:
    """The certificate for a rich console.

    Args:
        certificate: what to show.
        only_open: leave out the lines that passed.
        folder: of the run, where it has one; the last line then names the command that continues it.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("T", "chain", "line"):
        table.add_column(title, no_wrap=title != "line")
    table.add_column("value ± error", justify="right", no_wrap=True)
    table.add_column("expected ± tolerance", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("")
    for line in certificate.lines:
        if only_open and line.verdict is Verdict.PASSED:
            continue
        table.add_row(
            "" if line.temperature is None else f"{line.temperature:g}",
            "all" if line.chain is None else str(line.chain),
            line.name,
            _with_error(line.value, line.uncertainty),
            _with_error(line.expected, line.tolerance),
            Text(line.label, STYLES[line.verdict] if line.label == line.verdict else "dim"),
            line.message,
        )
    notes = [Text(f"note: {note}", "dim") for note in certificate.notes]
    style = STYLES[certificate.verdict]
    last = [Text(summary(certificate), style)]
    if text := advice(certificate, folder):
        last.append(Text(text, style, no_wrap=True, overflow="ignore"))  # whole, to be copied
    return Group(*([table] if table.row_count else []), *notes, *last)


def to_text(certificate: Certificate, *, width: int = 160, folder: Path | None = None) -> str:
    """The same as plain text."""
    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(to_rich(certificate, folder=folder), crop=False)
    return "\n".join(row.rstrip() for row in stream.getvalue().splitlines())


def summary(certificate: Certificate) -> str:
    """One sentence: the verdict, and what it hangs on."""
    counted = [line for line in certificate.lines if line.required]
    counts = {verdict: [line for line in counted if line.verdict is verdict] for verdict in Verdict}
    parts = [f"certificate {certificate.verdict}: {len(counts[Verdict.PASSED])} of {len(counted)} lines passed"]
    for verdict in (Verdict.FAILED, Verdict.UNDECIDED):
        named = counts[verdict]
        if named:
            parts.append(f"{verdict}: {_names(named)}")
    return "; ".join(parts)


def advice(certificate: Certificate, folder: Path | None = None) -> str:
    """What would decide an undecided certificate; empty for others.

    Args:
        certificate: what to decide.
        folder: of the run, where it has one; the command that continues it is then named.
    """
    if certificate.verdict is not Verdict.UNDECIDED:
        return ""
    lines = [line for line in certificate.lines if line.required and line.verdict is Verdict.UNDECIDED]
    parts = []
    steps = max((int(line.more_steps) for line in lines if math.isfinite(line.more_steps)), default=0)
    if steps:
        total = certificate.length.num_steps + steps
        command = f"; `pseudolangevin resume {folder} --steps {total}`" if folder else f", {total:,} in all"
        parts.append(f"about {steps:,} more steps per chain{command}")
    if far := [line for line in lines if math.isinf(line.more_steps)]:
        longer = "longer still" if steps else f"a run more than {LARGEST_FACTOR} times as long"
        parts.append(f"{longer} for {_names(far)}")
    if draws := math.ceil(max((line.more_draws for line in lines), default=0.0)):
        draws += certificate.length.noise_draws
        command = f"`pseudolangevin check {folder} --noise-draws {draws}`"
        again = command if folder else f"certificate(…, noise_draws={draws})"
        parts.append(f"more draws of noise: {again}")
    others = [line for line in lines if not (line.more_steps or line.more_draws)]
    parts += [f"{line.name}: {line.message}" for line in others[:1]]
    return f"undecided: {'; '.join(parts)}"


def _names(lines: list[Line]) -> str:
    """The names of lines, each once, with how often."""
    names = [line.name for line in lines]
    return ", ".join(
        f"{name} (×{names.count(name)})" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )


def _with_error(value: float, error: float) -> str:
    if math.isnan(value):
        return "–"
    if not error > 0:
        return f"{value:.4g}"
    digits = min(max(1 - math.floor(math.log10(error)), 0), 8)
    return f"{value:.{digits}f} ± {error:.{digits}f}"
