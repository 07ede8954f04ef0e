"""Validation of arguments: every error names the argument, its value, and the remedy."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any


def check_integer(name: str, value: Any, *, minimum: int, maximum: int | None = None, remedy: str = "") -> None:
    """Raise unless `value` is an integer within bounds."""
    bounds = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
    try:
        number = minimum - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = minimum - 1
    if number < minimum or (maximum is not None and number > maximum):
        raise ValueError(f"{name} = {value!r} must be an integer {bounds}" + (f"; {remedy}" if remedy else ""))


def check_interval(name: str, value: Any, low: float, high: float, remedy: str, *, open_ends: bool = False) -> None:
    """Raise unless `value` is a finite number from `low` to `high`."""
    number = as_number(name, value)
    inside = low < number < high if open_ends else low <= number <= high
    if not inside:
        brackets = "()" if open_ends else "[]"
        raise ValueError(f"{name} = {value!r} is outside {brackets[0]}{low:g}, {high:g}{brackets[1]}; {remedy}")


def check_positive(name: str, value: Any, remedy: str = "pass a number above zero") -> None:
    """Raise unless `value` is a finite number above zero."""
    if not as_number(name, value) > 0:
        raise ValueError(f"{name} = {value!r} is not positive; {remedy}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of `choices`."""
    if value not in (listed := list(choices)):
        raise ValueError(f"{name} = {value!r}: choose one of {listed}")


def as_number(name: str, value: Any) -> float:
    """Return the value as a float; raise unless it is a finite real number."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} = {value!r} is not a number; pass one real number") from None
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"{name} = {value!r} is not a finite number; pass one real number")
    return number
