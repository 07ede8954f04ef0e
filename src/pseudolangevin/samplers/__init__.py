"""Samplers, one family per file; `base` holds the contract they share.

| sampler               | gradient         | masses                          | noise of the mini-batch | Metropolis   |
|-----------------------|------------------|---------------------------------|-------------------------|--------------|
| balanced Langevin     | mini-batch       | from the noise, fixed once warm | balanced by friction    | no           |
| pseudo-Langevin       | mini-batch       | from the noise, kept current    | variance subtracted     | no           |
| naive pseudo-Langevin | mini-batch       | uniform, small step             | subtracted, or not      | no           |
| full-batch Langevin   | exact, chunked   | uniform, or given               | none                    | no           |
| hybrid Monte Carlo    | exact, chunked   | uniform, or given               | none                    | exact energy |
| mini-batch hMC        | one batch a move | uniform, or given               | -                       | exact energy |

To add one, write a file with a subclass of `base.Sampler` that defines `init` and `step`, and add the class to SAMPLERS
below, where `pl.NAME` and the command line find it.
"""

from typing import Any

from .adam import Adam
from .balanced import BalancedLangevin
from .base import HEALTHY, Sampler, Status
from .hybrid import HybridMonteCarlo, MinibatchHybridMonteCarlo
from .langevin import FullBatchLangevin, NaivePseudoLangevin, PseudoLangevin

SAMPLERS: dict[str, Any] = {
    sampler.name: sampler
    for sampler in (
        BalancedLangevin,
        PseudoLangevin,
        NaivePseudoLangevin,
        FullBatchLangevin,
        HybridMonteCarlo,
        MinibatchHybridMonteCarlo,
        Adam,
    )
}

__all__ = ["HEALTHY", "SAMPLERS", "Sampler", "Status"]
