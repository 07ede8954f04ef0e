"""Masses that are reset to follow the weights change the distribution; masses that are only raised do not.

One weight, w·x against y: the gradient of an example is w·x² − x·y, so 𝒱 and with it the nominal mass grow with w².
Masses that follow w without delay make a mobility 1/M(w), and the density becomes M(w)·exp(−U/T) (docs/method.md).
"""

import pytest

from benchmarks.following_masses import dataset, expected, measured

pytestmark = pytest.mark.usefixtures("_no_directions")

CHAINS = {"interval": 20, "num_chains": 64, "relaxations": 25}


def test_masses_that_are_only_raised_keep_the_distribution():
    mean, error = measured(dataset(), ratio=0.01, reset=0.0, **CHAINS)
    assert mean == pytest.approx(expected(dataset(), weighted=False), abs=3 * error)
    assert error < 0.05 * mean


def test_masses_reset_within_a_relaxation_time_weight_it_by_the_mass():
    mean, error = measured(dataset(), ratio=0.004, reset=1.0, **CHAINS)
    assert mean == pytest.approx(expected(dataset(), weighted=True), abs=3 * error)
    assert mean > 2 * expected(dataset(), weighted=False)
