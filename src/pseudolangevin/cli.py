"""The command line.

Exit codes: 0 done; 1 ran, but a check failed or a chain stopped; 2 bad input, a damaged or locked folder, a file that
cannot be read or written, or a full disk (one line on the error stream: the value, why, the remedy); 130 interrupted,
and resumable if the command writes a run.
"""
# Commands import what they need when they run, so that --help, --version and errors are quick.
# ruff: noqa: PLC0415

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from . import placement
from .runs import ConfigError, RunFolderError, naming
from .runs.folder import RunFolder, printable, read_or_empty

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

RunDir = Annotated[Path, typer.Argument(metavar="DIR", help="Run folder.")]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Configuration.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, in TOML.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Coordinator = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of process 0, if several.")]
NumProcesses = Annotated[int | None, typer.Option(help="Number of processes of the run.")]
ProcessId = Annotated[int | None, typer.Option(help="Index of this process, from 0.")]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="Execute the Python file that network.module names.")]
Distributed = Annotated[bool, typer.Option("--distributed", help="Join the processes that Slurm or Open MPI started.")]


app = typer.Typer(
    help="Sample the weights of neural networks from exp(-U/T), with mini-batches.",
    epilog="First time here:  pseudolangevin demo\n\nYour own run:  pseudolangevin sample --print-config > run.toml ; "
    "edit it ; pseudolangevin sample run.toml --out runs/first",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def _global_options(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(metadata.version("pseudolangevin"))
        raise typer.Exit(DONE)


@app.command(epilog="pseudolangevin demo --out demo")
def demo(out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("demo")) -> int:
    """Sample a small network on the task of the paper, with its certificate, in two minutes on a CPU."""
    from .demo import run_demo

    return run_demo(out)


@app.command(epilog="pseudolangevin sample run.toml --out runs/first --set sampler.batch_size=1024")
def sample(
    config_file: Annotated[Path | None, typer.Argument(metavar="CONFIG.toml", help="Configuration.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to create (default: runs/DATE-TIME).")] = None,
    overrides: Overrides = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print all settings; run nothing.")] = False,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    distributed: Distributed = False,
    allow_code: AllowCode = False,
) -> int:
    """Run the configuration of a TOML file into a run folder, which contains trace, kept weights and checkpoints.

    Ctrl-C stops the run cleanly; `resume` continues it. --print-config makes a file to edit.
    """
    from .runs import config, session

    if print_config:
        read = partial(config.read, config_file) if config_file else partial(config.parse, "")
        print(config.to_toml(read(overrides or (), to_edit=True)), end="")
        return DONE
    if config_file is None:
        remedy = "make one with `pseudolangevin sample --print-config > run.toml`"
        raise ConfigError(f"no configuration given; {remedy}, then `pseudolangevin sample run.toml`")
    settings = config.read(config_file, overrides or ())
    path = out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    _join(coordinator, num_processes, process_id, distributed)
    return _report_outcome(session.start(settings, path, allow_code=allow_code))


@app.command(epilog="pseudolangevin resume runs/first --steps 1200000   (extends a finished run)")
def resume(
    run_dir: RunDir,
    steps: Annotated[int | None, typer.Option(help="Total number of steps, to extend a run.")] = None,
    record_every: Annotated[int | None, typer.Option(help="Steps between records, from now on.")] = None,
    overrides: Overrides = None,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    distributed: Distributed = False,
    allow_code: AllowCode = False,
) -> int:
    """Continue a run from its newest checkpoint: after Ctrl-C, a crash, a full disk, or to extend it.

    The result equals that of an uninterrupted run to the bit.
    """
    from .runs import session

    _join(coordinator, num_processes, process_id, distributed)
    lengths = {"num_steps": steps, "record_every": record_every}
    changes = [*(overrides or ()), *(f"{key}={value}" for key, value in lengths.items() if value is not None)]
    return _report_outcome(session.continue_run(run_dir, changes, how={"allow_code": allow_code}))


@app.command(epilog="pseudolangevin check runs/first && echo trustworthy")
def check(
    run_dir: RunDir,
    as_json: AsJson = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every line.")] = False,
    allow_code: AllowCode = False,
) -> int:
    """Check whether the samples can be trusted: exit code 0 if the certificate passes, 1 if not."""
    from .diagnostics import certificate
    from .runs import session, store

    folder = RunFolder(run_dir)
    if folder.made_by_python:  # Python left its certificate there
        found, trace = read_or_empty(folder.certificate), store.read_trace(run_dir, last=1)
        steps: Any = [] if trace is None else trace["step"].values
        if not isinstance(step := found.get("step"), int) or not len(steps) or step < steps[-1]:
            remedy = "finish it with pl.resume(DIR, sampler), or use pl.certificate(pl.load(DIR, sampler))"
            raise RunFolderError(f"{folder.certificate} is missing, damaged or older than the last record; {remedy}")
        return _show(printable(str(found.pop("text", ""))), found, as_json, found.get("passed") is True)
    result = session.load(run_dir, allow_code=allow_code)
    if result.trace.sizes["draw"] == 0:
        raise RunFolderError(f"{run_dir} has no records yet; continue it with `pseudolangevin resume {run_dir}`")
    with naming("check"):
        verdict = certificate(result)
    return _show(verdict.to_text(folder=run_dir, verbose=verbose), verdict.to_dict(), as_json, verdict.passed)


@app.command(epilog="pseudolangevin report runs/first")
def report(run_dir: RunDir, allow_code: AllowCode = False) -> None:
    """Write DIR/report.html: one page about the run, which needs no network."""
    from .runs.report import write_report

    print(write_report(run_dir, allow_code=allow_code))


@app.command(epilog="pseudolangevin watch runs/first")
def watch(run_dir: RunDir, once: Annotated[bool, typer.Option("--once", help="Show it and exit.")] = False) -> None:
    """Show a running or finished run in the terminal."""
    from .runs.watch import watch

    watch(RunFolder.existing(run_dir).path, once=once)


@app.command(epilog="pseudolangevin temperature run.toml --epochs 200 --json")
def temperature(
    config_file: ConfigFile,
    overrides: Overrides = None,
    epochs: Annotated[float | None, typer.Option(help="Budget in passes through the training set, in total.")] = None,
    as_json: AsJson = False,
    allow_code: AllowCode = False,
) -> int:
    """Find the temperatures at which samples generalise best, from the training set of a configuration only.

    Exit code 1 if the scan is inconclusive; its notes give the reasons.
    """
    from .apps.temperature import find_temperature
    from .runs import build, config

    settings = config.read(config_file, overrides or ())
    experiment = build.build(settings, allow_code=allow_code)
    sampler, key = experiment.run.sampler, jax.random.key(settings.start.seed)
    model = sampler.potential, sampler.dataset, experiment.init(key)
    with naming("temperature"):
        found = find_temperature(*model, epochs=epochs, key=settings.seed)
    return _show(found, found.to_dict(), as_json, found.conclusive)


@app.command(epilog="pseudolangevin tune run.toml --seconds 60 --set 'temperatures=[3e-5]'")
def tune(
    config_file: ConfigFile,
    overrides: Overrides = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="Time limit; at least half of it is for the search, after the start.")
    ] = 120.0,
    budget: Annotated[float, typer.Option(min=0, max=1, help="Largest bias of loss, |w|² and error.")] = 0.02,
    as_json: AsJson = False,
    allow_code: AllowCode = False,
) -> int:
    """Find the settings with the fastest diffusion on this machine within a bias budget, at the lowest temperature.

    Exit code 1 if no candidate is within the budget.
    """
    from .apps.tune import tune
    from .runs import build, config

    began, settings = time.monotonic(), config.read(config_file, overrides or ())
    experiment = build.build(settings, allow_code=allow_code)
    sampler, starts, shapes = experiment.run.sampler, experiment.starting_weights(), experiment.weights_shape
    first = jax.tree.map(lambda start, shape: start.reshape(-1, *shape.shape)[0], starts, shapes)
    options: dict[str, Any] = {"temperature": min(experiment.run.temperatures), "key": settings.seed}
    options |= {"seconds": max(seconds / 2, seconds - (time.monotonic() - began)), "bias_budget": budget}
    with naming("tune"):
        tuned = tune(sampler, first, **options, report=partial(_say, "note"))
    return _show(f"{tuned}\n{tuned.to_toml()}", tuned.to_dict(), as_json, tuned.within_budget)


@app.command(epilog="pseudolangevin reproduce thermodynamics --scale smoke --out results")
def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Results of the paper, such as thermodynamics.")],
    scale: Annotated[str, typer.Option(help="smoke (minutes on a CPU) or paper (published size, on a GPU).")] = "smoke",
    out: Annotated[Path, typer.Option(help="Folder for NAME.json and NAME.png.")] = Path("results"),
    max_seconds: Annotated[float | None, typer.Option(help="Time limit; the same command continues.")] = None,
) -> int:
    """Reproduce results of the paper, alongside the published numbers; finished parts in the folder are kept."""
    from .paper import reproduce

    with naming("reproduce"):
        return reproduce(names, scale, out, max_seconds)


@app.command(epilog="pseudolangevin bench --json > bench.json")
def bench(as_json: AsJson = False, seconds: Annotated[float, typer.Option(min=1, help="Time limit.")] = 600.0) -> None:
    """Time every sampler on this machine, until the time is up."""
    import pandas as pd

    from .apps.bench import bench

    timed = bench(seconds=seconds, report=partial(_say, "note"))
    _show(pd.DataFrame(timed["rows"]).T.to_string(header=False), timed, as_json)
    for row in timed["skipped"]:
        _say("skipped", ", ".join(f"{name} {value}" for name, value in row.items()))


def _show(text: Any, content: Any, as_json: bool, is_good: bool = True) -> int:
    print(json.dumps(content, indent=2) if as_json else text, flush=True)
    return DONE if is_good else FAILED


def _say(label: str, text: str) -> None:
    typer.echo(typer.style(f"{label}: ", fg="red" if label == "error" else "yellow") + text, err=True)


def _report_outcome(outcome: Any) -> int:
    code = INTERRUPTED if outcome.interrupted else FAILED if outcome.stopped_chains else DONE
    if not placement.is_first():  # the first process prints for all of them
        return code
    path, done = outcome.path, f"{outcome.step} of {outcome.num_steps}"
    if code == INTERRUPTED:
        _say("interrupted", f"at step {done}; continue with `pseudolangevin resume {path}`")
    elif outcome.nothing_to_do:
        print(f"{path}: the run already has {outcome.step} steps; there is nothing to do")
    else:
        print(f"{path}: {done} steps done, {outcome.seconds:.0f} s of sampling")
    if code == FAILED:
        _say("stopped", f"{outcome.stopped_chains} chains ended early; {path}/log.txt gives the reasons")
    elif code == DONE and not outcome.nothing_to_do:
        print(f"next: pseudolangevin check {path}   (extend it: pseudolangevin resume {path} --steps N)")
    return code


def _join(coordinator: str | None, num_processes: int | None, process_id: int | None, distributed: bool) -> None:
    if distributed or (coordinator, num_processes, process_id) != (None, None, None):
        with naming("processes"):
            placement.connect(coordinator, num_processes, process_id)


def _explain(error: Exception) -> list[str] | None:
    """Return one line per problem for an error of the command line or of a file, None for one of the program."""
    if isinstance(error, ModuleNotFoundError) and error.name in ("matplotlib", "jinja2", "markupsafe"):
        return [f"pictures and reports need {error.name}; install it with `pip install '.[plots]'`"]
    if isinstance(error, OSError):
        name = error.filename2 or error.filename  # the second one is the target of a failed replacement
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space, then try again" if is_full else "check the path and its permissions"
        return [f"{name or 'the disk'}: {error.strerror}; {remedy}"] if is_full or isinstance(name, str) else None
    if hasattr(error, "format_message"):  # error of the parser of the command line
        message = error.format_message()  # empty if the help was shown instead
        return [f"{message} See `pseudolangevin --help`."] if message else []
    if "RESOURCE_EXHAUSTED" in str(error):
        return ["out of memory on the device; lower num_chains, the number of temperatures, or sampler.batch_size"]
    return None


def _handle(error: Exception) -> int:
    """Print an error and return the exit code; raise it again if it is one of the program.

    An error that the other processes of a run did not raise ends this process at once: they are waiting for it.
    """
    shared = isinstance(error, ConfigError | RunFolderError | placement.OtherProcessError)
    lines = str(error).split("\n") if shared else _explain(error)
    alone = not shared and placement.several()
    for line in lines or ():
        _say("error", line)
    code = BAD_INPUT
    if lines is None:
        if not alone:
            raise error
        traceback.print_exception(error)
        code = FAILED
        if type(error).__name__ == "JaxRuntimeError":  # another process is gone; the text depends on the network
            remedy = "start all processes again with `pseudolangevin resume DIR`"
            _say("interrupted", f"another process is gone; what was recorded is safe; {remedy}")
            code = INTERRUPTED
    if alone:
        placement.leave(code)
    return code


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C; a run that records has its own
    name, command = "pseudolangevin", typer.main.get_command(app)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = lambda message, *_: _say("warning", str(message))
            with command.make_context(name, list(sys.argv[1:] if arguments is None else arguments)) as context:
                return command.invoke(context) or DONE
    except typer.Exit as end:
        return end.exit_code
    except KeyboardInterrupt:
        _say("interrupted", f"{context.invoked_subcommand} did not finish; start it again")
        return INTERRUPTED
    except Exception as error:
        return _handle(error)
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> None:
    """Run the command line of this process."""
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    if code == INTERRUPTED:
        placement.leave(code)  # at once: interrupted threads of JAX's compiler may crash the interpreter at its end
    sys.exit(code)
