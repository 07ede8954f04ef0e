"""Lines of a certificate about the mini-batch noise at a chain's final weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .averages import Floats
from .chain_lines import Tolerances
from .collective import collective_noise
from .noise import NoiseDraws, ks_fraction, ks_shape_fraction
from .verdicts import Measurement

GAUSSIAN_FRACTION = 0.95
"""Share of KS tests with p > 0.05 where the noise is N(0, 1)."""
KS_DRAWS = 250
"""Draws per KS test, as in the paper: more would find deviations from a normal distribution that do not matter."""
NUM_BLOCKS = 20
"""Blocks of draws for the jackknife."""


def noise_lines(
    draws: NoiseDraws, temperature: float, chain: int, momentum_retention: float, tolerances: Tolerances
) -> Iterator[Measurement]:
    """Misplaced energy, KS fractions, the heat of a wrong 𝒱, and the share of energy moved by correlations."""
    noise, ratios = draws.noise, draws.ratios
    num_draws = len(noise)
    collective = collective_noise(noise, ratios, momentum_retention, num_components=draws.num_noisy)
    yield from _misplaced_lines(draws, temperature, chain, momentum_retention, tolerances)
    yield from _ks_lines(draws, temperature, chain, collective.independent_components, tolerances)
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


def _misplaced_lines(
    draws: NoiseDraws, temperature: float, chain: int, momentum_retention: float, tolerances: Tolerances
) -> Iterator[Measurement]:
    """(1 + c1²)·⟨𝒯_i·|⟨R_i²⟩ − 1|⟩ over all components, and in the layer where it is largest."""
    blocks = min(NUM_BLOCKS, len(draws.noise))
    present = np.unique(draws.layers)
    everywhere, *layers = (
        _misplaced(draws.noise[:, chosen], draws.ratios[chosen], momentum_retention)
        for chosen in [np.ones(len(draws.layers), bool), *(draws.layers == layer for layer in present)]
    )
    found = [("noise, misplaced energy", everywhere, tolerances.temperature, "")]
    if len(present) > 1:
        worst = max(range(len(layers)), key=lambda index: layers[index][0])
        comment = f"layer {draws.layer_names[present[worst]]}"
        found.append(("noise, misplaced energy, worst layer", layers[worst], tolerances.layer, comment))
    for name, (value, error), tolerance, comment in found:
        yield Measurement(
            name,
            temperature,
            chain,
            value,
            error,
            0.0,
            tolerance,
            "above",
            effective_samples=blocks,
            remedy="the subtracted 𝒱 is not that of the noise, component by component; lower refresh_every, or "
            "variance_tolerance",
            comment=comment,
        )


def _misplaced(noise: Floats, ratios: Floats, momentum_retention: float) -> tuple[float, float]:
    """The energy that a wrong 𝒱 puts into the wrong components, as a share, and its error by a jackknife over draws.

    |⟨R²⟩ − 1| of n draws is positive by chance alone: √(2/n)·√(2/π) where R is N(0, 1), in general with the standard
    deviation of R² instead of √2. That is subtracted. Where 𝒱 is wrong by more than chance, too much is: 0.05·𝒯 for
    1000 draws.
    """
    num_draws = len(noise)
    squares = noise**2
    factor = 1 + momentum_retention**2
    by_chance = squares.std(axis=0, ddof=1) * math.sqrt(2 / (math.pi * num_draws))
    total = squares.sum(axis=0)
    value = factor * float(np.mean(ratios * (np.abs(total / num_draws - 1) - by_chance)))
    left_out = [
        factor * float(np.mean(ratios * np.abs((total - part.sum(axis=0)) / (num_draws - len(part)) - 1)))
        for part in np.array_split(squares, min(NUM_BLOCKS, num_draws))
    ]
    return value, math.sqrt(len(left_out) - 1) * float(np.std(left_out))


def _ks_lines(
    draws: NoiseDraws, temperature: float, chain: int, independent_components: float, tolerances: Tolerances
) -> Iterator[Measurement]:
    """The share of Kolmogorov–Smirnov tests with p > 0.05: of the shape of the noise, and with 𝒱 as in the paper.

    A stale 𝒱 is noticed by tests with 𝒱 long before it matters, so these are for information.
    """
    sets = np.array_split(draws.noise, max(1, len(draws.noise) // KS_DRAWS))
    silent = f"{draws.num_silent:,} silent components left out" if draws.num_silent else ""
    for name, test, required in [
        ("noise, KS fraction of shape", ks_shape_fraction, True),
        ("noise, KS fraction", ks_fraction, False),
    ]:
        fraction = float(np.mean([test(part) for part in sets]))
        # Components share their mini-batches, so as many tests count as there are independent components; the variance
        # is that of the expected fraction, or of the measured one if that is larger.
        variance = max(GAUSSIAN_FRACTION * (1 - GAUSSIAN_FRACTION), fraction * (1 - fraction))
        yield Measurement(
            name,
            temperature,
            chain,
            fraction,
            math.sqrt(variance / (len(sets) * independent_components)),
            GAUSSIAN_FRACTION,
            tolerances.ks_fraction,
            "below",
            remedy="the noise is not Gaussian: batches are small; raise batch_size"
            if required
            else "the noise is not N(0, 𝒱): see misplaced energy for what that does",
            comment=silent,
            required=required,
        )
