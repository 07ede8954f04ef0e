"""Running chains: many chains and temperatures as one compiled program, a segment at a time.

    init ─> [refresh if due] ─> advance to the next stop ─> [record] ─> …

Stops are the multiples of `record_every` and the steps at which a chain is due for a refresh. All randomness is keyed
by chain and global step, so a trajectory depends neither on where segments end nor, rounding apart, on which chains run
beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.sharding import Mesh

from . import hosts, observables, prefetch, trees
from .checks import check_integer
from .data import Dataset
from .layout import Layout, temperatures_for
from .observables import Observer
from .placement import Placement, keep_everywhere, keep_in_place, put_chains, put_dataset
from .progress import progress_bar
from .reports import Reporter
from .samplers import base
from .samplers.base import Kernel, Sampler
from .segments import Segments
from .streamed import StreamedDataset
from .types import Array, Key, Status, Weights

MAX_STEPS = 2**31 - 1
"""A chain counts its steps in 32 bits."""


@dataclass(frozen=True)
class Result:
    """What a run leaves."""

    trace: xr.Dataset
    """Observables with dimensions (temperature, chain, draw) and the coordinate `step` along draw."""
    weights: Weights
    """Final weights of every chain: the pytree with leading axes (temperature, chain)."""
    samples: Weights | None
    """Kept weights, leading axes (temperature, chain, kept draw); None unless `keep_weights_every` was given."""
    states: Any
    """Final states, leading axis over all chains, temperature by temperature."""
    sampler: Sampler

    def __repr__(self) -> str:
        """What it is of, without the numbers."""
        temperatures, chains, draws = self.trace["loss"].shape
        kept = "none" if self.samples is None else str(jax.tree.leaves(self.samples)[0].shape[2])
        running = int((self.trace["status"].values[..., -1] == Status.RUNNING).sum()) if draws else 0
        return (
            f"<Result of {self.sampler.name}: N = {self.num_weights}, {temperatures} temperatures × {chains} chains × "
            f"{draws} records, {running} chains running, weights kept of {kept}; see .trace, .weights, .samples>"
        )

    @property
    def num_weights(self) -> int:
        """The paper's N."""
        return trees.num_weights(self.weights) // math.prod(self.trace["status"].shape[:2])


def sample(
    sampler: Sampler,
    weights: Weights,
    *,
    temperatures: Sequence[float] | None = None,
    num_chains: int = 1,
    num_steps: int,
    record_every: int | None = None,
    key: Key | int,
    test: Dataset | None = None,
    observe_examples: int | None = None,
    keep_weights_every: int | None = None,
    chunk_size: int | None = None,
    placement: Placement | None = None,
    progress: bool | None = None,
) -> Result:
    """Run a sampler and record observables.

    Args:
        sampler: from `pseudo_langevin` or its siblings.
        weights: the start. Without leading axes it starts every chain; with leading axes (temperature, chain), each its
            own (an axis of length one is repeated).
        temperatures: T of each group of chains, all different. Samplers without a temperature (Adam) take none.
        num_chains: independent chains per temperature.
        num_steps: steps of every chain.
        record_every: steps between records; default: 100 records, or every step of a shorter run.
        key: random key, or an integer seed. Chain c at temperature T is the same whatever other chains run beside
            it, to rounding. Its noise is a function of the key, its place and its start: it may start where another
            ended.
        test: optional test set, for `test_loss` and `test_error`.
        observe_examples: measure on the first so many training examples only; default: on all.
        keep_weights_every: keep the weights of every so many-th record in `result.samples`.
        chunk_size: examples held at once per chain when measuring; bounds memory, not the result. Default: 4096, or
            32 768 for a network of up to 2¹⁷ weights on a GPU.
        placement: how many ways chains, data and weights are split over devices; default: chains over all devices, or
            over as many as divide them.
        progress: show a progress bar; default: when the output is a terminal.

    Returns:
        Trace, final weights and states.
    """
    plan = make_plan(
        sampler,
        temperatures=temperatures,
        num_chains=num_chains,
        num_steps=num_steps,
        record_every=record_every,
        test=test,
        observe_examples=observe_examples,
        chunk_size=chunk_size,
        placement=placement,
    )
    if keep_weights_every is not None:
        check_integer("keep_weights_every", keep_weights_every, minimum=1)
    states = plan.init(weights, key)
    records: list[dict[str, np.ndarray]] = []
    kept: list[Weights] = []
    for record in plan.run(states, progress=progress):
        states = record.states
        if record.observables is None:
            continue
        records.append(record.observables)
        if keep_weights_every is not None and len(records) % keep_weights_every == 0:
            kept.append(jax.tree.map(np.asarray, hosts.to_host(states.weights)))
    layout = plan.layout
    stacked = {name: np.stack([record[name] for record in records], axis=1) for name in records[0]}
    one = jax.tree.map(lambda w: w[0], states.weights)
    kept_at = {"keep_weights_every": keep_weights_every} if kept else {}
    trace = plan.trace(layout.unflatten(stacked), one).assign_attrs(kept_at)
    samples = layout.unflatten(jax.tree.map(lambda *draws: np.stack(draws, axis=1), *kept)) if kept else None
    return Result(trace, layout.unflatten(states.weights), samples, states, sampler)


@dataclass(frozen=True)
class Plan:
    """A checked run: what is sampled by which chains, for how long, and what is measured on the way."""

    sampler: Sampler
    layout: Layout
    num_steps: int
    record_every: int
    observer: Observer
    observed: Dataset
    test: Dataset | None
    mesh: Mesh | None = None
    """The devices; None for a single one."""

    @cached_property
    def _placed(self) -> tuple[Sampler, Dataset, Dataset | None]:
        """The sampler, what is measured on, and the test set, with the data where they are used."""
        train = put_dataset(self.sampler.dataset, self.mesh)
        observed = train if self.observed is self.sampler.dataset else put_dataset(self.observed, self.mesh)
        test = None if self.test is None else put_dataset(self.test, self.mesh)
        return replace(self.sampler, dataset=train), observed, test

    def put(self, states: Any) -> Any:
        """States, from a file or another placement, to where this one wants them."""
        return put_chains(states, self.mesh)

    def init(self, weights: Weights, key: Key | int) -> Any:
        """States of all chains at step 0; `weights` and `key` as for `sample`."""
        starts = self.layout.starts(weights, self.sampler.potential, self.sampler.dataset)
        one = jax.tree.map(lambda w: w[0], starts)
        if self.test is not None:
            self.sampler.potential.check(one, self.test)
        self.sampler.kernel.check(one)
        if self.mesh is not None:
            placement = Placement(**self.mesh.shape)
            # `make_plan` has checked the chains; where they do not divide, a mesh was given on purpose.
            num_chains = math.lcm(self.layout.size, placement.chains)
            placement.check(num_chains, self.sampler.dataset.num_examples, one)
        temperatures = self.layout.temperature_per_chain(starts)
        return init(self._placed[0], *self.put((starts, temperatures, self.layout.keys(key))))

    def abstract_states(self, weights: Weights) -> Any:
        """Shapes and types of the states of chains whose weights have the shapes of `weights`."""
        starts = jax.tree.map(lambda w: jax.ShapeDtypeStruct((self.layout.size, *w.shape), w.dtype), weights)
        temperatures = jax.ShapeDtypeStruct((self.layout.size,), jax.tree.leaves(weights)[0].dtype)
        return _init.eval_shape(self.sampler.kernel, starts, temperatures, self.layout.keys(0), self.sampler.dataset)

    def empty_trace(self, states: Any) -> xr.Dataset:
        """The trace before the first record: every observable and coordinate, no draws."""
        # Of the compiled function, so that the run itself need not trace it again.
        shapes = _observe.eval_shape(self.sampler.kernel, self.observer, states, self.observed, self.test)
        zeros = {name: np.zeros(value.shape, value.dtype) for name, value in shapes.items()}
        record = observables.to_host(zeros)
        stacked = {name: np.zeros((value.shape[0], 0, *value.shape[1:]), value.dtype) for name, value in record.items()}
        one = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape[1:], w.dtype), states.weights)
        return self.trace(self.layout.unflatten(stacked), one).assign_attrs(record_every=self.record_every)

    def trace(self, records: dict[str, np.ndarray], weights: Weights) -> xr.Dataset:
        """Stacked observables (temperature, chain, draw, …) with labels, and the number of examples measured on."""
        trace = self.layout.trace(records, self.record_every, weights)
        return trace.assign_attrs(observed_examples=self.observed.num_examples)

    def run(
        self, states: Any, *, start: int = 0, segment: int | None = None, progress: bool | None = None
    ) -> Iterator[Record]:
        """Every record from step `start` on, and the end: stopped chains masked and warned of, under a progress bar.

        It ends early when no chain is left running. With `segment`, the chains are handed out at its multiples, too.
        """
        if start > 0 and bool(np.all(np.asarray(hosts.to_host(states.status)) != Status.RUNNING)):
            return  # nothing is left to continue; a new run goes on to its first record, which says why
        reporter = Reporter(self.layout)
        sampler, observed, test = self._placed
        with progress_bar(self.num_steps, self.layout.size, show=progress, start=start) as bar:
            for record in run(
                sampler,
                self.observer,
                states,
                observed,
                test,
                start=start,
                stop=self.num_steps,
                record_every=self.record_every,
                segment=segment,
            ):
                if record.observables is None:
                    yield record
                    continue
                masked = reporter.mask_stopped(record.observables)
                last = record.step + self.record_every > self.num_steps
                reporter.report(record.observables, step=record.step, last=last)
                losses = masked["loss"][np.isfinite(masked["loss"])]
                bar.update(record.step, float(losses.mean()) if losses.size else math.nan)
                yield Record(record.step, record.states, masked)
                if not reporter.any_running:
                    return


def make_plan(
    sampler: Sampler,
    *,
    temperatures: Sequence[float] | None,
    num_chains: int,
    num_steps: int,
    record_every: int | None = None,
    test: Dataset | None = None,
    observe_examples: int | None = None,
    chunk_size: int | None = None,
    placement: Placement | Mesh | None = None,
) -> Plan:
    """Check the arguments of `sample` before anything is compiled.

    A mesh as the `placement` is taken as it is: chains or examples that do not divide are whole on every device.
    """
    values = temperatures_for(sampler, temperatures)
    check_integer("num_chains", num_chains, minimum=1)
    check_integer("num_steps", num_steps, minimum=1, maximum=MAX_STEPS, remedy="steps are counted in 32 bits")
    record_every = max(1, num_steps // 100) if record_every is None else record_every
    check_integer("record_every", record_every, minimum=1, maximum=num_steps, remedy="record at least once")
    if chunk_size is not None:
        check_integer("chunk_size", chunk_size, minimum=1)
    observed = sampler.dataset
    if observe_examples is not None:
        check_integer("observe_examples", observe_examples, minimum=1, maximum=observed.num_examples)
        observed = observed.head(observe_examples)
    layout = Layout(tuple(values), num_chains)
    if isinstance(sampler.dataset, StreamedDataset):
        placement = Placement() if placement is None else placement
        if not isinstance(placement, Placement) or placement.num_devices > 1:
            raise ValueError(f"placement.{placement}: a StreamedDataset feeds one device; leave the placement out")
    if not isinstance(placement, Mesh):
        placement = Placement.automatic(layout.size) if placement is None else placement
        placement.check(layout.size, sampler.dataset.num_examples)
        placement = placement.mesh()
    observer = Observer(sampler.potential, chunk_size)
    return Plan(sampler, layout, num_steps, record_every, observer, observed, test, placement)


@dataclass(frozen=True)
class Record:
    """The chains at one recorded step."""

    step: int
    states: Any
    """Valid until the next record is asked for: the buffers are then reused."""
    observables: dict[str, np.ndarray] | None
    """One array per observable, leading axis over all chains; None at the end of a run that falls between records."""


def run(
    sampler: Sampler,
    observer: Observer,
    states: Any,
    observed: Dataset,
    test: Dataset | None,
    *,
    start: int = 0,
    stop: int,
    record_every: int,
    segment: int | None = None,
) -> Iterator[Record]:
    """Advance chains from step `start` to `stop`, yielding every record; at `stop`, and at multiples of `segment`, the
    chains come without observables where there is nothing to record.

    It may be continued from any record: `start` is that record's step.
    """
    kernel = sampler.kernel
    step = start
    refreshes = None if kernel.refresh_every is None else _Refreshes(kernel, states, sampler.dataset.mesh, step)
    intervals = [record_every, kernel.refresh_every, segment]
    segments = Segments.of([interval for interval in intervals if interval is not None], longest=stop)
    while step < stop:
        if refreshes is not None and step >= refreshes.due:
            states = _refresh(kernel, states, sampler.dataset)
            refreshes = _Refreshes(kernel, states, sampler.dataset.mesh, step)
        length = min(_to_next_multiple(step, record_every), stop - step)
        if refreshes is not None:
            length = min(length, refreshes.to_next_stop(step))
        if segment is not None:
            length = min(length, _to_next_multiple(step, segment))
        if isinstance(sampler.dataset, StreamedDataset) and kernel.batch_size is not None:
            states = prefetch.advance(kernel, states, sampler.dataset, segments.cut(length))
        else:
            for num_steps in segments.cut(length):
                states = _advance(kernel, states, sampler.dataset, num_steps=num_steps)
        step += length
        if step % record_every == 0:
            record = _observe(kernel, observer, states, observed, test)
            measured = observables.to_host(record)
            if Status.NON_FINITE_ENERGY in measured["status"]:
                states = _adopt_status(states, record["status"], sampler.dataset.mesh)
            yield Record(step, states, measured)
        elif step == stop or (segment is not None and step % segment == 0):
            yield Record(step, states, None)


def _to_next_multiple(step: int, interval: int) -> int:
    return interval - step % interval


def init(sampler: Sampler, starts: Weights, temperatures: Array, keys: Key) -> Any:
    """States of all chains at step 0."""
    return _init(sampler.kernel, starts, temperatures, keys, sampler.dataset)


@partial(jax.jit, static_argnames="kernel")
def _init(kernel: Kernel, starts: Weights, temperatures: Array, keys: Key, dataset: Dataset) -> Any:
    starts = jax.tree.map(lambda w: jnp.asarray(w, w.dtype), starts)  # a weak type would compile everything twice
    # A chain that starts where another of this key ended must not meet the same noise again.
    keys = jax.vmap(jax.random.fold_in)(keys, jax.vmap(trees.fingerprint)(starts))
    states = jax.vmap(kernel.init, in_axes=(0, 0, 0, None))(keys, starts, temperatures, dataset)
    return keep_in_place(states, dataset.mesh)


@partial(jax.jit, static_argnames=("kernel", "num_steps"), donate_argnames="states")
def _advance(kernel: Kernel, states: Any, dataset: Dataset, num_steps: int) -> Any:
    moved = jax.vmap(lambda state: base.advance(kernel, state, dataset, num_steps))(states)
    return keep_in_place(moved, dataset.mesh)


@partial(jax.jit, static_argnames="kernel", donate_argnames="states")
def _refresh(kernel: Kernel, states: Any, dataset: Dataset) -> Any:
    refreshed = jax.vmap(lambda state: base.refresh(kernel, state, dataset))(states)
    return keep_in_place(refreshed, dataset.mesh)


@partial(jax.jit, static_argnames=("kernel", "observer"))
def _observe(kernel: Kernel, observer: Observer, states: Any, train: Dataset, test: Dataset | None) -> dict[str, Array]:
    record = jax.vmap(lambda state: observer.observe(kernel, state, train, test))(states)
    return keep_everywhere(record, train.mesh)


class _Refreshes:
    """When the next refresh is, asked of the chains once per refresh so that segments need not wait for an answer."""

    def __init__(self, kernel: Kernel, states: Any, mesh: Mesh | None, step: int) -> None:
        assert kernel.refresh_every is not None
        self.due = int(_next_refresh(kernel, states, mesh))
        # Intervals are cut into pieces, short ones while they are short.
        regular = kernel.regular_refresh_interval
        self._piece = kernel.refresh_every if self.due - step < regular else max(kernel.refresh_every, regular // 8)

    def to_next_stop(self, step: int) -> int:
        """Steps to the end of a piece, counted from the refresh back."""
        return (self.due - step) % self._piece or self._piece


@partial(jax.jit, static_argnames="mesh", donate_argnames="states")
def _adopt_status(states: Any, status: Array, mesh: Mesh | None) -> Any:
    return keep_in_place(states._replace(status=status), mesh)


@partial(jax.jit, static_argnames=("kernel", "mesh"))
def _next_refresh(kernel: Kernel, states: Any, mesh: Mesh | None) -> Array:
    wanted = jnp.where(states.status == Status.RUNNING, jax.vmap(kernel.next_refresh)(states), MAX_STEPS)
    return keep_everywhere(jnp.min(wanted), mesh)
