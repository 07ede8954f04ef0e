"""Choosing tensors by name: `layer3.*`, `!embedding.*`, or a mask shaped like the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import jax
import numpy as np

from . import trees
from .types import Weights

Selection: TypeAlias = str | Sequence[str] | Any
"""A pattern, several patterns, or a pytree of truth values."""

MAX_NAMES = 12
"""Names listed in an error message."""


def chosen(weights: Weights, selection: Selection, argument: str = "selection") -> Weights:
    """A pytree shaped like `weights` that says of every tensor whether it is chosen.

    A pattern is compared with the tensor's path, such as `layer3.kernel`; `*` stands for any characters, dots included.
    Of several patterns the last that matches decides; one that begins with `!` takes tensors out, and where
    the first does, all others are in.

    Args:
        weights: any pytree of arrays.
        selection: a pattern, a list of patterns, or a mask: a pytree shaped like `weights` with True or False for every
            tensor.
        argument: what to call it in error messages.
    """
    structure = jax.tree.structure(weights)
    names = [name for name, _ in trees.named_leaves(weights)]
    patterns = _patterns(selection)
    if patterns is None:
        return _mask(structure, selection, argument)
    _refuse_unmatched([pattern.removeprefix("!") for pattern in patterns], names, argument)
    taken = [patterns[0].startswith("!")] * len(names)
    for pattern in patterns:
        for index, name in enumerate(names):
            if fnmatchcase(name, pattern.removeprefix("!")):
                taken[index] = not pattern.startswith("!")
    return jax.tree.unflatten(structure, taken)


def looked_up(weights: Weights, table: Mapping[str, float], argument: str) -> Weights:
    """A pytree shaped like `weights`: for each tensor, the number of the first pattern that matches its name."""
    names = [name for name, _ in trees.named_leaves(weights)]
    _refuse_unmatched(list(table), names, argument)
    values = []
    for name in names:
        value = first_match(name, table)
        if value is None:
            raise ValueError(
                f"{argument} = {dict(table)} has no pattern for {name}; add one, or a last entry '*' for all others"
            )
        values.append(value)
    return jax.tree.unflatten(jax.tree.structure(weights), values)


def first_match(name: str, table: Mapping[str, float]) -> float | None:
    """The number of the first pattern that matches a name; None where none does."""
    return next((float(value) for pattern, value in table.items() if fnmatchcase(name, pattern)), None)


def _patterns(selection: Selection) -> list[str] | None:
    if isinstance(selection, str):
        return [selection]
    if isinstance(selection, list | tuple) and selection and all(isinstance(entry, str) for entry in selection):
        return list(selection)
    return None


def _mask(structure: Any, mask: Any, argument: str) -> Weights:
    if jax.tree.structure(mask) != structure:
        raise ValueError(
            f"{argument} = {mask!r} is neither a pattern nor a mask shaped like the weights; pass a string such as "
            "'layer3.*', a list of them, or a pytree with True or False for every tensor"
        )
    for leaf in jax.tree.leaves(mask):
        if np.ndim(leaf) != 0 or np.asarray(leaf).dtype != np.bool_:
            raise ValueError(
                f"{argument} holds {leaf!r}; a mask has one True or False for every tensor, which is sampled whole"
            )
    return jax.tree.map(bool, mask)


def _refuse_unmatched(patterns: list[str], names: list[str], argument: str) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            listed = ", ".join(names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")
            raise ValueError(f"{argument}: the pattern {pattern!r} matches no tensor; the names are {listed}")
