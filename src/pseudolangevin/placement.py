"""Devices and processes: how chains, examples and weights are split over them.

A mesh of devices has three axes, and `Placement` gives the number of parts along each:

    chains    the leading axis of every state; chains never communicate
    data      the example axis of the data set and of every mini-batch; gradients are summed over it
    weights   the longest divisible axis of every large tensor of a state: weights, momenta, masses, variances

Chains are those of one device, to rounding. All processes execute the same program in the same order; the first writes
the files. What one process alone learns (a signal, a full disk) is shared before any process acts on it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from . import _trees
from ._trees import Weights, check_integer

if TYPE_CHECKING:
    from .data.dataset import Dataset

AXES = ("chains", "data", "weights")
SMALL = 1024  # entries; splitting a smaller tensor would cost more in messages than it saves


@dataclass(frozen=True)
class Placement:
    """Number of parts that the chains, the data and the weights are split into, one device for each combination."""

    chains: int = 1
    data: int = 1
    weights: int = 1

    def __post_init__(self) -> None:
        for axis, parts in zip(AXES, astuple(self), strict=True):
            check_integer(f"placement.{axis}", parts, minimum=1)

    @classmethod
    def automatic(cls, num_chains: int) -> Placement:
        """Split the chains over the largest number of devices that divides `num_chains`."""
        return cls(chains=max(n for n in range(1, jax.device_count() + 1) if num_chains % n == 0))

    @property
    def num_devices(self) -> int:
        """Number of devices in use."""
        return math.prod(astuple(self))

    def mesh(self) -> Mesh | None:
        """Return the mesh of devices, or None for a single device."""
        devices = np.asarray(jax.devices()[: self.num_devices])
        return Mesh(devices.reshape(astuple(self)), AXES) if self.num_devices > 1 else None

    def check(self, num_chains: int, num_examples: int, weights: Weights | None = None) -> None:
        """Raise a ValueError if the devices, chains, examples or weights of one chain (if given) cannot be split so."""
        num_devices, available = self.num_devices, jax.device_count()
        problems = []
        if num_devices > available:
            problems.append(f"{self.chains}*{self.data}*{self.weights} = {num_devices} devices, of {available}")
        elif several() and num_devices != available:
            problems.append(f"{num_devices} of {available} devices, but all {jax.process_count()} processes take part")
        if num_chains % self.chains:
            problems.append(f"{num_chains} chains (all temperatures together) do not divide into {self.chains}")
        if num_examples % self.data:
            problems.append(f"{num_examples} examples do not divide into {self.data}")
        for name, leaf in _trees.named_leaves(weights):
            if self.weights > 1 and math.prod(leaf.shape) >= SMALL and split_axis(leaf.shape, self.weights) is None:
                problems.append(f"no axis of {name}, of shape {tuple(leaf.shape)}, divides into {self.weights}")
        if problems:
            remedy = f"pass other numbers, whose product is {'' if several() else 'at most '}{available}"
            raise ValueError(f"placement = {self}: {problems[0]}; {remedy}")


def split_axis(shape: tuple[int, ...], parts: int) -> int | None:
    """Return the longest axis of a large tensor that divides into `parts`, the last among equals; None if none does."""
    if parts == 1 or math.prod(shape) < SMALL:
        return None
    dividing = [axis for axis, length in enumerate(shape) if length % parts == 0]
    return max(dividing, key=lambda axis: (shape[axis], axis), default=None)


def sharding(shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array with a leading chain axis."""
    names: list[str | None] = [None] * len(shape)
    if shape and shape[0] % mesh.shape["chains"] == 0:
        names[0] = "chains"
    if (axis := split_axis(shape[1:], mesh.shape["weights"])) is not None:
        names[axis + 1] = "weights"
    return NamedSharding(mesh, PartitionSpec(*names))


def put_dataset(dataset: Dataset, mesh: Mesh) -> Dataset:
    """Split the examples over the data axis; replicate them if their number does not divide, or they are streamed."""
    if not jax.tree.leaves(dataset):
        return dataset
    spec = PartitionSpec("data") if dataset.num_examples % mesh.shape["data"] == 0 else PartitionSpec()
    children = jax.tree.map(lambda leaf: put(leaf, NamedSharding(mesh, spec)), dataset.batch)
    return dataset.tree_unflatten(mesh, children)


def put(leaf: Any, target: NamedSharding) -> Any:
    """Move one array to its devices, of which other processes may have some; call it in all processes."""
    if target.is_fully_addressable:
        return jax.device_put(leaf, target)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):  # a key array has no buffers, only its data have
        return jax.random.wrap_key_data(put(jax.random.key_data(leaf), target), impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:  # processes exchange their parts
        return jax.jit(jnp.asarray, out_shardings=target)(leaf)
    complete = np.asarray(leaf)  # in every process, which puts its own parts on its devices
    return jax.make_array_from_callback(complete.shape, target, lambda index: complete[index])


class OtherProcessError(RuntimeError):
    """Failure of another process of the run, which prints the reason itself."""


def connect(coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Join the other processes of a run; call it before anything else that uses JAX.

    Pass host:port of the first process, the number of processes and the index of this one, from 0. Without arguments,
    they are taken from the environment of Slurm, Open MPI or another launcher that JAX supports.
    """
    given = f"coordinator = {coordinator}, num_processes = {num_processes}, process_id = {process_id}"
    if coordinator is not None and num_processes is not None and process_id is not None:
        host, _, port = coordinator.rpartition(":")
        if not (host and port.isdigit() and 0 <= process_id < num_processes):
            raise ValueError(f"{given}: write host:port, and count from 0 to num_processes - 1")
    elif (coordinator, num_processes, process_id) != (None, None, None):
        raise ValueError(f"{given}: give all three, or none under a launcher such as Slurm or Open MPI")
    try:
        # A process that was killed is noticed after this time at the latest; JAX itself waits for 100 s.
        jax.distributed.initialize(coordinator, num_processes, process_id, heartbeat_timeout_seconds=20)
    except ValueError as error:
        why = f"no launcher was recognised ({' '.join(str(error).split())})"
        raise ValueError(f"{why}; start with srun or mpirun, or give coordinator and the other two") from error


def several() -> bool:
    """Return whether the run has more than one process."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Return whether this process is the first one, which writes the files."""
    return jax.process_index() == 0


def of_all(value: bool) -> np.ndarray:
    """Return the values of all processes, (process,); call it in all of them."""
    return process_allgather(np.asarray(value))


@contextmanager
def together() -> Iterator[None]:
    """Run a block without communication, after which either all processes continue or every one raises an error."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    failed = np.flatnonzero(of_all(failure is not None))
    if failure is not None:
        raise failure
    if failed.size:
        raise OtherProcessError(f"process {failed[0]} of {jax.process_count()} failed; see its own message")


def leave(code: int) -> None:
    """End this process at once, without waiting for the others, so that they notice."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def to_host(tree: Any, *, first_only: bool = False) -> Any:
    """Return the tree with arrays that are spread over processes as complete NumPy arrays; call it in all processes.

    With `first_only`, the other processes get the arrays as they were.
    """

    def complete(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(to_host(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        copy = jax.jit(jnp.asarray, out_shardings=leaf.sharding.update(spec=PartitionSpec()))(leaf)  # type: ignore[attr-defined]
        jax.block_until_ready(copy)  # one array at a time, so that a device needs memory for the largest one only
        return leaf if first_only and not is_first() else np.asarray(copy.addressable_data(0))

    return jax.tree.map(complete, tree)
