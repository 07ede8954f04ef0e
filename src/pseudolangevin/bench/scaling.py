"""How the cost of a step grows with the number of weights, and how many weights fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from . import own
from .clock import Deadline
from .problem import Problem, nearest_size
from .rows import Row, skipped

FIRST, PER_DECADE = 1e5, 3
"""From 1e5 weights up: every decade first, then the sizes between."""
SAMPLER = "pseudo_langevin"
BISECTIONS = 3


def sizes(largest: float = 1e9) -> tuple[list[int], list[int]]:
    """Numbers of weights to try: the decades, and those between."""
    count = int(np.floor(PER_DECADE * np.log10(largest / FIRST) + 1e-9)) + 1
    found = [nearest_size(FIRST * 10 ** (k / PER_DECADE)) for k in range(count)]
    return found[::PER_DECADE], [size for k, size in enumerate(found) if k % PER_DECADE]


def measure(
    rates: Mapping[str, float], deadline: Deadline, emit: Callable[[str, Row], None], largest: float = 1e9
) -> None:
    """One chain at growing sizes, until the memory or the time ends; then between the last that fits and the first
    that does not."""
    fits, too_large = 0, math.inf
    rates = dict(rates)

    def seen(kind: str, row: Row) -> None:
        """Pass it on; the next size is expected to run at the rate of this one."""
        if kind == "row":
            rates.update(dict.fromkeys([*rates, "tensorfloat32"], row["flops_per_second"] / own.GUESSED_EFFICIENCY))
        emit(kind, row)

    for size in [size for part in sizes(largest) for size in part]:
        if size > too_large:
            continue
        ended = _try(size, rates, deadline, seen)
        if ended == "time":
            return
        fits, too_large = (max(fits, size), too_large) if ended is None else (fits, size)
    for _ in range(BISECTIONS):
        if not fits or math.isinf(too_large):
            return
        middle = nearest_size((fits * too_large) ** 0.5)
        ended = _try(middle, rates, deadline, seen)
        if ended == "time":
            return
        fits, too_large = (middle, too_large) if ended is None else (fits, middle)


def _try(size: int, rates: Mapping[str, float], deadline: Deadline, emit: Callable[[str, Row], None]) -> str | None:
    """Emit one size's row, or why there is none; returns what ended it, "memory" or "time"."""
    problem = Problem(size)
    making = 2e-6 * min(problem.num_examples, 5e6) + 1
    if deadline.left < 2 * making:
        emit("skipped", skipped(size, "pseudolangevin", SAMPLER, f"{deadline.left:.0f} s were left", 1))
        return "time"
    try:
        row = own.measure(problem, problem.dataset(), SAMPLER, 1, rates, deadline, with_refresh=False)
    except Exception as error:
        if not out_of_memory(error):
            raise
        row = skipped(size, "pseudolangevin", SAMPLER, "out of memory: " + str(error).splitlines()[0][:200], 1)
    if "reason" not in row:
        emit("row", row)
        return None
    emit("skipped", row)
    return "memory" if "memory" in row["reason"] or "GiB" in row["reason"] else "time"


def out_of_memory(error: Exception) -> bool:
    """Whether the device's memory was too small for what was asked."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error) or "ut of memory" in str(error)


def summary(rows: Sequence[Row], skipped_rows: Sequence[Row]) -> Row:
    """How the time of a step grows with N·S: the exponent over all sizes, and the steepest piece.

    An exponent of at most one says that the cost grows no faster than N·S.
    """
    rows = sorted(rows, key=lambda r: r["num_weights"])
    work = np.array([r["num_weights"] * r["batch_size"] for r in rows], float)
    seconds = np.array([r["seconds_per_step"] for r in rows])
    found: Row = {"rows": list(rows), "skipped": list(skipped_rows)}
    if len(rows) > 1:
        slopes = np.diff(np.log(seconds)) / np.diff(np.log(work))
        found |= {
            "exponent": float(np.log(seconds[-1] / seconds[0]) / np.log(work[-1] / work[0])),
            "steepest_exponent": float(slopes.max()),
        }
    if rows:
        found["largest_num_weights"] = rows[-1]["num_weights"]
        limited = [r for r in skipped_rows if "memory" in r["reason"] or "GiB" in r["reason"]]
        found["largest_is_limited_by"] = limited[0]["reason"] if limited else "time or the range asked for"
    return found


def draw(summary: Row, device: str, path: Path) -> None:
    """Time of a step against N, with a line that grows as N·S."""
    rows = summary["rows"]
    weights = np.array([r["num_weights"] for r in rows], float)
    work = np.array([r["num_weights"] * r["batch_size"] for r in rows], float)
    milliseconds = np.array([r["seconds_per_step"] for r in rows]) * 1e3
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.loglog(weights, milliseconds, "o-", color="C0", label="measured, one chain")
    axes.loglog(weights, milliseconds[0] * work / work[0], "--", color="grey", label="growing as N·S from the first")
    axes.set(xlabel="number of weights N (S = 1 % of P = 5N)", ylabel="ms per step", title=device)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
