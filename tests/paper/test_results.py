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
    adam_rows,
    difference,
    known_average,
    published_averages,
    published_numbers,
    published_value,
    rise,
    row,
)

RESULTS = [p for p in sorted(Path(__file__).parents[2].glob("paper/results/*.json")) if "certificate" not in p.name]


def test_a_row_passes_within_its_tolerance():
    assert row("x", 1.02, published=1.0, tolerance=0.03, relative=True).passed
    assert not row("x", 1.04, published=1.0, tolerance=0.03, relative=True).passed
    assert row("x", 210.0, published=200.0, tolerance=0.05, relative=True).tolerance == pytest.approx(10.0)
    assert row("x", 0.01, tolerance=0.02).passed
    assert not row("x", -0.03, tolerance=0.02).passed
    assert not row("x", 0.94, published=0.96, tolerance=0.015).passed


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


def test_a_scaled_value_is_the_one_that_is_judged_by():
    found = row("x", 1.05, published=1.0, scaled=1.04, tolerance=0.02, relative=True)
    assert found.passed
    assert (found.published, found.published_scaled) == (1.0, 1.04)
    assert found.tolerance == pytest.approx(0.0208)
    assert not row("x", 0.9, published=1.0, tolerance=0.02).passed


def test_only_a_row_that_fails_has_a_reason():
    assert row("x", 2.0, tolerance=1.0, reason="too short").reason == "too short"
    assert row("x", 0.5, tolerance=1.0, reason="too short").reason is None
    assert "There is no value" in str(row("x", math.nan, reason="too short").reason)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_every_committed_row_that_fails_has_a_reason(path):
    for line in json.loads(path.read_text())["rows"]:
        assert line["passed"] or line["reason"].endswith("."), line["quantity"]


def test_differences_of_samplers_are_relative():
    found = difference("loss, pL over hMC", Average(0.34, 0.01, 9), Average(0.324192, 0.003, 9), 0.02)
    assert found.quantity == "loss, pL over hMC, minus one"
    assert found.measured == pytest.approx(0.34 / 0.324192 - 1)
    assert found.standard_error == pytest.approx(math.hypot(0.01 / 0.34, 0.003 / 0.324192))
    assert not found.passed


def test_the_published_potential_is_the_loss_plus_the_regulariser():
    assert known_average(11_160, "hMC", 3e-6, "potential") == pytest.approx(0.2775, abs=1e-4)
    assert math.isnan(known_average(11_160, "hMC", 2e-6, "potential"))


def test_a_rise_is_that_of_block_means():
    assert rise(np.concatenate([np.linspace(1, 0, 50), np.linspace(0, 0.5, 50)])) == pytest.approx(0.4, abs=0.02)
    assert rise(np.linspace(1, 0, 50)) == 0
    dip = np.full(100, 0.1)
    dip[20] = 0.0
    assert rise(dip) == pytest.approx(0.01)


def training(test_errors, dead, best_step):
    steps = [100 * (i + 1) for i in range(len(test_errors[0]))]
    return {"test_error": [test_errors], "dead": [dead], "best_step": [best_step], "step": steps}


def test_early_stopping_of_adam_leaves_out_starts_with_a_dead_class():
    found = training([[0.2, 0.19, 0.21], [0.4, 0.4, 0.4], [0.21, 0.2, 0.21]], [False, True, False], [200] * 3)
    best, rows = adam_rows(found, {"adam_best_test_error": 0.1958}, 0.006, 0.003)
    assert best.mean == pytest.approx(0.195)
    assert [r.passed for r in rows] == [True, True, True]
    assert rows[2].measured == pytest.approx(0.015)
    best, rows = adam_rows(training([[0.2, 0.2, 0.2]], [True], [0]), {}, 0.006, 0.003)
    assert math.isnan(best.mean)  # the start itself was the best, and has no record
    assert [r.passed for r in rows] == [False, True, False]


def test_files_hold_rows_parts_and_provenance(tmp_path):
    settings = {"seed": 3, "sizes": (1, np.float32(2.5)), "unknown": math.inf}

    def rows(found, _):
        return [row("a", found["part"]["average"]["mean"]), row("b", math.nan)]

    figure = SimpleNamespace(SETTINGS={"smoke": settings}, rows=rows)
    made = Reproduction("name", "smoke", figure, tmp_path)
    value = {"average": Average(1.0, 2.0, 3), "array": np.arange(2), "unknown": math.nan, "third": 1 / 3}
    expected = {"average": {"mean": 1.0, "standard_error": 2.0, "effective_samples": 3}, "array": [0, 1]}
    assert made.measure("part", 1.0, lambda: value) == {**expected, "unknown": None, "third": 0.3333333}
    content = json.loads((tmp_path / "name.json").read_text())
    names = ["quantity", "published", "published_scaled", "measured", "standard_error", "tolerance", "passed", "reason"]
    assert list(content["rows"][1]) == names
    assert content["rows"][1]["measured"] is None
    assert content["rows"][1]["passed"] is False
    assert list(content["provenance"]) == ["device", "versions", "seed", "settings", "seconds", "parts_left"]
    assert content["provenance"]["settings"] == {"seed": 3, "sizes": [1, 2.5], "unknown": None}
    assert not all(r.passed for r in made.rows)
    assert "FAILS  b" in str(made)
    again = Reproduction("name", "smoke", figure, tmp_path)
    assert again.measure("part", 1.0, lambda: pytest.fail("it is in the file")) == made.found["part"]
