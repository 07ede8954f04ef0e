"""The files of a run folder, how they are replaced and locked, and what is noted about a session.

DIR/config.toml      the complete configuration
    provenance.json  versions, device, seed, hash of the data, and the commands that started and resumed the run
    trace.zarr       observables, dimensions (temperature, chain, draw); NaN and status -1 where nothing is recorded yet
    weights.zarr     kept weights, one array per tensor, dimensions (temperature, chain, kept_draw, ...)
    checkpoints/     the last few states of all chains, STEP.npz with the checksum STEP.sha256
    committed.json   number of records and of kept weights that are complete; readers use no more than these
    log.txt          events with their times
    lock             the process that writes to the folder; empty if there is none
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import socket
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import jax

PACKAGES = ("pseudolangevin", "jax", "jaxlib", "numpy", "optax", "xarray", "zarr")


class RunFolderError(ValueError):
    """Error about a run folder that cannot be used; the message is one line with the remedy."""


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run."""

    path: Path

    config = property(lambda self: self.path / "config.toml")
    provenance = property(lambda self: self.path / "provenance.json")
    trace = property(lambda self: self.path / "trace.zarr")
    weights = property(lambda self: self.path / "weights.zarr")
    checkpoints = property(lambda self: self.path / "checkpoints")
    committed = property(lambda self: self.path / "committed.json")
    log_file = property(lambda self: self.path / "log.txt")
    lock = property(lambda self: self.path / "lock")

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """Return a folder that contains a run; raise if it does not."""
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise RunFolderError(f"{path} is not a folder; give the run folder that `pseudolangevin sample` made")
        if not folder.config.is_file():
            raise RunFolderError(f"{path} contains no run (no config.toml); start one with `pseudolangevin sample`")
        return folder

    @classmethod
    def new(cls, path: str | Path) -> RunFolder:
        """Make a folder, or take an empty one; raise if it contains anything else."""
        folder = cls(Path(path))
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            contents = {entry.name for entry in folder.path.iterdir() if not entry.name.endswith(".partial")}
        except OSError as error:
            raise RunFolderError(f"{path} cannot be made: {error.strerror}; choose another --out") from None
        if "config.toml" in contents:
            remedy = f"continue it with `pseudolangevin resume {path}`, or choose another --out"
            raise RunFolderError(f"{path} already contains a run; {remedy}")
        if contents - {"lock", "log.txt"}:
            raise RunFolderError(f"{path} is not empty ({min(contents)} is there); choose another --out")
        return folder

    def log(self, line: str) -> None:
        """Append a line with the time; an error in writing it does not stop a run."""
        try:
            with self.log_file.open("a", encoding="utf-8") as file:
                file.write(f"{_now(' ')}  {line}\n")
        except OSError:
            pass


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Open a file whose content replaces that of `path` at the end, so that readers and crashes see old or new."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str) -> None:
    """Replace the content of a file; readers and crashes see the old text or the new text."""
    with replaced(path) as file:
        file.write(text.encode())


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of the run folder; raise if it is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}; restore it from a copy") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged ({' '.join(str(error).split())}); restore it from a copy") from None
    return value


def read_or_empty(path: Path) -> dict[str, Any]:
    """Return the content of a .json or .toml file that may be missing or incomplete: an empty dict in that case."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.suffix == ".toml" else read_json(path)
    except (OSError, ValueError, RecursionError):
        return {}


def check_writable(folder: Path) -> None:
    """Raise if a folder cannot be made or written, before hours of work depend on it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        remedy = "make it writable, or choose another folder"
        raise RunFolderError(f"{folder} cannot be written: {error.strerror}; {remedy}") from error


@contextmanager
def disk_errors(folder: RunFolder) -> Iterator[None]:
    """Turn a full disk and other errors in writing into one line with the remedy."""
    try:
        yield
    except OSError as error:
        resume = f"then `pseudolangevin resume {folder.path}`"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = "no space left on the disk; what was recorded is safe"
            raise RunFolderError(f"{folder.path}: {why}: free some space, {resume}") from error
        where = f"{error.filename or folder.path}: {error.strerror or error}"
        raise RunFolderError(f"{where}; make the folder writable, {resume}") from error


@contextmanager
def locked(folder: RunFolder) -> Iterator[str | None]:
    """Hold the lock of a run folder; gives a note if the lock of a killed process was taken over.

    The lock is an advisory `flock`, which the system releases when its holder ends, however it ends. The text of the
    file names the holder: text without a lock is that of a process that was killed.
    """
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)[1]
            raise RunFolderError(f"{folder.path} is in use by {holder}; wait for it to end, or stop it") from None
        host, holder = _holder(descriptor)
        if host not in (None, socket.gethostname()):
            # The file system may not share locks between machines, so text of another machine counts as a lock.
            remedy = f"wait for it, or, if that process has ended, delete {folder.lock}"
            raise RunFolderError(f"{folder.path} is locked by {holder}; {remedy}")
        here = {"pid": os.getpid(), "host": socket.gethostname(), "started": _now()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(here).encode(), 0)
        try:
            yield f"took over the stale lock of {holder}" if host else None
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> tuple[str | None, str]:
    """Return the host (None if the text is empty or incomplete) and a description of the process in a lock file."""
    try:
        text = json.loads(os.pread(descriptor, 4096, 0))
        return str(text["host"]), f"process {text.get('pid')} on {text['host']} (since {text.get('started')})"
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, "another process"


def describe_session(command: Sequence[str]) -> dict[str, Any]:
    """Return what is noted about every session: time, command, versions and devices."""
    versions = {one.name: one.version for one in metadata.distributions() if one.name in PACKAGES}
    device, count = jax.devices()[0], {"num_devices": jax.device_count(), "num_processes": jax.process_count()}
    noted = {"started": _now(), "command": list(command), "versions": {"python": platform.python_version()} | versions}
    return noted | {"device": device.device_kind, "backend": device.platform} | count


def _now(separator: str = "T") -> str:
    return datetime.now().astimezone().isoformat(separator, timespec="seconds")
