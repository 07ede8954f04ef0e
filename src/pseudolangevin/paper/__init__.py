"""Reproductions of the paper's figures and tables.

A module, or an object in it, has SETTINGS by scale and three functions: `measure(settings, parts, out)` measures the
parts with `parts.measure`; `rows(found, settings)` and `draw(found, settings)` make the rows and the picture from the
values of the parts, which are plain numbers and lists from NAME.json. To add a reproduction, write its module, which is
found by its SETTINGS, and put the published numbers into published.json.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from .._trees import check_choice
from .results import Reproduction

_found = [file.stem for file in Path(__file__).parent.glob("*.py") if "\nSETTINGS" in file.read_text("utf-8")]
MODULES = {
    **{name.replace("_", "-"): name for name in sorted(_found)},
    "performance": "speeds.PERFORMANCE",
    "variants": "speeds.VARIANTS",
    "batch-size": "speeds.BATCH_SIZE",
    "suboptimal": "speeds.SUBOPTIMAL",
}


def reproduce(names: str | Sequence[str], scale: str, out: Path, max_seconds: float | None = None) -> int:
    """Run reproductions, write NAME.json and NAME.png to `out`, and print the rows.

    The scale is "smoke" (minutes on two CPU cores) or "paper" (the published size, on a GPU). Parts that are in
    NAME.json are not measured again. Parts that would exceed `max_seconds` in all are left for the next call: with zero
    seconds, rows and pictures are made again from the files. Trained starts and the last weights of long chains are
    kept in `out`. The result is 0 if every row passes, 1 if one fails, and 130 if parts are left.
    """
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        check_choice("name", name, tuple(MODULES))
    check_choice("scale", scale, ("smoke", "paper"))
    out.mkdir(parents=True, exist_ok=True)
    remaining, failed, left = math.inf if max_seconds is None else max_seconds, False, False
    for name in chosen:
        path, _, attribute = MODULES[name].partition(".")
        module: Any = import_module(f".{path}", __package__)
        made = Reproduction(name, scale, getattr(module, attribute) if attribute else module, out, remaining)
        made.run(out)
        remaining, left = made.remaining, left or bool(made.left)
        failed = failed or not all(row.passed for row in made.rows)
    return 130 if left else int(failed)
