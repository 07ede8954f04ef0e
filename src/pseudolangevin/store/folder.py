"""Where everything lies in a run folder, and files that are either old or new but never half written.

DIR/config.toml      the effective configuration
    provenance.json  versions, device, seed, hash of the data, when and how it was started and resumed
    trace.zarr       observables, dimensions (temperature, chain, draw); NaN and status −1 beyond what is recorded
    weights.zarr     kept weights, one array per tensor, dimensions (temperature, chain, kept_draw, …)
    checkpoints/     the states of all chains, the last few
    committed.json   how many records and kept weights are whole; readers go by it
    metrics.jsonl    one line per record
    log.txt          what happened, for a person
    lock             who is writing
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

HARMLESS = {"lock", "log.txt"}
"""What may lie in a folder in which no run has begun."""


class RunFolderError(ValueError):
    """A run folder that cannot be used; the message is one line with the remedy."""


class DiskFullError(RunFolderError):
    """There was no room for what should have been written."""


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
    metrics = property(lambda self: self.path / "metrics.jsonl")
    log_file = property(lambda self: self.path / "log.txt")
    lock = property(lambda self: self.path / "lock")

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """A folder that holds a run."""
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise RunFolderError(f"{path} is not a folder; give the run folder that `pseudolangevin sample` made")
        if not folder.config.is_file():
            raise RunFolderError(
                f"{path} holds no run (config.toml is missing); start one with `pseudolangevin sample`"
            )
        return folder

    @classmethod
    def fresh(cls, path: Path) -> RunFolder:
        """A new or empty folder."""
        folder = cls(Path(path))
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            contents = {entry.name for entry in folder.path.iterdir() if not entry.name.endswith(".partial")}
        except OSError as error:
            raise RunFolderError(f"{path} cannot be made: {error.strerror}; choose another --out") from None
        if "config.toml" in contents:
            raise RunFolderError(
                f"{path} already holds a run; continue it with `pseudolangevin resume {path}`, or choose another --out"
            )
        if contents - HARMLESS:
            raise RunFolderError(f"{path} is not empty (it holds {min(contents - HARMLESS)}); choose another --out")
        return folder

    def log(self, line: str) -> None:
        """One dated line for a person; losing it must not stop a run."""
        try:
            with self.log_file.open("a", encoding="utf-8") as file:
                file.write(f"{datetime.now().astimezone().isoformat(sep=' ', timespec='seconds')}  {line}\n")
        except OSError:
            pass


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made or written, before hours of work are put into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be written: {error.strerror}; make it writable, or choose another folder"
        ) from error


def write_atomically(path: Path, text: str) -> None:
    """Replace a file as a whole: a reader, or a crash, sees the old text or the new."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the run folder."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}; restore it from a copy") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged ({' '.join(str(error).split())}); restore it from a copy") from None
    if not isinstance(value, dict):
        raise RunFolderError(f"{path} is damaged (not a JSON object); restore it from a copy")
    return value


@contextmanager
def disk_errors(folder: RunFolder) -> Iterator[None]:
    """Turn a full disk and other failures to write into one clear line."""
    try:
        yield
    except RunFolderError:
        raise
    except Exception as error:
        if _disk_is_full(error):
            raise DiskFullError(
                f"{folder.path}: no space left on the disk; what was recorded is safe: free some space, then "
                f"`pseudolangevin resume {folder.path}`"
            ) from error
        if isinstance(error, OSError):
            raise RunFolderError(
                f"{error.filename or folder.path}: {error.strerror or error}; make the folder writable, then "
                f"`pseudolangevin resume {folder.path}`"
            ) from error
        raise


def _disk_is_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        # The writer of checkpoints reports system errors as text.
        if "No space left on device" in str(error) or "Disk quota exceeded" in str(error):
            return True
        if isinstance(error, BaseExceptionGroup):
            return any(_disk_is_full(inner) for inner in error.exceptions)
        error = error.__cause__ or error.__context__
    return False
