"""Averages with errors, and what may be compared with the published ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from synthetic import make_trace, stop_chain

from pseudolangevin.estimates import average_by_temperature, batch_means, kept
from pseudolangevin.published import published_averages


def test_batch_means_see_the_autocorrelation() -> None:
    """An autoregressive chain x ← a·x + √(1−a²)·ξ has unit variance and (1+a)/(1−a) draws per independent one."""
    rng, a = np.random.default_rng(0), 0.9
    means, errors = [], []
    for _ in range(60):
        noise = math.sqrt(1 - a * a) * rng.normal(size=(2, 10_000))
        chains = np.empty_like(noise)
        chains[:, 0] = rng.normal(size=2)
        for i in range(1, noise.shape[1]):
            chains[:, i] = a * chains[:, i - 1] + noise[:, i]
        average = batch_means(chains)
        means.append(average.mean)
        errors.append(average.standard_error)
    expected = math.sqrt((1 + a) / (1 - a) / 20_000)
    # Means of batches of length b are correlated: the variance comes out too small by the share 2a/((1−a²)·b).
    biased = expected * math.sqrt(1 - 2 * a / ((1 - a * a) * 100))
    # Each error is known to 1/√(2·200) from its 200 batches, and there are 60 of them.
    assert np.mean(errors) == pytest.approx(biased, rel=4 / math.sqrt(2 * 200 * 60))
    assert np.std(means) == pytest.approx(expected, rel=4 / math.sqrt(2 * 60))


def test_chains_that_disagree_widen_the_error() -> None:
    rng = np.random.default_rng(0)
    together = rng.normal(size=(2, 400))
    apart = together + np.array([[0.0], [5.0]])
    assert batch_means(apart).standard_error > 4 * batch_means(together).standard_error


def test_too_little_to_say() -> None:
    assert math.isnan(batch_means(np.empty((0, 0))).mean)
    single = batch_means(np.array([[2.0]]))
    assert single.mean == 2.0
    assert math.isnan(single.standard_error)
    constant = batch_means(np.full((2, 9), 3.0))
    assert constant.standard_error == 0.0


def test_kept_records() -> None:
    assert kept(make_trace(draws=80), 0.5).sizes["draw"] == 40
    assert kept(make_trace(draws=1), 0.5).sizes["draw"] == 1
    assert kept(make_trace(draws=3), 1.0).sizes["draw"] == 1
    with pytest.raises(ValueError, match=r"discard = 2 is outside"):
        kept(make_trace(), 2)


def test_stopped_chains_do_not_count() -> None:
    trace = stop_chain(make_trace(draws=40), 0, 0, 39)
    averages = average_by_temperature(trace["loss"], trace, batch_means)
    assert averages[0].mean == pytest.approx(float(trace["loss"].values[0, 1].mean()))
    assert averages[1].mean == pytest.approx(float(trace["loss"].values[1].mean()))


def test_published_values_are_for_the_published_system() -> None:
    both = published_averages(11_160, {"weight_decay": 10.0611, "num_train": 55_800, "temperature_ratio": 0.1})
    assert [series.label for series in both] == ["published hMC", "published pL"]
    assert both[1].at(3e-5, "loss") == 0.324912
    assert both[1].at(2e-5, "loss") is None
    assert both[1].deviations["loss"][-1] == 0.001165
    assert published_averages(11_161, {}) == []
    assert published_averages(None, {}) == []
    assert published_averages(11_160, {"weight_decay": 1.0}) == []
    large = published_averages(1_006_110, {})
    assert large[0].at(1e-6, "test_error") == 0.113465
    assert large[0].at(1e-6, "error") == 0.112455
