"""TOML ↔ settings: reading, overriding single keys, and writing with every default and its meaning."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from .errors import ConfigError, explain, shorten
from .settings import Settings

PATH_KEYS = (
    ("task", ("file", "inputs", "targets", "test_file", "test_inputs", "test_targets", "folder")),
    ("start", ("file",)),
)
"""Keys that name files: relative to the TOML file, absolute in the run folder."""

MAX_BYTES = 1_000_000


def read(path: Path, overrides: Sequence[str] = ()) -> Settings:
    """Settings from a TOML file, with `key=value` overrides."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError([f"{path} is larger than {MAX_BYTES} bytes; is it a TOML configuration?"])
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            [f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"]
        ) from None
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}; give the path of a TOML file"]) from None
    return parse(text, overrides, source=str(path), folder=path.resolve().parent)


def parse(
    text: str, overrides: Sequence[str] = (), *, source: str = "configuration", folder: Path | None = None
) -> Settings:
    """Settings from TOML text; `folder` is what relative paths in it are relative to."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            [f"{source} is not valid TOML: {why}; compare with `pseudolangevin sample --print-config`"]
        ) from None
    for override in overrides:
        _override(data, override)
    if folder is not None:
        _absolute_paths(data, folder)
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def _override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(re.fullmatch(r"[A-Za-z0-9_-]+", part) for part in path):
        raise ConfigError([f"--set {override}: not of the form key=value; write --set sampler.batch_size=1024"])
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        # A bare word is a string: shells eat quotes.
        if not re.fullmatch(r"[\w./~-]+", text.strip()):
            raise ConfigError(
                [f"--set {override}: {text!r} is not a TOML value; quote strings, write lists as [1, 2]"]
            ) from None
        value = text.strip()
    for part in path[:-1]:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise ConfigError([f"--set {override}: {part} is {shorten(data)}, not a table; remove it from the file"])
    data[path[-1]] = value


def _absolute_paths(data: dict[str, Any], folder: Path) -> None:
    for section, keys in PATH_KEYS:
        table = data.get(section)
        if not isinstance(table, dict):
            continue
        for key in keys:
            if isinstance(table.get(key), str) and table[key]:
                table[key] = str(folder / Path(table[key]).expanduser())


def to_toml(settings: Settings, *, to_edit: bool = False) -> str:
    """The effective configuration: every key with its value and meaning; a key that is unset is commented out.

    Args:
        settings: what to write.
        to_edit: comment out `record_every` as well where it is the one that follows from `num_steps`, so that it
            follows when `num_steps` is changed.
    """
    lines = ["# A pseudolangevin run: `pseudolangevin sample THIS_FILE`", ""]
    tables: list[str] = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            tables += ["", f"[{name}]  # {field.description}", *_table(value)]
        else:
            entry = _entry(name, value, field.description)
            if to_edit and name == "record_every" and _follows(settings):
                entry[-1] = f"# {entry[-1]}"
            lines += entry
    return "\n".join(lines + tables) + "\n"


def _follows(settings: Settings) -> bool:
    """Whether `record_every` is what it would be if it were left out."""
    try:
        return Settings.model_validate({"num_steps": settings.num_steps}).record_every == settings.record_every
    except ValidationError:
        return False


def _table(section: BaseModel) -> list[str]:
    return [
        line
        for name, field in type(section).model_fields.items()
        for line in _entry(name, getattr(section, name), field.description)
    ]


def _entry(name: str, value: Any, description: str | None) -> list[str]:
    text = f"# {name} =" if value is None else f"{name} = {_value(value)}"
    description = description or ""
    if len(text) + len(description) < 110:
        return [f"{text}  # {description}" if description else text]
    return [*("# " + line for line in textwrap.wrap(description, 110, break_on_hyphens=False)), text]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_value(key)} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
