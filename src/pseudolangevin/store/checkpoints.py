"""Checkpoints: the states of all chains through Orbax, written beside the old ones and then renamed.

Beside each lies a digest of its files, written last: without it a checkpoint is unfinished, and one that does not match
is damaged.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from .folder import RunFolderError, write_atomically

NAME_LENGTH = 10
ORBAX_OVERHEAD = 200_000
"""Bytes beside the arrays themselves, generously."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stood."""

    step: int
    records: int
    kept: int
    seconds: float
    """Spent sampling, over all sessions."""


class DamagedCheckpointError(RunFolderError):
    """A checkpoint that cannot be trusted."""


class Checkpoints:
    """The checkpoints of a run."""

    def __init__(self, path: Path, keep: int = 3) -> None:
        """Checkpoints under `path`, the newest `keep` of them."""
        self._path = path.absolute()
        self._keep = keep

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        if not self._path.is_dir():
            return []
        return sorted(int(entry.stem) for entry in self._path.glob("*.digest") if entry.stem.isdigit())

    def save(self, checkpoint: Checkpoint, states: Any) -> None:
        """Write one, then remove those beyond the number to keep."""
        arrays = to_arrays(states)
        meta = asdict(checkpoint) | {"prng": _prng_name(states)}
        target = self._target(checkpoint.step)
        self._path.mkdir(exist_ok=True)
        tree = {"states": arrays, "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)}
        _check_room(self._path, sum(array.nbytes for array in arrays.values()))
        _digest_file(target).unlink(missing_ok=True)  # of one that is replaced, as in `_remove`
        with _quiet_threads(), _checkpointer() as checkpointer:
            checkpointer.save(target, tree, force=True)
        write_atomically(_digest_file(target), _digest(target))
        for step in self.steps()[: -self._keep]:
            self._remove(step)

    def restore(self, step: int, like: Any) -> tuple[Checkpoint, Any]:
        """The states at `step`, in the structure of `like`."""
        target = self._target(step)
        try:
            # Looked at before Orbax is: half a checkpoint upsets it beyond an error that can be caught.
            if _digest_file(target).read_text() != _digest(target):
                raise ValueError("its files are not what was written")
            with _checkpointer() as checkpointer:
                tree = checkpointer.restore(target)
            meta = json.loads(bytes(tree["meta"]))
            arrays = {name: np.asarray(value) for name, value in tree["states"].items()}
            prng = meta.pop("prng")
            return Checkpoint(**meta), _from_arrays(arrays, like, prng)
        except Exception as error:
            why = " ".join(str(error).split())[:160] or type(error).__name__
            raise DamagedCheckpointError(f"checkpoint {target} is damaged ({why})") from error

    def newest(self, like: Any) -> tuple[Checkpoint, Any, list[str]]:
        """The newest sound checkpoint, and a note for every newer one that is damaged."""
        notes: list[str] = []
        for step in reversed(self.steps()):
            try:
                checkpoint, states = self.restore(step, like)
            except DamagedCheckpointError as error:
                notes.append(f"{error}; falling back to the one before")
            else:
                return checkpoint, states, notes
        raise RunFolderError(
            f"{self._path} holds no sound checkpoint ({notes[0] if notes else 'there is none'}); "
            "sample again into a new folder"
        )

    def clean(self, newer_than: int) -> None:
        """Remove those after a step that a run falls back to, and what was left unfinished."""
        for step in self.steps():
            if step > newer_than:
                self._remove(step)
        whole = {self._target(step).name for step in self.steps()}
        for entry in self._path.iterdir() if self._path.is_dir() else ():
            if entry.is_dir() and entry.name not in whole:
                shutil.rmtree(entry, ignore_errors=True)

    def _remove(self, step: int) -> None:
        """The digest goes first, so that half a checkpoint is never taken for a whole one."""
        _digest_file(self._target(step)).unlink(missing_ok=True)
        shutil.rmtree(self._target(step), ignore_errors=True)

    def _target(self, step: int) -> Path:
        return self._path / f"{step:0{NAME_LENGTH}d}"


def to_arrays(states: Any) -> dict[str, np.ndarray]:
    """Every leaf on the host under its path; keys as their data."""
    flat = jax.tree_util.tree_flatten_with_path(states)[0]
    return {_leaf_name(path): np.array(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for path, leaf in flat}


def _from_arrays(arrays: dict[str, np.ndarray], like: Any, prng: str) -> Any:
    flat, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [_leaf_name(path) for path, _ in flat]
    if set(names) != set(arrays):
        raise ValueError(f"it holds {len(arrays)} arrays that are not those of this sampler")
    leaves = []
    for name, (_, leaf) in zip(names, flat, strict=True):
        value: Any = arrays[name]  # on the host: the placement of the chains decides which device gets what
        value = jax.random.wrap_key_data(jnp.asarray(value), impl=prng) if _is_key(leaf) else value
        if value.shape != leaf.shape or value.dtype != leaf.dtype:
            raise ValueError(
                f"{name} has shape {value.shape} and type {value.dtype}, not {leaf.shape} and {leaf.dtype}"
            )
        leaves.append(value)
    return jax.tree.unflatten(structure, leaves)


def _checkpointer() -> ocp.Checkpointer:
    """Orbax for this process alone: one process writes whole arrays, and those that read wait for nobody."""
    here = jax.process_index()
    options = ocp.options.MultiprocessingOptions(primary_host=here, active_processes={here})
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=options)
    return ocp.Checkpointer(handler, multiprocessing_options=options)


def _check_room(path: Path, num_bytes: int) -> None:
    """Fail before Orbax begins where there is no room: once begun, its threads complain each for itself."""
    needed = int(1.1 * num_bytes) + ORBAX_OVERHEAD
    if shutil.disk_usage(path).free < needed:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


@contextmanager
def _quiet_threads() -> Iterator[None]:
    """Without the tracebacks of Orbax's own threads: what goes wrong in them is raised in ours as well."""
    before = threading.excepthook
    threading.excepthook = lambda _: None
    try:
        yield
    finally:
        threading.excepthook = before


def _leaf_name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _prng_name(states: Any) -> str:
    return str(jax.random.key_impl(states.key))


def _digest_file(target: Path) -> Path:
    return target.with_name(target.name + ".digest")


def _digest(target: Path) -> str:
    """A hash of the names and contents of all files of a checkpoint."""
    digest = hashlib.blake2b()
    for file in sorted(path for path in target.rglob("*") if path.is_file()):
        digest.update(str(file.relative_to(target)).encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
