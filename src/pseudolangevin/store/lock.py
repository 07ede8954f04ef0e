"""One writer per run folder.

The lock is an advisory `flock`, which the system releases when its holder dies, however it dies; the file's text says
who holds it. A text without a lock is stale: its writer was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from .folder import RunFolder, RunFolderError


class LockedError(RunFolderError):
    """Another process is writing to the run folder."""


@contextmanager
def locked(folder: RunFolder) -> Iterator[str | None]:
    """Hold the folder's lock; yields a note where a stale one was taken over."""
    descriptor = _acquire(folder)
    try:
        before = _read(descriptor)
        if before and before.get("host") != socket.gethostname():
            # The file system may not carry locks between machines, so a foreign text is believed.
            raise LockedError(
                f"{folder.path} is locked by {_describe(before)}; wait for it, or, if that process is gone, "
                f"delete {folder.lock}"
            )
        os.ftruncate(descriptor, 0)
        try:
            os.pwrite(descriptor, json.dumps(_myself()).encode(), 0)
            yield f"took over the stale lock of {_describe(before)}" if before else None
        finally:
            folder.lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _acquire(folder: RunFolder) -> int:
    for _ in range(100):
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before us may have removed the file between our opening and our locking it.
            if folder.lock.exists() and os.fstat(descriptor).st_ino == folder.lock.stat().st_ino:
                return descriptor
        except BlockingIOError:
            by = _describe(_read(descriptor))
            os.close(descriptor)
            raise LockedError(f"{folder.path} is in use by {by}; wait for it to end, or stop it") from None
        os.close(descriptor)
        time.sleep(0.01)
    raise LockedError(f"{folder.path} is changing hands; try again")


def _myself() -> dict[str, Any]:
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": started}


def _read(descriptor: int) -> dict[str, Any]:
    try:
        text = os.pread(descriptor, 4096, 0)
        value = json.loads(text) if text.strip() else {}
        return value if isinstance(value, dict) else {}
    except ValueError:
        return {}  # half written by a process that was killed


def _describe(written: dict[str, Any]) -> str:
    if not written:
        return "another process"
    return f"process {written.get('pid')} on {written.get('host')} (since {written.get('started')})"
