"""Diffusion of the weights: mean squared displacement of kept samples."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

MAX_COMPONENTS = 5_000
MAX_SAMPLES = 400


def mean_squared_displacement(
    steps: np.ndarray, samples: Mapping[str, np.ndarray], seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """⟨|w(t₀+t) − w(t₀)|²⟩/N against t, over all starts t₀ in the second half of the samples, and over chains.

    Long displacements have few starts, so lags stop at half of the window; three samples give two lags all the same,
    since one point alone shows no slope. Of very many weights a random part is used.

    Args:
        steps: the step of each kept draw.
        samples: arrays (temperature, chain, kept draw, …).
        seed: of the choice of weights.

    Returns:
        Lags in steps, and displacements (temperature, lag); both empty when there are fewer than three samples.
    """
    arrays = [np.asarray(leaf) for leaf in samples.values()]
    shape = arrays[0].shape[:3]
    flat = np.concatenate([leaf.reshape(*shape, -1) for leaf in arrays], axis=-1)
    first = min(shape[2] // 2, max(shape[2] - 3, 0))
    stride = max(1, -(-(shape[2] - first) // MAX_SAMPLES))
    flat, steps = flat[:, :, first::stride], np.asarray(steps)[first::stride]
    if len(steps) < 3:
        return np.empty(0), np.empty((shape[0], 0))
    if flat.shape[-1] > MAX_COMPONENTS:
        chosen = np.sort(np.random.default_rng(seed).choice(flat.shape[-1], MAX_COMPONENTS, replace=False))
        flat = flat[..., chosen]
    flat = flat.astype(np.float64)
    lags = np.arange(1, max(3, len(steps) // 2 + 1))
    displacements = []
    for lag in lags:
        per_start = ((flat[:, :, lag:] - flat[:, :, :-lag]) ** 2).mean(axis=-1)
        with warnings.catch_warnings():  # a temperature whose chains all stopped has no displacement: NaN
            warnings.simplefilter("ignore", RuntimeWarning)
            displacements.append(np.nanmean(per_start, axis=(1, 2)))
    return (steps[lags] - steps[0]).astype(np.float64), np.stack(displacements, axis=-1)
