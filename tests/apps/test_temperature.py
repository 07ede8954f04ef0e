"""The range that a curve gives, and the search on a small network."""

import json
from typing import Any

import numpy as np
import pytest
import xarray as xr

import pseudolangevin as pl
from pseudolangevin.apps.temperature import judge


def curve(temperatures, variances, losses, invalid=()):
    valid = ~np.isin(np.arange(len(temperatures)), invalid)
    columns = {"loss": losses, "gradient_variance": variances, "valid": valid}
    return xr.Dataset(
        {name: ("temperature", np.asarray(values)) for name, values in columns.items()}, {"temperature": temperatures}
    )


TEMPERATURES = np.geomspace(1e-6, 1e-3, 7)


def test_the_published_curve_gives_a_temperature_that_generalises():
    """In the paper's largest network test errors are within 0.0006 of the best from 2e-7 to 1e-6."""
    published = curve(
        [1e-7, 2e-7, 3e-7, 1e-6, 1e-4], [4.9e-8, 4.2e-10, 2.1e-10, 7.1e-11, 4e-8], [0.043, 0.322, 0.325, 0.331, 0.475]
    )
    low, high, conclusive, notes = judge(published, start_loss=2.3)
    assert conclusive
    assert ["overfit" in note for note in notes] == [True]
    assert 2e-7 <= low <= 1e-6
    assert low < high <= 3e-6


def test_the_range_ends_where_thermal_noise_raises_the_loss():
    rising = curve(TEMPERATURES, np.ones(7), 0.3 + 60 * TEMPERATURES)
    low, high, conclusive, notes = judge(rising, start_loss=2.3)
    assert (low, conclusive) == (TEMPERATURES[0], False)
    assert "raise epochs" in notes[0]
    assert 2e-5 < high < 8e-5  # the loss is higher by a hundredth at 5e-5
    _, _, conclusive, notes = judge(rising, start_loss=2.3, coldest=TEMPERATURES[0])
    assert conclusive
    assert "of the prior is twice" in notes[0]
    _, high, conclusive, notes = judge(curve(TEMPERATURES, np.ones(7), np.full(7, 0.3)), start_loss=2.3)
    assert (high, conclusive) == (TEMPERATURES[-1], False)
    assert "hotter" in notes[-1]


def test_chains_that_did_not_learn_or_are_invalid_or_too_cold_do_not_count():
    variances, losses = np.array([90.0, 30.0, 2.0, 1.0, 2.0, 30.0, 90.0]), np.linspace(0.3, 0.31, 7)
    assert judge(curve(TEMPERATURES, variances, losses), start_loss=2.3)[0] == TEMPERATURES[2]
    for index in (1, 6):
        small = np.where(np.arange(7) == index, 0.01, variances)
        unlearned = curve(TEMPERATURES, small, np.where(np.arange(7) == index, 2.2, losses))
        assert judge(unlearned, start_loss=2.3)[0] == TEMPERATURES[2]
        low, *_, notes = judge(curve(TEMPERATURES, small, losses, invalid=[index]), start_loss=2.3)
        assert low == TEMPERATURES[2]
        assert "lost a class" in notes[0]
    cold = curve(TEMPERATURES, np.where(np.arange(7) == 0, 0.01, variances), losses)
    assert judge(cold, start_loss=2.3, coldest=2e-6)[0] == TEMPERATURES[2]
    for loss in (np.nan, 9.0):
        *_, conclusive, notes = judge(curve(TEMPERATURES, np.ones(7), np.full(7, loss)), start_loss=2.3)
        assert not conclusive
        assert "nothing can be judged" in notes[0]


@pytest.fixture(scope="module")
def found(cubic_task):
    return pl.find_temperature(cubic_task.potential, cubic_task.train, cubic_task.weights, epochs=100)


def test_the_search_keeps_its_budget_and_shows_its_reasons(found, cubic_task):
    assert found.bayesian_temperature == pytest.approx(1e-3)
    assert 60 < found.epochs <= 100
    assert found.temperature <= found.high
    assert found.curve.sizes == {"temperature": 6}
    assert found.curve["valid"].all()
    assert (np.diff(found.curve["temperature"]) > 0).all()
    assert found.curve["temperature"].values[-1] >= 8e-3
    learned = cubic_task.potential.loss(found.weights, cubic_task.train.batch)
    assert learned < 0.6 * cubic_task.potential.loss(cubic_task.weights, cubic_task.train.batch)
    # Hotter chains have a larger loss and longer weights.
    recommended = np.searchsorted(found.curve["temperature"], found.temperature)
    assert found.curve["loss"][-1] > found.curve["loss"][recommended]
    assert found.curve["squared_norm"][-1] > found.curve["squared_norm"][0]
    assert "recommended T" in str(found)
    stored = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert stored["temperature"] == found.temperature
    assert len(stored["curve"]["loss"]) == 6


def test_chains_that_fail_are_marked_as_invalid(cubic_task):
    """At T = 1e30 no chain stays finite."""
    temperatures = [1e30, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2]
    failing = pl.find_temperature(
        cubic_task.potential, cubic_task.train, cubic_task.weights, temperatures=temperatures, epochs=100
    )
    assert failing.curve["valid"].values.tolist() == [True] * 5 + [False]
    assert failing.high <= 1e-2
    assert "stopped" in failing.notes[0]
    assert failing.to_dict()["curve"]["loss"][-1] is None


def test_bad_arguments(cubic_task):
    bad: dict[str, dict[str, Any]] = {"at least 3": {"temperatures": [1e-3, 2e-3]}, "epochs = 0": {"epochs": 0}}
    bad |= {"-0.001": {"temperatures": [-1e-3, 1e-3, 2e-3]}, "num_temperatures = 2": {"num_temperatures": 2}}
    for message, arguments in bad.items():
        with pytest.raises(ValueError, match=message):
            pl.find_temperature(cubic_task.potential, cubic_task.train, cubic_task.weights, **arguments)
