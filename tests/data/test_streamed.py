"""Data in host memory or on disk give the same chains as data on the device."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import zarr

import pseudolangevin as pl
from pseudolangevin.data import dataset as streamed
from pseudolangevin.placement import Placement

from ..conftest import SmallTask


def stored(kind: str, array: Any, path: Path) -> Any:
    array = np.asarray(array)
    if kind == "memory":
        return array
    if kind == "signs":
        return pl.Signs.of(array)
    if kind == "file":
        np.save(path, array)
        return np.load(path.with_suffix(".npy"), mmap_mode="r")
    folder = zarr.create_array(
        path.with_suffix(".zarr"), shape=array.shape, dtype=array.dtype, chunks=(100, *array.shape[1:])
    )
    folder[:] = array
    return folder


def run(dataset: pl.Dataset, task: SmallTask, name: str) -> pl.Result:
    if name == "adam":
        adam = pl.adam(task.potential, dataset, batch_size=20)
        return pl.sample(adam, task.weights, num_chains=2, num_steps=20, key=3)
    options: dict[str, Any] = {"batch_size": 50, "variance_examples": 200, "warmup_refreshes": 0}
    sampler = pl.pseudo_langevin(task.potential, dataset, refresh_every=10, **options)  # between records, too
    lengths: dict[str, Any] = {"num_chains": 2, "num_steps": 30, "record_every": 15}
    return pl.sample(sampler, task.weights, temperatures=[1e-3, 1e-4], key=3, **lengths)


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few steps, each sent in several parts."""
    monkeypatch.setattr(streamed, "BLOCK_BYTES", 10_000)
    monkeypatch.setattr(streamed, "PART_BYTES", 2_000)


@pytest.fixture(scope="module")
def on_device(linear_task: SmallTask) -> dict[str, pl.Result]:
    return {name: run(linear_task.train, linear_task, name) for name in ("pseudo_langevin", "adam")}


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize(
    ("kinds", "name"),
    [(("signs", "memory"), "pseudo_langevin"), (("zarr", "file"), "pseudo_langevin"), (("memory", "memory"), "adam")],
)
def test_chains_are_those_of_data_on_the_device(
    linear_task: SmallTask, on_device: dict, tmp_path: Path, kinds: tuple[str, str], name: str
) -> None:
    inputs = stored(kinds[0], linear_task.train.inputs, tmp_path / "inputs")
    targets = stored(kinds[1], linear_task.train.targets, tmp_path / "targets")
    result = run(pl.StreamedDataset(inputs, targets), linear_task, name)
    reference = on_device[name]
    # Two programs may differ in the order of a sum.
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), result.weights, reference.weights)
    np.testing.assert_allclose(result.trace.loss, reference.trace.loss, rtol=1e-5)


@pytest.mark.parametrize("num_components", [5, 16, 20])
def test_signs_are_unpacked_to_their_values(num_components: int) -> None:
    inputs = np.random.default_rng(0).choice(np.array([-1, 1], np.int8), (30, num_components))
    dataset = pl.StreamedDataset(pl.Signs.of(inputs), np.arange(30))
    assert dataset.inputs.bits.nbytes == 30 * -(-num_components // 8)
    assert dataset.bytes_per_example == -(-num_components // 8) + 4
    indices = np.array([[29, 0], [5, 29]])
    np.testing.assert_array_equal(jax.jit(dataset.take)(indices)[0], inputs[indices])
    np.testing.assert_array_equal(dataset.decode(dataset.fetch(indices))[0], inputs[indices])
    np.testing.assert_array_equal(dataset.head(7).inputs, inputs[:7])
    np.testing.assert_array_equal(dataset.inputs[3], inputs[3])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pl.Signs.of(np.array([[1, 0]])), r"other values than \+1 and −1"),
        (lambda: pl.Signs.of(np.ones(3)), r"\(3,\); signs are packed from"),
        (lambda: pl.Signs(np.zeros((4, 2), np.uint8), 20), r"shape \(4, 2\).*20 components need uint8 of shape .*3\)"),
        (lambda: pl.Signs(np.zeros((4, 3), np.int8), 20), "dtype int8"),
    ],
)
def test_bits_that_are_not_signs_are_rejected(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_exact_samplers_fetch_data_as_needed(linear_task: SmallTask) -> None:
    def sampled(dataset: pl.Dataset) -> pl.Result:
        sampler = pl.hybrid_monte_carlo(linear_task.potential, dataset, num_leapfrog_steps=3, time_step=0.05)
        return pl.sample(sampler, linear_task.weights, temperatures=[1e-3], num_steps=2, key=0)

    on_host = pl.StreamedDataset(np.asarray(linear_task.train.inputs), np.asarray(linear_task.train.targets))
    np.testing.assert_allclose(sampled(on_host).trace.loss, sampled(linear_task.train).trace.loss, rtol=1e-6)


def test_bad_arguments_are_rejected(linear_task: SmallTask) -> None:
    inputs, targets = np.asarray(linear_task.train.inputs), np.asarray(linear_task.train.targets)
    with pytest.raises(ValueError, match="inputs has 1000 examples and targets has 5"):
        pl.StreamedDataset(inputs, targets[:5])
    broken = inputs.astype(np.float32)
    broken[-1, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        pl.StreamedDataset(broken, targets)
    sampler = pl.pseudo_langevin(linear_task.potential, pl.StreamedDataset(inputs, targets), batch_size=10)
    with pytest.raises(ValueError, match="feeds one device"):
        pl.Run(sampler, temperatures=[1e-3], num_chains=2, placement=Placement(chains=2))
