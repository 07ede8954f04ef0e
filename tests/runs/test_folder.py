"""One writer at a time, and files that are replaced as a whole."""

from __future__ import annotations

import json
import os
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest

from pseudolangevin.runs import folder as module
from pseudolangevin.runs.folder import (
    RunFolder,
    RunFolderError,
    disk_errors,
    locked,
    read_json,
    read_or_empty,
)


def test_a_second_writer_is_rejected(tmp_path):
    folder = RunFolder(tmp_path)
    named = f"in use by process {os.getpid()} on {socket.gethostname()}"
    with locked(folder):
        with pytest.raises(RunFolderError, match=named), locked(folder):
            pass
        assert json.loads(folder.lock.read_text())["pid"] == os.getpid()
    assert folder.lock.read_text() == ""
    with pytest.raises(KeyError), locked(folder):
        raise KeyError
    with locked(folder):
        pass


@pytest.mark.parametrize(
    "text", ["", '{"pid": 1', '{"pid": 999999999, "host": "HERE", "started": "then"}', "[]", "\x00"]
)
def test_a_stale_lock_is_taken_over(tmp_path, text):
    folder = RunFolder(tmp_path)
    folder.lock.write_text(text.replace("HERE", socket.gethostname()))
    stale = pytest.warns(UserWarning, match="took over the stale lock") if "started" in text else nullcontext()
    with stale, locked(folder):
        assert json.loads(folder.lock.read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_cannot_be_read_is_damaged_or_absent(tmp_path, content):
    for name in ("file.json", "file.toml"):
        (tmp_path / name).write_bytes(content)
        assert read_or_empty(tmp_path / name) == {}
    with pytest.raises(RunFolderError, match="is damaged"):
        read_json(tmp_path / "file.json")


def test_the_names_of_all_new_folders_are_durable(tmp_path, monkeypatch):
    synced: list[Path] = []
    monkeypatch.setattr(module, "sync", synced.append)
    RunFolder(tmp_path / "a" / "b" / "run").make()
    assert synced == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]


def test_errors_about_files_elsewhere_are_left_as_they_are(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.make()
    with pytest.raises(FileNotFoundError, match="elsewhere"), disk_errors(folder):
        (tmp_path / "elsewhere").read_text()
    folder.config.write_text('made_by = "python"')
    with pytest.raises(RunFolderError, match=r"then pl.resume\(DIR, sampler\)"), disk_errors(folder):
        folder.trace.read_text()
