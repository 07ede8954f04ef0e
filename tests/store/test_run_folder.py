"""What a run leaves on disk, and that it reads back as what `sample` returns."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr

import pseudolangevin as pl
from pseudolangevin import chains, config, hosts, runs
from pseudolangevin.chains import Plan
from pseudolangevin.store.folder import RunFolder, RunFolderError
from pseudolangevin.store.writer import RunWriter

from .conftest import build_once
from .small_runs import arrays_of, metrics_of, small_settings


def test_load_equals_sample(finished):
    experiment = build_once(small_settings())
    settings = experiment.settings
    sampled = pl.sample(
        experiment.plan.sampler,
        experiment.starting_weights(),
        temperatures=settings.temperatures,
        num_chains=settings.num_chains,
        num_steps=settings.num_steps,
        record_every=settings.record_every,
        key=settings.seed,
        test=experiment.plan.test,
        keep_weights_every=settings.recording.keep_weights_every,
    )
    loaded = pl.load(finished)
    xr.testing.assert_identical(loaded.trace, sampled.trace)
    for one, other in [(loaded.weights, sampled.weights), (loaded.samples, sampled.samples)]:
        assert str(jax.tree.structure(one)) == str(jax.tree.structure(other))
        assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    assert repr(loaded.sampler) == repr(sampled.sampler)
    assert loaded.num_weights == sampled.num_weights
    assert str(jax.tree.structure(loaded.states)) == str(jax.tree.structure(sampled.states))
    assert np.array_equal(jax.random.key_data(loaded.states.key), jax.random.key_data(sampled.states.key))


def test_load_without_samples(finished):
    assert pl.load(finished, samples=False).samples is None


def test_folder_describes_the_run(finished):
    assert config.read(finished / "config.toml") == small_settings()
    noted = json.loads((finished / "provenance.json").read_text())
    assert noted["versions"]["jax"] == jax.__version__
    assert noted["device"] == jax.devices()[0].device_kind
    assert noted["seed"] == 5
    assert len(noted["data_sha256"]) == 64
    assert "started" in (finished / "log.txt").read_text()
    assert not (finished / "lock").exists()
    lines = metrics_of(finished)
    assert [line["step"] for line in lines] == list(range(10, 401, 10))
    trace = pl.load(finished).trace
    assert np.allclose([line["loss"] for line in lines], trace["loss"].mean("chain").T, rtol=1e-12)
    assert sorted(entry.name for entry in (finished / "checkpoints").iterdir() if entry.is_dir()) == [
        "0000000360",
        "0000000390",
        "0000000400",
    ]


@pytest.mark.parametrize("consolidated", [True, False])
def test_a_running_trace_opens_with_xarray(tmp_path, monkeypatch, consolidated):
    """Beyond what is committed there is nothing but NaN and status −1."""
    add, seen = RunWriter.add, []

    def look(self: RunWriter, record):
        add(self, record)
        committed = json.loads((tmp_path / "run" / "committed.json").read_text())["records"]
        with xr.open_zarr(tmp_path / "run" / "trace.zarr", chunks=None, consolidated=consolidated) as trace:
            seen.append(committed)
            assert trace.sizes["draw"] == 40
            assert np.isfinite(trace["loss"].values[:, :, :committed]).all()
            assert (trace["status"].values[:, :, :committed] == 0).all()
            assert np.isnan(trace["loss"].values[:, :, committed:]).all()
            assert (trace["status"].values[:, :, committed:] == -1).all()
            assert trace["step"].values[-1] == 400

    monkeypatch.setattr(RunWriter, "add", look)
    runs.start(small_settings(), tmp_path / "run", progress=False)
    assert set(range(3, 40, 3)) <= set(seen)


def test_kept_weights_open_with_xarray(finished):
    with xr.open_zarr(finished / "weights.zarr", chunks=None) as kept:
        assert kept["layer1.kernel"].dims[:3] == ("temperature", "chain", "kept_draw")
        assert kept["layer1.kernel"].shape == (2, 2, 10, 6, 3)
        assert kept["step"].values.tolist() == list(range(40, 401, 40))
        assert np.isfinite(kept["layer1.bias"].values).all()


def test_kept_weights_in_half_precision(tmp_path, finished):
    runs.start(small_settings("recording.weights_dtype=float16"), tmp_path / "run", progress=False)
    half, full = arrays_of(tmp_path / "run" / "weights.zarr"), arrays_of(finished / "weights.zarr")
    assert half["layer1.bias"].dtype == np.float16
    assert np.array_equal(half["layer1.bias"], full["layer1.bias"].astype(np.float16))


def test_arviz_view(finished):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ 0.x announces ArviZ 1.x when imported
        arviz = pytest.importorskip("arviz")
    from pseudolangevin.adapters.arviz import to_arviz

    result = pl.load(finished)
    view = to_arviz(result, 1e-3)
    assert arviz.ess(view.posterior, var_names=["loss"])["loss"] > 0
    assert view.posterior["loss"].dims == ("chain", "draw")
    assert np.array_equal(view.posterior["loss"], result.trace["loss"].sel(temperature=1e-3))
    assert "status" in view.sample_stats
    assert "temperature_ratio" in view.sample_stats
    assert {*view.posterior, *view.sample_stats} == {*result.trace}
    assert not arviz.summary(view).isna().any(axis=None)
    assert to_arviz(result).posterior["loss"].sizes["temperature"] == 2
    with pytest.raises(ValueError, match="was not sampled"):
        to_arviz(result, 5e-3)


def test_the_summary_in_the_docs_agrees_with_the_certificate(finished):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # see above
        arviz = pytest.importorskip("arviz")
    text = (Path(__file__).parents[2] / "docs" / "runs.md").read_text(encoding="utf-8")
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "arviz" in block)
    names: dict = {"result": pl.load(finished)}
    exec(compile(code.replace("3e-5", "1e-3"), "runs.md", "exec"), names)
    effective = arviz.summary(names["data"], round_to="none")["ess_bulk"]
    certificate = pl.certificate(names["result"], noise_draws=0)
    lines = {line.name: line.value for line in certificate.lines if line.temperature == 1e-3}
    assert effective["potential"] == pytest.approx(lines["effective samples of U"])
    assert effective["squared_norm"] == pytest.approx(lines["effective samples of |w|²"])


def test_an_existing_run_is_not_overwritten(finished, tmp_path):
    with pytest.raises(RunFolderError, match="already holds a run"):
        runs.start(small_settings(), finished, progress=False)
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(RunFolderError, match=r"not empty.*diary"):
        runs.start(small_settings(), tmp_path, progress=False)
    with pytest.raises(RunFolderError, match="cannot be made"):
        runs.start(small_settings(), tmp_path / "diary.txt" / "run", progress=False)


def test_load_before_the_first_record(tmp_path, finished):
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(finished, folder.path)
    folder.committed.unlink()
    with pytest.raises(RunFolderError, match="no records yet"):
        pl.load(folder.path)


def test_load_while_the_run_goes_on(tmp_path, monkeypatch):
    """What is recorded while `load` builds fits the checkpoint that it then finds."""
    path = tmp_path / "run"
    runs.start(small_settings("num_steps=200"), path, progress=False)

    def build_slowly(settings, **how):
        monkeypatch.setattr(runs, "build", build_once)
        runs.resume(path, ["num_steps=400"], progress=False)
        return build_once(settings, **how)

    monkeypatch.setattr(runs, "build", build_slowly)
    result = pl.load(path)
    assert result.trace.sizes["draw"] == 40
    assert np.all(np.asarray(result.states.step) == 400)


@pytest.mark.parametrize("first", [True, False])
def test_progress_is_that_of_the_training_as_well(tmp_path, monkeypatch, first):
    shown, bar = [], chains.progress_bar

    def note(*arguments, show, **more):
        shown.append(show)
        return bar(*arguments, show=False, **more)

    monkeypatch.setattr(chains, "progress_bar", note)
    monkeypatch.setattr(hosts, "is_first", lambda: first)
    start = "start={kind='adam', num_steps=10, batch_size=10, candidates=1}"
    runs.start(small_settings("num_steps=20", start), tmp_path / "run", progress=True)
    assert shown == [first, first]


def test_memory_does_not_grow_with_the_number_of_records(tmp_path, monkeypatch):
    """After every record the store holds the same number of array bytes, however many came before."""
    held: list[int] = []
    add = RunWriter.add

    def measure(self: RunWriter, record):
        add(self, record)
        assert self._samples is not None
        blocks = [block.nbytes for block in self._trace._blocks.values()]
        pending = [leaf.nbytes for draws in self._samples._pending for leaf in draws]
        on_device = [int(array.nbytes) for array in jax.live_arrays()]
        held.append(sum(blocks) + sum(pending) + sum(map(len, self._lines)) + sum(on_device))

    monkeypatch.setattr(RunWriter, "add", measure)
    settings = small_settings("num_steps=6000", "recording.checkpoint_every=100")
    runs.start(settings, tmp_path / "run", progress=False)
    assert len(held) == 600
    assert max(held[300:]) <= 1.02 * max(held[:300])  # two full blocks of records in either half


def test_plan_hands_out_the_end_of_a_run_between_records():
    plan: Plan = build_once(small_settings()).plan
    result = pl.sample(
        plan.sampler,
        build_once(small_settings()).starting_weights(),
        temperatures=[1e-3, 2e-3],
        num_chains=2,
        num_steps=25,
        record_every=10,
        key=0,
    )
    assert result.trace.sizes["draw"] == 2
    assert np.all(np.asarray(result.states.step) == 25)
    assert np.isfinite(np.asarray(result.weights["layer1"]["bias"])).all()
