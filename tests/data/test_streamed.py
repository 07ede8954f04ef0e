"""Data in host memory or on disk give the same chains as data on the device."""

from typing import Any

import jax
import numpy as np
import pytest
import zarr

import pseudolangevin as pl
from pseudolangevin.data import dataset as streamed
from pseudolangevin.placement import Placement

pytestmark = pytest.mark.usefixtures("_no_directions")


@pytest.fixture
def host(linear_task):
    return [np.asarray(array) for array in linear_task.train.batch]


def test_chains_are_those_of_data_on_the_device(linear_task, host, tmp_path, monkeypatch):
    """Inputs in a Zarr array and targets in a mapped file, in blocks of a few steps, each sent in several parts."""
    monkeypatch.setattr(streamed, "BLOCK_BYTES", 10_000)
    monkeypatch.setattr(streamed, "PART_BYTES", 2_000)
    inputs = zarr.create_array(tmp_path / "inputs.zarr", shape=host[0].shape, dtype=host[0].dtype, chunks=(100, 20))
    inputs[:] = host[0]
    np.save(tmp_path / "targets.npy", host[1])
    on_disk = pl.StreamedDataset(inputs, np.load(tmp_path / "targets.npy", mmap_mode="r"))
    options: dict[str, Any] = {"batch_size": 50, "variance_examples": 200, "warmup_refreshes": 0, "refresh_every": 10}
    lengths: dict[str, Any] = {"num_chains": 2, "num_steps": 30, "record_every": 15}  # refreshes between records, too
    results = [
        pl.sample(
            pl.pseudo_langevin(linear_task.potential, dataset, **options),
            linear_task.weights,
            temperatures=[1e-3, 1e-4],
            key=3,
            **lengths,
        )
        for dataset in (on_disk, linear_task.train)
    ]
    # Two programs may differ in the order of a sum.
    np.testing.assert_allclose(results[0].weights, results[1].weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results[0].trace.loss, results[1].trace.loss, rtol=1e-5)
    virial = [result.trace.virial_temperature for result in results]  # from the gradient of all examples
    np.testing.assert_allclose(virial[0], virial[1], rtol=1e-4)


@pytest.mark.parametrize("num_components", [5, 16, 20])
def test_signs_are_unpacked_to_their_values(num_components):
    inputs = np.random.default_rng(0).choice(np.array([-1, 1], np.int8), (30, num_components))
    dataset = pl.StreamedDataset(pl.Signs.of(inputs), np.arange(30))
    assert dataset.bytes_per_example == -(-num_components // 8) + 4
    indices = np.array([[29, 0], [5, 29]])
    np.testing.assert_array_equal(jax.jit(dataset.take)(indices)[0], inputs[indices])
    np.testing.assert_array_equal(dataset.decode(dataset.fetch(indices))[0], inputs[indices])
    np.testing.assert_array_equal(dataset.head(7).inputs, inputs[:7])


def test_bits_that_are_not_signs_are_rejected():
    with pytest.raises(ValueError, match=r"other values than \+1 and −1"):
        pl.Signs.of(np.array([[1, 0]]))
    with pytest.raises(ValueError, match=r"shape \(4, 2\).*20 components need uint8 of shape .*3\)"):
        pl.Signs(np.zeros((4, 2), np.uint8), 20)


def test_bad_arguments_are_rejected(linear_task, host):
    on_host = pl.StreamedDataset(*host)
    with pytest.raises(ValueError, match="inputs has 1000 examples and targets has 5"):
        pl.StreamedDataset(host[0], host[1][:5])
    broken = host[0].astype(np.float32)
    broken[-1, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        pl.StreamedDataset(broken, host[1])
    sampler = pl.pseudo_langevin(linear_task.potential, on_host, batch_size=10)
    with pytest.raises(ValueError, match="feeds one device"):
        pl.Run(sampler, temperatures=[1e-3], num_chains=2, placement=Placement(chains=2))
