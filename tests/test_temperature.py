"""The judgement of curves, the legs of a scan, and the whole search on a small network."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

import pseudolangevin as pl
from pseudolangevin import cli, temperature_scan
from pseudolangevin.predictions import ClassPredictions
from pseudolangevin.temperature_figure import temperature_figure
from pseudolangevin.temperature_judgement import judge
from pseudolangevin.temperature_scan import Leg, handed_on, hidden_variance

from .store.small_runs import SMALL_RUN
from .test_cli import assert_one_clear_line


def curve(temperatures, variances, losses, *, up=None, num_weights=1e6, dead=()):
    temperatures, losses = np.asarray(temperatures), np.asarray(losses)
    both = np.stack([losses, losses if up is None else np.asarray(up)])
    healthy = np.array([index not in dead for index in range(len(temperatures))])
    dimensions = ("direction", "temperature")
    return xr.Dataset(
        {
            "loss": (dimensions, both),
            "gradient_variance": (dimensions, np.stack([variances, variances])),
            "heat_capacity": (dimensions, np.gradient(both, temperatures, axis=1) / num_weights),
            "healthy": (dimensions, np.stack([healthy, healthy])),
            "dead_class": (dimensions, ~np.stack([healthy, healthy])),
        },
        {"direction": ["down", "up"], "temperature": temperatures},
    )


PUBLISHED = (
    [1e-7, 2e-7, 3e-7, 1e-6, 1e-4],
    [4.9e-8, 4.2e-10, 2.1e-10, 7.1e-11, 4e-8],
    [0.043, 0.322, 0.325, 0.331, 0.475],
)
"""Equilibrium averages of the paper's largest network: test errors are within 0.0006 of the best from 2e-7 to 1e-6."""


def test_the_published_curve_gives_a_temperature_that_generalises():
    verdict = judge(curve(*PUBLISHED), start_loss=2.3, coldest=0.0, tolerance=1.25)
    assert verdict.conclusive
    assert 2e-7 <= verdict.low <= 1e-6 <= verdict.high < 1e-4


def test_the_range_stays_above_a_jump_of_the_loss():
    temperatures = np.geomspace(1e-7, 1e-5, 9)
    losses = np.where(temperatures < 6e-7, 0.05, 0.33)
    flat = np.full(9, 1e-10)
    flat[[0, -1]] = 1e-8
    jumping = judge(curve(temperatures, flat, losses, num_weights=1e5), 2.3, 0.0, 1.25)
    smooth = judge(curve(temperatures, flat, np.full(9, 0.33), num_weights=1e5), 2.3, 0.0, 1.25)
    assert smooth.transition is None
    assert jumping.transition is not None
    assert smooth.low < 4e-7 < jumping.low == jumping.transition < 1.2e-6


def test_chains_that_did_not_learn_froze_or_lost_a_class_do_not_count():
    temperatures = np.geomspace(1e-6, 1e-3, 7)
    variances = np.array([9.0, 3.0, 1.5, 1.0, 1.5, 3.0, 9.0])
    losses = np.full(7, 0.3)
    plain = judge(curve(temperatures, variances, losses), 2.3, 0.0, 1.25)
    assert plain.low < temperatures[3] < plain.high
    quiet = np.where(np.arange(7) == 6, 0.01, variances)
    unlearned = judge(curve(temperatures, quiet, np.where(np.arange(7) == 6, 2.3, losses)), 2.3, 0.0, 1.25)
    assert unlearned.high < temperatures[5]
    frozen = judge(curve(temperatures, np.where(np.arange(7) == 0, 0.01, variances), losses), 2.3, 2e-6, 1.25)
    assert frozen.low > temperatures[1]
    lost = judge(curve(temperatures, np.where(np.arange(7) == 2, 0.01, variances), losses, dead=[2]), 2.3, 0.0, 1.25)
    assert lost.low > temperatures[2]
    assert any("lost a class" in note for note in lost.notes)


def test_a_minimum_at_the_end_is_inconclusive_and_says_so():
    temperatures = np.geomspace(1e-6, 1e-3, 7)
    verdict = judge(curve(temperatures, np.geomspace(1, 100, 7), np.full(7, 0.3)), 2.3, 0.0, 1.25)
    assert not verdict.conclusive
    assert "raise epochs" in verdict.notes[0]
    nothing = judge(curve(temperatures, np.ones(7), np.full(7, np.nan)), 2.3, 0.0, 1.25)
    assert not nothing.conclusive
    assert "no chain can be judged" in nothing.notes[0]


def test_hysteresis_is_the_gap_within_the_range():
    temperatures = np.geomspace(1e-6, 1e-3, 7)
    variances = [9.0, 3.0, 1.0, 1.0, 1.0, 3.0, 9.0]
    up = np.array([0.9, 0.3, 0.3, 0.33, 0.3, 0.3, 0.9])
    assert judge(curve(temperatures, variances, np.full(7, 0.3), up=up), 2.3, 0.0, 1.25).hysteresis == pytest.approx(
        0.1
    )


def test_neighbours_hand_on_their_weights_past_those_that_failed():
    healthy = xr.Dataset({"healthy": ("temperature", np.array([True, False, True, True]))})
    leg = Leg("quench", np.array([1.0, 2.0, 4.0, 8.0]), healthy, np.arange(4.0), 0)
    np.testing.assert_array_equal(handed_on(leg, [1.0, 2.0, 4.0, 8.0], "down"), [2, 2, 3, 3])
    np.testing.assert_array_equal(handed_on(leg, [1.0, 2.0, 4.0, 8.0], "up"), [0, 0, 0, 2])
    np.testing.assert_array_equal(handed_on(leg, [3.0, 5.0], "down"), [2, 3])


def test_the_order_parameter_is_the_mean_over_hidden_weights():
    weights = {"layer1": np.zeros((2, 3)), "layer2": np.zeros(2), "layer3": np.zeros(5)}
    values = np.array([[1.0, 5.0, 100.0]])
    np.testing.assert_allclose(hidden_variance(values, weights, None), [(6 * 1 + 2 * 5) / 8])
    np.testing.assert_allclose(hidden_variance(values, weights, ["layer3"]), [100])
    with pytest.raises(ValueError, match="layer9"):
        hidden_variance(values, weights, ["layer9"])


EPOCHS = 150.0


@pytest.fixture(scope="module")
def found(small_task):
    return pl.find_temperature(
        small_task.potential, small_task.train, small_task.weights, epochs=EPOCHS, num_temperatures=5
    )


def test_the_search_keeps_its_budget_and_shows_its_reasons(found, small_task):
    assert found.bayesian_temperature == pytest.approx(1e-3)
    assert 0.6 * EPOCHS < found.epochs <= EPOCHS
    seen = found.conclusive or found.bayesian_temperature > found.high
    assert found.temperature == (found.low if seen else found.bayesian_temperature)
    assert found.curve.sizes == {"direction": 2, "temperature": 10}
    judged = np.isfinite(found.curve["order_parameter"].values)
    assert judged.any()
    assert (np.diff(found.curve["temperature"]) > 0).all()
    learned = small_task.potential.loss(found.weights, small_task.train.batch)
    assert learned < 0.6 * small_task.potential.loss(small_task.weights, small_task.train.batch)
    assert "recommended T" in str(found)
    assert len(str(found).splitlines()) >= 13
    stored = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert stored["temperature"] == found.temperature
    assert len(stored["curve"]["loss"]["up"]) == 10


def test_the_cost_counts_every_batch(found, small_task):
    """Six legs of five chains, each with its steps, six measurements of 𝒱 with their momenta, and four records."""
    plan = temperature_scan.plan_legs(
        small_task.potential, small_task.train, examples=EPOCHS * 1_000 / 30, batch_size=None, temperature_ratio=0.1
    )
    batches = plan.num_steps + 6 * (temperature_scan.VARIANCE_BATCHES + 1)
    assert plan.num_steps >= 32
    assert found.cost == 30 * (16 * batches + 4 * 500) + 500


def test_the_figure(found, tmp_path):
    figure = temperature_figure(found)
    assert len(figure.axes) == 3
    figure.savefig(tmp_path / "scan.png")
    assert (tmp_path / "scan.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperatures": [1e-3, 2e-3]}, "at least 3"),
        ({"num_temperatures": 2}, "num_temperatures = 2"),
        ({"epochs": 0}, "epochs = 0"),
        ({"tolerance": 1.0}, "tolerance"),
        ({"hidden_layers": ["layer7"]}, "layer7"),
    ],
)
def test_bad_arguments(small_task, arguments, message):
    with pytest.raises(ValueError, match=message):
        pl.find_temperature(small_task.potential, small_task.train, small_task.weights, **arguments)


def test_a_classifier_is_fitted_by_sampling(small_task, found, monkeypatch):
    monkeypatch.setattr("pseudolangevin.fitting.find_temperature", lambda *_, **__: found)
    fitted = pl.fit(
        small_task.potential,
        small_task.train,
        small_task.weights,
        num_steps=600,
        samples_per_chain=5,
        temperature_ratio=0.1,
        batch_size=50,
        num_chains=2,
        test=small_task.test,
        progress=False,
    )
    assert fitted.search is not None
    assert fitted.temperature == found.temperature
    assert fitted.cost == found.cost + 2 * int(fitted.history.step[-1]) * 50
    assert fitted.history.step[-1] == pytest.approx(600, rel=0.05)
    assert fitted.num_members == 10
    assert fitted.history.sizes["draw"] == 10
    ensemble = fitted.predict(small_task.test.inputs)
    one = fitted.predict_one(small_task.test.inputs)
    assert isinstance(ensemble, ClassPredictions)
    assert isinstance(one, ClassPredictions)
    last = fitted.history.test_error.values[0, 0, -1]
    assert one.error(small_task.test.targets) == pytest.approx(last, abs=1e-6)
    np.testing.assert_allclose(ensemble.member(4).probabilities, one.probabilities, rtol=1e-4)
    assert ensemble.error(small_task.test.targets) < 0.25
    assert ensemble.negative_log_likelihood(small_task.test.targets) <= np.mean(
        [ensemble.member(k).negative_log_likelihood(small_task.test.targets) for k in range(10)]
    )


def test_the_command(tmp_path, capsys, monkeypatch, found):
    def search(potential, dataset, weights, *, epochs, key):
        potential.check(weights, dataset)
        assert epochs == 30
        assert key == 3
        return found

    (tmp_path / "run.toml").write_text(SMALL_RUN)
    command = ["temperature", str(tmp_path / "run.toml")]
    assert cli.run([*command, "--epochs", "-1"]) == 2
    assert "epochs" in assert_one_clear_line(capsys)
    assert cli.run([*command, "--figure", "picture.doc"]) == 2
    assert_one_clear_line(capsys)
    assert cli.run(["temperature", str(tmp_path / "none.toml")]) == 2
    assert_one_clear_line(capsys)
    monkeypatch.setattr("pseudolangevin.temperature.find_temperature", search)
    picture = tmp_path / "scan.png"
    command += ["--epochs", "30", "--set", "seed=3"]
    assert cli.run([*command, "--json", "--figure", str(picture)]) == (0 if found.conclusive else 1)
    assert json.loads(capsys.readouterr().out)["temperature"] == found.temperature
    assert picture.exists()
    monkeypatch.setattr(
        "pseudolangevin.temperature.find_temperature", lambda *_, **__: replace(found, conclusive=False)
    )
    assert cli.run(command) == 1
    assert "inconclusive" in capsys.readouterr().out
