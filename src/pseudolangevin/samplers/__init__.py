"""Samplers, one family per file; `base` holds the contract they share.

To add one, write a file with a subclass of `base.Sampler` that defines `init` and `step`, and add the class to SAMPLERS
below, where `pl.NAME` and the command line find it.
"""

from typing import Any

from .adam import Adam
from .balanced import BalancedLangevin
from .base import HEALTHY, Sampler, Status
from .hybrid import HybridMonteCarlo, MinibatchHybridMonteCarlo
from .langevin import FullBatchLangevin, NaivePseudoLangevin, PseudoLangevin

_LANGEVIN = (BalancedLangevin, PseudoLangevin, NaivePseudoLangevin, FullBatchLangevin)
_OTHERS = (HybridMonteCarlo, MinibatchHybridMonteCarlo, Adam)
SAMPLERS: dict[str, Any] = {sampler.name: sampler for sampler in (*_LANGEVIN, *_OTHERS)}

__all__ = ["HEALTHY", "SAMPLERS", "Sampler", "Status"]
