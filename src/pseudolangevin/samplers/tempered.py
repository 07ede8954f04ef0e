"""Samplers whose chains change their temperature: along a schedule, or by exchange with other chains.

Both extend a sampler of any kind: `annealed(sampler, schedule)` and `replica_exchange(sampler)` return a sampler with
the same settings and the same step. A chain at another temperature keeps its position; its momenta are rescaled by
√(M'·T'/(M·T)), and masses that are set from the noise go as 1/T (`Sampler.at_temperature`, `Sampler.continue_from`).
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .. import _trees as trees
from .._checks import check_integer
from .._random import Stream, key_for
from .._trees import Array, Key, Weights
from ..gradients import Sum, difference, exact_energy
from .base import Sampler, Status

Kind = TypeVar("Kind", bound=Sampler)
if TYPE_CHECKING:
    Base = Sampler
else:
    Base = object  # the class that is extended is the Sampler


@jax.tree_util.register_static
@dataclass(frozen=True)
class Schedule:
    """The temperature as a function of the step, updated every `every` steps."""

    function: Callable[[Any], Any]
    every: int

    def __call__(self, step: Array | int) -> Array:
        """Return the temperature of a step."""
        return jnp.asarray(self.function(step - step % self.every), jnp.float32)

    @classmethod
    def of_levels(cls, temperatures: Any, steps_per_level: int) -> Schedule:
        """Return the schedule that keeps each temperature for `steps_per_level` steps, and the last one for ever."""
        levels = tuple(float(value) for value in temperatures)

        def level(step: Any) -> Array:
            return jnp.asarray(levels)[jnp.minimum(step // steps_per_level, len(levels) - 1)]

        return cls(level, steps_per_level)

    def check(self) -> None:
        """Raise unless the function can be compiled and starts at a positive temperature."""
        remedy = "pass a function of the step made of jax.numpy operations, such as a schedule of optax"
        try:
            shape = jax.eval_shape(self, jax.ShapeDtypeStruct((), jnp.int32)).shape
            first = float(self(0))
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            raise ValueError(f"temperatures = {self.function!r} cannot be compiled ({why}); {remedy}") from error
        if shape != ():
            raise ValueError(f"temperatures = {self.function!r} returns an array of shape {shape}; {remedy}")
        if not (first > 0 and np.isfinite(first)):
            raise ValueError(f"temperatures = {self.function!r} is {first:g} at step 0; exp(-U/T) needs T > 0")


class Annealed(Base):
    """A sampler whose temperature follows a schedule; see `annealed`."""

    schedule: Schedule

    def _changes(self, state: Any) -> Array:
        # Two programs may round the schedule differently.
        return jnp.abs(self.schedule(state.step) / state.temperature - 1) > 1e-5

    @property
    def refreshes(self) -> bool:
        """Whether the sampler has maintenance to do: the temperature is set between steps."""
        return True

    def next_refresh(self, state: Any) -> Array:
        """Return the step of the next change of the temperature, or of the sampler's own maintenance."""
        every = self.schedule.every
        change = jnp.where(self._changes(state), state.step, state.step - state.step % every + every)
        return jnp.minimum(change, super().next_refresh(state)) if super().refreshes else change

    def refresh(self, state: Any) -> Any:
        """Set the temperature; masses that depend on the noise are set at the same time."""
        target = self.schedule(state.step).astype(state.temperature.dtype)
        state = trees.select(self._changes(state), self.at_temperature(state, target), state)
        return super().refresh(state) if super().refreshes else state

    def measure(self, state: Any, exact_gradient: Weights) -> dict[str, Array]:
        """Return also the current temperature."""
        return super().measure(state, exact_gradient) | {"current_temperature": state.temperature}


def annealed(sampler: Kind, temperatures: Callable[[Any], Any], *, every: int = 1_000) -> Kind:
    """Return the sampler with a temperature that is a function of the step.

    Args:
        sampler: any sampler with a temperature.
        temperatures: function of the step, made of jax.numpy operations, such as a schedule of optax.
        every: steps between updates of the temperature. Samplers that set masses from the noise measure it each time.
    """
    check_integer("every", every, minimum=1)
    schedule = temperatures if isinstance(temperatures, Schedule) else Schedule(temperatures, every)
    schedule.check()
    return _extended(sampler, Annealed, schedule=schedule)


class Visits(NamedTuple):
    """Travels of the replica that is at one temperature, and the swaps with the next hotter temperature."""

    start: Array
    """Temperature at which the replica started."""
    last_end: Array
    """End of the temperature grid that the replica visited last: 1 the coldest, 2 the hottest after the coldest."""
    round_trips: Array
    """Number of the replica's trips from the coldest temperature to the hottest and back."""
    num_proposed: Array
    num_accepted: Array


class ReplicaExchange(Base):
    """A sampler whose chains exchange their weights with those of neighbouring temperatures; see `replica_exchange`."""

    exchange_every: int  # type: ignore[misc]

    def init(self, key: Key, weights: Weights, temperature: Array | float) -> Any:
        """Return the state of a chain at step 0, with a record of its travels."""
        state = super().init(key, weights, temperature)  # type: ignore[safe-super]
        zeros = [jnp.zeros((), jnp.int32) for _ in range(4)]
        return _with_visits(type(state))(*state, Visits(state.temperature, *zeros))

    def exchange(self, states: Any, num_temperatures: int) -> Any:
        """Return the states of all chains, temperature by temperature, after one round of swaps.

        Neighbouring temperatures swap with probability min(1, exp((1/T - 1/T')·(U - U'))), which leaves the product
        of the distributions unchanged. Even and odd pairs take turns (Okabe et al., 2001; non-reversible, so that
        replicas travel faster). Chains of the same index belong together. Temperatures, keys and masses stay.
        """
        size = states.step.shape[0]
        chains = jnp.arange(size // num_temperatures)
        order = jnp.argsort(states.temperature[:: len(chains)])
        sorted_chains = order[:, None] * len(chains) + chains  # (rank, chain), cold to hot
        cold, hot = sorted_chains[:-1], sorted_chains[1:]
        chunk_size = getattr(self, "chunk_size", None)
        energies = jax.vmap(lambda state: exact_energy(self.potential, self.position(state), self.dataset, chunk_size))(
            states
        )
        gap = difference(*(Sum(energies.high[at], energies.low[at]) for at in (cold, hot)))
        cost = (1 / states.temperature[hot] - 1 / states.temperature[cold]) * gap
        running = states.status == Status.RUNNING
        step = jnp.max(jnp.where(running, states.step, 0))
        turn = (step // self.exchange_every) % 2 == jnp.arange(num_temperatures - 1) % 2
        proposed = turn[:, None] & running[cold] & running[hot]
        keys = jax.vmap(lambda key: key_for(key, Stream.EXCHANGE, step))(states.key[cold.ravel()])
        limit = jax.vmap(jax.random.exponential)(keys).reshape(cost.shape)
        accepted = proposed & (cost <= limit)

        indices = jnp.arange(size)
        source = (
            indices.at[cold].add(jnp.where(accepted, hot - cold, 0)).at[hot].add(jnp.where(accepted, cold - hot, 0))
        )
        others = jax.tree.map(lambda leaf: leaf[source], states)
        moved = jax.vmap(self.continue_from)(states, others)
        moved = jax.vmap(trees.select)(source != indices, moved, states)
        old, replica = states.visits, others.visits
        at_coldest = jnp.zeros(size, bool).at[sorted_chains[0]].set(True)
        at_hottest = jnp.zeros(size, bool).at[sorted_chains[-1]].set(True)
        last_end = jnp.where(at_hottest & (replica.last_end == 1), 2, replica.last_end)
        visits = Visits(
            start=replica.start,
            last_end=jnp.where(at_coldest, 1, last_end),
            round_trips=replica.round_trips + (at_coldest & (replica.last_end == 2)),
            num_proposed=old.num_proposed.at[cold].add(proposed),
            num_accepted=old.num_accepted.at[cold].add(accepted),
        )
        return moved._replace(visits=visits)

    def measure(self, state: Any, exact_gradient: Weights) -> dict[str, Array]:
        """Return also the share of accepted swaps, the start of the replica and its round trips."""
        visits = state.visits
        return super().measure(state, exact_gradient) | {
            "swap_acceptance": visits.num_accepted / visits.num_proposed.astype(state.temperature.dtype),
            "replica_temperature": visits.start,
            "round_trips": visits.round_trips,
        }


def replica_exchange(sampler: Kind, *, every: int = 100) -> Kind:
    """Return the sampler with exchange of weights between neighbouring temperatures (parallel tempering).

    A round of swaps needs U of every chain on the full data set. The trace has `swap_acceptance` (of swaps with the
    next hotter temperature), `replica_temperature` (where the replica started) and `round_trips` (of that replica).

    Args:
        sampler: any sampler with a temperature.
        every: steps between two rounds of swaps.

    Example:
        >>> exchanging = replica_exchange(sampler, every=100)  # doctest: +SKIP
        >>> result = sample(exchanging, weights, temperatures=[1e-5, 2e-5, 4e-5], num_steps=20_000, key=0)  # doctest: +SKIP
    """
    check_integer("every", every, minimum=1)
    return _extended(sampler, ReplicaExchange, exchange_every=every)


def _extended(sampler: Kind, mixin: type, **settings: Any) -> Kind:
    if not isinstance(sampler, Sampler) or not sampler.uses_temperature:
        named = getattr(sampler, "name", repr(sampler))
        raise ValueError(f"sampler = {named} has no temperature; use a sampler such as pl.balanced_langevin")
    own = {field.name: getattr(sampler, field.name) for field in dataclasses.fields(sampler)}
    return _extended_class(type(sampler), mixin)(**own | settings)


@cache  # the same class for the same sampler, so that nothing is compiled twice
def _extended_class(kind: type, mixin: type) -> type[Any]:
    if issubclass(kind, mixin):
        return kind
    options: dict[str, Any] = {"frozen": True, "eq": False, "repr": False, "kw_only": True}
    name, fields = mixin.__name__ + kind.__name__, list(mixin.__annotations__.items())
    return dataclasses.make_dataclass(name, fields, bases=(mixin, kind), **options)


@cache
def _with_visits(kind: type[Any]) -> type[Any]:
    return namedtuple(f"Exchanging{kind.__name__}", (*kind._fields, "visits"))  # type: ignore[misc]
