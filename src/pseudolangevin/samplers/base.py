"""The contract of a sampler, the status of a chain, and the loop over steps.

A sampler is a frozen dataclass whose fields are its settings. It is also a pytree whose leaves are its data sets, so
compiled functions take it as an argument. Its methods are pure functions of the state of one chain; the driver
(`chains.Run`) maps them over chains.
"""

from __future__ import annotations

import dataclasses
import inspect
import numbers
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args, get_origin

import jax
import jax.numpy as jnp
from jax import lax

from .. import _trees as trees
from .. import masses
from .._trees import Array, Batch, Key, Stream, Weights
from ..data.dataset import Dataset
from ..gradients import exact_sums, minibatch_gradient
from ..potential import Potential

MAX_STEPS = 2**31 - 1  # a chain counts its steps in 32 bits
VERY_LARGE = 2**24  # weights; a larger chain that diverges is not put back, which would take eight bytes per weight
RATIO_QUANTILES = (0.05, 0.5, 0.95)  # quantiles of 𝒯_i that are recorded

# Types of settings, each with the check of its values.
Positive: TypeAlias = Annotated[float, trees.check_positive]
Share: TypeAlias = Annotated[float, partial(trees.check_interval, low=0, high=1, remedy="it is a share")]
Natural: TypeAlias = Annotated[int, partial(trees.check_integer, minimum=0)]
Count: TypeAlias = Annotated[int, partial(trees.check_integer, minimum=1)]
Masses: TypeAlias = Annotated[float | Weights, masses.check_given]
Several: TypeAlias = Annotated[int, partial(trees.check_integer, minimum=2)]


class Status(IntEnum):
    """Status of a chain."""

    RUNNING = 0
    NON_FINITE = 1
    NO_NOISE = 2
    NON_FINITE_ENERGY = 4

    @property
    def healthy(self) -> bool:
        """Whether the chain's state can be used."""
        return self == Status.RUNNING

    @property
    def explanation(self) -> str:
        """Explanation in one line."""
        return {
            Status.RUNNING: "running",
            Status.NON_FINITE: "a weight or momentum became non-finite; the chain was put back to its last finite "
            "state and stopped. Lower temperature_ratio or time_step, raise mass_floor, or, if N·T/2 is not small "
            "compared with the initial loss, lower the temperature",
            Status.NO_NOISE: "the mini-batch gradient has no variance, so masses cannot be set from it; "
            "use full_batch_langevin, or check that the loss depends on the data",
            Status.NON_FINITE_ENERGY: "its weights are finite but U is not, so exp(-U/T) is no probability; the chain "
            "was left where it is. Check the data for NaN and the loss for overflow (log of 0, division by 0), or "
            "lower time_step",
        }[self]


def _arguments(doc: str) -> dict[str, str]:
    """Return the lines about each argument of a docstring, by its name."""
    lines = inspect.cleandoc(doc).partition("Args:\n")[2].partition("\n\n")[0]
    entries = filter(None, re.split(r"^(?= {4}\w)", lines, flags=re.MULTILINE))
    return {entry.split(":")[0].strip(): entry.rstrip() for entry in entries}


HEALTHY = tuple(int(status) for status in Status if status.healthy)  # for arrays: np.isin(status, HEALTHY)


@dataclass(frozen=True, eq=False, repr=False)
class Sampler(ABC):
    """Base class of all samplers.

    A sampler defines `init` and `step`. Its state is a named tuple with at least the fields of `beginning`: weights;
    temperature, as data, so that a scan of them is one program; key, which never changes, as every draw folds the step
    into it; step, the number of steps done; status. Settings are checked by their types, such as `Positive`.

    Args:
        potential: U.
        dataset: the training set; left out for a `log_density`, which has no data.
    """

    potential: Potential
    dataset: Dataset = None  # type: ignore[assignment]

    name: ClassVar[str]
    uses_temperature: ClassVar[bool] = True
    steps_per_block: ClassVar[int] = 1  # steps that a GPU runs without asking the host whether to go on
    packs: ClassVar[bool] = False  # whether `step` accepts weights that are packed into one vector
    batch_size: ClassVar[int | None] = None  # a field of the samplers that use mini-batches
    exchange_every: ClassVar[int | None] = None  # a field of `samplers.tempered.ReplicaExchange`

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class as a pytree, and put the arguments of its bases before its own in the docstring."""
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_node(cls, _flatten, partial(_unflatten, cls))
        head, _, tail = inspect.cleandoc(cls.__doc__ or "").partition("Args:\n")
        arguments: dict[str, str] = {}
        for documented in (*reversed(cls.__bases__), cls):
            arguments |= _arguments(documented.__doc__ or "")
        example = tail.partition("\n\n")[2]
        cls.__doc__ = "\n".join([head.rstrip(), "", "Args:", *arguments.values(), "", example]).rstrip()

    def __post_init__(self) -> None:
        if not isinstance(self.potential, Potential):
            remedy = "pass pl.classification(apply), pl.Potential(loss) or pl.log_density(f)"
            raise ValueError(f"potential = {self.potential!r} is not a Potential; {remedy}")
        if self.potential.needs_data != isinstance(self.dataset, Dataset):
            without = "is given, but a log_density has no data; leave the data set out"
            why = "is not a Dataset; pass pl.Dataset(inputs, targets)" if self.potential.needs_data else without
            raise ValueError(f"dataset = {self.dataset!r} {why}")
        if not self.potential.needs_data:  # one empty example
            if "batch_size" in _fields(self):
                remedy = "use hybrid_monte_carlo or full_batch_langevin"
                raise ValueError(f"a log_density has no data, so {self.name} has no mini-batches; {remedy}")
            object.__setattr__(self, "dataset", Dataset(jnp.zeros((1,)), jnp.zeros((1,))))
        _check_by_type(self)

    def complete_batch_size(self, share: float, minimum: int, exact: str) -> None:
        """Fill in the default batch size, a share of the data set, and validate it; `exact` is the exact sampler."""
        num, remedy = self.dataset.num_examples, f"for the exact gradient of the full data set use {exact}"
        if self.batch_size is None:
            object.__setattr__(self, "batch_size", max(2, round(share * num)))
        trees.check_integer("batch_size", self.batch_size, minimum=minimum, maximum=num, remedy=remedy)

    def at(self, temperature: Array | float) -> Any:
        """Return the sampler at one temperature, on which U depends if its prior is fixed; for a loop over `step`."""
        scale = temperature if self.uses_temperature else 1 / self.dataset.num_examples
        if (potential := self.potential.at(scale)) is self.potential:
            return self
        return made(type(self), vars(self), potential=potential, unbound=self)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"

    @property
    def settings(self) -> dict[str, Any]:
        """All settings as plain values, without potential and data; masses and data sets are "given"."""
        given = {name: value if _is_plain(value) else "given" for name, value in _fields(self).items()}
        return {name: value for name, value in given.items() if name not in ("potential", "dataset")}

    @property
    def block(self) -> int:
        """Number of steps of a block of a segment; 1 on a CPU."""
        return 1 if jax.default_backend() == "cpu" else self.steps_per_block

    @property
    def examples_per_step(self) -> int:
        """Number of examples that a step uses."""
        return self.batch_size or 0

    def check(self, weights: Weights) -> None:  # noqa: B027 (most samplers have nothing to check)
        """Raise if the sampler was not made for weights of this structure, before anything is compiled."""

    def beginning(self, key: Key, weights: Weights, temperature: Array | float) -> dict[str, Any]:
        """Return the fields that all states have, at step 0."""
        temperature = jnp.asarray(temperature, jax.tree.leaves(weights)[0].dtype)
        count = {name: jnp.zeros((), jnp.int32) for name in ("step", "status")}
        return {"weights": weights, "temperature": temperature, "key": key, **count}

    @abstractmethod
    def init(self, key: Key, weights: Weights, temperature: Array | float) -> Any:
        """Return the state of a chain at step 0."""

    @abstractmethod
    def step(self, state: Any, batch: Batch | None) -> Any:
        """Return the state after one step. `batch` is None for samplers with the exact gradient."""

    @property
    def refreshes(self) -> bool:
        """Whether the sampler has maintenance to do between steps."""
        return type(self).refresh is not Sampler.refresh

    def next_refresh(self, state: Any) -> Array:
        """Return the step at which `refresh` is due."""
        return jnp.asarray(MAX_STEPS, jnp.int32)

    def refresh(self, state: Any) -> Any:
        """Return the state after maintenance, such as a new measurement of the gradient variance."""
        return state

    def measure(self, state: Any, exact_gradient: Weights) -> dict[str, Array]:
        """Return observables that only this sampler has, given the exact gradient at `position(state)`."""
        return {}

    def position(self, state: Any) -> Weights:
        """Return the weights that records are made at."""
        return state.weights

    def continue_from(self, state: Any, other: Any) -> Any:
        """Return `state` at the position of `other`, with its momenta rescaled to this temperature and these masses."""
        return state._replace(weights=other.weights)

    def at_temperature(self, state: Any, temperature: Array) -> Any:
        """Return the state at another temperature: the same position, momenta rescaled. The sampler is at that one."""
        return self.continue_from(state._replace(temperature=temperature), state)

    def gradient(self, weights: Weights, batch: Batch | None) -> Weights:
        """Return ∇U on a mini-batch, or the exact one if there is none."""
        if batch is None:
            return exact_sums(self.potential, weights, self.dataset, getattr(self, "chunk_size", None)).gradient
        split, precision = self.dataset.mesh is not None, getattr(self, "precision", None)
        return minibatch_gradient(self.potential, weights, batch, precision, split=split)

    def batch_indices(self, key: Key, step: Array, stream: Stream = Stream.BATCH) -> Array:
        """Return the examples of one step of the chain with this key, which do not depend on its weights."""
        key = trees.stream_key(key, stream)
        return trees.draw_indices(key, self.dataset.num_examples, self.examples_per_step, step)

    def draw(self, state: Any, stream: Stream = Stream.BATCH) -> Batch | None:
        """Return the mini-batch of the next step; None for samplers with the exact gradient."""
        return None if self.batch_size is None else self.dataset.take(self.batch_indices(state.key, state.step, stream))

    def advance(self, state: Any, num_steps: Array | int) -> Any:
        """Return the state after `num_steps` steps, refreshed whenever that is due; for a loop of your own.

        It can be compiled and mapped over chains. A chain that diverges is reset to the last refresh and stops.
        """
        if (bound := self.at(state.temperature)) is not self:
            return bound.advance(state, num_steps)
        stop = state.step + num_steps

        def piece(state: Any) -> Any:
            state = self.refresh_if_due(state)
            length = jnp.minimum(stop, self.next_refresh(state)) - state.step
            if self.block > 1:
                state = self.segment(state, length // self.block, self.block)
                length = length % self.block
            return self.segment(state, length)

        return lax.while_loop(lambda s: (s.step < stop) & (s.status == Status.RUNNING), piece, state)

    def refresh_if_due(self, state: Any) -> Any:
        """Return the state, refreshed if that is due and the chain still runs."""
        if not self.refreshes:
            return state
        due = (state.step >= self.next_refresh(state)) & (state.status == Status.RUNNING)
        return trees.select(due, self.refresh(state), state)

    def segment(self, state: Any, num_blocks: Array | int, block: int = 1, batches: Any = None) -> Any:
        """Return the state after `num_blocks` (which may be traced) blocks of `block` steps, without refreshes.

        A chain that is no longer finite is reset to the start of the segment, and never moves again. `batches` are
        the mini-batches of these steps, stacked along the first axis, if they were fetched in advance.
        """
        very_large, running = trees.num_weights(state.weights) >= VERY_LARGE, state.status == Status.RUNNING
        dataset: Any = self.dataset

        def one(index: Array, moved: Any) -> Any:
            fetched = jax.tree.map(lambda array: array[index], batches)
            stepped = self.step(moved, self.draw(moved) if batches is None else dataset.decode(fetched))
            return trees.select(running, stepped, moved) if very_large else stepped

        def many(index: Array, moved: Any) -> Any:
            # Launches limit a small network; two steps as one share some of them.
            unroll = 2 if trees.num_weights(state.weights) < 2**17 else 1
            return lax.fori_loop(0, block, lambda _, s: one(index, s), moved, unroll=unroll)

        start = self.pack(state)
        folded = start._replace(key=trees.stream_keys(state.key))
        moved = lax.fori_loop(0, num_blocks, one if block == 1 else many, folded)._replace(key=state.key)
        finite = trees.all_finite(moved)
        status = jnp.where(running & ~finite, Status.NON_FINITE, state.status)
        if not very_large:
            moved = trees.select(running & finite, moved, start)
        return self.unpack(moved)._replace(status=status)

    def pack(self, state: Any) -> Any:
        """Return the state with one vector for each tree shaped like the weights, if they fit on one device."""
        structure: Any = jax.tree.structure(state.weights)

        def is_tree(part: Any) -> bool:
            return jax.tree.structure(part) == structure

        parts = filter(is_tree, jax.tree.leaves(state, is_leaf=is_tree))
        if not self.packs or self.dataset.mesh is not None or not trees.is_packable(*parts):
            return state
        return jax.tree.map(lambda part: trees.pack(part) if is_tree(part) else part, state, is_leaf=is_tree)

    def unpack(self, state: Any) -> Any:
        """Return the state as it was before `pack`."""
        return jax.tree.map(trees.unpack, state, is_leaf=lambda part: isinstance(part, trees.Flat))


def _fields(sampler: Sampler) -> dict[str, Any]:
    return {field.name: getattr(sampler, field.name) for field in dataclasses.fields(sampler)}


def _check_by_type(sampler: Sampler) -> None:
    """Apply the checks of the types of all settings, such as `Positive`, and of literals."""
    hints: dict[str, Any] = {}
    for kind in reversed(type(sampler).__mro__):
        with suppress(NameError):  # a type that is imported for type checkers only
            hints |= get_annotations(kind, eval_str=True)
    for name, value in _fields(sampler).items():
        members = (hints.get(name), *get_args(hints.get(name)))
        if get_origin(members[0]) is Literal:
            trees.check_choice(name, value, members[1:])
        for check in (check for member in members for check in getattr(member, "__metadata__", ())):
            if value is not None or type(None) not in members:
                check(name, value)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, numbers.Number | str)


def _flatten(sampler: Sampler) -> tuple[list[Any], tuple[Any, ...]]:
    """Return data sets and arrays as children; settings and the potential are static."""
    fields = _fields(sampler)
    data = {name: value for name, value in fields.items() if not (_is_plain(value) or isinstance(value, Potential))}
    static = tuple((name, value) for name, value in fields.items() if name not in data)
    return list(data.values()), (static, tuple(data))


def _unflatten(cls: type[Sampler], static: tuple[Any, ...], data: Iterable[Any]) -> Sampler:
    """Rebuild without checks: inside a compiled function the leaves are tracers."""
    settings, names = static
    return made(cls, dict(settings), **dict(zip(names, data, strict=True)))


def made(cls: type[Any], settings: dict[str, Any], **more: Any) -> Any:
    """Return a sampler with these fields, which are not checked."""
    sampler = object.__new__(cls)
    vars(sampler).update(settings, **more)
    return sampler


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ExactGradient(Sampler):
    """Base class of samplers with the exact gradient, whose masses are given.

    Args:
        masses: one number, or a pytree shaped like the weights (for example from a pseudo-Langevin run).
        chunk_size: examples held at once; bounds memory, not the result.
    """

    masses: Masses = 1.0
    chunk_size: Count | None = None

    def check(self, weights: Weights) -> None:
        masses.given(weights, self.masses)
