"""Checkpoints: the states of all chains through Orbax, written beside the old ones and then renamed.

Each carries a digest of its arrays, so that a damaged one is known for what it is.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from .folder import RunFolderError

NAME_LENGTH = 10


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
        # Unfinished ones have a longer name until they are whole.
        return sorted(int(entry.name) for entry in self._path.iterdir() if entry.is_dir() and entry.name.isdigit())

    def save(self, checkpoint: Checkpoint, states: Any) -> None:
        """Write one, then remove those beyond the number to keep."""
        arrays = to_arrays(states)
        meta = asdict(checkpoint) | {"digest": _digest(arrays), "prng": _prng_name(states)}
        target = self._path / f"{checkpoint.step:0{NAME_LENGTH}d}"
        self._path.mkdir(exist_ok=True)
        tree = {"states": arrays, "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)}
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(target, tree, force=True)
        for step in self.steps()[: -self._keep]:
            self._remove(step)

    def restore(self, step: int, like: Any) -> tuple[Checkpoint, Any]:
        """The states at `step`, in the structure of `like`."""
        target = self._path / f"{step:0{NAME_LENGTH}d}"
        try:
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
                tree = checkpointer.restore(target)
            meta = json.loads(bytes(tree["meta"]))
            arrays = {name: np.asarray(value) for name, value in tree["states"].items()}
            if _digest(arrays) != meta.pop("digest"):
                raise ValueError("the digest of its arrays does not match")
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
        """Remove unfinished checkpoints, and those after a step that a run falls back to."""
        for entry in self._path.iterdir() if self._path.is_dir() else ():
            if entry.is_dir() and "orbax-checkpoint-tmp" in entry.name:
                shutil.rmtree(entry, ignore_errors=True)
        for step in self.steps():
            if step > newer_than:
                self._remove(step)

    def _remove(self, step: int) -> None:
        """Rename first, so that a half-removed checkpoint is never taken for a whole one."""
        target = self._path / f"{step:0{NAME_LENGTH}d}"
        doomed = target.with_name(target.name + ".orbax-checkpoint-tmp-removed")
        target.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


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
        value = jnp.asarray(arrays[name])
        value = jax.random.wrap_key_data(value, impl=prng) if _is_key(leaf) else value
        if value.shape != leaf.shape or value.dtype != leaf.dtype:
            raise ValueError(
                f"{name} has shape {value.shape} and type {value.dtype}, not {leaf.shape} and {leaf.dtype}"
            )
        leaves.append(value)
    return jax.tree.unflatten(structure, leaves)


def _leaf_name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _prng_name(states: Any) -> str:
    return str(jax.random.key_impl(states.key))


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
