"""The judgement of curves, the legs of a scan, and the whole search on a small network."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
import xarray as xr

import pseudolangevin as pl
from pseudolangevin import cli
from pseudolangevin.predictions import ClassPredictions
from pseudolangevin.temperature_figure import temperature_figure
from pseudolangevin.temperature_judgement import judge
from pseudolangevin.temperature_scan import hidden_variance, make_ladder, prior_temperature, walk

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


TOLERANCE = 4.0


def test_the_published_curve_gives_a_temperature_that_generalises():
    verdict = judge(curve(*PUBLISHED), start_loss=2.3, coldest=0.0, tolerance=TOLERANCE)
    assert (verdict.conclusive, verdict.cold_end) == (True, "overfitting")
    assert 2e-7 <= verdict.low <= 1e-6
    assert verdict.high <= 3e-6


def test_the_range_stays_above_a_jump_of_the_loss():
    temperatures = np.geomspace(1e-7, 1e-5, 9)
    losses = np.where(temperatures < 6e-7, 0.05, 0.33)
    flat = np.full(9, 1e-10)
    jumping = judge(curve(temperatures, flat, losses, num_weights=1e5), 2.3, 0.0, TOLERANCE)
    smooth = judge(curve(temperatures, flat, np.full(9, 0.33), num_weights=1e5), 2.3, 0.0, TOLERANCE)
    assert smooth.transition is None
    assert smooth.low == temperatures[0]
    assert smooth.notes[0].startswith("no overfitting")
    assert jumping.low == jumping.transition
    assert 4e-7 < jumping.low < 1.2e-6


def test_the_range_ends_where_thermal_noise_raises_the_loss():
    temperatures = np.geomspace(1e-6, 1e-3, 7)
    rising = curve(temperatures, np.ones(7), 0.3 + 60 * temperatures)
    verdict = judge(rising, 2.3, 0.0, TOLERANCE)
    assert (verdict.conclusive, verdict.cold_end) == (False, "budget")
    assert "raise epochs" in verdict.notes[0]
    at_the_floor = judge(rising, 2.3, 0.95 * temperatures[0], TOLERANCE)
    assert (at_the_floor.conclusive, at_the_floor.cold_end) == (True, "prior")
    assert "raise epochs" not in at_the_floor.notes[0]
    assert verdict.low == temperatures[0]
    assert 2e-5 < verdict.high < 8e-5  # the loss is higher by a hundredth at 5e-5
    flat = judge(curve(temperatures, np.ones(7), np.full(7, 0.3)), 2.3, 0.0, TOLERANCE)
    assert not flat.conclusive
    assert "scan hotter ones" in flat.notes[-1]


def test_chains_that_did_not_learn_lost_a_class_or_are_too_cold_do_not_count():
    temperatures = np.geomspace(1e-6, 1e-3, 7)
    variances = np.array([90.0, 30.0, 2.0, 1.0, 2.0, 30.0, 90.0])
    losses = np.full(7, 0.3)
    plain = judge(curve(temperatures, variances, losses), 2.3, 0.0, TOLERANCE)
    assert temperatures[1] < plain.low < temperatures[3] < plain.high < temperatures[5]
    quiet = np.where(np.arange(7) == 6, 0.01, variances)
    unlearned = judge(curve(temperatures, quiet, np.where(np.arange(7) == 6, 2.3, losses)), 2.3, 0.0, TOLERANCE)
    assert unlearned.high < temperatures[5]
    cold = judge(curve(temperatures, np.where(np.arange(7) == 0, 0.01, variances), losses), 2.3, 2e-6, TOLERANCE)
    assert cold.low > temperatures[1]
    lost = judge(
        curve(temperatures, np.where(np.arange(7) == 1, 0.01, variances), losses, dead=[1]), 2.3, 0.0, TOLERANCE
    )
    assert lost.low > temperatures[1]
    assert any("a class was lost" in note for note in lost.notes)
    nothing = judge(curve(temperatures, np.ones(7), np.full(7, np.nan)), 2.3, 0.0, TOLERANCE)
    assert not nothing.conclusive
    assert "nothing can be judged" in nothing.notes[0]


def test_hysteresis_is_the_gap_within_the_range():
    temperatures = np.geomspace(1e-6, 1e-3, 7)
    variances = [900.0, 300.0, 1.0, 1.0, 1.0, 300.0, 900.0]
    up = np.array([0.9, 0.3, 0.3, 0.303, 0.3, 0.3, 0.9])
    verdict = judge(curve(temperatures, variances, np.full(7, 0.3), up=up), 2.3, 0.0, TOLERANCE)
    assert verdict.hysteresis == pytest.approx(0.01)


def test_a_rung_lasts_in_proportion_to_its_relaxation_time(small_task):
    ladder = make_ladder(
        small_task.potential,
        small_task.train,
        np.geomspace(1e-3, 8e-3, 4),
        relaxations=1024 / 156.25,
        batch_size=None,
        temperature_ratio=0.1,
    )
    assert ladder.stretches == (16, 8, 4, 2)
    assert [rung for _, rung in ladder.walk] == [0, 1, 2, 3, 2, 1, 0]
    # On the hottest rung half of 6.55/(4·8e-3·0.1) = 2048 examples, in two stretches of 32 steps.
    assert ladder.sampler.settings["batch_size"] == 16
    assert ladder.cost_of(3) == 2 * (33 * 16 + 256) + 2 * 500


def test_a_chain_that_fails_goes_on_from_where_it_came(small_task):
    """At T = 1e5 no chain stays finite: neither its numbers nor its weights may reach the other rungs."""
    ladder = make_ladder(
        small_task.potential,
        small_task.train,
        [1e-3, 2e-3, 1e5],
        relaxations=1e-6,
        batch_size=16,
        temperature_ratio=0.1,
    )
    starts = jax.tree.map(lambda w: np.stack([w, w]), small_task.weights)
    stays = list(walk(ladder, starts, jax.random.key(0), False))
    assert [bool(stay.averages["healthy"]) for stay in stays] == [True, True, False, True, True]
    for before, after in zip(*(jax.tree.leaves(stay.weights) for stay in stays[1:3]), strict=True):
        np.testing.assert_array_equal(before, after)


def test_variances_of_ladders_with_other_batches_compare(small_task):
    """𝒱 goes as 1/S: between 16 and 64 examples it would differ by four."""
    starts = jax.tree.map(lambda w: w[None], small_task.weights)
    found = []
    for batch_size in (16, 64):
        ladder = make_ladder(
            small_task.potential,
            small_task.train,
            [1e-3, 1.1e-3, 1.2e-3],
            relaxations=1e-6,
            batch_size=batch_size,
            temperature_ratio=1e-6,
        )
        assert ladder.variance_scale == batch_size / 10
        stay = next(walk(ladder, starts, jax.random.key(0), False))
        found.append(hidden_variance(stay.averages["gradient_variance"].values, small_task.weights, None))
    assert 0.6 < found[0] / found[1] < 1.6


def test_the_temperature_of_a_prior_as_long_as_the_weights(small_task):
    """Weights of the size √(T·N/λ) give T back."""
    stiffness = 5.0 / 364
    long = jax.tree.map(lambda w: np.full(w.shape, np.sqrt(1e-3 / stiffness)), small_task.weights)
    assert prior_temperature(small_task.potential, long) == pytest.approx(1e-3, rel=1e-5)


def test_the_order_parameter_is_the_mean_over_hidden_weights():
    weights = {"layer1": np.zeros((2, 3)), "layer2": np.zeros(2), "layer3": np.zeros(5)}
    values = np.array([[1.0, 5.0, 100.0]])
    np.testing.assert_allclose(hidden_variance(values, weights, None), [(6 * 1 + 2 * 5) / 8])
    np.testing.assert_allclose(hidden_variance(values, weights, ["layer3"]), [100])
    with pytest.raises(ValueError, match="layer9"):
        hidden_variance(values, weights, ["layer9"])


EPOCHS = 400.0
"""Enough for a slow walk and a finer one."""


@pytest.fixture(scope="module")
def found(small_task):
    return pl.find_temperature(
        small_task.potential, small_task.train, small_task.weights, epochs=EPOCHS, num_temperatures=5, batch_size=100
    )


def test_the_search_keeps_its_budget_and_shows_its_reasons(found, small_task):
    assert found.bayesian_temperature == pytest.approx(1e-3)
    assert 0.6 * EPOCHS < found.epochs <= EPOCHS
    assert found.temperature == found.low <= found.high
    assert found.curve.sizes == {"direction": 2, "temperature": 10}
    assert found.curve["stage"].values.sum() == 5
    judged = np.isfinite(found.curve["order_parameter"].values)
    assert judged.any()
    assert (np.diff(found.curve["temperature"]) > 0).all()
    learned = small_task.potential.loss(found.weights, small_task.train.batch)
    assert learned < 0.6 * small_task.potential.loss(small_task.weights, small_task.train.batch)
    assert "recommended T" in str(found)
    assert len(str(found).splitlines()) >= 13
    json.dumps(replace(found, hysteresis=float("nan")).to_dict(), allow_nan=False)  # where nothing can be judged
    stored = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert stored["temperature"] == found.temperature
    assert len(stored["curve"]["loss"]["up"]) == 10


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
