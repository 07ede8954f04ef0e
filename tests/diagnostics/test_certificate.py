"""The certificate passes correct runs, fails wrong ones by name, and leaves short ones undecided."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import pseudolangevin as pl
from pseudolangevin.diagnostics.certificate import Subject, _ensemble
from pseudolangevin.diagnostics.verdicts import Line, Verdict

from ..compilation import optimized
from . import gaussian_toy as toy

NUM_SEEDS = 3
ENOUGH = toy.NUM_STEPS // 2  # steps within which a wrong run shows


def failed_names(certificate: pl.Certificate) -> set[str]:
    assert certificate.verdict == "failed"
    return {line.name for line in certificate.failed_lines}


@pytest.fixture(scope="module")
def correct_runs() -> pl.Result:
    """Two temperatures, and two chains for each of three seeds; chains do not depend on which others run."""
    temperatures = (toy.TEMPERATURE, toy.TEMPERATURE * toy.SPACING)
    with optimized():
        return toy.run(toy.sampler(), num_chains=2 * NUM_SEEDS, temperatures=temperatures)


@pytest.fixture(scope="module")
def correct_run(correct_runs) -> pl.Result:
    return toy.chains_of(correct_runs, [0, 1])


def test_correct_runs_pass(correct_runs):
    certificates = [pl.certificate(toy.chains_of(correct_runs, [2 * seed, 2 * seed + 1])) for seed in range(NUM_SEEDS)]
    assert [c.verdict for c in certificates] == [Verdict.PASSED] * NUM_SEEDS


def test_every_kind_of_line_appears_where_the_run_has_what_it_needs(correct_run):
    lines = pl.certificate(correct_run).lines
    names = [line.name for line in lines if line.temperature == toy.TEMPERATURE and line.chain in (0, None)]
    assert names == [
        *("status", "kinetic temperature", "virial temperature"),
        *(f"stationarity of {symbol}" for symbol in ("U", "|w|²")),
        *("kinetic temperature", "virial temperature"),
        *(f"virial temperature of layers, {layer}" for layer in ("large", "small")),
        *("mean of single weights", "squared mean of all weights", "temperature of single weights"),
        *("mean along directions", "spread along directions"),
        *(f"predicted bias of {symbol}" for symbol in ("the loss", "|w|²")),
        "fluctuations of U",
        *(f"{test} of {symbol}" for symbol in ("U", "|w|²") for test in ("effective samples", "R-hat")),
        "ensemble, T = 0.25 and 0.295644",
    ]
    where = {(line.temperature, line.chain) for line in lines}
    assert where == {(t, c) for t in correct_run.trace["temperature"].values for c in (0, 1, None)}


def test_a_wrong_temperature_fails_or_does_not_pass(correct_runs):
    for seed in range(NUM_SEEDS):
        run = toy.chains_of(correct_runs, [2 * seed, 2 * seed + 1])
        for factor in (1.02, 1.05, 0.95)[: 3 if seed == 0 else 1]:
            wrong = run.trace["temperature"].values / factor
            certificate = pl.certificate(replace(run, trace=run.trace.assign_coords(temperature=wrong)))
            assert not certificate.passed
            if factor != 1.02:
                assert {"kinetic temperature", "virial temperature"} & failed_names(certificate)


class NoiseNotSubtracted(pl.pseudo_langevin):
    def step(self, state, batch):
        none = jax.tree.map(jnp.zeros_like, state.gradient_variance)
        moved = super().step(state._replace(gradient_variance=none), batch)
        return moved._replace(gradient_variance=state.gradient_variance)


class OffsetAndFrozen(pl.pseudo_langevin):
    """A constant error of one component of the gradient moves its mean by 1.3 deviations; another weight stays."""

    def gradient(self, weights, batch):
        gradient = super().gradient(weights, batch)
        return gradient | {"small": gradient["small"].at[7].add(1.3 * np.sqrt(toy.TEMPERATURE))}

    def unpack(self, state):
        moved = super().unpack(state)
        weights = moved.weights | {"large": moved.weights["large"].at[3].set(0.5 * np.sqrt(toy.TEMPERATURE))}
        return moved._replace(weights=weights)

    def position(self, state):
        return state.weights


def once_measured(kind: type[pl.Sampler] = pl.pseudo_langevin, **settings) -> pl.Sampler:
    """A sampler that measures the gradient variance only at the start, where it is the same as anywhere."""
    return toy.sampler(kind, refresh_every=toy.NUM_STEPS, warmup_refreshes=0, **settings)


def test_a_wrong_sampler_fails_by_name():
    ratio = 0.1
    sampler = once_measured(NoiseNotSubtracted, temperature_ratio=ratio)
    temperature = toy.TEMPERATURE * 0.01 / ratio  # so that the masses are the same
    certificate = pl.certificate(toy.run(sampler, num_steps=ENOUGH, temperatures=[temperature]))
    assert {"kinetic temperature", "virial temperature"} <= failed_names(certificate)
    for line in certificate.lines:
        if line.name == "kinetic temperature":  # the excess is the analytic (1 + c1²)·𝒯
            assert line.value == pytest.approx(1 + 1.81 * ratio, abs=4 * line.uncertainty)


def test_weights_that_are_frozen_or_shifted_do_not_pass():
    certificate = pl.certificate(toy.run(once_measured(OffsetAndFrozen), num_steps=ENOUGH, num_chains=4))
    wrong = {line.name: line.message for line in certificate.lines if not line.passed}
    assert "weight 3," in wrong["temperature of single weights"]
    assert "weight 167," in wrong["mean of single weights"]  # layers in alphabetical order: 160 weights are in `large`


def test_too_few_samples_are_undecided_with_the_number_of_steps_that_are_needed(correct_run):
    short = replace(correct_run, trace=correct_run.trace.isel(draw=slice(0, 60)))
    certificate = pl.certificate(short)
    assert certificate.verdict == "undecided"
    open_lines = [line for line in certificate.lines if line.verdict is Verdict.UNDECIDED]
    assert all("times as many samples" in line.message or "long is needed" in line.message for line in open_lines)
    more = max(int(line.more_steps) for line in open_lines if line.more_steps < np.inf)
    total = 60 * toy.RECORD_EVERY + more
    assert certificate.advice == str(certificate).splitlines()[-1]
    # Nearly every record is a new sample, so records are too rare.
    assert certificate.advice.startswith(f"record more often: num_steps={total}, record_every=3: about ")
    last = certificate.to_text(folder=Path("runs/first")).splitlines()[-1]
    command = f"pseudolangevin resume runs/first --steps {total} --record-every 3: about "
    assert last.startswith(f"record more often: {command}")
    for num_draws in (1, 5, 11):
        tiny = replace(correct_run, trace=correct_run.trace.isel(draw=slice(0, num_draws)))
        assert pl.certificate(tiny).verdict == "undecided"


def test_a_stopped_chain_fails_and_the_others_are_judged(correct_run):
    trace = correct_run.trace.copy(deep=True)
    trace["status"][0, 1, 700:] = pl.Status.NON_FINITE
    trace["kinetic_temperature"][0, 1, 700:] = np.nan
    certificate = pl.certificate(replace(correct_run, trace=trace))
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
    certificate = pl.certificate(replace(correct_run, trace=trace))
    assert {"stationarity of U", "R-hat of |w|²"} <= failed_names(certificate)
    assert certificate.advice.startswith("run longer: num_steps=24000")


def test_distant_temperatures_are_undecided_with_a_remedy_and_do_not_count(correct_run):
    trace = correct_run.trace.copy(deep=True)
    hotter = 3 * correct_run.trace["temperature"].values[1]
    for name in ("potential", "kinetic_temperature", "centred_virial_temperature", "direction_gradient"):
        trace[name][1] = trace[name][1] * 3
    trace = trace.assign_coords(temperature=[toy.TEMPERATURE, hotter])
    certificate = pl.certificate(replace(correct_run, trace=trace, states=None))
    (line,) = [line for line in certificate.lines if line.name.startswith("ensemble")]
    assert (line.verdict, line.required, line.label) == (Verdict.UNDECIDED, False, "info")
    assert "add a temperature between" in line.message
    assert certificate.passed


def test_lines_that_an_optimiser_does_not_have_are_left_out():
    training = pl.sample(pl.adam(toy.POTENTIAL, toy.dataset()), toy.weights(), num_steps=100, key=0)
    lines = pl.certificate(training).lines
    assert {line.temperature for line in lines} == {None}
    assert not any("temperature" in line.name for line in lines)


def test_a_certificate_can_be_printed_and_stored(correct_run):
    certificate = pl.certificate(correct_run)
    text = str(certificate)
    assert "certificate passed" in text.splitlines()[-1]
    assert len(text.splitlines()) <= 30
    assert len(certificate.to_text(verbose=True).splitlines()) > len(certificate.lines)
    assert certificate.advice == ""
    stored = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert stored["passed"] is True
    assert len(stored["lines"]) == len(certificate.lines)
    assert stored["lines"][0].keys() == {*Line.__dataclass_fields__}


@pytest.mark.parametrize(("acceptance", "verdict"), [(0.7, "passed"), (0.05, "failed")])
def test_one_chain_at_one_temperature_is_enough_and_its_acceptance_is_judged(correct_run, acceptance, verdict):
    trace = correct_run.trace.isel(temperature=[0], chain=[0])
    trace = trace.assign(acceptance=trace["loss"] * 0 + acceptance)
    first = {name: jax.tree.map(lambda leaf: leaf[:1], getattr(correct_run, name)) for name in ("states", "weights")}
    first["weights"] = jax.tree.map(lambda leaf: leaf[:, :1], first["weights"])
    certificate = pl.certificate(replace(correct_run, trace=trace, **first))
    assert certificate.verdict == verdict
    assert [line.name for line in certificate.failed_lines] == (["acceptance"] if verdict == "failed" else [])
    assert sum("two chains" in note or "two temperatures" in note for note in certificate.notes) == 2


def test_a_part_of_the_examples_is_not_enough_to_pass():
    options: dict[str, Any] = {"num_steps": 24, "record_every": 2, "observe_examples": 10, "key": 0}
    partial = pl.sample(toy.sampler(), toy.weights(), temperatures=[toy.TEMPERATURE], **options)
    certificate = pl.certificate(partial)
    names = {line.name for line in certificate.lines}
    assert not any(name.startswith(("virial", "ensemble")) for name in names)
    (line,) = [line for line in certificate.lines if line.name == "observed examples"]
    assert (line.required, line.verdict) == (True, Verdict.UNDECIDED)
    assert "observe_examples" in line.message
    assert certificate.verdict != "passed"


@pytest.mark.parametrize(("warmup_moves", "retained"), [(0, 10), (15, 5), (20, 0)])
def test_the_warm_up_of_a_metropolis_chain_is_discarded(correct_run, warmup_moves, retained):
    settings = {"time_step": 0.1, "num_leapfrog_steps": 2, "warmup_moves": warmup_moves}
    sampler = pl.hybrid_monte_carlo(toy.POTENTIAL, toy.dataset(), **settings)
    noisy = [name for name in correct_run.trace if name.endswith("temperature_ratio")]
    trace = correct_run.trace.drop_vars(noisy).isel(draw=slice(0, 20))
    result = replace(correct_run, sampler=sampler, trace=trace.assign_coords(step=("draw", np.arange(1, 21))))
    certificate = pl.certificate(result)
    first = [line for line in certificate.lines if (line.temperature, line.chain) == (toy.TEMPERATURE, 0)]
    means = [line.value for line in first if line.name == "kinetic temperature"]
    if retained:
        kinetic = result.trace["kinetic_temperature"].values[0, 0, -retained:] / toy.TEMPERATURE
        assert means == [pytest.approx(kinetic.mean())]
    else:
        assert not means
        assert certificate.verdict == "undecided"
        assert "retained draws" in {line.name for line in certificate.lines}


def energies_of(second: float, num: int = 300) -> list:
    """Lines on two temperatures, 1 and `second`, of energies of 200 oscillators, which have gamma distributions."""
    energies = np.random.default_rng(num).gamma(100, size=(2, 4, num)) * np.array([1.0, second])[:, None, None]
    dims = ("temperature", "chain", "draw")
    series = {"potential": energies, "virial_temperature": energies, "status": 0 * energies}
    coords = {"temperature": [1.0, 1.2], "step": ("draw", np.arange(num))}
    trace = xr.Dataset({name: (dims, values) for name, values in series.items()}, coords)
    return list(_ensemble(Subject(trace, trace, 200)))


def test_energies_at_two_temperatures_are_compared_with_their_fluctuations():
    scores = [(line.value - 1) / line.standard_error for num in range(200, 240) for line in energies_of(1.2, num)]
    assert abs(np.mean(scores)) < 4 / np.sqrt(40)
    assert abs(np.std(scores) - 1) < 4 / np.sqrt(80)
    (wrong,) = energies_of(1.26, 3_000)
    assert wrong.value == pytest.approx(0.26 / 1.26 * 1.2 / 0.2, abs=4 * wrong.standard_error)


NUM_DRAWS = 1_000


def gaussian(num_weights: int = 40, num_chains: int = 4, **changes) -> dict:
    """Independent samples at T = 0.5 of U = Σ_i k_i·w_i²/2, or of something else, with weights of two layers."""
    rng = np.random.default_rng(3)
    stiffness = np.linspace(0.5, 4.0, num_weights)
    w = rng.normal(size=(num_chains, NUM_DRAWS, num_weights)) * np.sqrt(0.5 / stiffness)
    w = changes.get("change", lambda w, _: w)(w, stiffness)
    halves = [{"a": x[..., :10], "b": x[..., 10:]} for x in (w, stiffness * w)]
    energies = 0.5 * (stiffness * w**2).sum(axis=-1)
    return {"weights": halves[0], "gradients": halves[1], "energies": energies, "temperature": 0.5}


def test_correct_samples_of_another_library_pass():
    certificate = pl.certificate(**gaussian())
    assert certificate.passed, str(certificate)
    names = {line.name for line in certificate.lines}
    assert {"mean of single weights", "spread along directions", "fluctuations of U"} <= names
    without_energies = {name: value for name, value in gaussian().items() if name != "energies"}
    assert pl.certificate(**without_energies).verdict != "failed"


def shifted(w, stiffness):
    return w + np.eye(len(stiffness))[12] * np.sqrt(0.5 / stiffness)


def frozen(w, stiffness):
    return np.where(np.arange(len(stiffness)) == 12, 0.7 * np.sqrt(0.5 / stiffness), w)


def cold_layer(w, stiffness):
    return np.where(np.arange(len(stiffness)) < 10, np.sqrt(0.5) * w, w)


def one_shell(w, stiffness):
    """Samples of one energy: averages are right, fluctuations are not."""
    energy = 0.5 * (stiffness * w**2).sum(axis=-1, keepdims=True)
    return w * np.sqrt(0.5 * len(stiffness) * 0.5 / energy)


def drifting(w, stiffness):
    return w * (1 + 0.15 * np.linspace(-1, 1, w.shape[1])[:, None])


def apart(w, stiffness):
    return w + 0.15 * np.sign(np.arange(len(w)) - 1.5)[:, None, None]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (shifted, "mean of single weights"),
        (frozen, "temperature of single weights"),
        (cold_layer, "virial temperature of layers, a"),
        (one_shell, "fluctuations of U"),
        (drifting, "stationarity of U"),
        (apart, "mean along directions"),
        (lambda w, _: w * np.sqrt(1.02), "virial temperature"),
    ],
)
def test_wrong_samples_of_another_library_do_not_pass(change, name):
    certificate = pl.certificate(**gaussian(change=change))
    assert not certificate.passed
    assert name in {line.name for line in certificate.lines if line.required and not line.passed}


def test_gradients_and_energies_are_computed_from_a_potential():
    rng = np.random.default_rng(0)
    w = (np.sqrt(toy.TEMPERATURE) * rng.normal(size=(2, 200, toy.NUM_WEIGHTS))).astype(np.float32)
    samples = {"small": w[..., :80], "large": w[..., 80:]}
    about = {"potential": toy.POTENTIAL, "dataset": toy.dataset(), "temperature": toy.TEMPERATURE}
    certificate = pl.certificate(weights=samples, **about)
    assert certificate.verdict != "failed"
    values = {line.name: line for line in certificate.lines if line.chain is None}
    assert values["virial temperature"].value == pytest.approx(1, abs=4 * values["virial temperature"].uncertainty)
    assert "predicted bias of the loss" in values


def test_bad_arguments_and_samples_are_named(correct_run):
    for wrong in ({"tolerance": 0}, {"burn_in": 1.0}, {"noise_draws": 10}, {"layer_tolerance": "x"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            pl.certificate(correct_run, **wrong)
    samples = gaussian()
    for changes, message in (
        ({"weights": None}, "weights"),
        ({"gradients": None}, "gradients is missing"),
        ({"gradients": {"a": np.zeros((4, 7, 10)), "b": np.zeros((4, 7, 30))}}, "leading axes"),
        ({"temperature": -1.0}, "temperature"),
        ({"potential": toy.POTENTIAL}, "dataset is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            pl.certificate(**(samples | changes))
