"""How chains and temperatures lie along the one mapped axis, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from . import observables, trees
from .checks import check_positive
from .data import Dataset
from .potential import Potential
from .samplers.base import Sampler
from .types import Array, Key, Weights


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
        key = as_key(key)
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

    def trace(self, records: dict[str, np.ndarray], record_every: int, weights: Weights) -> xr.Dataset:
        """Observables, stacked as (temperature, chain, draw, …), as a labelled data set."""
        num_draws = records["status"].shape[2]
        variables = {
            name: (dimensions(name), values, {"long_name": observables.LONG_NAMES.get(name, name)})
            for name, values in records.items()
        }
        draws = np.arange(num_draws)
        coords = {
            "temperature": np.asarray(self.temperatures, np.float64),
            "chain": np.arange(self.num_chains),
            "draw": draws,
            "step": ("draw", (draws + 1) * record_every),
        }
        return xr.Dataset(variables, coords | observables.coordinates(weights, records))


def as_key(key: Key | int) -> Key:
    """A random key from a seed, or the key itself; refuse anything else."""
    if isinstance(key, jax.Array):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
            return key
        if key.dtype == jnp.uint32 and key.shape == (2,):  # from jax.random.PRNGKey
            return jax.random.wrap_key_data(key)
    if isinstance(key, int | np.integer) and not isinstance(key, bool) and -(2**63) <= key < 2**63:
        return jax.random.key(key)
    raise ValueError(f"key = {key!r} is neither an integer seed nor one key; pass key=0 or key=jax.random.key(0)")


def dimensions(name: str) -> tuple[str, ...]:
    """The dimensions of an observable in the trace."""
    extra = observables.EXTRA_DIMENSIONS.get(name)
    return ("temperature", "chain", "draw") + ((extra,) if extra else ())


def temperatures_for(sampler: Sampler, temperatures: Sequence[float] | None) -> list[float]:
    """The temperatures of a run of `sampler`, checked; one nominal zero for a sampler without temperature."""
    if not sampler.uses_temperature:
        if temperatures is not None:
            raise ValueError(f"temperatures = {temperatures!r}: {sampler.name} has no temperature; leave it out")
        return [0.0]
    if temperatures is None:
        raise ValueError("temperatures is missing; pass a list, for example temperatures=[1e-5, 3e-5]")
    return check_temperatures(temperatures)


def check_temperatures(temperatures: Sequence[float]) -> list[float]:
    """Temperatures as floats; refuse what exp(−U/T) cannot have."""
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
        if not 1e-30 <= value <= 1e30:
            raise ValueError(f"temperatures = {value!r} is beyond single precision; scale the loss instead")
    values = [float(value) for value in values]
    if len({np.float32(value) for value in values}) < len(values):
        raise ValueError(
            f"temperatures = {values} repeats a value; use num_chains for several chains at one temperature"
        )
    return values
