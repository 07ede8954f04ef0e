"""Names for the arrays and pytrees that travel through the package."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeAlias

import jax

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
"""A typed JAX random key, as made by ``jax.random.key``."""

Weights: TypeAlias = Any
"""Any pytree of float32 or float64 arrays."""

Batch: TypeAlias = tuple[Any, Any]
"""``(inputs, targets)``; each an array, or a pytree of arrays, with one leading example axis."""

PerExample: TypeAlias = Callable[[Weights, Batch], Array]
"""A function of the weights and a batch of S examples that returns S numbers."""


class Status(IntEnum):
    """What became of a chain."""

    RUNNING = 0
    NON_FINITE = 1
    """A weight or momentum turned NaN or infinite; the chain was put back to its last finite state and stopped (one of
    2²⁴ weights or more is left as it is)."""
    NO_NOISE = 2
    """No component of the mini-batch gradient varies, so no mass can be chosen from the noise; nothing was sampled."""

    EARLY_STOPPED = 3
    """Training ended as asked: the validation set stopped improving."""

    NON_FINITE_ENERGY = 4
    """The loss or the regulariser is NaN or infinite at finite weights; found by a record, where the chain stopped."""

    @property
    def healthy(self) -> bool:
        """Whether the chain is where it should be, running or not."""
        return self in (Status.RUNNING, Status.EARLY_STOPPED)

    @property
    def explanation(self) -> str:
        """One line for a person."""
        return {
            Status.RUNNING: "running",
            Status.NON_FINITE: (
                "a weight or momentum turned non-finite; the chain was put back to its last finite state and stopped. "
                "Lower temperature_ratio or time_step, or raise mass_floor"
            ),
            Status.NO_NOISE: (
                "the mini-batch gradient has no variance, so masses cannot be chosen from it; "
                "use full_batch_langevin, or check that the loss depends on the data"
            ),
            Status.NON_FINITE_ENERGY: (
                "its weights are finite but U is not, so exp(−U/T) is no probability; the chain was left where it is. "
                "Check the data for NaN and the loss for overflow (log of 0, division by 0), or lower time_step"
            ),
            Status.EARLY_STOPPED: "the validation set has not improved for `patience` validations",
        }[self]


HEALTHY = tuple(int(status) for status in Status if status.healthy)
"""For arrays of status: ``np.isin(status, HEALTHY)``."""
