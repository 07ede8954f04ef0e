"""Chains on several devices and in several processes are those of one device, to rounding."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import runs
from tests.store.small_runs import SMALL_RUN, arrays_of, assert_same_run, small_settings

from .placed_chains import STIFFNESS, WEIGHT_DECAY, T
from .processes import finish, free_address, start

SPLITS = {"4,1,1": 4, "1,4,1": 1, "1,1,4": 4, "2,2,1": 2}
"""Each with the number of pieces that a tensor of all chains is cut into."""


@pytest.fixture(scope="module")
def one_device(tmp_path_factory) -> tuple[dict, dict]:
    """Runs on one of four devices, and on all of them."""
    out = tmp_path_factory.mktemp("chains") / "out.npz"
    arguments = [out, "1,1,1", *SPLITS, "1,2,2"]
    finish(start("tests.placement.placed_chains", arguments, out.with_name("printed"), devices=4))
    found = dict(np.load(out))
    return {name.removeprefix("1,1,1/"): value for name, value in found.items() if name.startswith("1,1,1/")}, found


def assert_same_chain(found: dict, split: str, sampler: str, reference: dict) -> None:
    """Equal to a few roundings of the largest weight, over all steps."""
    for name in ("weights", "loss"):
        value = found[f"{split}/{sampler}/{name}"]
        expected = reference[f"{sampler}/{name}"][:, :, : value.shape[2]]
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def assert_exact(weights: np.ndarray, masses: np.ndarray) -> None:
    """⟨w²⟩ of the oscillators is that of the discretised dynamics, T/k/(1 − k/(4·M))."""
    stiffness = STIFFNESS + WEIGHT_DECAY / weights.shape[-1]
    temperatures = np.array([T, 2 * T])[:, None, None]
    exact = temperatures / stiffness / (1 - stiffness / masses / 4)
    ratio = np.mean(weights[:, :, 3:, -STIFFNESS.size :].astype(np.float64) ** 2, axis=2) / exact
    error = ratio.std() / np.sqrt(ratio.size)
    assert error < 0.01  # without the correction of the noise it would be 1.09
    assert abs(ratio.mean() - 1) < 3 * error


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_every_split_gives_the_chain_of_one_device(one_device, split):
    reference, found = one_device
    assert_same_chain(found, split, "langevin", reference)
    assert found[f"{split}/langevin/pieces"] == SPLITS[split]
    assert_exact(found[f"{split}/langevin/weights"], found[f"{split}/langevin/masses"])


@pytest.mark.slow
def test_exact_energies_are_those_of_one_device(one_device):
    """Hybrid Monte Carlo with data and weights split: the same decisions."""
    reference, found = one_device
    assert_same_chain(found, "1,2,2", "hybrid", reference)


@pytest.mark.slow
def test_two_processes_give_the_chain_of_one_device(one_device, tmp_path):
    reference, _ = one_device
    splits, address = ["1,4,1", "1,1,4"], free_address()
    environment = {"COORDINATOR": address, "NUM_PROCESSES": "2"}
    processes = [
        start(
            "tests.placement.placed_chains",
            [tmp_path / f"{number}.npz", *splits],
            tmp_path / f"printed{number}",
            devices=2,
            **environment,
            PROCESS_ID=str(number),
        )
        for number in range(2)
    ]
    for process in processes:
        finish(process)
    assert not (tmp_path / "1.npz").exists()
    found = dict(np.load(tmp_path / "0.npz"))
    for split in splits:
        assert_same_chain(found, split, "langevin", reference)


@pytest.fixture(scope="module")
def placed_runs(tmp_path_factory) -> Path:
    """Run folders made on four devices."""
    folder = tmp_path_factory.mktemp("placed")
    finish(start("tests.placement.placed_runs", [folder], folder / "printed", devices=4))
    return folder


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory) -> Path:
    """The same run on one device."""
    path = tmp_path_factory.mktemp("plain") / "run"
    runs.start(small_settings(), path, progress=False)
    return path


def assert_same_run_to_rounding(left: Path, right: Path) -> None:
    assert (left / "committed.json").read_text() == (right / "committed.json").read_text()
    for store in ("trace.zarr", "weights.zarr"):
        ours, theirs = arrays_of(left / store), arrays_of(right / store)
        for name, array in ours.items():
            if np.issubdtype(array.dtype, np.floating) and name != "stale_heat":  # a difference of close numbers
                np.testing.assert_allclose(
                    array, theirs[name], rtol=2e-4, atol=2e-5 * np.abs(array).max(), err_msg=name
                )


@pytest.mark.slow
def test_a_run_continues_on_other_devices(placed_runs, plain_run):
    for name in ("whole", "other"):
        assert_same_run_to_rounding(placed_runs / name, plain_run)
    result = pl.load(placed_runs / "other")  # on one device, wherever it ran
    assert np.isfinite(result.trace["loss"]).all()


@pytest.mark.slow
def test_a_run_of_two_processes_survives_a_kill_of_one(placed_runs, tmp_path):
    config, out = tmp_path / "run.toml", tmp_path / "out"
    config.write_text(SMALL_RUN)

    def both(arguments: list) -> list:
        address = free_address()
        extra = ["--coordinator", address, "--num-processes", 2, "--process-id"]
        return [
            start("pseudolangevin.cli", [*arguments, *extra, number], tmp_path / f"{address}-{number}", devices=2)
            for number in range(2)
        ]

    first, second = both(["sample", config, "--out", out])
    while not (out / "committed.json").exists() or json.loads((out / "committed.json").read_text())["records"] < 5:
        assert first.process.is_alive(), finish(first)
        time.sleep(0.01)
    second.process.kill()
    assert "another process is gone" in finish(first, code=130, seconds=120)
    finish(second, code=-signal.SIGKILL)
    assert json.loads((out / "committed.json").read_text())["records"] < 40
    first, second = both(["resume", out])
    assert "400 of 400 steps done" in finish(first)
    assert "steps done" not in finish(second)
    assert_same_run(out, placed_runs / "whole")  # to the bit: four devices are four devices
