"""How much memory programs need, and how much there is."""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

import jax


def program_bytes(compiled: Any) -> int | None:
    """Arguments, results and temporaries of a compiled program at once, by the compiler's own account."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    both = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return int(both + analysis.temp_size_in_bytes)


def available_bytes() -> int:
    """What the device has for this process; on a CPU, the machine's memory."""
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    return int(limit) if limit else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class PeakMemory:
    """The high-water mark of this process, which only ever rises: a row has one of its own only where it raised it."""

    def __init__(self) -> None:
        """Note where it stands."""
        self._before = _peak()[0]

    def since(self) -> dict[str, Any]:
        """The peak if it rose since this was made, else None, its kind, and that of the process in any case."""
        peak, kind = _peak()
        return {"peak_bytes": peak if peak > self._before else None, "peak_is": kind, "process_peak_bytes": peak}


def _peak() -> tuple[int, str]:
    stats = jax.devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"]), "device memory, whole process so far"
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "resident memory, whole process so far"
