"""What a run says while it goes: chains that stopped, classes that died."""

from __future__ import annotations

import warnings
from typing import Protocol

import numpy as np

from .types import HEALTHY, Status


class ChainStoppedWarning(UserWarning):
    """A chain was stopped; the others go on."""


class DeadClassWarning(UserWarning):
    """The score of a class is the same for every example, so the class cannot be told apart."""


class Names(Protocol):
    """Something that knows the chains."""

    @property
    def size(self) -> int:
        """How many there are."""

    def name(self, index: int) -> str:
        """A chain in words."""


class Reporter:
    """Warns once per chain and cause."""

    def __init__(self, names: Names) -> None:
        """Start with every chain healthy."""
        self._names = names
        self._stopped = np.zeros(names.size, bool)
        self._dead_reported = np.zeros(names.size, bool)
        self._dead_before: np.ndarray | bool = False

    @property
    def any_running(self) -> bool:
        """Whether anything is left to do."""
        return not bool(self._stopped.all())

    def mask_stopped(self, record: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The record with NaN in place of the numbers of chains that failed; one that was done rests at its values."""
        stopped = ~np.isin(record["status"], HEALTHY)
        if not stopped.any():
            return record
        return {
            name: np.where(stopped.reshape(-1, *[1] * (values.ndim - 1)), np.nan, values)
            if np.issubdtype(values.dtype, np.floating)
            else values
            for name, values in record.items()
        }

    def report(self, record: dict[str, np.ndarray], *, step: int, last: bool) -> None:
        """Warn about what is new in this record, made after so many steps.

        A class may be dead for a moment, above all in training from random weights; it is reported when it was dead in
        the record before as well, or at the end.
        """
        for index in map(int, np.flatnonzero((record["status"] != Status.RUNNING) & ~self._stopped)):
            self._stopped[index] = True
            status = Status(int(record["status"][index]))
            if not status.healthy:
                message = f"{self._names.name(index)} stopped by step {step}: {status.explanation}"
                warnings.warn(message, ChainStoppedWarning, stacklevel=3)
        if "dead_class" not in record:
            return
        dead = record["dead_class"]
        persistent = dead if last else dead & self._dead_before
        self._dead_before = dead
        for index in map(int, np.flatnonzero(persistent.any(axis=-1) & ~self._dead_reported)):
            self._dead_reported[index] = True
            classes = ", ".join(str(c) for c in np.flatnonzero(persistent[index]))
            warnings.warn(
                f"{self._names.name(index)}: class {classes} is dead: its score is the same for every example, so it "
                'never learns. Start from other weights, or use output_activation="identity"',
                DeadClassWarning,
                stacklevel=3,
            )
