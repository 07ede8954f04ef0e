"""One writer at a time, and files that are replaced as a whole."""

from __future__ import annotations

import json
import os
import socket

import pytest

from pseudolangevin.runs.folder import RunFolder, RunFolderError, locked, read_json, read_or_empty, write_text


def test_a_second_writer_is_rejected(tmp_path):
    folder = RunFolder(tmp_path)
    with locked(folder) as note:
        assert note is None
        named = f"in use by process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(RunFolderError, match=named), locked(folder):
            pass
        assert json.loads(folder.lock.read_text())["pid"] == os.getpid()
    assert folder.lock.read_text() == ""
    with pytest.raises(KeyError), locked(folder):
        raise KeyError
    with locked(folder) as note:
        assert note is None


@pytest.mark.parametrize(
    "text", ["", '{"pid": 1', '{"pid": 999999999, "host": "HERE", "started": "then"}', "[]", "\x00"]
)
def test_a_stale_lock_is_taken_over(tmp_path, text):
    folder = RunFolder(tmp_path)
    folder.lock.write_text(text.replace("HERE", socket.gethostname()))
    with locked(folder) as note:
        assert (note is not None) == ("started" in text)
        assert json.loads(folder.lock.read_text())["pid"] == os.getpid()


def test_the_lock_of_another_machine_counts(tmp_path):
    folder = RunFolder(tmp_path)
    folder.lock.write_text('{"pid": 3, "host": "elsewhere", "started": "then"}')
    with pytest.raises(RunFolderError, match=r"process 3 on elsewhere.*delete"), locked(folder):
        pass
    assert "elsewhere" in folder.lock.read_text()


def test_files_are_replaced_as_a_whole(tmp_path):
    file = tmp_path / "file.json"
    write_text(file, '{"a": 1}')
    assert read_json(file) == read_or_empty(file) == {"a": 1}
    file.unlink()
    file.mkdir()
    with pytest.raises(OSError, match=r"file\.json"):
        write_text(file, "")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_cannot_be_read_is_damaged_or_absent(tmp_path, content):
    for name in ("file.json", "file.toml"):
        (tmp_path / name).write_bytes(content)
        assert read_or_empty(tmp_path / name) == {}
    with pytest.raises(RunFolderError, match="is damaged"):
        read_json(tmp_path / "file.json")
