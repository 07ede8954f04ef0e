"""Errors in a configuration, one line each: the key, the value, why, and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from .settings import TAGS, Settings

PLAIN_WORDS = {
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "string_type": 'must be a string in quotes, like "text"',
    "bool_type": "must be true or false",
    "list_type": "must be a list in brackets, like [1, 2]",
    "finite_number": "must be finite",
    "model_type": "must be a table: write it under its own [header]",
    "model_attributes_type": "must be a table: write it under its own [header]",
    "dict_type": "must be a table: write it under its own [header]",
}


class ConfigError(ValueError):
    """A configuration that cannot be run."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Keep the lines, one for each error."""
        self.lines = list(lines)
        super().__init__("\n".join(self.lines))


def explain(error: ValidationError) -> list[str]:
    """One line for every error; keys that belong to another choice of a section share a line."""
    lines: list[str] = []
    misplaced: dict[tuple[str, str], list[str]] = {}
    for detail in error.errors(include_url=False):
        loc = detail["loc"]
        section, key = str(loc[0]) if loc else "", str(loc[-1]) if loc else ""
        if detail["type"] == "extra_forbidden" and section in TAGS and key in known_keys()[section]:
            misplaced.setdefault((section, str(loc[1])), []).append(key)
        else:
            lines.append(_line(dict(detail)))
    for (section, choice), keys in misplaced.items():
        tag = TAGS[section][0]
        lines.append(f"{section}.{', '.join(keys)}: not known to {tag} = {choice!r}; remove, or choose another {tag}")
    return list(dict.fromkeys(lines))


def _line(detail: dict[str, Any]) -> str:
    kind, value = detail["type"], shorten(detail["input"])
    path = _without_tag(detail["loc"])
    key = _dotted(path)
    if kind == "extra_forbidden" and isinstance(detail["input"], dict):
        return _unknown_section(path)
    if kind == "extra_forbidden":
        return f"{key} = {value}: unknown key; {_suggestion(path, detail['loc'])}"
    if kind == "missing":
        return f"{key} is missing; {_remedy(detail['loc']) or 'add it'}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = str(detail["ctx"]["discriminator"]).strip("'")
        given = detail["input"].get(tag) if isinstance(detail["input"], dict) else detail["input"]
        choices = [name.strip(" '") for name in detail["ctx"].get("expected_tags", "").split(",")]
        near = difflib.get_close_matches(str(given), choices, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(choices)}"
        return f"{key}.{tag} = {shorten(given)}: unknown; {hint}"
    if kind == "value_error":
        why = str(detail["ctx"]["error"])
        names_itself = not path or why.startswith(_dotted(path[-1:]))
        prefix = _dotted(path[:-1]) if names_itself else f"{key} = {value}"
        return f"{prefix}: {why}" if prefix else why
    why = PLAIN_WORDS.get(kind) or detail["msg"].replace("Input should be", "must be").replace(
        "should have", "must have"
    )
    remedy = _remedy(detail["loc"])
    return f"{key} = {value}: {why}" + (f"; it is: {remedy}" if remedy else "")


def shorten(value: Any, limit: int = 60) -> str:
    """A value as one short line."""
    try:
        text = " ".join(repr(value).split())
    except RecursionError:
        text = "(nested too deeply)"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _without_tag(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The path as in the file: pydantic adds the chosen alternative of a section to it."""
    return loc[:1] + loc[2:] if loc and loc[0] in TAGS and len(loc) > 1 else loc


def _dotted(path: Iterable[int | str]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else ("." if text else "") + part
    return text


def _section(loc: tuple[int | str, ...]) -> type[BaseModel]:
    """The settings class that a path's last key belongs to."""
    if len(loc) < 2 or loc[0] not in Settings.model_fields:
        return Settings
    tag = TAGS[str(loc[0])][0] if loc[0] in TAGS else None
    for option in _alternatives(str(loc[0])):
        if tag is None or str(loc[1]) in get_args(option.model_fields[tag].annotation):
            return option
    return Settings


def _alternatives(section: str) -> list[type[BaseModel]]:
    """The settings classes that a top-level key may hold; none for a plain value."""
    annotation = Settings.model_fields[section].annotation
    options = get_args(annotation) or (annotation,)
    return [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]


def _remedy(loc: tuple[int | str, ...]) -> str:
    names = [part for part in loc if isinstance(part, str)]
    fields = _section(loc).model_fields
    return (fields[names[-1]].description or "") if names and names[-1] in fields else ""


def _suggestion(path: tuple[int | str, ...], loc: tuple[int | str, ...]) -> str:
    key = str(path[-1])
    known = list(_section(loc).model_fields)
    near = difflib.get_close_matches(key, known, 1)
    if near:
        return f"did you mean {_dotted((*path[:-1], near[0]))}?"
    elsewhere = [f"{section}.{key}" for section, names in known_keys().items() if key in names and section]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    if key in Settings.model_fields:
        return f"did you mean {key}, above the first [section]?"
    return f"remove it; known here: {', '.join(known)}"


def _unknown_section(path: tuple[int | str, ...]) -> str:
    """A table where none is known: its contents would only hide its name."""
    sections = [name for name in known_keys() if name]
    name = _dotted(path)
    near = difflib.get_close_matches(name, sections, 1)
    hint = f"did you mean [{near[0]}]?" if near else f"known sections: {', '.join(f'[{s}]' for s in sections)}"
    return f"[{name}]: unknown section; {hint}"


def known_keys() -> dict[str, set[str]]:
    """All keys of every section; those of the file's top level under the empty name."""
    known = {"": set(Settings.model_fields)}
    for name in Settings.model_fields:
        if _alternatives(name):
            known[name] = {key for option in _alternatives(name) for key in option.model_fields}
    return known
