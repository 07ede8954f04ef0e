import numpy as np
import pytest
from scipy.signal import lfilter

from pseudolangevin.diagnostics import convergence
from pseudolangevin.diagnostics.averages import average, inefficiency
from pseudolangevin.diagnostics.stationarity import drift


def autoregressive(random, correlation, num_chains, num_draws):
    """AR(1) of variance one, whose g is (1 + φ)/(1 − φ)."""
    kicks = random.normal(size=(num_chains, num_draws + 500))
    return lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], kicks, axis=1)[:, 500:]


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_inefficiency_of_an_autoregressive_series_is_known(correlation):
    series = autoregressive(np.random.default_rng(0), correlation, 50, 4_000)
    estimates = np.array([inefficiency(row) for row in series])
    expected = (1 + correlation) / (1 - correlation)
    # Geyer's estimate is cut where noise begins and kept at least 1, so it may be a few per cent large for white noise.
    assert abs(estimates.mean() / expected - 1) < 0.06


@pytest.mark.parametrize(("num_chains", "correlation"), [(1, 0.0), (1, 0.8), (4, 0.8)])
def test_standard_error_is_the_spread_of_repeated_means(num_chains, correlation):
    random = np.random.default_rng(1)
    averages = [average(autoregressive(random, correlation, num_chains, 1_000)) for _ in range(300)]
    scores = np.array([a.mean / a.standard_error for a in averages])
    # The spread of 300 scores is known to 1/√600 = 4 %; four of these.
    assert abs(scores.std() - 1) < 0.16


def test_effective_samples_agree_with_arviz():
    series = autoregressive(np.random.default_rng(2), 0.7, 4, 2_000)
    assert average(series).effective_samples == pytest.approx(convergence.effective_samples(series), rel=0.1)


def test_chains_that_disagree_count_as_few_samples():
    series = autoregressive(np.random.default_rng(3), 0.0, 4, 500) + np.array([[-3.0], [3.0], [0.0], [1.0]])
    assert average(series).effective_samples < 20
    assert convergence.rhat(series) > 1.5


def test_burn_in_is_discarded_only_when_asked_for():
    values = np.concatenate([np.full(50, 9.0), np.ones(50)])
    assert average(values).mean == 5.0
    assert average(values, burn_in=0.5).mean == 1.0


def test_too_few_draws_have_no_error():
    assert np.isnan(average([1.0, 2.0]).standard_error)
    assert np.isnan(convergence.effective_samples([1.0, 2.0]))
    assert np.isnan(convergence.rhat(np.zeros((1, 100))))
    assert np.isnan(drift([1.0, 2.0, 3.0]).change)


def test_a_constant_has_no_known_error():
    constant = average(np.ones((2, 10)))
    assert constant.mean == 1.0
    assert np.isnan(constant.standard_error)
    assert np.isnan(constant.effective_samples)


@pytest.mark.parametrize("bad", [np.zeros((2, 2, 2)), np.float64(1.0)])
def test_wrong_shapes_are_refused(bad):
    with pytest.raises(ValueError, match="shape"):
        average(bad)
    with pytest.raises(ValueError, match="burn_in"):
        average(np.zeros(5), burn_in=1.0)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_a_stationary_series_does_not_drift(correlation):
    series = autoregressive(np.random.default_rng(4), correlation, 300, 1_000)
    scores = np.array([d.change / d.standard_error for d in map(drift, series)])
    assert abs(scores.std() - 1) < 0.16
    assert np.abs(scores).max() < 4.5


@pytest.mark.parametrize("decay", [0.5, 1.0, 3.0])
def test_a_relaxing_series_drifts(decay):
    """Relaxation over `decay` times the length of the series, ten times larger than the noise."""
    random = np.random.default_rng(5)
    time = np.linspace(0, 1 / decay, 200)
    found = drift(10 * np.exp(-time) + autoregressive(random, 0.5, 1, 200)[0])
    assert found.change < -4.5 * found.standard_error
    assert found.slope < 0
