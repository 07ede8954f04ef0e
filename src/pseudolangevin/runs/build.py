"""From settings to a run: data, network, potential, sampler, chains and their starting weights.

Only `[network] module` runs code that a configuration names, and only if the caller allows it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import potential as potentials
from .._trees import Key, Weights, num_weights
from ..apps.temperature import trained_starts
from ..chains import Run
from ..data import Dataset, StreamedDataset, tasks
from ..models import feedforward
from ..placement import Placement
from ..samplers import SAMPLERS
from ..samplers.base import Sampler
from . import ConfigError, RunFolderError, naming
from .config import FREE, Files, Network, PythonSettings, RandomStart, Recording, Settings
from .store import numbered

NAMELESS = "one array without a name"


@dataclass(frozen=True)
class Experiment:
    """A run with its settings, ready to start: what a configuration describes, or what Python passed to `sample`."""

    settings: Any
    run: Run
    weights_shape: Weights  # shapes and types of the weights of one chain
    init: Any = None  # function from a key to random weights of one chain, from a configuration
    states: Any = None  # at step 0, from Python
    code: bytes = b""  # source of the model, if the configuration names a module

    @cached_property
    def hashes(self) -> dict[str, str]:
        """SHA-256 hashes of the settings and code that decide chains and files, of the data and of the test set."""
        settings: dict[str, Any] = {"code": hashlib.sha256(self.code).hexdigest()}
        for name, value in self.settings.model_dump().items():
            settings |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
        text = json.dumps({name: value for name, value in settings.items() if name not in FREE}, sort_keys=True)
        hashes = {"settings_sha256": hashlib.sha256(text.encode()).hexdigest()}
        return hashes | {"data_sha256": hash_of(self.run.sampler), "test_sha256": hash_of(self.run.test)}

    def starting_weights(self, on_pause: Callable[[], object] | None = None, progress: bool | None = None) -> Weights:
        """Return the weights at step 0, as `sample` takes them; `on_pause` and `progress` as in `trained_starts`."""
        start, num_chains = self.settings.start, self.settings.num_chains
        key = jax.random.key(start.seed)
        if isinstance(start, RandomStart):
            weights = jax.vmap(lambda c: self.init(jax.random.fold_in(key, c)))(jnp.arange(num_chains))
        else:
            options = start.model_dump(exclude={"kind", "seed"}) | {"on_pause": on_pause, "progress": progress}
            options |= {"placement": self.run.mesh or Placement(), "key": key, "num_starts": num_chains}
            model = self.run.sampler.potential, self.run.sampler.dataset, self.init
            with naming("start"):
                weights = trained_starts(*model, **options)
        return jax.tree.map(lambda w: w[None], weights)


def hash_of(tree: Any) -> str:
    """Return the SHA-256 of the data sets and arrays of a tree."""
    data = hashlib.sha256()
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Dataset))
    for leaf in jax.tree.leaves([node.batch if isinstance(node, Dataset) else node for node in nodes]):
        data.update(f"{np.dtype(leaf.dtype).str} {tuple(leaf.shape)}".encode())
        array, at_once = np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, 2**16
        for first in range(0, leaf.shape[0], at_once) if leaf.ndim else ():  # data on disk may be larger than memory
            data.update(np.ascontiguousarray(array[first : first + at_once]).data)
    return data.hexdigest()


def build(
    settings: Settings | PythonSettings,
    *,
    sampler: Any = None,
    weights: Weights | None = None,
    allow_code: bool = False,
    **model: Any,
) -> Experiment:
    """Make everything that the settings describe, and check that it fits together; nothing is written or compiled.

    With `allow_code`, `network.module` is executed. The `sampler`, any `weights` and the rest of the `model` (arguments
    of `Run`) are those of a run that Python started.
    """
    chains: dict[str, Any] = {"temperatures": settings.temperatures, "num_chains": settings.num_chains}
    chains["observe_examples"] = settings.recording.observe_examples
    if isinstance(settings, PythonSettings):
        if sampler is None:
            remedy = "use pl.load(DIR, sampler) or pl.resume(DIR, sampler, num_steps=...) in Python"
            raise ConfigError(f'made_by = "python": the model of this run is Python code, not in its folder; {remedy}')
        with naming(""):
            run = Run(sampler, **chains, **model)
        return Experiment(settings, run, _check_model(settings, sampler, weights))
    if sampler is not None:
        raise RunFolderError("the run was started from a configuration; leave the sampler out")
    if (task := settings.task).kind == "spin_vectors":
        need = (task.num_train + task.num_test) * 5 * task.dimension
        _check_memory("task.num_train, num_test and dimension", need)
    with naming("network"):
        init, apply, code = _network(settings.network, allow_code)
        shape = jax.eval_shape(init, jax.random.key(0))
    most = settings.num_chains * max(len(settings.temperatures or [0.0]), getattr(settings.start, "candidates", 1))
    _check_memory("network.sizes, num_chains and temperatures", 8 * 4 * num_weights(shape) * most)
    with naming("task"):
        train, test = _data(task)
    with naming("task and network"):
        potential = apply
        if not isinstance(apply, potentials.Potential):
            make = getattr(potentials, settings.potential.kind)
            potential = make(apply, weight_decay=settings.potential.weight_decay)
        for dataset in [train] if test is None else [train, test]:
            potential.check(jax.tree.map(lambda w: jnp.zeros(w.shape, w.dtype), shape), dataset)
    with naming("sampler"):
        made = SAMPLERS[settings.sampler.name](potential, train, **settings.sampler.model_dump(exclude={"name"}))
    with naming(""):
        parts = settings.placement.model_dump(exclude_none=True)
        split = Placement(**parts) if parts else None
        if split is not None:
            split.check(settings.num_chains * len(settings.temperatures or [0.0]), train.num_examples, shape)
        run = Run(made, test=test, placement=split, **chains)
        check_chains(run, shape, sum(settings.network.sizes))
        every = run.record_interval(settings.num_steps, settings.record_every)
    return Experiment(settings.model_copy(update={"record_every": every}), run, shape, init, code=code)


def python_settings(
    run: Run, weights: Weights, num_steps: int, record_every: int, keep_weights_every: int | None
) -> PythonSettings:
    """Return the description of a run that Python starts; `weights` are those of one chain."""
    dtype = max(str(leaf.dtype) for leaf in jax.tree.leaves(weights))
    observed = None if run.observed is run.sampler.dataset else run.observed.num_examples
    recording = {"keep_weights_every": keep_weights_every or 0, "weights_dtype": dtype, "observe_examples": observed}
    return PythonSettings(
        made_by="python",
        temperatures=[*run.temperatures] if run.sampler.uses_temperature else None,
        num_chains=run.num_chains,
        num_steps=num_steps,
        record_every=record_every,
        structure=repr(jax.tree.map(lambda _: 0, weights)),
        sampler=_described(run.sampler),
        weights=_shapes(weights),
        recording=Recording.model_validate(recording),
    )


def _check_model(settings: PythonSettings, sampler: Sampler, weights: Weights | None) -> Weights:
    """Return the shapes of the weights; raise unless sampler and weights are those of the run that Python started."""
    weights = _from_structure(settings) if weights is None else weights
    pairs = {"weights": (_shapes(weights), settings.weights), "sampler": (_described(sampler), settings.sampler)}
    for what, (ours, theirs) in pairs.items():
        for name in [*theirs, *ours]:
            if ours.get(name) != theirs.get(name):
                why = f"has {name} = {ours.get(name)}, and the run began with {theirs.get(name)}"
                raise RunFolderError(f"the {what} {why}; pass the {what} of the run")
    return jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), weights)


def _described(sampler: Sampler) -> dict[str, Any]:
    return {"name": sampler.name} | {name: value for name, value in sampler.settings.items() if value is not None}


def _shapes(weights: Weights) -> dict[str, str]:
    return {name: f"{leaf.dtype}{[*leaf.shape]}" for name, leaf in numbered(weights)}


def _from_structure(settings: PythonSettings) -> Weights:
    """Return shapes and types of the weights, nested as they were."""
    try:
        structure = jax.tree.structure(ast.literal_eval(settings.structure))
        texts = [text.partition("[") for text in settings.weights.values()]
        shapes = [jax.ShapeDtypeStruct(json.loads(f"[{shape}"), np.dtype(dtype)) for dtype, _, shape in texts]
        return jax.tree.unflatten(structure, shapes)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        remedy = "pass weights=, any weights of the same model"
        raise RunFolderError(f"the weights are not nested dicts, lists and tuples; {remedy}") from None


def _network(network: Network, allow_code: bool) -> tuple[Callable[[Key], Weights], Any, bytes]:
    """Return init, apply (or a potential) and the source of the network."""
    if network.module is None:
        made = feedforward(**network.model_dump(exclude={"module"}))
        return made.init, made.apply, b""
    file, _, name = network.module.rpartition(":")
    if not allow_code:
        why = "it names Python code, which is executed with all your rights"
        raise ValueError(f"module = {network.module!r}: {why}; read the file, then allow it with --allow-code")
    try:
        module = sys.modules[f"{__name__}.{Path(file).stem}"] = ModuleType(f"{__name__}.{Path(file).stem}")
        module.__file__ = file
        exec(compile(code := Path(file).read_bytes(), file, "exec"), module.__dict__)
        init, apply = getattr(module, name)()
    except Exception as error:
        wanted = 'write "my_model.py:make", where make() returns (init, apply) or (init, pl.Potential)'
        raise ValueError(f"module = {network.module!r}: {type(error).__name__}: {error}; {wanted}") from error
    return init, apply, code


def _data(task: Any) -> tuple[Dataset, Dataset | None]:
    if not isinstance(task, Files):
        options = task.model_dump(exclude={"kind"})
        key = [jax.random.key(options.pop("seed"))] if "seed" in options else []
        return getattr(tasks, task.kind)(*key, **options)
    names = ["inputs", "targets", "test_inputs", "test_targets"]
    if task.file is not None:
        arrays = _load(task.file)
        if [name for name in names if name in arrays] not in (names[:2], names):
            wanted = "the arrays inputs and targets, and both or neither of test_inputs and test_targets"
            raise ValueError(f"{task.file} must have {wanted}; it has {', '.join(arrays)}")
    else:
        arrays = {}
        for name in names:
            if (file := getattr(task, name)) is not None:
                if NAMELESS not in (found := _load(file)):
                    raise ValueError(f"{file} is an .npz archive; give it as file, or give .npy files")
                arrays[name] = found[NAMELESS]
    train = (StreamedDataset if task.stream else Dataset)(arrays["inputs"], arrays["targets"])
    return train, Dataset(arrays["test_inputs"], arrays["test_targets"]) if "test_inputs" in arrays else None


def _load(file: str) -> dict[str, Any]:
    """Return the arrays of a .npz file, or the array of a .npy file, which stays on disk, as `NAMELESS`."""
    try:
        with Path(file).open("rb") as stream:
            if stream.read(6) == b"\x93NUMPY":
                return {NAMELESS: np.load(file, mmap_mode="r", allow_pickle=False)}
            stream.seek(0)
            found = np.load(stream, allow_pickle=False)
            if (size := sum(entry.file_size for entry in found.zip.infolist())) > _memory():
                raise ValueError(f"its arrays need {size / 1e9:.3g} GB, more than this machine has")
            return dict(found)
    except OSError as error:
        remedy = "give the path of a .npz or .npy file"
        raise ValueError(f"{file} cannot be read: {error.strerror or error}; {remedy}") from None
    except Exception as error:  # damaged files fail in many ways
        why = f"is not a valid .npz or .npy file of plain numbers: {error or type(error).__name__}"
        raise ValueError(f"{file} {why}; save it again with numpy") from None


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_chains(run: Run, weights: Weights, widest: int = 0) -> None:
    """Raise if the chains need more memory than this machine has; `widest`: numbers that an example leaves behind.

    A chain has at most eight copies of the weights (momenta, masses, variances, gradients, temporaries), and a record
    the intermediate results of a chunk of examples.
    """
    chunk = min(run.observed.num_examples, run.chunk_size or 4096)
    if jax.default_backend() == "cpu":
        chains = f"num_chains = {run.num_chains} at {len(run.temperatures)} temperatures"
        _check_memory(chains, run.size * 4 * (8 * num_weights(weights) + chunk * widest))


def _check_memory(what: str, need: float) -> None:
    if need > (available := _memory() * jax.process_count()):
        why = f"need about {need / 1e9:.3g} GB, and this machine has {available / 1e9:.3g} GB"
        raise ConfigError(f"{what} {why}; make them smaller")
