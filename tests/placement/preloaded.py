"""Imported once by the process that all others are forked from."""

from __future__ import annotations

import warnings

import pseudolangevin.cli
import pseudolangevin.runs
from tests.placement import placed_chains, placed_runs  # noqa: F401

warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX warns; nothing of it runs in this process
