"""The certificate passes correct runs, and fails wrong ones by name."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin.chains import Result
from pseudolangevin.diagnostics.rendering import to_text
from pseudolangevin.diagnostics.verdicts import Line, Verdict
from pseudolangevin.samplers.langevin_kernel import LangevinKernel

from ..compilation import optimized
from . import gaussian_toy as toy

NUM_SEEDS = 20
ENOUGH = toy.NUM_STEPS // 2
"""Steps within which a wrong run shows."""


def judged(result: Result, **settings) -> pl.Certificate:
    return pl.certificate(result, **({"noise_draws": 250} | settings))


def failed_names(certificate: pl.Certificate) -> set[str]:
    assert certificate.verdict == "failed"
    assert not certificate.passed
    return {line.name for line in certificate.failed_lines}


@pytest.fixture(scope="module")
def correct_runs() -> Result:
    """Two temperatures, and two chains for each of twenty seeds: chains are independent whatever runs beside them."""
    temperatures = (toy.TEMPERATURE, toy.TEMPERATURE * toy.SPACING)
    with optimized():
        return toy.run(toy.sampler(), num_chains=2 * NUM_SEEDS, temperatures=temperatures)


@pytest.fixture(scope="module")
def correct_run(correct_runs) -> Result:
    return toy.chains_of(correct_runs, [0, 1])


def test_correct_runs_pass(correct_runs):
    certificates = [judged(toy.chains_of(correct_runs, [2 * seed, 2 * seed + 1])) for seed in range(NUM_SEEDS)]
    assert [c.verdict for c in certificates].count(Verdict.PASSED) >= NUM_SEEDS - 1
    assert all(c.verdict is not Verdict.FAILED for c in certificates)


def test_lines_cover_everything_a_pseudo_langevin_run_can_show(correct_run):
    certificate = judged(correct_run)
    names = {line.name for line in certificate.lines}
    for expected in [
        "status",
        "kinetic temperature",
        "virial temperature",
        "virial temperature, large",
        "temperature ratio, 95 %",
        "temperature ratio, largest",
        "temperature ratio, peak",
        "noise, KS fraction",
        "noise, heat of wrong 𝒱",
        "noise, collective share",
        "stationarity of U",
        "stationarity of |w|²",
        "R-hat of U",
        "effective samples of U",
        "ensemble, T = 0.25 and 0.295644",
    ]:
        assert expected in names
    kinetic = [line for line in certificate.lines if line.name == "kinetic temperature"]
    assert {(line.temperature, line.chain) for line in kinetic} == {
        (t, c) for t in correct_run.trace["temperature"].values for c in (0, 1)
    }


def test_a_temperature_wrong_by_five_per_cent_fails(correct_run):
    for factor in (1.05, 0.95):
        wrong = correct_run.trace["temperature"].values / factor
        relabelled = replace(correct_run, trace=correct_run.trace.assign_coords(temperature=wrong))
        assert {"kinetic temperature", "virial temperature"} & failed_names(judged(relabelled, noise_draws=0))


@dataclass(frozen=True, eq=False)
class HalvedVariance(LangevinKernel):
    def _measure_variance(self, *arguments):
        return jax.tree.map(lambda v: v / 2, super()._measure_variance(*arguments))


@dataclass(frozen=True, eq=False)
class NoiseNotSubtracted(LangevinKernel):
    def step(self, state, dataset):
        none = jax.tree.map(jnp.zeros_like, state.gradient_variance)
        return (
            super()
            .step(state._replace(gradient_variance=none), dataset)
            ._replace(gradient_variance=state.gradient_variance)
        )


@dataclass(frozen=True, eq=False)
class LightMasses(LangevinKernel):
    def _nominal_masses(self, *arguments):
        return jax.tree.map(lambda m: m / 100, super()._nominal_masses(*arguments))


def once_measured(**settings) -> pl.Sampler:
    """A sampler that measures 𝒱 at the start only, which is enough here: it is the same everywhere."""
    return toy.sampler(refresh_every=toy.NUM_STEPS, warmup_refreshes=0, **settings)


def test_a_halved_variance_fails():
    sampler = toy.with_kernel(once_measured(temperature_ratio=0.1), HalvedVariance)
    names = failed_names(judged(toy.run(sampler, num_steps=ENOUGH, temperatures=[toy.TEMPERATURE / 10])))
    assert {"kinetic temperature", "noise, misplaced energy", "noise, heat of wrong 𝒱"} <= names


def test_noise_that_is_not_subtracted_fails():
    sampler = toy.with_kernel(once_measured(temperature_ratio=0.1), NoiseNotSubtracted)
    result = toy.run(sampler, num_steps=ENOUGH, temperatures=[toy.TEMPERATURE / 10])
    certificate = judged(result)
    assert {"kinetic temperature", "virial temperature"} <= failed_names(certificate)
    # The excess is the analytic (1 + c1²)·𝒯.
    for line in certificate.lines:
        if line.name == "kinetic temperature":
            assert line.value == pytest.approx(1 + 1.81 * 0.1, abs=4 * line.uncertainty)


def test_masses_a_hundred_times_too_small_fail():
    names = failed_names(judged(toy.run(toy.with_kernel(once_measured(), LightMasses), num_steps=ENOUGH)))
    assert {"temperature ratio, largest", "temperature ratio, 95 %", "kinetic temperature"} <= names


def test_a_gradient_scaled_by_nine_tenths_fails():
    sampler = once_measured()
    kernel = sampler.kernel
    assert isinstance(kernel, LangevinKernel)
    oracle = kernel.oracle

    def scaled(key, weights, dataset):
        return jax.tree.map(lambda g: 0.9 * g, oracle(key, weights, dataset))

    sampler = replace(sampler, kernel=replace(kernel, oracle=scaled))
    assert "virial temperature" in failed_names(judged(toy.run(sampler, num_steps=ENOUGH)))


def test_a_chain_that_has_not_equilibrated_fails():
    """Masses a thousand times heavier: right, but the weights need the whole run to come down from their start."""
    result = toy.run(once_measured(temperature_ratio=1e-5), start=toy.weights(3 * np.sqrt(toy.TEMPERATURE)))
    assert "stationarity of U" in failed_names(judged(result))


def test_a_relaxation_on_top_of_fast_fluctuations_fails(correct_run):
    """A fast part at equilibrium while a slow part comes down: here there are samples enough to measure it."""
    trace = correct_run.trace.copy(deep=True)
    slow = np.exp(-trace["draw"].values / 400)
    trace["potential"][:] += slow * toy.NUM_WEIGHTS * toy.TEMPERATURE
    assert "stationarity of U" in failed_names(judged(replace(correct_run, trace=trace), noise_draws=0))


def test_too_few_samples_are_undecided_and_say_how_many_more(correct_run):
    short = replace(correct_run, trace=correct_run.trace.isel(draw=slice(0, 60)))
    certificate = judged(short)
    assert certificate.verdict == "undecided"
    assert not certificate.passed
    open_lines = [line for line in certificate.lines if line.verdict is Verdict.UNDECIDED]
    assert all("more records" in line.message or "long is needed" in line.message for line in open_lines)
    more = max(int(line.more_steps) for line in open_lines if line.more_steps < np.inf)
    total = 60 * toy.RECORD_EVERY + more
    assert certificate.advice == str(certificate).splitlines()[-1]
    assert certificate.advice.startswith(f"undecided: about {more:,} more steps per chain, {total:,} in all")
    assert "resume" not in str(certificate)  # nothing is known of a folder
    last = to_text(certificate, folder=Path("runs/first")).splitlines()[-1]
    assert f"more steps per chain; `pseudolangevin resume runs/first --steps {total}`" in last
    noisy = judged(correct_run, ks_tolerance=0.02)
    assert "certificate(…, noise_draws=" in noisy.advice
    assert (
        "`pseudolangevin check runs/first --noise-draws " in to_text(noisy, folder=Path("runs/first")).splitlines()[-1]
    )
    for num_draws in (1, 2, 5, 11):
        tiny = replace(correct_run, trace=correct_run.trace.isel(draw=slice(0, num_draws)))
        assert judged(tiny, noise_draws=0).verdict == "undecided"


def test_the_number_of_records_asked_for_is_enough(correct_run):
    def effective_samples(first, last):
        part = replace(correct_run, trace=correct_run.trace.isel(draw=slice(first, last)))
        return next(line for line in judged(part, noise_draws=0).lines if line.name == "effective samples of U")

    enough = []
    for first in (0, 200, 400, 600):
        asked = int(effective_samples(first, first + 100).message.split()[1].replace(",", ""))
        assert 0 < asked < 300
        enough.append(effective_samples(first, first + 100 + asked).passed)
    assert sum(enough) >= 3  # a hundred records may by chance look better than they are


def test_a_stopped_chain_fails_and_the_others_are_judged(correct_run):
    trace = correct_run.trace.copy(deep=True)
    trace["status"][0, 1, 700:] = pl.Status.NON_FINITE
    trace["kinetic_temperature"][0, 1, 700:] = np.nan
    certificate = judged(replace(correct_run, trace=trace))
    assert failed_names(certificate) == {"status"}
    (line,) = certificate.failed_lines
    assert (line.temperature, line.chain) == (toy.TEMPERATURE, 1)
    assert "non-finite" in line.message
    assert any(line.name == "kinetic temperature" and line.chain == 0 for line in certificate.lines)


def test_chains_that_disagree_fail(correct_run):
    trace = correct_run.trace.copy(deep=True)
    trace["squared_norm"][0, 1] += 4 * trace["squared_norm"][0, 0].std()
    assert "R-hat of |w|²" in failed_names(judged(replace(correct_run, trace=trace), noise_draws=0))


def test_distant_temperatures_are_undecided_with_a_remedy_and_do_not_count(correct_run):
    trace = correct_run.trace.copy(deep=True)
    hotter = 3 * correct_run.trace["temperature"].values[1]
    for name in ("potential", "kinetic_temperature", "virial_temperature", "layer_virial_temperature"):
        trace[name][1] = trace[name][1] * 3
    trace = trace.assign_coords(temperature=[toy.TEMPERATURE, hotter])
    certificate = judged(replace(correct_run, trace=trace), noise_draws=0)
    (line,) = [line for line in certificate.lines if line.name.startswith("ensemble")]
    assert line.verdict is Verdict.UNDECIDED
    assert not line.required
    assert "add a temperature between" in line.message
    assert certificate.passed


def test_lines_that_a_sampler_does_not_have_are_left_out(correct_run):
    sampler = pl.full_batch_langevin(
        correct_run.sampler.potential, correct_run.sampler.dataset, time_step=0.2, momentum_retention=0.9
    )
    names = {line.name for line in judged(toy.run(sampler, num_steps=1_200)).lines}
    assert "kinetic temperature" in names
    assert not any(name.startswith(("temperature ratio", "noise", "ensemble")) for name in names)
    training = pl.sample(
        pl.adam(correct_run.sampler.potential, correct_run.sampler.dataset), toy.weights(), num_steps=100, key=0
    )
    lines = judged(training).lines
    assert {line.temperature for line in lines} == {None}
    assert not any("temperature" in line.name for line in lines)


@pytest.mark.parametrize(("acceptance", "verdict"), [(0.7, "passed"), (0.05, "failed")])
def test_acceptance_is_judged_where_there_is_one(correct_run, acceptance, verdict):
    trace = correct_run.trace.assign(acceptance=correct_run.trace["loss"] * 0 + acceptance)
    lines = judged(replace(correct_run, trace=trace), noise_draws=0).lines
    assert {line.verdict for line in lines if line.name == "acceptance"} == {verdict}


def test_it_can_be_printed_and_stored(correct_run):
    certificate = judged(correct_run)
    text = str(certificate)
    assert "certificate passed" in text.splitlines()[-1]
    assert certificate.advice == ""
    assert "kinetic temperature" in text
    stored = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert stored["passed"] is True
    assert len(stored["lines"]) == len(certificate.lines)
    assert stored["lines"][0].keys() == {*Line.__dataclass_fields__}


def test_one_chain_at_one_temperature_can_pass(correct_run):
    one = replace(toy.chains_of(correct_run, [0]), trace=correct_run.trace.isel(temperature=[0], chain=[0]))
    certificate = judged(one)
    assert certificate.passed
    assert any("two chains" in note for note in certificate.notes)


@pytest.mark.parametrize(
    "wrong", [{"tolerance": 0}, {"burn_in": 1.0}, {"noise_draws": -1}, {"noise_draws": 1}, {"layer_tolerance": "x"}]
)
def test_bad_arguments_are_named(correct_run, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        pl.certificate(correct_run, **wrong)


def test_two_noise_draws_are_enough_to_say_something(correct_run):
    assert any(line.name.startswith("noise") for line in pl.certificate(correct_run, noise_draws=2).lines)
