"""Runs that live in a folder: start one, continue one, read one back."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import config, hosts, provenance
from .chains import Record, Result
from .config import ConfigError, Settings
from .config.build import Experiment, StopAskedError, build, naming
from .config.toml import PATH_KEYS
from .stopping import stop_on_signals
from .store.checkpoints import Checkpoint, Checkpoints
from .store.folder import RunFolder, RunFolderError, disk_errors, read_json, write_atomically
from .store.lock import locked
from .store.samples import one_chain, read_samples
from .store.trace import check_trace, checked_arrays, open_group, read_trace
from .store.writer import Needs, RunWriter, read_committed, samples_schema
from .types import Status

CHANGEABLE = (
    "num_steps",
    "recording.checkpoint_every",
    "recording.checkpoint_seconds",
    "recording.keep_checkpoints",
    "placement.kind",
    "placement.chains",
    "placement.data",
    "placement.weights",
)
"""What may change when a run is continued; anything else would make it another run."""
PATHS = tuple(f"{section}.{key}" for section, keys in PATH_KEYS for key in keys)
"""Where files lie may change as well: the data have a hash, and the start is not read again."""
MAY_CHANGE = f"only {', '.join(CHANGEABLE)} and the paths of files may change"


@dataclass(frozen=True)
class Outcome:
    """How a session ended."""

    path: Path
    step: int
    num_steps: int
    interrupted: bool
    stopped_chains: int
    """Chains that stopped by themselves: not finite, or without noise."""
    seconds: float
    notes: tuple[str, ...]
    """What a person should know: a stale lock taken over, a damaged checkpoint passed by."""
    first_step: int = 0
    """Where the session went on from."""

    @property
    def nothing_to_do(self) -> bool:
        """Whether the run had all its steps before the session began."""
        return self.first_step >= self.num_steps

    @property
    def summary(self) -> str:
        """What was done, in a line."""
        if self.nothing_to_do:
            return f"the run already has {self.step} steps; nothing is to be done"
        return f"{self.step} of {self.num_steps} steps done, {self.seconds:.0f} s of sampling"

    @property
    def written_here(self) -> bool:
        """Whether this is the process that wrote it and speaks for all."""
        return hosts.is_first()


def start(
    settings: Settings, path: str | Path, *, command: Sequence[str] | None = None, progress: bool | None = None
) -> Outcome:
    """Sample into a new run folder.

    Args:
        settings: from `config.read`, `config.parse` or `Settings(...)`.
        path: the folder, which must be new or empty.
        command: what to note as the command that started it; default: this process's own.
        progress: show a progress bar; default: when the output is a terminal.
    """
    folder = RunFolder(Path(path))
    with hosts.together():
        experiment = build(settings)
        if hosts.is_first():
            RunFolder.fresh(folder.path)
    with _session(folder) as (_, stop_asked):
        return _begin(folder, experiment, stop_asked, command, progress)


def resume(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    command: Sequence[str] | None = None,
    progress: bool | None = None,
) -> Outcome:
    """Continue a run from its newest sound checkpoint; the result is that of an uninterrupted run, to the bit.

    On other devices, or split over them in another way, it is so to rounding.

    Args:
        path: the run folder.
        overrides: `key=value` changes, of the keys in `CHANGEABLE` and `PATHS` alone: `num_steps=40000` extends a
            run. Paths are relative to the run folder.
        command: see `start`.
        progress: see `start`.
    """
    folder = RunFolder.existing(Path(path))
    with _session(folder) as (note, stop_asked):
        with hosts.together():
            settings = _changed(folder, overrides)
            committed = read_committed(folder)
            experiment = build(settings, check_start=committed is None)
        _check_unchanged(folder, experiment)
        if committed is None:
            if any(Checkpoints(folder.checkpoints).steps()):  # one after step 0
                raise RunFolderError(f"{folder.committed} is missing; restore it from a copy")
            _log(folder, "resumed before the first record: beginning again")
            return _begin(folder, experiment, stop_asked, command, progress)
        with hosts.together():
            shapes = experiment.plan.abstract_states(experiment.weights_shape)
            at, states, damage = Checkpoints(folder.checkpoints).newest(shapes)
            _check_stores(folder, experiment, shapes, at, committed)
        notes = ([note] if note else []) + damage
        with hosts.together():
            if hosts.is_first():
                for line in notes:
                    folder.log(line)
                if at.step < settings.num_steps:
                    _note_resumption(folder, at.step, command)
                write_atomically(folder.config, config.to_toml(settings))
                Checkpoints(folder.checkpoints).clean(newer_than=at.step)
        states = experiment.plan.put(states)
        return _continue(folder, experiment, states, at, committed[0], stop_asked, progress, tuple(notes))


def load(path: str | Path, *, samples: bool = True) -> Result:
    """The result of a run, finished or not, as `sample` would have returned it.

    Weights and states are those of the newest sound checkpoint. The trace has every record that is whole on disk.

    Args:
        path: the run folder.
        samples: read the kept weights into memory as well.
    """
    folder = RunFolder.existing(Path(path))
    settings = _read_settings(folder, ['placement={kind="one_device"}'])  # wherever it ran
    _begun(folder)
    experiment = build(settings, check_start=False)
    plan = experiment.plan
    shapes = plan.abstract_states(experiment.weights_shape)
    at, states, notes = Checkpoints(folder.checkpoints).newest(shapes)
    # Only now: the run may go on meanwhile, and what a checkpoint needs is committed before it is made.
    committed = _begun(folder)
    _check_stores(folder, experiment, shapes, at, committed)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    records = read_trace(folder.trace, plan.empty_trace(shapes), committed[0])
    trace = plan.trace(records, experiment.weights_shape)
    kept = None
    if samples and settings.recording.keep_weights_every:
        schema = samples_schema(plan, shapes, settings.recording)
        kept = read_samples(folder.weights, schema, one_chain(shapes.weights), committed[1])
        trace.attrs["keep_weights_every"] = settings.recording.keep_weights_every
    states = plan.put(states)
    return Result(trace, plan.layout.unflatten(states.weights), kept, states, plan.sampler)


def _begin(
    folder: RunFolder,
    experiment: Experiment,
    stop_asked: Callable[[], bool],
    command: Sequence[str] | None,
    progress: bool | None,
) -> Outcome:
    settings, plan = experiment.settings, experiment.plan
    described = provenance.describe(experiment, command or sys.argv)
    with hosts.together():
        if hosts.is_first():
            write_atomically(folder.config, config.to_toml(settings))
            write_atomically(folder.provenance, json.dumps(described, indent=2))
    _log(folder, f"started: {plan.layout.size} chains of {plan.num_steps} steps, {plan.sampler!r}")
    try:
        weights = experiment.starting_weights(stop_asked, progress=progress if hosts.is_first() else False)
    except StopAskedError:
        _log(folder, "interrupted before the first step")
        return Outcome(folder.path, 0, plan.num_steps, True, 0, 0.0, ())
    with naming("start"):
        states = plan.init(weights, settings.seed)
    at = Checkpoint(step=0, records=0, kept=0, seconds=0.0)
    whole = hosts.to_first(states)
    with hosts.together():
        if hosts.is_first():
            for leftover in (folder.trace, folder.weights, folder.checkpoints):
                shutil.rmtree(leftover, ignore_errors=True)
            at = RunWriter.create(folder, plan, whole, settings.recording)
    return _continue(folder, experiment, states, at, 0, stop_asked, progress, ())


def _continue(
    folder: RunFolder,
    experiment: Experiment,
    states: Any,
    at: Checkpoint,
    written: int,
    stop_asked: Callable[[], bool],
    progress: bool | None,
    notes: tuple[str, ...],
) -> Outcome:
    plan = experiment.plan
    with hosts.together():
        recording = experiment.settings.recording
        writer = RunWriter(folder, plan, states, recording, at, written=written) if hosts.is_first() else None
    last = Record(at.step, states, None)
    interrupted = stop_asked()
    if not interrupted:
        show = progress if writer else False
        with closing(plan.run(states, start=at.step, progress=show)) as records:  # type: ignore[type-var]
            for last in records:
                record = _gathered(last, Needs(hosts.first_decides(writer.needs() if writer else Needs.NOTHING)))
                with hosts.together():
                    if writer:
                        writer.add(record)
                if stop_asked() and last.step < plan.num_steps:
                    interrupted = True
                    break
    if hosts.first_decides(writer is not None and writer.saved_step != last.step):
        record = _gathered(last, Needs.STATES)
        with hosts.together():
            if writer:
                writer.checkpoint(record)
    stopped = sum(not Status(int(status)).healthy for status in np.asarray(hosts.to_host(last.states.status)))
    seconds = writer.seconds if writer else 0.0
    how = "interrupted" if interrupted else "ended"
    _log(folder, f"{how} at step {last.step} of {plan.num_steps} after {seconds:.1f} s of sampling")
    return Outcome(folder.path, last.step, plan.num_steps, interrupted, stopped, seconds, notes, at.step)


def _gathered(record: Record, needs: Needs) -> Record:
    """The record with what is needed of the chains whole in the process that writes."""
    if needs is Needs.NOTHING:
        return record
    if needs is Needs.STATES:
        return replace(record, states=hosts.to_first(record.states))
    return replace(record, states=record.states._replace(weights=hosts.to_first(record.states.weights)))


@contextmanager
def _session(folder: RunFolder) -> Iterator[tuple[str | None, Callable[[], bool]]]:
    """The lock and the log, in the process that writes; and whether any process was asked to stop."""
    note = None
    with ExitStack() as stack:
        stack.enter_context(disk_errors(folder))
        with hosts.together():
            if hosts.is_first():
                note = stack.enter_context(locked(folder))
        stop_asked = stack.enter_context(stop_on_signals())
        if hosts.is_first():
            stack.enter_context(_logged_warnings(folder))
        yield note, lambda: hosts.any_process(stop_asked())


def _begun(folder: RunFolder) -> tuple[int, int]:
    """How many records and kept weights are whole; refuse a run that has not begun."""
    committed = read_committed(folder)
    if committed is None:
        raise RunFolderError(f"{folder.path} holds no records yet; begin with `pseudolangevin resume {folder.path}`")
    return committed


def _log(folder: RunFolder, line: str) -> None:
    if hosts.is_first():
        folder.log(line)


def _read_settings(folder: RunFolder, overrides: Sequence[str] = ()) -> Settings:
    try:
        return config.read(folder.config, overrides)
    except ConfigError as error:
        raise ConfigError([f"{folder.config}: {line}" for line in error.lines]) from None


def _changed(folder: RunFolder, overrides: Sequence[str]) -> Settings:
    before = _read_settings(folder)
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key not in CHANGEABLE + PATHS:
            raise ConfigError([f"--set {override}: a run that is continued keeps its {key}; {MAY_CHANGE}"])
    settings = config.parse(config.to_toml(before), overrides, folder=folder.path.resolve())
    steps = Checkpoints(folder.checkpoints).steps()
    if steps and settings.num_steps < steps[-1]:
        raise ConfigError(
            [f"num_steps = {settings.num_steps} is below the {steps[-1]} steps already done; give a larger number"]
        )
    return settings


def _check_unchanged(folder: RunFolder, experiment: Experiment) -> None:
    """Refuse to continue with other settings or other data than the run began with."""
    if not folder.provenance.exists() and not folder.committed.exists():
        return
    noted = read_json(folder.provenance)
    if noted.get("settings_sha256") not in [
        provenance.settings_hash(experiment.settings, paths=paths) for paths in (False, True)
    ]:
        raise RunFolderError(
            f"{folder.config} was changed since the run began; put it back, or sample with it into a new folder "
            f"({MAY_CHANGE})"
        )
    if noted.get("data_sha256") != provenance.data_hash(experiment.plan):
        raise RunFolderError(f"the data are not those that {folder.path} began with; put the files back as they were")


def _check_stores(
    folder: RunFolder, experiment: Experiment, shapes: Any, at: Checkpoint, committed: tuple[int, int]
) -> None:
    """Refuse stores that do not fit the configuration or each other, before anything is written."""
    plan, recording = experiment.plan, experiment.settings.recording
    records, kept = committed
    check_trace(folder.trace, plan.empty_trace(shapes), records, min(at.records, records))
    every = recording.keep_weights_every
    if every:
        schema = samples_schema(plan, shapes, recording)
        checked_arrays(open_group(folder.weights, "r"), folder.weights, schema, kept)
    wrong_count = kept != (records // every if every else 0)
    if wrong_count or at.records * plan.record_every != at.step or at.records > records or at.kept > kept:
        raise RunFolderError(
            f"{folder.committed} says {records} records and {kept} kept weights, which does not fit the checkpoint at "
            f"step {at.step}; restore the folder from a copy"
        )


def _note_resumption(folder: RunFolder, step: int, command: Sequence[str] | None) -> None:
    noted = read_json(folder.provenance)
    resumptions = noted.get("resumed")
    entry = provenance.session(command or sys.argv) | {"from_step": step}
    noted["resumed"] = [*(resumptions if isinstance(resumptions, list) else []), entry]
    write_atomically(folder.provenance, json.dumps(noted, indent=2))
    folder.log(f"resumed from the checkpoint at step {step}")


@contextmanager
def _logged_warnings(folder: RunFolder) -> Iterator[None]:
    """Write warnings to the log as well as to where they usually go."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_and_log(message: Any, *details: Any, **more: Any) -> None:
            folder.log(f"warning: {message}")
            show(message, *details, **more)

        warnings.showwarning = show_and_log
        yield
