"""One writer at a time."""

from __future__ import annotations

import json
import os
import socket

import pytest

from pseudolangevin.store.folder import RunFolder
from pseudolangevin.store.lock import LockedError, locked


def test_a_second_writer_is_told(tmp_path):
    folder = RunFolder(tmp_path)
    with locked(folder) as note:
        assert note is None
        with (
            pytest.raises(LockedError, match=f"in use by process {os.getpid()} on {socket.gethostname()}"),
            locked(folder),
        ):
            pass
        assert folder.lock.exists()
    assert not folder.lock.exists()


@pytest.mark.parametrize(
    "text", ["", '{"pid": 1', '{"pid": 999999999, "host": "HERE", "started": "then"}', "[]", "\x00"]
)
def test_a_stale_lock_is_taken_over(tmp_path, text):
    folder = RunFolder(tmp_path)
    folder.lock.write_text(text.replace("HERE", socket.gethostname()))
    with locked(folder) as note:
        assert (note is not None) == ("started" in text)
        assert json.loads(folder.lock.read_text())["pid"] == os.getpid()


def test_the_lock_of_another_machine_is_believed(tmp_path):
    folder = RunFolder(tmp_path)
    folder.lock.write_text('{"pid": 3, "host": "elsewhere", "started": "then"}')
    with pytest.raises(LockedError, match=r"process 3 on elsewhere.*delete"), locked(folder):
        pass
    assert "elsewhere" in folder.lock.read_text()


def test_the_lock_is_released_after_an_error(tmp_path):
    folder = RunFolder(tmp_path)
    with pytest.raises(KeyError), locked(folder):
        raise KeyError
    with locked(folder) as note:
        assert note is None
