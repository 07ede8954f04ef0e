"""Running chains: many chains and temperatures as one compiled program.

    start ─> [refresh if due] ─> advance to the next stop ─> [record] ─> …

Stops are the multiples of `every` and the steps at which a chain is due for a refresh. All randomness is a function of
the chain's key and the global step, so a trajectory does not depend on where a run was interrupted.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from . import _trees as trees
from . import observables, placement
from ._trees import Array, Key, Weights, as_key, check_integer, check_interval, check_positive
from .data.dataset import BLOCKS_AHEAD, Dataset, StreamedDataset
from .observables import OwnObservables, Reporter, check_own
from .placement import Placement
from .results import Result
from .samplers.base import MAX_STEPS, RATIO_QUANTILES, Sampler, Status
from .samplers.tempered import annealed

if TYPE_CHECKING:
    import xarray as xr

Records: TypeAlias = Sequence[dict[str, np.ndarray]]


@dataclass(frozen=True)
class Record:
    """State and observables of all chains at one stop of a run."""

    step: int
    states: Any
    """States of all chains; valid until the next record is requested, when their buffers are reused."""
    observables: dict[str, np.ndarray] | None
    """One array per observable, leading axis over all chains; None at a stop between records."""


def sample(
    sampler: Sampler,
    weights: Weights,
    *,
    temperatures: Sequence[float] | float | Callable[[Any], Any] | None = None,
    num_chains: int = 1,
    num_steps: int,
    num_warmup: int = 0,
    record_every: int | None = None,
    key: Key | int,
    test: Dataset | None = None,
    observe_examples: int | None = None,
    observables: Mapping[str, Callable[[Weights, Dataset], Any]] | None = None,
    on_record: Callable[[Record], None] | None = None,
    keep_weights_every: int | None = None,
    chunk_size: int | None = None,
    placement: Placement | None = None,
    max_seconds: float | None = None,
    progress: bool | None = None,
    folder: str | Path | None = None,
) -> Result:
    """Run a sampler and record observables.

    Args:
        sampler: a sampler, such as `pseudo_langevin(potential, dataset)`.
        weights: starting weights. Without leading axes they start every chain; with leading axes (temperature, chain),
            or (chain,), each chain has its own start (an axis of length one is repeated). Python floats are accepted.
        temperatures: temperature T of each group of chains, all different, or one number; none for `adam`. Or a
            function of the step, for one group of annealed chains (see `samplers.tempered.annealed`).
        num_chains: independent chains per temperature.
        num_steps: steps of every chain.
        num_warmup: steps before these, without records.
        record_every: steps between records; default: 400 records, or fewer if they would cost more than 5 % of the
            time: 100, or 400 of all chains at a temperature, as long as these cost at most 20 %. At least 10.
        key: random key or integer seed; a chain does not depend, but for rounding, on which other chains run.
        test: optional test set, for `test_loss` and `test_error`.
        observe_examples: number of first training examples that observables are measured on; default: all.
        observables: your own observables, a mapping from names to functions f(weights, dataset) that return a scalar or
            an array; they are treated as the built-in ones.
        on_record: function called with every `Record`, for example to log it.
        keep_weights_every: number of records from one kept set of weights to the next, in `result.samples`.
        chunk_size: examples held at once per chain when measuring; bounds memory, not the result.
        placement: split of chains, data and weights over devices; default: chains over as many devices as divide them.
        max_seconds: the run ends at the first record after this time, compilation included; default: no limit.
        progress: whether to show a line of progress; default: on a terminal, and now and then elsewhere.
        folder: new run folder for records, checkpoints, certificate and report; `pl.resume` continues it.

    Example:
        >>> sampler = pl.balanced_langevin(potential, train)
        >>> result = pl.sample(sampler, weights, temperatures=1e-3, num_chains=4, num_steps=20_000, key=0)
        >>> print(pl.certificate(result))
    """
    if callable(temperatures):
        sampler = annealed(sampler, temperatures, every=record_every or max(1, num_steps // 100))
        temperatures = [float(sampler.schedule.at(0))]  # type: ignore[attr-defined]
    run = Run(
        sampler,
        temperatures=temperatures,
        num_chains=num_chains,
        test=test,
        observe_examples=observe_examples,
        observables=observables,
        chunk_size=chunk_size,
        placement=placement,
    )
    every = run.record_interval(num_steps, record_every)
    check_integer("keep_weights_every", 1 if keep_weights_every is None else keep_weights_every, minimum=1)
    check_integer("num_warmup", num_warmup, minimum=0, maximum=MAX_STEPS - num_steps)
    if folder is not None:
        if num_warmup:
            remedy = "a folder records every step; discard records instead"
            raise ValueError(f"num_warmup = {num_warmup} with a folder: {remedy}")
        folders = import_module(".runs.session", __package__)  # a level above, for those who ask for a folder
        lengths = {"num_steps": num_steps, "record_every": every, "keep_weights_every": keep_weights_every}
        more = {"on_record": on_record, "max_seconds": max_seconds, "progress": progress}
        return folders.sample(folder, run, weights, key, lengths, more)
    began, states = time.monotonic(), run.start(weights, key)
    for record in run.records(states, stop=num_warmup, every=MAX_STEPS, progress=progress) if num_warmup else ():
        states = record.states
    records: list[dict[str, np.ndarray]] = []
    kept: list[Weights] = []
    span: dict[str, int] = {"first": num_warmup, "stop": num_warmup + num_steps, "every": every}
    for record in run.records(states, **span, max_seconds=max_seconds, progress=progress):
        states = record.states
        if record.observables is None:
            continue
        records.append(record.observables)
        if on_record is not None:
            on_record(record)
        if keep_weights_every is not None and len(records) % keep_weights_every == 0:
            kept.append(run.positions(states))
    samples = jax.tree.map(lambda *draws: np.stack(draws, axis=1), *kept) if kept else None
    result = run.result(states, records, every=every, first=num_warmup, samples=samples)
    if kept:
        result.trace.attrs["keep_weights_every"] = keep_weights_every
    return replace(result, seconds=time.monotonic() - began)


class Run:
    """A run, validated before anything is compiled: a sampler, its chains and temperatures, what to record.

    Chains and temperatures lie along one mapped axis, temperature by temperature. The arguments are those of `sample`;
    a `jax.sharding.Mesh` as the placement is used as it is.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        temperatures: Sequence[float] | float | None = None,
        num_chains: int = 1,
        test: Dataset | None = None,
        observe_examples: int | None = None,
        observables: Mapping[str, Callable[[Weights, Dataset], Any]] | None = None,
        chunk_size: int | None = None,
        placement: Placement | Mesh | None = None,
    ) -> None:
        for name, value, valid, remedy in (
            ("sampler", sampler, Sampler, "sampler; pass pl.balanced_langevin(potential, dataset)"),
            ("test", test, Dataset | None, "Dataset; pass pl.Dataset(inputs, targets)"),
            ("placement", placement, Placement | Mesh | None, "Placement; pass pl.Placement(...)"),
        ):
            if not isinstance(value, valid):
                raise ValueError(f"{name} = {str(value)[:60]!r} is not a {remedy}")
        self.sampler = sampler
        self.temperatures = tuple(check_temperatures(sampler, temperatures))
        if sampler.exchange_every is not None and len(self.temperatures) < 2:
            raise ValueError(f"temperatures = {list(self.temperatures)}: replica exchange needs at least two")
        check_integer("num_chains", num_chains, minimum=1)
        check_integer("chunk_size", 1 if chunk_size is None else chunk_size, minimum=1)
        self.num_chains, self.test, self.chunk_size = num_chains, test, chunk_size
        self.shape = len(self.temperatures), num_chains
        self.size = math.prod(self.shape)  # number of all chains
        self.observed = sampler.dataset
        if observe_examples is not None:
            check_integer("observe_examples", observe_examples, minimum=1, maximum=self.observed.num_examples)
            self.observed = self.observed.head(observe_examples)
        self.own = check_own(observables)
        self.with_tests = sampler.uses_temperature and observe_examples is None
        self.mesh = self._mesh(placement)

    def _mesh(self, given: Placement | Mesh | None) -> Mesh | None:
        streamed = isinstance(self.sampler.dataset, StreamedDataset)
        if given is None and (streamed or jax.device_count() == 1):
            return None
        given = given or Placement.automatic(self.size)
        if streamed and (isinstance(given, Mesh) or given.num_devices > 1):
            raise ValueError(f"placement = {given}: a StreamedDataset feeds one device; leave the placement out")
        if isinstance(given, Mesh):
            return given
        given.check(self.size, self.sampler.dataset.num_examples)
        return given.mesh()

    def record_interval(self, num_steps: int, record_every: int | None) -> int:
        """Return the steps between records, validated.

        By default they take 5 % of the work, by an estimate, or up to 20 % of a run that would have few of them.
        """
        check_integer("num_steps", num_steps, minimum=1, maximum=MAX_STEPS, remedy="steps are counted in 32 bits")
        if record_every is not None:
            check_integer("record_every", record_every, minimum=1, maximum=num_steps, remedy="record at least once")
            return record_every
        sampler, exact = self.sampler, self.sampler.uses_temperature
        num_gradients = getattr(sampler, "num_leapfrog_steps", 1)
        step = num_gradients * (sampler.examples_per_step or sampler.dataset.num_examples)
        # A pass without gradient costs a third of one with it; what a record computes besides costs half.
        cost = self.observed.num_examples * (1.5 if exact else 1 / 3)
        cost += (self.test.num_examples if self.test else 0) / 3
        # Whatever the size of the network, the calls of a record take as long as ten gradients of a small one.
        in_steps = cost / step + 10 / num_gradients
        few, most = (max(100, 400 // self.num_chains), 400) if exact else (10, 100)
        affordable = 0.05 * num_steps / in_steps
        return max(1, num_steps // int(max(10, min(most, max(affordable, min(few, 4 * affordable))))))

    def chain_name(self, index: int) -> str:
        """Return the name of a chain, for messages."""
        temperature, chain = divmod(index, self.num_chains)
        return f"chain {chain} at T = {self.temperatures[temperature]:g}"

    def split(self, tree: Any) -> Any:
        """Split the leading axis over all chains into (temperature, chain)."""
        return jax.tree.map(lambda leaf: leaf.reshape(*self.shape, *leaf.shape[1:]), tree)

    @cached_property
    def _placed(self) -> tuple[Sampler, Dataset, Dataset | None]:
        """The sampler, the observed examples and the test set, with data on the devices that use them."""
        if self.mesh is None:
            return self.sampler, self.observed, self.test
        place = cache(partial(placement.put_dataset, mesh=self.mesh))  # the observed examples may be those of training
        given = (self.sampler, self.observed, self.test)
        leaves, structure = jax.tree.flatten(given, is_leaf=lambda node: isinstance(node, Dataset))
        return jax.tree.unflatten(structure, [place(x) if isinstance(x, Dataset) else x for x in leaves])

    def put(self, states: Any) -> Any:
        """Place states, from a file or another placement, on the devices of this run."""
        if (mesh := self.mesh) is None:
            return jax.tree.map(jnp.asarray, states)
        return jax.tree.map(lambda leaf: placement.put(leaf, placement.sharding(leaf.shape, mesh)), states)

    def start(self, weights: Weights, key: Key | int) -> Any:
        """Return the states of all chains at step 0; `weights` and `key` as for `sample`."""
        starts = self._starts(weights)
        one = jax.tree.map(lambda w: w[0], starts)
        if self.test is not None:
            try:
                self.sampler.potential.check(one, self.test)
            except ValueError as error:
                raise ValueError(f"test: {error}") from error
        self.sampler.check(one)
        if self.mesh is not None:
            split = Placement(**self.mesh.shape)  # a mesh that does not divide the chains was given on purpose
            split.check(split.chains, self.sampler.dataset.num_examples, one)
        temperatures = jnp.repeat(jnp.asarray(self.temperatures, jax.tree.leaves(one)[0].dtype), self.num_chains)
        return _start(self._placed[0], *self.put((starts, temperatures, self._keys(key))), self.with_tests)

    def _starts(self, weights: Weights) -> Weights:
        """Return starting weights with one leading axis over all chains.

        They are given with as many of the axes (temperature, chain) as must be removed before the loss accepts them.
        """
        weights = jax.tree.map(lambda w: jnp.asarray(w) if isinstance(w, float) else w, weights)
        trees.check_weights(weights)
        check = partial(self.sampler.potential.check, dataset=self.sampler.dataset)
        for num_axes in (0, 2, 1):
            first, expected = (0,) * num_axes, self.shape[2 - num_axes :]
            with suppress(ValueError, IndexError):
                (leading,) = {leaf.shape[:num_axes] for leaf in jax.tree.leaves(weights)}
                check(jax.tree.map(lambda w, first=first: w[first], weights))
                if np.broadcast_shapes(leading, expected) == expected:
                    break
        else:
            check(weights)  # raises an error
        weights = jax.tree.map(lambda w: jnp.broadcast_to(w, self.shape + w.shape[num_axes:]), weights)
        return jax.tree.map(lambda w: w.reshape(self.size, *w.shape[2:]), weights)

    def _keys(self, key: Key | int) -> Key:
        """Return each chain's key, derived from the chain index and temperature only."""
        chains = jnp.tile(jnp.arange(self.num_chains), len(self.temperatures))
        bits = jnp.repeat(np.asarray(self.temperatures, np.float32).view(np.uint32), self.num_chains)
        fold_in = jax.vmap(jax.random.fold_in)
        return fold_in(jax.vmap(partial(jax.random.fold_in, as_key(key)))(chains), bits)

    def records(
        self,
        states: Any,
        *,
        first: int = 0,
        stop: int,
        every: int,
        pause_every: int | None = None,
        max_seconds: float | None = None,
        progress: bool | None = None,
    ) -> Iterator[Record]:
        """Advance the chains from step `first` to `stop`, yielding a record at every multiple of `every`.

        The chains are yielded without observables at every multiple of `pause_every`, and at `stop`. Chains that
        stopped are masked and warned of; the iteration ends when none is left, or at the record after `max_seconds`.
        """
        if max_seconds is not None:
            check_positive("max_seconds", max_seconds)
        if first > 0 and np.all(np.asarray(placement.to_host(states.status)) != Status.RUNNING):
            return  # a new run goes on to its first record, which reports why
        reporter = Reporter(self)
        sampler, observed, _ = self._placed
        intervals = [n for n in (every, pause_every, sampler.exchange_every) if n is not None]
        started, step, due = time.monotonic(), first, self._next_refresh(states)
        states, tests = observables.without_stein(states)
        num_records = 0 if tests else -MAX_STEPS
        if tests and first > 0:
            num_records = int(np.max(placement.to_host(tests.num_records)))
        if step < stop and jax.default_backend() != "cpu":  # for a CPU, XLA uses all cores already
            self._compile(states, tests, (stop - step) // every, with_refresh=due < stop)
        with progress_bar(stop, self.size, show=progress, start=first) as update_bar:
            while step < stop:
                if step >= due:
                    states = _refresh(sampler, states)
                    due = self._next_refresh(states)
                stops = [stop, due, *(step - step % n + n for n in intervals)]
                states = self._advance(states, min(stops) - step, every)
                step = min(stops)
                if sampler.exchange_every is not None and step % sampler.exchange_every == 0:
                    states = _exchange(sampler, states, len(self.temperatures))
                if step % every == 0:
                    jax.block_until_ready(states.step)
                    before = time.monotonic()
                    (status, tests), record = self._measured(states, tests)
                    states, num_records = states._replace(status=status), num_records + 1
                    masked = reporter.report(observables.to_host(record), step=step, last=step + every > stop)
                    update_bar(step, masked["loss"], time.monotonic() - before)
                    if num_records >= 8 and num_records.bit_count() == 1:  # a power of two
                        tests = _renew(sampler, states, tests, observed)
                    yield Record(step, states._replace(tests=tests) if tests else states, masked)
                    if reporter.stopped.all() or time.monotonic() - started > (max_seconds or math.inf):
                        return
                elif step == stop or (pause_every is not None and step % pause_every == 0):
                    yield Record(step, states._replace(tests=tests) if tests else states, None)

    def _compile(self, states: Any, tests: Any, num_records: int, *, with_refresh: bool) -> None:
        """Compile the programs of a run side by side; the calls find them."""
        sampler, *data = self._placed
        programs = [_observe.lower(sampler, states, tests, data, self.own, self.chunk_size)] if num_records else []
        programs += [_renew.lower(sampler, states, tests, data[0])] if tests and num_records >= 8 else []
        programs += [_refresh.lower(sampler, states)] if with_refresh else []
        if not isinstance(sampler.dataset, StreamedDataset):
            programs += [_segment.lower(sampler, states, 1, block) for block in sorted({1, sampler.block})]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda program: program.compile(), programs))

    def _next_refresh(self, states: Any) -> int:
        return int(_next_refresh(self._placed[0], states)) if self.sampler.refreshes else MAX_STEPS

    def _advance(self, states: Any, num_steps: int, every: int) -> Any:
        """Advance all chains by `num_steps`. Programs do not depend on the number of steps."""
        sampler = self._placed[0]
        if isinstance(sampler.dataset, StreamedDataset) and sampler.batch_size is not None:
            return self._advance_streamed(states, num_steps, every)
        # On a GPU the host decides after every block whether to go on, which takes as long as a small step.
        blocks, rest = divmod(num_steps, sampler.block)
        for length, block in ((blocks, sampler.block), (rest, 1)):
            states = _segment(sampler, states, length, block) if length else states
        return states

    def _advance_streamed(self, states: Any, num_steps: int, every: int) -> Any:
        """Advance all chains with mini-batches that are fetched while the chains run."""
        sampler: Any = self._placed[0]
        length = sampler.dataset.block_length(self.size, sampler.examples_per_step, every)
        (device,) = states.step.devices()
        running: deque[Array] = deque()
        for start in range(0, num_steps, 64 * length):  # indices of 64 blocks are on the device at once
            starts = range(start, min(num_steps, start + 64 * length), length)
            indices = [_indices(sampler, states.key, states.step + (first - start), length) for first in starts]
            for first, batches in zip(starts, sampler.dataset.blocks(indices, device), strict=True):
                if len(running) == BLOCKS_AHEAD:  # else blocks would pile up on a device slower than the host
                    running.popleft().block_until_ready()
                states = _segment(sampler, states, min(length, num_steps - first), 1, batches)
                running.append(states.step + 0)  # a copy: the states themselves are donated to the next block
        return states

    def observe(self, states: Any) -> dict[str, np.ndarray]:
        """Return the observables of all chains, leading axis over all chains."""
        states, tests = observables.without_stein(states)
        return observables.to_host(self._measured(states, jax.tree.map(jnp.copy, tests))[1])

    def _measured(self, states: Any, tests: Any) -> Any:
        """Return what a record changes and the record; the sums are donated."""
        sampler, *data = self._placed
        return _observe(sampler, states, tests, data, self.own, self.chunk_size)

    def positions(self, states: Any) -> Weights:
        """Return the weights that records are made at, as NumPy arrays with a leading axis over all chains."""
        return jax.tree.map(np.asarray, placement.to_host(_positions(self._placed[0], states)))

    def result(self, states: Any, records: Records, *, every: int, first: int = 0, samples: Any = None) -> Result:
        """Return the result of a run from its final states, its records after step `first` and its kept weights."""
        trace = self.trace(states, records, every, first)
        kept = None if samples is None else self.split(samples)
        return Result(trace, self.split(_positions(self._placed[0], states)), kept, states, self.sampler)

    def trace(self, states: Any, records: Records, every: int, first: int = 0) -> xr.Dataset:
        """Return records after step `first` as a labelled data set, complete even without records."""
        import xarray as xr  # noqa: PLC0415 (slow to import)

        steps = (first // every + 1 + np.arange(len(records))) * every
        if not records:
            about = [self.observed, self.test], self.own, self.chunk_size
            shapes = _observe.eval_shape(self.sampler, *observables.without_stein(states), *about)[1]
            records = [observables.to_host(jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), shapes))]
        stacked = {name: np.stack([r[name] for r in records], axis=1)[:, : len(steps)] for name in records[0]}
        one = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape[1:], w.dtype), states.weights)
        coords: dict[str, Any] = {
            "temperature": np.asarray(self.temperatures, np.float64),
            "chain": np.arange(self.num_chains),
            "draw": np.arange(len(steps)),
            "step": ("draw", steps),
            "layer": list(trees.layers(one)),
        }
        if "temperature_ratio" in stacked:
            coords["quantile"] = list(RATIO_QUANTILES)
        if "dead_class" in stacked:
            coords["class"] = np.arange(stacked["dead_class"].shape[-1])
        variables = {name: observables.variable(name, self.split(values)) for name, values in stacked.items()}
        attributes = {"observed_examples": self.observed.num_examples, "record_every": every}
        return xr.Dataset(variables, coords, attributes)

    def abstract_states(self, weights: Weights) -> Any:
        """Return shapes and types of the states of chains whose weights have the shapes of `weights`."""
        starts = jax.tree.map(lambda w: jax.ShapeDtypeStruct((self.size, *w.shape), w.dtype), weights)
        temperatures = jax.ShapeDtypeStruct((self.size,), jax.tree.leaves(weights)[0].dtype)
        return _start.eval_shape(self.sampler, starts, temperatures, self._keys(0), self.with_tests)


def _in_place(states: Any, mesh: Mesh | None) -> Any:
    """Constrain arrays with a leading chain axis to their devices."""
    if mesh is None:
        return states
    return jax.tree.map(lambda a: lax.with_sharding_constraint(a, placement.sharding(a.shape, mesh)), states)


@partial(jax.jit, static_argnames="with_tests")
def _start(sampler: Sampler, starts: Weights, temperatures: Array, keys: Key, with_tests: bool) -> Any:
    starts = jax.tree.map(lambda w: jnp.asarray(w, w.dtype), starts)  # a weak type would compile everything twice
    # A chain that starts where another with the same key ended must not repeat its noise.
    keys = jax.vmap(jax.random.fold_in)(keys, jax.vmap(trees.fingerprint)(starts))
    states = jax.vmap(lambda key, start, t: sampler.at(t).init(key, start, t))(keys, starts, temperatures)
    states = observables.begin_stein(sampler, states, starts) if with_tests else states
    return _in_place(states, sampler.dataset.mesh)


@partial(jax.jit, static_argnames="block", donate_argnames="states")
def _segment(sampler: Sampler, states: Any, num_blocks: int, block: int, batches: Any = None) -> Any:
    # All running chains are at the same step. One number for all of them keeps conditionals on it conditionals.
    running = states.status == Status.RUNNING
    step = jnp.max(jnp.where(running, states.step, 0))

    def one(state: Any, own: Any) -> Any:
        return sampler.at(state.temperature).segment(state._replace(step=step), num_blocks, block, own)

    moved = jax.vmap(one)(states, batches)
    moved = moved._replace(step=jnp.where(running, moved.step, states.step))
    return _in_place(moved, sampler.dataset.mesh)


@partial(jax.jit, static_argnames="num_steps")
def _indices(sampler: Sampler, keys: Key, first_step: Array, num_steps: int) -> Array:
    """Return the examples of the next steps of every chain, (chain, step, example)."""
    steps = first_step[:, None] + jnp.arange(num_steps)
    return jax.vmap(jax.vmap(sampler.batch_indices, in_axes=(None, 0)))(keys, steps)


@partial(jax.jit, donate_argnames="states")
def _refresh(sampler: Sampler, states: Any) -> Any:
    refreshed = jax.vmap(lambda state: sampler.at(state.temperature).refresh_if_due(state))(states)
    return _in_place(refreshed, sampler.dataset.mesh)


@partial(jax.jit, static_argnames="num_temperatures", donate_argnames="states")
def _exchange(sampler: Any, states: Any, num_temperatures: int) -> Any:
    return _in_place(sampler.exchange(states, num_temperatures), sampler.dataset.mesh)


@jax.jit
def _next_refresh(sampler: Sampler, states: Any) -> Array:
    return jnp.min(jnp.where(states.status == Status.RUNNING, jax.vmap(sampler.next_refresh)(states), MAX_STEPS))


@partial(jax.jit, static_argnames=("own", "chunk_size"), donate_argnames="tests")
def _observe(sampler: Sampler, states: Any, tests: Any, data: Any, own: OwnObservables, chunk_size: int | None) -> Any:
    """Return what a record changes, the status and the sums for the certificate, and the record."""
    train, test = data
    observe = partial(observables.observe, train=train, test=test, own=own, chunk_size=chunk_size)
    record, weights, gradients = jax.vmap(lambda state: observe(sampler.at(state.temperature), state))(states)
    if tests:
        tests, more = observables.update_stein(tests, weights, gradients)
        record |= more
    changed = _in_place((record["status"], tests), train.mesh)
    packed = observables.pack(record)
    if train.mesh is not None:  # every process reads the record
        packed = lax.with_sharding_constraint(packed, NamedSharding(train.mesh, PartitionSpec()))
    return changed, packed


@partial(jax.jit, donate_argnames="tests")
def _renew(sampler: Sampler, states: Any, tests: Any, train: Dataset) -> Any:
    return _in_place(observables.renew_stein(sampler, states, tests, train), train.mesh)


@jax.jit
def _positions(sampler: Sampler, states: Any) -> Weights:
    return jax.vmap(sampler.position)(states)


def check_temperatures(sampler: Sampler, temperatures: Sequence[float] | float | None) -> list[float]:
    """Return the temperatures of a run as floats, validated; a nominal zero for a sampler without temperature."""
    if not sampler.uses_temperature:
        if temperatures is not None:
            raise ValueError(f"temperatures = {temperatures!r}: {sampler.name} has no temperature; leave it out")
        return [0.0]
    values = [] if temperatures is None else list(np.atleast_1d(np.asarray(temperatures, object)))
    if not values:
        raise ValueError(f"temperatures = {temperatures}; pass at least one, for example temperatures=[1e-5, 3e-5]")
    for value in values:
        check_positive("temperatures", value, "exp(-U/T) needs T > 0")
        check_interval("temperatures", value, 1e-30, 1e30, "that is beyond single precision; scale the loss instead")
    values = [float(value) for value in values]
    if len({np.float32(value) for value in values}) < len(values):
        raise ValueError(f"temperatures = {values} repeats a value; use num_chains for several chains at one")
    return values


@contextmanager
def progress_bar(
    num_steps: int, num_chains: int, *, show: bool | None, start: int = 0
) -> Iterator[Callable[[int, np.ndarray, float], None]]:
    """Give a function update(step, losses, seconds of this record) that prints progress to the error stream.

    If `show` is true, one line is overwritten at every record; if it is None and the error stream is no terminal, a
    line is printed after 20 seconds and then every minute. The last line is the cost of records, if it exceeds 5 %.
    """
    on_one_line = sys.stderr.isatty() if show is None else show
    began = time.monotonic()
    due, before, printed = began + 20, (start, began), False
    latest = deque[tuple[int, float, float]](maxlen=9)  # steps, seconds, and seconds of the record

    def update(step: int, losses: np.ndarray, cost: float) -> None:
        nonlocal due, before, printed
        now = time.monotonic()
        latest.append((step - before[0], max(now - before[1], 1e-9), cost))
        before = (step, now)
        if show is False or not (on_one_line or now >= due):
            return
        due, printed = now + 60, True
        speed = median(steps / seconds for steps, seconds, _ in latest)  # some intervals contain compilations
        line = f"step {step} of {num_steps}, {num_chains} chains, {speed:,.0f} steps/s"
        line += f", {(num_steps - step) / speed:,.0f} s left"
        line += f", loss {np.nanmean(losses):.4f}" if np.isfinite(losses).any() else ""
        width = shutil.get_terminal_size().columns - 1
        text = f"\r{line[:width]:{width}}" if on_one_line else f"{line}\n"
        print(text, end="", file=sys.stderr, flush=True)

    try:
        yield update
    finally:
        print(end="\n" if on_one_line else "", file=sys.stderr)
        share = median(cost / seconds for _, seconds, cost in latest) if printed and len(latest) > 4 else 0.0
        if share > 0.05:
            every, cost = median(steps for steps, *_ in latest), median(cost for *_, cost in latest)
            remedy = f"with record_every = {19 * every * share / (1 - share):.0f} it would be 5%"
            print(f"records took {share:.0%} of the time, {cost:.2g} s each; {remedy}", file=sys.stderr)
