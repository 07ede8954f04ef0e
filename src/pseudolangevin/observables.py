"""Observables: the quantities recorded from a chain, with their labels and units.

Built-in observables are rows of one table. A user's own are functions f(weights, dataset), passed to `sample`.
Everything is measured on the full training set, or its first examples, with exact sums.

**Stein's identities**, for the certificate. For samples of exp(−U/T), with g = ∇U and any fixed point w0,

    ⟨g_i⟩ = 0,          ⟨(w − w0)_i·g_j⟩ = T·δ_ij

hold for every weight and along every direction. A chain keeps sums for single weights from record to record, and
records projections on a few directions: the strongest ones of the noise of single examples, which are also the
stiffest. After record 8, 16, 32, … directions are found again, and w0 becomes the mean of the records since the last
time; before, it is 0. For any record w0 depends on earlier records only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from . import _trees as trees
from ._trees import Array, Batch, Stream, Weights, key_for
from .data.dataset import Dataset, StreamedDataset
from .gradients import covariance_product, exact_means, exact_sums
from .potential import Potential
from .samplers.base import HEALTHY, Sampler, Status

if TYPE_CHECKING:
    from .chains import Run

OwnObservables = tuple[tuple[str, Callable[[Weights, Dataset], Any]], ...]


class Observable(NamedTuple):
    """Description of an observable in the trace."""

    label: str  # short name for axes and tables
    long_name: str  # explanation in one line
    unit: str = ""
    dims: tuple[str, ...] = ()  # dimensions besides (temperature, chain, draw)


OBSERVABLES = {
    "loss": Observable("loss", "mean loss, without the regulariser"),
    "potential": Observable("U", "potential U, the mean loss plus the regulariser"),
    "squared_norm": Observable("|w|²", "sum of the squared weights"),
    "error": Observable("error", "share of misclassified training examples"),
    "test_loss": Observable("test loss", "mean loss on the test set"),
    "test_error": Observable("test error", "share of misclassified test examples"),
    "kinetic_temperature": Observable("kinetic temperature", "mean of p²/M, or of two successive momenta", "loss"),
    "virial_temperature": Observable("virial temperature", "w·∇U/N with the exact gradient", "loss"),
    "layer_virial_temperature": Observable("virial temperature by layer", "w·∇U/N in each layer", "loss", ("layer",)),
    "centred_virial_temperature": Observable("virial temperature about w0", "(w − w0)·∇U/N", "loss", ("layer",)),
    "direction_position": Observable("positions", "weights along stiff directions", dims=("direction",)),
    "direction_gradient": Observable("gradients", "∇U along stiff directions", dims=("direction",)),
    "temperature_ratio": Observable("temperature ratio", "quantiles of the current ratios", dims=("quantile",)),
    "max_temperature_ratio": Observable("largest temperature ratio", "largest current ratio of any weight"),
    "gradient_variance": Observable("gradient variance", "mean gradient variance of each layer", dims=("layer",)),
    "raised_share": Observable("raised share", "share of the masses raised by the last refresh"),
    "clipped_share": Observable("clipped share", "share of the weights with more mini-batch than thermal noise"),
    "refresh_interval": Observable("refresh interval", "steps between measurements of the variance", "steps"),
    "num_resets": Observable("resets", "number of times that all masses were set and all momenta redrawn"),
    "warmup_end": Observable("end of warm-up", "step at which the masses were fixed; -1 before", "steps"),
    "friction_load": Observable("friction load", "load of the friction at the last refresh; at most 1 is harmless"),
    "acceptance": Observable("acceptance", "share of moves accepted since the warm-up (during it: since the start)"),
    "energy_error": Observable("energy error", "energy error of the last trajectory", "T"),
    "current_temperature": Observable("temperature", "current temperature of an annealed chain", "loss"),
    "swap_acceptance": Observable("swap acceptance", "share of accepted swaps with the next hotter temperature"),
    "replica_temperature": Observable("replica", "temperature at which the current replica started", "loss"),
    "time_step": Observable("time step", "time step of the next move"),
    "dead_class": Observable("dead class", "whether the scores of a class are nearly equal", dims=("class",)),
    "status": Observable("status", "0 while running; otherwise the reason why the chain stopped"),
}


def check_own(observables: Mapping[str, Callable[[Weights, Dataset], Any]] | None) -> OwnObservables:
    """Return a user's observables as a tuple; raise unless they are named functions."""
    if not isinstance(observables, Mapping | None):
        raise ValueError(f"observables = {str(observables)[:60]!r} is not a dict; pass names and functions")
    dims = {dim for observable in OBSERVABLES.values() for dim in observable.dims}
    taken = {"temperature", "chain", "draw", "step", *OBSERVABLES, *dims}
    for name, function in (observables or {}).items():
        if not (isinstance(name, str) and name.isidentifier() and name not in taken and callable(function)):
            remedy = "use a Python identifier that the trace does not have, and a function f(weights, dataset)"
            raise ValueError(f"observables[{name!r}] = {function!r}; {remedy}")
    return tuple((observables or {}).items())


def observe(
    sampler: Sampler, state: Any, train: Dataset, test: Dataset | None, own: OwnObservables, chunk_size: int | None
) -> tuple[dict[str, Array], Weights, Weights]:
    """Return all observables of one chain, its position and the exact gradient there.

    The observable `loss` is a (high, low) pair of a compensated sum.
    """
    potential, weights = sampler.potential, sampler.position(state)
    # Training needs no virial temperature, and a pass without gradient takes a third of the time.
    sums = exact_sums(potential, weights, train, chunk_size, with_gradient=sampler.uses_temperature)
    regularizer = potential.regularizer(weights)
    broken = (state.status == Status.RUNNING) & ~jnp.isfinite(sums.loss.high + sums.loss.low + regularizer)
    record = {
        "loss": jnp.stack(sums.loss),
        "squared_norm": trees.squared_norm(weights),
        "regularizer": regularizer,
        "status": jnp.where(broken, Status.NON_FINITE_ENERGY, state.status),
    }
    if sampler.uses_temperature:
        record["virial_temperature"] = _virial_temperature(weights, sums.gradient)
        record["layer_virial_temperature"] = trees.by_layer(_virial_temperature, weights, sums.gradient)
    if potential.per_example_error is not None:
        record["error"] = sums.error
    if sums.dead_class is not None:
        record["dead_class"] = sums.dead_class
    if test is not None:
        quantities = [q for q in (potential.per_example_loss, potential.per_example_error) if q is not None]
        means = exact_means(quantities, weights, test, chunk_size)
        record |= {name: m.high + m.low for name, m in zip(("test_loss", "test_error"), means, strict=False)}
    for name, function in own:
        record[name] = jnp.asarray(function(weights, train))
    return record | sampler.measure(state, sums.gradient), weights, sums.gradient


def _virial_temperature(weights: Weights, gradient: Weights) -> Array:
    """Return w·∇U/N, which is T on average at equilibrium, by the equipartition theorem."""
    return trees.dot(weights, gradient) / float(trees.num_weights(weights))


@partial(jax.tree_util.register_dataclass, data_fields=["vectors"], meta_fields=["layout"])
@dataclass(frozen=True)
class PackedRecord:
    """A record as one array (chain, entry) for each type: each array of a program takes the host microseconds."""

    vectors: dict[str, Any]
    layout: tuple[tuple[str, str, tuple[int, ...]], ...]  # name, type and shape per chain of each observable


def pack(record: Mapping[str, Array]) -> PackedRecord:
    """Return the record with the observables of all chains packed by their types."""
    layout = tuple((name, str(values.dtype), values.shape[1:]) for name, values in record.items())
    parts: dict[str, list[Array]] = {dtype: [] for _, dtype, _ in layout}
    for (_, dtype, _), values in zip(layout, record.values(), strict=True):
        parts[dtype].append(values.reshape(len(values), math.prod(values.shape[1:])))
    return PackedRecord({dtype: jnp.concatenate(arrays, axis=1) for dtype, arrays in parts.items()}, layout)


def to_host(record: PackedRecord) -> dict[str, np.ndarray]:
    """Return a record as float64 NumPy arrays, with the compensated pairs added and U computed from them."""
    vectors = jax.device_get(record.vectors)
    vectors = {t: v.astype(np.float64) if np.issubdtype(v.dtype, np.floating) else v for t, v in vectors.items()}
    host, used = {}, dict.fromkeys(vectors, 0)
    for name, dtype, shape in record.layout:
        first, used[dtype] = used[dtype], used[dtype] + math.prod(shape)
        host[name] = vectors[dtype][:, first : used[dtype]].reshape(len(vectors[dtype]), *shape)
    host["loss"] = host["loss"].sum(axis=-1)
    host["potential"] = host["loss"] + host.pop("regularizer")
    return host


def variable(name: str, values: np.ndarray) -> tuple[tuple[str, ...], np.ndarray, dict[str, str]]:
    """Return an observable (temperature, chain, draw, …) as a variable of the trace: dimensions, values, attributes."""
    own = Observable(name, name, dims=tuple(f"{name}_dim{axis}" for axis in range(values.ndim - 3)))
    row = OBSERVABLES.get(name, own)
    attributes = {"label": row.label, "unit": row.unit, "long_name": row.long_name}
    return ("temperature", "chain", "draw", *row.dims), values, attributes


class ChainStoppedWarning(UserWarning):
    """A chain stopped; the others continue."""


class ClippedNoiseWarning(UserWarning):
    """The mini-batch noise of some weights alone exceeds the thermal noise, so they are too hot."""


class DeadClassWarning(UserWarning):
    """The score of a class is the same for nearly every example, so the class cannot be predicted."""


class Reporter:
    """Warnings of a run: once for each chain that stopped, once for each dead class, once for clipped noise."""

    def __init__(self, run: Run) -> None:
        self.run, self.stopped, self._clipped = run, np.zeros(run.size, bool), False
        self._dead_reported = self._dead_before = np.zeros((run.size, 1), bool)

    def report(self, record: dict[str, np.ndarray], *, step: int, last: bool) -> dict[str, np.ndarray]:
        """Warn about what is new in this record, and return it with NaN for chains that failed.

        A class may be dead for a moment, above all in training from random weights; it is reported if it was dead in
        the record before as well, or at the end.
        """
        for index in np.flatnonzero((record["status"] != Status.RUNNING) & ~self.stopped):
            self.stopped[index] = True
            if not (status := Status(int(record["status"][index]))).healthy:
                self._warn(index, f" stopped by step {step}: {status.explanation}", ChainStoppedWarning)
        clipped = np.where(self.stopped, 0.0, record.get("clipped_share", 0.0))
        if not self._clipped and clipped.max() > 0:  # the worst chain speaks for all
            self._clipped = True
            why = f"the mini-batch noise of {clipped.max():.1%} of the weights alone exceeds the thermal noise"
            remedy = "they are too hot (clipped_share in the trace). Lower time_step or raise batch_size"
            self._warn(np.argmax(clipped), f": at step {step} {why}; {remedy}", ClippedNoiseWarning)
        dead = record.get("dead_class", self._dead_before)
        persistent = dead & (self._dead_before | last)
        new = persistent & ~self._dead_reported
        for index in np.flatnonzero(new.any(axis=-1)):
            classes = ", ".join(map(str, np.flatnonzero(new[index])))
            why = "is dead: its score is the same for nearly every example, so it hardly learns"
            remedy = 'Start from other weights, or use output_activation="identity"'
            self._warn(index, f": class {classes} {why}. {remedy}", DeadClassWarning)
        self._dead_before, self._dead_reported = dead, self._dead_reported | persistent
        masked = {name: values.copy() for name, values in record.items() if values.dtype.kind == "f"}
        for values in masked.values():
            values[~np.isin(record["status"], HEALTHY)] = np.nan
        return record | masked

    def _warn(self, index: Any, message: str, category: type[Warning]) -> None:
        warnings.warn(self.run.chain_name(int(index)) + message, category, stacklevel=4)


class SteinSums(NamedTuple):
    """Sums and reference point of one chain; arrays over all N weights are vectors."""

    num_records: Array  # records so far
    block_length: Array  # records of a block
    sums: Array  # (16 blocks of records, 4, watched weight) of w, g, w·g and w²; if all are full, they merge in pairs
    total: Array  # (N,), sum of the weights over the records since the current reference
    reference: Array  # (N,), the point w0
    directions: Array  # (direction, N), orthonormal, strongest first


def begin_stein(sampler: Any, states: Any, starts: Weights) -> Any:
    """Return states with empty sums, where the sampler has room for them and the weights are neither many nor split."""
    mesh, one = sampler.dataset.mesh, jax.tree.map(lambda w: w[0], starts)
    is_split = mesh is not None and mesh.shape["weights"] > 1
    if not hasattr(states, "tests") or is_split or trees.num_weights(one) >= trees.LARGE_TENSOR:
        return states
    vectors = jax.vmap(trees.ravel)(starts)
    (chains, num), dtype = vectors.shape, vectors.dtype
    empty = SteinSums(
        num_records=jnp.zeros(chains, jnp.int32),
        block_length=jnp.ones(chains, jnp.int32),
        sums=jnp.zeros((chains, 16, 4, vectors[0, _watched(num)].size), dtype),
        total=jnp.zeros_like(vectors),
        reference=jnp.zeros_like(vectors),
        directions=jnp.zeros((chains, _num_directions(sampler, one), num), dtype),
    )
    return states._replace(tests=empty)


def _watched(num_weights: int) -> slice:
    """Return the weights that single sums are kept of: all of up to 2¹⁴, of more some at equal distances."""
    return slice(None, None, -(-num_weights // 2**14))


def _num_directions(sampler: Sampler, weights: Weights) -> int:
    """Return the number of directions: 16 up to 2¹⁵ weights, fewer above; 0 if they cannot be computed."""
    if isinstance(sampler.dataset, StreamedDataset):
        return 0
    num = min(16, trees.num_weights(weights), max(2, 2**19 // trees.num_weights(weights)))
    try:
        begin = jnp.zeros((num, trees.num_weights(weights)), jnp.result_type(*jax.tree.leaves(weights)))
        jax.eval_shape(partial(strongest_directions, sampler.potential), weights, sampler.dataset.shapes(2), begin)
    except (TypeError, NotImplementedError, ValueError):  # a loss without forward derivatives
        return 0
    return num


def strongest_directions(
    potential: Potential, weights: Weights, batch: Batch, begin: Array, num_iterations: Array | int = 3
) -> Array:
    """Return the directions in which the gradients of single examples vary most, (direction, N), orthonormal.

    They are Ritz vectors after block power iteration from `begin`, with the covariance of the gradient on a batch.
    """
    product = covariance_product(potential, weights, batch, "highest")
    unravel = ravel_pytree(weights)[1]

    def apply(block: Array) -> Array:
        return lax.map(lambda vector: trees.ravel(product(unravel(vector))[0]), block)

    def orthonormal(block: Array) -> Array:
        return jnp.linalg.qr(block.T)[0].T

    block = lax.fori_loop(0, num_iterations, lambda _, block: orthonormal(apply(block)), orthonormal(begin))
    small = block @ apply(block).T
    return jnp.linalg.eigh(0.5 * (small + small.T))[1].T[::-1] @ block


def without_stein(states: Any) -> tuple[Any, Any]:
    """Return states without sums, which only records change, and the sums; () if there are none."""
    tests = getattr(states, "tests", ())
    return (states._replace(tests=()) if tests else states), tests


def update_stein(old: SteinSums, weights: Weights, gradients: Weights) -> tuple[SteinSums, dict[str, Array]]:
    """Add a record of all chains, with weights and exact gradients; return also its observables.

    All arrays have a leading axis over chains.
    """
    w, g = jax.vmap(trees.ravel)(weights), jax.vmap(trees.ravel)(gradients)
    index, length = jnp.max(old.num_records), jnp.max(old.block_length)  # the same in all chains that run
    num_blocks = old.sums.shape[1]
    full = index == num_blocks * length

    def in_pairs(sums: Array) -> Array:
        merged = sums.reshape(len(w), num_blocks // 2, 2, *sums.shape[2:]).sum(axis=2)
        return jnp.concatenate([merged, jnp.zeros_like(merged)], axis=1)

    sums = lax.cond(full, in_pairs, lambda sums: sums, old.sums)
    length = jnp.where(full, 2 * length, length)
    x, y = (array[:, _watched(w.shape[1])] for array in (w, g))
    moved = old._replace(
        num_records=jnp.full_like(old.num_records, index + 1),
        block_length=jnp.full_like(old.block_length, length),
        sums=sums.at[:, index // length].add(jnp.stack([x, y, x * y, x * x], axis=1)),
        total=old.total + w,
    )
    away = jax.vmap(ravel_pytree(jax.tree.map(lambda leaf: leaf[0], weights))[1])(w - moved.reference)
    virial_temperatures = jax.vmap(partial(trees.by_layer, _virial_temperature))
    record = {"centred_virial_temperature": virial_temperatures(away, gradients)}
    if moved.directions.shape[1]:
        project = partial(jnp.einsum, "cdn,cn->cd", moved.directions, precision="highest")
        record |= {"direction_position": project(w), "direction_gradient": project(g)}
    return moved, record


def renew_stein(sampler: Any, states: Any, old: SteinSums, dataset: Dataset) -> SteinSums:
    """Make the mean of the latest records the current reference, and find the directions at the weights of all chains.

    The latest records are those since the last renewal: half of all records, or all eight. The search for directions
    goes on from those before.
    """
    since, num = jnp.max(old.num_records), old.directions.shape[1]
    is_first = since == 8

    def find(state: Any, directions: Array) -> Array:
        batch_key, block_key = jax.random.split(key_for(state.key, Stream.STEIN, since))
        batch, own = dataset.draw(batch_key, min(512, dataset.num_examples)), sampler.at(state.temperature)
        begin = jnp.where(is_first, jax.random.normal(block_key, directions.shape, directions.dtype), directions)
        return strongest_directions(own.potential, own.position(state), batch, begin, jnp.where(is_first, 3, 1))

    mean = old.total / jnp.where(is_first, 8, since // 2)
    found = jax.vmap(find)(states, old.directions) if num else old.directions
    return old._replace(total=jnp.zeros_like(mean), reference=mean, directions=found)


def stein_blocks(found: SteinSums, burn_in: float) -> np.ndarray:
    """Return the means of w, g, w·g and w² over the complete blocks after the burn-in, (chain, block, 4, weight)."""
    count, length = (int(np.max(np.asarray(value))) for value in (found.num_records, found.block_length))
    first, last = round(burn_in * count / length), count // length
    return np.asarray(found.sums[:, first:last], np.float64) / length


def direction_sets(draws: np.ndarray) -> np.ndarray:
    """Return, for record numbers 1, 2, …, which set of directions they are projected on; -1 for none."""
    return np.where(draws > 8, np.ceil(np.log2(draws)).astype(int), -1)
