"""Run folders on four simulated devices: a process of its own.

    python -m tests.placement.placed_runs FOLDER

makes FOLDER/whole in one go, FOLDER/same in two sessions, and FOLDER/other, whose second session is split otherwise.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import jax

from pseudolangevin import cli
from tests.store.small_runs import SMALL_RUN


def main() -> None:
    assert jax.device_count() == 4
    folder = Path(sys.argv[1])
    config = folder / "run.toml"
    config.write_text(SMALL_RUN + "[placement]\nchains = 4\n")
    assert cli.run(["sample", str(config), "--out", str(folder / "whole")]) == 0
    assert cli.run(["sample", str(config), "--out", str(folder / "same"), "--set", "num_steps=200"]) == 0
    shutil.copytree(folder / "same", folder / "other")
    assert cli.run(["resume", str(folder / "same"), "--steps", "400"]) == 0
    ways = ["--set", "placement.chains=2", "--set", "placement.data=2"]
    assert cli.run(["resume", str(folder / "other"), "--steps", "400", *ways]) == 0


if __name__ == "__main__":
    main()
