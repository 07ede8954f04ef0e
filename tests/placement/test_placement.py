"""How a placement is checked, read from a file, and turned into places; one device is enough to see it."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import pseudolangevin as pl
from pseudolangevin import chains, cli, config, hosts
from pseudolangevin.config import ConfigError
from pseudolangevin.data import ValidatedDataset, fold_chunks
from pseudolangevin.placement import AXES, Placement, put_dataset, sharding, split_axis
from pseudolangevin.provenance import settings_hash
from tests.store.small_runs import SMALL_RUN, small_settings
from tests.test_cli import assert_one_clear_line

MESH = Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1, 1), AXES)


@pytest.fixture
def four_devices(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 4)


def test_axes_that_are_split():
    assert split_axis((100, 50), 4) == 0
    assert split_axis((50, 1000), 4) == 1
    assert split_axis((1000, 50), 8) == 0
    assert split_axis((49, 51), 4) is None  # nothing divides
    assert split_axis((100,), 4) is None  # too small to be worth it
    assert split_axis((100, 50), 1) is None
    assert sharding((4, 100, 50), MESH).spec == PartitionSpec("chains", None, None)


def test_the_default_uses_as_many_devices_as_divide_the_chains(four_devices):
    assert [Placement.automatic(num).chains for num in (1, 2, 3, 4, 6, 8, 10)] == [1, 2, 3, 4, 3, 4, 2]


@pytest.mark.parametrize(
    ("placement", "numbers", "nearest"),
    [
        (Placement(chains=8), "8·1·1 = 8 devices, and there are 4", "chains = 4, data = 1, weights = 1"),
        (Placement(2, 2, 2), "2·2·2 = 8 devices, and there are 4", "chains = 2, data = 2, weights = 1"),
        (Placement(chains=3), "4 chains (all temperatures together) do not divide into 3", "chains = 4"),
        (Placement(data=4), "50 examples do not divide into 4", "data = 2"),
        (Placement(weights=3), "no axis of layer1.kernel, of shape (64, 50), divides into 3", "weights = 4"),
    ],
    ids=str,
)
def test_bad_placements(four_devices, placement, numbers, nearest):
    weights = {"layer1": {"kernel": jax.ShapeDtypeStruct((64, 50), jnp.float32)}}
    with pytest.raises(ValueError, match=re.escape(numbers) + ".*nearest that fits is.*" + re.escape(nearest)):
        placement.check(num_chains=4, num_examples=50, weights=weights)


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("placement.chains=8", "chains = 8.*there are 4; the nearest that fits is chains = 4"),
        ("placement.chains=3", "4 chains.*do not divide into 3; the nearest that fits is chains = 4"),
        ("placement.data=4", "57 examples do not divide into 4; the nearest that fits is .*data = 3"),
        ("placement.weights=4", "no axis of layer1.kernel.*divides into 4; the nearest that fits is .*weights = 3"),
        ("placement.chains=0", "placement.chains = 0"),
        ("placement.weigths=2", "did you mean placement.weights"),
        ("placement.kind=everywhere", "placement.kind"),
    ],
)
def test_bad_placements_are_refused_on_one_line(four_devices, tmp_path, capsys, setting, line):
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(SMALL_RUN.replace("[6, 3]", "[6, 333, 3]").replace("num_train = 60", "num_train = 57"))
    assert cli.run(["sample", str(file), "--out", str(out), "--set", setting]) == 2
    assert re.search(line, assert_one_clear_line(capsys))
    assert not out.exists()


def test_placements_in_files():
    assert not config.parse(SMALL_RUN + '[placement]\nkind = "one_device"\n').placement.is_split
    assert config.parse(SMALL_RUN + "[placement]\nchains = 4\n").placement.is_split
    with pytest.raises(ConfigError, match="contradict each other"):
        config.parse(SMALL_RUN + '[placement]\nkind = "one_device"\nchains = 4\n')
    assert settings_hash(small_settings()) == settings_hash(small_settings("placement.data=4"))


def test_flags_for_several_processes(tmp_path, capsys):
    (tmp_path / "run.toml").write_text(SMALL_RUN)
    for flags, words in [
        (["--coordinator", "127.0.0.1:1234"], "give all three"),
        (["--coordinator", "127.0.0.1", "--num-processes", "2", "--process-id", "0"], "write host:port"),
        (["--coordinator", "127.0.0.1:1234", "--num-processes", "2", "--process-id", "2"], "count from 0"),
    ]:
        assert cli.run(["sample", str(tmp_path / "run.toml"), *flags]) == 2
        assert words in assert_one_clear_line(capsys)


def test_one_process_agrees_with_itself():
    assert not hosts.several()
    assert hosts.any_process(True)
    assert hosts.first_decides(2) == 2
    with pytest.raises(ZeroDivisionError), hosts.together():
        _ = 1 / 0


def test_a_streamed_test_set_stays_where_it_is(small_task):
    inputs, targets = map(np.asarray, small_task.test.batch)
    sampler = pl.pseudo_langevin(small_task.potential, small_task.train, batch_size=50)
    losses = []
    for test in (small_task.test, pl.StreamedDataset(inputs, targets)):
        plan = chains.make_plan(
            sampler, temperatures=[1e-3], num_chains=2, num_steps=10, record_every=10, test=test, placement=MESH
        )
        *_, last = plan.run(plan.init(small_task.weights, 0))
        assert last.observables is not None
        losses.append(last.observables["test_loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_a_validation_set_goes_where_the_training_set_goes(small_task):
    both = put_dataset(ValidatedDataset(small_task.train, small_task.test), MESH)
    assert isinstance(both, ValidatedDataset)
    assert both.mesh is both.validation.mesh is MESH
    sampler = pl.adam(small_task.potential, small_task.train, validation=small_task.test, validate_every=10)
    trained = []
    for placement in (Placement(), MESH):
        plan = chains.make_plan(sampler, temperatures=None, num_chains=1, num_steps=20, placement=placement)
        *_, last = plan.run(plan.init(small_task.weights, 0))
        trained.append(jax.tree.leaves(last.states.validation.best_weights))
    for one, other in zip(*trained, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(("num_examples", "chunk_size"), [(12, 4), (12, 100), (20, 6), (28, 8), (8, 1)])
def test_split_chunks_visit_every_example_once(monkeypatch, num_examples, chunk_size):
    """Four shards, each with chunks of its own; where the arrays really are does not matter to the counting."""
    monkeypatch.setattr(pl.Dataset, "num_shards", 4)
    dataset = pl.Dataset(np.arange(num_examples), np.zeros(num_examples))
    counts = fold_chunks(
        lambda carry, batch, mask: carry.at[batch[0]].add(mask), jnp.zeros(num_examples, jnp.int32), dataset, chunk_size
    )
    assert (np.asarray(counts) == 1).all()
