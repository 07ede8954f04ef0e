"""The certificate passes correct runs, fails wrong ones by name, and leaves short ones undecided."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin.diagnostics.verdicts import Line, Verdict

from ..compilation import optimized
from . import gaussian_toy as toy

NUM_SEEDS = 8
ENOUGH = toy.NUM_STEPS // 2  # steps within which a wrong run shows


def judged(result: pl.Result, **settings) -> pl.Certificate:
    return pl.certificate(result, **({"noise_draws": 250} | settings))


def failed_names(certificate: pl.Certificate) -> set[str]:
    assert certificate.verdict == "failed"
    return {line.name for line in certificate.failed_lines}


def lines_of_first_chain(result: pl.Result) -> dict[str, Line]:
    lines = pl.certificate(result, noise_draws=0).lines
    return {line.name: line for line in lines if line.chain == 0 and line.temperature == toy.TEMPERATURE}


@pytest.fixture(scope="module")
def correct_runs() -> pl.Result:
    """Two temperatures, and two chains for each of eight seeds; chains do not depend on which others run."""
    temperatures = (toy.TEMPERATURE, toy.TEMPERATURE * toy.SPACING)
    with optimized():
        return toy.run(toy.sampler(), num_chains=2 * NUM_SEEDS, temperatures=temperatures)


@pytest.fixture(scope="module")
def correct_run(correct_runs) -> pl.Result:
    return toy.chains_of(correct_runs, [0, 1])


@pytest.fixture(scope="module")
def short_run() -> pl.Result:
    """A gradient variance measured every 24 steps."""
    sampler = toy.sampler(refresh_every=24, warmup_refreshes=0, max_refresh_interval=24, variance_max_batches=100)
    return toy.run(sampler, num_steps=360)


def test_correct_runs_pass(correct_runs):
    certificates = [judged(toy.chains_of(correct_runs, [2 * seed, 2 * seed + 1])) for seed in range(NUM_SEEDS)]
    assert [c.verdict for c in certificates].count(Verdict.PASSED) >= NUM_SEEDS - 1
    assert all(c.verdict is not Verdict.FAILED for c in certificates)


def test_every_kind_of_line_appears_where_the_run_has_what_it_needs(correct_run):
    lines = judged(correct_run).lines
    names = [line.name for line in lines if line.temperature == toy.TEMPERATURE and line.chain in (0, None)]
    assert names == [
        "status",
        "kinetic temperature",
        *(f"virial temperature{layer}" for layer in ("", ", large", ", small")),
        "temperature ratio, 95 %",
        "temperature ratio, largest",
        *(f"stale excess temperature{layer}" for layer in ("", ", worst layer")),
        *(f"stationarity of {symbol}" for symbol in ("U", "|w|²")),
        *(f"noise, misplaced energy{layer}" for layer in ("", ", worst layer")),
        *(f"noise, {test}" for test in ("KS fraction of shape", "excess temperature", "collective share")),
        *(f"{test} of {symbol}" for symbol in ("U", "|w|²") for test in ("effective samples", "R-hat")),
        "ensemble, T = 0.25 and 0.295644",
    ]
    where = {(line.temperature, line.chain) for line in lines}
    assert where == {(t, c) for t in correct_run.trace["temperature"].values for c in (0, 1, None)}


def test_a_temperature_wrong_by_five_per_cent_fails(correct_run):
    for factor in (1.05, 0.95):
        wrong = correct_run.trace["temperature"].values / factor
        relabelled = replace(correct_run, trace=correct_run.trace.assign_coords(temperature=wrong))
        assert {"kinetic temperature", "virial temperature"} & failed_names(judged(relabelled, noise_draws=0))


class HalvedVariance(pl.pseudo_langevin):
    def measure_variance(self, key, weights):
        return jax.tree.map(lambda v: v / 2, super().measure_variance(key, weights))


class NoiseNotSubtracted(pl.pseudo_langevin):
    def step(self, state, batch):
        none = jax.tree.map(jnp.zeros_like, state.gradient_variance)
        moved = super().step(state._replace(gradient_variance=none), batch)
        return moved._replace(gradient_variance=state.gradient_variance)


class LightMasses(pl.pseudo_langevin):
    def nominal_masses(self, *arguments):
        return jax.tree.map(lambda m: m / 100, super().nominal_masses(*arguments))


class ScaledGradient(pl.pseudo_langevin):
    def gradient(self, weights, batch):
        return jax.tree.map(lambda g: 0.9 * g, super().gradient(weights, batch))


def once_measured(kind: type[pl.Sampler] = pl.pseudo_langevin, **settings) -> pl.Sampler:
    """A sampler that measures the gradient variance only at the start, where it is the same as anywhere."""
    return toy.sampler(kind, refresh_every=toy.NUM_STEPS, warmup_refreshes=0, **settings)


@pytest.mark.parametrize(
    ("kind", "ratio", "names"),
    [
        (HalvedVariance, 0.1, {"kinetic temperature", "noise, misplaced energy", "noise, excess temperature"}),
        (NoiseNotSubtracted, 0.1, {"kinetic temperature", "virial temperature"}),
        (LightMasses, 0.01, {"temperature ratio, largest", "temperature ratio, 95 %", "kinetic temperature"}),
        (ScaledGradient, 0.01, {"virial temperature"}),
    ],
)
def test_a_wrong_sampler_fails_by_name(kind, ratio, names):
    sampler = once_measured(kind, temperature_ratio=ratio)
    temperature = toy.TEMPERATURE * 0.01 / ratio  # so that the masses are the same
    certificate = judged(toy.run(sampler, num_steps=ENOUGH, temperatures=[temperature]))
    assert names <= failed_names(certificate)
    for line in certificate.lines:
        if kind is NoiseNotSubtracted and line.name == "kinetic temperature":
            # The excess is the analytic (1 + c1²)·𝒯.
            assert line.value == pytest.approx(1 + 1.81 * ratio, abs=4 * line.uncertainty)


def test_a_chain_that_has_not_equilibrated_fails():
    """Masses a thousand times heavier: correct, but the weights need the full run to come down from their start."""
    result = toy.run(once_measured(temperature_ratio=1e-5), start=toy.weights(3 * np.sqrt(toy.TEMPERATURE)))
    assert "stationarity of U" in failed_names(judged(result))


def test_too_few_samples_are_undecided_with_the_number_of_steps_that_are_needed(correct_run):
    short = replace(correct_run, trace=correct_run.trace.isel(draw=slice(0, 60)))
    certificate = judged(short)
    assert certificate.verdict == "undecided"
    open_lines = [line for line in certificate.lines if line.verdict is Verdict.UNDECIDED]
    assert all("more records" in line.message or "long is needed" in line.message for line in open_lines)
    more = max(int(line.more_steps) for line in open_lines if line.more_steps < np.inf)
    total = 60 * toy.RECORD_EVERY + more
    assert certificate.advice == str(certificate).splitlines()[-1]
    assert certificate.advice.startswith(f"undecided: about {more:,} more steps per chain, {total:,} in all")
    folder = Path("runs/first")
    last = certificate.to_text(folder=folder).splitlines()[-1]
    assert f"more steps per chain; `pseudolangevin resume runs/first --steps {total}`" in last
    noisy = judged(correct_run, ks_tolerance=0.02)
    assert "certificate(..., noise_draws=" in noisy.advice
    assert "`pseudolangevin check runs/first --noise-draws " in noisy.to_text(folder=folder).splitlines()[-1]
    for num_draws in (1, 5, 11):
        tiny = replace(correct_run, trace=correct_run.trace.isel(draw=slice(0, num_draws)))
        assert judged(tiny, noise_draws=0).verdict == "undecided"


def test_a_stopped_chain_fails_and_the_others_are_judged(correct_run):
    trace = correct_run.trace.copy(deep=True)
    trace["status"][0, 1, 700:] = pl.Status.NON_FINITE
    trace["kinetic_temperature"][0, 1, 700:] = np.nan
    certificate = judged(replace(correct_run, trace=trace))
    (line,) = certificate.failed_lines
    assert line.name == "status"
    assert (line.temperature, line.chain) == (toy.TEMPERATURE, 1)
    assert "non-finite" in line.message
    assert any(line.name == "kinetic temperature" and line.chain == 0 for line in certificate.lines)


def test_a_relaxation_and_chains_that_disagree_fail(correct_run):
    trace = correct_run.trace.copy(deep=True)
    slow = np.exp(-trace["draw"].values / 400)  # a slow part comes down while a fast part is at equilibrium
    trace["potential"][:] += slow * toy.NUM_WEIGHTS * toy.TEMPERATURE
    trace["squared_norm"][0, 1] += 4 * trace["squared_norm"][0, 0].std()
    names = failed_names(judged(replace(correct_run, trace=trace), noise_draws=0))
    assert {"stationarity of U", "R-hat of |w|²"} <= names


def test_distant_temperatures_are_undecided_with_a_remedy_and_do_not_count(correct_run):
    trace = correct_run.trace.copy(deep=True)
    hotter = 3 * correct_run.trace["temperature"].values[1]
    for name in ("potential", "kinetic_temperature", "virial_temperature", "layer_virial_temperature"):
        trace[name][1] = trace[name][1] * 3
    trace = trace.assign_coords(temperature=[toy.TEMPERATURE, hotter])
    certificate = judged(replace(correct_run, trace=trace), noise_draws=0)
    (line,) = [line for line in certificate.lines if line.name.startswith("ensemble")]
    assert (line.verdict, line.required, line.label) == (Verdict.UNDECIDED, False, "info")
    assert "add a temperature between" in line.message
    assert certificate.passed


def test_lines_that_a_sampler_does_not_have_are_left_out():
    sampler = pl.full_batch_langevin(toy.POTENTIAL, toy.dataset(), time_step=0.2, momentum_retention=0.9)
    names = {line.name for line in judged(toy.run(sampler, num_steps=1_200)).lines}
    assert "kinetic temperature" in names
    assert not any(name.startswith(("temperature ratio", "noise", "ensemble")) for name in names)
    balanced = toy.run(toy.sampler(pl.balanced_langevin, temperature_ratio=1e-4), num_steps=60)
    assert "temperature_ratio" in balanced.trace
    assert not any(line.name.startswith(("temperature ratio", "noise", "stale")) for line in judged(balanced).lines)
    training = pl.sample(pl.adam(toy.POTENTIAL, toy.dataset()), toy.weights(), num_steps=100, key=0)
    lines = judged(training).lines
    assert {line.temperature for line in lines} == {None}
    assert not any("temperature" in line.name for line in lines)


def test_a_certificate_can_be_printed_and_stored(correct_run):
    certificate = judged(correct_run)
    text = str(certificate)
    assert "certificate passed" in text.splitlines()[-1]
    assert certificate.advice == ""
    assert "kinetic temperature" in text
    assert all(letter.isascii() or letter in "±²" for letter in text)
    stored = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert stored["passed"] is True
    assert len(stored["lines"]) == len(certificate.lines)
    assert stored["lines"][0].keys() == {*Line.__dataclass_fields__}


@pytest.mark.parametrize(("acceptance", "verdict"), [(0.7, "passed"), (0.05, "failed")])
def test_one_chain_at_one_temperature_is_enough_and_its_acceptance_is_judged(correct_run, acceptance, verdict):
    trace = correct_run.trace.isel(temperature=[0], chain=[0])
    trace = trace.assign(acceptance=trace["loss"] * 0 + acceptance)
    certificate = judged(replace(toy.chains_of(correct_run, [0]), trace=trace))
    assert certificate.verdict == verdict
    assert [line.name for line in certificate.failed_lines] == (["acceptance"] if verdict == "failed" else [])
    assert sum("two chains" in note or "two temperatures" in note for note in certificate.notes) == 2


@pytest.mark.parametrize(
    "wrong", [{"tolerance": 0}, {"burn_in": 1.0}, {"noise_draws": -1}, {"noise_draws": 1}, {"layer_tolerance": "x"}]
)
def test_bad_arguments_are_named(correct_run, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        pl.certificate(correct_run, **wrong)
    assert any(line.name.startswith("noise") for line in pl.certificate(correct_run, noise_draws=2).lines)


def test_a_refresh_finds_the_excess_temperature_of_noise_that_grew():
    sampler = toy.sampler(warmup_refreshes=0, temperature_ratio=0.1, reset_probability=0.0)
    start = sampler.init(jax.random.key(0), toy.weights(), toy.TEMPERATURE)
    # As if the noise of one layer had been half of what it is: its masses and its variance are too small.
    variance, masses = (tree | {"small": tree["small"] / 2} for tree in (start.gradient_variance, start.masses))
    after = sampler.refresh(start._replace(gradient_variance=variance, masses=masses))
    growth = np.asarray(after.gradient_variance["small"] / variance["small"])
    order = list(trees.layers(toy.weights()))
    small, large = (float(after.stale_excess[order.index(name)]) for name in ("small", "large"))
    assert small == pytest.approx(1.81 * 0.1 * np.maximum(growth - 1, 0).mean(), rel=1e-4)
    assert small > 0.1
    # By chance, from a few hundred mini-batches: 0.56·(1 + c1²)·𝒯·√(2/n).
    assert 0 < large < 0.56 * 1.81 * 0.1 * np.sqrt(2 / 100)


def test_the_excess_temperature_of_a_stale_variance_is_judged_in_all_and_layer_by_layer(short_run):
    name, worst = "stale excess temperature", "stale excess temperature, worst layer"
    lines = lines_of_first_chain(short_run)
    assert lines[name].passed
    assert lines[worst].passed
    trace = short_run.trace.copy(deep=True)
    trace["stale_excess_temperature"].loc[{"layer": "small", "draw": trace["draw"].values[-3:]}] = 0.12
    lines = lines_of_first_chain(replace(short_run, trace=trace))
    assert lines[name].value == pytest.approx(0.12 / 3, abs=0.003)
    assert lines[name].verdict is lines[worst].verdict is Verdict.FAILED
    assert "small" in lines[worst].message
    # What was found before the retained draws does not count.
    trace["stale_excess_temperature"][:] = 0.5
    trace["kinetic_temperature"][:] = toy.TEMPERATURE  # a chain that stands still
    result = replace(short_run, trace=trace)
    assert name not in lines_of_first_chain(result)
    assert lines_of_first_chain(result)["kinetic temperature"].verdict is Verdict.UNDECIDED
    assert any("stale" in note for note in pl.certificate(result, noise_draws=0).notes)


def test_a_part_of_the_examples_is_not_enough_to_pass(short_run):
    partial = pl.sample(
        short_run.sampler,
        toy.weights(),
        temperatures=[toy.TEMPERATURE],
        num_steps=24,
        record_every=2,
        observe_examples=10,
        key=0,
    )
    certificate = pl.certificate(partial, noise_draws=0)
    names = {line.name for line in certificate.lines}
    assert not any(name.startswith(("virial", "ensemble")) for name in names)
    (line,) = [line for line in certificate.lines if line.name == "observed examples"]
    assert (line.required, line.verdict) == (True, Verdict.UNDECIDED)
    assert "observe_examples" in line.message
    assert certificate.verdict != "passed"


@pytest.mark.parametrize(("warmup_moves", "retained"), [(0, 10), (15, 5), (20, 0)])
def test_the_warm_up_of_a_metropolis_chain_is_discarded(short_run, warmup_moves, retained):
    sampler = pl.hybrid_monte_carlo(
        toy.POTENTIAL, toy.dataset(), time_step=0.1, num_leapfrog_steps=2, warmup_moves=warmup_moves
    )
    noisy = [name for name in short_run.trace if name.endswith("temperature_ratio")]
    trace = short_run.trace.drop_vars(noisy).isel(draw=slice(0, 20))
    result = replace(short_run, sampler=sampler, trace=trace.assign_coords(step=("draw", np.arange(1, 21))))
    certificate = pl.certificate(result)
    means = [line.value for line in certificate.lines if line.name == "kinetic temperature" and line.chain == 0]
    if retained:
        kinetic = result.trace["kinetic_temperature"].values[0, 0, -retained:] / toy.TEMPERATURE
        assert means == [pytest.approx(kinetic.mean())]
    else:
        assert not means
        assert certificate.verdict == "undecided"
        assert "retained draws" in {line.name for line in certificate.lines}
