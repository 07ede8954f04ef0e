"""The mini-batch noise that is left uncorrected: its correlations, seen as collective directions.

Pseudo-Langevin subtracts the diagonal 𝒱 of the noise's covariance. Where 𝒯 is the ratio of mini-batch to thermal noise
and C the correlation matrix of the mini-batch noise, all noise of a step has, in units of the thermal noise, the
covariance

    1 + (1 + c1²)·𝒯·(C − 1).

So a direction of eigenvalue λ is held at T·[1 + (1 + c1²)·𝒯·(λ − 1)]. The trace of C − 1 is zero: the mean kinetic
temperature is right, but energy has moved from the many directions with λ < 1 to the few with λ > 1. The share moved,

    H = (1 + c1²)·𝒯·(1/N)·Σ_k max(λ_k − 1, 0)   ≤ (1 + c1²)·𝒯,

is what this file brackets from n draws, which see far less than N² correlations:

- from below, by the eigenvalues that stand out of the noise of n draws (Marchenko–Pastur), corrected for that noise;
- from above, by Cauchy and Schwarz: tr(C²) can be estimated without bias from pairs of draws, and with s1 the sum
  and s2 the sum of squares of λ − 1 over the directions seen, Σ max(λ − 1, 0) ≤ [s1 + √(N·(tr C² − N − s2))]/2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .averages import Floats


class CollectiveNoise(NamedTuple):
    """The share of energy that correlated mini-batch noise puts in the wrong directions."""

    share: float
    """H of the directions that can be seen: a lower estimate."""
    share_error: float
    """Its standard error."""
    share_bound: float
    """H at most."""
    eigenvalues: Floats
    """λ of the directions seen, largest first, scaled up to the whole network where a subset was looked at."""
    independent_components: float
    """N²/tr(C²): how many independent components would be as correlated by chance."""

    def hottest(self, mean_ratio: float) -> float:
        """𝒯·λ of the hottest direction: the ratio of mini-batch to thermal noise along it."""
        return mean_ratio * float(self.eigenvalues[0]) if len(self.eigenvalues) else mean_ratio


def collective_noise(
    noise: ArrayLike, ratios: ArrayLike, momentum_retention: float, *, num_components: int | None = None
) -> CollectiveNoise:
    """Bracket the heated share H.

    Args:
        noise: R^(b), axes (draw, component), in units of the 𝒱 in force; C is its correlation matrix.
        ratios: 𝒯_i in force; times the measured ⟨R_i²⟩ they are those of the noise that is there. Where these differ, C
            is weighted with √(𝒯_i·𝒯_j)/mean 𝒯.
        momentum_retention: c1.
        num_components: components of the whole network, where `noise` holds a random subset. A collective direction
            is spread over all of them, so a subset sees its eigenvalue smaller in proportion, and H unchanged.
    """
    values = np.asarray(noise, np.float64)
    num_draws, num = values.shape
    scale = np.sqrt(np.mean(values**2, axis=0))
    # The ratio of the noise that is there, which is not that of the 𝒱 in force where 𝒱 is stale.
    ratio = np.asarray(ratios, np.float64) * scale**2
    mean_ratio = float(ratio.mean())
    weight = np.sqrt(ratio / mean_ratio)
    weighted = values * np.divide(weight, scale, out=np.zeros(num), where=scale > 0)
    gram = weighted @ weighted.T
    squares, squares_error = _trace_of_square(gram)
    diagonal = float(np.sum(weight**4))
    spikes = _spikes(np.linalg.eigvalsh(gram)[::-1] / num_draws, num_draws, num)
    s1, s2 = float(np.sum(spikes - 1)), float(np.sum((spikes - 1) ** 2))
    # One-sided 95 % bound on tr(C²); what the directions seen do not explain may be spread in the worst way.
    unexplained = max(squares + 1.645 * squares_error - diagonal - s2, 0.0)
    bound = min(max(s1, 0.5 * (s1 + math.sqrt(num * unexplained))), float(num))
    heat = (1 + momentum_retention**2) * mean_ratio / num
    error = math.sqrt(2 / num_draws * float(np.sum(spikes**2)))
    whole = 1 + (spikes - 1) * (num_components or num) / num
    independent = num / max(squares / diagonal, 1.0)
    return CollectiveNoise(heat * s1, heat * error, heat * bound, whole, independent)


def _trace_of_square(gram: Floats) -> tuple[float, float]:
    """tr(C²) = ⟨(R_a·R_b)²⟩ over pairs of different draws, and its standard error (a U-statistic of order two)."""
    num = len(gram)
    squared = gram**2
    np.fill_diagonal(squared, 0.0)
    per_draw = squared.sum(axis=1) / (num - 1)
    return float(per_draw.mean()), float(2 * per_draw.std(ddof=1) / math.sqrt(num))


def _spikes(observed: Floats, num_draws: int, num: int) -> Floats:
    """Population eigenvalues behind the sample eigenvalues that stand out of the noise.

    Sample eigenvalues of white noise end at (1 + √γ)², γ = components/draws, give or take a width (Johnstone 2001).
    An eigenvalue λ larger than 1 + √γ shows as ℓ = λ·(1 + γ/(λ − 1)), solved here for λ (Baik and Silverstein 2006).
    """
    aspect = num / num_draws
    root_sum = math.sqrt(num_draws) + math.sqrt(num)
    edge = root_sum**2 / num_draws
    width = root_sum * (num_draws**-0.5 + num**-0.5) ** (1 / 3) / num_draws
    outside = observed[observed > edge + 3 * width]
    half = (outside + 1 - aspect) / 2
    return half + np.sqrt(np.maximum(half**2 - outside, 0.0))
