"""Rows, published numbers, and files of a reproduction."""

import json
import math

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from pseudolangevin.diagnostics.averages import Average
from pseudolangevin.paper.results import (
    Point,
    Reproduction,
    adam_rows,
    alive,
    published_averages,
    published_numbers,
    published_value,
    rise,
    row,
)


def test_a_row_passes_within_its_tolerance():
    assert row("x", 1.02, published=1.0, tolerance=0.03, relative=True).passed
    assert not row("x", 1.04, published=1.0, tolerance=0.03, relative=True).passed
    assert row("x", 210.0, published=200.0, tolerance=0.05, relative=True).tolerance == pytest.approx(10.0)
    assert row("x", 0.01, tolerance=0.02).passed
    assert not row("x", -0.03, tolerance=0.02).passed
    assert row("x", 0.94, published=0.96, tolerance=0.015, target=0.945).passed


def test_a_row_without_a_published_value_is_not_judged_by_a_relative_tolerance():
    found = row("x", 5.0, published=math.nan, tolerance=0.03, relative=True)
    assert found.passed
    assert found.published is None
    assert found.tolerance is None


def test_a_row_that_must_reach_a_value_names_it():
    assert row("gain", Average(1.4, 0.1, 5), at_least=1.4).passed
    assert not row("gain", 1.3, at_least=1.4).passed
    assert row("gain", 1.3, at_least=1.4).quantity == "gain (at least 1.4)"


def test_a_value_that_is_not_a_number_never_passes():
    assert not row("x", math.nan).passed
    assert not row("x", math.nan, tolerance=1.0).passed
    assert not row("x", math.inf, at_least=0.0).passed


def test_published_numbers_are_those_of_the_paper():
    assert published_value("thermodynamics", 11_160, "hMC", 3e-5, "loss") == 0.324192
    assert published_value("thermodynamics", 11_160, "pL", 1e-6, "squared_norm") == 247.560
    assert published_value("thermodynamics", 11_160, "pL", 2e-6, "loss") is None
    assert published_value("thermodynamics", 11_161, "pL", 1e-6, "loss") is None
    assert published_value("generalization", 1_006_110, "hMC", 3e-7, "loss") is None
    assert published_value("generalization", 1_006_110, "pL", 3e-7, "error") == 0.110391
    assert published_value("generalization", 1_006_110, "pL", 3e-7, "gradient_variance") == 2.10e-10
    assert published_value("fashion", 101_610, "pL", 5e-8, "test_error") == 0.1926
    assert published_numbers()["noise"]["draws"] == 250


def test_published_averages_are_those_of_the_same_system():
    hybrid, langevin = published_averages(11_160, {"weight_decay": 10.0611, "num_train": 55_800})
    assert (hybrid.label, langevin.label) == ("published hMC", "published pL")
    assert hybrid.temperatures == [1e-6, 3e-6, 1e-5, 3e-5]
    assert langevin.deviations["loss"][0] == 0.000262
    assert langevin.at(3e-5, "error") == 0.109869
    assert langevin.at(2e-5, "error") is None
    assert langevin.at(3e-5, "margin") is None
    assert [a.label for a in published_averages(1_006_110, {})] == ["published pL"]


@pytest.mark.parametrize(
    "settings",
    [{"weight_decay": 10.0}, {"weight_decay": {"*": 10.0611}}, {"num_train": 1_000}, {"flip_probability": 0.3}],
)
def test_published_averages_of_another_system_are_left_out(settings):
    assert published_averages(11_160, settings) == []
    assert published_averages(None, {}) == []


def averages(loss, error=0.01):
    return {name: Average(loss, error, 10) for name in ("loss", "squared_norm", "error")}


def test_samplers_are_compared_with_the_published_values_and_with_the_first():
    point = Point(11_160, 3e-5, {"hMC": averages(0.324192, 0.003), "pL": averages(0.34)})
    rows = {r.quantity: r for r in point.rows("T = 3e-05", 0.03, 0.02)}
    assert len(rows) == 9
    assert rows["loss at T = 3e-05, hMC"].passed
    assert not rows["loss at T = 3e-05, pL"].passed
    difference = rows["loss at T = 3e-05, pL over hMC, minus one"]
    assert difference.measured == pytest.approx(0.34 / 0.324192 - 1)
    assert difference.published == pytest.approx(0.324912 / 0.324192 - 1)
    assert difference.standard_error == pytest.approx(math.hypot(0.01 / 0.34, 0.003 / 0.324192))
    assert not difference.passed


def test_a_rise_is_that_of_block_means():
    assert rise(np.concatenate([np.linspace(1, 0, 50), np.linspace(0, 0.5, 50)])) == pytest.approx(0.4, abs=0.02)
    assert rise(np.linspace(1, 0, 50)) == 0
    dip = np.full(100, 0.1)
    dip[20] = 0.0
    assert rise(dip) == pytest.approx(0.01)


def trace(test_errors, dead, best_step):
    errors = np.array(test_errors)
    classes = np.zeros((*errors.shape, 2), bool)
    classes[np.array(dead), -1, 1] = True
    data = {"test_error": (("chain", "draw"), errors), "dead_class": (("chain", "draw", "class"), classes)}
    data["best_step"] = (("chain", "draw"), np.repeat(np.array(best_step)[:, None], errors.shape[1], axis=1))
    return xr.Dataset(data, coords={"step": ("draw", 100 * np.arange(1, errors.shape[1] + 1))})


def test_early_stopping_of_adam_leaves_out_starts_with_a_dead_class():
    found = trace(
        [[0.2, 0.19, 0.21], [0.4, 0.4, 0.4], [0.21, 0.2, 0.21]], dead=[False, True, False], best_step=[200] * 3
    )
    assert alive(found).sizes["chain"] == 2
    best, rows = adam_rows(found, {"adam_best_test_error": 0.1958}, 0.006, 0.003)
    assert best.mean == pytest.approx(0.195)
    assert [r.passed for r in rows] == [True, True, True]
    assert rows[2].measured == pytest.approx(0.015)
    best, rows = adam_rows(trace([[0.2, 0.2, 0.2]], [True], [0]), {}, 0.006, 0.003)
    assert math.isnan(best.mean)  # the start itself was the best, and has no record
    assert [r.passed for r in rows] == [False, True, False]


def test_files_hold_rows_and_provenance(tmp_path):
    rows = [row("a", 1.0), row("b", math.nan, published=2.0)]
    record = {"settings": (1, np.float32(2.5)), "unknown": math.inf, "array": np.arange(2), "average": Average(1, 2, 3)}
    made = Reproduction("name", "smoke", rows, Figure(), record, seed=3, seconds=1.26)
    made.write(tmp_path)
    content = json.loads((tmp_path / "name.json").read_text())
    assert list(content) == ["name", "scale", "rows", "provenance"]
    assert list(content["rows"][1]) == ["quantity", "published", "measured", "standard_error", "tolerance", "passed"]
    assert content["rows"][1]["measured"] is None
    assert content["rows"][1]["passed"] is False
    assert list(content["provenance"]) == ["device", "versions", "seed", "settings", "seconds"]
    assert content["provenance"]["settings"]["settings"] == [1, 2.5]
    assert content["provenance"]["settings"]["unknown"] is None
    assert content["provenance"]["settings"]["average"]["effective_samples"] == 3
    assert (tmp_path / "name.png").stat().st_size > 0
    assert not made.passed
    assert "FAILS  b" in str(made)
