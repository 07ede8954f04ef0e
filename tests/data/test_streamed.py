"""Data in host memory or on disk give the same chains as data on the device."""

from typing import Any

import jax
import numpy as np
import pytest
import zarr

import pseudolangevin as pl
from pseudolangevin.data import dataset as streamed
from pseudolangevin.gradients import exact_sums
from pseudolangevin.placement import Placement


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


def test_exact_sums_fetch_data_as_needed(linear_task, host):
    def sums(dataset: pl.Dataset):
        return jax.jit(lambda w: exact_sums(linear_task.potential, w, dataset, 300))(linear_task.weights)

    found, expected = sums(pl.StreamedDataset(*host)), sums(linear_task.train)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-5, atol=1e-7)
    assert float(found.loss.high) == pytest.approx(float(expected.loss.high), rel=1e-6)


def test_bad_arguments_are_rejected(linear_task, host):
    on_host = pl.StreamedDataset(*host)
    for training, validation in ((on_host, linear_task.test), (linear_task.train, on_host)):
        with pytest.raises(ValueError, match="is a StreamedDataset, which cannot be validated"):
            pl.adam(linear_task.potential, training, validation=validation)
    with pytest.raises(ValueError, match="inputs has 1000 examples and targets has 5"):
        pl.StreamedDataset(host[0], host[1][:5])
    broken = host[0].astype(np.float32)
    broken[-1, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        pl.StreamedDataset(broken, host[1])
    sampler = pl.pseudo_langevin(linear_task.potential, on_host, batch_size=10)
    with pytest.raises(ValueError, match="feeds one device"):
        pl.Run(sampler, temperatures=[1e-3], num_chains=2, placement=Placement(chains=2))
