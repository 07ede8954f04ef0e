"""Run folders from Python, for any model: any pytree of weights, any potential.

The folder is the same as that of the command line. Its config.toml describes the run, but the model is code, so the
sampler has to be given again. A model is recognised by the sampler's settings, the data, the structure of the weights
and the energies of the last record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any

import jax

from .. import placement as hosts
from .._checks import check_integer
from .._trees import Weights, named_leaves
from ..chains import Record, Result, Run
from ..data import Dataset
from ..placement import Placement
from ..samplers.base import Sampler
from . import session
from .build import Experiment, build, check_chains, naming
from .config import ConfigError, PythonSettings, Recording
from .folder import RunFolder, RunFolderError, disk_errors, write_atomically


def sample(path: str | Path, run: Run, weights: Weights, key: Any, options: Mapping[str, Any]) -> Result:
    """Sample into a new run folder; `options` are the other arguments of `pl.sample`."""
    states = run.start(weights, key)
    one = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape[1:], w.dtype), states.weights)
    check_chains(run, one)
    recording = {"keep_weights_every": options["keep_weights_every"] or 0}
    recording |= {"weights_dtype": max(str(leaf.dtype) for leaf in jax.tree.leaves(one))}
    if run.observed is not run.sampler.dataset:
        recording["observe_examples"] = run.observed.num_examples
    settings = PythonSettings(
        made_by="python",
        temperatures=[*run.temperatures] if run.sampler.uses_temperature else None,
        num_chains=run.num_chains,
        num_steps=options["num_steps"],
        record_every=options["record_every"],
        structure=_structure(one),
        sampler=_described(run.sampler),
        weights=_shapes(one),
        recording=Recording.model_validate(recording),
    )
    more = {name: options[name] for name in ("on_record", "max_seconds")}
    experiment = Experiment(settings, run, one, states=states)
    outcome = session.begin(experiment, path, None, options["progress"], **more)
    return _finish(outcome, partial(_experiment, path, run.sampler, weights=one))


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
    placement: Placement | None = None,
    on_record: Callable[[Record], None] | None = None,
    max_seconds: float | None = None,
    progress: bool | None = None,
    allow_code: bool = False,
) -> Result:
    """Continue a run from its newest valid checkpoint; the result is that of an uninterrupted run, to the bit.

    Args:
        path: the run folder.
        sampler: the sampler, as in `sample`; None for a run that a configuration describes. An error is raised if its
            settings, the data, the structure of the weights or the recorded energies are not those of the run.
        num_steps: total number of steps, to extend a run.
        record_every: steps between records from now on.
        weights: any weights of the model; needed if they are not nested dicts, lists and tuples.
        test: as in `sample`; so are `observables`, `chunk_size`, `placement`, `on_record`, `max_seconds`, `progress`.
        observables: see `sample`.
        chunk_size: see `sample`.
        placement: see `sample`.
        on_record: see `sample`.
        max_seconds: see `sample`.
        progress: see `sample`.
        allow_code: execute the Python file that the configuration names as `network.module`.
    """
    changes = []
    for name, value in (("num_steps", num_steps), ("record_every", record_every)):
        if value is not None:
            check_integer(name, value, minimum=1)
            changes.append(f"{name}={int(value)}")
    make: Any = partial(build, allow_code=allow_code)
    if sampler is not None:
        model: dict[str, Any] = {
            "test": test,
            "observables": observables,
            "chunk_size": chunk_size,
            "placement": placement,
        }
        make = partial(_experiment, path, sampler, weights=weights, **model)
    more: dict[str, Any] = {"on_record": on_record, "max_seconds": max_seconds}
    return _finish(session.resume(path, changes, progress=progress, make=make, **more), make)


def load(
    path: str | Path,
    sampler: Sampler | None = None,
    *,
    samples: bool = True,
    num_records: int | None = None,
    weights: Weights | None = None,
    allow_code: bool = False,
) -> Result:
    """Return the result of a run, finished or not, as `sample` would have returned it.

    Every record, kept draw and checkpoint is checked; a damaged one is an error that names it.

    Args:
        path: the run folder.
        sampler: the sampler of a run that Python started; None for a run that a configuration describes.
        samples: also read the kept weights into memory.
        num_records: number of first records to read, for example those before a damaged one; default: all.
        weights: any weights of the model; needed if they are not nested dicts, lists and tuples.
        allow_code: execute the Python file that the configuration names as `network.module`.
    """
    given: Any = partial(_experiment, path, sampler, weights=weights)
    make = partial(build, allow_code=allow_code) if sampler is None else given
    return session.load(path, samples=samples, num_records=num_records, make=make)


def _finish(outcome: session.Outcome, make: Any) -> Result:
    """Return the result of a session, with its certificate and report in the folder."""
    folder = RunFolder(outcome.path)
    if outcome.interrupted:
        raise KeyboardInterrupt(f"stopped at step {outcome.step}; continue with pl.resume({str(folder.path)!r}, ...)")
    result = session.load(folder.path, make=make)
    if hosts.is_first() and not outcome.nothing_to_do and result.trace.sizes["draw"]:
        from ..diagnostics import certificate  # noqa: PLC0415

        # Draws of noise take as long as steps do: at most 5 % of the run.
        made = certificate(result)
        with disk_errors(folder):
            noted = {"step": outcome.step, "text": made.to_text(), **made.to_dict()}
            write_atomically(folder.certificate, json.dumps(noted, indent=2))
            if util.find_spec("matplotlib") and util.find_spec("jinja2"):
                from .report import write_report  # noqa: PLC0415

                write_report(folder.path, certificate=made, result=result)
    return result


def _experiment(
    path: str | Path,
    sampler: Any,
    settings: Any,
    *,
    check_start: bool = False,
    weights: Weights | None = None,
    **model: Any,
) -> Experiment:
    """Return the experiment of a run that Python started; raise unless sampler and weights are those of the run."""
    del check_start
    if not isinstance(settings, PythonSettings):
        raise RunFolderError(f"{path} was started from a configuration; leave the sampler out")
    if not isinstance(sampler, Sampler):
        raise ConfigError([f"sampler = {str(sampler)[:60]!r} is not a sampler; pass the one that began the run"])
    if weights is None and not settings.structure:
        why = "the weights are not nested dicts, lists and tuples"
        raise RunFolderError(f"{path}: {why}; pass weights=, any weights of the same model")
    shape = _from_structure(settings) if weights is None else weights
    shape = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), shape)
    pairs = {"weights": (_shapes(shape), settings.weights), "sampler": (_described(sampler), settings.sampler)}
    for what, (ours, theirs) in pairs.items():
        for name in [*theirs, *ours]:
            if ours.get(name) != theirs.get(name):
                why = f"has {name} = {ours.get(name)}, and the run began with {theirs.get(name)}"
                raise RunFolderError(f"{path}: the {what} {why}; pass the {what} of the run")
    chains = {"temperatures": settings.temperatures, "num_chains": settings.num_chains}
    with naming(""):
        run = Run(sampler, observe_examples=settings.recording.observe_examples, **chains, **model)  # type: ignore
    return Experiment(settings, run, shape)


def _described(sampler: Sampler) -> dict[str, Any]:
    return {"name": sampler.name} | {name: value for name, value in sampler.settings.items() if value is not None}


def _shapes(weights: Weights) -> dict[str, str]:
    return {f"{i} {name}": f"{leaf.dtype}{[*leaf.shape]}" for i, (name, leaf) in enumerate(named_leaves(weights))}


def _structure(tree: Any) -> str:
    """Return the nesting of dicts, lists and tuples as JSON, with 0 for an array; empty if there is anything else."""

    def nesting(node: Any) -> Any:
        if type(node) is dict and all(type(key) is str for key in node):
            return {key: nesting(node[key]) for key in sorted(node)}
        if type(node) in (list, tuple):
            return [type(node).__name__, *map(nesting, node)]
        if not hasattr(node, "shape"):
            raise TypeError
        return 0

    try:
        return json.dumps(nesting(tree))
    except TypeError:
        return ""


def _from_structure(settings: PythonSettings) -> Weights:
    """Return shapes and types of the weights, nested as they were."""
    shapes = iter(settings.weights.values())

    def made(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: made(value) for key, value in node.items()}
        if isinstance(node, list):
            return (tuple if node[0] == "tuple" else list)(map(made, node[1:]))
        dtype, _, shape = next(shapes).partition("[")
        return jax.ShapeDtypeStruct(tuple(int(n) for n in shape[:-1].split(",") if n), dtype)

    try:
        return made(json.loads(settings.structure))
    except (ValueError, TypeError, IndexError, StopIteration, RecursionError):
        raise RunFolderError(f"structure = {settings.structure[:60]!r} is damaged; restore config.toml") from None
