import numpy as np
import pytest

from pseudolangevin.diagnostics.ensemble import energy_ratio, two_temperature_check

DIMENSION = 200


def energies(random, temperature, num):
    """U of a harmonic system: a gamma distribution, exactly."""
    return temperature * random.gamma(DIMENSION / 2, size=(2, num))


def test_slope_of_harmonic_energies_is_the_difference_of_inverse_temperatures():
    random = np.random.default_rng(0)
    scores = []
    for _ in range(60):
        check = two_temperature_check(energies(random, 1.0, 300), energies(random, 1.2, 300), (1.0, 1.2))
        assert check.expected_slope == pytest.approx(1 - 1 / 1.2)
        scores.append(check.deviation)
    # 60 scores: mean within 4/√60, spread within 4/√120 of one.
    assert abs(np.mean(scores)) < 0.52
    assert abs(np.std(scores) - 1) < 0.37


def test_errors_grow_with_autocorrelation():
    """The same draws, each repeated five times, say no more than once."""
    random = np.random.default_rng(1)
    low, high = energies(random, 1.0, 400), energies(random, 1.2, 400)
    once = two_temperature_check(low, high, (1.0, 1.2))
    repeated = two_temperature_check(np.repeat(low, 5, axis=1), np.repeat(high, 5, axis=1), (1.0, 1.2))
    assert repeated.ratio == pytest.approx(once.ratio, rel=1e-6)
    assert repeated.standard_error == pytest.approx(once.standard_error, rel=0.25)


def test_a_wrong_temperature_shows():
    random = np.random.default_rng(2)
    check = two_temperature_check(energies(random, 1.0, 3_000), energies(random, 1.2 * 1.05, 3_000), (1.0, 1.2))
    assert check.ratio == pytest.approx((1 - 1 / 1.26) / (1 - 1 / 1.2), abs=4 * check.standard_error)
    assert check.deviation > 5


def test_distant_temperatures_get_a_suggestion_that_overlaps():
    random = np.random.default_rng(3)
    low = energies(random, 1.0, 300)
    check = two_temperature_check(low, energies(random, 3.0, 300), (1.0, 3.0))
    assert not check.overlap
    assert np.isnan(check.ratio)
    nearer = check.suggested_temperature
    assert 1.0 < nearer < 3.0
    assert two_temperature_check(low, energies(random, nearer, 300), (1.0, nearer)).overlap


def test_few_samples_are_not_fitted():
    random = np.random.default_rng(4)
    check = two_temperature_check(energies(random, 1.0, 5), energies(random, 1.2, 5), (1.0, 1.2))
    assert np.isnan(check.ratio)


def test_the_ratio_of_histograms_follows_the_expected_line_within_its_errors():
    random = np.random.default_rng(5)
    low, high = energies(random, 1.0, 2_000), energies(random, 1.2, 2_000)
    ratio = energy_ratio(low, high, (1.0, 1.2))
    assert ratio is not None
    np.testing.assert_allclose(np.diff(ratio.expected) / np.diff(ratio.energies), 1 - 1 / 1.2, rtol=1e-9)
    scores = (ratio.log_ratios - ratio.expected) / ratio.standard_errors
    assert len(scores) > 10
    assert np.mean(scores**2) < 1 + 4 * np.sqrt(2 / len(scores))
    # Relabelled, the same points leave the line: χ² says so.
    wrong = energy_ratio(low, high, (1.0, 1.35))
    assert wrong is not None
    assert np.mean(((wrong.log_ratios - wrong.expected) / wrong.standard_errors) ** 2) > 10
    # Repeated draws say no more than once.
    repeated = energy_ratio(np.repeat(low, 5, axis=1), np.repeat(high, 5, axis=1), (1.0, 1.2))
    assert repeated is not None
    assert np.median(repeated.standard_errors) == pytest.approx(np.median(ratio.standard_errors), rel=0.25)
    assert energy_ratio(low, energies(random, 3.0, 2_000), (1.0, 3.0)) is None
    assert energy_ratio(low[:, :5], high[:, :5], (1.0, 1.2)) is None
