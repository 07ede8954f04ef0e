"""Samplers whose chains change their temperature: along a schedule, or by exchange with other chains.

Both extend a sampler of any kind. A chain keeps its position and its momenta in units of √(M·T); see
`Sampler.at_temperature` and `Sampler.continue_from`.
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from .. import _trees as trees
from .._trees import Array, Key, Stream, Weights
from ..gradients import Sum, difference, exact_energy
from .base import Sampler, Status, made

Kind = TypeVar("Kind", bound=Sampler)
Base: Any = object  # of classes that extend a sampler, which stands behind them


@jax.tree_util.register_static
class Schedule(NamedTuple):
    """The temperature as a function of the step, evaluated at multiples of `every`."""

    function: Callable[[Any], Any]
    every: int

    def at(self, step: Array | int) -> Array:
        """Return the temperature of a step."""
        return jnp.asarray(self.function(step - step % self.every), jnp.float32)


class Annealed(Base):
    """A sampler whose temperature follows a schedule; see `annealed`."""

    schedule: Schedule

    def _changes(self, state: Any) -> Array:
        # Two programs may round the schedule differently.
        return jnp.abs(self.schedule.at(state.step) / state.temperature - 1) > 1e-5

    @property
    def refreshes(self) -> bool:
        return True

    def next_refresh(self, state: Any) -> Array:
        every = self.schedule.every
        change = jnp.where(self._changes(state), state.step, state.step - state.step % every + every)
        return jnp.minimum(change, super().next_refresh(state)) if super().refreshes else change

    def refresh(self, state: Any) -> Any:
        """Set the temperature, then do the sampler's own maintenance: masses are set from the noise."""
        target = self.schedule.at(state.step).astype(state.temperature.dtype)
        there = vars(self).get("unbound", self).at(target)  # U may depend on the temperature
        state = trees.select(self._changes(state), there.at_temperature(state, target), state)
        return super(Annealed, there).refresh(state) if super().refreshes else state

    def measure(self, state: Any, exact_gradient: Weights) -> dict[str, Array]:
        return super().measure(state, exact_gradient) | {"current_temperature": state.temperature}


def annealed(sampler: Kind, temperatures: Callable[[Any], Any], *, every: int) -> Kind:
    """Return the sampler with a temperature that is a function of the step.

    Args:
        sampler: any sampler with a temperature.
        temperatures: function of the step, made of jax.numpy operations, such as a schedule of optax.
        every: steps between updates of the temperature. Samplers that set masses from the noise measure it each time.
    """
    trees.check_integer("every", every, minimum=1)
    schedule, given = Schedule(temperatures, every), f"temperatures = {temperatures!r}"
    try:
        first = float(jax.jit(schedule.at)(0))
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        remedy = "pass a function of the step made of jax.numpy operations, such as a schedule of optax"
        raise ValueError(f"{given} cannot be compiled to one number ({why}); {remedy}") from error
    if not 0 < first < jnp.inf:
        raise ValueError(f"{given} is {first:g} at step 0; exp(-U/T) needs T > 0")
    return _extended(sampler, Annealed, schedule=schedule)


class Visits(NamedTuple):
    """The replica that is at one temperature, and the swaps with the next hotter temperature."""

    start: Array  # temperature at which the replica started
    num_proposed: Array
    num_accepted: Array


class ReplicaExchange(Base):
    """A sampler whose chains swap their weights with those of neighbouring temperatures; see `replica_exchange`."""

    exchange_every: int

    def init(self, key: Key, weights: Weights, temperature: Array | float) -> Any:
        state = super().init(key, weights, temperature)
        visits = Visits(state.temperature, *[jnp.zeros((), jnp.int32)] * 2)
        kind: Any = type(state)
        return _with_visits(kind)(*state, visits)

    def exchange(self, states: Any, num_temperatures: int) -> Any:
        """Return the states of all chains, temperature by temperature, after one round of swaps.

        Chains of the same index at neighbouring temperatures swap with probability min(1, exp((1/T − 1/T')·(U − U'))).
        Even and odd pairs take turns: replicas travel faster than by random pairs. Temperatures, keys and masses stay.
        """
        size, running = len(states.step), states.status == Status.RUNNING
        step = jnp.max(jnp.where(running, states.step, 0))
        chains = jnp.arange(size // num_temperatures)
        order = jnp.argsort(states.temperature[:: len(chains)])[:, None] * len(chains) + chains  # cold to hot
        cold, hot = order[:-1], order[1:]
        # The part of U that does not depend on T: a prior that is the same at all temperatures does not count.
        tempered = replace(self.potential, prior=None) if self.potential.tempered_energy == "loss" else self.potential
        chunk_size = getattr(self, "chunk_size", None)
        energy = jax.vmap(lambda s: exact_energy(tempered, self.position(s), self.dataset, chunk_size))(states)
        gap = difference(*(Sum(energy.high[at], energy.low[at]) for at in (cold, hot)))
        cost = (1 / states.temperature[hot] - 1 / states.temperature[cold]) * gap
        turn = (step // self.exchange_every) % 2 == jnp.arange(num_temperatures - 1) % 2
        proposed = turn[:, None] & running[cold] & running[hot]
        keys = jax.vmap(lambda key: trees.key_for(key, Stream.EXCHANGE, step))(states.key[cold.ravel()])
        accepted = proposed & (cost <= jax.vmap(jax.random.exponential)(keys).reshape(cost.shape))

        distance = jnp.where(accepted, hot - cold, 0)
        source = jnp.arange(size).at[cold].add(distance).at[hot].add(-distance)
        others = jax.tree.map(lambda leaf: leaf[source], states)
        moved = jax.vmap(lambda s, other: self.at(s.temperature).continue_from(s, other))(states, others)
        moved = jax.vmap(trees.select)(source != jnp.arange(size), moved, states)
        visits = Visits(
            start=others.visits.start,
            num_proposed=states.visits.num_proposed.at[cold].add(proposed),
            num_accepted=states.visits.num_accepted.at[cold].add(accepted),
        )
        return moved._replace(visits=visits)

    def measure(self, state: Any, exact_gradient: Weights) -> dict[str, Array]:
        visits = state.visits
        return super().measure(state, exact_gradient) | {
            "swap_acceptance": visits.num_accepted / visits.num_proposed.astype(state.temperature.dtype),
            "replica_temperature": visits.start,
        }


def replica_exchange(sampler: Kind, *, every: int = 100) -> Kind:
    """Return the sampler with swaps of weights between neighbouring temperatures (parallel tempering).

    A round of swaps needs U of every chain on the full data set. The trace has `swap_acceptance` (with the next hotter
    temperature) and `replica_temperature` (where the replica started).

    Args:
        sampler: any sampler with a temperature.
        every: steps between two rounds of swaps.

    Example:
        >>> sampler = pl.replica_exchange(pl.balanced_langevin(potential, train), every=100)
        >>> result = pl.sample(sampler, weights, temperatures=[1e-5, 2e-5], num_steps=9_000, key=0)
    """
    trees.check_integer("every", every, minimum=1)
    return _extended(sampler, ReplicaExchange, exchange_every=every)


def _extended(sampler: Kind, mixin: type, **settings: Any) -> Kind:
    if not isinstance(sampler, Sampler) or not sampler.uses_temperature:
        named = getattr(sampler, "name", repr(sampler))
        raise ValueError(f"sampler = {named} has no temperature; use a sampler such as pl.balanced_langevin")
    return made(_extended_class(type(sampler), mixin), vars(sampler), **settings)


@cache  # the same class for the same sampler, so that nothing is compiled twice
def _extended_class(kind: type, mixin: type) -> type[Any]:
    options: dict[str, Any] = {"frozen": True, "eq": False, "repr": False, "kw_only": True}
    name, fields = mixin.__name__ + kind.__name__, list(mixin.__annotations__.items())
    return kind if issubclass(kind, mixin) else dataclasses.make_dataclass(name, fields, bases=(mixin, kind), **options)


@cache
def _with_visits(kind: Any) -> Any:
    return namedtuple(f"Exchanging{kind.__name__}", (*kind._fields, "visits"))
