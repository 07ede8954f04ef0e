"""Tuning: the judgement of biases, the search as a whole on a small network, and what is made of its result."""

import json
import math
import sys
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import cli, config
from pseudolangevin.chains import make_plan
from pseudolangevin.tuning import Bias, command
from pseudolangevin.tuning.bench import Bench, segment_of, stride_of
from pseudolangevin.tuning.hybrid import HybridSearch, _share_error
from pseudolangevin.tuning.langevin import Grid, LangevinSearch
from pseudolangevin.tuning.measure import Estimate, estimate, measure, watch
from pseudolangevin.tuning.reference import Anchor, against_exact, against_extrapolation
from tests.store.small_runs import SMALL_RUN

from . import synthetic


def test_a_bias_that_is_not_known_is_not_within_the_budget():
    assert Bias(0.01, 0.005).within(0.02)
    assert not Bias(0.03, 0.005).within(0.02)
    assert not Bias(0.001, 0.05).within(0.02)
    assert not Bias(0.001, math.inf).within(0.02)


def test_a_drift_is_part_of_the_uncertainty():
    noise = np.random.default_rng(0).normal(0, 0.01, (1, 400))
    still, moving = estimate(1 + noise), estimate(1 + noise + np.linspace(0, 0.5, 400))
    assert still.uncertainty < 0.005
    assert moving.uncertainty > 0.1
    assert math.isinf(estimate(np.ones((1, 2))).uncertainty)
    # Ten values, of which six are averaged, cannot tell a drift from chance: the way between their halves counts.
    few = np.array([[0.0, 0.0, 0.0, 0.0, 1.0, 1.2, 0.9, 2.1, 1.9, 2.0]])
    assert estimate(few).uncertainty >= 2.0 - 3.1 / 3


def test_biases_are_relative_to_the_reference():
    exact = {"loss": Estimate(2.0, 0.02, 50)}
    bias = against_exact({"loss": Estimate(2.1, 0.0, 50)}, exact)["loss"]
    assert bias.value == pytest.approx(0.05)
    assert bias.uncertainty == pytest.approx(0.02 / 2.1)


def test_extrapolation_finds_a_bias_that_is_linear_in_the_ratio():
    def at(ratio):
        return Anchor(ratio, {"loss": Estimate(3.0 * (1 + 0.2 * ratio), 0.003, 50)})

    biases = [against_extrapolation(at(ratio).estimates, at(0.01), at(0.1))["loss"] for ratio in (0.01, 0.1, 0.3)]
    assert [b.value for b in biases] == pytest.approx([0.002, 0.02, 0.06])
    # Of a third candidate, all three count; the anchor lies share = 1/9 of the way to its partner above the limit.
    assert biases[2].uncertainty == pytest.approx(0.001 * math.hypot(1, 10 / 9, 1 / 9), rel=1e-3)
    anchor, partner = at(0.01), at(0.1)
    own = [against_extrapolation(a.estimates, anchor, partner)["loss"] for a in (anchor, partner)]
    assert [b.value for b in own] == pytest.approx([0.002, 0.02])
    assert [b.uncertainty for b in own] == pytest.approx([math.sqrt(2) / 9e3, math.sqrt(2) / 9e2], rel=1e-3)
    assert math.isinf(against_extrapolation(at(0.01).estimates, at(0.01), None)["loss"].uncertainty)


def test_the_interval_between_measurements_follows_the_relaxation_time(small_task):
    base = pl.pseudo_langevin(small_task.potential, small_task.train)
    bench = Bench(base, small_task.weights, 1e-6, 10.0, 30.0, 1_000, 0, print)
    search = LangevinSearch(bench, Grid([50], [0.01], [0.99], [0.0]), 0.02)
    assert search._refresh_interval(1_000, 0.01, 0.99) == 5_000  # half of 25 000 steps, at most 5000
    assert search._refresh_interval(1_000, 0.3, 0.99) == 450  # half of 833, in segments of 50
    search.step_seconds[1_000], search.refresh_seconds[1_000] = 1e-3, 0.5
    assert search._refresh_interval(1_000, 0.3, 0.99) == 4_500  # 0.5 s in every 4.5 s
    assert (segment_of(math.sqrt(0.99)), stride_of(math.sqrt(0.99))) == (100, 100)
    assert (segment_of(0.5), stride_of(0.5)) == (50, 50)
    assert (segment_of(math.sqrt(0.999)), stride_of(math.sqrt(0.999))) == (200, 1_000)  # a long memory, in parts


def test_masses_as_light_as_those_of_a_chain_that_failed_are_not_tried_again(small_task, monkeypatch):
    bench = Bench(pl.pseudo_langevin(small_task.potential, small_task.train), {}, 1e-6, 1.0, 1.0, 1_000, 0, print)
    ratios, heavier = [0.01, 0.03, 0.1, 0.3], math.sqrt(0.999)
    search = LangevinSearch(bench, Grid([100, 1_000], ratios, [math.sqrt(0.99), heavier], [0.0]), 0.02)
    settings = {"batch_size": 1_000, "temperature_ratio": 0.01, "momentum_retention": math.sqrt(0.99)}
    best = synthetic.tried(1.0, settings, bias=0.0)
    assert search._start(settings | {"batch_size": 100}, best) == 0  # the bias depends on 𝒯: the same 𝒯
    search.failed.append(settings | {"temperature_ratio": 0.03})
    assert search._start(settings | {"batch_size": 100}, best) == 2  # a tenth of S and ten times 𝒯
    assert search._start(settings | {"momentum_retention": heavier}, best) == 2
    tried: list[dict] = []
    monkeypatch.setattr(search, "_try", tried.append)
    monkeypatch.setattr(search, "_judged", lambda: [best])
    search._climb(0, 1_000, momentum_retention=math.sqrt(0.99))
    assert [s["temperature_ratio"] for s in tried] == [0.01]  # 0.03 is known to fail
    tried.clear()
    search._climb(2, 1_000, momentum_retention=heavier)
    assert [s["temperature_ratio"] for s in tried] == [0.1]
    assert not search._sure_to_fail(settings | {"batch_size": 10_000})  # lighter, but with less noise


def test_what_failed_says_nothing_of_the_bias_and_what_is_biased_does(small_task, monkeypatch):
    bench = Bench(pl.pseudo_langevin(small_task.potential, small_task.train), {}, 1e-6, 1.0, 1.0, 1_000, 0, print)
    search = LangevinSearch(bench, Grid([100, 1_000], [0.003, 0.01, 0.03], [math.sqrt(0.99)], [0.0]), 0.02)
    settings = {"batch_size": 1_000, "temperature_ratio": 0.003, "momentum_retention": math.sqrt(0.99)}
    best = synthetic.tried(1.0, settings, bias=0.0)
    beyond = synthetic.tried(9.0, settings | {"temperature_ratio": 0.01}, bias=7.0)
    search.failed.append(dict(beyond.settings))
    monkeypatch.setattr(search, "_judged", lambda: [best, replace(beyond, note="turned non-finite", diffusion=None)])
    assert search._start(settings | {"batch_size": 100}, best) == 2  # 0.03: as light as the best
    monkeypatch.setattr(search, "_judged", lambda: [best, beyond])
    assert search._start(settings | {"batch_size": 100}, best) == 0  # 0.01 is too much with any S


def test_a_part_of_the_examples_is_observed_and_displacements_are_of_whole_strides(small_task):
    sampler = pl.full_batch_langevin(small_task.potential, small_task.train, time_step=0.01)
    run = measure(
        sampler, small_task.weights, temperature=1e-3, segment=50, seconds=0.0, observe_examples=100, chunk_size=1_000
    )
    weights = jax.tree.map(lambda w: w[0, 0], run.weights)
    part = small_task.potential.per_example_loss(weights, small_task.train.head(100).batch)
    assert run.observables["loss"][0, -1] == pytest.approx(float(part.mean()), rel=1e-5)
    assert run.diffusion is not None
    plan = make_plan(sampler, temperatures=[1e-3], num_chains=1, num_steps=10_000, record_every=10_000)
    records = ((r.step, r.states) for r in plan.run(plan.init(small_task.weights, 0), segment=50, progress=False))
    watched = watch(sampler, records, seconds=0.0, displacement_every=200, observe=False)
    assert watched.num_steps == 200  # time was up at once, and a displacement was waited for
    assert watched.diffusion is not None
    assert list(watched.diffusion.steps) == [200]


def test_the_best_moves_furthest_in_the_same_time_within_the_budget(small_task):
    bench = Bench(pl.pseudo_langevin(small_task.potential, small_task.train), {}, 1e-3, 1.0, 1.0, 1_000, 0, print)
    search = LangevinSearch(bench, Grid([50], [0.01], [0.99], [0.0]), 0.02)
    slow, fast, biased = (synthetic.tried(d, {}, bias=b) for d, b in ((1.0, 0.0), (2.0, 0.01), (9.0, 0.05)))
    assert search._best([slow, fast, biased]) is fast
    assert search._best([biased]) is biased
    # Where none keeps the budget: the least biased, as far as that is known.
    unknown = replace(biased, bias={"loss": Bias(0.0, math.inf)})
    assert search._best([unknown, biased]) is biased
    assert search._best([replace(unknown, bias={"loss": Bias(0.1, math.inf)}), unknown]) is unknown
    # A curve that saturates soon begins steeply and falls behind.
    times = np.asarray(0.01 * np.arange(1, 101), np.float64)
    saturating = replace(
        fast, diffusion=replace(synthetic.diffusion(1.0), seconds=times, displacement=np.full((1, 100), 0.05))
    )
    assert saturating.diffusion is not None
    assert float(saturating.diffusion.coefficient[0]) == pytest.approx(5.0)
    assert search._best([slow, saturating]) is slow
    # Where both have forgotten the start by the first records of the slower one, the one that got there first is best,
    # though by chance its last distances are a little shorter.
    times = np.asarray(0.1 * np.arange(1, 101), np.float64)
    soon, late = (
        replace(fast, diffusion=replace(synthetic.diffusion(1.0), seconds=times * step, displacement=d))
        for step, d in ((1, 0.98 - 0.98 * np.exp(-times[None])), (20, 1.01 - np.exp(-10 * times[None])))
    )
    assert search._best([late, soon]) is soon
    assert late.diffusion is not None
    earlier = replace(late, diffusion=replace(late.diffusion, seconds=times / 2))
    assert search._best([soon, earlier]) is earlier
    # Plateaus count from where they are reached first.
    flat = np.asarray([[0.2003, 0.2001, 0.2002, 0.2001]])
    soon, late = (
        replace(
            fast, diffusion=replace(synthetic.diffusion(1.0), seconds=np.arange(1.0, 5.0) * step, displacement=flat)
        )
        for step in (1.0, 2.0)
    )
    assert search._best([late, soon]) is soon


@pytest.fixture(scope="module")
def _steady_clock():
    """Three milliseconds pass with every look at the clock, so that a busy machine tries as much as a quiet one."""
    clock = SimpleNamespace(perf_counter=partial(next, (look / 300 for look in count())))
    with pytest.MonkeyPatch.context() as patch:
        for module in ("bench", "measure"):
            patch.setattr(sys.modules[f"pseudolangevin.tuning.{module}"], "time", clock)
        yield


@pytest.fixture(scope="module")
def tuned(small_task, _steady_clock):
    lines: list[str] = []
    sampler = pl.pseudo_langevin(small_task.potential, small_task.train, variance_block=20, variance_max_batches=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LangevinSearch, "_candidate_seconds", 0.4)
        result = pl.tune(
            sampler,
            small_task.weights,
            temperature=2e-3,
            seconds=2.0,
            max_seconds=1e6,
            bias_budget=0.5,
            batch_sizes=(20, 200),
            temperature_ratios=(0.01, 0.1),
            momentum_retentions=(0.95,),
            reset_probabilities=(0.0, 0.5),
            chunk_size=1_000,
            report=lines.append,
        )
    return result, lines


def test_tuning_recommends_the_fastest_of_what_it_tried(tuned):
    result, lines = tuned
    assert result.tried[0].settings["temperature_ratio"] == 0.01
    assert len(result.tried) >= 2
    within = [t for t in result.tried if t.within_budget]
    assert result.best in (within or result.tried)
    assert all(set(t.bias) == {"loss", "squared_norm", "error"} for t in result.tried)
    assert all(t.milliseconds_per_step > 0 and t.relative_diffusion > 0 for t in result.tried)
    assert result.settings["batch_size"] == result.best.settings["batch_size"]
    assert result.settings["max_temperature_ratio"] == result.best.settings["temperature_ratio"]
    assert result.settings["variance_block"] == 20  # what is not searched stays
    assert any(line.startswith("S = 200: ") for line in lines)
    assert any("biases are against" in note for note in result.notes)
    nothing_settled = all(t.note for t in result.tried)
    assert any("too short to judge" in note for note in result.notes) == nothing_settled


def test_a_tuning_prints_and_is_json_and_toml(tuned):
    result, _ = tuned
    assert "D*/N" in str(result)
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert len(content["tried"]) == len(result.tried)
    settings = config.parse("[sampler]" + result.to_toml().split("[sampler]")[1])
    assert settings.sampler.batch_size == result.settings["batch_size"]


def test_smaller_batches_are_tried_where_the_start_is_forgotten_at_once(small_task):
    bench = Bench(pl.pseudo_langevin(small_task.potential, small_task.train), {}, 1e-3, 1.0, 1.0, 1_000, 0, print)
    search = LangevinSearch(bench, Grid([50, 100, 400], [0.01], [0.99], [0.0]), 0.02)
    settings = {"temperature_ratio": 0.01, "momentum_retention": 0.99, "reset_probability": 0.0}

    def candidate(size, interval, rate):
        """d² approaches one."""
        times = np.asarray(interval * np.arange(1, 17), np.float64)
        curve = replace(synthetic.diffusion(1.0), seconds=times, displacement=1 - np.exp(-rate * times[None]))
        return replace(synthetic.tried(1.0, settings | {"batch_size": size}), diffusion=curve)

    def offered(*tried):
        search._judged = lambda: list(tried)  # type: ignore[method-assign]
        return [variant["batch_size"] for variant in search._variants([400, 100, 50]) if "batch_size" in variant]

    at_once = candidate(400, 0.1, 20.0)
    assert offered(candidate(400, 0.1, 0.1)) == [100]  # the second best by examples per second, as always
    assert offered(at_once) == [100, 100]  # no better, so 50 is not tried
    assert offered(at_once, candidate(100, 0.01, 40.0)) == [100, 50, 100]


def test_long_moves_have_more_of_the_time_and_are_left_out_where_they_do_not_fit(small_task):
    base = pl.hybrid_monte_carlo(small_task.potential, small_task.train, num_leapfrog_steps=1, time_step=0.3)
    asked = []

    class Slow:
        """Moves that take 0.1 s a step; of 100 s, warm-ups not counted."""

        weights, elapsed, max_seconds = None, 0.0, 300.0
        spent = 0.0

        def __init__(self):
            self.base, self.report = base, lambda text: None

        def left(self):
            return 100.0 - self.spent

        def hybrid(self, masses, num_steps, time_step, warmup):
            return SimpleNamespace(num_steps=num_steps, warmup=warmup)

        def measure_hybrid(self, sampler, seconds, *, observe):
            asked.append((sampler.num_steps, round(seconds), sampler.warmup))
            self.spent += seconds
            self.elapsed += seconds + 0.1 * sampler.num_steps * sampler.warmup
            states = SimpleNamespace(time_step=[0.1], step=[sampler.warmup + 5], num_accepted=[4])
            return synthetic.measured(base, 1.0, states=states, seconds=0.1 * sampler.num_steps, num_steps=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic.Measured, "weights", property(lambda self: None))
        search = HybridSearch(Slow(), [100, 1, 10, 400])  # type: ignore[arg-type]
        tried, _ = search.run()
    assert [t.settings["num_leapfrog_steps"] for t in tried] == [1, 10, 100]
    # In proportion to √L, of the lengths that are left; at least three moves, the least warm-up where they are long.
    assert asked == [(1, 3, 20), (10, 9, 5), (100, 30, 5)]
    assert "L = 400 was not tried: a move takes about 40 s" in search.notes


@pytest.mark.usefixtures("_steady_clock")
def test_hybrid_monte_carlo_is_tuned_by_its_diffusion(small_task):
    sampler = pl.hybrid_monte_carlo(
        small_task.potential,
        small_task.train,
        num_leapfrog_steps=1,
        time_step=0.3,
        target_acceptance=0.6,
        chunk_size=50,
    )
    result = pl.tune(
        sampler, small_task.weights, temperature=2e-3, seconds=0.5, num_leapfrog_steps=(2,), chunk_size=1_000
    )
    assert result.within_budget
    assert result.settings["num_leapfrog_steps"] == 2
    assert result.settings["time_step"] != 0.3
    assert result.best.relative_diffusion > 0
    assert result.sampler.settings["target_acceptance"] == 0.6
    assert result.sampler.settings["chunk_size"] == 50
    # Both moves of two accepted prove little.
    assert 0.1 < _share_error(2, 2) < 0.2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -1.0}, "T > 0"),
        ({"seconds": 0}, "seconds"),
        ({"bias_budget": 2}, "0.02 allows 2 %"),
        ({"batch_sizes": []}, "batch_sizes is empty"),
        ({"batch_sizes": [2_000]}, "batch_size = 2000"),
        ({"temperature_ratios": [0.9]}, "exceeds"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(small_task, changes, message):
    arguments = {"temperature": 1e-3} | changes
    with pytest.raises(ValueError, match=message):
        pl.tune(pl.pseudo_langevin(small_task.potential, small_task.train), small_task.weights, **arguments)


def test_samplers_without_these_settings_are_refused(small_task):
    sampler = pl.adam(small_task.potential, small_task.train)
    with pytest.raises(ValueError, match="only pseudo_langevin and hybrid_monte_carlo"):
        pl.tune(sampler, small_task.weights, temperature=1e-3)


def test_the_command_tunes_the_lowest_temperature(tmp_path, monkeypatch, capsys):
    asked: dict = {}

    def fake(sampler, weights, **arguments):
        asked.update(arguments, weights=weights)
        candidates = [synthetic.tried(1.0, {"batch_size": 10}), synthetic.tried(9.0, {"batch_size": 20}, bias=0.1)]
        return synthetic.tuned(sampler, candidates)

    monkeypatch.setattr(command, "tune", fake)
    file = tmp_path / "run.toml"
    file.write_text(SMALL_RUN)
    assert cli.run(["tune", str(file), "--seconds", "7", "--json", "--set", "sampler.batch_size=12"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["settings"]["batch_size"] == 12
    assert content["best"]["settings"] == {"batch_size": 10}
    assert asked["temperature"] == 1e-3
    assert asked["seconds"] == 7
    assert asked["weights"]["layer1"]["kernel"].shape == (6, 3)
    assert cli.run(["tune", str(file)]) == 0
    assert "[sampler]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--seconds", "-1"], ["--budget", "7"], ["--set", 'sampler.name="naive_pseudo_langevin"']]
)
def test_the_command_refuses_bad_input_in_one_line(arguments, tmp_path, capsys):
    file = tmp_path / "run.toml"
    text = SMALL_RUN if "--set" not in arguments else SMALL_RUN.split("[sampler]")[0]
    extra = ["--set", "sampler.time_step=0.1"] if "--set" in arguments else []
    file.write_text(text)
    assert cli.run(["tune", str(file), *arguments, *extra]) == 2
    assert capsys.readouterr().err.startswith("error: ")
