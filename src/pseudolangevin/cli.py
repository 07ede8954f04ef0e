"""The command line.

Exit codes: 0 done; 1 ran, but a check failed or a chain stopped; 2 bad input, a damaged or locked folder, a file that
cannot be read or written, or a full disk (one line on the error stream says what, why and the remedy); 130 interrupted,
and, if it is a run, resumable.
"""
# Commands import what they need when they run, so that --help and errors are quick.
# ruff: noqa: PLC0415

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from . import processes
from .cli_errors import CommandInterruptedError, Commands, explain, resumable, say, terminate_like_interrupt
from .processes import Coordinator, Distributed, NumProcesses, ProcessId

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    name="pseudolangevin",
    cls=Commands,
    help="Sample the weights of neural networks from exp(−U/T), with mini-batches.",
    epilog="First time here:  pseudolangevin demo\n\n"
    "Your own run:  pseudolangevin sample --print-config > run.toml ; edit it ; "
    "pseudolangevin sample run.toml --out runs/first",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

RunDir = Annotated[Path, typer.Argument(metavar="DIR", help="The run folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one setting; the value is TOML. May be repeated.", show_default=False
    ),
]


@app.callback(invoke_without_command=True)
def _global_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from .provenance import version_of

        print(version_of("pseudolangevin"))
        raise typer.Exit(DONE)


@app.command(
    epilog="pseudolangevin sample --print-config > run.toml\n\n"
    "pseudolangevin sample run.toml --out runs/first\n\n"
    "pseudolangevin sample run.toml --set sampler.batch_size=1024 --set 'temperatures=[1e-5, 3e-5]'"
)
def sample(
    config_file: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="What to run.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder to make (default: runs/DATE-TIME).", show_default=False)
    ] = None,
    overrides: Overrides = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print the effective configuration, every default included; run nothing."),
    ] = False,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    distributed: Distributed = False,
) -> int:
    """Run what a TOML file describes, into a run folder.

    The folder holds the trace, kept weights and checkpoints. Ctrl-C stops the run cleanly; `resume` continues it.
    """
    from . import config, runs

    if config_file is None and not print_config:
        raise config.ConfigError(
            [
                "no configuration given; make one with `pseudolangevin sample --print-config > run.toml`, "
                "then `pseudolangevin sample run.toml`"
            ]
        )
    settings = (
        config.read(config_file, overrides or ())
        if config_file
        else config.parse("", overrides or (), folder=Path.cwd())
    )
    if print_config:
        print(config.to_toml(settings, to_edit=True), end="")
        return DONE
    path = out or _default_folder()
    with resumable(path):
        processes.join(coordinator, num_processes, process_id, distributed)
        return _report_outcome(runs.start(settings, path))


@app.command(
    epilog="pseudolangevin resume runs/first\n\n"
    "pseudolangevin resume runs/first --steps 1200000   (extends a finished run)"
)
def resume(
    run_dir: RunDir,
    steps: Annotated[int | None, typer.Option(help="Steps in all: extends a run.", show_default=False)] = None,
    overrides: Overrides = None,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    distributed: Distributed = False,
) -> int:
    """Continue a run: after Ctrl-C, a crash, a full disk, or to extend it.

    It goes on from the newest sound checkpoint; the result equals that of an uninterrupted run to the bit.
    """
    from . import runs

    with resumable(run_dir):
        processes.join(coordinator, num_processes, process_id, distributed)
        changes = [*(overrides or ()), *([f"num_steps={steps}"] if steps is not None else [])]
        return _report_outcome(runs.resume(run_dir, changes))


@app.command(epilog="pseudolangevin check runs/first && echo trustworthy")
def check(
    run_dir: RunDir,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificate as JSON.")] = False,
    noise_draws: Annotated[
        int, typer.Option(min=0, help="Mini-batches drawn to look at the noise, 2 or more; 0: do not look at it.")
    ] = 1_000,
) -> int:
    """Check that the samples can be trusted: exit 0 when the certificate holds, 1 when it does not."""
    from . import runs
    from .config.build import naming
    from .diagnostics.certificate import certificate, check_noise_draws
    from .diagnostics.rendering import to_text

    with naming("check"):
        check_noise_draws(noise_draws)
    result = runs.load(run_dir)
    if result.trace.sizes["draw"] == 0:
        raise runs.RunFolderError(f"{run_dir} holds no records yet; continue it with `pseudolangevin resume {run_dir}`")
    verdict = certificate(result, noise_draws=noise_draws)
    if as_json:
        print(json.dumps(verdict.to_dict(), indent=2))
    else:
        print(to_text(verdict, folder=run_dir))
    return DONE if verdict.passed else FAILED


@app.command(epilog="pseudolangevin report runs/first")
def report(run_dir: RunDir) -> int:
    """Write DIR/report.html: one page with everything about the run, which needs no network."""
    from .report import write_report
    from .store.folder import RunFolder

    print(write_report(RunFolder.existing(run_dir).path))
    return DONE


@app.command(epilog="pseudolangevin watch runs/first")
def watch(
    run_dir: RunDir, once: Annotated[bool, typer.Option("--once", help="Show the current state and leave.")] = False
) -> int:
    """Look at a running or finished run in the terminal."""
    from .store.folder import RunFolder
    from .watch import watch as watch_run

    watch_run(RunFolder.existing(run_dir).path, once=once)
    return DONE


@app.command(
    epilog="pseudolangevin temperature run.toml\n\n"
    "pseudolangevin temperature run.toml --epochs 200 --figure temperature.png"
)
def temperature(
    config_file: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="What to sample.", show_default=False)],
    overrides: Overrides = None,
    epochs: Annotated[
        float | None,
        typer.Option(help="Budget in passes through the training set, all chains together.", show_default="25 or more"),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the curve to this file.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Find the intermediate temperatures of a configuration, from the training set alone.

    Data, network and potential are those of the file; its temperatures, sampler and start are not used. Exit 0 when
    both ends of the range have a reason, 1 when the scan is inconclusive (its notes say why).
    """
    from . import config
    from .config.build import build, naming
    from .temperature import find_temperature

    if figure is not None and (figure.suffix not in (".png", ".pdf", ".svg") or not figure.absolute().parent.is_dir()):
        raise config.ConfigError([f"--figure {figure}: give a .png, .pdf or .svg file in a folder that exists"])
    settings = config.read(config_file, overrides or ())
    experiment = build(settings, check_start=False)
    sampler = experiment.plan.sampler
    with naming("temperature"):
        found = find_temperature(
            sampler.potential, sampler.dataset, experiment.random_weights(), epochs=epochs, key=settings.seed
        )
    print(json.dumps(found.to_dict(), indent=2) if as_json else found, flush=True)
    if figure is not None:
        from .temperature_figure import temperature_figure

        temperature_figure(found).savefig(figure)
    return DONE if found.conclusive else FAILED


@app.command(epilog="pseudolangevin demo --out demo")
def demo(out: Annotated[Path, typer.Option(help="Where to write it.")] = Path("demo")) -> int:
    """Sample the paper's small network at several temperatures, on the CPU, in minutes."""
    from .demo import run_demo

    with resumable(out):
        return run_demo(out)


@app.command(epilog="pseudolangevin tune run.toml --seconds 60 --set 'temperatures=[3e-5]'")
def tune(
    config_file: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="What to tune.", show_default=False)],
    overrides: Overrides = None,
    seconds: Annotated[float, typer.Option(help="Time to spend, not counting the training of the start.")] = 120.0,
    budget: Annotated[float, typer.Option(help="Largest relative bias of loss, |w|² and error.")] = 0.02,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> int:
    """Find the settings that diffuse fastest on this machine within a bias budget, at the lowest temperature.

    For pseudo_langevin: batch size, temperature ratio, friction; for hybrid_monte_carlo: time step, leapfrog steps.
    Exit 1 when no candidate was found within the budget.
    """
    from . import config
    from .tuning.command import tune_settings

    tuned = tune_settings(config.read(config_file, overrides or ()), seconds=seconds, bias_budget=budget)
    if as_json:
        print(json.dumps(tuned.to_dict(), indent=2))
    else:
        print(tuned)
        print(tuned.to_toml())
    return DONE if tuned.within_budget else FAILED


@app.command(epilog="pseudolangevin reproduce thermodynamics --scale smoke --out results")
def reproduce(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Results of the paper, for example thermodynamics.")
    ],
    scale: Annotated[str, typer.Option(help="smoke (minutes on a CPU) or paper (published size, on a GPU).")] = "smoke",
    out: Annotated[Path, typer.Option(help="Where to write NAME.json and NAME.png.")] = Path("results"),
) -> int:
    """Reproduce results of the paper, beside the published numbers."""
    from .config import ConfigError
    from .paper import reproduce as reproduce_result

    try:
        return int(reproduce_result(names, scale, out) or DONE)
    except ValueError as error:
        raise ConfigError([str(error)]) from error


@app.command(
    epilog="pseudolangevin bench --out bench.json\n\npseudolangevin bench --sizes 11160 --chains 1 --seconds 60"
)
def bench(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything measured as JSON, and the tables on the error stream.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write everything measured as JSON, with a plot beside it.", show_default=False
        ),
    ] = None,
    sizes: Annotated[str, typer.Option(help="Numbers of weights, 201·L1 + 1110 each.")] = "11160,101610,1006110",
    chains: Annotated[str, typer.Option(help="Numbers of chains.")] = "1,8,64",
    samplers: Annotated[
        str | None, typer.Option(help="Samplers of this package (default: all).", show_default=False)
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time for all of it.")] = 600.0,
    peers: Annotated[bool, typer.Option(help="Time BlackJAX, posteriors and eager PyTorch beside.")] = True,
    scaling: Annotated[bool, typer.Option(help="Time a step at growing sizes.")] = True,
    recording: Annotated[bool, typer.Option(help="Time what recording costs.")] = True,
) -> int:
    """Time every sampler on this machine, beside other libraries, until the time is up."""
    from .bench.driver import SAMPLERS, Request, run
    from .config import ConfigError

    if out is not None and out.is_dir():
        raise ConfigError([f"--out {out}: is a folder; give a .json file"])
    if out is not None:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
    request = Request(
        sizes=_integers("--sizes", sizes),
        chains=_integers("--chains", chains),
        samplers=samplers.split(",") if samplers is not None else SAMPLERS,
        seconds=seconds,
        peers=peers,
        scaling=scaling,
        recording=recording,
    )
    content = run(request, json_path=out, console=Console(stderr=as_json))
    if as_json:
        print(json.dumps(content, indent=2))
    return DONE


def _integers(option: str, text: str) -> list[int]:
    from .config import ConfigError

    try:
        return [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        raise ConfigError([f"{option} {text}: give whole numbers with commas between, like 11160,101610"]) from None


def _default_folder() -> Path:
    return Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")


def _report_outcome(outcome: Any) -> int:
    if not outcome.written_here:
        return INTERRUPTED if outcome.interrupted else FAILED if outcome.stopped_chains else DONE
    for note in outcome.notes:
        say("note", note, "yellow")
    if outcome.interrupted:
        say(
            "interrupted",
            f"at step {outcome.step} of {outcome.num_steps}; continue with `pseudolangevin resume {outcome.path}`",
            "yellow",
        )
        return INTERRUPTED
    print(f"{outcome.path}: {outcome.summary}")
    if outcome.stopped_chains:
        say(
            "stopped",
            f"{outcome.stopped_chains} chains ended early; {outcome.path}/log.txt says which and why",
            "yellow",
        )
        return FAILED
    if outcome.nothing_to_do:
        return DONE
    print(f"next: pseudolangevin check {outcome.path}   (extend it: pseudolangevin resume {outcome.path} --steps N)")
    return DONE


def run(arguments: Sequence[str] | None = None) -> int:
    """The command line as a function: the exit code."""
    with warnings.catch_warnings(), terminate_like_interrupt():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_: say("warning", str(message), "yellow")
        try:
            code = app(args=arguments, prog_name="pseudolangevin", standalone_mode=False)
            return code if isinstance(code, int) else DONE
        except CommandInterruptedError as error:
            say("interrupted", str(error), "yellow")
            return INTERRUPTED
        except Exception as error:
            lines = explain(error)
            processes.end_if_alone(error, lines, say)
            if lines is None:
                raise
            for line in lines:
                say("error", line, "red")
            return BAD_INPUT


def main() -> None:
    """The entry point."""
    sys.exit(run())
