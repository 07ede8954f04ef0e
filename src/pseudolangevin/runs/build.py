"""From settings to a run: data, network, potential, sampler, chains and their starting weights.

Only `[network] module` runs code that a configuration names, and only if the caller allows it.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import potential as potentials
from .._trees import Key, Weights, check_weights, named_leaves, num_weights
from ..apps.temperature import trained_starts
from ..chains import Run
from ..data import Dataset, StreamedDataset, tasks
from ..models import feedforward
from ..placement import Placement
from ..samplers import SAMPLERS
from .config import ConfigError, Files, FileStart, Network, PythonSettings, RandomStart, Settings


@dataclass(frozen=True)
class Experiment:
    """A run with its settings, ready to start: what a configuration describes, or what Python passed to `sample`."""

    settings: Settings | PythonSettings
    run: Run
    weights_shape: Weights
    """Shapes and types of the weights of one chain."""
    init: Callable[[Key], Weights] | None = None
    """Random weights of one chain, from a configuration."""
    states: Any = None
    """States at step 0, from Python."""
    code: bytes = b""
    """Source of the model, if the configuration names a module."""

    def random_weights(self) -> Weights:
        """Return random weights of one chain."""
        return self.init(jax.random.key(getattr(self.settings.start, "seed", self.settings.seed)))  # type: ignore

    def starting_weights(self, on_pause: Callable[[], object] | None = None, progress: bool | None = None) -> Weights:
        """Return the weights at step 0, as `sample` takes them; `on_pause` and `progress` as in `trained_starts`."""
        settings, init = self.settings, self.init
        assert isinstance(settings, Settings)
        assert init is not None
        start, num_chains = settings.start, settings.num_chains
        if isinstance(start, FileStart):
            with naming("start.file"):
                return self._read_weights(start.file)
        key = jax.random.key(start.seed)
        if isinstance(start, RandomStart):
            weights = jax.vmap(lambda c: init(jax.random.fold_in(key, c)))(jnp.arange(num_chains))
        else:
            options = start.model_dump(exclude={"kind", "seed"}) | {"key": key, "num_starts": num_chains}
            options |= {"placement": self.run.mesh or Placement(), "on_pause": on_pause, "progress": progress}
            with naming("start"):
                sampler = self.run.sampler
                weights = trained_starts(sampler.potential, sampler.dataset, init, **options)
        return jax.tree.map(lambda w: w[None], weights)

    def _read_weights(self, file: str) -> Weights:
        """Return weights of this network; those of another one may fit the loss, but not the checkpoints."""
        names, likes = zip(*named_leaves(self.weights_shape), strict=True)
        archive = _load(file)
        if not isinstance(archive, dict) or set(archive) != set(names):
            found = sorted(archive) if isinstance(archive, dict) else "one array without a name"
            raise ValueError(f"{file} must have exactly the arrays {list(names)}; it has {found}")
        temperatures, chains = self.run.shape
        leading = archive[names[0]].shape[: max(0, archive[names[0]].ndim - len(likes[0].shape))]
        allowed = leading in [(), *((t, c) for t in (1, temperatures) for c in (1, chains))]
        for name, like in zip(names, likes, strict=True):
            if not allowed or archive[name].shape != leading + like.shape:
                why = f"{name} has shape {archive[name].shape}; that of this network is {like.shape}, in all arrays"
                axes = f"alone or after axes of {self.run.shape} or 1 (temperature, chain)"
                raise ValueError(f"{file}: {why} {axes}; change network.sizes, or give another file")
        check_weights({name: jnp.asarray(array) for name, array in archive.items()})
        leaves = [jnp.asarray(archive[name], like.dtype) for name, like in zip(names, likes, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(self.weights_shape), leaves)


def build(settings: Settings, *, check_start: bool = True, allow_code: bool = False) -> Experiment:
    """Make everything that the settings describe, and check that it fits together; nothing is written or compiled.

    With `check_start`, a start is also read from its file, so that an error comes before a folder is made. A run that
    has begun needs no start any more, and the file may be gone. With `allow_code`, `network.module` is executed.
    """
    if isinstance(settings, PythonSettings):
        remedy = "use pl.load(DIR, sampler) or pl.resume(DIR, sampler, num_steps=...) in Python"
        raise ConfigError([f'made_by = "python": the model of this run is Python code, not in its folder; {remedy}'])
    _check_memory(settings)
    with naming("network"):
        init, apply, code = _network(settings.network, allow_code)
        shape = jax.eval_shape(init, jax.random.key(0))
    with naming("task"):
        train, test = _data(settings.task)
    with naming("task and network"):
        make = {"classification": potentials.classification, "regression": potentials.regression}
        potential = apply
        if not isinstance(apply, potentials.Potential):
            potential = make[settings.potential.kind](apply, weight_decay=settings.potential.weight_decay)
        for dataset in [train] if test is None else [train, test]:
            potential.check(jax.tree.map(lambda w: jnp.zeros(w.shape, w.dtype), shape), dataset)
    with naming("sampler"):
        sampler = SAMPLERS[settings.sampler.name](potential, train, **settings.sampler.model_dump(exclude={"name"}))
    with naming(""):
        chains = {"temperatures": settings.temperatures, "num_chains": settings.num_chains}
        observed = {"test": test, "observe_examples": settings.recording.observe_examples}
        run = Run(sampler, **chains, **observed, placement=_placement(settings, train, shape))  # type: ignore[arg-type]
        check_chains(run, shape, sum(settings.network.sizes))
    experiment = Experiment(settings, run, shape, init, code=code)
    if check_start and isinstance(settings.start, FileStart):
        experiment.starting_weights()
    return experiment


def _network(network: Network, allow_code: bool) -> tuple[Callable[[Key], Weights], Any, bytes]:
    """Return init, apply (or a potential) and the source of the network."""
    if network.module is None:
        activations = {"output_activation": network.output_activation, "hidden_activation": network.hidden_activation}
        made = feedforward(network.sizes, **activations)
        return made.init, made.apply, b""
    file, _, name = network.module.rpartition(":")
    if not allow_code:
        why = "it names Python code, which is executed with all your rights"
        raise ValueError(f"module = {network.module!r}: {why}; read the file, then allow it with --allow-code")
    if not (Path(file).is_file() and name.isidentifier()):
        raise ValueError(f'module = {network.module!r}: no such file, or no name; write "my_model.py:make"')
    try:
        module = sys.modules[f"{__name__}.{Path(file).stem}"] = ModuleType(f"{__name__}.{Path(file).stem}")
        module.__file__ = file
        exec(compile(code := Path(file).read_bytes(), file, "exec"), module.__dict__)
        init, apply = getattr(module, name)()
    except Exception as error:
        wanted = f"{name}() must return (init, apply) or (init, pl.Potential)"
        raise ValueError(f"module = {network.module!r}: {type(error).__name__}: {error}; {wanted}") from error
    return init, apply, code


def _placement(settings: Settings, train: Dataset, weights: Weights) -> Placement:
    num_chains, parts = settings.num_chains * len(settings.temperatures or [0.0]), settings.placement
    given = (parts.chains, parts.data, parts.weights)
    placement = Placement(*(n or 1 for n in given)) if any(given) else Placement.automatic(num_chains)
    placement.check(num_chains, train.num_examples, weights)
    return placement


@contextmanager
def naming(section: str) -> Iterator[None]:
    """Turn a ValueError into a ConfigError whose line begins with the section of the file."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError([f"{section}: {' '.join(str(error).split())}".removeprefix(": ")]) from error


def _data(task: Any) -> tuple[Dataset, Dataset | None]:
    """Return the training set and the test set, if there is one."""
    if not isinstance(task, Files):
        splits = getattr(tasks, task.kind)(jax.random.key(task.seed), **task.model_dump(exclude={"kind", "seed"}))
        return splits[0], splits[-1]
    sets: list[Any] = []
    for prefix in ("", "test_"):
        file, *pair = (getattr(task, prefix + key) for key in ("file", "inputs", "targets"))
        if file is not None:
            archive = _load(file)
            if not isinstance(archive, dict) or not {"inputs", "targets"} <= set(archive):
                found = sorted(archive) if isinstance(archive, dict) else "one array without a name"
                raise ValueError(f"{file} must have the arrays inputs and targets; it has {found}")
            sets.append(Dataset(archive["inputs"], archive["targets"]))
            if not prefix and (extra := {"test_inputs", "test_targets"} & set(archive)):
                if len(extra) == 1 or task.test_file is not None or task.test_inputs is not None:
                    remedy = "give both arrays and no other test set, or neither"
                    raise ValueError(f"{file} has the array {min(extra)}; {remedy}")
                return sets[0], Dataset(archive["test_inputs"], archive["test_targets"])
        elif pair[0] is not None:
            arrays = [_load(name) for name in pair]
            for name, array in zip(pair, arrays, strict=True):
                if isinstance(array, dict):
                    raise ValueError(f"{name} is an .npz archive; give it as {prefix}file, or give .npy files")
            sets.append((StreamedDataset if task.stream and not prefix else Dataset)(*arrays))
    return sets[0], sets[1] if len(sets) > 1 else None


def _load(file: str) -> Any:
    """Return the array of a .npy file, which stays on disk, or the arrays of a .npz file."""
    try:
        with Path(file).open("rb") as stream:
            if stream.read(6) == b"\x93NUMPY":
                return np.load(file, mmap_mode="r", allow_pickle=False)
            stream.seek(0)
            with zipfile.ZipFile(stream) as archive:
                if (size := sum(entry.file_size for entry in archive.infolist())) > _memory():
                    raise ValueError(f"its arrays need {size / 1e9:.3g} GB, more than this machine has")
            stream.seek(0)
            return dict(np.load(stream, allow_pickle=False))
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
    need = run.size * 4 * (8 * num_weights(weights) + chunk * widest)
    if need > (available := _memory() * jax.process_count()) and jax.default_backend() == "cpu":
        why = f"need about {need / 1e9:.3g} GB, and this machine has {available / 1e9:.3g} GB"
        chains = f"num_chains = {run.num_chains} at {len(run.temperatures)} temperatures"
        raise ConfigError([f"{chains} {why}; choose fewer"])


def _check_memory(settings: Settings) -> None:
    """Raise if the network or the data need more memory than this machine has, before they are made."""
    count = sum((a + 1) * b for a, b in pairwise(settings.network.sizes))
    chains = settings.num_chains * max(len(settings.temperatures or [0.0]), getattr(settings.start, "candidates", 1))
    needs = {"network.sizes, num_chains and temperatures": 8 * 4 * count * chains}
    if (task := settings.task).kind == "spin_vectors":
        needs["task.num_train, num_test and dimension"] = (task.num_train + task.num_test) * 5 * task.dimension
    for keys, need in needs.items():
        if need > (available := _memory() * jax.process_count()):
            why = f"need about {need / 1e9:.3g} GB, and this machine has {available / 1e9:.3g} GB"
            raise ConfigError([f"{keys} {why}; make them smaller"])
