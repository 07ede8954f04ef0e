"""Which axis lives on which device.

A mesh of devices has three axes, and `Placement` says how many ways each is split:

    chains    the leading axis of every state: chains run side by side and never talk
    data      the example axis of the data set and of every mini-batch: gradients are summed over it
    weights   the longest axis that divides, of every large tensor of the state: weights, momenta, masses, 𝒱

The programs are those of one device, and so is the chain, to rounding. Random numbers are counter-based, so a piece of
them is what the whole would have held there. A mini-batch is drawn by the same global indices however the data set is
split: every device contributes the examples it holds (S rows are exchanged, little beside a gradient), keeps its share
of the batch, and the gradients of the shares are summed. Drawing from every shard a batch of its own would save that
exchange, but it is another law (stratified, with another 𝒱), and a run could not be continued on another number of
devices. 𝒱 is measured through the same path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from . import trees
from .checks import check_integer
from .data import Dataset
from .types import Weights

AXES = ("chains", "data", "weights")
SMALL = 1024
"""Tensors with fewer entries (per chain) are not split: they would cost more in messages than they save."""


@dataclass(frozen=True)
class Placement:
    """How many ways the chains, the data and the weights are split; their product is the number of devices used.

    Example:
        >>> Placement(chains=2, data=2).num_devices
        4
    """

    chains: int = 1
    data: int = 1
    weights: int = 1

    def __post_init__(self) -> None:
        """Check the numbers by themselves."""
        for axis in AXES:
            check_integer(f"placement.{axis}", getattr(self, axis), minimum=1)

    @classmethod
    def automatic(cls, num_chains: int) -> Placement:
        """Chains over as many devices as divide them."""
        return cls(chains=max(n for n in range(1, jax.device_count() + 1) if num_chains % n == 0))

    @property
    def num_devices(self) -> int:
        """Devices in use."""
        return self.chains * self.data * self.weights

    def mesh(self) -> Mesh | None:
        """The devices, arranged; None for a single one, where nothing needs to be said."""
        if self.num_devices == 1:
            return None
        ways = tuple(getattr(self, axis) for axis in AXES)
        return Mesh(np.asarray(jax.devices()[: self.num_devices]).reshape(ways), AXES)

    def check(self, num_chains: int, num_examples: int, weights: Weights | None = None) -> None:
        """Refuse what the devices, the chains, the examples or the weights of one chain (if known) do not allow."""
        why = self._trouble(num_chains, num_examples, weights)
        if why is None:
            return
        valid = [p for p in _candidates() if p._trouble(num_chains, num_examples, weights) is None]
        nearest = min(valid, key=self._distance, default=None)
        remedy = f"the nearest that fits is {nearest}" if nearest else "no split fits; start fewer processes"
        raise ValueError(f"placement.{self}: {why}; {remedy}")

    def _trouble(self, num_chains: int, num_examples: int, weights: Weights | None) -> str | None:
        available = jax.device_count()
        if self.num_devices > available:
            return f"{self.chains}·{self.data}·{self.weights} = {self.num_devices} devices, and there are {available}"
        if jax.process_count() > 1 and self.num_devices != available:
            return (
                f"{self.num_devices} of {available} devices, but {jax.process_count()} processes must use all of them"
            )
        if num_chains % self.chains:
            return f"{num_chains} chains (all temperatures together) do not divide into {self.chains}"
        if num_examples % self.data:
            return f"{num_examples} examples do not divide into {self.data}"
        for name, leaf in trees.named_leaves(weights) if self.weights > 1 and weights is not None else ():
            if math.prod(leaf.shape) >= SMALL and split_axis(leaf.shape, self.weights) is None:
                return f"no axis of {name}, of shape {tuple(leaf.shape)}, divides into {self.weights}"
        return None

    def _distance(self, other: Placement) -> tuple[float, int]:
        ratios = (math.log(getattr(self, axis) / getattr(other, axis)) for axis in AXES)
        return sum(map(abs, ratios)), -other.num_devices

    def __str__(self) -> str:
        """As in a configuration."""
        return ", ".join(f"{axis} = {getattr(self, axis)}" for axis in AXES)


def _candidates() -> Iterator[Placement]:
    available = jax.device_count()
    for chains in range(1, available + 1):
        for data in range(1, available // chains + 1):
            for weights in range(1, available // (chains * data) + 1):
                yield Placement(chains, data, weights)


def split_axis(shape: tuple[int, ...], ways: int) -> int | None:
    """The longest axis of a tensor that divides into `ways`; None for a small tensor, or where none does."""
    if ways == 1 or math.prod(shape) < SMALL:
        return None
    dividing = [axis for axis, length in enumerate(shape) if length % ways == 0]
    return max(dividing, key=lambda axis: shape[axis], default=None)


def sharding(shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """Where an array with a leading chain axis lives."""
    names: list[str | None] = [None] * len(shape)
    if shape and shape[0] % mesh.shape["chains"] == 0:
        names[0] = "chains"
    axis = split_axis(shape[1:], mesh.shape["weights"])
    if axis is not None:
        names[axis + 1] = "weights"
    return NamedSharding(mesh, PartitionSpec(*names))


def keep_in_place(states: Any, mesh: Mesh | None) -> Any:
    """Inside a compiled function: the chains live where the placement says."""
    if mesh is None:
        return states
    return jax.tree.map(lambda leaf: lax.with_sharding_constraint(leaf, sharding(leaf.shape, mesh)), states)


def keep_everywhere(tree: Any, mesh: Mesh | None) -> Any:
    """Inside a compiled function: the arrays are whole on every device, so that every process can read them."""
    return tree if mesh is None else lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec()))


def put_chains(tree: Any, mesh: Mesh | None) -> Any:
    """Arrays with a leading chain axis, from anywhere to where they live."""
    if mesh is None:
        return jax.tree.map(jnp.asarray, tree)
    return jax.tree.map(lambda leaf: _put(leaf, sharding(leaf.shape, mesh)), tree)


def put_dataset(dataset: Dataset, mesh: Mesh | None) -> Dataset:
    """The examples, split over the data axis; whole on every device where their number does not divide."""
    if mesh is None:
        return dataset

    def put(leaf: Any) -> Any:
        split = leaf.shape[0] % mesh.shape["data"] == 0
        return _put(leaf, NamedSharding(mesh, PartitionSpec("data" if split else None)))

    return jax.tree.map(put, dataset).with_mesh(mesh)


def _put(leaf: Any, target: NamedSharding) -> Any:
    if target.is_fully_addressable:
        return jax.device_put(leaf, target)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        # A key has no entries of its own to hand out, only its data have.
        data = _put(jax.random.key_data(leaf), target)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.jit(lambda array: array, out_shardings=target)(leaf)
    # Every process holds the whole array, and puts its pieces where they belong.
    whole = np.asarray(leaf)
    return jax.make_array_from_callback(whole.shape, target, lambda index: whole[index])
