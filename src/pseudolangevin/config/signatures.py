"""Settings made from the signatures and docstrings of the functions they go to: defaults are written once."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import jax
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

PLAIN = (int, float, bool, str, type(None))
"""What a TOML file can hold; None is a key left out."""


Integer = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
"""What a compiled program can count with."""


class Section(BaseModel):
    """A table of the configuration: unknown keys and loose types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def from_signature(
    function: Callable[..., Any],
    *,
    tag: tuple[str, str],
    skip: tuple[str, ...] = (),
    defaults: Mapping[str, Any] | None = None,
    first: Mapping[str, Any] | None = None,
    last: Mapping[str, Any] | None = None,
) -> type[Section]:
    """A section with one key for each keyword argument of `function`.

    Args:
        function: its signature gives names, types and defaults; its docstring's "Args:" the descriptions.
        tag: the key and value that tell this section from its alternatives, such as ("name", "adam").
        skip: arguments that do not come from the file.
        defaults: defaults that differ from the function's own.
        first: pydantic field definitions that come before the function's own arguments.
        last: those that come after.
    """
    hints = get_type_hints(function)
    described = describe_arguments(function)
    key, value = tag
    fields: dict[str, Any] = {key: (Literal[value], Field(value, description="which one"))} | dict(first or {})
    for name, parameter in inspect.signature(function).parameters.items():
        if name in skip:
            continue
        default = (defaults or {}).get(name, parameter.default)
        default = ... if default is inspect.Parameter.empty else default
        hint = Precision if name == "precision" else _plain(hints[name])
        if hint is None:
            raise TypeError(f"{name}: {hints[name]!r} cannot be written in a TOML file; skip it")
        fields[name] = (hint, Field(default, description=described.get(name, "").rstrip(".")))
    return create_model("".join(w.title() for w in value.split("_")), __base__=Section, **fields, **dict(last or {}))


def _plain(hint: Any) -> Any:
    """The part of a type that a TOML file can express; None where there is none."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    plain = [member for member in members if member in PLAIN or get_origin(member) is Literal]
    if not set(plain) - {type(None)}:
        return None
    if float in plain and int in plain:
        plain.remove(int)
    plain = [Integer if member is int else member for member in plain]
    return Union[tuple(plain)]  # noqa: UP007 (built at run time)


def describe_arguments(function: Callable[..., Any]) -> dict[str, str]:
    """The descriptions under "Args:" of a docstring, each on one line."""
    doc = inspect.getdoc(function) or ""
    block = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)+)", doc, re.MULTILINE)
    described: dict[str, str] = {}
    name = ""
    for line in block.group(1).splitlines() if block else []:
        entry = re.match(r" {4}(\w+): (.*)", line)
        if entry:
            name = entry.group(1)
            described[name] = entry.group(2)
        elif name and line.strip():
            described[name] += " " + line.strip()
    return described


def _check_precision(value: str | None) -> str | None:
    try:
        with jax.default_matmul_precision(value):
            return value
    except (ValueError, TypeError):
        raise ValueError('not a precision; use "default", "high", "highest", "tensorfloat32" or "bfloat16"') from None


Precision = Annotated[str | None, AfterValidator(_check_precision)]
