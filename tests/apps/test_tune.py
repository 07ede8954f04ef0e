"""Tuning: the search on a simulated machine, whose speed and biases are known, and one search on a small network."""

import json
import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin.apps import tune as tune_module
from pseudolangevin.diagnostics import Diffusion, MeasuredDiffusion

OBSERVABLES = {"error": 0.1, "loss": 0.3, "squared_norm": 300.0}


@dataclass
class Machine:
    """Chains whose time per step, displacement and bias are formulas, and a clock that only they move."""

    step_seconds: dict[int, float]
    compile_seconds: float = 0.5
    bias_per_ratio: float = 0.15
    heaviest: float = math.inf
    """Largest batch size times ratio at which chains stay finite."""
    scatter: float = 1e-3
    now: float = 0.0
    compiled: set = field(default_factory=set)
    tried: list = field(default_factory=list)

    def compile(self, *program) -> None:
        self.now += 0.0 if program in self.compiled else self.compile_seconds
        self.compiled.add(program)

    def run(self, sampler, **_):
        return SimpleNamespace(sampler=sampler, start=lambda weights, key: self.compile("start", sampler.batch_size))

    def measure_diffusion(self, run, states, *, every, seconds, observe=False, **_):
        size, ratio = run.sampler.batch_size, float(run.sampler.temperature_ratio)
        self.compile("steps", size, observe)
        self.tried += [(size, round(ratio, 6))] if observe else []
        step = self.step_seconds[size]
        self.now += 1.5 * seconds
        lags = 2.0 ** np.arange(8) * every
        displacement = (1e-9 * size * ratio * lags)[None]
        curve = Diffusion(lags, lags * step, displacement, 0.01 * displacement)
        noise = np.random.default_rng(0).normal(0, self.scatter, (1, 200))
        return MeasuredDiffusion(
            diffusion=None if size * ratio > self.heaviest else curve,
            num_steps=round(seconds / step),
            seconds=seconds,
            refresh_seconds=0.0,
            observables={name: v * (1 + self.bias_per_ratio * ratio + noise) for name, v in OBSERVABLES.items()},
            states=SimpleNamespace(weights=np.zeros((1, 3))),
        )


@pytest.fixture
def simulate(monkeypatch, small_task):
    def tune(machine: Machine, sampler=None, **options) -> pl.Tuned:
        monkeypatch.setattr(tune_module, "Run", machine.run)
        monkeypatch.setattr(tune_module, "measure_diffusion", machine.measure_diffusion)
        monkeypatch.setattr(tune_module, "time", SimpleNamespace(perf_counter=lambda: machine.now))
        for kind in (pl.balanced_langevin, pl.pseudo_langevin):
            monkeypatch.setattr(kind, "position", lambda self, state: state)
        monkeypatch.setattr(tune_module.jax.tree, "map", lambda function, tree: tree)
        base = pl.balanced_langevin(small_task.potential, small_task.train) if sampler is None else sampler
        return pl.tune(base, small_task.weights, temperature=1e-3, batch_sizes=list(machine.step_seconds), **options)

    return tune


def test_the_fastest_settings_within_the_budget_are_found(simulate):
    machine = Machine({10: 1e-3, 30: 1.2e-3, 100: 2e-3, 300: 7e-3})
    tuned = simulate(machine)
    assert tuned.within_budget
    assert tuned.settings["batch_size"] == 100  # the most examples per second
    assert tuned.settings["friction_batch_size"] == 100  # all of them, as before
    assert tuned.settings["temperature_ratio"] == 0.1  # 1.35 % above the smallest ratio, and 0.3 would be 4.4 %
    assert {size for size, _ in machine.tried} == {100}  # batch sizes are only timed
    biases = [tuned.best[f"bias_{name}"].mean for name in OBSERVABLES]
    assert biases == pytest.approx([0.15 * 0.09 / 1.0015] * 3, rel=0.02)
    assert "100: 2" in tuned.notes[0]
    small = pl.balanced_langevin(tuned.sampler.potential, tuned.sampler.dataset, batch_size=10)  # friction on 100
    assert simulate(machine, small).settings["friction_batch_size"] == 1_000  # in proportion, but not above P
    pseudo = pl.pseudo_langevin(tuned.sampler.potential, tuned.sampler.dataset, batch_size=10)  # another sampler
    biased = simulate(Machine({10: 1e-3, 30: 1.2e-3}, bias_per_ratio=0.6), pseudo)
    assert (biased.settings["temperature_ratio"], biased.within_budget) == (0.03, True)


def test_a_smaller_batch_with_a_larger_ratio_is_found_where_light_masses_make_chains_non_finite(simulate):
    machine = Machine({10: 1e-3, 100: 3e-3, 1_000: 28e-3}, heaviest=11.0, bias_per_ratio=0.05)
    tuned = simulate(machine, temperature_ratios=(0.003, 0.01, 0.03, 0.1, 0.3))
    assert any(row["note"] == "turned non-finite" for row in tuned.tried)
    assert (tuned.settings["batch_size"], tuned.settings["temperature_ratio"]) == (100, 0.1)
    with pytest.raises(ValueError, match=r"non-finite at the smallest temperature ratio, 0.01; lower"):
        simulate(Machine({100: 1e-3}, heaviest=0.5))


@pytest.mark.parametrize(("seconds", "compile_seconds"), [(30, 5.0), (120, 0.5)])
def test_the_time_includes_compilation(simulate, seconds, compile_seconds):
    machine = Machine({10: 1e-3, 30: 1.2e-3, 100: 2e-3}, compile_seconds=compile_seconds)
    tuned = simulate(machine, seconds=seconds)
    assert tuned.seconds == pytest.approx(machine.now)
    assert tuned.seconds <= 1.1 * seconds + 2 * compile_seconds
    assert tuned.within_budget


def test_without_a_candidate_within_the_budget_the_least_biased_is_recommended(simulate):
    tuned = simulate(Machine({10: 1e-3}, scatter=3.0))
    assert not tuned.within_budget
    assert "too short to judge" in tuned.notes[-1]
    assert "NOT within 2.0%" in str(tuned)
    drifting = tune_module._estimates(
        SimpleNamespace(  # type: ignore[arg-type]
            observables={"loss": np.linspace(0, 0.5, 400)[None] + np.random.default_rng(0).normal(1, 0.01, (1, 400))}
        )
    )
    assert drifting["loss"].standard_error > 0.1  # a drift is part of the uncertainty


def test_a_search_prints_and_is_json_and_toml(simulate):
    lines: list[str] = []
    tuned = simulate(Machine({10: 1e-3, 30: 1.2e-3}), report=lines.append)
    assert len(lines) == len(tuned.tried)
    assert lines[0].startswith("batch_size 30, temperature_ratio 0.01, seconds_per_step 0.0012, coefficient")
    assert "temperature ratio 0.1, within 2.0% of sampling at a temperature ratio of 0.01" in str(tuned)
    content = json.loads(json.dumps(tuned.to_dict(), allow_nan=False))
    assert content["best"] == content["tried"][2]
    assert content["best"]["coefficient"]["mean"] == tuned.best["coefficient"].mean > 0
    assert content["settings"]["batch_size"] == 30
    assert 'name = "balanced_langevin"\n' in tuned.to_toml()


def test_a_small_model_is_tuned(linear_task):
    sampler = pl.balanced_langevin(linear_task.potential, linear_task.train, refresh_every=400)
    options = {"batch_sizes": (20, 200), "temperature_ratios": (0.01, 0.1), "bias_budget": 0.9}
    tuned = pl.tune(sampler, linear_task.weights, temperature=2e-3, seconds=1.0, **options)
    assert tuned.settings["batch_size"] in (20, 200)
    assert tuned.settings["refresh_every"] == 400  # settings that are not searched stay
    assert {f"bias_{name}" for name in OBSERVABLES} <= set(tuned.best)
    assert tuned.best["coefficient"].mean > 0
    assert tuned.weights.shape == linear_task.weights.shape


def test_bad_arguments_are_rejected_before_anything_runs(small_task):
    sampler = pl.balanced_langevin(small_task.potential, small_task.train)
    for changes, message in (
        ({"temperature": -1.0}, "temperature = -1.0 is not positive"),
        ({"bias_budget": 2}, "0.02 allows 2 %"),
        ({"batch_sizes": []}, "is empty"),
        ({"batch_sizes": [2_000]}, "batch_size = 2000"),
        ({"temperature_ratios": [-1]}, "temperature_ratio = -1"),
    ):
        with pytest.raises(ValueError, match=message):
            pl.tune(sampler, small_task.weights, **({"temperature": 1e-3} | changes))
    with pytest.raises(ValueError, match="adam has no temperature_ratio to tune"):
        pl.tune(pl.adam(small_task.potential, small_task.train), small_task.weights, temperature=1e-3)
