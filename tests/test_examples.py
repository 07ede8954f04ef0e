"""The examples run at a fraction of their size, and the weights that they write back predict the recorded errors."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import pseudolangevin as pl
from examples import (
    annealing_and_exchange,
    bias_law,
    certify_blackjax,
    character_transformer,
    ensemble_uncertainty,
    fashion_cnn,
    find_temperature,
    geometry_of_solutions,
    own_loop,
    tensorboard_logging,
    torch_round_trip,
    train_by_sampling,
)

ROOT = Path(__file__).parent.parent


@pytest.fixture
def _short(monkeypatch):
    """The same programs with fewer mini-batches to measure the noise."""
    fewer: dict[str, Any] = {"variance_block": 5, "variance_max_batches": 10, "warmup_refreshes": 0}
    monkeypatch.setattr(pl, "pseudo_langevin", partial(pl.pseudo_langevin, **fewer))


def test_a_convolutional_network_and_other_ensembles(monkeypatch, tmp_path, capsys):
    tiny = replace(fashion_cnn.SMALL, num_train=100, num_test=50, pooling=4, channels=(2, 2), batch_size=20, members=4)
    monkeypatch.setattr(fashion_cnn, "SMALL", tiny)
    out = tmp_path / "table.json"
    report = fashion_cnn.main(["--seeds", "2", "--epochs", "2", "--data", str(tmp_path), "--out", str(out)])
    printed = capsys.readouterr().out
    assert "bars instead of FashionMNIST" in printed
    assert "certificate" in printed
    assert json.loads(out.read_text(encoding="utf-8"))["table"][0]["method"] == "adam"
    assert [line["method"] for line in report["table"]] == list(fashion_cnn.METHODS)
    for line in report["table"]:
        values = [row[line["method"]]["error"] for row in report["seeds"]]
        assert line["error"]["mean"] == pytest.approx(np.mean(values))
        assert all(0 <= value <= 1 for value in values)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "benchmarks" / "results").glob("fashion-cnn-*.json")), ids=lambda file: file.stem
)
def test_the_committed_table_is_that_of_its_seeds(file):
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["table"] == fashion_cnn.summary(report["seeds"])
    assert len(report["seeds"]) >= 3


@pytest.mark.usefixtures("_short")
def test_a_transformer_in_equinox(monkeypatch, capsys):
    tiny = replace(character_transformer.SMALL, context=4, stride=20, width=4, batch_size=10)
    monkeypatch.setattr(character_transformer, "SMALL", tiny)
    result, network = character_transformer.main(["--steps", "10", "--freeze-embeddings"])
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


@pytest.mark.usefixtures("_short")
def test_a_module_of_pytorch_and_back(capsys):
    result, module = torch_round_trip.main(["--steps", "10"])
    printed = capsys.readouterr().out
    assert "certificate" in printed
    recorded = float(result.trace.test_error[0, 0, -1])
    assert f"{recorded:.4f} in JAX, {recorded:.4f} in PyTorch" in printed
    state = module.state_dict()
    np.testing.assert_array_equal(state["0.weight"].numpy(), np.asarray(result.weights["0"]["weight"])[0, 0])
    assert not module.training


@pytest.mark.usefixtures("_short")
def test_a_loop_of_ones_own(capsys):
    losses = own_loop.main(["--examples", "500", "--steps", "50", "--records", "6"])
    assert np.all(np.asarray(losses) < np.log(10))  # that of random guesses
    assert capsys.readouterr().out.count("mean loss") == 3


@pytest.mark.usefixtures("_short")
def test_records_in_tensorboard(tmp_path):
    result = tensorboard_logging.main(["--out", str(tmp_path / "events"), "--steps", "40"])
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    (file,) = (tmp_path / "events" / "loss" / "chain 1").glob("events*")
    data, at, losses = file.read_bytes(), 0, {}
    while at < len(data):  # rows of (length, check, event, check)
        length = int.from_bytes(data[at : at + 8], "little")
        event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
        at += 16 + length
        for value in event.summary.value:
            losses[event.step] = value.simple_value
    recorded = result.trace["loss"].isel(temperature=1, chain=0)
    assert losses == pytest.approx(dict(zip(recorded["step"].values.tolist(), recorded.values, strict=True)))


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


def test_the_search_for_a_temperature(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pl, "find_temperature", partial(pl.find_temperature, num_temperatures=3))
    picture = tmp_path / "temperature.png"
    find_temperature.main(["--examples", "1000", "--epochs", "150", "--steps", "64", "--out", str(picture)])
    assert picture.stat().st_size > 10_000
    assert capsys.readouterr().out.count("test error") == 4


@pytest.mark.filterwarnings("ignore::pseudolangevin.apps.fit.EquilibriumWarning")  # runs are short
def test_the_uncertainty_of_an_ensemble(tmp_path, capsys):
    picture = tmp_path / "uncertainty.png"
    size = ["--examples", "600", "--hidden", "10", "--temperature", "1e-3", "--steps", "400"]
    errors = ensemble_uncertainty.main([*size, "--folder", str(tmp_path), "--out", str(picture)])
    assert "spin vectors instead" in capsys.readouterr().out
    assert errors["certain half"] < errors["uncertain half"]
    assert picture.exists()


def test_annealing_and_exchange(capsys):
    found = annealing_and_exchange.main(["--steps", "500", "--steps-per-level", "200"])
    assert found["replica exchange"] > found["single chains"]
    assert found["entropy"] < 0
    assert "free_energy" in capsys.readouterr().out


def test_the_geometry_of_solutions(tmp_path):
    picture = tmp_path / "geometry.png"
    summary = geometry_of_solutions.main(["--examples", "1000", "--steps", "256", "--out", str(picture)])
    for temperature in ("0.0002", "0.002"):
        within, between = (summary[f"T = {temperature}, {name}"] for name in ("within a chain", "between chains"))
        assert within["overlap"] > between["overlap"]
    assert picture.exists()


@pytest.mark.parametrize(
    "file", sorted((ROOT / "benchmarks" / "results").glob("architectures-*.json")), ids=lambda file: file.stem
)
def test_pseudo_langevin_and_hybrid_monte_carlo_agree_on_both_architectures(file):
    report = json.loads(file.read_text(encoding="utf-8"))
    assert [row["network"] for row in report["rows"]] == ["convolutional", "transformer"]
    for row in report["rows"]:
        for quantity in ("loss", "squared_norm"):
            means = [row[method][quantity]["mean"] for method in ("pseudo_langevin", "hybrid_monte_carlo")]
            difference = row[f"{quantity}_difference"]
            assert difference["relative"] == pytest.approx(means[0] / means[1] - 1)
            assert abs(difference["relative"]) <= 0.02
            assert difference["standard_error"] < difference["tolerance"]


def test_the_certificate_of_another_library(capsys):
    found = certify_blackjax.main(["--draws", "300"])
    assert found["NUTS"].verdict != "failed"
    assert found["SGHMC"].verdict == "failed"
    assert not found["SGLD"].passed
    assert "certificate failed" in capsys.readouterr().out
