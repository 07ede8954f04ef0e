"""The command line: help, exit codes, and one clear line for every configuration that cannot be run."""

from __future__ import annotations

import errno
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from pseudolangevin import cli, config, paper, runs, temperature, temperature_figure
from pseudolangevin.config.toml import _value
from pseudolangevin.tuning import command as tuning

from .store.small_runs import SMALL_RUN

NUM_MUTATIONS = 160


def test_help_teaches(capsys):
    for command in (
        "sample",
        "resume",
        "check",
        "report",
        "watch",
        "demo",
        "tune",
        "reproduce",
        "temperature",
        "bench",
    ):
        assert cli.run([command, "--help"]) == 0
        assert f"pseudolangevin {command}" in capsys.readouterr().out
    assert cli.run(["--version"]) == 0
    assert cli.run([]) == 2
    assert "demo" in capsys.readouterr().out


def test_print_config_is_ready_to_edit(capsys, tmp_path):
    assert cli.run(["sample", "--print-config", "--set", "sampler.batch_size=1024"]) == 0
    text = capsys.readouterr().out
    settings = config.parse(text)
    assert settings == config.parse("", ["sampler.batch_size=1024"])
    (tmp_path / "run.toml").write_text(text)
    assert cli.run(["sample", str(tmp_path / "run.toml"), "--print-config"]) == 0
    assert capsys.readouterr().out == text
    shorter = text.replace(f"\nnum_steps = {settings.num_steps} ", "\nnum_steps = 360 ")
    assert config.parse(shorter).record_every == 9  # it follows, since only a comment states the default
    assert config.parse(config.to_toml(settings).replace("record_every", "# record_every")) == settings
    assert f"\n# record_every = {settings.record_every}\n" in text
    assert "\nrecord_every = 90000\n" in config.to_toml(
        config.parse("num_steps = 90000\nrecord_every = 90000"), to_edit=True
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["sampel"],
        ["sample"],
        ["sample", "no-such-file.toml"],
        ["sample", "--colour"],
        ["sample", "--set", "seed"],
        ["resume"],
        ["resume", "no-such-folder"],
        ["resume", "no-such-folder", "--steps", "many"],
        ["check", "/"],
        ["report", "no-such-folder"],
        ["watch", "no-such-folder", "--once"],
        ["tune"],
        ["tune", "no-such-file.toml"],
        ["reproduce", "everything"],
    ],
    ids=" ".join,
)
def test_bad_arguments(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(arguments) == 2
    assert_one_clear_line(capsys)
    assert not list(tmp_path.iterdir())


def assert_one_clear_line(capsys) -> str:
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    assert len(lines[0]) > 30
    assert captured.out == ""
    return lines[0]


def to_text(table: dict[str, Any]) -> str:
    tops = [
        f"{key} = {_value(value)}" for key, value in table.items() if not isinstance(value, dict) and value is not None
    ]
    for name, section in table.items():
        if isinstance(section, dict):
            tops += [f"[{name}]", *(f"{key} = {_value(value)}" for key, value in section.items() if value is not None)]
    return "\n".join(tops) + "\n"


def wrong_values(value: Any) -> list[Any]:
    """Values that a key with this value cannot take."""
    if isinstance(value, bool):
        return [3, "yes", 0.5]
    if isinstance(value, int):
        return [2.5, "many", True, [1], -(10**20), 10**30]
    if isinstance(value, float):
        return ["warm", True, [0.1], float("nan"), float("inf")]
    if isinstance(value, str):
        return [3, True, "no such choice", [value]]
    return [3, "1, 2", [], [0], ["a"], [float("nan")]]


def mutated_configurations() -> list[bytes]:
    """Configurations that are wrong by construction, a fixed choice of them."""
    rng = random.Random(0)
    base = config.parse(SMALL_RUN).model_dump()
    places: list[tuple[tuple[str, ...], str]] = [
        ((), key) for key, value in base.items() if not isinstance(value, dict) and value is not None
    ]
    places += [
        ((name,), key)
        for name, table in base.items()
        if isinstance(table, dict)
        for key in table
        if table[key] is not None
    ]

    def changed(path: tuple[str, ...], key: str, value: Any, rename: str | None = None) -> bytes:
        table = {name: dict(part) if isinstance(part, dict) else part for name, part in base.items()}
        section = table[path[0]] if path else table
        del section[key]
        return to_text(
            {rename or key: value} | table if not path else table | {path[0]: section | {rename or key: value}}
        ).encode()

    mutations = []
    for path, key in places:
        value = (base[path[0]] if path else base)[key]
        mutations += [changed(path, key, wrong) for wrong in rng.sample(wrong_values(value), 3)]
        if len(key) > 4:
            cut = rng.randrange(1, len(key))
            mutations.append(changed(path, key, value, rename=key[:cut] + key[cut + 1 :]))
    text = to_text(base).encode()
    equals = [index for index in range(len(text)) if text[index : index + 2] == b"= "]
    mutations += [text[: index + 1] for index in rng.sample(equals, 20)]
    mutations += [rng.randbytes(200) for _ in range(5)]
    mutations += [b"\xff\xfe" + text, b"\x00" + text, b"[" * 5000, b"a." * 5000 + b"b = 1", b"x" * 2_000_000, b"= 1"]
    return rng.sample(mutations, NUM_MUTATIONS)


def test_mutated_configurations(tmp_path, capsys):
    """Exit code 2, one clear line, and nothing written: the other forty of two hundred are damaged run folders."""
    file = tmp_path / "run.toml"
    for number, text in enumerate(mutated_configurations()):
        file.write_bytes(text)
        code = cli.run(["sample", str(file), "--out", str(tmp_path / "out")])
        assert code == 2, f"mutation {number} was accepted:\n{text[:2000]!r}"
        assert_one_clear_line(capsys)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.toml"]


@pytest.mark.parametrize("missing", ["directory", "unreadable"])
def test_configurations_that_cannot_be_read(tmp_path, capsys, missing):
    path = tmp_path if missing == "directory" else Path("/proc/self/mem")
    assert cli.run(["sample", str(path), "--out", str(tmp_path / "out")]) == 2
    assert_one_clear_line(capsys)


FILE_ERRORS = {
    "permission": (
        PermissionError(errno.EACCES, "Permission denied", "/x/trace"),
        "/x/trace: Permission denied; check",
    ),
    "missing": (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), "/x: No such file or directory;"),
    "moved": (
        OSError(errno.EISDIR, "Is a directory", "/x/.partial", None, "/x/page"),
        "/x/page: Is a directory; check",
    ),
    "full": (OSError(errno.ENOSPC, "No space left on device"), "no space left on the disk; free some space"),
}


@pytest.mark.parametrize("kind", FILE_ERRORS)
def test_files_that_cannot_be_used(kind, capsys, monkeypatch):
    error, words = FILE_ERRORS[kind]
    monkeypatch.setattr(runs, "load", failing(error))
    assert cli.run(["check", "run"]) == 2
    assert words in assert_one_clear_line(capsys)


@pytest.mark.parametrize("error", [OSError("not the file system's"), ConnectionError(errno.ECONNRESET, "reset")])
def test_errors_of_the_program_are_not_taken_for_errors_of_files(error, monkeypatch):
    monkeypatch.setattr(runs, "load", failing(error))
    with pytest.raises(OSError, match=str(error).partition("] ")[2] or str(error)):
        cli.run(["check", "run"])


def failing(error: Exception) -> Any:
    def fail(*arguments: Any, **settings: Any) -> None:
        raise error

    return fail


def test_reproduce_tries_its_folder_before_it_computes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(paper, "import_module", lambda *arguments: pytest.fail("it computes"))
    (tmp_path / "file").write_text("")
    for out, why in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "results", "Not a directory")):
        assert cli.run(["reproduce", "noise", "--out", str(out)]) == 2
        assert f"{out} cannot be written: {why}; make it writable" in assert_one_clear_line(capsys)


@pytest.mark.usefixtures("_answers_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_where_there_is_nothing_to_resume(number, tmp_path, capsys, monkeypatch):
    (tmp_path / "run.toml").write_text(SMALL_RUN)
    monkeypatch.setattr(tuning, "tune_settings", lambda *arguments, **more: os.kill(os.getpid(), number))
    before = signal.getsignal(signal.SIGTERM)
    assert cli.run(["tune", str(tmp_path / "run.toml")]) == 130
    assert signal.getsignal(signal.SIGTERM) == before
    assert capsys.readouterr().err == "interrupted: tune did not finish; start it again\n"


def test_the_temperature_is_printed_although_its_figure_cannot_be(tmp_path, capsys, monkeypatch):
    class Found:
        conclusive = True

        def __str__(self) -> str:
            return "the temperature"

    (tmp_path / "run.toml").write_text(SMALL_RUN)
    (tmp_path / "scan.png").mkdir()
    monkeypatch.setattr(temperature, "find_temperature", lambda *arguments, **more: Found())
    monkeypatch.setattr(temperature_figure, "temperature_figure", lambda found: Figure())
    assert cli.run(["temperature", str(tmp_path / "run.toml"), "--figure", str(tmp_path / "scan.png")]) == 2
    printed = capsys.readouterr()
    assert printed.out == "the temperature\n"
    assert f"{tmp_path}/scan.png: Is a directory; check the path" in printed.err
