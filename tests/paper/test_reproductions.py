"""The reproductions at a tiny size: every row, file and picture is made; whether they pass is for the real sizes."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from pseudolangevin import paper
from pseudolangevin.diagnostics.averages import Average
from pseudolangevin.paper import noise, prediction_vs_size, spins, thermodynamics
from pseudolangevin.paper.results import relative_difference, row


def test_a_row_passes_within_its_tolerance_and_never_when_it_is_not_a_number():
    assert row("x", 1.02, published=1.0, tolerance=0.03, relative=True).passed
    assert not row("x", 1.04, published=1.0, tolerance=0.03, relative=True).passed
    assert row("x", 210.0, published=200.0, tolerance=0.05, relative=True).tolerance == pytest.approx(10.0)
    assert row("x", 0.01, tolerance=0.02).passed
    assert not row("x", -0.03, tolerance=0.02).passed
    assert not row("x", float("nan")).passed


def test_a_relative_difference_carries_both_errors():
    difference, error = relative_difference(Average(1.1, 0.011, 10), Average(1.0, 0.03, 10))
    assert difference == pytest.approx(0.1)
    assert error == pytest.approx(np.hypot(0.01, 0.03))


def test_published_numbers_are_those_of_the_paper():
    assert thermodynamics.published_value("hybrid_monte_carlo", 3e-5, "loss") == 0.324192
    assert thermodynamics.published_value("pseudo_langevin", 1e-6, "squared_norm") == 247.560
    assert thermodynamics.published_value("pseudo_langevin", 2e-6, "loss") is None


@pytest.mark.parametrize(("num_weights", "hidden"), spins.HIDDEN_UNITS.items())
def test_the_sizes_are_the_published_ones(num_weights, hidden):
    task = spins.spin_task(hidden, num_train=100)
    assert task.num_weights == num_weights


def test_starts_have_no_dead_class_and_are_cached(tmp_path):
    task = spins.spin_task(20, num_train=1_000)
    cache = tmp_path / "starts.npz"
    starts = spins.trained_starts(task, 1, epochs=1, cache=cache)
    again = spins.trained_starts(task, 1, epochs=1, cache=cache)
    jax.tree.map(np.testing.assert_array_equal, starts, again)
    logits = task.network.apply(jax.tree.map(lambda w: w[0, 0], starts), task.train.inputs)
    assert (np.ptp(np.asarray(logits), axis=0) > 0).all()
    with pytest.raises(ValueError, match="another network"):
        spins.trained_starts(task, 2, epochs=1, cache=cache)


TINY = {
    "noise": (
        noise,
        "SETTINGS",
        lambda s: replace(s, hidden_units=3, epochs=1, batch_size=100, num_steps=40, measure_every=20, num_draws=20),
    ),
    "thermodynamics": (
        thermodynamics,
        "SETTINGS",
        lambda s: replace(
            s,
            hidden_units=3,
            epochs=1,
            num_starts=1,
            langevin_steps=80,
            langevin_record_every=10,
            leapfrog_steps=3,
            warmup_moves=2,
            hybrid_moves=10,
        ),
    ),
    "prediction-vs-size": (
        prediction_vs_size,
        "SIZES",
        lambda sizes: tuple(
            replace(s, hidden_units=3, epochs=1, num_chains=1, langevin_steps=80, record_every=10, leapfrog_steps=3,
                    warmup_moves=2, hybrid_seconds=1, langevin_seconds=5)
            for s in sizes[:1]
        ),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::pseudolangevin.DeadClassWarning")  # the starts are random
@pytest.mark.parametrize("name", TINY)
def test_every_reproduction_writes_its_rows_and_picture(name, tmp_path, monkeypatch, capsys):
    module, attribute, shrink = TINY[name]

    def untrained(task, num_starts, **_):
        inits = [task.network.init(jax.random.key(i)) for i in range(num_starts)]
        return jax.tree.map(lambda *leaves: np.stack(leaves)[None], *inits)

    monkeypatch.setattr(module, "trained_starts", untrained)
    monkeypatch.setitem(getattr(module, attribute), "smoke", shrink(getattr(module, attribute)["smoke"]))
    assert paper.reproduce(name, "smoke", tmp_path) in (0, 1)
    content = json.loads((tmp_path / f"{name}.json").read_text())
    assert content["name"] == name
    assert content["scale"] == "smoke"
    assert {"device", "versions", "seed", "settings", "seconds"} <= set(content["provenance"])
    for line in content["rows"]:
        assert set(line) == {"quantity", "published", "measured", "standard_error", "tolerance", "passed"}
        assert isinstance(line["passed"], bool)
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert content["rows"][0]["quantity"][:10] in capsys.readouterr().out


def test_unknown_names_and_scales_are_refused(tmp_path):
    with pytest.raises(ValueError, match="choose one of noise, thermodynamics"):
        paper.reproduce("nose", "smoke", tmp_path)
    with pytest.raises(ValueError, match="choose one of smoke, paper"):
        paper.reproduce("noise", "large", tmp_path)
