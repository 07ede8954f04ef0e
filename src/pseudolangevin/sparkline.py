"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

SPARKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Values as a row of blocks from the lowest to the highest; a gap where there is no number.

    Example:
        >>> sparkline([1, 2, 3, 2, 1])
        '▁▅█▅▁'
    """
    if not len(values):
        return ""
    stretches = np.array_split(np.asarray(values, float), min(width, len(values)))
    means = [float(s[np.isfinite(s)].mean()) if np.isfinite(s).any() else math.nan for s in stretches]
    finite = [mean for mean in means if math.isfinite(mean)]
    if not finite:
        return " " * len(means)
    low, span = min(finite), max(finite) - min(finite)
    top = len(SPARKS) - 1
    # Half is rounded up, so that the middle of two values is the upper block.
    heights = [
        math.nan if math.isnan(m) else math.floor(top * (m - low) / span + 0.5) if span > 0 else 0 for m in means
    ]
    return "".join(" " if math.isnan(height) else SPARKS[int(height)] for height in heights)
