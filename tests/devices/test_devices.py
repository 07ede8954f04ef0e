"""Chains on several devices and in several processes equal those of one device, to rounding."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import cli
from pseudolangevin.runs.store import read_trace
from tests.runs.small_runs import SMALL_RUN, arrays_of, assert_same_run

from .placed import STIFFNESS, WEIGHT_DECAY, T, make_chains, make_runs
from .processes import finish, free_address, start

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """Runs on one of four devices, and on all of them."""
    out = tmp_path_factory.mktemp("chains") / "out.npz"
    finish(start(make_chains, [out, "1,1,1", "4,1,1", "1,2,2"], out.with_name("printed"), devices=4))
    return dict(np.load(out))


def assert_same_chain(found: dict, split: str, sampler: str, reference: dict, parts: int) -> None:
    """Equal to a few roundings of the largest weight, over all steps, with tensors of all chains in so many parts."""
    assert found[f"{split}/{sampler}/parts"] == parts
    for name in ("weights", "loss"):
        value = found[f"{split}/{sampler}/{name}"]
        expected = reference[f"1,1,1/{sampler}/{name}"][:, :, : value.shape[2]]
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_the_chain_of_one_device_is_exact(found):
    """The mean of w² of the oscillators is that of the discretised dynamics, T/k/(1 - k/(4 M))."""
    weights, masses = found["1,1,1/langevin/weights"], found["1,1,1/langevin/masses"]
    stiffness = STIFFNESS + WEIGHT_DECAY / weights.shape[-1]
    temperatures = np.array([T, 2 * T])[:, None, None]
    exact = temperatures / stiffness / (1 - stiffness / masses / 4)
    ratio = np.mean(weights[:, :, 3:, -STIFFNESS.size :].astype(np.float64) ** 2, axis=2) / exact
    error = ratio.std() / np.sqrt(ratio.size)
    assert error < 0.01  # without the correction of the noise the mean would be 1.09
    assert abs(ratio.mean() - 1) < 3 * error


def test_split_chains_are_those_of_one_device(found):
    assert_same_chain(found, "4,1,1", "langevin", found, parts=4)


def test_hybrid_monte_carlo_accepts_the_same_moves_with_data_and_weights_split(found):
    assert_same_chain(found, "1,2,2", "hybrid", found, parts=2)


def test_two_processes_with_data_and_weights_split_give_the_chain_of_one_device(found, tmp_path):
    environment = {"COORDINATOR": free_address(), "NUM_PROCESSES": "2"}

    def process(number: int):
        arguments = [tmp_path / f"{number}.npz", "1,2,2"]
        return start(
            make_chains, arguments, tmp_path / f"printed{number}", devices=2, **environment, PROCESS_ID=str(number)
        )

    for started in [process(0), process(1)]:
        finish(started)
    assert not (tmp_path / "1.npz").exists()
    of_processes = dict(np.load(tmp_path / "0.npz"))
    assert_same_chain(of_processes, "1,2,2", "langevin", found, parts=2)


@pytest.fixture(scope="module")
def placed_runs(tmp_path_factory) -> Path:
    """Run folders made on four devices."""
    folder = tmp_path_factory.mktemp("placed")
    finish(start(make_runs, [folder], folder / "printed", devices=4))
    return folder


def test_a_run_continues_on_other_devices(placed_runs, finished):
    for name in ("one", "two"):
        for store in ("trace.records", "weights.records"):
            theirs = arrays_of(finished / store)
            for variable, array in arrays_of(placed_runs / name / store).items():
                # Weak directions of the noise are not determined to rounding; seconds are of a clock.
                if array.dtype.kind == "f" and variable != "seconds" and "direction" not in variable:
                    tolerance = 2e-5 * np.abs(array).max()
                    np.testing.assert_allclose(array, theirs[variable], rtol=2e-4, atol=tolerance, err_msg=variable)
    result = pl.load(placed_runs / "two")  # on one device, whatever devices it ran on
    assert np.isfinite(result.trace["loss"]).all()


def test_a_run_of_two_processes_survives_a_kill_of_one(placed_runs, tmp_path):
    config, out = tmp_path / "run.toml", tmp_path / "out"
    config.write_text(SMALL_RUN)

    def both(arguments: list) -> list:
        address = free_address()
        extra = ["--coordinator", address, "--num-processes", 2, "--process-id"]
        return [
            start(cli.main, [*arguments, *extra, number], tmp_path / f"{address}-{number}", devices=2)
            for number in range(2)
        ]

    first, second = both(["sample", config, "--out", out])
    while (trace := read_trace(out)) is None or trace.sizes["draw"] < 5:
        assert first.process.is_alive(), finish(first)
        time.sleep(0.01)
    second.process.kill()
    first.process.join(120)
    if first.process.exitcode == -signal.SIGABRT:  # JAX noticed before a collective operation did
        finish(first, code=-signal.SIGABRT)
    else:
        assert "another process is gone" in finish(first, code=130)
    finish(second, code=-signal.SIGKILL)
    trace = read_trace(out)
    assert trace is not None
    assert trace.sizes["draw"] < 40
    first, second = both(["resume", out])
    assert "400 of 400 steps done" in finish(first)
    assert "steps done" not in finish(second)
    assert_same_run(out, placed_runs / "one")  # to the bit, since both have four devices
