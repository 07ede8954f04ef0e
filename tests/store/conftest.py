"""One compiled program for all tests of the store, and one finished run to copy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pseudolangevin import runs
from pseudolangevin.config import Settings
from pseudolangevin.config.build import Experiment, build

from .small_runs import small_settings

_built: dict[str, Experiment] = {}


def build_once(settings: Settings, **how: bool) -> Experiment:
    """`build`, but equal settings share their compiled programs."""
    key = settings.model_dump_json(exclude={"num_steps", "recording"})
    if key not in _built:
        _built[key] = build(settings, **how)
    known = _built[key]
    return Experiment(settings, known.network, replace(known.plan, num_steps=settings.num_steps))


@pytest.fixture(autouse=True)
def _share_programs(monkeypatch):
    monkeypatch.setattr(runs, "build", build_once)


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """The small run, uninterrupted. Copy it before changing it."""
    path = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "build", build_once)
        outcome = runs.start(small_settings(), path, progress=False)
    assert outcome.step == outcome.num_steps == 400
    return path
