"""The verdict rule: false alarms are as rare as intended."""

import numpy as np
import pytest
from scipy.signal import lfilter

from pseudolangevin.diagnostics.averages import average
from pseudolangevin.diagnostics.verdicts import Measurement, RunLength, Verdict


@pytest.mark.parametrize("true_samples", [1, 3, 8])
def test_few_samples_raise_no_false_alarms(true_samples):
    """A stationary AR(1) without bias, whose effective samples are overestimated."""
    num_draws, num_series = 200, 2_000
    inefficiency = num_draws / true_samples
    correlation = (inefficiency - 1) / (inefficiency + 1)
    kicks = np.random.default_rng(true_samples).normal(size=(num_series, 10 * num_draws))
    series = lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], kicks, axis=1)[:, -num_draws:]
    failed = 0
    for values in 1 + 0.1 * series:
        mean, error, samples = average(values)
        measured = Measurement("toy", mean, error, 1.0, 0.001, effective_samples=samples, num_draws=num_draws)
        failed += measured.verdict(20)[0] is Verdict.FAILED
    # One false alarm in 2000 is expected, more than 6 would be 5 standard deviations off.
    # Without a minimum of effective samples there would be 20 to 200.
    assert failed <= 6


def verdict(value, error, **more):
    return Measurement("toy", value, error, 0.0, 0.1, **more).verdict(10)[0]


def test_the_rule_at_its_limits():
    assert verdict(0.05, 0.01) is Verdict.PASSED
    assert verdict(0.2, 0.01) is Verdict.FAILED
    assert verdict(-0.2, 0.01, side="above") is Verdict.PASSED
    assert verdict(0.09, 0.01) is Verdict.UNDECIDED
    assert verdict(0.2, 0.01, effective_samples=10) is Verdict.UNDECIDED
    assert verdict(0.2, 0.0, p_value=0.5) is Verdict.UNDECIDED
    assert verdict(np.nan, np.nan) is Verdict.UNDECIDED
    open_line = Measurement("toy", 0.05, 0.05, 0.0, 0.1, effective_samples=50, num_draws=100)
    line = open_line.line(10, RunLength(100, 5, 500), temperature=None, chain=0)
    assert "times as many samples" in line.message
    assert line.more_steps > 0
    assert RunLength(100, 5, 500).more_steps(1_000) == np.inf


def test_an_own_bound_decides_about_a_pass_and_an_own_p_value_about_a_failure():
    assert verdict(0.05, 0.01, bound=0.09, p_value=1.0) is Verdict.PASSED
    assert verdict(0.05, 0.01, bound=0.11, p_value=1.0) is Verdict.UNDECIDED
    assert verdict(0.2, 0.01, bound=0.3, p_value=1e-4) is Verdict.FAILED
    assert verdict(0.2, 0.01, bound=0.3, p_value=0.01) is Verdict.UNDECIDED


def test_the_time_of_a_longer_run_and_records_that_are_too_rare():
    length = RunLength(400, 100, 40_000, seconds=60.0)
    assert length.more_steps(2.0) == 640 * 100
    assert length.duration(80_000) == ": about 2 minutes"
    assert RunLength(400, 100, 40_000).duration(80_000) == ""
    dense = RunLength(400, 100, 40_000, independence=0.9)
    assert (length.denser, dense.denser, dense.more_steps(2.0)) == (1, 4, 640 * 25)
