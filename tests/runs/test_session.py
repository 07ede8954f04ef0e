"""What a run leaves on disk, that it is read back as what `sample` returns, and what stays the same when it goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr

import pseudolangevin as pl
from pseudolangevin.runs import config, session
from pseudolangevin.runs.build import build
from pseudolangevin.runs.config import ConfigError, Settings
from pseudolangevin.runs.folder import RunFolderError
from pseudolangevin.runs.store import Writer

from .conftest import build_once
from .small_runs import arrays_of, assert_same_run, small_settings, snapshot


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_load_equals_sample(finished):
    experiment = build_once(small_settings())
    settings, run = experiment.settings, experiment.run
    lengths = {"num_steps": settings.num_steps, "record_every": settings.record_every}
    chains: Any = {"temperatures": settings.temperatures, "num_chains": settings.num_chains, **lengths}
    weights, kept = experiment.starting_weights(), settings.recording.keep_weights_every
    sampled = pl.sample(run.sampler, weights, key=5, test=run.test, keep_weights_every=kept, **chains)
    loaded = session.load(finished)
    xr.testing.assert_identical(loaded.trace, sampled.trace)
    for one, other in [(loaded.weights, sampled.weights), (loaded.samples, sampled.samples)]:
        assert str(jax.tree.structure(one)) == str(jax.tree.structure(other))
        jax.tree.map(np.testing.assert_array_equal, one, other)
    assert repr(loaded.sampler) == repr(sampled.sampler)
    assert loaded.num_weights == sampled.num_weights
    assert str(jax.tree.structure(loaded.states)) == str(jax.tree.structure(sampled.states))
    assert np.array_equal(jax.random.key_data(loaded.states.key), jax.random.key_data(sampled.states.key))


def test_the_folder_describes_the_run(finished):
    assert config.read(finished / "config.toml") == small_settings()
    noted = json.loads((finished / "provenance.json").read_text())
    assert noted["versions"]["jax"] == jax.__version__
    assert (noted["seed"], noted["backend"], noted["resumed"]) == (5, "cpu", [])
    assert len(noted["data_sha256"]) == len(noted["settings_sha256"]) == 64
    assert "started" in (finished / "log.txt").read_text()
    assert (finished / "lock").read_text() == ""
    names = [f"{step:010d}.checkpoint" for step in (360, 390, 400)]
    assert sorted(file.name for file in (finished / "checkpoints").iterdir()) == names


def test_kept_weights_in_half_precision(tmp_path, finished):
    session.start(small_settings("num_steps=80", "recording.weights_dtype=float16"), tmp_path / "run", progress=False)
    half, full = (arrays_of(run / "weights.records")["0 layer1.bias"] for run in (tmp_path / "run", finished))
    assert half.dtype == np.float16
    assert np.array_equal(half, full[:2].astype(np.float16))


def test_an_existing_run_is_not_overwritten(finished, tmp_path):
    with pytest.raises(RunFolderError, match="already contains a run"):
        session.start(small_settings(), finished, progress=False)
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(RunFolderError, match=r"not empty.*diary"):
        session.start(small_settings(), tmp_path, progress=False)
    with pytest.raises(RunFolderError, match="cannot be made"):
        session.start(small_settings(), tmp_path / "diary.txt" / "run", progress=False)


def test_load_while_the_run_goes_on(tmp_path, monkeypatch):
    """Records that are written while `load` builds fit the checkpoint that it then finds."""
    path = tmp_path / "run"
    session.start(small_settings("num_steps=200"), path, progress=False)

    def build_slowly(settings, **how):
        monkeypatch.setattr(session, "build", build_once)
        session.continue_run(path, ["num_steps=400"], progress=False)
        return build_once(settings, **how)

    monkeypatch.setattr(session, "build", build_slowly)
    result = session.load(path)
    assert result.trace.sizes["draw"] == 40
    assert np.all(np.asarray(result.states.step) == 400)


def test_memory_does_not_grow_with_the_number_of_records(tmp_path, monkeypatch):
    """After every record the writer has the same number of array bytes, however many came before."""
    held: list[int] = []
    add = Writer.add

    def measure(self: Writer, record, kept):
        add(self, record, kept)
        held.append(sum(int(array.nbytes) for array in jax.live_arrays()))

    monkeypatch.setattr(Writer, "add", measure)
    session.start(small_settings("num_steps=1000", "recording.checkpoint_every=500"), tmp_path / "run", progress=False)
    assert len(held) == 100
    assert max(held[50:]) <= 1.02 * max(held[:50])


def test_a_run_may_end_between_records(tmp_path, finished):
    path = tmp_path / "run"
    assert session.start(small_settings("num_steps=125"), path, progress=False).step == 125
    assert session.load(path).trace.sizes["draw"] == 12
    assert np.all(np.asarray(session.load(path).states.step) == 125)
    assert session.continue_run(path, ["num_steps=400"], progress=False).step == 400
    assert_same_run(path, finished)


def test_the_interval_between_records_may_change(tmp_path, finished):
    path = tmp_path / "run"
    session.start(small_settings("num_steps=200"), path, progress=False)
    session.continue_run(path, ["num_steps=400", "record_every=40"], progress=False)
    result, fine = session.load(path), session.load(finished)
    steps = [*range(10, 201, 10), 240, 280, 320, 360, 400]
    assert result.trace["step"].values.tolist() == steps
    assert np.array_equal(result.trace["loss"], fine.trace["loss"].isel(draw=[step // 10 - 1 for step in steps]))
    assert arrays_of(path / "weights.records")["step"].tolist() == [40, 80, 120, 160, 200, 360]
    assert result.trace.attrs["record_every"] == 40


def test_resuming_a_finished_run_changes_nothing(copy, finished):
    before = snapshot(copy)
    for overrides in (["num_steps=400"], []):
        outcome = session.continue_run(copy, overrides, progress=False)
        assert outcome.nothing_to_do
    assert {name for name, content in snapshot(copy).items() if content != before[name]} == {"log.txt"}


def test_only_some_settings_may_change(copy):
    before = snapshot(copy)
    with pytest.raises(ConfigError, match=r"keeps its seed; only num_steps"):
        session.continue_run(copy, ["seed=3"])
    with pytest.raises(ConfigError, match="below the 400 steps already done"):
        session.continue_run(copy, ["num_steps=100"])
    assert snapshot(copy) == before
    text = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(text.replace("seed = 5", "seed = 6"))
    with pytest.raises(RunFolderError, match=r"config\.toml is not what the run began with"):
        session.continue_run(copy)


def test_chains_that_stop_are_counted_and_logged(tmp_path):
    settings = tomllib.loads(config.to_toml(small_settings()))
    settings |= {"sampler": {"name": "adam", "batch_size": 10, "learning_rate": 1e38}, "num_steps": 40}
    del settings["temperatures"]
    with pytest.warns(pl.ChainStoppedWarning):
        outcome = session.start(Settings.model_validate(settings), tmp_path / "run", progress=False)
    assert outcome.stopped_chains == 2
    assert "became non-finite" in (tmp_path / "run" / "log.txt").read_text()
    assert session.continue_run(tmp_path / "run", ["num_steps=60"], progress=False).stopped_chains == 2


def test_data_in_files_may_move_and_may_not_change(tmp_path, monkeypatch):
    """The new path of the data is given in config.toml or as an override."""
    monkeypatch.setattr(session, "build", build)
    rng, path, file = np.random.default_rng(0), tmp_path / "run", tmp_path / "data.npz"
    inputs, targets = rng.normal(size=(40, 6)).astype(np.float32), rng.integers(0, 3, 40)
    np.savez(file, inputs=inputs, targets=targets)
    np.savez(tmp_path / "other.npz", inputs=inputs + 1e-3, targets=targets)
    settings = {"task": {"kind": "files", "file": str(file)}, "network": {"sizes": [6, 3]}, "start": {"kind": "random"}}
    settings |= {"sampler": {"name": "adam", "batch_size": 10}, "num_steps": 20, "record_every": 10}
    session.start(Settings.model_validate(settings), path, progress=False)
    with pytest.raises(RunFolderError, match="the data are not what the run began with"):
        session.continue_run(path, ["num_steps=40", f"task.file={tmp_path / 'other.npz'}"])
    file.rename(tmp_path / "moved.npz")
    with pytest.raises(ConfigError, match=r"data.npz cannot be read"):
        session.continue_run(path, ["num_steps=40"])
    (tmp_path / "other.npz").rename(file)
    with pytest.raises(RunFolderError, match="the data are not what the run began with"):
        session.continue_run(path, ["num_steps=40"])
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text.replace("data.npz", "moved.npz"))
    assert session.continue_run(path, ["num_steps=40"], progress=False).step == 40
    (tmp_path / "moved.npz").rename(tmp_path / "again.npz")
    assert session.continue_run(path, ["num_steps=60", "task.file=../again.npz"], progress=False).step == 60
    assert config.read(path / "config.toml").task.file == str(path / "../again.npz")
    assert session.load(path).trace.sizes["draw"] == 6


BUSY = """
import time
import numpy as np
from pseudolangevin.runs.session import stop_on_signals

with stop_on_signals() as asked:
    print("begun", flush=True)
    while not asked():
        time.sleep(0.01)
with stop_on_signals():
    print("ended", flush=True)
    matrix = np.ones((6000, 6000))
    while True:  # matrix products that Python cannot interrupt
        matrix @ matrix
        matrix @ matrix
"""


def test_one_signal_requests_a_stop_and_two_end_a_process_that_is_in_compiled_code() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for number, line in ((signal.SIGTERM, "begun\n"), (signal.SIGINT, "ended\n")):
            assert process.stdout.readline() == line
            process.send_signal(number)
            assert process.stderr.readline() == session.STOPPING + "\n"  # at once, also while the product is computed
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert session.ENDED in err


def test_a_stop_while_the_start_is_trained(tmp_path, monkeypatch):
    starting = session.Experiment.starting_weights

    def interrupt(self, on_pause, progress):
        os.kill(os.getpid(), signal.SIGINT)
        return starting(self, on_pause, progress)

    start = "start={kind='adam', num_steps=10, batch_size=10, candidates=1}"
    with monkeypatch.context() as patch:
        patch.setattr(session.Experiment, "starting_weights", interrupt)
        outcome = session.start(small_settings("num_steps=20", start), tmp_path / "run", progress=False)
    assert (outcome.interrupted, outcome.step) == (True, 0)


def test_a_stop_while_the_run_is_built(tmp_path, finished, monkeypatch):
    def interrupt(settings, **how):
        os.kill(os.getpid(), signal.SIGTERM)
        return build_once(settings, **how)

    with monkeypatch.context() as patch:
        patch.setattr(session, "build", interrupt)
        outcome = session.start(small_settings(), tmp_path / "run", progress=False)
    assert (outcome.interrupted, outcome.step) == (True, 0)
    assert session.continue_run(tmp_path / "run", progress=False).step == 400
    assert_same_run(tmp_path / "run", finished)
