"""Rows, published numbers, and files of a reproduction."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pseudolangevin.diagnostics.averages import Average
from pseudolangevin.paper.results import (
    Reproduction,
    published_average,
    rise,
    row,
)

RESULTS = [p for p in sorted(Path(__file__).parents[2].glob("paper/results/*.json")) if "certificate" not in p.name]


@pytest.mark.parametrize(
    ("passes", "measured", "options"),
    [
        (True, 1.02, {"published": 1.0, "tolerance": 0.03, "relative": True}),
        (False, 1.04, {"published": 1.0, "tolerance": 0.03, "relative": True}),
        (True, 5.0, {"published": math.nan, "tolerance": 0.03, "relative": True}),  # nothing to compare with
        (True, 0.01, {"tolerance": 0.02}),
        (False, -0.03, {"tolerance": 0.02}),
        (False, 0.94, {"published": 0.96, "tolerance": 0.015}),
        (True, 1.05, {"published": 1.0, "scaled": 1.04, "tolerance": 0.02, "relative": True}),
        (True, Average(1.4, 0.1, 5), {"at_least": 1.4}),
        (False, 1.3, {"at_least": 1.4}),
        (False, math.nan, {"tolerance": 1.0}),
        (False, math.inf, {"at_least": 0.0}),
    ],
)
def test_a_row_passes_within_its_tolerance(passes, measured, options):
    found = row("x", measured, reason="It is too short.", **options)
    assert found.passed == passes
    assert (found.reason is None) == passes


def test_a_row_has_its_tolerance_and_limit():
    found = row("x", 210.0, published=200.0, scaled=208.0, tolerance=0.05, relative=True)
    assert (found.published, found.published_scaled, found.tolerance) == (200.0, 208.0, pytest.approx(10.4))
    assert row("gain", 1.3, at_least=1.4).quantity == "gain (at least 1.4)"


def test_published_numbers_are_those_of_the_paper():
    assert published_average(11_160, "hMC", 3e-5, "loss") == 0.324192
    assert published_average(101_610, "pL", 5e-8, "test_error", ["fashion"]) == 0.1926
    for unknown in ((11_160, "pL", 2e-6), (11_161, "pL", 1e-6), (1_006_110, "hMC", 3e-7)):
        assert math.isnan(published_average(*unknown, "loss"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_every_committed_row_that_fails_has_a_reason(path):
    for line in json.loads(path.read_text())["rows"]:
        assert line["passed"] or line["reason"].endswith("."), line["quantity"]


def test_a_rise_is_that_of_block_means():
    assert rise(np.concatenate([np.linspace(1, 0, 50), np.linspace(0, 0.5, 50)])) == pytest.approx(0.4, abs=0.02)
    assert rise(np.linspace(1, 0, 50)) == 0
    dip = np.full(100, 0.1)
    dip[20] = 0.0
    assert rise(dip) == pytest.approx(0.01)


def test_files_hold_rows_parts_and_provenance(tmp_path):
    settings = {"seed": 3, "sizes": (1, np.float32(2.5)), "unknown": math.inf}

    def rows(found, _):
        return [row("a", found["part"]["average"]), row("b", math.nan)]

    figure = SimpleNamespace(SETTINGS={"smoke": settings}, rows=rows)
    made = Reproduction("name", "smoke", figure, tmp_path)
    average = {"mean": 1.0, "standard_error": 2.0, "effective_samples": 3}
    value = {"average": average, "array": np.arange(2), "unknown": math.nan, "third": 1 / 3}
    made.measure("part", 1.0, lambda: value)
    expected = {"average": average, "array": [0, 1], "unknown": None, "third": 0.3333333}
    content = json.loads((tmp_path / "name.json").read_text())
    assert content["parts"]["part"]["value"] == expected
    assert (content["rows"][1]["measured"], content["rows"][1]["passed"]) == (None, False)
    assert content["provenance"]["settings"] == {"seed": 3, "sizes": [1, 2.5], "unknown": None}
    assert "FAILS  b" in str(made)
    again = Reproduction("name", "smoke", figure, tmp_path)
    again.measure("part", 1.0, lambda: pytest.fail("it is in the file"))
    found = again.found["part"]
    assert found["average"] == Average(1.0, 2.0, 3)
    assert math.isnan(found["unknown"])
    np.testing.assert_array_equal(found["array"], [0, 1])
