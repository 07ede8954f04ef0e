"""Running chains: many chains and temperatures as one compiled program, a segment at a time.

    init ─> [refresh if due] ─> advance to the next stop ─> [record] ─> …

Stops are the multiples of `record_every` and of the kernel's `refresh_every`. All randomness is keyed by chain and
global step, so a trajectory depends neither on where segments end nor on which other chains run beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from . import observables, trees
from .checks import check_integer, check_positive
from .data import Dataset
from .gradients import DEFAULT_CHUNK_SIZE
from .observables import Observer
from .potential import Potential
from .progress import progress_bar
from .reports import Reporter
from .samplers import base
from .samplers.base import Kernel, Sampler
from .types import Array, Key, Status, Weights


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
    chunk_size: int = DEFAULT_CHUNK_SIZE,
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
        key: random key, or an integer seed. Chain c at temperature T is the same whatever other chains run beside it.
        test: optional test set, for `test_loss` and `test_error`.
        observe_examples: measure on the first so many training examples only; default: on all.
        keep_weights_every: keep the weights of every so many-th record in `result.samples`.
        chunk_size: examples held at once per chain when measuring; bounds memory, not the result.
        progress: show a progress bar; default: when the output is a terminal.

    Returns:
        Trace, final weights and states.
    """
    temperatures = _check_temperatures(temperatures, sampler)
    check_integer("num_chains", num_chains, minimum=1)
    check_integer("num_steps", num_steps, minimum=1)
    record_every = max(1, num_steps // 100) if record_every is None else record_every
    check_integer("record_every", record_every, minimum=1, maximum=num_steps, remedy="record at least once")
    check_integer("chunk_size", chunk_size, minimum=1)
    if keep_weights_every is not None:
        check_integer("keep_weights_every", keep_weights_every, minimum=1)
    observed = sampler.dataset
    if observe_examples is not None:
        check_integer("observe_examples", observe_examples, minimum=1, maximum=observed.num_examples)
        observed = observed.head(observe_examples)
    layout = Layout(tuple(temperatures), num_chains)
    starts = layout.starts(weights, sampler.potential, sampler.dataset)
    if test is not None:
        sampler.potential.check(jax.tree.map(lambda w: w[0], starts), test)

    states = init(sampler, starts, layout.temperature_per_chain(starts), layout.keys(key))
    observer = Observer(sampler.potential, chunk_size)
    reporter = Reporter(layout)
    records: list[dict[str, np.ndarray]] = []
    kept: list[Weights] = []
    with progress_bar(num_steps, layout.size, show=progress) as bar:
        for record in run(sampler, observer, states, observed, test, stop=num_steps, record_every=record_every):
            states = record.states
            records.append(reporter.mask_stopped(record.observables))
            if keep_weights_every is not None and len(records) % keep_weights_every == 0:
                kept.append(jax.tree.map(np.asarray, states.weights))
            reporter.report(record.observables, last=record.step + record_every > num_steps)
            losses = records[-1]["loss"]
            losses = losses[np.isfinite(losses)]
            bar.update(record.step, float(losses.mean()) if losses.size else math.nan)
            if not reporter.any_running:
                break
    trace = layout.trace(records, record_every, jax.tree.map(lambda w: w[0], starts))
    samples = layout.unflatten(jax.tree.map(lambda *draws: np.stack(draws, axis=1), *kept)) if kept else None
    return Result(trace, layout.unflatten(states.weights), samples, states, sampler)


@dataclass(frozen=True)
class Layout:
    """How chains and temperatures lie along the one mapped axis: temperature by temperature."""

    temperatures: tuple[float, ...]
    num_chains: int

    @property
    def size(self) -> int:
        """All chains."""
        return len(self.temperatures) * self.num_chains

    @property
    def shape(self) -> tuple[int, int]:
        """(temperatures, chains)."""
        return len(self.temperatures), self.num_chains

    def name(self, index: int) -> str:
        """A chain in words."""
        temperature, chain = divmod(index, self.num_chains)
        return f"chain {chain} at T = {self.temperatures[temperature]:g}"

    def temperature_per_chain(self, starts: Weights) -> Array:
        """T of every chain, in the precision of the weights."""
        dtype = jax.tree.leaves(starts)[0].dtype
        return jnp.repeat(jnp.asarray(self.temperatures, dtype), self.num_chains)

    def keys(self, key: Key | int) -> Key:
        """Each chain's key: made from its number and its temperature alone, so that company does not matter."""
        key = jax.random.key(key) if isinstance(key, int | np.integer) else key
        bits = np.asarray(self.temperatures, np.float32).view(np.uint32)

        def chain_key(temperature_bits: Array, chain: Array) -> Key:
            return jax.random.fold_in(jax.random.fold_in(key, chain), temperature_bits)

        return jax.vmap(chain_key)(
            jnp.repeat(jnp.asarray(bits), self.num_chains), jnp.tile(jnp.arange(self.num_chains), len(bits))
        )

    def starts(self, weights: Weights, potential: Potential, dataset: Dataset) -> Weights:
        """Starting weights with one leading axis over all chains."""
        trees.check_weights(weights)
        if self._has_leading_axes(weights, potential, dataset):
            first = jax.tree.map(lambda w: w[0, 0], weights)
            potential.check(first, dataset)
            return jax.tree.map(
                lambda w: jnp.broadcast_to(w, self.shape + w.shape[2:]).reshape(self.size, *w.shape[2:]), weights
            )
        potential.check(weights, dataset)
        return jax.tree.map(lambda w: jnp.broadcast_to(w, (self.size, *w.shape)), weights)

    def _has_leading_axes(self, weights: Weights, potential: Potential, dataset: Dataset) -> bool:
        """Whether these are weights per chain: the loss takes them only without their first two axes."""

        def fits(tree: Weights) -> bool:
            try:
                potential.check(tree, dataset)
            except ValueError:
                return False
            return True

        leaves = jax.tree.leaves(weights)
        allowed = [(t, c) for t in {1, self.shape[0]} for c in {1, self.shape[1]}]
        if any(leaf.ndim < 2 for leaf in leaves) or leaves[0].shape[:2] not in allowed:
            return False
        if any(leaf.shape[:2] != leaves[0].shape[:2] for leaf in leaves):
            return False
        return not fits(weights) and fits(jax.tree.map(lambda w: w[0, 0], weights))

    def unflatten(self, tree: Any) -> Any:
        """Split the leading axis into (temperature, chain)."""
        return jax.tree.map(lambda leaf: leaf.reshape(*self.shape, *leaf.shape[1:]), tree)

    def trace(self, records: list[dict[str, np.ndarray]], record_every: int, weights: Weights) -> xr.Dataset:
        """Records as a labelled data set."""
        variables = {}
        for name in records[0]:
            stacked = self.unflatten(np.stack([record[name] for record in records], axis=1))
            extra = observables.EXTRA_DIMENSIONS.get(name)
            dims = ("temperature", "chain", "draw") + ((extra,) if extra else ())
            variables[name] = (dims, stacked, {"long_name": observables.LONG_NAMES.get(name, name)})
        draws = np.arange(len(records))
        coords = {
            "temperature": np.asarray(self.temperatures, np.float64),
            "chain": np.arange(self.num_chains),
            "draw": draws,
            "step": ("draw", (draws + 1) * record_every),
        }
        return xr.Dataset(variables, coords | observables.coordinates(weights, records[0]))


@dataclass(frozen=True)
class Record:
    """The chains at one recorded step."""

    step: int
    states: Any
    """Valid until the next record is asked for: the buffers are then reused."""
    observables: dict[str, np.ndarray]


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
) -> Iterator[Record]:
    """Advance chains from step `start` to `stop`, yielding every record; the last one may come before `stop`.

    It may be continued from any record: `start` is that record's step.
    """
    kernel = sampler.kernel
    stiffness = observer.potential.stiffness(jax.tree.map(lambda w: w[0], states.weights))
    step = start
    while step < stop:
        if (
            kernel.refresh_every is not None
            and step > 0
            and step % kernel.refresh_every == 0
            and _any_due(kernel, states)
        ):
            states = _refresh(kernel, states, sampler.dataset)
        length = min(_to_next_multiple(step, record_every), stop - step)
        if kernel.refresh_every is not None:
            length = min(length, _to_next_multiple(step, kernel.refresh_every))
        states = _advance(kernel, states, sampler.dataset, num_steps=length)
        step += length
        if step % record_every == 0:
            record = _observe(kernel, observer, states, observed, test)
            yield Record(step, states, observables.to_host(record, stiffness))


def _to_next_multiple(step: int, interval: int) -> int:
    return interval - step % interval


def init(sampler: Sampler, starts: Weights, temperatures: Array, keys: Key) -> Any:
    """States of all chains at step 0."""
    return _init(sampler.kernel, starts, temperatures, keys, sampler.dataset)


@partial(jax.jit, static_argnames="kernel")
def _init(kernel: Kernel, starts: Weights, temperatures: Array, keys: Key, dataset: Dataset) -> Any:
    return jax.vmap(kernel.init, in_axes=(0, 0, 0, None))(keys, starts, temperatures, dataset)


@partial(jax.jit, static_argnames=("kernel", "num_steps"), donate_argnames="states")
def _advance(kernel: Kernel, states: Any, dataset: Dataset, num_steps: int) -> Any:
    return jax.vmap(lambda state: base.advance(kernel, state, dataset, num_steps))(states)


@partial(jax.jit, static_argnames="kernel", donate_argnames="states")
def _refresh(kernel: Kernel, states: Any, dataset: Dataset) -> Any:
    return jax.vmap(lambda state: base.refresh(kernel, state, dataset))(states)


@partial(jax.jit, static_argnames=("kernel", "observer"))
def _observe(kernel: Kernel, observer: Observer, states: Any, train: Dataset, test: Dataset | None) -> dict[str, Array]:
    return jax.vmap(lambda state: observer.observe(kernel, state, train, test))(states)


@partial(jax.jit, static_argnames="kernel")
def _due(kernel: Kernel, states: Any) -> Array:
    return jnp.any(jax.vmap(kernel.due)(states) & (states.status == Status.RUNNING))


def _any_due(kernel: Kernel, states: Any) -> bool:
    return bool(_due(kernel, states))


def _check_temperatures(temperatures: Sequence[float] | None, sampler: Sampler) -> list[float]:
    if not sampler.uses_temperature:
        if temperatures is not None:
            raise ValueError(f"temperatures = {temperatures!r}: {sampler.name} has no temperature; leave it out")
        return [0.0]
    if temperatures is None:
        raise ValueError("temperatures is missing; pass a list, for example temperatures=[1e-5, 3e-5]")
    try:
        values = list(temperatures)
    except TypeError:
        raise ValueError(
            f"temperatures = {temperatures!r} is not a list; write temperatures=[{temperatures!r}]"
        ) from None
    if not values:
        raise ValueError("temperatures is empty; pass at least one")
    for value in values:
        check_positive("temperatures", value, "exp(−U/T) needs T > 0")
        if not float(np.finfo(np.float32).tiny) <= float(value) <= float(np.finfo(np.float32).max):
            raise ValueError(f"temperatures holds {value!r}, outside the range of float32; rescale the potential")
    values = [float(value) for value in values]
    if len({np.float32(value) for value in values}) < len(values):
        raise ValueError(
            f"temperatures = {values} repeats a value; use num_chains for several chains at one temperature"
        )
    return values
