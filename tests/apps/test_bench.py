"""The benchmark on a tiny network: rows, skipped rows, and rejected requests. Times are not judged."""

import json
from functools import partial

import jax
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin.apps import bench as bench_module
from pseudolangevin.apps.bench import SETTINGS, Problem, bench
from pseudolangevin.samplers import SAMPLERS

SIZE = 2_115  # five hidden units


@pytest.fixture(scope="module")
def measured():
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_module, "time_sampler", partial(bench_module.time_sampler, seconds=0.0))
        found = bench([SIZE], [2], ["pseudo_langevin"], report=lines.append)
    return found, lines


def test_a_row_holds_times_and_memory(measured):
    found, lines = measured
    row = found["rows"][0]
    assert (row["num_weights"], row["sampler"], row["num_chains"]) == (SIZE, "pseudo_langevin", 2)
    assert row["batch_size"] == 106
    assert row["seconds_per_step"] > 0
    assert row["seconds_per_step_with_refresh"] == row["seconds_per_step"] + row["refresh_seconds"] / 5_000
    assert row["refresh_seconds"] > 0
    assert row["program_bytes"] > 10_575 * 100  # the data set alone
    assert row["compile_seconds"] > 0
    assert [json.loads(line) for line in lines] == found["rows"]
    assert jax.__version__ in found["machine"]["jax"]


def test_without_time_or_memory_a_reason_is_listed(monkeypatch):
    found = bench([SIZE], [1], seconds=1e-9)
    assert len(found["skipped"]) == len(SETTINGS)
    assert {row["reason"] for row in found["skipped"]} == {"no time was left"}

    def exhausted(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(bench_module, "time_sampler", exhausted)
    assert "out of memory" in bench([SIZE], [1], ["adam"])["skipped"][0]["reason"]


def test_every_sampler_of_the_package_is_timed():
    public = [value for value in vars(pl).values() if isinstance(value, type) and issubclass(value, pl.Sampler)]
    assert set(SETTINGS) == {sampler.name for sampler in public if sampler is not pl.Sampler}
    problem = Problem(SIZE)
    dataset = pl.Dataset(*problem.arrays())
    for name, settings in SETTINGS.items():
        SAMPLERS[name](problem.potential, dataset, **settings)  # the settings are valid


def test_bad_requests_are_rejected():
    for arguments, message in (
        (([11_161],), r"size 11161: the network has 201\*L1 \+ 1110 weights; the nearest is 11160"),
        (([SIZE], [1], ["gibbs"]), "samplers = 'gibbs': choose one of"),
    ):
        with pytest.raises(ValueError, match=message):
            bench(*arguments)


def test_the_problem_is_the_papers():
    problem = Problem(11_160)
    shapes = jax.eval_shape(problem.network.init, jax.random.key(0))
    assert (trees.num_weights(shapes), problem.batch_size) == (11_160, 558)
    assert problem.temperature == pytest.approx(3e-5, rel=1e-4)
    inputs, labels = problem.arrays()
    assert (inputs.shape, inputs.dtype) == ((55_800, 100), np.int8)
    means = np.stack([inputs[labels == c].mean(axis=0) for c in range(10)])
    assert np.abs(means) == pytest.approx(1 - 2 * 0.355, abs=5 / np.sqrt(5_000))
