"""Runs in folders: start one, continue one, read one back.

All processes of a run execute the same functions; the first one holds the lock and writes the files.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import placement as hosts
from ..chains import Record, Result
from ..samplers.base import HEALTHY
from . import config
from .build import Experiment, build, naming
from .config import PATHS, ConfigError, Settings
from .folder import RunFolder, RunFolderError, describe_session, disk_errors, locked, read_json, write_atomically
from .store import CHUNK, Checkpoint, Checkpoints, Store, Writer, open_stores, read_committed

CHANGEABLE = (
    "num_steps",
    *(f"recording.{key}" for key in ("checkpoint_every", "checkpoint_seconds", "keep_checkpoints")),
    *(f"placement.{key}" for key in ("chains", "data", "weights")),
)  # settings that may change when a run is continued, besides the paths of files: data are recognised by their hash
FREE = (*CHANGEABLE, *(f"{section}.{key}" for section in ("task", "start") for key in PATHS))
MAY_CHANGE = f"only {', '.join(CHANGEABLE)} and the paths of files may change"
STOPPING = "stopping at the next record; Ctrl-C again ends the run at once"
Command = Sequence[str] | None
ENDED = "ended at once; what was recorded is safe, and `resume` continues the run from its last checkpoint"


@dataclass(frozen=True)
class Outcome:
    """How a session ended."""

    path: Path
    step: int
    num_steps: int
    interrupted: bool
    stopped_chains: int = 0  # chains that broke down: not finite, or without noise
    seconds: float = 0.0  # of sampling, in all sessions
    notes: tuple[str, ...] = ()  # what a person should know: a stale lock that was taken over, a damaged checkpoint
    first_step: int = 0  # step at which the session began

    @property
    def nothing_to_do(self) -> bool:
        """Whether the run had all its steps before the session began."""
        return self.first_step >= self.num_steps

    @property
    def summary(self) -> str:
        """What was done, in one line."""
        if self.nothing_to_do:
            return f"the run already has {self.step} steps; there is nothing to do"
        return f"{self.step} of {self.num_steps} steps done, {self.seconds:.0f} s of sampling"

    @property
    def written_here(self) -> bool:
        """Whether this process wrote the files, and prints for all processes."""
        return hosts.is_first()


def start(settings: Settings, path: str | Path, *, command: Command = None, progress: bool | None = None) -> Outcome:
    """Sample into a new run folder.

    Args:
        settings: from `config.read`, `config.parse` or `Settings`.
        path: the folder, which must be new or empty.
        command: command noted in provenance.json; default: that of this process.
        progress: show a progress bar; default: when the output is a terminal.
    """
    folder = RunFolder(Path(path))
    with hosts.together():
        experiment = build(settings)
        if hosts.is_first():
            RunFolder.new(folder.path)
    with _session(folder, command, progress) as session:
        return session.begin(experiment)


def resume(
    path: str | Path, overrides: Sequence[str] = (), *, command: Command = None, progress: bool | None = None
) -> Outcome:
    """Continue a run from its newest valid checkpoint; the result is that of an uninterrupted run, to the bit.

    On other devices, or with another placement, it is the same to rounding.

    Args:
        path: the run folder.
        overrides: `key=value` changes of keys in `CHANGEABLE` and of paths, which are relative to the run folder;
            `num_steps=40000` extends a run.
        command: see `start`.
        progress: see `start`.
    """
    folder = RunFolder.existing(path)
    checkpoints = Checkpoints(folder.checkpoints)
    with _session(folder, command, progress) as session:
        with hosts.together():
            settings = _changed(folder, overrides)
            begun = folder.committed.exists()
            experiment = build(settings, check_start=not begun)
            _check_unchanged(folder, experiment)
            if not begun and any(checkpoints.steps()):
                raise RunFolderError(f"{folder.committed} is missing; restore it from a copy")
        if not begun:
            session.log("resumed before the first record: beginning again")
            return session.begin(experiment)
        with hosts.together():
            at, states, damage, *_ = _restore(folder, experiment)
            session.notes += damage
            if hosts.is_first():
                for line in session.notes:
                    folder.log(line)
                if at.step < settings.num_steps:
                    noted = read_json(folder.provenance)
                    entry = describe_session(session.command) | {"from_step": at.step}
                    noted["resumed"] = [*noted.get("resumed", []), entry]
                    write_atomically(folder.provenance, json.dumps(noted, indent=2))
                    folder.log(f"resumed from the checkpoint at step {at.step}")
                write_atomically(folder.config, config.to_toml(settings))
                checkpoints.clean(newer_than=at.step)
        return session.proceed(experiment, experiment.run.put(states), at)


def load(path: str | Path, *, samples: bool = True) -> Result:
    """Return the result of a run, finished or not, as `sample` would have returned it.

    Args:
        path: the run folder.
        samples: also read the kept weights into memory.
    """
    folder = RunFolder.existing(path)
    settings = _read_settings(folder, ["placement={chains=1}"])
    read_committed(folder)
    experiment = build(settings, check_start=False)
    run, shape = experiment.run, experiment.weights_shape
    _, states, notes, trace_store, weights_store = _restore(folder, experiment)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    trace = run.trace(trace_store.read(without=("step", "seconds")), shape, settings.record_every)
    seconds = float(trace_store.read(trace_store.recorded - 1)["seconds"][-1]) if trace_store.recorded else math.nan
    kept = None
    if samples and weights_store.recorded:
        kept = jax.tree.unflatten(jax.tree.structure(shape), [*weights_store.read(without=("step",)).values()])
        trace.attrs["keep_weights_every"] = settings.recording.keep_weights_every
    result = run.result(run.put(states), [], every=settings.record_every)
    return replace(result, trace=trace, samples=kept, seconds=seconds)


@dataclass
class _Session:
    """A session that holds the lock of a run folder."""

    folder: RunFolder
    command: Sequence[str]
    progress: bool | None
    notes: list[str]
    stop_asked: Callable[[], bool]

    def log(self, line: str) -> None:
        if hosts.is_first():
            self.folder.log(line)

    def begin(self, experiment: Experiment) -> Outcome:
        """Sample from the first step on."""
        folder, settings, run = self.folder, experiment.settings, experiment.run
        noted = describe_session(self.command) | _hashes(experiment) | {"seed": settings.seed, "resumed": []}
        with hosts.together():
            if hosts.is_first():
                write_atomically(folder.config, config.to_toml(settings))
                write_atomically(folder.provenance, json.dumps(noted, indent=2))
        self.log(f"started: {run.size} chains of {settings.num_steps} steps, {run.sampler!r}")

        def on_pause() -> None:
            if self.stop_asked():
                raise _StopAskedError

        try:
            weights = experiment.starting_weights(on_pause, self.progress if hosts.is_first() else False)
        except _StopAskedError:
            self.log("interrupted before the first step")
            return Outcome(folder.path, 0, settings.num_steps, interrupted=True)
        with naming("start"):
            states = run.start(weights, settings.seed)
        complete = hosts.to_first(states)
        with hosts.together():
            if hosts.is_first():
                for leftover in (folder.trace, folder.weights, folder.checkpoints):
                    shutil.rmtree(leftover, ignore_errors=True)
                Writer.create(folder, run, complete, settings)
        return self.proceed(experiment, states, Checkpoint())

    def proceed(self, experiment: Experiment, states: Any, at: Checkpoint) -> Outcome:
        """Sample from a checkpoint on."""
        settings, run = experiment.settings, experiment.run
        with hosts.together():
            writer = Writer(self.folder, run, states, settings, at) if hosts.is_first() else None
        last, interrupted = Record(at.step, states, None), self.stop_asked()
        every, keep_every = settings.record_every, settings.record_every * settings.recording.keep_weights_every
        stop, pause = at.step if interrupted else settings.num_steps, settings.recording.checkpoint_every
        show = self.progress if writer else False
        records = run.records(states, first=at.step, stop=stop, every=every, pause_every=pause, progress=show)
        with closing(records):  # type: ignore[type-var]
            for last in records:
                kept = run.positions(last.states) if keep_every and last.step % keep_every == 0 else None
                due = hosts.first_decides(writer is not None and writer.checkpoint_due(last.step))
                complete = hosts.to_first(last.states) if due else None
                with hosts.together():
                    if writer:
                        writer.add(last, kept)
                    if writer and due:
                        writer.checkpoint(last.step, complete)
                if last.step < settings.num_steps and self.stop_asked():
                    interrupted = True
                    break
        if hosts.first_decides(writer is not None and writer.saved_step != last.step):
            complete = hosts.to_first(last.states)
            with hosts.together():
                if writer:
                    writer.checkpoint(last.step, complete)
        stopped = int((~np.isin(np.asarray(hosts.to_host(last.states.status)), HEALTHY)).sum())
        seconds = writer.seconds if writer else 0.0
        how = "interrupted" if interrupted else "ended"
        self.log(f"{how} at step {last.step} of {settings.num_steps} after {seconds:.1f} s of sampling")
        ended = (last.step, settings.num_steps, interrupted, stopped, seconds)
        return Outcome(self.folder.path, *ended, tuple(self.notes), at.step)


class _StopAskedError(Exception):
    """A stop was requested while the start was trained."""


@contextmanager
def _session(folder: RunFolder, command: Command, progress: bool | None) -> Iterator[_Session]:
    """Lock the folder, log warnings, and stop on signals."""
    notes: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(disk_errors(folder))
        with hosts.together():
            if hosts.is_first() and (note := stack.enter_context(locked(folder))):
                notes.append(note)
        stop_asked = stack.enter_context(stop_on_signals())
        if hosts.is_first():
            stack.enter_context(warnings.catch_warnings())
            show = warnings.showwarning

            def show_and_log(message: Any, *details: Any, **more: Any) -> None:
                folder.log(f"warning: {message}")
                show(message, *details, **more)

            warnings.showwarning = show_and_log
        yield _Session(folder, command or sys.argv, progress, notes, lambda: hosts.any_process(stop_asked()))


def _restore(folder: RunFolder, experiment: Experiment) -> tuple[Checkpoint, Any, list[str], Store, Store]:
    """Return the newest valid checkpoint, its states, notes on damage, and the stores of the trace and kept weights.

    Raises an error if the files do not fit the configuration or each other.
    """
    settings, run = experiment.settings, experiment.run
    shapes = run.abstract_states(experiment.weights_shape)
    at, states, notes = Checkpoints(folder.checkpoints).newest(shapes)
    records, kept = read_committed(folder)  # after the checkpoint, which a run writes after its records
    trace, weights = open_stores(folder, run, shapes, settings, (records, kept))
    trace.read(at.records - at.records % CHUNK, min(at.records, records))  # the file that is continued
    every = settings.recording.keep_weights_every or records + 1
    wrong = kept != records // every or at.records != at.step // settings.record_every
    if wrong or at.records > records or at.kept > kept:
        why = f"gives {records} records and {kept} kept weights, which does not fit the checkpoint at step {at.step}"
        raise RunFolderError(f"{folder.committed} {why}; restore the folder from a copy")
    return at, states, notes, trace, weights


def _read_settings(folder: RunFolder, overrides: Sequence[str] = ()) -> Settings:
    try:
        return config.read(folder.config, overrides)
    except ConfigError as error:
        raise ConfigError([f"{folder.config}: {line}" for line in error.lines]) from None


def _changed(folder: RunFolder, overrides: Sequence[str]) -> Settings:
    """Return the settings with overrides; raise if one of them would make another run."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key not in FREE:
            raise ConfigError([f"--set {override}: a run that is continued keeps its {key}; {MAY_CHANGE}"])
    settings = config.parse(config.to_toml(_read_settings(folder)), overrides, folder=folder.path.resolve())
    done = Checkpoints(folder.checkpoints).steps()
    if done and settings.num_steps < done[-1]:
        given = f"num_steps = {settings.num_steps}"
        raise ConfigError([f"{given} is below the {done[-1]} steps already done; give a larger number"])
    return settings


def _hashes(experiment: Experiment) -> dict[str, str]:
    """Return SHA-256 hashes of the data, and of the settings that decide the chains and the layout of the files."""
    data = hashlib.sha256()
    sets = [dataset.batch for dataset in (experiment.run.sampler.dataset, experiment.run.test) if dataset is not None]
    for leaf in jax.tree.leaves(sets):
        data.update(f"{np.dtype(leaf.dtype).str} {tuple(leaf.shape)}".encode())
        array, at_once = np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, 2**16
        for first in range(0, leaf.shape[0], at_once):  # a data set on disk need not fit into memory
            data.update(np.ascontiguousarray(array[first : first + at_once]).data)
    settings: dict[str, Any] = {}
    for name, value in experiment.settings.model_dump().items():
        settings |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    text = json.dumps({name: value for name, value in settings.items() if name not in FREE}, sort_keys=True)
    return {"data_sha256": data.hexdigest(), "settings_sha256": hashlib.sha256(text.encode()).hexdigest()}


def _check_unchanged(folder: RunFolder, experiment: Experiment) -> None:
    """Raise if the settings or the data are not those that the run began with."""
    if not folder.provenance.exists() and not folder.committed.exists():
        return
    noted, hashes = read_json(folder.provenance), _hashes(experiment)
    if noted.get("settings_sha256") != hashes["settings_sha256"]:
        remedy = f"put it back, or sample with it into a new folder ({MAY_CHANGE})"
        raise RunFolderError(f"{folder.config} was changed since the run began; {remedy}")
    if noted.get("data_sha256") != hashes["data_sha256"]:
        raise RunFolderError(f"the data are not those that {folder.path} began with; put the files back as they were")


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Make Ctrl-C and SIGTERM a request to stop; gives a function that returns whether one was made.

    Python's own handlers wait until compiled code returns, which may take many seconds. So a thread, woken by the
    signal itself, prints at once, and ends the process at a second signal, which is like a kill: the run continues from
    its last checkpoint. An exception instead could come out anywhere, also in a callback of JAX, where it would be a
    segmentation fault. An interactive session is not ended: there, the second signal raises KeyboardInterrupt. Outside
    the main thread, where signals cannot be caught, no request can be made.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked, interactive = False, hasattr(sys, "ps1") or "ipykernel" in sys.modules

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked and interactive:
            raise KeyboardInterrupt
        asked = True

    def listen() -> None:
        seen = 0
        while number := os.read(reader, 1):  # the number of a signal as it arrives
            seen += number[0] in handlers
            if number[0] in handlers:
                os.write(2, f"{STOPPING}\n".encode() if seen == 1 else f"\n{ENDED}\n".encode())
            if seen > 1:
                os._exit(130)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    handlers = {int(number): signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    wakeup = -1 if interactive else signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield lambda: asked
    finally:
        if not interactive:
            signal.set_wakeup_fd(wakeup)
        os.close(writer)  # ends the thread
        thread.join()
        os.close(reader)
        for number, handler in handlers.items():
            signal.signal(number, handler)
