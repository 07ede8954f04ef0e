"""The paper's figures and tables, one module each."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from ..store.folder import check_writable

MODULES = {
    "noise": "noise",
    "thermodynamics": "thermodynamics",
    "performance": "performance",
    "variants": "variants",
    "batch-size": "batch_size",
    "prediction-vs-size": "prediction_vs_size",
    "suboptimal": "suboptimal",
    "generalization": "generalization",
    "fashion": "fashion",
}
SCALES = ("smoke", "paper")


def reproduce(names: str | Sequence[str], scale: str, out: Path) -> int:
    """Run reproductions in turn, write NAME.json and NAME.png to `out`, print the rows; 0 if all pass, else 1.

    In one process what one has compiled serves the next, and where a long chain ended is a start for others.
    """
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        if name not in MODULES:
            raise ValueError(f"name = {name!r}: choose one of {', '.join(MODULES)}")
    if scale not in SCALES:
        raise ValueError(f"scale = {scale!r}: choose one of {', '.join(SCALES)}")
    check_writable(out)
    passed = True
    for name in chosen:
        reproduction = import_module(f".{MODULES[name]}", __package__).reproduce(scale, out)
        reproduction.print()  # first: whatever becomes of the files, it is not lost
        reproduction.write(out)
        print(f"{out / name}.json, {out / name}.png ({reproduction.seconds:.0f} s)", flush=True)
        passed &= reproduction.passed
    return 0 if passed else 1
