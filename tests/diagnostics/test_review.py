"""Traps that a certificate can fall into: each test is a case in which an earlier version gave the wrong answer."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import lfilter

import pseudolangevin as pl
from pseudolangevin import trees
from pseudolangevin.chains import Result
from pseudolangevin.diagnostics.averages import average
from pseudolangevin.diagnostics.chain_lines import Tolerances
from pseudolangevin.diagnostics.collective import collective_noise
from pseudolangevin.diagnostics.noise import NoiseDraws, ks_shape_fraction
from pseudolangevin.diagnostics.noise_lines import noise_lines
from pseudolangevin.diagnostics.noise_study import NoiseStudy, noise_study
from pseudolangevin.diagnostics.verdicts import Line, Measurement, RunLength, Verdict, judge
from pseudolangevin.samplers.langevin_kernel import LangevinKernel

from . import gaussian_toy as toy


def short_study(key: int) -> NoiseStudy:
    return noise_study(
        toy.sampler(refresh_every=10, warmup_refreshes=0, variance_max_batches=100),
        toy.weights(),
        temperature=toy.TEMPERATURE,
        num_steps=10,
        measure_every=10,
        key=key,
        num_draws=20,
        num_consecutive=3,
        max_lag=1,
        num_correlated=20,
    )


def test_a_noise_study_depends_on_its_seed():
    first, again, other = short_study(1), short_study(1), short_study(2)
    for name in ("noise_density", "correlation_density", "autocorrelation"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        assert not np.array_equal(getattr(first, name), getattr(other, name))
    # The white noise is drawn anew as well.
    assert first.correlation_std[0, 1] != other.correlation_std[0, 1]


@pytest.mark.parametrize("true_samples", [1, 3, 8])
def test_few_samples_raise_no_false_alarms(true_samples):
    """A stationary AR(1) without bias, whose effective samples look more than they are."""
    num_draws, num_series = 200, 2_000
    inefficiency = num_draws / true_samples
    correlation = (inefficiency - 1) / (inefficiency + 1)
    kicks = np.random.default_rng(true_samples).normal(size=(num_series, 10 * num_draws))
    series = lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], kicks, axis=1)[:, -num_draws:]
    failed = 0
    for values in 1 + 0.1 * series:
        mean = average(values)
        line = Measurement(
            "toy",
            1.0,
            0,
            mean.mean,
            mean.standard_error,
            1.0,
            0.001,
            effective_samples=mean.effective_samples,
            num_draws=num_draws,
        )
        failed += judge(line, 20, RunLength(num_draws, 1)).verdict is Verdict.FAILED
    # One false alarm in 2000 is the promise: 1 expected, more than 6 would be 5 standard deviations off.
    # Without a minimum of effective samples it would be 20 to 200.
    assert failed <= 6


def test_the_shape_of_gaussian_noise_passes_whatever_its_scale():
    random = np.random.default_rng(0)
    scales = random.uniform(0.1, 10, size=4_000)
    for num_draws in (20, 250, 1_000):
        fraction = ks_shape_fraction(scales * random.normal(size=(num_draws, 4_000)))
        # The critical value itself was found by simulation, to 0.002 in the fraction.
        assert fraction == pytest.approx(0.95, abs=0.002 + 4 * np.sqrt(0.95 * 0.05 / 4_000))
    assert ks_shape_fraction(random.uniform(-1, 1, size=(250, 500))) < 0.6


def noise_of(variances, ratio: float, num_draws: int = 1_000) -> NoiseDraws:
    """Gaussian noise of these variances over 𝒱, half of the components in either of two layers."""
    num = len(variances)
    noise = np.sqrt(variances) * np.random.default_rng(1).normal(size=(num_draws, num))
    return NoiseDraws(noise, np.full(num, ratio), 0, num, np.repeat([0, 1], num // 2), ("first", "second"))


def judged_noise(draws: NoiseDraws) -> dict[str, Line]:
    tolerances = Tolerances(0.03, 0.1, 0.1, 0.05, 0.07)
    return {m.name: judge(m, 20, RunLength(1, 1)) for m in noise_lines(draws, 1.0, 0, 0.995, tolerances)}


def test_misplaced_energy_is_measured_without_its_sampling_part():
    right = judged_noise(noise_of(np.ones(2_000), 0.1))["noise, misplaced energy"]
    assert right.value == pytest.approx(0.0, abs=4 * right.uncertainty)
    assert right.passed
    # Half of the components noisier than 𝒱 says, half quieter: the mean is right, the place is not.
    lines = judged_noise(noise_of(np.tile([0.5, 1.5], 1_000), 0.1))
    wrong = lines["noise, misplaced energy"]
    chance = np.sqrt(4 / (np.pi * 1_000))
    assert wrong.value == pytest.approx((1 + 0.995**2) * 0.1 * (0.5 - chance), abs=4 * wrong.uncertainty)
    assert wrong.verdict is Verdict.FAILED
    assert lines["noise, heat of wrong 𝒱"].passed
    assert lines["noise, KS fraction of shape"].passed
    plain = lines["noise, KS fraction"]
    assert plain.verdict is Verdict.FAILED
    assert not plain.required


def test_one_layer_with_a_wrong_variance_is_named():
    variances = np.concatenate([np.ones(1_900), np.full(100, 2.0)])
    draws = noise_of(variances, 0.1)._replace(layers=np.repeat([0, 1], [1_900, 100]))
    lines = judged_noise(draws)
    assert lines["noise, misplaced energy"].passed
    worst = lines["noise, misplaced energy, worst layer"]
    assert worst.verdict is Verdict.FAILED
    assert "second" in worst.message


@pytest.fixture(scope="module")
def short_run() -> Result:
    """Two layers, and 𝒱 measured every 24 steps."""
    sampler = toy.sampler(refresh_every=24, warmup_refreshes=0, max_refresh_interval=24, variance_max_batches=100)
    return toy.run(sampler, num_steps=360)


@pytest.mark.parametrize("warmup_refreshes", [0, 1])
def test_a_refresh_finds_the_heat_of_noise_that_grew(warmup_refreshes):
    sampler = toy.sampler(warmup_refreshes=warmup_refreshes, temperature_ratio=0.1, reset_probability=0.0)
    kernel = sampler.kernel
    assert isinstance(kernel, LangevinKernel)
    start = kernel.init(jax.random.key(0), toy.weights(), jnp.asarray(toy.TEMPERATURE), sampler.dataset)
    # As if the noise of one layer had been half of what it is: its masses and its 𝒱 are too small.
    halved = {
        name: getattr(start, name) | {"small": getattr(start, name)["small"] / 2}
        for name in ("gradient_variance", "masses")
    }
    after = kernel.refresh(start._replace(**halved), sampler.dataset)
    growth = np.asarray(after.gradient_variance["small"] / halved["gradient_variance"]["small"])
    order = list(trees.layers(toy.weights()))
    small, large = (float(after.stale_heat[order.index(name)]) for name in ("small", "large"))
    if warmup_refreshes:
        assert small == large == 0.0
    else:
        assert small == pytest.approx(1.81 * 0.1 * np.maximum(growth - 1, 0).mean(), rel=1e-4)
        assert small > 0.1
        # By chance alone, from a few hundred mini-batches: 0.56·(1 + c1²)·𝒯·√(2/n).
        assert 0 < large < 0.56 * 1.81 * 0.1 * np.sqrt(2 / 100)


def heat_lines(result: Result) -> dict[str, Line]:
    lines = pl.certificate(result, noise_draws=0).lines
    return {line.name: line for line in lines if line.chain == 0 and line.temperature == toy.TEMPERATURE}


def test_the_heat_of_a_stale_variance_is_judged_in_all_and_layer_by_layer(short_run):
    lines = heat_lines(short_run)
    assert lines["heat of stale 𝒱"].passed
    assert lines["heat of stale 𝒱, worst layer"].passed
    trace = short_run.trace.copy(deep=True)
    trace["stale_heat"].loc[{"layer": "small", "draw": trace["draw"].values[-3:]}] = 0.12
    trace["peak_temperature_ratio"][:] = 5.0
    lines = heat_lines(replace(short_run, trace=trace))
    assert lines["heat of stale 𝒱"].value == pytest.approx(0.12 / 3, abs=0.003)
    for name in ("heat of stale 𝒱", "heat of stale 𝒱, worst layer", "temperature ratio, peak"):
        assert lines[name].verdict is Verdict.FAILED
    assert "small" in lines["heat of stale 𝒱, worst layer"].message
    peak = lines["temperature ratio, peak"]
    assert not peak.required
    assert (peak.value, peak.expected) == (5.0, pytest.approx(1 / 1.81))


def test_heat_found_before_the_retained_draws_does_not_count(short_run):
    trace = short_run.trace.copy(deep=True)
    trace["stale_heat"][:] = 0.5
    result = replace(short_run, trace=trace)
    assert "heat of stale 𝒱" not in heat_lines(result)
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
    assert partial.trace.attrs["observed_examples"] == 10
    assert short_run.trace.attrs["observed_examples"] == short_run.sampler.dataset.num_examples
    certificate = pl.certificate(partial, noise_draws=0)
    names = {line.name for line in certificate.lines}
    assert not any(name.startswith(("virial", "ensemble")) for name in names)
    assert any("observe_examples" in note for note in certificate.notes)
    (line,) = [line for line in certificate.lines if line.name == "observed examples"]
    assert line.required
    assert line.verdict is Verdict.UNDECIDED
    assert certificate.verdict != "passed"


@pytest.mark.parametrize(("warmup_moves", "retained"), [(0, 10), (15, 5), (20, 0)])
def test_the_warm_up_of_a_metropolis_chain_is_discarded(short_run, warmup_moves, retained):
    sampler = pl.hybrid_monte_carlo(
        short_run.sampler.potential,
        short_run.sampler.dataset,
        time_step=0.1,
        num_leapfrog_steps=2,
        warmup_moves=warmup_moves,
    )
    result = replace(short_run, sampler=sampler, trace=short_run.trace.isel(draw=slice(0, 20)))
    result = replace(result, trace=result.trace.assign_coords(step=("draw", np.arange(1, 21))))
    assert sampler.kernel.warmup_moves == warmup_moves  # type: ignore[attr-defined]
    certificate = pl.certificate(result)
    means = [line.value for line in certificate.lines if line.name == "kinetic temperature" and line.chain == 0]
    if retained:
        kinetic = result.trace["kinetic_temperature"].values[0, 0, -retained:] / toy.TEMPERATURE
        assert means == [pytest.approx(kinetic.mean())]
    else:
        assert not means
        assert certificate.verdict == "undecided"
        assert "retained draws" in {line.name for line in certificate.lines}


def test_collective_heat_is_that_of_the_noise_that_is_there():
    """Noise of twice the variance that 𝒱 says, all of it along one direction: twice the heat."""
    random = np.random.default_rng(2)
    values = random.normal(size=(400, 300)) + 3 * random.normal(size=(400, 1))
    once, twice = (collective_noise(factor * values, np.full(300, 0.01), 0.995) for factor in (1.0, np.sqrt(2)))
    assert once.share > 0
    assert twice.share == pytest.approx(2 * once.share)
    assert twice.share_bound == pytest.approx(2 * once.share_bound)


def test_a_chain_that_stands_still_is_undecided(short_run):
    trace = short_run.trace.copy(deep=True)
    for name in ("kinetic_temperature", "virial_temperature"):
        trace[name][:] = toy.TEMPERATURE
    lines = heat_lines(replace(short_run, trace=trace))
    assert lines["kinetic temperature"].verdict is Verdict.UNDECIDED
    assert lines["virial temperature"].verdict is Verdict.UNDECIDED


def test_weights_need_a_mass():
    with pytest.raises(ValueError, match="mass_floor"):
        toy.sampler(mass_floor=0.0)
