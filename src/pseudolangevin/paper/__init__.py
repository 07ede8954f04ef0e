"""Reproductions of the paper's figures and tables, one module each.

A module has SETTINGS by scale and `reproduce(settings, out)`, which yields the rows, the picture and the record of all
that was measured so far after each of its parts. To add a reproduction, write its module, add a line to MODULES, and
put the published numbers into published.json.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from .._checks import check_choice
from .results import Reproduction

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


def reproduce(names: str | Sequence[str], scale: str, out: Path) -> int:
    """Run reproductions one after the other, write NAME.json and NAME.png to `out`, and print the rows.

    The scale is "smoke" (minutes on two CPU cores) or "paper" (the published size, on a GPU). Trained starts and the
    last weights of long chains are kept in `out` for later reproductions. The result is 0 if every row passes, else 1.
    """
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        check_choice("name", name, tuple(MODULES))
    check_choice("scale", scale, ("smoke", "paper"))
    out.mkdir(parents=True, exist_ok=True)
    passed = True
    for name in chosen:
        module = import_module(f".{MODULES[name]}", __package__)
        settings, started = module.SETTINGS[scale], time.perf_counter()
        seed = settings["seed"] if isinstance(settings, dict) else settings[0].seed
        for rows, figure, record in module.reproduce(settings, out):
            seconds = time.perf_counter() - started
            result = Reproduction(name, scale, rows, figure, record, seed, seconds)
            result.write(out)  # the next part may take long
        print(f"{result}\n{out / name}.json, {out / name}.png ({result.seconds:.0f} s)", flush=True)
        passed &= result.passed
    return 0 if passed else 1
