"""Imported once by the process that all others are forked from."""

from __future__ import annotations

import warnings

from pseudolangevin import cli, runs  # noqa: F401
from tests.placement import placed_chains, placed_runs  # noqa: F401

warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX warns; nothing of it runs in this process
