"""Run folders from Python, for any model, and models that a configuration names as code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import pseudolangevin as pl
from pseudolangevin import cli
from pseudolangevin.runs import config, session
from pseudolangevin.runs.config import ConfigError
from pseudolangevin.runs.folder import RunFolderError
from pseudolangevin.runs.store import RecordFile

from .small_runs import SMALL_RUN


class Pair(NamedTuple):
    slope: Any
    offset: Any


def loss(weights: Any, batch: Any) -> jax.Array:
    slope, offset = jax.tree.leaves(weights)
    return (batch[0] @ slope + offset - batch[1]) ** 2


@pytest.fixture(scope="module")
def dataset() -> pl.Dataset:
    rng = np.random.default_rng(0)
    return pl.Dataset(rng.normal(size=(30, 2)).astype(np.float32), rng.normal(size=30).astype(np.float32))


def make_sampler(dataset: pl.Dataset, weight_decay: float = 1.0, time_step: float = 0.1) -> pl.Sampler:
    return pl.full_batch_langevin(pl.Potential(loss, weight_decay=weight_decay), dataset, time_step=time_step)


OPTIONS: dict[str, Any] = {"temperatures": [1e-2], "num_chains": 2, "record_every": 5, "key": 3}
OPTIONS["keep_weights_every"] = 2
WEIGHTS = {"a": jnp.ones(2), "b": jnp.zeros(())}


@pytest.mark.parametrize("wrap", [lambda *leaves: [(leaves[0],), {"b": leaves[1]}], Pair])
def test_a_run_of_any_model_continues_to_the_same_bits(dataset, tmp_path, wrap, capsys, monkeypatch):
    if wrap is Pair:  # as if matplotlib were not installed
        monkeypatch.setattr(session.util, "find_spec", lambda name: None)
    sampler, weights = make_sampler(dataset), wrap(jnp.ones(2), jnp.zeros(()))
    whole = pl.sample(sampler, weights, num_steps=60, **OPTIONS)
    first = pl.sample(sampler, weights, num_steps=30, folder=tmp_path / "run", **OPTIONS)
    assert first.trace.sizes["draw"] == 6
    if wrap is Pair:
        with pytest.raises(RunFolderError, match="pass weights=, any weights of the same model"):
            pl.resume(tmp_path / "run", sampler, num_steps=60)
    given = {"weights": weights} if wrap is Pair else {}
    result = pl.resume(tmp_path / "run", sampler, num_steps=60, **given)
    xr.testing.assert_identical(result.trace, whole.trace)
    for one, other in ((result.weights, whole.weights), (result.samples, whole.samples)):
        assert str(jax.tree.structure(one)) == str(jax.tree.structure(other))
        jax.tree.map(np.testing.assert_array_equal, one, other)
    assert (tmp_path / "run" / "report.html").exists() == (wrap is not Pair)
    assert cli.run(["check", str(tmp_path / "run")]) == 1  # too short to pass
    assert "certificate" in capsys.readouterr().out
    assert cli.run(["watch", str(tmp_path / "run"), "--once"]) == 0
    with pytest.raises(ConfigError, match=r"made_by.*pl.load\(DIR, sampler\)"):
        pl.load(tmp_path / "run")


@pytest.fixture(scope="module")
def begun(dataset, tmp_path_factory) -> Path:
    """A run of 30 steps. Copy it before changing it."""
    run = tmp_path_factory.mktemp("begun") / "run"
    pl.sample(make_sampler(dataset), WEIGHTS, num_steps=30, folder=run, **OPTIONS)
    return run


def test_certificate_and_page_of_a_run_that_python_started(begun, dataset, tmp_path, capsys):
    """The command line reads what Python wrote, and names the call that writes it again."""
    run = Path(shutil.copytree(begun, tmp_path / "run"))
    certificate = (run / "certificate.json").read_text()
    assert cli.run(["report", str(run)]) == 2
    assert "use pl.load(DIR, sampler)" in capsys.readouterr().err
    (run / "certificate.json").write_text(json.dumps(json.loads(certificate) | {"text": "a\x1b[2J\nb"}))
    assert cli.run(["check", str(run)]) == 1
    assert capsys.readouterr().out == "a[2J\nb\n"
    for forged in ('{"step": "x"}', "{", None):
        (run / "certificate.json").unlink()
        if forged:
            (run / "certificate.json").write_text(forged)
        assert cli.run(["check", str(run)]) == 2
        assert "finish it with pl.resume(DIR, sampler)" in capsys.readouterr().err
    pl.resume(run, make_sampler(dataset))
    assert (run / "certificate.json").read_text() == certificate
    with RecordFile(run / "trace.records", writable=True) as file:
        file.truncate(0)
    for command in ("check", "report"):
        assert cli.run([command, str(run)]) == 2
        assert "pl.resume(" in capsys.readouterr().err


def test_another_model_is_rejected(begun, dataset):
    other = pl.Dataset(dataset.inputs, dataset.targets + 1)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (make_sampler(dataset, time_step=0.2), {}, "the sampler has time_step = 0.2, and the run began with 0.1"),
        (make_sampler(dataset, weight_decay=9.0), {}, "the potential is not that of the run"),
        (make_sampler(other), {}, "the data are not what the run began with"),
        (make_sampler(dataset), {"test": other}, "the test set is not what the run began with"),
        (make_sampler(dataset), {"weights": WEIGHTS | {"a": jnp.ones(3)}}, r"the weights has 0 a"),
        (make_sampler(dataset), {"num_steps": 5}, "below the 30 steps already done"),
        (None, {}, "the model of this run is Python code"),
        (3, {}, "sampler = '3' is not a sampler"),
    ]
    for sampler, more, why in cases:
        with pytest.raises(ValueError, match=why):
            pl.resume(begun, sampler, **{"num_steps": 40, **more})
    with pytest.raises(RunFolderError, match="already contains a run"):
        pl.sample(make_sampler(dataset), WEIGHTS, num_steps=10, folder=begun, **OPTIONS)


MODEL = """
import jax, jax.numpy as jnp, pathlib
pathlib.Path(__file__).with_name("executed").touch()

def make():
    def init(key):
        return {"kernel": 0.1 * jax.random.normal(key, (6, 3)), "scale": jnp.ones(3)}
    return init, lambda weights, inputs: jnp.tanh(inputs @ weights["kernel"]) * weights["scale"]
"""


def test_a_module_is_executed_only_if_that_is_allowed(tmp_path, capsys):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "run.toml").write_text(SMALL_RUN.replace("[potential]", 'module = "model.py:make"\n[potential]'))
    sample = ["sample", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--set", "num_steps=40"]
    sample += ["--set", "sampler={name='full_batch_langevin', time_step=0.1}"]
    assert cli.run(sample) == 2
    assert "allow it with --allow-code" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()
    assert cli.run([*sample, "--allow-code"]) == 0
    (tmp_path / "executed").unlink()
    (tmp_path / "run" / "trace.records").rename(tmp_path / "trace")
    with pytest.raises(RunFolderError, match="no records yet"):
        pl.load(tmp_path / "run")
    (tmp_path / "trace").rename(tmp_path / "run" / "trace.records")
    for command in ("resume", "check"):
        assert cli.run([command, str(tmp_path / "run")]) == 2
    assert not (tmp_path / "executed").exists()
    assert pl.load(tmp_path / "run", allow_code=True).num_weights == 21
    (tmp_path / "model.py").write_text(MODEL + "\n")
    with pytest.raises(RunFolderError, match=r"config\.toml is not what the run began with"):
        pl.resume(tmp_path / "run", num_steps=80, allow_code=True)


@pytest.mark.parametrize("choice", ["sampler.name=hybrid_monte_carlo", "task.kind=files", "task.kind=idx"])
def test_every_alternative_has_a_template(choice, capsys):
    assert cli.run(["sample", "--print-config", "--set", choice]) == 0
    config.parse(capsys.readouterr().out)
