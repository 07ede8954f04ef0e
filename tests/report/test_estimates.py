"""Averages with errors, and what may be compared with the published ones."""

from __future__ import annotations

import numpy as np
import pytest
from pseudolangevin.estimates import average_by_temperature, kept
from pseudolangevin.report.facts import stopped_chains
from pseudolangevin.types import Status
from synthetic import make_trace, stop_chain

from pseudolangevin.diagnostics.averages import discard
from pseudolangevin.published import published_averages


def test_kept_records() -> None:
    assert kept(make_trace(draws=80), 0.5).sizes["draw"] == 40
    assert kept(make_trace(draws=81), 0.5).sizes["draw"] == 41 == discard(np.zeros(81), 0.5).size  # the certificate's
    assert kept(make_trace(draws=1), 0.5).sizes["draw"] == 1
    assert kept(make_trace(draws=3), 1.0).sizes["draw"] == 1
    with pytest.raises(ValueError, match=r"discard = 2 is outside"):
        kept(make_trace(), 2)


def test_stopped_chains_do_not_count() -> None:
    trace = stop_chain(make_trace(draws=40), 0, 0, 39)
    averages = average_by_temperature(trace["loss"], trace)
    assert averages[0].mean == pytest.approx(float(trace["loss"].values[0, 1].mean()))
    assert averages[1].mean == pytest.approx(float(trace["loss"].values[1].mean()))


def test_chains_that_ended_as_asked_count() -> None:
    trace = make_trace(draws=40)
    trace["status"][0, 0, 30:] = int(Status.EARLY_STOPPED)
    averages = average_by_temperature(trace["loss"], trace)
    assert averages[0].mean == pytest.approx(float(trace["loss"].values[0].mean()))
    assert stopped_chains(trace) == []


def test_published_values_are_for_the_published_system() -> None:
    both = published_averages(11_160, {"weight_decay": 10.0611, "num_train": 55_800, "temperature_ratio": 0.1})
    assert [series.label for series in both] == ["published hMC", "published pL"]
    assert both[1].at(3e-5, "loss") == 0.324912
    assert both[1].at(2e-5, "loss") is None
    assert both[1].deviations["loss"][-1] == 0.001165
    assert published_averages(11_161, {}) == []
    assert published_averages(None, {}) == []
    assert published_averages(11_160, {"weight_decay": 1.0}) == []
    assert published_averages(11_160, {"weight_decay": {"*": 10.0611}}) == []
    large = published_averages(1_006_110, {})
    assert large[0].at(1e-6, "test_error") == 0.113465
    assert large[0].at(1e-6, "error") == 0.112455
