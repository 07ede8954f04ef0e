"""Run folders on four simulated devices: a process of its own.

    python -m tests.placement.placed_runs FOLDER

makes FOLDER/whole in one session, and FOLDER/other in two, the second of which is split otherwise.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax

from pseudolangevin import cli, runs
from tests.store.conftest import build_once
from tests.store.small_runs import SMALL_RUN


def main() -> None:
    assert jax.device_count() == 4
    runs.build = build_once  # the first two sessions share their programs
    folder = Path(sys.argv[1])
    config = folder / "run.toml"
    config.write_text(SMALL_RUN + "[placement]\nchains = 4\n")
    assert cli.run(["sample", str(config), "--out", str(folder / "whole")]) == 0
    assert cli.run(["sample", str(config), "--out", str(folder / "other"), "--set", "num_steps=200"]) == 0
    ways = ["--set", "placement.chains=2", "--set", "placement.data=2"]
    assert cli.run(["resume", str(folder / "other"), "--steps", "400", *ways]) == 0


if __name__ == "__main__":
    main()
