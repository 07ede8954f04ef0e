"""Lines of a certificate about the mini-batch noise at a chain's final weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .chain_lines import Tolerances
from .collective import collective_noise
from .noise import NoiseDraws, ks_fraction
from .verdicts import Measurement

GAUSSIAN_FRACTION = 0.95
"""Share of KS tests with p > 0.05 where the noise is N(0, 1)."""
KS_DRAWS = 250
"""Draws per KS test, as in the paper: more would find deviations from a normal distribution that do not matter."""


def noise_lines(
    draws: NoiseDraws, temperature: float, chain: int, momentum_retention: float, tolerances: Tolerances
) -> Iterator[Measurement]:
    """KS fraction, the heat of a wrong 𝒱, and the share of energy moved by correlations."""
    noise, ratios = draws.noise, draws.ratios
    num_draws = len(noise)
    silent = f"{draws.num_silent:,} silent components left out" if draws.num_silent else ""
    collective = collective_noise(noise, ratios, momentum_retention, num_components=draws.num_noisy)
    sets = np.array_split(noise, max(1, num_draws // KS_DRAWS))
    fraction = float(np.mean([ks_fraction(part) for part in sets]))
    # Components share their mini-batches, so as many tests count as there are independent components; the variance is
    # that of the expected fraction, or of the measured one if that is larger.
    variance = max(GAUSSIAN_FRACTION * (1 - GAUSSIAN_FRACTION), fraction * (1 - fraction))
    yield Measurement(
        "noise, KS fraction",
        temperature,
        chain,
        fraction,
        math.sqrt(variance / (len(sets) * collective.independent_components)),
        GAUSSIAN_FRACTION,
        tolerances.ks_fraction,
        "below",
        remedy="noise is not N(0, 𝒱): 𝒱 is stale (lower refresh_every) or batches are small (raise batch_size)",
        comment=silent,
    )
    heat = (1 + momentum_retention**2) * np.mean(ratios * (noise**2 - 1), axis=1)
    yield Measurement(
        "noise, heat of wrong 𝒱",
        temperature,
        chain,
        float(heat.mean()),
        float(heat.std(ddof=1)) / math.sqrt(num_draws),
        0.0,
        tolerances.temperature,
        effective_samples=num_draws,
        remedy="the subtracted 𝒱 differs from the mini-batch noise; lower refresh_every or temperature_ratio",
        comment=f"variance of the noise over 𝒱: {float(np.mean(noise**2)):.3f}",
    )
    hottest = collective.hottest(float(ratios.mean()))
    yield Measurement(
        "noise, collective share",
        temperature,
        chain,
        collective.share,
        collective.share_error,
        0.0,
        tolerances.temperature,
        "above",
        upper=collective.share_bound,
        remedy="correlated mini-batch noise heats collective directions; lower temperature_ratio",
        comment=(
            f"at most {collective.share_bound:.2%} of the energy; {len(collective.eigenvalues)} directions seen, "
            f"𝒯·λ up to {hottest:.2g}"
        ),
    )
