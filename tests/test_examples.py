"""The examples run at a fraction of their size, and the weights that they write back predict the recorded errors."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import equinox as eqx
import jax
import numpy as np
import pytest

import pseudolangevin as pl
from examples import (
    bias_law,
    certify_blackjax,
    character_transformer,
    fashion_cnn,
    geometry_of_solutions,
    long_job,
    own_loop,
    physicist,
    pytorch_engineer,
    statistician,
    tensorboard_logging,
    train_by_sampling,
)

pytestmark = pytest.mark.usefixtures("_no_directions")

ROOT = Path(__file__).parent.parent


@pytest.fixture
def _short(monkeypatch):
    """The same programs with fewer examples to measure the noise."""
    fewer: dict[str, Any] = {"variance_examples": 100, "warmup_refreshes": 0}
    monkeypatch.setattr(pl, "pseudo_langevin", partial(pl.pseudo_langevin, **fewer))


def test_a_convolutional_network_and_other_ensembles(monkeypatch, tmp_path, capsys):
    tiny = replace(fashion_cnn.SMALL, num_train=100, num_test=50, pooling=4, channels=(2, 2), batch_size=20, members=4)
    monkeypatch.setattr(fashion_cnn, "SMALL", tiny)
    out = tmp_path / "table.json"
    report = fashion_cnn.main(["--seeds", "1", "--epochs", "2", "--data", str(tmp_path), "--out", str(out)])
    printed = capsys.readouterr().out
    assert "bars instead of FashionMNIST" in printed
    assert "certificate" in printed
    assert json.loads(out.read_text(encoding="utf-8"))["table"][0]["method"] == "adam"
    assert [line["method"] for line in report["table"]] == list(fashion_cnn.METHODS)
    for line in report["table"]:
        values = [row[line["method"]]["error"] for row in report["seeds"]]
        assert line["error"]["mean"] == pytest.approx(np.mean(values))
        assert all(0 <= value <= 1 for value in values)


def test_committed_tables_are_those_of_their_seeds_and_within_their_tolerances():
    results = ROOT / "benchmarks" / "results"
    for file in results.glob("fashion-cnn-*.json"):
        report = json.loads(file.read_text(encoding="utf-8"))
        assert report["table"] == fashion_cnn.summary(report["seeds"])
        assert len(report["seeds"]) >= 3
    rows = json.loads((results / "architectures-cpu.json").read_text(encoding="utf-8"))["rows"]
    assert [row["network"] for row in rows] == ["convolutional", "transformer"]
    for row in rows:
        (method,) = {"balanced_langevin", "pseudo_langevin"} & set(row)
        for quantity in ("loss", "squared_norm"):
            ours, exact = (row[name][quantity]["mean"] for name in (method, "hybrid_monte_carlo"))
            assert abs(ours / exact - 1) <= row[f"{quantity}_difference"]["tolerance"]


@pytest.mark.usefixtures("_short")
def test_a_transformer_in_equinox(monkeypatch, capsys):
    tiny = replace(character_transformer.SMALL, context=4, stride=20, width=4, batch_size=10)
    monkeypatch.setattr(character_transformer, "SMALL", tiny)
    result, network = character_transformer.main(["--steps", "7", "--freeze-embeddings"])
    printed = capsys.readouterr().out
    assert "certificate" in printed
    assert "text of one sample: the " in printed
    assert result.weights.embedding.weight is None
    dataset, _ = character_transformer.sequences(character_transformer.TEXT, tiny)
    # The same sequences once more with another last character, which no earlier prediction depends on.
    tokens = np.concatenate([dataset.inputs, np.asarray(dataset.inputs) * [1, 1, 1, 0]])
    logits, shifted = np.split(
        np.asarray(eqx.filter_jit(lambda net, x: jax.vmap(net)(x))(network, tokens), np.float64), 2
    )
    np.testing.assert_allclose(shifted[:, :-1], logits[:, :-1], atol=1e-6)
    assert np.abs(shifted[:, -1] - logits[:, -1]).max() > 1e-3
    chosen = np.take_along_axis(logits, np.asarray(dataset.targets)[..., None], axis=-1)[..., 0]
    loss = np.mean(np.log(np.exp(logits).sum(axis=-1)) - chosen)
    assert loss == pytest.approx(float(result.trace.loss[0, 0, -1]), rel=1e-5)


def test_the_journey_of_a_physicist(capsys):
    found = physicist.main(["--steps", "1000", "--moves", "500"])
    assert found["exchanging"] > found["alone"]
    assert found["certificate"].verdict != "failed"
    entropies = found["table"].entropy.values  # hottest first; the first one is zero
    assert np.all(np.diff(entropies) < 0)
    printed = capsys.readouterr().out
    assert "free_energy" in printed
    assert "swap acceptance" in printed


def test_the_journey_of_a_pytorch_engineer():
    found = pytorch_engineer.main(["--steps", "200"])
    assert found["certificate"].lines
    assert found["error"] == pytest.approx(found["scores"].loc["ensemble", "error"], abs=2e-3)
    assert len(found["members"]) == 8
    assert found["members"][0]["0.weight"].shape == (10, 20)


def test_the_journey_of_a_statistician():
    found = statistician.main(["--steps", "8000"])
    assert found["certificate"].verdict != "failed"
    assert np.abs(found["shift"]).mean() < 0.4
    assert found["ratio"].mean() == pytest.approx(1, abs=0.2)


def test_the_journey_of_a_long_job(tmp_path):
    arguments = ["--out", str(tmp_path / "long"), "--steps", "200"]
    assert long_job.main([*arguments, "--max-seconds", "1e-3"])["certificate"] is None
    done = long_job.main(arguments)
    assert done["result"].trace["step"][-1] == 200
    assert done["certificate"].lines
    assert (tmp_path / "long/report.html").stat().st_size > 10_000


@pytest.mark.usefixtures("_short")
def test_a_loop_of_ones_own(capsys):
    losses = own_loop.main(["--examples", "500", "--steps", "50", "--records", "6"])
    assert np.all(np.asarray(losses) < np.log(10))  # that of random guesses
    assert capsys.readouterr().out.count("mean loss") == 3


@pytest.mark.usefixtures("_short")
def test_records_in_tensorboard(tmp_path):
    with patch.object(tensorboard_logging.SummaryWriter, "add_scalars") as add_scalars:
        result = tensorboard_logging.main(["--out", str(tmp_path), "--steps", "40"])
    curves = [call.args[1:] for call in add_scalars.call_args_list if call.args[0] == "loss"]
    recorded = result.trace["loss"].isel(temperature=1, chain=0)
    expected = dict(zip(recorded["step"].values.tolist(), recorded.values, strict=True))
    assert {step: values["chain 1"] for values, step in curves} == pytest.approx(expected)
    assert list(tmp_path.glob("events*"))


def test_the_bias_law_holds(tmp_path):
    picture = tmp_path / "law.png"
    assert bias_law.main(["--out", str(picture), "--chains", "200", "--steps", "1000", "--ratios", "0.1"]) < 3
    assert picture.stat().st_size > 10_000


@pytest.mark.filterwarnings("ignore::pseudolangevin.apps.fit.EquilibriumWarning")  # runs are short
def test_training_by_sampling(capsys):
    small = ["--examples", "1000", "--temperature", "2e-4", "--steps", "400", "--adam-epochs", "10"]
    errors = train_by_sampling.main(small)
    assert all(0 <= error < 0.75 for error in errors.values())  # 0.9 at random; a thousand examples teach little
    assert capsys.readouterr().out.count("test error") == 4


def test_the_geometry_of_solutions(tmp_path):
    picture = tmp_path / "geometry.png"
    summary = geometry_of_solutions.main(["--examples", "1000", "--steps", "256", "--out", str(picture)])
    for temperature in ("0.0002", "0.002"):
        within, between = (summary[f"T = {temperature}, {name}"] for name in ("within a chain", "between chains"))
        assert within["overlap"] > between["overlap"]
    assert picture.exists()


def test_the_certificate_of_another_library(capsys):
    found = certify_blackjax.main(["--draws", "200"])
    assert found["NUTS"].verdict != "failed"
    assert found["SGHMC"].verdict == "failed"
    assert not found["SGLD"].passed
    assert "certificate failed" in capsys.readouterr().out
