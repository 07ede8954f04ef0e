"""Placements: checks, settings in files, and shardings; for chains on several devices see `tests/devices`."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import pseudolangevin as pl
from pseudolangevin import cli
from pseudolangevin.data.dataset import fold_chunks
from pseudolangevin.placement import AXES, Placement, sharding, split_axis
from tests.runs.small_runs import SMALL_RUN
from tests.test_cli import assert_one_clear_line

pytestmark = pytest.mark.usefixtures("_no_directions")

MESH = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1, 1), AXES)


@pytest.fixture
def four_devices(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 4)


def test_the_longest_divisible_axis_is_split():
    assert split_axis((100, 50), 4) == 0
    assert split_axis((50, 1000), 4) == 1
    assert split_axis((1000, 50), 8) == 0
    assert split_axis((49, 51), 4) is None  # no axis divides
    assert split_axis((100,), 4) is None  # too small
    assert split_axis((100, 50), 1) is None
    assert sharding((4, 100, 50), MESH).spec == PartitionSpec("chains", None, None)


@pytest.mark.usefixtures("four_devices")
def test_the_default_uses_the_most_devices_that_divide_the_chains():
    assert [Placement.automatic(num).chains for num in (1, 2, 3, 4, 6, 8, 10)] == [1, 2, 3, 4, 3, 4, 2]


@pytest.mark.usefixtures("four_devices")
@pytest.mark.parametrize(
    ("split", "problem"),
    [
        (Placement(chains=8), "8*1*1 = 8 devices, of 4"),
        (Placement(chains=3), "4 chains (all temperatures together) do not divide into 3"),
        (Placement(data=4), "50 examples do not divide into 4"),
        (Placement(weights=3), "no axis of layer1.kernel, of shape (64, 50), divides into 3"),
    ],
    ids=str,
)
def test_a_split_that_does_not_fit_is_rejected(split, problem):
    weights = {"layer1": {"kernel": jax.ShapeDtypeStruct((64, 50), jnp.float32)}}
    with pytest.raises(ValueError, match=re.escape(problem) + ".*; pass other numbers, whose product is at most 4"):
        split.check(num_chains=4, num_examples=50, weights=weights)


@pytest.mark.usefixtures("four_devices")
@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("placement.weights=4", "no axis of layer1.kernel.*divides into 4; pass other numbers"),
        ("placement.weigths=2", "did you mean placement.weights"),
    ],
)
def test_bad_settings_of_a_placement_are_one_line(tmp_path, capsys, setting, line):
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(SMALL_RUN.replace("[6, 3]", "[6, 333, 3]").replace("num_train = 60", "num_train = 57"))
    assert cli.run(["sample", str(file), "--out", str(out), "--set", setting]) == 2
    assert re.search(line, assert_one_clear_line(capsys))
    assert not out.exists()


def test_a_streamed_test_set_stays_on_the_host(linear_task):
    inputs, targets = map(np.asarray, linear_task.test.batch)
    sampler = pl.pseudo_langevin(linear_task.potential, linear_task.train, batch_size=50)
    losses = []
    for test in (linear_task.test, pl.StreamedDataset(inputs, targets)):
        run = pl.Run(sampler, temperatures=[1e-3], num_chains=2, test=test, placement=MESH)
        *_, last = run.records(run.start(linear_task.weights, 0), stop=10, every=10)
        assert last.observables is not None
        losses.append(last.observables["test_loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


@pytest.mark.parametrize(("num_examples", "chunk_size"), [(12, 100), (20, 6)])
def test_chunks_of_split_data_visit_every_example_once(monkeypatch, num_examples, chunk_size):
    monkeypatch.setattr(pl.Dataset, "num_shards", 4)
    dataset = pl.Dataset(np.arange(num_examples), np.zeros(num_examples))
    counts = fold_chunks(
        lambda carry, batch, mask: carry.at[batch[0]].add(mask), jnp.zeros(num_examples, jnp.int32), dataset, chunk_size
    )
    assert (np.asarray(counts) == 1).all()
