"""What a run says while it goes: chains that stopped, noise that was clipped, classes that died."""

from __future__ import annotations

import warnings
from typing import Protocol

import numpy as np

from .types import HEALTHY, Status


class ChainStoppedWarning(UserWarning):
    """A chain was stopped; the others go on."""


class ClippedNoiseWarning(UserWarning):
    """The mini-batch noise of some weights is alone hotter than T, so they are, whatever noise is injected."""


class DeadClassWarning(UserWarning):
    """The score of a class is the same for (nearly) every example, so the class cannot be told apart."""


class Names(Protocol):
    """Something that knows the chains."""

    @property
    def size(self) -> int:
        """How many there are."""

    def name(self, index: int) -> str:
        """A chain in words."""


class Reporter:
    """Warns once about each chain that stopped, once about each class of a chain, and once about clipped noise."""

    def __init__(self, names: Names) -> None:
        """Start with every chain healthy."""
        self._names = names
        self._stopped = np.zeros(names.size, bool)
        self._clipping_reported = False
        self._dead_reported: np.ndarray | bool = False
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
        if "clipped_share" in record and not self._clipping_reported:
            self._report_clipping(record["clipped_share"], step)
        if "dead_class" in record:
            self._report_dead_classes(record["dead_class"], last=last)

    def _report_clipping(self, share: np.ndarray, step: int) -> None:
        """Of many chains the worst speaks for all."""
        worst = int(np.argmax(np.where(self._stopped, 0.0, share)))
        if self._stopped[worst] or not share[worst] > 0:
            return
        self._clipping_reported = True
        warnings.warn(
            f"{self._names.name(worst)}: at step {step} the mini-batch noise of {share[worst]:.1%} of the weights is "
            "alone hotter than T, so their injected noise is clipped at none and they are too hot (clipped_share in "
            "the trace). Lower time_step or raise batch_size",
            ClippedNoiseWarning,
            stacklevel=4,
        )

    def _report_dead_classes(self, dead: np.ndarray, *, last: bool) -> None:
        persistent = dead if last else dead & self._dead_before
        self._dead_before = dead
        new = persistent & ~np.asarray(self._dead_reported)
        self._dead_reported = self._dead_reported | persistent
        for index in map(int, np.flatnonzero(new.any(axis=-1))):
            classes = ", ".join(str(c) for c in np.flatnonzero(new[index]))
            warnings.warn(
                f"{self._names.name(index)}: class {classes} is dead: its score is the same for nearly every "
                'example, so it hardly learns. Start from other weights, or use output_activation="identity"',
                DeadClassWarning,
                stacklevel=4,
            )
