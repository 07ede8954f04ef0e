"""The contract that every sampler keeps, and the segment: the compiled unit of a run.

A sampler is a `Kernel` (pure functions of one chain's state) together with the potential and the data set it samples.
The driver maps the kernel over chains; nothing in a kernel knows how many there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from .. import trees
from ..data import Dataset, Drawn, draw_indices
from ..potential import Potential
from ..types import Array, Batch, Key, Status, Weights


class ChainState(Protocol):
    """What every sampler's state has; each adds its own. States are named tuples, so pytrees."""

    @property
    def weights(self) -> Weights:
        """The current point."""

    @property
    def temperature(self) -> Array:
        """T, as data: a temperature scan is one program."""

    @property
    def key(self) -> Key:
        """The chain's own key, never changed; every draw folds the step into it."""

    @property
    def step(self) -> Array:
        """Steps done since the start of the run."""

    @property
    def status(self) -> Array:
        """A `Status`."""

    def _replace(self, **changes: Any) -> Any: ...


State = TypeVar("State", bound=ChainState)
Measurements: TypeAlias = dict[str, Array]


class Kernel(ABC):
    """Pure functions of one chain; compared by identity, so that a compiled program belongs to one kernel."""

    batch_size: int | None = None
    """Examples that every step draws, see `batch_indices`; None where a step is not driven by one mini-batch."""
    refresh_every: int | None = None
    """All intervals between calls of `refresh` are multiples of this many steps; None: there are none."""
    regular_refresh_interval: int = 0
    """The shortest interval between calls of `refresh` after a warm-up."""

    def check(self, weights: Weights) -> None:
        """Refuse weights of one chain that the kernel was not made for, before anything is compiled."""
        del weights

    @abstractmethod
    def init(self, key: Key, weights: Weights, temperature: Array, dataset: Dataset) -> Any:
        """The state of a chain at step 0."""

    def batch_indices(self, key: Key, step: Array, num_examples: int) -> Array:
        """The examples of a step of the chain with this key: known before the step is done."""
        assert self.batch_size is not None
        return draw_indices(stream_key(key, Stream.BATCH), num_examples, self.batch_size, step)

    def with_batch(self, state: Any, dataset: Dataset) -> Dataset:
        """The data set with the mini-batch of the next step drawn, where a step is driven by one."""
        if self.batch_size is None:
            return dataset
        return dataset.with_drawn(self.batch_indices(state.key, state.step, dataset.num_examples))

    def pack(self, state: Any, dataset: Dataset) -> Any:
        """The state in the form in which a segment carries it from step to step."""
        del dataset
        return state

    def unpack(self, state: Any) -> Any:
        """The state as it was before `pack`."""
        return state

    @abstractmethod
    def step(self, state: Any, dataset: Dataset) -> Any:
        """One step of the dynamics, of a state that is packed or not."""

    def measure(self, state: Any, exact_gradient: Weights) -> Measurements:
        """What only this sampler can measure, given the exact gradient at the state's weights."""
        del state, exact_gradient
        return {}

    def next_refresh(self, state: Any) -> Array:
        """The step at which the chain wants `refresh`."""
        raise NotImplementedError(f"{type(self).__name__} is never refreshed")

    def refresh(self, state: Any, dataset: Dataset) -> Any:
        """Maintenance between segments."""
        del dataset
        return state


@dataclass(frozen=True, eq=False)
class Sampler:
    """A kernel with what it samples; made by `pseudo_langevin` and its siblings, run by `sample`."""

    name: str
    kernel: Kernel
    potential: Potential
    dataset: Dataset
    settings: Mapping[str, Any]
    """Every number the sampler was made with, for the record."""
    uses_temperature: bool = True

    def __repr__(self) -> str:
        """The call that makes it."""
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{self.name}({settings})"


class Stream(IntEnum):
    """Independent uses of a chain's key; folding one in keeps a step's draws apart from a refresh's."""

    INIT = 0
    STEP = 1
    REFRESH = 2
    BATCH = 3
    NOISE = 4


def key_for(key: Key, stream: Stream, step: Array | int) -> Key:
    """The key of one event of a chain: a function of the chain, the kind of event, and the step alone.

    So a run does not depend on where its segments end or where it was interrupted.
    """
    return jax.random.fold_in(stream_key(key, stream), step)


def stream_key(key: Key, stream: Stream) -> Key:
    """The key of all events of a kind: for what is looked up by the step, see `threefry`, rather than drawn."""
    return key.streams[stream] if isinstance(key, FoldedKey) else jax.random.fold_in(key, stream)


class FoldedKey(NamedTuple):
    """A chain's key during a segment, every stream folded in beforehand: a GPU would do that anew at every step."""

    streams: tuple[Key, ...]


def advance(kernel: Kernel, state: State, dataset: Dataset, num_steps: int) -> State:
    """A segment: `num_steps` steps of one chain, then the check that it is finite.

    A chain that is not is put back to where the segment began, and never moves again.
    """
    step = _guarded(kernel, state)
    steps = lax.scan(lambda s, _: (step(s, dataset), None), _pack(kernel, state, dataset), length=num_steps)
    return _unless_broken(state, _unpack(kernel, state, steps[0]))


def advance_with(
    kernel: Kernel, state: State, dataset: Dataset, batches: Batch, opened: Callable[[Batch], Batch]
) -> State:
    """A segment on mini-batches that were drawn before, stacked along their first axis; otherwise as `advance`.

    A batch is `opened` when its step comes: until then it is kept as it was sent.
    """
    step = _guarded(kernel, state)
    packed = _pack(kernel, state, dataset)
    steps = lax.scan(lambda s, batch: (step(s, Drawn(opened(batch), dataset)), None), packed, batches)
    return _unless_broken(state, _unpack(kernel, state, steps[0]))


def _pack(kernel: Kernel, state: State, dataset: Dataset) -> Any:
    folded = FoldedKey(tuple(stream_key(state.key, stream) for stream in Stream))
    return kernel.pack(state, dataset)._replace(key=folded)


def _unpack(kernel: Kernel, state: State, moved: Any) -> State:
    return kernel.unpack(moved)._replace(key=state.key)


VERY_LARGE = 2**24
"""Weights from which on a chain that breaks is left as it is: to put it back, weights and momenta of the beginning of
every segment would have to be kept, eight bytes per weight."""


def _guarded(kernel: Kernel, state: State) -> Callable[[State, Dataset], State]:
    """The step; of a very large chain that has stopped, nothing."""
    if trees.num_weights(state.weights) < VERY_LARGE:
        return kernel.step
    running = state.status == Status.RUNNING
    return lambda s, dataset: trees.select(running, kernel.step(s, dataset), s)


def _unless_broken(state: State, moved: State) -> State:
    finite = trees.all_finite(moved)
    if trees.num_weights(state.weights) >= VERY_LARGE:
        broken = (moved.status == Status.RUNNING) & ~finite
        return moved._replace(status=jnp.where(broken, Status.NON_FINITE, moved.status))
    running = state.status == Status.RUNNING
    stopped = state._replace(status=jnp.where(running & ~finite, Status.NON_FINITE, state.status))
    return trees.select(running & finite, moved, stopped)


def refresh(kernel: Kernel, state: State, dataset: Dataset) -> State:
    """The kernel's maintenance, where it is due and the chain still runs."""
    due = (state.step >= kernel.next_refresh(state)) & (state.status == Status.RUNNING)
    return trees.select(due, kernel.refresh(state, dataset), state)
