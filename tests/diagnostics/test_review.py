"""Traps that a certificate can fall into: each test is a case in which an earlier version gave the wrong answer."""

import numpy as np

from pseudolangevin.diagnostics.noise_study import NoiseStudy, noise_study

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
