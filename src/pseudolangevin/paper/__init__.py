"""The paper's figures and tables, one module each."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

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


def reproduce(name: str, scale: str, out: Path) -> int:
    """Run one reproduction, write NAME.json and NAME.png to `out`, print the rows; 0 if all pass, 1 otherwise."""
    if name not in MODULES:
        raise ValueError(f"name = {name!r}: choose one of {', '.join(MODULES)}")
    if scale not in SCALES:
        raise ValueError(f"scale = {scale!r}: choose one of {', '.join(SCALES)}")
    module = import_module(f".{MODULES[name]}", __package__)
    reproduction = module.reproduce(scale, out)
    reproduction.write(out)
    reproduction.print()
    print(f"{out / name}.json, {out / name}.png ({reproduction.seconds:.0f} s)")
    return 0 if reproduction.passed else 1
