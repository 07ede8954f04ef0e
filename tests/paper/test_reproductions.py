"""The reproductions at a tiny size: every row, file and picture is made; whether they pass is for the real sizes."""

import json
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from pseudolangevin.tasks import Splits

from pseudolangevin import paper, trees
from pseudolangevin.data import Dataset
from pseudolangevin.diagnostics.averages import Average
from pseudolangevin.paper import (
    fashion,
    generalization,
    generalization_view,
    noise,
    prediction_vs_size,
    spins,
    thermodynamics,
)
from pseudolangevin.paper.generalization_view import ADAM, Outcome, Phase
from pseudolangevin.paper.results import relative_difference, row
from pseudolangevin.paper.starts import lively_starts, thermal_start
from pseudolangevin.paper.timed import Budget
from pseudolangevin.samplers.langevin import pseudo_langevin


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


# One network, one data set's size, four chains in a program: what one has compiled the next can use.
TINY = {
    "noise": (
        noise,
        "SETTINGS",
        lambda s: replace(s, hidden_units=3, epochs=1, batch_size=100, num_steps=40, measure_every=20, num_draws=20,
                          temperature_ratio=0.01),
    ),
    "thermodynamics": (
        thermodynamics,
        "SETTINGS",
        lambda s: replace(s, hidden_units=3, epochs=1, batch_size=100, langevin_steps=80, langevin_record_every=10,
                          leapfrog_steps=3, warmup_moves=2, hybrid_moves=10),
    ),
    "prediction-vs-size": (
        prediction_vs_size,
        "SIZES",
        lambda sizes: tuple(
            replace(s, hidden_units=3, epochs=1, num_chains=4, langevin_steps=80, record_every=10, leapfrog_steps=3,
                    warmup_moves=2, hybrid_seconds=0.3, langevin_seconds=5)
            for s in sizes[:1]
        ),
    ),
    "generalization": (
        generalization,
        "SETTINGS",
        lambda s: replace(s, hidden_units=3, batch_size=100,
                          paces={"published": generalization.Pace(80, 3, record_every=10)},
                          adam_record_every=20, observe_examples=400, test_examples=100,
                          phases=tuple(replace(p, max_steps=40) for p in (s.phases[1], *s.phases[-2:]))),
    ),
    "fashion": (
        fashion,
        "SETTINGS",
        lambda s: replace(s, hidden_units=3, weight_decay=spins.WEIGHT_DECAY, num_train=600, batch_size=100,
                          record_every=10, refresh_every=80, warmup_refreshes=3, adam_record_every=20,
                          selection_steps=10, groups=tuple(replace(g, max_steps=40) for g in s.groups)),
    ),
}  # fmt: skip


SHORT: dict[str, Any] = {
    "batch_size": 100,
    "refresh_every": 80,  # after 10, 30 and 70 steps first: segments of one length compile once
}


small_task = cache(partial(spins.spin_task, num_train=600))


def small_images(*_, **__) -> Splits:
    """Stands for FashionMNIST."""
    rng = np.random.default_rng(0)
    parts = [Dataset(rng.choice([-1, 1], (n, 100)).astype(np.int8), np.arange(n) % 10) for n in (600, 50, 50)]
    return Splits(*parts)


@pytest.mark.filterwarnings("ignore::pseudolangevin.DeadClassWarning")  # the starts are random
@pytest.mark.parametrize("name", TINY)
def test_every_reproduction_writes_its_rows_and_picture(name, tmp_path, monkeypatch, capsys):
    module, attribute, shrink = TINY[name]

    def untrained(task, num_starts, **_):
        inits = [task.network.init(jax.random.key(i)) for i in range(num_starts)]
        return jax.tree.map(lambda *leaves: np.stack(leaves)[None], *inits)

    for maker in ("trained_starts", "living_starts"):
        monkeypatch.setattr(module, maker, untrained, raising=False)
    monkeypatch.setattr(module, "spin_task", small_task, raising=False)
    monkeypatch.setattr(module, "pseudo_langevin", partial(pseudo_langevin, **SHORT))
    if name == "fashion":
        monkeypatch.setattr(module.tasks, "fashion_mnist", small_images)
        pictures = np.zeros((4, 28, 28), np.uint8)
        monkeypatch.setattr(module, "read_fashion_mnist", lambda _: SimpleNamespace(train_images=pictures))
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
        paper.reproduce(["noise", "nose"], "smoke", tmp_path)
    assert not list(tmp_path.iterdir())  # refused before anything ran
    with pytest.raises(ValueError, match="choose one of smoke, paper"):
        paper.reproduce("noise", "large", tmp_path)


def test_a_budget_hands_saved_time_to_later_phases(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("pseudolangevin.paper.timed.time.perf_counter", lambda: clock.now)
    budget = Budget(100, {"a": 1, "b": 2, "c": 1})
    assert budget.take("a") == pytest.approx(25)
    clock.now = 10.0  # it needed less
    assert budget.take("b") == pytest.approx(60)
    clock.now = 120.0  # and that one far too much
    assert budget.take("c") == 0


def test_a_thermal_start_has_the_norm_of_the_prior_and_undecided_scores():
    task = small_task(20)
    weights = thermal_start(task.network, task.train, task.potential, 1e-3)
    num, last = task.num_weights, trees.num_weights(weights["layer3"])
    rest = trees.squared_norm({name: layer for name, layer in weights.items() if name != "layer3"})
    assert rest == pytest.approx(num * 1e-3 / spins.WEIGHT_DECAY * (num - last), rel=0.1)
    scores = np.asarray(task.network.apply(weights, task.train.inputs))
    assert scores.std() < 2
    assert ((scores > 0).mean(axis=0) >= 0.01).all()


def test_lively_starts_have_a_signal_in_every_class():
    task = spins.spin_task(20, num_train=300)
    starts = lively_starts(task.network, task.train, 3)
    for index in range(3):
        logits = task.network.apply(jax.tree.map(lambda w, i=index: w[0, i], starts), task.train.inputs)
        assert (np.mean(np.asarray(logits) > 0, axis=0) >= 0.01).all()
    plain = [task.network.apply(task.network.init(jax.random.key(s)), task.train.inputs) for s in range(10)]
    assert any((np.asarray(logits) <= 0).all(axis=0).any() for logits in plain)  # there was something to choose


def outcome(name: str, temperature: float | None, start: str, curve, **averages: float) -> Outcome:
    values = {key: Average(value, 0.0, 10) for key, value in averages.items()}
    steps = 500 * np.arange(1, len(curve) + 1)
    return Outcome(Phase(name, temperature, start, int(steps[-1]), 1.0), steps, np.array(curve), values,
                   (Average(1.0, 0.0, 1),) * 3, best_test_error=min(curve))  # fmt: skip


def test_the_rows_of_generalization_tell_a_good_run_from_a_bad_one():
    flat, rising = [0.116, 0.113, 0.113, 0.113, 0.113, 0.113], [0.1124, 0.1122, 0.113, 0.115, 0.12, 0.13]
    quantities = ("loss", "squared_norm", "test_error", "gradient_variance")
    published = {t: [thermodynamics.published_value("pseudo_langevin", t, generalization_view.COLUMNS.get(q, q),
                                                    "generalization") for q in quantities]
                 for t in (1e-7, 2e-7, 3e-7, 1e-6, 1e-4)}  # fmt: skip
    at: dict[float, Any] = {t: dict(zip(quantities, values, strict=True)) for t, values in published.items()}
    good = [
        outcome("3e-7 from random weights", 3e-7, "random weights", flat, **at[3e-7]),
        outcome("1e-6", 1e-6, "3e-7 from random weights", flat, **at[1e-6]),
        outcome("1e-4", 1e-4, "1e-6", flat, **at[1e-4]),
        outcome("2e-7", 2e-7, "3e-7 from random weights", flat, **at[2e-7]),
        outcome("1e-7 from random weights", 1e-7, "random weights", rising, **at[1e-7]),
        outcome(ADAM, None, "random weights", [0.115, 0.1118, 0.12, 0.1525]),
        outcome("1e-7 from Adam", 1e-7, ADAM, rising, **at[1e-7]),
    ]
    rows = {r.quantity: r for r in generalization_view.rows_of(good, "paper")}
    assert [q for q, r in rows.items() if not r.passed] == []
    correlation = rows["rank correlation of test error and mean 𝒱 over the temperatures"]
    assert correlation.measured == pytest.approx(0.7)
    assert correlation.published == pytest.approx(0.7)

    hot = at[2e-7] | {"test_error": 0.1160, "loss": 0.1}
    bad = [*good[:3], outcome("2e-7", 2e-7, "3e-7 from random weights", flat, **hot), *good[4:]]
    bad[0] = outcome(
        "3e-7 from random weights", 3e-7, "random weights", [0.13, 0.12, 0.118, 0.117, 0.12, 0.13], **at[3e-7]
    )
    bad[5] = outcome(ADAM, None, "random weights", [0.12, 0.1118, 0.1118, 0.1118])
    failed = {r.quantity for r in generalization_view.rows_of(bad, "paper") if not r.passed}
    assert failed == {
        "loss at T = 2e-7",
        "test_error at T = 2e-7",
        "jump of the loss from T = 1e-07 to 2e-07",
        "least test error within 2000 steps, T = 3e-7 from random weights",
        "rise of the test error after its least, T = 3e-7 from random weights",
        "rise of the test error after its least, Adam",
    }


def test_a_published_step_that_was_not_reached_does_not_pass():
    short = outcome("1e-7 from random weights", 1e-7, "random weights", [0.1216] * 4)
    short = replace(short, phase=replace(short.phase, max_steps=50_000))
    (line,) = generalization_view._published_points(short, [[50_000, 0.1216]], 0.004)
    assert line.quantity.startswith("test error after 2000 of 50000 steps")
    assert not line.passed


def test_starts_with_a_dead_class_are_left_out_of_the_averages_and_counted():
    errors = np.array([[0.2] * 8, [0.4] * 8, [0.2] * 8])
    curve = fashion.Curves(5e-8, np.arange(8), errors, errors, 1.0, np.array([]), np.array([True, False, True]))
    rows = {r.quantity: r for r in fashion.rows_of([curve], "paper")}
    assert rows["test_error at T = 5e-08"].measured == pytest.approx(0.2)
    assert not rows["test_error at T = 5e-08"].passed  # 0.1926 was published
    assert rows["starts with a dead class, T = 5e-08"].measured == 1
