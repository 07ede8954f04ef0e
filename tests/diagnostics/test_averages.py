"""Averages with errors: coverage, effective samples, drift, and the reader of a trace."""

import warnings

import numpy as np
import pytest
import xarray as xr
from scipy.signal import lfilter

import pseudolangevin as pl
from pseudolangevin.diagnostics import average, drift
from pseudolangevin.diagnostics.averages import average_by_temperature, effective_samples, kept, rhat


def autoregressive(random, correlation, num_chains, num_draws):
    """AR(1) of variance one, with (1 + φ)/(1 − φ) draws per independent sample."""
    kicks = random.normal(size=(num_chains, num_draws + 500))
    return lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], kicks, axis=1)[:, 500:]


@pytest.mark.parametrize(("num_chains", "correlation"), [(1, 0.0), (1, 0.8), (4, 0.8)])
def test_standard_error_is_the_spread_of_repeated_means(num_chains, correlation):
    random = np.random.default_rng(1)
    averages = [average(autoregressive(random, correlation, num_chains, 1_000)) for _ in range(300)]
    scores = np.array([a.mean / a.standard_error for a in averages])
    # The spread of 300 scores is known to 1/√600 = 4 %; four of these.
    assert abs(scores.std() - 1) < 0.16


def test_effective_samples_and_rhat_are_those_of_arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # 0.23 announces 1.0 on import
        import arviz
    random = np.random.default_rng(0)
    for correlation, num_chains, num_draws in ((0.0, 1, 5), (0.9, 3, 7), (0.5, 2, 300), (0.99, 4, 201), (-0.5, 4, 64)):
        chains = autoregressive(random, correlation, num_chains, num_draws).round(2)
        for method in ("identity", "bulk"):
            expected = min(float(arviz.ess(chains, method=method)), chains.size)
            assert effective_samples(chains, bulk=method == "bulk") == pytest.approx(expected, rel=1e-9)
        if num_chains > 1:
            assert rhat(chains) == pytest.approx(float(arviz.rhat(chains)), rel=1e-9)


def test_disagreement_few_draws_and_constants():
    series = autoregressive(np.random.default_rng(3), 0.0, 4, 500) + np.array([[-3.0], [3.0], [0.0], [1.0]])
    assert average(series).effective_samples < 20
    assert rhat(series) > 1.5
    assert np.isnan(average([1.0, 2.0]).standard_error)
    assert np.isnan(rhat(np.zeros((1, 100))))
    assert np.isnan(drift([1.0, 2.0, 3.0]).change)
    constant = average(np.ones((2, 10)))
    assert constant.mean == 1.0
    assert np.isnan(constant.standard_error)
    assert np.isnan(constant.effective_samples)


def test_wrong_arguments_are_rejected():
    for bad in (np.zeros((2, 2, 2)), np.float64(1.0)):
        with pytest.raises(ValueError, match="shape"):
            average(bad)
    with pytest.raises(ValueError, match="discard = 2 is outside"):
        average(np.zeros(5), burn_in=2)


def test_a_relaxing_series_drifts_and_a_stationary_one_does_not():
    for correlation in (0.0, 0.9):
        series = autoregressive(np.random.default_rng(4), correlation, 300, 1_000)
        scores = np.array([d.change / d.standard_error for d in map(drift, series)])
        assert abs(scores.std() - 1) < 0.16
        assert np.abs(scores).max() < 4.5
    for decay in (0.5, 1.0, 3.0):  # relaxation over so many times the length of the series, ten times the noise
        time = np.linspace(0, 1 / decay, 200)
        found = drift(10 * np.exp(-time) + autoregressive(np.random.default_rng(5), 0.5, 1, 200)[0])
        assert found.change < -4.5 * found.standard_error


def trace_of(draws: int) -> xr.Dataset:
    dims = ("temperature", "chain", "draw")
    values = np.random.default_rng(6).normal(size=(2, 2, draws))
    return xr.Dataset({"loss": (dims, values), "status": (dims, np.zeros((2, 2, draws), int))})


def test_kept_records():
    assert average([9.0, 9.0, 1.0, 1.0]).mean == 5.0
    assert average([9.0, 9.0, 1.0, 1.0], burn_in=0.5).mean == 1.0
    assert kept(trace_of(81), 0.5).sizes["draw"] == 41
    assert kept(np.zeros((2, 81)), 0.5).shape == (2, 41)
    assert kept(trace_of(1), 0.5).sizes["draw"] == kept(trace_of(3), 1.0).sizes["draw"] == 1


def test_failed_chains_do_not_count():
    trace = trace_of(40)
    trace["status"][0, 0, 39:] = pl.Status.NON_FINITE
    averages = average_by_temperature(trace["loss"], trace)
    assert averages[0].mean == pytest.approx(float(trace["loss"].values[0, 1].mean()))
    assert averages[1].mean == pytest.approx(float(trace["loss"].values[1].mean()))
    trace["status"][0] = pl.Status.NON_FINITE
    assert np.isnan(average_by_temperature(trace["loss"], trace)[0].mean)
