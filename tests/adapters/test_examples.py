"""The examples run, at a fraction of their size, and what they write back predicts what was recorded."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from flax import nnx

import pseudolangevin as pl
from examples import character_transformer, fashion_convnet, torch_round_trip

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """The same programs with fewer mini-batches wherever noise is measured."""
    fewer: dict[str, Any] = {"variance_block": 5, "variance_max_batches": 10, "warmup_refreshes": 0}
    monkeypatch.setattr(pl, "pseudo_langevin", partial(pl.pseudo_langevin, **fewer))
    monkeypatch.setattr(pl, "certificate", partial(pl.certificate, noise_draws=0))


def test_convolutional_network_in_flax(monkeypatch, tmp_path, capsys):
    tiny = replace(fashion_convnet.SMALL, num_train=100, num_test=50, channels=(2, 2), batch_size=20)
    monkeypatch.setattr(fashion_convnet, "SMALL", tiny)
    result, network = fashion_convnet.main(["--steps", "10", "--data", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "bars stand in" in printed
    assert "certificate" in printed
    _, train, test = fashion_convnet.model_and_data(tiny, tmp_path)
    errors = np.argmax(nnx.jit(network)(test.inputs), axis=-1) != np.asarray(test.targets)
    assert errors.mean() == pytest.approx(float(result.trace.test_error[0, 0, -1]), abs=1e-6)
    assert train.inputs.shape == (100, 7, 7, 1)


def test_transformer_in_equinox(monkeypatch, capsys):
    tiny = replace(character_transformer.SMALL, context=4, stride=20, width=4, batch_size=10)
    monkeypatch.setattr(character_transformer, "SMALL", tiny)
    result, network = character_transformer.main(["--steps", "10", "--freeze-embeddings"])
    printed = capsys.readouterr().out
    assert "certificate" in printed
    assert "one sample writes: the " in printed
    assert result.weights.embedding.weight is None
    dataset, _ = character_transformer.sequences(character_transformer.TEXT, tiny)
    # The same sequences once more with another last character: it sees the past alone.
    tokens = np.concatenate([dataset.inputs, np.asarray(dataset.inputs) * [1, 1, 1, 0]])
    logits, shifted = np.split(
        np.asarray(eqx.filter_jit(lambda net, x: jax.vmap(net)(x))(network, tokens), np.float64), 2
    )
    np.testing.assert_allclose(shifted[:, :-1], logits[:, :-1], atol=1e-6)
    assert np.abs(shifted[:, -1] - logits[:, -1]).max() > 1e-3
    chosen = np.take_along_axis(logits, np.asarray(dataset.targets)[..., None], axis=-1)[..., 0]
    loss = np.mean(np.log(np.exp(logits).sum(axis=-1)) - chosen)
    assert loss == pytest.approx(float(result.trace.loss[0, 0, -1]), rel=1e-5)


def test_torch_round_trip(capsys):
    result, module = torch_round_trip.main(["--steps", "10"])
    printed = capsys.readouterr().out
    assert "certificate" in printed
    recorded = float(result.trace.test_error[0, 0, -1])
    assert f"{recorded:.4f} here, {recorded:.4f} in PyTorch" in printed
    state = module.state_dict()
    np.testing.assert_array_equal(state["0.weight"].numpy(), np.asarray(result.weights["0"]["weight"])[0, 0])
    assert not module.training


@pytest.mark.parametrize(
    "file", sorted((ROOT / "benchmarks" / "results").glob("architectures-*.json")), ids=lambda f: f.stem
)
def test_the_committed_comparison_holds(file):
    """pL and hMC agree within 2 % on both architectures."""
    report = json.loads(file.read_text(encoding="utf-8"))
    assert [row["network"] for row in report["rows"]] == ["convolutional", "transformer"]
    for row in report["rows"]:
        for quantity in ("loss", "squared_norm"):
            means = [row[method][quantity]["mean"] for method in ("pseudo_langevin", "hybrid_monte_carlo")]
            difference = row[f"{quantity}_difference"]
            assert difference["relative"] == pytest.approx(means[0] / means[1] - 1)
            assert abs(difference["relative"]) <= 0.02
            assert difference["standard_error"] < difference["tolerance"]
