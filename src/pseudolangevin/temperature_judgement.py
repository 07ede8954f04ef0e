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
scatter about it by as much again. The paper's largest network has 2.9 at its transition; the smallest, in which the
loss does not jump, stays below 1."""
THERMAL_NOISE = 0.01
"""The range ends where the loss is higher by this share than at its cold end."""
LARGE_HYSTERESIS = 5 * THERMAL_NOISE
NEAR_THE_FLOOR = 1.1
"""A ladder that begins within this factor of the coldest temperature that is judged begins there."""
SMOOTHING = 1.5
"""Width of the kernel that 𝒱 is smoothed with, as a factor of T."""


@dataclass(frozen=True)
class Judgement:
    """What a curve says."""

    low: float
    high: float
    conclusive: bool
    cold_end: str
    """What the cold end is: "overfitting" that was seen, the "prior" (colder ones are not judged), the "budget" (colder
    ones were not scanned), or "nothing"."""
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
        coldest: temperatures below it are not judged: weights there are longer than those of the prior.
        tolerance: factor.
    """
    down, up = curve.sel(direction="down"), curve.sel(direction="up")
    temperatures = curve["temperature"].values
    healthy = curve.where(curve["healthy"] & (curve["gradient_variance"] > 0))
    # On the way up chains are still learning.
    losses = healthy["loss"].sel(direction="down").values
    variances = np.exp(xr.apply_ufunc(np.log, healthy["gradient_variance"]).mean("direction").values)
    usable = np.isfinite(losses) & np.isfinite(variances) & (temperatures >= coldest * (1 - 1e-6))
    usable &= losses < start_loss  # a chain that was thrown far out may stay finite
    if usable.any():
        typical = float(np.quantile(losses[usable], 0.25))
        usable &= losses <= max(typical, start_loss - LEARNED_SHARE * (start_loss - typical))
    if not usable.any():
        middle = float(np.sqrt(temperatures[0] * temperatures[-1]))
        note = (
            "nothing can be judged (no chain learned, stayed finite and kept its classes, or all temperatures are too "
            "cold for weights near the prior); raise epochs, scan other temperatures, start from other random weights, "
            "use an identity output, or lower temperature_ratio"
        )
        return Judgement(
            middle, middle, False, "nothing", (note,), None, float("nan"), np.full(len(temperatures), np.nan)
        )
    judged = temperatures[usable]
    smooth = np.exp(_smoothed(judged, np.log(variances[usable])))
    notes = []
    low, high = _edge(judged, smooth, -1, tolerance), _edge(judged, smooth, +1, tolerance)
    transition = _transition(curve, usable & (temperatures <= judged[np.argmin(smooth)]))
    overfit = [t for t in (low, transition) if t is not None]
    low = max([float(judged[0]), *overfit])
    ends = [t for t in (high, _noisy_above(judged, losses[usable], low)) if t is not None]
    high = max(low, min(ends, default=float(judged[-1])))
    cold_end = "overfitting" if overfit else "prior" if judged[0] <= NEAR_THE_FLOOR * coldest else "budget"
    if cold_end == "budget":
        notes.append("no overfitting down to the coldest temperature scanned: raise epochs to see colder ones")
    if cold_end == "prior":
        notes.append(
            "no overfitting was seen: the cold end is where weights of the prior are twice as long (squared) as those "
            "of a short training; colder ones are in the curve where you give them, but are not judged"
        )
    if not ends and judged[-1] == temperatures[-1]:
        notes.append("neither 𝒱 nor the loss rises up to the hottest temperature scanned: scan hotter ones")
    inside = (temperatures >= low * (1 - 1e-6)) & (temperatures <= high * (1 + 1e-6)) & usable
    if not inside.any():  # between two rungs
        inside[np.flatnonzero(usable)[np.argmin(np.abs(np.log(judged / low)))]] = True
    gaps = np.abs(up["loss"].values / down["loss"].values - 1)[inside]
    gaps = gaps[np.isfinite(gaps)]
    num_dead = int(down["dead_class"].values.sum())
    if num_dead:
        notes.append(
            f"a class was lost at {num_dead} of {len(temperatures)} temperatures (its score is the same for nearly "
            "every example); other random weights, or an identity output, may keep it"
        )
    hysteresis = float(gaps.max()) if gaps.size else float("nan")
    if hysteresis > LARGE_HYSTERESIS:
        notes.append(
            f"the loss on the way up and down differs by {hysteresis:.0%}: the chains were far from equilibrium; raise "
            "epochs"
        )
    order_parameter = np.full(len(temperatures), np.nan)
    order_parameter[usable] = smooth
    conclusive = bool(ends) and cold_end != "budget"
    return Judgement(low, high, conclusive, cold_end, tuple(notes), transition, hysteresis, order_parameter)


def _smoothed(temperatures: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Kernel average over log T: single chains scatter in 𝒱 by some 20 %."""
    kernel = np.exp(-0.5 * (np.log(temperatures[:, None] / temperatures) / np.log(SMOOTHING)) ** 2)
    return kernel @ values / kernel.sum(axis=1)


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


def _noisy_above(temperatures: np.ndarray, losses: np.ndarray, low: float) -> float | None:
    """Where the loss exceeds that at `low` by `THERMAL_NOISE`, between grid points by interpolation; None: nowhere.

    On the side of the transition where samples generalise, test and training loss rise together.
    """
    logs = np.log(temperatures)
    here = float(np.interp(np.log(low), logs, losses))
    level = here + THERMAL_NOISE * abs(here)
    beyond = np.flatnonzero((losses > level) & (temperatures > low))
    if beyond.size == 0:
        return None
    first = beyond[0]
    inner = max(first - 1, 0)
    share = (level - losses[inner]) / (losses[first] - losses[inner]) if first > inner else 0.0
    return float(np.exp(logs[inner] + np.clip(share, 0, 1) * (logs[first] - logs[inner])))


def _transition(curve: xr.Dataset, where: np.ndarray) -> float | None:
    """The hottest of some temperatures at which U jumps, in either direction."""
    jumps = (curve["heat_capacity"] > JUMP).any("direction").values & where
    return float(curve["temperature"].values[jumps][-1]) if jumps.any() else None
