"""The files of a run folder, how they are replaced and locked, and what is noted about a session.

DIR/config.toml      the complete configuration
    provenance.json  versions, device, seed, hash of the data, and the commands that started and resumed the run
    trace.records    observables, one checksummed record after another
    weights.records  kept weights, one checksummed record after another
    checkpoints/     the last few states of all chains, STEP.checkpoint
    log.txt          events with their times
    lock             the process that writes to the folder; empty if there is none

Only regular files with these names are read or written, never through a symbolic link; other files are left alone.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import socket
import stat
import sys
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import jax

from . import RunFolderError

PACKAGES = ("pseudolangevin", "jax", "jaxlib", "numpy", "optax", "xarray")
MAX_BYTES = 1 << 24  # of a configuration, provenance or header: more is not ours


class RunFolder:
    """The paths of a run."""

    def __init__(self, path: str | Path) -> None:
        """Take a path, which need not exist; raise if it is no path."""
        if not isinstance(path, str | os.PathLike) or not os.fspath(path) or "\0" in str(path):
            raise RunFolderError(f"folder = {str(path)[:60]!r} is not the path of a folder; pass a string or a Path")
        self.path = Path(path)
        self.config, self.provenance = self.path / "config.toml", self.path / "provenance.json"
        self.trace, self.weights = self.path / "trace.records", self.path / "weights.records"
        self.checkpoints, self.certificate = self.path / "checkpoints", self.path / "certificate.json"
        self.log_file, self.lock = self.path / "log.txt", self.path / "lock"

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """Return a folder that contains a run; raise if it does not."""
        folder = cls(path)
        if not os.path.isdir(folder.path):
            raise RunFolderError(f"{path} is not a folder; give the run folder that `pseudolangevin sample` made")
        if not os.path.lexists(folder.config):
            raise RunFolderError(f"{path} contains no run (no config.toml); start one with `pseudolangevin sample`")
        for file in (folder.config, folder.provenance, folder.trace, folder.weights, folder.log_file, folder.lock):
            check_own(file)
        check_own(folder.checkpoints, stat.S_ISDIR)
        return folder

    @property
    def made_by_python(self) -> bool:
        """Whether Python started the run, whose model is then code."""
        return read_or_empty(self.config).get("made_by") == "python"

    @property
    def resume_call(self) -> str:
        """The call or command that continues the run."""
        return "pl.resume(DIR, sampler)" if self.made_by_python else f"`pseudolangevin resume {self.path}`"

    def make(self) -> None:
        """Make the folder, or take an empty one; raise if it contains anything else."""
        try:
            missing = [parent for parent in self.path.parents if not parent.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            contents = {entry.name for entry in self.path.iterdir()}
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be made: {error.strerror}; choose another --out") from None
        if "config.toml" in contents:
            remedy = f"{self.resume_call}, or choose another folder"
            raise RunFolderError(f"{self.path} already contains a run; continue it with {remedy}")
        if foreign := contents - {"lock", "log.txt", ".config.toml.partial"}:
            raise RunFolderError(f"{self.path} is not empty ({min(foreign)} is there); choose another --out")
        for made in (self.path, *missing):
            sync(made.parent)

    def log(self, line: str) -> None:
        """Append a line with the time; an error in writing it does not stop a run."""
        with suppress(OSError):
            descriptor = open_own(self.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(f"{_now(' ')}  {line}\n")


def check_own(path: Path, is_right_kind: Any = stat.S_ISREG) -> bool:
    """Return whether a path of the run exists; raise if something is there that no run makes."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not is_right_kind(mode):
        what = "a symbolic link" if stat.S_ISLNK(mode) else "of another kind than what runs make"
        raise RunFolderError(f"{path} is {what}; move it away, then try again")
    return True


def open_own(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a file of the run; raise if it is a link, a pipe, or, to write, has a second name."""
    check_own(path)  # for the message; the flags hold also if the path changes meanwhile
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or (flags & (os.O_WRONLY | os.O_RDWR) and found.st_nlink > 1):
        os.close(descriptor)
        raise RunFolderError(f"{path} is not a file of this run alone (a second hard link?); copy the folder instead")
    return descriptor


def read_text(path: Path) -> str:
    """Return the text of a file of the run; raise if it is missing or damaged."""
    try:
        with os.fdopen(open_own(path), "rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise damaged(path, f"it is larger than {MAX_BYTES} bytes")
        return content.decode()
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}; restore it from a copy") from None
    except UnicodeDecodeError as error:
        raise damaged(path, error) from None


def damaged(path: Path, why: Exception | str) -> RunFolderError:
    """Return an error about a damaged file, in one line."""
    return RunFolderError(f"{path} is damaged ({' '.join(str(why).split())[:160]}); restore it from a copy")


def sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Open a file whose content replaces that of `path` at the end, so that readers and crashes see old or new.

    The content is on disk before it gets the name, and the name before the function returns.
    """
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        with partial.open("xb") as file:  # a new file, never through a link
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(path.parent)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def printable(text: str) -> str:
    """Return text of a file without control characters, which a terminal would obey."""
    return "".join(character for character in text if character.isprintable() or character == "\n")


def write_text(path: Path, text: str) -> None:
    """Replace the content of a file; readers and crashes see the old text or the new text."""
    with replaced(path) as file:
        file.write(text.encode())


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of the run folder; raise if it is missing or damaged."""
    text = read_text(path)
    try:
        if not isinstance(value := json.loads(text), dict):
            raise ValueError("not a JSON object")
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    return value


def read_or_empty(path: Path) -> dict[str, Any]:
    """Return the content of a .json or .toml file that may be missing or incomplete: an empty dict in that case."""
    try:
        return tomllib.loads(read_text(path)) if path.suffix == ".toml" else read_json(path)
    except (ValueError, RecursionError):
        return {}


@contextmanager
def disk_errors(folder: RunFolder) -> Iterator[None]:
    """Turn a full disk, a folder that disappeared and other errors in writing into one line with the remedy."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not Path(str(error.filename)).is_relative_to(folder.path):
            raise  # an error of the user's code, or about a file of data
        why, remedy = f"{error.filename or folder.path}: {error.strerror or error}", "make the folder writable"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why, remedy = "no space left on the disk; what was recorded is safe", "free some space"
        elif not folder.config.is_file():
            why, remedy = "the folder was removed or moved while the run wrote to it", "put it back"
        raise RunFolderError(f"{folder.path}: {why}; {remedy}, then {folder.resume_call}") from error


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Hold the lock of a run folder; warn if the lock of a killed process was taken over.

    The lock is an advisory `flock`, which the system releases when its holder ends, however it ends. The text of the
    file names the holder: text without a lock is that of a process that was killed.
    """
    with os.fdopen(open_own(folder.lock, os.O_RDWR | os.O_CREAT), "rb+", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)[1]
            raise RunFolderError(f"{folder.path} is in use by {holder}; wait for it to end, or stop it") from None
        host, holder = _holder(file)
        if host not in (None, socket.gethostname()):
            # The file system may not share locks between machines, so text of another machine counts as a lock.
            remedy = f"wait for it, or, if that process has ended, delete {folder.lock}"
            raise RunFolderError(f"{folder.path} is locked by {holder}; {remedy}")
        here = {"pid": os.getpid(), "host": socket.gethostname(), "started": _now()}
        file.truncate(0)
        os.pwrite(file.fileno(), json.dumps(here).encode(), 0)
        try:
            if host:
                warnings.warn(f"took over the stale lock of {holder}", stacklevel=3)
            yield
        finally:
            file.truncate(0)


def _holder(file: Any) -> tuple[str | None, str]:
    """Return the host (None if the text is empty or incomplete) and a description of the process in a lock file."""
    try:
        text = json.loads(os.pread(file.fileno(), 4096, 0))
        words = [ascii(text.get(key))[:80].strip("'") for key in ("pid", "host", "started")]
        return str(text["host"]), "process {} on {} (since {})".format(*words)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None, "another process"


def describe_session(command: Sequence[str] | None) -> dict[str, Any]:
    """Return what is noted about every session: time, command (default: of this process), versions and devices."""
    versions = {one.name: one.version for one in metadata.distributions() if one.name in PACKAGES}
    return {
        "started": _now(),
        "command": [*(command or sys.argv)],
        "versions": {"python": platform.python_version()} | versions,
        "device": jax.devices()[0].device_kind,
        "backend": jax.default_backend(),
        "num_devices": jax.device_count(),
        "num_processes": jax.process_count(),
    }


def _now(separator: str = "T") -> str:
    return datetime.now().astimezone().isoformat(separator, timespec="seconds")
