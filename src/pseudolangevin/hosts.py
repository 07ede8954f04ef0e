"""Several processes as one run: every process computes its part, the first one writes.

All processes execute the same program in the same order; what one of them knows alone (a signal, a full disk, the
time) is shared before anyone acts on it, so that none waits for another that has left. With one process, nothing here
communicates.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec


class OtherProcessError(RuntimeError):
    """Another process of the run could not go on; its own message says why."""


def connect(coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Join the other processes of a run; call it before anything else that uses JAX.

    Args:
        coordinator: host:port of the first process, which serves the others; None, together with the other two: as the
            environment of Slurm, Open MPI or another launcher that JAX knows says.
        num_processes: how many there are.
        process_id: which one this is, from 0.
    """
    given = (coordinator, num_processes, process_id)
    if any(value is None for value in given) and any(value is not None for value in given):
        raise ValueError(
            f"coordinator = {coordinator}, num_processes = {num_processes}, process_id = {process_id}: "
            "give all three, or none under a launcher such as Slurm or Open MPI"
        )
    if num_processes is not None and process_id is not None:
        if num_processes < 1 or not 0 <= process_id < num_processes:
            raise ValueError(
                f"process_id = {process_id} of num_processes = {num_processes}; count from 0 to num_processes − 1"
            )
        host, colon, port = str(coordinator).rpartition(":")
        if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"coordinator = {coordinator}: write host:port, for example 127.0.0.1:12345")
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id)
    except ValueError as error:
        raise ValueError(
            f"no launcher was recognised ({' '.join(str(error).split())}); under Slurm or Open MPI start with srun or "
            "mpirun, elsewhere give coordinator, num_processes and process_id"
        ) from error


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Whether it is so in any process."""
    return flag if jax.process_count() == 1 else bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))


def first_decides(choice: int) -> int:
    """What the first process says."""
    return choice if jax.process_count() == 1 else int(multihost_utils.process_allgather(np.asarray(choice))[0])


@contextmanager
def together() -> Iterator[None]:
    """A part of the program, without communication inside, after which all processes go on or none does."""
    if not several():
        yield
        return
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    failed = np.flatnonzero(multihost_utils.process_allgather(np.asarray(failure is not None)))
    if failure is not None:
        raise failure
    if failed.size:
        raise OtherProcessError(f"process {failed[0]} of {jax.process_count()} could not go on; its message says why")


def several() -> bool:
    """Whether the run has more than one process."""
    return jax.process_count() > 1


def leave(code: int) -> None:
    """End this process at once, so that those that wait for it learn that it is gone.

    An ordinary end would wait for them in turn.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def to_host(tree: Any) -> Any:
    """The tree with every array whole in every process; those that are stay as they are."""
    return jax.tree.map(lambda leaf: _whole(leaf, keep=True), tree)


def to_first(tree: Any) -> Any:
    """The tree with every array whole in the first process; the others get nothing out of it.

    One array at a time, so that a device needs room for the largest one and not for all.
    """
    return jax.tree.map(lambda leaf: _whole(leaf, keep=is_first()), tree)


def _whole(leaf: Any, *, keep: bool) -> Any:
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _whole(jax.random.key_data(leaf), keep=True)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    everywhere = leaf.sharding.update(spec=PartitionSpec())  # type: ignore[attr-defined]
    whole = _copied_to(everywhere)(leaf)
    jax.block_until_ready(whole)
    return np.asarray(whole.addressable_data(0)) if keep else leaf


@functools.cache
def _copied_to(target: Any) -> Any:
    """A copy to another sharding; one function for each, so that it is compiled once."""
    return jax.jit(lambda array: array, out_shardings=target)
