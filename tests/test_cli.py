"""The command line: help, exit codes, and one clear line for every input that cannot be run."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from pseudolangevin import cli
from pseudolangevin.apps import temperature
from pseudolangevin.runs import config, session
from tests.runs.small_runs import SMALL_RUN

COMMANDS = ("sample", "resume", "check", "report", "watch", "demo", "tune", "reproduce", "temperature", "bench")


def test_help_shows_an_example_of_every_command(capsys):
    for command in COMMANDS:
        assert cli.run([command, "--help"]) == 0
        assert f"pseudolangevin {command}" in capsys.readouterr().out
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("0.")
    assert cli.run([]) == 2
    assert "demo" in capsys.readouterr().out


def test_a_reader_that_ends_early_ends_the_command_silently(monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        patch.setattr(sys, "argv", ["pseudolangevin", "sample", "--print-config"])
        with pytest.raises(SystemExit, match=r"^1$"):
            cli.main()
    assert capsys.readouterr().err == ""


def test_the_printed_configuration_can_be_edited_and_run(capsys, tmp_path):
    assert cli.run(["sample", "--print-config", "--set", "sampler.batch_size=1024"]) == 0
    text = capsys.readouterr().out
    settings = config.parse(text)
    assert settings == config.parse("", ["sampler.batch_size=1024"])
    (tmp_path / "run.toml").write_text(text)
    assert cli.run(["sample", str(tmp_path / "run.toml"), "--print-config"]) == 0
    assert capsys.readouterr().out == text
    shorter = text.replace(f"\nnum_steps = {settings.num_steps} ", "\nnum_steps = 360 ")
    assert config.parse(shorter).record_every is None  # printed as a comment: it follows num_steps


@pytest.mark.parametrize(
    "arguments",
    [
        "sampel",
        "sample",
        "sample no-such-file.toml",
        "sample . --out out",
        "sample --colour",
        "resume no-such-folder",
        "report no-such-folder",
        "watch no-such-folder --once",
        "tune",
        "reproduce everything",
        "bench --seconds many",
    ],
)
def test_bad_arguments_are_one_line_and_write_nothing(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(arguments.split()) == 2
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


@pytest.mark.parametrize(
    "text", [b"seed = -1", b"= 1", b"\x00", b"\xff\xfe", b"[" * 5000, b"a." * 5000 + b"b = 1", b"x" * 2_000_000]
)
def test_bad_configurations_are_one_line_and_write_nothing(text, tmp_path, capsys):
    (tmp_path / "run.toml").write_bytes(text)
    assert cli.run(["sample", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")]) == 2
    assert_one_clear_line(capsys)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.toml"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/x/trace"), "/x/trace: Permission denied; check"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk: No space left on device; free some space"),
        (RuntimeError("RESOURCE_EXHAUSTED: 3 GB"), "out of memory on the device; lower num_chains"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_files_that_cannot_be_used(error, words, capsys, monkeypatch):
    monkeypatch.setattr(session, "load", Mock(side_effect=error))
    assert cli.run(["check", "run"]) == 2
    assert words in assert_one_clear_line(capsys)


def test_errors_of_the_program_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(session, "load", Mock(side_effect=ConnectionError(errno.ECONNRESET, "reset")))
    with pytest.raises(ConnectionError):
        cli.run(["check", "run"])


@pytest.mark.usefixtures("_answers_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_without_a_run_is_to_be_started_again(number, tmp_path, capsys, monkeypatch):
    (tmp_path / "run.toml").write_text(SMALL_RUN)
    monkeypatch.setattr(temperature, "find_temperature", lambda *arguments, **more: os.kill(os.getpid(), number))
    before = signal.getsignal(signal.SIGTERM)
    assert cli.run(["temperature", str(tmp_path / "run.toml")]) == 130
    assert signal.getsignal(signal.SIGTERM) == before
    assert capsys.readouterr().err == "interrupted: temperature did not finish; start it again\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--coordinator 127.0.0.1:1234", "give all three"),
        ("--coordinator 127.0.0.1 --num-processes 2 --process-id 0", "write host:port"),
        ("--coordinator 127.0.0.1:1234 --num-processes 2 --process-id 2", "count from 0"),
    ],
)
def test_flags_of_several_processes(flags, words, tmp_path, capsys):
    (tmp_path / "run.toml").write_text(SMALL_RUN)
    assert cli.run(["sample", str(tmp_path / "run.toml"), *flags.split()]) == 2
    assert words in assert_one_clear_line(capsys)
    assert [path.name for path in Path(tmp_path).iterdir()] == ["run.toml"]
