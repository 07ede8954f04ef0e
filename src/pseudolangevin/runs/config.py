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
import os
import re
import textwrap
import tomllib
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator, create_model, model_validator

from ..apps.temperature import trained_starts
from ..data import tasks
from ..samplers import SAMPLERS
from ..samplers.base import MAX_STEPS
from . import ConfigError

PATHS = ("file", "inputs", "targets", "test_inputs", "test_targets", "folder", "module")
EXAMPLES = {"time_step": 0.02, "num_leapfrog_steps": 50, "folder": "data", "file": "data.npz"}  # of required keys

NOT_IN_FILES = ("num_starts", "untrained", "max_seconds", "key", "progress")
WORDS = "𝒱=gradient variance,𝒯=temperature ratio,γ=gamma,ω=omega,ρ=rho,λ=lambda,δ=d,√=sqrt,∇=grad,≤=<=,→=->,…=..."
ASCII = str.maketrans(dict(word.split("=", 1) for word in f"{WORDS},·=*,−=-,×=x,–=-,⁻=^-,⁺=+,ᵏ=k,¹=1".split(",")))

Count = Annotated[int, Field(ge=1, le=MAX_STEPS)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
NotNegative = Annotated[float, Field(ge=0)]
WeightDecay = NotNegative | Annotated[dict[str, NotNegative], Field(min_length=1)]
File = Annotated[str, Field(min_length=1)]
Precision = Literal["default", "high", "highest", "tensorfloat32", "bfloat16"]


class Section(BaseModel):
    """A table of the configuration; unknown keys and values of another type are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def section_of(function: Callable[..., Any], tag: str, name: str, **more: Any) -> type[Section]:
    """Return a section with a key for each argument of a function or dataclass that TOML can express.

    The key `tag` has the value `name`. `more` has defaults other than those of the function, and definitions of keys
    that it does not have.
    """
    hints, text = get_type_hints(function), inspect.getdoc(function) or ""
    described = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", text.partition("Args:\n")[2], re.MULTILINE))
    fields: dict[str, Any] = {tag: (Literal[name], Field(name))}
    for key, parameter in inspect.signature(function).parameters.items():
        hint = Precision | None if key == "precision" else _toml_type(hints[key])
        if hint is not None and key not in NOT_IN_FILES:
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
    file: File | None = Field(None, description=".npz file of `inputs`, `targets`, and maybe of a test set")
    inputs: File | None = Field(None, description=".npy file, one row per example (instead of `file`)")
    targets: File | None = Field(None, description=".npy file, one row per example (instead of `file`)")
    test_inputs: File | None = Field(None, description="optional test set, .npy file")
    test_targets: File | None = Field(None, description="optional test set, .npy file")
    stream: bool = Field(False, description="leave inputs and targets on disk (.npy), and fetch mini-batches")

    @model_validator(mode="after")
    def _one_source(self) -> Files:
        names = ("inputs", "targets", "test_inputs", "test_targets")
        given = tuple(name for name in names if getattr(self, name) is not None)
        if given not in ([()] if self.file else [names[:2], names]):
            either = 'either file = "data.npz", or inputs = "x.npy" and targets = "y.npy"'
            raise ValueError(f"give {either}; with both or neither of test_inputs, test_targets")
        real = [os.path.realpath(getattr(self, name)) for name in given]
        if len(real) == 4 and real[:2] == real[2:]:
            raise ValueError(f"test_inputs = {self.test_inputs!r} is the training set; name other examples")
        if self.stream and self.file is not None:
            raise ValueError("stream = true needs inputs and targets as .npy files, not file")
        return self


class Network(Section):
    """The feed-forward network."""

    sizes: Annotated[list[Count], Field(min_length=2)] = Field([100, 50, 100, 10], description="widths, inputs first")
    output_activation: Literal["relu", "identity"] = Field("relu", description="with identity, no class can die")
    hidden_activation: Literal["relu", "tanh", "gelu", "silu"] = Field("relu", description="of the hidden layers")
    module: File | None = Field(
        None, description='your own model instead, "my_model.py:make"; runs that code, so it needs --allow-code'
    )


def _weight_decay(value: Any, validate: Callable[[Any], Any]) -> Any:
    try:
        return validate(value)
    except (ValueError, OverflowError):
        remedy = 'or a table of such numbers, like { "*.bias" = 1.0, "*" = 9.0 }'
        raise ValueError(f"must be a finite number of at least 0, {remedy}") from None


class PotentialSettings(Section):
    """The potential U."""

    kind: Literal["classification", "regression"] = Field("classification", description="cross-entropy, squared error")
    weight_decay: Annotated[WeightDecay, WrapValidator(_weight_decay)] = Field(
        10.0611, description='lambda of lambda/(2N)*|w|²; or by tensor, first match: { "*.bias" = 1.0, "*" = 9.0 }'
    )


class RandomStart(Section):
    """Random weights."""

    kind: Literal["random"]
    seed: Seed = Field(0, description="seed of the random weights, which differ from chain to chain")


class Recording(Section):
    """Contents of the run folder, and the intervals of writing."""

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
        "fashion_mnist": section_of(tasks.fashion_mnist, "kind", "fashion_mnist"),
        "idx": section_of(tasks.idx, "kind", "idx"),
        "files": Files,
    },
    "sampler": {name: section_of(cls, "name", name) for name, cls in SAMPLERS.items()},
    "start": {
        "adam": section_of(
            trained_starts, "kind", "adam", num_steps=2_000, seed=_seed(0, "the weights and the training")
        ),
        "random": RandomStart,
    },
}  # alternatives of sections; the first one is the default
TAGS = {"task": "kind", "sampler": "name", "start": "kind"}  # keys that name the alternative


def _one_of(section: str) -> Any:
    return Annotated[Union[tuple(CHOICES[section].values())], Field(discriminator=TAGS[section])]  # noqa: UP007


CHANGEABLE = (
    *("num_steps", "record_every"),
    *(f"recording.{key}" for key in ("checkpoint_every", "checkpoint_seconds", "keep_checkpoints")),
    *(f"placement.{key}" for key in Devices.model_fields),
)  # settings that may change when a run is continued, besides the paths of files: data are recognised by their hash
FREE = (*CHANGEABLE, *(f"{section}.{key}" for section in ("task", "network") for key in PATHS))


class Chains(Section):
    """The chains and their lengths."""

    temperatures: list[float] | None = Field(None, description="T of each group of chains, all different")
    num_chains: Count = Field(2, description="independent chains at each temperature")
    num_steps: Count = Field(600_000, description="steps of every chain")
    record_every: Count | None = Field(
        None, description="steps between records, which visit all examples; unset: 10 to 400 records"
    )


class Settings(Chains):
    """All settings of a run."""

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
        """Fill in sections, their default alternatives, and the temperatures."""
        data = {section: {} for section, field in cls.model_fields.items() if field.is_required()} | data
        for section, choices in CHOICES.items():
            if isinstance(data[section], dict):
                data[section] = {TAGS[section]: next(iter(choices))} | data[section]
        name = data["sampler"]["name"] if isinstance(data["sampler"], dict) else ""
        if name in [*SAMPLERS] and SAMPLERS[name].uses_temperature:
            data.setdefault("temperatures", [1e-5, 3e-5])
        return data


class PythonSettings(Chains):
    """Settings of a run that Python started: a description, since its model is code."""

    made_by: Literal["python"] = Field("python", description="continue with pl.resume(DIR, sampler, num_steps=...)")
    record_every: Count = Field(description="steps between records")
    structure: str = Field(description="nesting of the weights, with 0 for an array")
    sampler: dict[str, Any] = Field(description="the method")
    weights: dict[str, str] = Field(description="types and shapes of the weights of one chain")
    recording: Recording = Field(description="what is written, and how often")


def read(path: Path, overrides: Sequence[str] = (), *, to_edit: bool = False) -> Settings:
    """Return the settings of a TOML file; see `parse`."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; give the path of a TOML file") from None
    return parse(text, overrides, source=str(path), folder=path.resolve().parent, to_edit=to_edit)


def parse(
    text: str,
    overrides: Sequence[str] = (),
    *,
    source: str = "configuration",
    folder: Path | None = None,
    to_edit: bool = False,
) -> Any:
    """Return the settings of a TOML text, with `key=value` overrides; relative paths are relative to `folder`.

    With `to_edit`, required keys that are missing get an example.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: bad TOML, or an integer of thousands of digits
        why = " ".join(str(error).split())[:200] or type(error).__name__
        remedy = "compare with `pseudolangevin sample --print-config`"
        raise ConfigError(f"{source} is not valid TOML: {why}; {remedy}") from None
    for override in overrides:
        _override(data, override)
    try:
        repr(data)
    except (ValueError, RecursionError):  # an integer of thousands of digits: no message could show these
        raise ConfigError(f"{source} has a value that is too long or nested too deeply; shorten it") from None
    for section, key in itertools.product(("task", "network"), PATHS):
        table = data.get(section)
        if folder is not None and isinstance(table, dict) and isinstance(table.get(key), str) and table[key]:
            table[key] = str(folder / os.path.expanduser(table[key]))  # an unknown ~user stays as it is
    return _validated(data, to_edit)


def _validated(data: dict[str, Any], to_edit: bool) -> Any:
    model = PythonSettings if data.get("made_by") == "python" else Settings
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    for loc in [problem["loc"] for problem in problems] if to_edit else ():
        key = "file" if loc[-1:] == ("files",) else loc[-1] if loc else ""
        if key in EXAMPLES and key not in (table := data.setdefault(str(loc[0]), {})):
            return _validated(data | {str(loc[0]): table | {key: EXAMPLES[key]}}, to_edit)
    raise ConfigError("\n".join(dict.fromkeys(_explain(problem, model) for problem in problems)))


def _override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    override, given = f"{key}={text}"[:120], text[:60]
    *tables, last = key.strip().split(".")
    if not equals or not all(re.fullmatch(r"[A-Za-z0-9_-]+", part) for part in (*tables, last)):
        raise ConfigError(f"--set {override}: not of the form key=value; write --set sampler.batch_size=1024")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()  # a bare word is a string: shells remove quotes
        if not re.fullmatch(r"[\w./~-]+", value):
            remedy = "quote strings, write lists as [1, 2]"
            raise ConfigError(f"--set {override}: {given!r} is not a TOML value; {remedy}") from None
    for part in tables:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise ConfigError(f"--set {override}: {part} is {_short(data)}, not a table; remove it from the file")
    data[last] = value


def _explain(problem: Any, model: type[Section]) -> str:
    """Return one line for an error of pydantic: the key, the value, why, and the meaning of the key."""
    loc, kind, value = list(problem["loc"]), problem["type"], problem["input"]
    choice = str(loc.pop(1)) if len(loc) > 1 and loc[0] in CHOICES else ""
    key = re.sub(r"\.(\d+)", r"[\1]", ".".join(map(str, loc)))
    kinds: dict[str, Any] = {name: {"": field.annotation} for name, field in model.model_fields.items()} | CHOICES
    sections = {n: {c: m for c, m in models.items() if hasattr(m, "model_fields")} for n, models in kinds.items()}
    if kind == "extra_forbidden":
        known = [f"{n}.{k}" for n, models in sections.items() for m in models.values() for k in m.model_fields]
        hint = _hint(key, [name for name in (*sections, *known) if name != key])
        return f"{key} = {_short(value)}: not a key{f' of {TAGS[loc[0]]} = {choice!r}' if choice else ''}; {hint}"
    why = problem["msg"].removeprefix("Value error, ").replace("Input should", "must")
    if kind == "value_error" and isinstance(value, dict | Section):
        return f"{key}: {why}".removeprefix(": ")
    owner: Any = sections.get(loc[0], {}).get(choice, model) if len(loc) > 1 else model
    field = owner.model_fields.get(next((part for part in reversed(loc) if isinstance(part, str)), ""))
    meaning = f"; it is: {field.description}" if field and field.description else ""
    if kind == "missing":
        return f"{key} is missing{meaning}"
    if kind == "union_tag_invalid":
        key, value, meaning = f"{key}.{TAGS[key]}", value[TAGS[key]], ""
        why = f"unknown; {_hint(str(value), CHOICES[loc[0]])}"
    elif "dictionary" in why:
        why = "must be a table: write it under its own [header]"
    return f"{key} = {_short(value)}: {why}{meaning}"


def _hint(name: str, known: Iterable[str]) -> str:
    """Return the first known name with the same last part, or a similar one; else where all are listed."""
    same = [other for other in known if other.split(".")[-1] == name.rsplit(".", 1)[-1]]
    near = same or difflib.get_close_matches(name, known, 1, 0.8)
    return f"did you mean {near[0]}?" if near else "see `pseudolangevin sample --print-config`"


def _short(value: Any) -> str:
    try:
        text = " ".join(repr(value).split())
    except RecursionError:
        text = "(nested too deeply)"
    return text if len(text) <= 60 else text[:57] + "..."


def to_toml(settings: Settings | PythonSettings) -> str:
    """Return the complete configuration: every key with its value, its meaning and, for names, the alternatives.

    A key that is unset is commented out.
    """
    lines, tables = ["# A pseudolangevin run: `pseudolangevin sample THIS_FILE`", ""], list[str]()
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, dict | Section):
            tables += ["", f"[{name}]  # {field.description}"]
        if isinstance(value, Section):
            for key, item in value:
                choices = CHOICES[name] if name in CHOICES and key == TAGS[name] else ()
                tables += _entry(key, item, type(value).model_fields[key], choices)
        elif isinstance(value, dict):  # of a run that Python started
            tables += [f"{_toml(key)} = {_toml(item)}" for key, item in value.items()]
        else:
            lines += _entry(name, value, field)
    return "\n".join(lines + tables) + "\n"


def _entry(name: str, value: Any, field: Any, choices: Iterable[str] = ()) -> list[str]:
    text = f"# {name} =" if value is None else f"{name} = {_toml(value)}"
    hints = [field.annotation, *get_args(field.annotation)]
    choices = choices or [value for hint in hints if get_origin(hint) is Literal for value in get_args(hint)]
    comment = "; ".join(filter(None, [f"one of {', '.join(choices)}" if choices else "", field.description]))
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
