"""One compiled program for all tests of run folders, and one finished run to copy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pseudolangevin.runs import session
from pseudolangevin.runs.build import Experiment, build
from pseudolangevin.runs.config import PythonSettings, Settings

from .small_runs import small_settings

_built: dict[str, Experiment] = {}


def build_once(settings: Settings | PythonSettings, **how: Any) -> Experiment:
    """Build an experiment; equal settings share their compiled programs."""
    if isinstance(settings, PythonSettings) or settings.network.module:
        return build(settings, **how)
    key = settings.model_dump_json(exclude={"num_steps", "record_every", "recording"})
    if key not in _built:
        _built[key] = build(settings, **how)
    return replace(_built[key], settings=settings)


@pytest.fixture(autouse=True)
def _share_programs(monkeypatch):
    monkeypatch.setattr(session, "build", build_once)


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """The small run, uninterrupted. Copy it before changing it."""
    path = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "build", build_once)
        outcome = session.start(small_settings(), path, progress=False)
    assert outcome.step == outcome.num_steps == 400
    return path
