"""Where a result comes from: versions, device, seed, the hash of the data, and when and how it was made."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from datetime import datetime
from importlib import metadata
from typing import Any

import jax
import numpy as np

from .chains import Plan
from .config import Settings
from .config.build import Experiment
from .config.toml import PATH_KEYS
from .data import CHECKED

PACKAGES = ("pseudolangevin", "jax", "jaxlib", "numpy", "optax", "zarr", "orbax-checkpoint")


def describe(experiment: Experiment, command: Sequence[str]) -> dict[str, Any]:
    """What is noted when a run begins."""
    settings = experiment.settings
    return session(command) | {
        "seed": settings.seed,
        "data_sha256": data_hash(experiment.plan),
        "settings_sha256": settings_hash(settings),
        "resumed": [],
    }


def session(command: Sequence[str]) -> dict[str, Any]:
    """What is noted of every session, the first and those that continue it."""
    device = jax.devices()[0]
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": list(command),
        "versions": {"python": platform.python_version()} | {name: version_of(name) for name in PACKAGES},
        "device": device.device_kind,
        "backend": device.platform,
        "num_devices": jax.device_count(),
        "num_processes": jax.process_count(),
    }


def version_of(package: str) -> str:
    """The installed version, or "unknown" where it runs without being installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def data_hash(plan: Plan) -> str:
    """SHA-256 of the training set and the test set: types, shapes, numbers."""
    digest = hashlib.sha256()
    validation = getattr(plan.sampler.dataset, "validation", None)
    parts = [part.batch for part in (plan.sampler.dataset, validation, plan.test) if part is not None]
    for leaf in jax.tree.leaves(parts):
        digest.update(f"{np.dtype(leaf.dtype).str} {tuple(leaf.shape)}".encode())
        whole = leaf if not isinstance(leaf, jax.Array) else np.asarray(leaf)
        for start in range(0, leaf.shape[0], CHECKED):  # a data set on disk need not fit into memory
            digest.update(np.ascontiguousarray(whole[start : start + CHECKED]).data)
    return digest.hexdigest()


def settings_hash(settings: Settings, *, paths: bool = False) -> str:
    """SHA-256 of the settings that decide the trajectory and the layout of the stores.

    Where files lie is not among them: the data have a hash of their own. With `paths` it is, as in older run folders.
    """
    ignored: Any = {"num_steps": True, "recording": {"checkpoint_every", "checkpoint_seconds", "keep_checkpoints"}}
    if not paths:
        ignored |= {section: set(keys) for section, keys in PATH_KEYS}
    values = settings.model_dump(exclude=ignored)
    values["placement"] = {"kind": "one_device"}  # any placement gives the same chain
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
