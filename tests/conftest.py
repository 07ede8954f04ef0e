"""Faster compilation, and small problems shared by the tests."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

# Most of the tests' time would be XLA's. Children inherit these settings; they must stand before JAX is imported.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # lowering need not say which line it came from
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more would spin against the other worker
gc.set_threshold(100_000, 50, 50)  # tracing makes many objects and little garbage; looking for it took a tenth
if "PYTEST_XDIST_WORKER" in os.environ:
    # Below the folder of the process that started the workers; not shared, as entries are not written atomically.
    os.environ["JAX_COMPILATION_CACHE_DIR"] += os.sep + os.environ["PYTEST_XDIST_WORKER"]
else:
    cache = tempfile.mkdtemp(prefix="pseudolangevin-tests-")

    def remove(folder: str = cache, owner: int = os.getpid()) -> None:
        if os.getpid() == owner:  # a forked child comes here, too, when it ends
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax
import pytest

import pseudolangevin as pl
from pseudolangevin import observables
from pseudolangevin.models import FeedForward


class SmallTask(NamedTuple):
    train: pl.Dataset
    test: pl.Dataset
    network: FeedForward
    potential: pl.Potential
    weights: Any


@pytest.fixture(scope="session")
def small_task() -> SmallTask:
    """Four classes of noisy spin vectors and a network of 364 weights."""
    train, test = pl.tasks.spin_vectors(
        jax.random.key(0), num_train=1_000, num_test=300, dimension=20, num_classes=4, flip_probability=0.2
    )
    network = pl.models.feedforward((20, 10, 10, 4), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=5.0)
    return SmallTask(train, test, network, potential, network.init(jax.random.key(1)))


@pytest.fixture(scope="session")
def linear_task(small_task) -> SmallTask:
    """The same task with softmax regression: one array of 80 weights, which compiles fast."""
    return small_task._replace(
        potential=pl.classification(lambda w, x: x.astype(w.dtype) @ w, weight_decay=5.0),
        weights=0.1 * jax.random.normal(jax.random.key(1), (20, 4)),
    )


@pytest.fixture(scope="module")
def _no_directions() -> Iterator[None]:
    """Leave the projections on the directions of the noise out of the records: they take half of a compilation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observables, "_num_directions", lambda sampler, weights: 0)
        yield


@pytest.fixture
def _answers_ctrl_c() -> Iterator[None]:
    """A process that was started in the background may ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
