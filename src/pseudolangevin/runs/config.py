"""The configuration of a run: typed settings, their TOML form, and errors that name the key, the value and the remedy.

The sections of samplers, tasks and trained starts are derived from the signatures and docstrings of what they
configure, so each default and each description is written once. The default configuration is the paper's smallest
network (N = 11 160) at two temperatures, which takes minutes on a CPU.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import json
import math
import os
import re
import textwrap
import tomllib
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, create_model, model_validator

from ..apps.temperature import trained_starts
from ..data import tasks
from ..samplers import SAMPLERS
from ..samplers.base import MAX_STEPS
from .folder import MAX_BYTES

MAX_RECORDS = 10_000_000
RECORDS, LONGEST = 400, 15_000  # default number of records and longest interval between them
PATHS = ("file", "inputs", "targets", "test_file", "test_inputs", "test_targets", "folder", "module")
EXAMPLES = {"time_step": 0.02, "num_leapfrog_steps": 50, "folder": "data", "file": "data.npz"}  # of required keys

NOT_IN_FILES = ("num_starts", "untrained", "max_seconds", "key", "progress", "validate_every", "patience")
WORDS = (
    "𝒱=gradient variance,𝒯=temperature ratio,γ=gamma,ω=omega,ρ=rho,λ=lambda,Σ=sum,√=sqrt,∇=grad,≤=<=,…=...,⁻=^-,→=->"
)
ASCII = str.maketrans(  # printed text has no other characters than these
    dict(zip("·−×–⁺ᵏ¹⁴⟨⟩ξμδΔ≈", "*-x-+k14<>xmdd~", strict=True)) | dict(word.split("=", 1) for word in WORDS.split(","))
)

Count = Annotated[int, Field(ge=1, le=MAX_STEPS)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
File = Annotated[str, Field(min_length=1)]
Precision = Literal["default", "high", "highest", "tensorfloat32", "bfloat16"]


class ConfigError(ValueError):
    """Error about a configuration that cannot be run, with one line for each problem."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Store the lines."""
        self.lines = list(lines)
        super().__init__("\n".join(self.lines))


class Section(BaseModel):
    """A table of the configuration; unknown keys and values of another type are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def section_of(
    function: Callable[..., Any], tag: str, name: str, skip: Sequence[str] = (), **more: Any
) -> type[Section]:
    """Return a section with a key for each argument of a function or dataclass that TOML can express.

    The key `tag` has the value `name`. Arguments in `skip` do not come from the file. `more` has defaults other than
    those of the function, and definitions of keys that it does not have.
    """
    hints, text = get_type_hints(function), inspect.getdoc(function) or ""
    described = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", text.partition("Args:\n")[2], re.MULTILINE))
    fields: dict[str, Any] = {tag: (Literal[name], Field(name))}
    for key, parameter in inspect.signature(function).parameters.items():
        hint = Precision | None if key == "precision" else _toml_type(hints[key])
        if hint is not None and key not in skip:
            default = more.pop(key, parameter.default)
            description = " ".join(described.get(key, "").split()).rstrip(".").translate(ASCII)
            fields[key] = (hint, Field(... if default is inspect.Parameter.empty else default, description=description))
    return create_model(name, __base__=Section, **fields, **more)


def _toml_type(hint: Any) -> Any:
    """Return the part of a type that TOML can express, or None."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    plain = [member for member in members if member in (float, bool, str) or get_origin(member) is Literal]
    if int in members and float not in members:
        plain.append(Annotated[int, Field(ge=-MAX_STEPS - 1, le=MAX_STEPS)])
    if plain and type(None) in members:
        plain.append(None)
    return Union[tuple(plain)] if plain else None  # noqa: UP007 (made at run time)


class Files(Section):
    """Data from files."""

    kind: Literal["files"]
    file: File | None = Field(None, description=".npz file with the arrays `inputs` and `targets`")
    inputs: File | None = Field(None, description=".npy file, one row per example (instead of `file`)")
    targets: File | None = Field(None, description=".npy file, one row per example (instead of `file`)")
    test_file: File | None = Field(None, description="optional test set, like `file`")
    test_inputs: File | None = Field(None, description="optional test set, .npy file")
    test_targets: File | None = Field(None, description="optional test set, .npy file")
    stream: bool = Field(False, description="leave inputs and targets on disk (.npy), and fetch mini-batches")

    @model_validator(mode="after")
    def _one_source(self) -> Files:
        for prefix in ("", "test_"):
            given = tuple(getattr(self, prefix + key) is not None for key in ("file", "inputs", "targets"))
            if given not in [(True, False, False), (False, True, True), *[(False,) * 3] * bool(prefix)]:
                pair = f'{prefix}inputs = "x.npy" and {prefix}targets = "y.npy"'
                raise ValueError(f'give either {prefix}file = "data.npz", or {pair}')
        if self.stream and self.file is not None:
            raise ValueError("stream = true needs inputs and targets as .npy files, not file")
        if self.test_file is not None and self.test_file == self.file:
            raise ValueError("test_file is the training set itself; give other examples, or leave it out")
        return self


class Network(Section):
    """The feed-forward network."""

    sizes: Annotated[list[Count], Field(min_length=2)] = Field([100, 50, 100, 10], description="widths, inputs first")
    output_activation: Literal["relu", "identity"] = Field("relu", description="with identity, no class can die")
    hidden_activation: Literal["relu", "tanh", "gelu", "silu"] = Field("relu", description="of the hidden layers")
    module: File | None = Field(
        None, description='your own model instead, "my_model.py:make"; runs that code, so it needs --allow-code'
    )


def _weight_decay(value: Any) -> float | dict[str, float]:
    table = value if isinstance(value, dict) else {"*": value}
    valid = [v for v in table.values() if isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < math.inf]
    if not table or len(valid) < len(table):
        remedy = 'or a table of such numbers, like { "*.bias" = 1.0, "*" = 9.0 }'
        raise ValueError(f"must be a finite number of at least 0, {remedy}")
    return {pattern: float(v) for pattern, v in table.items()} if isinstance(value, dict) else float(value)


class PotentialSettings(Section):
    """The potential U."""

    kind: Literal["classification", "regression"] = Field("classification", description="cross-entropy, squared error")
    weight_decay: Annotated[float | dict[str, float], PlainValidator(_weight_decay)] = Field(
        10.0611, description='lambda of lambda/(2N)*|w|²; or by tensor, first match: { "*.bias" = 1.0, "*" = 9.0 }'
    )


class RandomStart(Section):
    """Random weights."""

    kind: Literal["random"]
    seed: Seed = Field(0, description="seed of the random weights, which differ from chain to chain")


class FileStart(Section):
    """Weights from a file."""

    kind: Literal["file"]
    file: File = Field(description=".npz file of arrays like layer1.kernel, alone or with axes (temperature, chain)")


class Recording(Section):
    """What is written to the run folder, and how often."""

    keep_weights_every: int = Field(10, ge=0, le=MAX_STEPS, description="records between kept weights; 0 keeps none")
    weights_dtype: Literal["float16", "float32", "float64"] = Field("float32", description="type of the kept weights")
    observe_examples: Count | None = Field(None, description="measure on the first examples only; unset: on all")
    checkpoint_every: Count | None = Field(None, description="steps between checkpoints; unset: by time, at records")
    checkpoint_seconds: float = Field(30.0, gt=0, description="seconds between checkpoints without checkpoint_every")
    keep_checkpoints: int = Field(3, ge=2, le=1000, description="number of checkpoints that are kept")


class Devices(Section):
    """The split over devices."""

    chains: Count | None = Field(None, description="parts of the chains; all unset: as many devices as divide them")
    data: Count | None = Field(None, description="parts of the examples; unset: 1")
    weights: Count | None = Field(None, description="parts of every large tensor; unset: 1")


def _seed(default: int, description: str) -> Any:
    return (Seed, Field(default, description=f"seed of {description}"))


CHOICES: dict[str, dict[str, type[Section]]] = {
    "task": {
        "spin_vectors": section_of(
            tasks.spin_vectors, "kind", "spin_vectors", num_train=55_800, num_test=10_044, seed=_seed(6, "the data")
        ),
        "fashion_mnist": section_of(tasks.fashion_mnist, "kind", "fashion_mnist", seed=_seed(0, "the projection")),
        "idx": section_of(tasks.idx, "kind", "idx", seed=_seed(0, "the projection")),
        "files": Files,
    },
    "sampler": {name: section_of(cls, "name", name, NOT_IN_FILES) for name, cls in SAMPLERS.items()},
    "start": {
        "adam": section_of(
            trained_starts, "kind", "adam", NOT_IN_FILES, num_steps=2_000, seed=_seed(0, "the weights and the training")
        ),
        "random": RandomStart,
        "file": FileStart,
    },
}  # alternatives of sections; the first one is the default


def _tag(section: str) -> str:
    return "name" if section == "sampler" else "kind"


def _one_of(section: str) -> Any:
    return Annotated[Union[tuple(CHOICES[section].values())], Field(discriminator=_tag(section))]  # noqa: UP007


class Settings(Section):
    """All settings of a run."""

    temperatures: list[float] | None = Field(None, description="T of each group of chains, all different")
    num_chains: Count = Field(2, description="independent chains at each temperature")
    num_steps: Count = Field(600_000, description="steps of every chain")
    record_every: Count = Field(
        description=f"steps between records, which visit all examples; unset: {RECORDS} records, fewer in short runs"
    )
    seed: Seed = Field(0, description="seed of the dynamics")
    task: _one_of("task") = Field(description="the data")  # type: ignore[valid-type]
    network: Network = Field(description="the network")
    potential: PotentialSettings = Field(description="U of the distribution exp(-U/T)")
    sampler: _one_of("sampler") = Field(description="the method")  # type: ignore[valid-type]
    start: _one_of("start") = Field(description="the weights at step 0")  # type: ignore[valid-type]
    recording: Recording = Field(description="what is written, and how often")
    placement: Devices = Field(description="the devices")

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        """Fill in the default alternative of sections, the temperatures, and the interval between records."""
        data = {"network": {}, "potential": {}, "recording": {}, "placement": {}} | data
        for section, choices in CHOICES.items():
            if isinstance(table := data.setdefault(section, {}), dict):
                data[section] = {_tag(section): next(iter(choices))} | table
        name = data["sampler"]["name"] if isinstance(data["sampler"], dict) else getattr(data["sampler"], "name", "")
        if name in SAMPLERS and SAMPLERS[name].uses_temperature:
            data.setdefault("temperatures", [1e-5, 3e-5])
        steps = data.get("num_steps", cls.model_fields["num_steps"].default)
        if isinstance(steps, int):
            data.setdefault("record_every", _default_interval(steps))
        return data

    @model_validator(mode="after")
    def _has_records(self) -> Settings:
        if not 1 <= self.num_records <= MAX_RECORDS:
            given = f"num_steps = {self.num_steps} with record_every = {self.record_every}"
            raise ValueError(f"{given} gives {self.num_records} records; choose 1 to {MAX_RECORDS}")
        return self

    @property
    def num_records(self) -> int:
        """Number of records of the complete run."""
        return self.num_steps // self.record_every


class PythonSettings(Section):
    """Settings of a run that Python started: a description, since its model is code."""

    made_by: Literal["python"] = Field("python", description="continue with pl.resume(DIR, sampler, num_steps=...)")
    temperatures: list[float] | None = Field(None, description="T of each group of chains")
    num_chains: Count = Field(description="independent chains at each temperature")
    num_steps: Count = Field(description="steps of every chain")
    record_every: Count = Field(description="steps between records")
    structure: str = Field(description="nesting of the weights; empty if it is not one of dicts, lists and tuples")
    sampler: dict[str, Any] = Field(description="the method")
    weights: dict[str, str] = Field(description="types and shapes of the weights of one chain")
    recording: Recording = Field(description="what is written, and how often")


def _default_interval(num_steps: int) -> int:
    """Return `num_steps` over `RECORDS`; more in short runs, in which records would take longer than steps."""
    return max(1, min(LONGEST, max(num_steps // RECORDS, min(250, num_steps // 40))))


def read(path: Path, overrides: Sequence[str] = ()) -> Settings:
    """Return the settings of a TOML file, with `key=value` overrides."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError([f"{path} is larger than {MAX_BYTES} bytes; give a TOML configuration"])
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8"]) from None
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}; give the path of a TOML file"]) from None
    return parse(text, overrides, source=str(path), folder=path.resolve().parent)


def parse(
    text: str,
    overrides: Sequence[str] = (),
    *,
    source: str = "configuration",
    folder: Path | None = None,
    to_edit: bool = False,
) -> Any:
    """Return the settings of a TOML text, with overrides; relative paths in it are relative to `folder`.

    With `to_edit`, required keys that are missing get an example.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: bad TOML, or an integer of thousands of digits
        why = " ".join(str(error).split())[:200] or type(error).__name__
        remedy = "compare with `pseudolangevin sample --print-config`"
        raise ConfigError([f"{source} is not valid TOML: {why}; {remedy}"]) from None
    for override in overrides:
        _override(data, override)
    tables = [data.get(section) for section in ("task", "start", "network")]
    for table, key in itertools.product([table for table in tables if isinstance(table, dict)], PATHS):
        if folder is not None and isinstance(table.get(key), str) and table[key]:
            table[key] = str(folder / os.path.expanduser(table[key]))  # an unknown ~user stays as it is
    from_python = data.get("made_by") == "python"
    lines = [] if from_python else _take_unknown(data)
    for section in CHOICES if to_edit else ():
        if isinstance(table := data.setdefault(section, {}), dict):
            fields = _models(section)[table.get(_tag(section), next(iter(_models(section))))].model_fields
            needed = [key for key, field in fields.items() if field.is_required() and key in EXAMPLES]
            needed += ["file"] if "stream" in fields and not {"file", "inputs"} & table.keys() else []
            data[section] = {key: EXAMPLES[key] for key in needed} | table
    try:
        settings = (PythonSettings if from_python else Settings).model_validate(data)
    except ValidationError as error:
        lines += [_explain(dict(detail)) for detail in error.errors(include_url=False)]
    if lines:
        raise ConfigError(dict.fromkeys(lines))
    return settings


def _override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    override, given = f"{key}={text}"[:120], text[:60]
    *tables, last = key.strip().split(".")
    if not equals or not all(re.fullmatch(r"[A-Za-z0-9_-]+", part) for part in (*tables, last)):
        raise ConfigError([f"--set {override}: not of the form key=value; write --set sampler.batch_size=1024"])
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()  # a bare word is a string: shells remove quotes
        if not re.fullmatch(r"[\w./~-]+", value):
            remedy = "quote strings, write lists as [1, 2]"
            raise ConfigError([f"--set {override}: {given!r} is not a TOML value; {remedy}"]) from None
    for part in tables:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise ConfigError([f"--set {override}: {part} is {_short(data)}, not a table; remove it from the file"])
    data[last] = value


def _models(section: str) -> dict[str, type[Section]]:
    """Return the alternatives of a section by the value of their tag; the file's top level is the section ""."""
    kind = Settings.model_fields[section].annotation if section in Settings.model_fields else Settings
    return CHOICES.get(section) or ({"": kind} if inspect.isclass(kind) and issubclass(kind, Section) else {})


def _take_unknown(data: dict[str, Any]) -> list[str]:
    """Remove the keys that the chosen alternatives do not have, and return a line with a suggestion for each."""
    sections = [name for name in Settings.model_fields if _models(name)]
    known = [name for name in Settings.model_fields if name not in sections]
    known += [
        f"{section}.{key}" for section in sections for model in _models(section).values() for key in model.model_fields
    ]
    lines = []
    for section in ["", *sections]:
        table, models, tag = data.get(section) if section else data, _models(section), _tag(section)
        if not isinstance(table, dict):
            continue
        choice = table.get(tag, next(iter(models))) if section in CHOICES else ""
        if choice not in [*models]:
            hint = _hint(choice if isinstance(choice, str) else "", models)
            lines.append(f"{section}.{tag} = {_short(choice)}: unknown; {hint}")
            table.clear()
            continue
        for key in [key for key in table if key not in models[choice].model_fields]:
            name, value = f"{section}.{key}".lstrip("."), table.pop(key)
            if name in known:
                lines.append(f"{name}: not a setting of {tag} = {choice!r}; remove it, or choose another {tag}")
            elif isinstance(value, dict) and not section:
                lines.append(f"[{name}]: unknown section; {_hint(name, sections)}")
            else:
                lines.append(f"{name} = {_short(value)}: unknown key; {_hint(name, known)}")
    return lines


def _hint(name: str, known: Iterable[str]) -> str:
    same = [other for other in known if other.split(".")[-1] == name.rsplit(".", 1)[-1]]
    near = same or difflib.get_close_matches(name, known, 1, 0.75)
    listed = f"choose one of {', '.join(known)}" if len([*known]) < 10 else "see `pseudolangevin sample --print-config`"
    return f"did you mean {near[0]}?" if near else listed


def _explain(detail: dict[str, Any]) -> str:
    """Return one line for an error of pydantic: the key, the value, why, and the meaning of the key."""
    loc, why = list(detail["loc"]), detail["msg"].removeprefix("Value error, ").replace("Input should", "must")
    models = _models(loc[0]) if len(loc) > 1 else {"": Settings}
    model = models.get(loc.pop(1) if loc and loc[0] in CHOICES and len(loc) > 1 else "", Settings)
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    names = [part for part in loc if isinstance(part, str)]
    field = model.model_fields.get(names[-1]) if names else None
    meaning = f"; it is: {field.description}" if field and field.description else ""
    if detail["type"] == "missing":
        return f"{key} is missing{meaning}"
    if detail["type"] == "value_error" and isinstance(detail["input"], dict | Section):
        return f"{key}: {why}".removeprefix(": ")
    if "dictionary" in why:
        why = "must be a table: write it under its own [header]"
    return f"{key} = {_short(detail['input'])}: {why}{meaning}"


def _short(value: Any) -> str:
    try:
        text = " ".join(repr(value).split())
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        text = "(nested too deeply, or too long)"
    return text if len(text) <= 60 else text[:57] + "..."


def to_toml(settings: Settings | PythonSettings, *, to_edit: bool = False) -> str:
    """Return the complete configuration: every key with its value, its meaning and, for names, the alternatives.

    A key that is unset is commented out. With `to_edit`, so is a `record_every` that follows from `num_steps`; it then
    still follows when `num_steps` is edited.
    """
    lines, tables = ["# A pseudolangevin run: `pseudolangevin sample THIS_FILE`", ""], list[str]()
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, dict):
            tables += ["", f"[{name}]  # {field.description}"]
            tables += [f"{_toml(key)} = {_toml(item)}" for key, item in value.items() if item is not None]
        elif isinstance(value, Section):
            tables += ["", f"[{name}]  # {field.description}"]
            for key, inner in type(value).model_fields.items():
                choices = CHOICES[name] if name in CHOICES and key == _tag(name) else _literals(inner.annotation)
                tables += _entry(key, getattr(value, key), inner.description, choices)
        else:
            lines += _entry(name, value, field.description)
            if to_edit and name == "record_every" and value == _default_interval(settings.num_steps):
                lines[-1] = f"# {lines[-1]}"
    return "\n".join(lines + tables) + "\n"


def _literals(hint: Any) -> list[str]:
    hints = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [value for hint in hints if get_origin(hint) is Literal for value in get_args(hint)]


def _entry(name: str, value: Any, description: str | None, choices: Iterable[str] = ()) -> list[str]:
    text = f"# {name} =" if value is None else f"{name} = {_toml(value)}"
    comment = "; ".join(filter(None, [f"one of {', '.join(choices)}" if choices else "", description]))
    if len(text) + len(comment) < 110:
        return [f"{text}  # {comment}" if comment else text]
    return [*("# " + line for line in textwrap.wrap(comment, 110, break_on_hyphens=False)), text]


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(item)}' for key, item in value.items())} }}"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)
    return text.replace("\x7f", "\\u007f")
