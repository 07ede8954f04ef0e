"""Runs in folders: start one, continue one, read one back; from a configuration, or from Python with any model.

All processes of a run execute the same functions; the first one holds the lock and writes the files. The folder of a
run that Python started is like any other, but its model is code, so the sampler has to be given again. It is recognised
by its settings, the data, the structure of the weights and the energies of the last record.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module, util
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import placement as hosts
from .._trees import Weights, check_integer
from ..chains import Record, Result, Run
from ..data import Dataset
from ..samplers.base import HEALTHY, Sampler
from . import ConfigError, RunFolderError, config, naming
from .build import Experiment, build, check_chains, python_settings
from .config import CHANGEABLE, FREE, PythonSettings, Settings
from .folder import RunFolder, damaged, describe_session, disk_errors, locked, read_json, read_text, write_text
from .store import Checkpoint, Checkpoints, Header, RecordFile, Writer, headers, to_dataset

MAY_CHANGE = f"only {', '.join(CHANGEABLE)} and the paths of files may change"
REMEDY = f"put it back, or sample with it into a new folder ({MAY_CHANGE})"
STOPPING = "stopping at the next record; Ctrl-C again ends the run at once"
ENDED = "ended at once; what was recorded is safe, and `resume` continues the run from its last checkpoint"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a session."""

    path: Path
    step: int
    num_steps: int
    interrupted: bool
    stopped_chains: int = 0  # chains that broke down: not finite, or without noise
    seconds: float = 0.0  # of sampling, in all sessions
    first_step: int = 0  # step at which the session began

    @property
    def nothing_to_do(self) -> bool:
        """Whether the run had all its steps before the session began."""
        return self.first_step >= self.num_steps


def start(settings: Settings, path: str | Path, *, allow_code: bool = False, **options: Any) -> Outcome:
    """Sample what a configuration describes into a new or empty folder; `options` are those of `_Session`."""
    with stop_on_signals() as stop_asked:  # from now on: an exception out of JAX's compiler may end the process badly
        with hosts.together():
            experiment = build(settings, allow_code=allow_code)
        with _session(RunFolder(path), stop_asked, new=True, **options) as session:
            return session.begin(experiment)


def _in_first(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in the first process; an error there is an error in all of them."""
    with hosts.together():
        return function(*arguments) if hosts.is_first() else None


def continue_run(
    path: str | Path, changes: Sequence[str] = (), *, how: Mapping[str, Any] | None = None, **options: Any
) -> Outcome:
    """Continue a run from its newest valid checkpoint, to the bit; on other devices or another placement, to rounding.

    `changes` are `key=value`, of keys in `CHANGEABLE` and of paths, which are relative to the run folder. `how` has
    arguments of `build`, and `options` are those of `_Session`.
    """
    with stop_on_signals() as stop_asked, _session(RunFolder.existing(path), stop_asked, **options) as session:
        return session.resume(changes, how or {})


def sample(
    path: str | Path, run: Run, weights: Weights, key: Any, lengths: Mapping[str, Any], options: Mapping[str, Any]
) -> Result:
    """Sample into a new run folder; `lengths` are those of `python_settings`, and `options` those of `_Session`."""
    with stop_on_signals() as stop_asked:
        states = run.start(weights, key)
        one = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape[1:], w.dtype), states.weights)
        check_chains(run, one)
        experiment = Experiment(python_settings(run, one, **lengths), run, one, states=states)
        with _session(RunFolder(path), stop_asked, new=True, **options) as session:
            outcome = session.begin(experiment)
    return _finish(outcome, sampler=run.sampler, weights=one)


def resume(
    path: str | Path,
    sampler: Sampler | None = None,
    *,
    num_steps: int | None = None,
    record_every: int | None = None,
    weights: Weights | None = None,
    test: Dataset | None = None,
    observables: Mapping[str, Callable[[Weights, Dataset], Any]] | None = None,
    chunk_size: int | None = None,
    placement: hosts.Placement | None = None,
    on_record: Callable[[Record], None] | None = None,
    max_seconds: float | None = None,
    progress: bool | None = None,
    allow_code: bool = False,
) -> Result:
    """Continue a run from its newest valid checkpoint; the result is that of an uninterrupted run, to the bit.

    An error is raised if the settings of the sampler, the data, the structure of the weights or the recorded energies
    are not those of the run. `test`, `observables`, `chunk_size`, `placement`, `on_record`, `max_seconds` and
    `progress` are as in `sample`; the others as in `load`.

    Args:
        path: the run folder.
        sampler: the sampler, as in `sample`; None for a run that a configuration describes.
        num_steps: total number of steps, to extend a run.
        record_every: steps between records from now on.
    """
    changes = []
    for name, value in (("num_steps", num_steps), ("record_every", record_every)):
        if value is not None:
            check_integer(name, value, minimum=1)
            changes.append(f"{name}={int(value)}")
    again: dict[str, Any] = {"sampler": sampler, "weights": weights, "allow_code": allow_code}
    how = again | {"test": test, "observables": observables, "chunk_size": chunk_size, "placement": placement}
    options = {"on_record": on_record, "max_seconds": max_seconds, "progress": progress}
    return _finish(continue_run(path, changes, how=how, **options), **again)


def _finish(outcome: Outcome, **how: Any) -> Result:
    """Return the result of a session, with its certificate and report in the folder."""
    folder = RunFolder(outcome.path)
    if outcome.interrupted:
        raise KeyboardInterrupt(f"stopped at step {outcome.step}; continue with pl.resume({str(folder.path)!r}, ...)")
    result = load(folder.path, **how)
    if hosts.is_first() and result.trace.sizes["draw"]:
        from ..diagnostics import certificate  # noqa: PLC0415

        made = certificate(result)
        with disk_errors(folder):
            noted = {"step": outcome.step, "text": made.to_text(), **made.to_dict()}
            write_text(folder.certificate, json.dumps(noted, indent=2))
            if util.find_spec("matplotlib") and util.find_spec("jinja2"):
                # The report reads runs by this module, so it is imported when it is made.
                import_module(".report", __package__).write_report(folder.path, certificate=made, result=result)
    return result


def load(
    path: str | Path,
    sampler: Sampler | None = None,
    *,
    num_records: int | None = None,
    weights: Weights | None = None,
    allow_code: bool = False,
) -> Result:
    """Return the result of a run, finished or not, as `sample` would have returned it.

    Every record, kept draw and checkpoint is checked; a damaged one is an error that names it.

    Args:
        path: the run folder.
        sampler: the sampler of a run that Python started; None for a run that a configuration describes.
        num_records: number of first records to read, for example those before a damaged one; default: all.
        weights: any weights of the model; needed if they are not nested dicts, lists and tuples.
        allow_code: execute the Python file that the configuration names as `network.module`.
    """
    folder = RunFolder.existing(path)
    if num_records is not None:
        check_integer("num_records", num_records, minimum=0)
    settings = _settings(folder)
    if not folder.trace.exists():
        raise RunFolderError(f"{folder.path} has no records yet; continue it with {folder.resume_call}")
    if isinstance(settings, Settings):
        settings = settings.model_copy(update={"placement": config.Devices.model_validate({"chains": 1})})
    experiment = build(settings, sampler=sampler, weights=weights, allow_code=allow_code)
    _, states, header, trace, kept = _restore(folder, experiment, num_records)
    dataset = to_dataset(header, trace).assign_attrs(record_every=experiment.settings.record_every)
    seconds = float(trace["seconds"][-1]) if dataset.sizes["draw"] else math.nan
    last = max(trace["step"], default=0)
    draws = [np.moveaxis(draw[kept["step"] <= last], 0, 2) for name, draw in kept.items() if name != "step"]
    samples = None
    if draws[0].shape[2]:
        samples = jax.tree.unflatten(jax.tree.structure(experiment.weights_shape), draws)
        dataset.attrs["keep_weights_every"] = settings.recording.keep_weights_every
    result = experiment.run.result(experiment.run.put(states), [], every=1)
    return replace(result, trace=dataset.drop_vars("seconds"), samples=samples, seconds=seconds)


@dataclass
class _Session:
    """A session that holds the lock of a run folder."""

    folder: RunFolder
    stop_asked: Callable[[], bool]
    command: Sequence[str] | None = None  # that provenance.json names; default: that of this process
    progress: bool | None = None
    on_record: Callable[[Record], None] | None = None
    max_seconds: float | None = None

    def log(self, line: str) -> None:
        if hosts.is_first():
            self.folder.log(line)

    def _pause(self) -> None:
        if self.stop_asked():
            raise KeyboardInterrupt

    def begin(self, experiment: Experiment) -> Outcome:
        """Sample from the first step on."""
        folder, settings, run = self.folder, experiment.settings, experiment.run
        noted = describe_session(self.command) | experiment.hashes
        noted |= {"seed": getattr(settings, "seed", None), "resumed": []}
        _in_first(write_text, folder.config, config.to_toml(settings))
        _in_first(write_text, folder.provenance, json.dumps(noted, indent=2))
        self.log(f"started: {run.size} chains of {settings.num_steps} steps, {run.sampler!r}")
        states = experiment.states
        if isinstance(settings, Settings):
            try:
                weights = experiment.starting_weights(self._pause, self.progress if hosts.is_first() else False)
            except KeyboardInterrupt:
                self.log("interrupted before the first step")
                return Outcome(folder.path, 0, settings.num_steps, interrupted=True)
            with naming("start"):
                states = run.start(weights, settings.seed)
        _in_first(Writer.create, folder, experiment, hosts.to_host(states, first_only=True))
        return self.proceed(experiment, states, Checkpoint())

    def resume(self, changes: Sequence[str], how: Mapping[str, Any]) -> Outcome:
        """Sample from the newest valid checkpoint on, or from the first step if there is none yet."""
        folder, checkpoints = self.folder, Checkpoints(self.folder.checkpoints)
        with hosts.together():
            begun = folder.trace.exists()
            experiment = build(_settings(folder, changes), **how)
            settings = experiment.settings
            if not begun and (any(checkpoints.steps()) or isinstance(settings, PythonSettings)):
                raise RunFolderError(f"{folder.trace} is missing; restore it from a copy, or sample into a new folder")
        if not begun:
            self.log("resumed before the first record: beginning again")
            return self.begin(experiment)
        with hosts.together():
            noted = read_json(folder.provenance)
            if not isinstance(noted.setdefault("resumed", []), list):
                raise damaged(folder.provenance, "resumed is not a list")
            at, states, *_ = _restore(folder, experiment, resuming=True)
            with RecordFile(folder.trace) as file:
                trace, _ = file.read(max(0, at.records - 1), at.records)
        states = experiment.run.put(states)
        if at.records and trace["step"][0] == at.step:
            recorded = trace["potential"][0]
            energies = experiment.run.split(experiment.run.observe(states)["potential"])  # of what may be code
            if not np.allclose(energies[~np.isnan(recorded)], recorded[~np.isnan(recorded)], rtol=1e-4):
                why = f"U = {energies.flat[0]:.6g} where {recorded.flat[0]:.6g} was recorded"
                raise RunFolderError(f"{folder.path}: the potential is not that of the run ({why}); pass the same one")
        if at.step < settings.num_steps:
            noted["resumed"].append(describe_session(self.command) | {"from_step": at.step})
            _in_first(write_text, folder.provenance, json.dumps(noted, indent=2))
            self.log(f"resumed from the checkpoint at step {at.step}")
        _in_first(write_text, folder.config, config.to_toml(settings))
        _in_first(checkpoints.clean, at.step)
        return self.proceed(experiment, states, at)

    def proceed(self, experiment: Experiment, states: Any, at: Checkpoint) -> Outcome:
        """Sample from a checkpoint on."""
        settings, run, recording = experiment.settings, experiment.run, experiment.settings.recording
        with ExitStack() as stack:
            writer = _in_first(Writer, self.folder, experiment, at)
            if writer:
                stack.callback(writer.close)

            def save(is_due: bool) -> None:
                if hosts.of_all(is_due)[0]:  # the first process decides
                    complete = hosts.to_host(last.states, first_only=True)
                    _in_first(lambda: writer.checkpoint(last.step, complete))

            last, interrupted, number = Record(at.step, states, None), self.stop_asked(), at.records
            limits: dict[str, Any] = {"first": at.step, "stop": at.step if interrupted else settings.num_steps}
            limits |= {"every": settings.record_every, "pause_every": recording.checkpoint_every}
            limits |= {"max_seconds": self.max_seconds, "progress": self.progress if writer else False}
            records = run.records(states, **limits)
            stack.enter_context(closing(records))  # type: ignore[type-var]
            for last in records:
                if last.observables is not None:
                    number, every = number + 1, recording.keep_weights_every
                    kept = run.positions(last.states) if every and number % every == 0 else None
                    _in_first(lambda: writer.add(last, kept))  # noqa: B023 (called at once)
                save(writer is not None and writer.checkpoint_due(last.step))
                if self.on_record is not None and last.observables is not None:
                    self.on_record(last)
                if last.step < settings.num_steps and self.stop_asked():
                    interrupted = True
                    break
            save(writer is not None and writer.saved_step != last.step)
            seconds = writer.seconds if writer else 0.0
        stopped = int((~np.isin(np.asarray(hosts.to_host(last.states.status)), HEALTHY)).sum())
        how = "interrupted" if interrupted else "ended"
        self.log(f"{how} at step {last.step} of {settings.num_steps} after {seconds:.1f} s of sampling")
        return Outcome(self.folder.path, last.step, settings.num_steps, interrupted, stopped, seconds, at.step)


@contextmanager
def _session(
    folder: RunFolder, stop_asked: Callable[[], bool], *, new: bool = False, **options: Any
) -> Iterator[_Session]:
    """Make the folder if it is `new`, lock it, and log warnings."""
    with ExitStack() as stack:
        stack.enter_context(disk_errors(folder))
        if new:
            _in_first(folder.make)
        with hosts.together():
            if hosts.is_first():
                stack.enter_context(warnings.catch_warnings())
                warnings.showwarning = partial(_show_and_log, warnings.showwarning, folder)
                stack.enter_context(locked(folder))
        yield _Session(folder, lambda: bool(hosts.of_all(stop_asked()).any()), **options)


def _show_and_log(show: Callable[..., None], folder: RunFolder, message: Any, *details: Any, **more: Any) -> None:
    folder.log(f"warning: {message}")
    show(message, *details, **more)


def _restore(
    folder: RunFolder, experiment: Experiment, num_records: int | None = None, *, resuming: bool = False
) -> tuple[Checkpoint, Any, Header, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the newest valid checkpoint, its states, and all valid records and kept weights; warn of damage.

    A damaged record before the checkpoint is an error. A run that is resumed goes back to a checkpoint before the
    damage instead; its records are checked and not returned. With `num_records`, only these records count.
    """
    checkpoints, notes, error = Checkpoints(folder.checkpoints), list[str](), "there is none"
    steps = checkpoints.steps()  # before the records, since a run writes them before
    with RecordFile(folder.trace) as trace, RecordFile(folder.weights) as kept:
        shapes = _check_headers(experiment, trace, kept, resuming)
        values, records = trace.read(0, 0 if resuming else num_records)
        draws, num_kept = kept.read(0, 0 if resuming else None)
        if resuming:
            records, num_kept = trace.num_valid(), kept.num_valid()

    def damage(*needed: int) -> list[str]:
        """Return the first bad record of every file in which one of the records that are needed is bad."""
        found = []
        for file, valid, number in zip((trace, kept), (records, num_kept), needed, strict=True):
            why = "its checksum is wrong" if valid < file.recorded else f"the file ends there, before record {number}"
            found += [f"{file.path}: record {valid} is damaged ({why})"] if valid < number else []
        return found if num_records is None else []

    for step in reversed(steps):
        try:
            at, states = checkpoints.restore(step, shapes, trace.header.run)
        except RunFolderError as failure:
            error = str(failure).partition("; ")[0]
        else:
            if not (bad := damage(at.records, at.kept)):
                break
            error = bad[0]
            if not resuming:
                raise RunFolderError(f"{error}; pl.load(DIR, num_records=N) reads the records before it")
        notes.append(f"{error}; falling back to the checkpoint before")
    else:
        remedy = "restore the folder from a copy, or sample again into a new one"
        raise RunFolderError(f"{folder.checkpoints} has no valid checkpoint ({error}); {remedy}")
    notes += damage(trace.recorded, kept.recorded)
    last = max(values["step"], default=0) if num_records is None else 0
    if not notes and at.step < last:
        why = f"the newest checkpoint is at step {at.step}, before the last record at step {last}"
        notes = [f"{folder.path}: {why}: weights and states of the result are those of the checkpoint"]
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return at, states, trace.header, values, draws


def _check_headers(experiment: Experiment, trace: RecordFile, kept: RecordFile, resuming: bool) -> Any:
    """Raise unless files of records are of this run; return shapes and types of its states."""
    # To load a run that Python started, its test set and own observables need not be given again.
    is_partial = isinstance(experiment.settings, PythonSettings) and not resuming
    hashed = {"settings_sha256": "config.toml is", "data_sha256": "the data are", "test_sha256": "the test set is"}
    for key, what in hashed.items():
        found = {file.header.run.get(key) for file in (trace, kept)}
        if found != {experiment.hashes[key]} and not (is_partial and key == "test_sha256"):
            raise RunFolderError(f"{trace.path.parent}: {what} not what the run began with; {REMEDY}")
    shapes = experiment.run.abstract_states(experiment.weights_shape)
    for file, expected in zip((trace, kept), headers(experiment, shapes), strict=True):
        is_same = (file.header.fields, file.header.about) == (expected.fields, expected.about)
        if not is_same and not (is_partial and file is trace):
            raise damaged(file.path, "its fields are not those of the run")
    return shapes


def _settings(folder: RunFolder, changes: Sequence[str] = ()) -> Any:
    """Return the settings of a run, with changes; raise if one of them would make another run."""
    for change in changes:
        key = change.partition("=")[0].strip()
        if key not in FREE:
            raise ConfigError(f"--set {change}: a run that is continued keeps its {key}; {MAY_CHANGE}")
    text = read_text(folder.config)
    try:
        settings = config.parse(text, changes, source="the file", folder=folder.path.resolve())
    except ConfigError as error:
        raise ConfigError("\n".join(f"{folder.config}: {line}" for line in error.lines)) from None
    done = Checkpoints(folder.checkpoints).steps() if changes else []
    if done and settings.num_steps < done[-1]:
        given = f"num_steps = {settings.num_steps}"
        raise ConfigError(f"{given} is below the {done[-1]} steps already done; give a larger number")
    return settings


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Make Ctrl-C and SIGTERM a request to stop; gives a function that returns whether one was made.

    Python's own handlers wait until compiled code returns, which may take many seconds. So a thread, woken by the
    signal itself, prints at once, and ends the process at a second signal, which is like a kill: the run continues from
    its last checkpoint. (An exception could come out of a callback of JAX, where it is a segmentation fault.) In an
    interactive session the second signal raises KeyboardInterrupt instead. Signals are caught in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked, interactive = threading.Event(), hasattr(sys, "ps1") or "ipykernel" in sys.modules

    def ask(number: int, frame: Any) -> None:
        if asked.is_set() and interactive:
            raise KeyboardInterrupt
        asked.set()

    def listen() -> None:
        seen = 0
        while number := os.read(reader, 1):  # the number of a signal as it arrives
            if number[0] in handlers:
                seen += 1
                os.write(2, f"{STOPPING}\n".encode() if seen == 1 else f"\n{ENDED}\n".encode())
            if seen > 1:
                os._exit(130)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    handlers = {int(number): signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    wakeup = signal.set_wakeup_fd(-1 if interactive else writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield asked.is_set
    finally:
        signal.set_wakeup_fd(wakeup)
        os.close(writer)  # ends the thread
        thread.join()
        os.close(reader)
        for number, handler in handlers.items():
            signal.signal(number, handler)
