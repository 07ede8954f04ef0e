"""Run folders that were damaged or edited: one clear line, and nothing is changed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pseudolangevin.runs import session
from pseudolangevin.runs.config import ConfigError
from pseudolangevin.runs.folder import RunFolderError
from tests.runs.small_runs import snapshot


def change(name: str, new: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def action(path: Path) -> None:
        before = (path / name).read_bytes()
        (path / name).write_bytes(new(before))
        assert (path / name).read_bytes() != before

    return action


def put(name: str, content: bytes) -> Callable[[Path], object]:
    return change(name, lambda _: content)


def cut(name: str) -> Callable[[Path], object]:
    return change(name, lambda content: content[: len(content) // 2])


def flip(name: str, where: int) -> Callable[[Path], object]:
    return change(name, lambda content: content[:where] + bytes([content[where] ^ 16]) + content[where + 1 :])


def edit(old: str, new: str) -> Callable[[Path], object]:
    return change("config.toml", lambda content: content.replace(old.encode(), new.encode(), 1))


def drop(name: str) -> Callable[[Path], object]:
    return lambda path: shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()


def swap(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Put something else in the place of a file."""

    def action(path: Path) -> None:
        (path / name).unlink()
        make(path / name)

    return action


def link(name: str) -> Callable[[Path], object]:
    """Move a file or folder elsewhere, and put a symbolic link in its place."""

    def action(path: Path) -> None:
        elsewhere = path.with_name(f"{path.name}-{Path(name).name}")
        if (path / name).exists():
            (path / name).rename(elsewhere)
        (path / name).symlink_to(elsewhere)

    return action


def hostile(header: dict) -> Callable[[Path], object]:
    """Put a header with a right checksum in front of the records."""
    line = json.dumps(header).encode() + b"\n"
    return put("trace.records", line + hashlib.sha256(line).hexdigest().encode() + b"\n" + bytes(5_000))


JUNK = random.Random(0).randbytes(64)
HEADER = {
    "format": "pseudolangevin records 2",
    "run": {},
    "about": {"variables": {}, "coords": {}, "observed_examples": 1},
}
BOTH = [
    put("config.toml", b""),  # the defaults: another network, so nothing fits
    put("config.toml", JUNK),
    cut("config.toml"),
    edit("num_chains = 2", "num_chains = 3"),
    edit("sizes = [6, 3]", "sizes = [6, 5, 3]"),
    edit("keep_weights_every = 4", "keep_weights_every = 5"),
    edit('name = "pseudo_langevin"', 'name = "adam"'),
    edit("seed = 5", "seed = 6"),
    edit("weight_decay = 1.0", "weight_decay = 1.5"),
    drop("trace.records"),
    cut("trace.records"),
    put("trace.records", JUNK),
    flip("trace.records", 40),
    flip("trace.records", -20_000),
    hostile(HEADER | {"fields": [["loss", "object", [2]]]}),
    hostile(HEADER | {"fields": [["loss", "float64", [1 << 40, 1 << 40]]]}),
    hostile(HEADER | {"fields": [["loss", "float64", [-5]]]}),
    hostile(HEADER | {"fields": 3}),
    hostile(HEADER | {"format": "another"}),
    lambda path: shutil.copy(path / "weights.records", path / "trace.records"),
    drop("weights.records"),
    cut("weights.records"),
    flip("weights.records", -2_000),
    drop("checkpoints"),
    *(link(name) for name in ("config.toml", "provenance.json", "trace.records", "log.txt", "lock", "checkpoints")),
    swap("lock", Path.mkdir),
    swap("config.toml", os.mkfifo),
    lambda path: [file.write_bytes(b"") for file in (path / "checkpoints").iterdir()],
]
RESUME_ONLY = [
    drop("provenance.json"),
    put("provenance.json", JUNK),
    edit("batch_size = 10", "batch_size = 11"),
    lambda path: os.link(path / "log.txt", path.with_name(f"{path.name}-second-name")),
    change("provenance.json", lambda content: content.replace(b'"resumed": []', b'"resumed": "x"')),
    put("lock", b'{"pid": 1, "host": "elsewhere"}'),
]


@pytest.mark.parametrize("action", [session.load, session.continue_run])
def test_damaged_folders(finished, tmp_path, action):
    damages = BOTH + ([] if action is session.load else RESUME_ONLY)
    for number, damage in enumerate(damages):
        path = tmp_path / f"run{number}"
        shutil.copytree(finished, path)
        damage(path)
        before = snapshot(path)
        with pytest.raises((RunFolderError, ConfigError)) as caught:
            action(path)
        lines = caught.value.lines if isinstance(caught.value, ConfigError) else [str(caught.value)]
        assert all("\n" not in line and len(line) > 30 for line in lines), f"damage {number}: {lines}"
        assert snapshot(path) == before, f"damage {number}"
