"""Traps that a certificate can fall into: each test is a case in which an earlier version gave the wrong answer."""

import numpy as np
import pytest
from scipy.signal import lfilter

from pseudolangevin.diagnostics.averages import average
from pseudolangevin.diagnostics.chain_lines import Tolerances
from pseudolangevin.diagnostics.noise import NoiseDraws, ks_shape_fraction
from pseudolangevin.diagnostics.noise_lines import noise_lines
from pseudolangevin.diagnostics.noise_study import NoiseStudy, noise_study
from pseudolangevin.diagnostics.verdicts import Line, Measurement, RunLength, Verdict, judge

from . import gaussian_toy as toy


def short_study(key: int) -> NoiseStudy:
    return noise_study(
        toy.sampler(refresh_every=10, warmup_refreshes=0, variance_max_batches=100),
        toy.weights(),
        temperature=toy.TEMPERATURE,
        num_steps=10,
        measure_every=10,
        key=key,
        num_draws=20,
        num_consecutive=3,
        max_lag=1,
        num_correlated=20,
    )


def test_a_noise_study_depends_on_its_seed():
    first, again, other = short_study(1), short_study(1), short_study(2)
    for name in ("noise_density", "correlation_density", "autocorrelation"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        assert not np.array_equal(getattr(first, name), getattr(other, name))
    # The white noise is drawn anew as well.
    assert first.correlation_std[0, 1] != other.correlation_std[0, 1]


@pytest.mark.parametrize("true_samples", [1, 3, 8])
def test_few_samples_raise_no_false_alarms(true_samples):
    """A stationary AR(1) without bias, whose effective samples look more than they are."""
    num_draws, num_series = 200, 2_000
    inefficiency = num_draws / true_samples
    correlation = (inefficiency - 1) / (inefficiency + 1)
    kicks = np.random.default_rng(true_samples).normal(size=(num_series, 10 * num_draws))
    series = lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], kicks, axis=1)[:, -num_draws:]
    failed = 0
    for values in 1 + 0.1 * series:
        mean = average(values)
        line = Measurement(
            "toy",
            1.0,
            0,
            mean.mean,
            mean.standard_error,
            1.0,
            0.001,
            effective_samples=mean.effective_samples,
            num_draws=num_draws,
        )
        failed += judge(line, 20, RunLength(num_draws, 1)).verdict is Verdict.FAILED
    # One false alarm in 2000 is the promise: 1 expected, more than 6 would be 5 standard deviations off.
    # Without a minimum of effective samples it would be 20 to 200.
    assert failed <= 6


def test_the_shape_of_gaussian_noise_passes_whatever_its_scale():
    random = np.random.default_rng(0)
    scales = random.uniform(0.1, 10, size=4_000)
    for num_draws in (20, 250, 1_000):
        fraction = ks_shape_fraction(scales * random.normal(size=(num_draws, 4_000)))
        # The critical value itself was found by simulation, to 0.002 in the fraction.
        assert fraction == pytest.approx(0.95, abs=0.002 + 4 * np.sqrt(0.95 * 0.05 / 4_000))
    assert ks_shape_fraction(random.uniform(-1, 1, size=(250, 500))) < 0.6


def noise_of(variances, ratio: float, num_draws: int = 1_000) -> NoiseDraws:
    """Gaussian noise of these variances over 𝒱, half of the components in either of two layers."""
    num = len(variances)
    noise = np.sqrt(variances) * np.random.default_rng(1).normal(size=(num_draws, num))
    return NoiseDraws(noise, np.full(num, ratio), 0, num, np.repeat([0, 1], num // 2), ("first", "second"))


def judged_noise(draws: NoiseDraws) -> dict[str, Line]:
    tolerances = Tolerances(0.03, 0.1, 0.1, 0.05, 0.07)
    return {m.name: judge(m, 20, RunLength(1, 1)) for m in noise_lines(draws, 1.0, 0, 0.995, tolerances)}


def test_misplaced_energy_is_measured_without_its_sampling_part():
    right = judged_noise(noise_of(np.ones(2_000), 0.1))["noise, misplaced energy"]
    assert right.value == pytest.approx(0.0, abs=4 * right.uncertainty)
    assert right.passed
    # Half of the components noisier than 𝒱 says, half quieter: the mean is right, the place is not.
    lines = judged_noise(noise_of(np.tile([0.5, 1.5], 1_000), 0.1))
    wrong = lines["noise, misplaced energy"]
    chance = np.sqrt(4 / (np.pi * 1_000))
    assert wrong.value == pytest.approx((1 + 0.995**2) * 0.1 * (0.5 - chance), abs=4 * wrong.uncertainty)
    assert wrong.verdict is Verdict.FAILED
    assert lines["noise, heat of wrong 𝒱"].passed
    assert lines["noise, KS fraction of shape"].passed
    plain = lines["noise, KS fraction"]
    assert plain.verdict is Verdict.FAILED
    assert not plain.required


def test_one_layer_with_a_wrong_variance_is_named():
    variances = np.concatenate([np.ones(1_900), np.full(100, 2.0)])
    draws = noise_of(variances, 0.1)._replace(layers=np.repeat([0, 1], [1_900, 100]))
    lines = judged_noise(draws)
    assert lines["noise, misplaced energy"].passed
    worst = lines["noise, misplaced energy, worst layer"]
    assert worst.verdict is Verdict.FAILED
    assert "second" in worst.message
