"""From a curve over temperatures to the intermediate range: plain arithmetic on arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

LEARNED_SHARE = 0.9
"""A chain has learned when its loss came down by this share of the way that the better half came down from the start.
Weights that have not learned may have a small 𝒱, too."""
JUMP = 2.0
"""Heat capacity per weight that counts as a jump of the loss: independent harmonic weights have ½, and single chains
scatter about it by as much again. The paper's largest network has 2.8 at its transition."""

SMOOTHING = 1.5
"""Width of the kernel that 𝒱 is smoothed with, as a factor of T."""


@dataclass(frozen=True)
class Judgement:
    """What a curve says."""

    low: float
    high: float
    conclusive: bool
    notes: tuple[str, ...]
    transition: float | None
    hysteresis: float
    order_parameter: np.ndarray
    """Smoothed 𝒱 of the chains that can be judged, NaN elsewhere."""


def judge(curve: xr.Dataset, start_loss: float, coldest: float, tolerance: float) -> Judgement:
    """The temperatures whose 𝒱 is within `tolerance` of the smallest, above the jump of the loss if there is one.

    Args:
        curve: dimensions (direction, temperature), sorted by temperature.
        start_loss: of the weights before the scan.
        coldest: chains below it are frozen: what they show is not theirs.
        tolerance: factor.
    """
    down, up = curve.sel(direction="down"), curve.sel(direction="up")
    temperatures = curve["temperature"].values
    losses, variances = down["loss"].values, down["gradient_variance"].values
    usable = down["healthy"].values.astype(bool) & np.isfinite(losses) & (variances > 0)
    usable &= temperatures >= coldest * (1 - 1e-6)
    if usable.any():
        typical = float(np.quantile(losses[usable], 0.25))
        usable &= losses <= max(typical, start_loss - LEARNED_SHARE * (start_loss - typical))
    if not usable.any():
        middle = float(np.sqrt(temperatures[0] * temperatures[-1]))
        note = (
            "no chain can be judged (not finite, a class lost, or too cold to relax); raise epochs, start from other "
            "random weights, use an identity output, or lower temperature_ratio"
        )
        return Judgement(middle, middle, False, (note,), None, float("nan"), np.full(len(temperatures), np.nan))
    judged = temperatures[usable]
    smooth = _smoothed(judged, variances[usable])
    notes = []
    low, high = _edge(judged, smooth, -1, tolerance), _edge(judged, smooth, +1, tolerance)
    if low is None:
        notes.append(
            "𝒱 is near its minimum down to the coldest temperature that can relax; raise epochs to see colder ones"
        )
    if high is None and judged[-1] == temperatures[-1]:
        notes.append("𝒱 stays near its minimum to the hottest temperature scanned; scan hotter ones")
    conclusive = low is not None
    low = float(judged[0]) if low is None else low
    high = float(judged[-1]) if high is None else high
    transition = _transition(curve, usable & (temperatures <= judged[np.argmin(smooth)]))
    if transition is not None and transition > low:
        low = min(transition, high)
    inside = (temperatures >= low * (1 - 1e-6)) & (temperatures <= high * (1 + 1e-6)) & usable
    gaps = np.abs(up["loss"].values - losses)[inside] / losses[inside]
    gaps = gaps[np.isfinite(gaps)]
    num_dead = int(down["dead_class"].values.sum())
    if num_dead:
        notes.append(
            f"{num_dead} of {len(temperatures)} chains lost a class (its score is the same for every example) and were "
            "left out; other random weights, or an identity output, may keep it"
        )
    hysteresis = float(gaps.max()) if gaps.size else float("nan")
    order_parameter = np.full(len(temperatures), np.nan)
    order_parameter[usable] = smooth
    return Judgement(low, high, conclusive, tuple(notes), transition, hysteresis, order_parameter)


def _smoothed(temperatures: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Kernel average of log 𝒱 over log T: single chains scatter by some 20 %, more than the minimum is deep."""
    kernel = np.exp(-0.5 * (np.log(temperatures[:, None] / temperatures) / np.log(SMOOTHING)) ** 2)
    return np.exp(kernel @ np.log(variances) / kernel.sum(axis=1))


def _edge(temperatures: np.ndarray, variances: np.ndarray, step: int, tolerance: float) -> float | None:
    """Where 𝒱 leaves `tolerance` times its minimum, between grid points by interpolation; None where it never does."""
    here = int(np.argmin(variances))
    level = np.log(tolerance * variances[here])
    while 0 <= here + step < len(temperatures):
        there = here + step
        if np.log(variances[there]) > level:
            share = (level - np.log(variances[here])) / np.log(variances[there] / variances[here])
            return float(temperatures[here] * (temperatures[there] / temperatures[here]) ** share)
        here = there
    return None


def _transition(curve: xr.Dataset, where: np.ndarray) -> float | None:
    """The hottest of some temperatures at which U jumps, in either direction."""
    jumps = (curve["heat_capacity"] > JUMP).any("direction").values & where
    return float(curve["temperature"].values[jumps][-1]) if jumps.any() else None
