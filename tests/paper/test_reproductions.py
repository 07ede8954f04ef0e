"""All reproductions on simulated chains, some on short real ones: rows, files, pictures, and what fails when."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from pseudolangevin import paper
from pseudolangevin.data import Dataset
from pseudolangevin.data.tasks import Splits
from pseudolangevin.diagnostics import NoiseStudy
from pseudolangevin.diagnostics.averages import Average
from pseudolangevin.diagnostics.diffusion import Diffusion, MeasuredDiffusion
from pseudolangevin.paper import fashion, generalization, noise, prediction_vs_size, speeds, spins, thermodynamics
from pseudolangevin.paper.results import published_average
from pseudolangevin.paper.spins import chains

small_task = partial(spins.spin_task, num_train=2_000)


def simulated_trace(temperatures, num_chains, num_records, every, sampler="pseudo_langevin"):
    """Return a trace of stationary chains with every variable that a reproduction reads."""
    dims, shape = ("temperature", "chain", "draw"), (len(temperatures), num_chains, num_records)
    noise = 0.001 * np.random.default_rng(int(1e9 * temperatures[0])).standard_normal(shape)
    means = {"loss": 0.3, "squared_norm": 300.0, "error": 0.1, "potential": 0.4, "test_error": 0.11}
    data: dict[str, Any] = {name: (dims, value + noise) for name, value in means.items()}
    data["virial_temperature"] = (dims, np.array(temperatures)[:, None, None] * (1 + noise))
    data["status"] = (dims, np.zeros(shape, int))
    data["dead_class"] = ((*dims, "class"), np.zeros((*shape, 10), bool))
    if sampler in ("pseudo_langevin", "balanced_langevin"):
        variance = np.ones((*shape, 3)) * np.array(temperatures)[:, None, None, None]
        data["gradient_variance"] = ((*dims, "layer"), variance)
    if sampler == "hybrid_monte_carlo":
        data["acceptance"] = (dims, np.full(shape, 0.7))
    steps = every * np.arange(1, num_records + 1)
    return xr.Dataset(data, coords={"temperature": list(temperatures), "step": ("draw", steps)})


def simulated_sample(sampler, weights, *, temperatures=None, num_chains=1, num_steps, record_every, **_):
    temperatures = [0.0] if temperatures is None else temperatures
    trace = simulated_trace(temperatures, num_chains, min(20, num_steps // record_every), record_every, sampler.name)
    shape = (len(temperatures), num_chains)
    weights = jax.tree.map(lambda w: np.broadcast_to(w, (*shape, *w.shape[2:])), weights)
    flat = jax.tree.map(lambda w: w.reshape(-1, *w.shape[2:]) ** 2 + 1, weights)
    return SimpleNamespace(trace=trace, weights=weights, states=SimpleNamespace(masses=flat), sampler=sampler)


def simulated_starts(potential, dataset, init, *, num_starts=1, **_):
    return jax.vmap(init)(jax.random.split(jax.random.key(0), num_starts))


def simulated_speed(self, sampler, weights):
    """Return a speed that grows with the batch size and the temperature ratio; hybrid Monte Carlo is slow."""
    value = 1e-3 * getattr(sampler, "num_leapfrog_steps", 0) or sampler.batch_size * getattr(
        sampler, "temperature_ratio", 0.01
    )
    seconds = np.array([1.0, 2.0, 4.0])
    curve = Diffusion(100 * seconds, seconds, np.array([value * seconds]), np.full((1, 3), 0.1 * value))
    return MeasuredDiffusion(curve, 400, 4.0, 0.4, {}, SimpleNamespace(time_step=np.array([0.1])))


def simulated_images(*_, **__):
    rng = np.random.default_rng(0)
    parts = [Dataset(rng.integers(0, 256, (n, 784)).astype(np.float32) / 255, np.arange(n) % 10) for n in (600, 50, 50)]
    return Splits(*parts)


def simulated_study(num_times=3, num_bins=10):
    rng = np.random.default_rng(0)
    return NoiseStudy(
        steps=1_000 * np.arange(1, num_times + 1),
        last_refresh=np.zeros(num_times, int),
        ks_fraction=0.945 + 0.001 * rng.standard_normal(num_times),
        noise_edges=np.linspace(-4, 4, num_bins + 1),
        noise_density=rng.random((num_times, num_bins)),
        correlation_edges=np.linspace(-0.5, 0.5, num_bins + 1),
        correlation_density=rng.random((num_times, 3, num_bins)),
        correlation_std=np.tile([0.1165, 0.0644, 0.0645], (num_times, 1)),
        autocorrelation=np.tile([1.0, 0.001, 0.0], (num_times, 3, 1)),
        num_silent=np.zeros(num_times, int),
    )


@pytest.fixture
def simulated(monkeypatch):
    """Replace chains, trainings and images by simulations; everything else is real."""
    monkeypatch.setattr(spins, "sample", simulated_sample)
    monkeypatch.setattr(spins, "trained_starts", simulated_starts)
    monkeypatch.setattr(speeds.Case, "measure", simulated_speed)
    monkeypatch.setattr(fashion.tasks, "fashion_mnist", simulated_images)
    monkeypatch.setattr(noise, "noise_study", lambda *_, **__: simulated_study())
    for module in (spins, speeds, noise, thermodynamics, prediction_vs_size, generalization):
        monkeypatch.setattr(module, "spin_task", lambda hidden_units: small_task(3))
    monkeypatch.setitem(fashion.SETTINGS["smoke"], "hidden_units", 3)


@pytest.fixture
def no_picture(monkeypatch):
    """Draw pictures without writing them, which takes a second each."""
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)


@pytest.mark.parametrize("name", paper.MODULES)
def test_a_reproduction_writes_rows_and_a_picture(name, simulated, tmp_path, capsys, request):
    assert paper.reproduce(name, "smoke", tmp_path) in (0, 1)
    content = json.loads((tmp_path / f"{name}.json").read_text())
    assert list(content) == ["name", "scale", "rows", "provenance", "parts"]
    assert (content["name"], content["scale"], content["provenance"]["seed"]) == (name, "smoke", 0)
    assert len(content["rows"]) >= 4
    assert all(isinstance(line["passed"], bool) for line in content["rows"])
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert not set(printed) - set(map(chr, range(128))) - set("±²")
    assert content["rows"][0]["quantity"] in printed
    # Rows are made again from the file, and nothing is measured.
    request.getfixturevalue("no_picture")
    assert paper.reproduce(name, "smoke", tmp_path, 0) in (0, 1)
    assert json.loads((tmp_path / f"{name}.json").read_text())["rows"] == content["rows"]


def test_a_reproduction_continues_where_its_time_was_up(simulated, no_picture, tmp_path, monkeypatch, capsys):
    once, twice = tmp_path / "once", tmp_path / "twice"
    paper.reproduce("suboptimal", "smoke", once)
    # Samplers of the first case need 3 + 3 + 5 seconds each, and the first 10 more.
    assert paper.reproduce("suboptimal", "smoke", twice, 12) == 130
    assert "not measured in this time: N = 1914, T = 0.0004, pL, ratio 0.01" in capsys.readouterr().out
    first = json.loads((twice / "suboptimal.json").read_text())
    assert "N = 1914, T = 0.0004, pL, ratio 0.001" in first["parts"]
    assert "N = 1914, T = 0.0004, pL, ratio 0.01" in first["provenance"]["parts_left"]
    measured = []

    def counted(case, sampler, weights):
        measured.append(sampler)
        return simulated_speed(case, sampler, weights)

    monkeypatch.setattr(speeds.Case, "measure", counted)
    assert paper.reproduce("suboptimal", "smoke", twice) in (0, 1)
    assert len(measured) == 12 - len(first["parts"])
    rows = [{r["quantity"]: r for r in json.loads((d / "suboptimal.json").read_text())["rows"]} for d in (once, twice)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("name", ["thermodynamics", "generalization", "fashion"])
def test_a_phase_that_is_continued_is_measured_again_where_its_weights_are_missing(
    name, simulated, no_picture, tmp_path
):
    paper.reproduce(name, "smoke", tmp_path)
    content = json.loads((tmp_path / f"{name}.json").read_text())
    last = {"thermodynamics": "cooled, pL, T = 0.0002", "generalization": "1e-6 from Adam"}
    del content["parts"][last.get(name, "balanced, T = 2e-05")]
    other = tmp_path / "other"
    other.mkdir()
    (other / f"{name}.json").write_text(json.dumps(content))
    assert paper.reproduce(name, "smoke", other) in (0, 1)
    assert not json.loads((other / f"{name}.json").read_text())["provenance"]["parts_left"]


def test_chains_are_started_again_until_no_class_is_dead(monkeypatch):
    def sample(sampler, weights, *, key=0, **options):
        result = simulated_sample(sampler, weights, **options)
        result.trace["dead_class"].values[..., -1, 3] = key < 6
        return result

    monkeypatch.setattr(spins, "sample", sample)
    task = small_task(3)
    starts, options = simulated_starts(None, None, task.network.init, num_starts=3), {"temperatures": [1e-3]}
    starts = jax.tree.map(lambda w: w[None], starts)
    for key, attempts in ((5, 2), (6, 1), (0, 3)):
        result = chains(40, 10, 60).first_alive(spins.SAMPLERS["pL"], task, starts, key=key, **options)
        assert result.trace.attrs["attempts"] == attempts
        assert spins.described(result)["dead"].tolist() == [[key == 0]]


def test_a_file_of_other_settings_is_not_continued(simulated, no_picture, tmp_path, monkeypatch):
    paper.reproduce("variants", "smoke", tmp_path, 35)
    monkeypatch.setitem(speeds.VARIANTS.SETTINGS["smoke"], "seed", 1)
    with pytest.raises(
        ValueError, match=r"variants\.json was measured at another scale or with other settings; choose"
    ):
        paper.reproduce("variants", "smoke", tmp_path)


def test_a_reason_added_to_the_file_is_kept(simulated, no_picture, tmp_path):
    paper.reproduce("batch-size", "smoke", tmp_path)
    path = tmp_path / "batch-size.json"
    content = json.loads(path.read_text())
    for part in content["parts"].values():
        if part["value"]["settings"].get("batch_size") == 2:  # a smaller batch that is faster
            part["value"]["curve"]["displacement"] = [[1e3, 2e3, 4e3]]
    path.write_text(json.dumps(content))
    assert paper.reproduce("batch-size", "smoke", tmp_path, 0) == 1
    content = json.loads(path.read_text())
    failed = [r for r in content["rows"] if not r["passed"]]
    assert failed
    assert failed[0]["reason"] is None
    failed[0]["reason"] = "The steps of small batches are short."
    path.write_text(json.dumps(content))
    paper.reproduce("batch-size", "smoke", tmp_path, 0)
    assert json.loads(path.read_text())["rows"] == content["rows"]


def test_unknown_names_and_scales_are_rejected_before_anything_runs(tmp_path):
    with pytest.raises(ValueError, match=r"name = 'nose': choose one of .*'noise', 'prediction-vs-size'"):
        paper.reproduce(["noise", "nose"], "smoke", tmp_path)
    with pytest.raises(ValueError, match=r"scale = 'large': choose one of .*'smoke', 'paper'"):
        paper.reproduce("noise", "large", tmp_path)
    assert not list(tmp_path.iterdir())


def cooled(temperature, **means):
    values = {"loss": 0.324, "squared_norm": 357.0, "error": 0.1096, "potential": 0.485} | means
    return {"temperatures": [temperature], "averages": [{n: Average(value, 1e-4, 10) for n, value in values.items()}]}


def test_thermodynamics_judges_by_published_values_scaled_by_the_ideal_losses():
    found = {"data": {"ideal_loss": 0.324}, "cooled, balanced, T = 3e-05": cooled(3e-5, loss=0.33)}
    found["cooled, hMC, T = 3e-05"] = cooled(3e-5, loss=0.32)
    made = {r.quantity: r for r in thermodynamics.rows(found, thermodynamics.SETTINGS["paper"])}
    loss = made["loss at T = 3e-05, cooled, balanced"]
    assert loss.published == 0.324192
    assert loss.published_scaled == pytest.approx(0.324192 * 0.324 / 0.320)
    assert loss.tolerance == pytest.approx(0.02 * 0.324192 * 0.324 / 0.320)
    assert loss.passed
    assert made["squared_norm at T = 3e-05, cooled, balanced"].published_scaled is None
    assert not made["loss at T = 3e-05, cooled, balanced over hMC, minus one"].passed


def test_in_the_cold_a_lower_potential_passes_and_explains_the_other_rows():
    cold = {"squared_norm": 200.0, "error": 0.05, "potential": 0.26}
    found = {"data": {"ideal_loss": 0.320}, "cooled, balanced, T = 1e-06": cooled(1e-6, loss=0.17, **cold)}
    found["from Adam, hMC"] = cooled(1e-6, loss=0.19, **cold | {"potential": 0.27})
    made = {r.quantity: r for r in thermodynamics.rows(found, thermodynamics.SETTINGS["paper"])}
    assert made["potential at T = 1e-06, cooled, balanced"].published == pytest.approx(0.2639, abs=1e-4)
    assert made["potential at T = 1e-06, cooled, balanced"].passed
    assert not made["loss at T = 1e-06, cooled, balanced"].passed
    assert "lower than the published 0.2639" in str(made["loss at T = 1e-06, cooled, balanced"].reason)
    assert not made["potential at T = 1e-06, from Adam, hMC"].passed
    assert "U is 0.2700, and 0.2600 after slow cooling" in str(made["loss at T = 1e-06, from Adam, hMC"].reason)


@pytest.mark.filterwarnings("ignore::pseudolangevin.DeadClassWarning")  # of a short training
def test_short_real_chains_of_thermodynamics(no_picture, monkeypatch, tmp_path):
    length = chains(40, 10, 60, batch_size=100)
    settings = thermodynamics.SETTINGS["smoke"] | {
        **{"hidden_units": 3, "start_steps": 20, "coolings": {"balanced": (length,) * 2}},
        **{"adam": {"num_starts": 2, "epochs": 1, "seed": 0}, "from Adam": {"balanced": length}},
        **{"levels": (2e-4,), "temperatures": (2e-4,)},
        "hybrid": chains(6, 1, 60, num_leapfrog_steps=2, time_step=0.1, warmup_moves=1),
    }
    monkeypatch.setattr(thermodynamics, "spin_task", small_task)
    monkeypatch.setitem(thermodynamics.SETTINGS, "smoke", settings)
    assert paper.reproduce("thermodynamics", "smoke", tmp_path) in (0, 1)
    content = json.loads((tmp_path / "thermodynamics.json").read_text())
    assert list(content["parts"]) == [
        "data",
        *(f"cooled, {name}, T = 0.0002" for name in ("balanced", "hMC")),
        "from Adam, balanced",
    ]
    assert all(line["measured"] > 0 for line in content["rows"] if "minus one" not in line["quantity"])
    assert content["parts"]["cooled, balanced, T = 0.0002"]["value"]["steps"] == 40
    names = {path.name for path in tmp_path.glob("*.npz")}
    assert {"starts-1713-2x1.npz", "end-1713-trained.npz", "end-1713-cooled,-balanced,-T-=-0.0002.npz"} <= names


def test_speeds_are_measured_on_real_chains_with_the_masses_of_many_measurements(tmp_path):
    task = small_task(3)
    case = speeds.Case(3, 1e-3, 1, seconds=0.02, chunk_size=600)
    weights = task.network.init(jax.random.key(0))
    speed = case.measure(speeds.pseudo(task, weights, case, share=2.5), weights)
    assert speed.diffusion is not None
    assert speed.diffusion.steps[0] == 100
    assert speed.coefficient > 0
    assert int(speed.states.num_refreshes[0]) >= 9


def performance_rows(leapfrog_steps, speed):
    case = speeds.PERFORMANCE.SETTINGS["paper"]["cases"][2]
    case = replace(case, options={**case.options, "moves": leapfrog_steps})
    coefficients = {"pL as in the paper": 1e-4, "balanced": 5e-5, f"hMC, {max(leapfrog_steps)} steps": speed}
    found: dict[str, Any] = {n: {"coefficient": Average(v, 0.0, 1.0)} for n, v in coefficients.items()}
    found["pL as in the paper"] |= {"seconds_per_step": 1e-4, "variance_share": 0.1}
    found[f"hMC, {max(leapfrog_steps)} steps"] |= {"seconds_per_step": 1.0, "time_step": 0.1}
    return {r.quantity.replace(case.where, "N"): r for r in speeds.compared_with_published(case, found)}


def test_moves_as_long_as_the_papers_are_compared_with_the_published_ratio():
    rows = performance_rows((100, 1_000), 2e-3)
    found = rows["D*, N, pL as in the paper over hMC as in the paper"]
    assert found.measured == pytest.approx(0.05)
    assert found.published == pytest.approx(1.79e-5 / 2.12e-4)
    assert rows["share of variance measurements in a pL step, N"].published == pytest.approx(1.5 / 3.5)
    assert not performance_rows((1_000,), 0.0)["D*, N, pL as in the paper over hMC as in the paper"].passed


def test_moves_that_are_too_short_are_bounded_by_a_free_flight():
    # A move of two steps takes one second and computes four gradients; 1000 steps of 0.1 at T = 1e-6 go 1e-6·100².
    rows = performance_rows((2,), 1e-9)
    assert rows["seconds per move of 1000 steps, N, bounded"].measured == pytest.approx(250.0)
    assert rows["D*/N in 1/s, N, hMC as in the paper, bounded"].measured == pytest.approx(0.01 / 250)
    # Balanced Langevin is 50 000 times as fast as the moves that were measured, and is judged by the bound.
    judged = rows["D*, N, balanced over hMC as in the paper, bounded (at least 1)"]
    assert judged.measured == pytest.approx(1.25)
    assert judged.passed


def outcome(curve, dead=False, **averages):
    names = ("loss", "squared_norm", "error", "test_error", "gradient_variance")
    steps = 500 * np.arange(1, len(curve) + 1)
    return {
        "averages": [{name: Average(averages.get(name, 0.1), 0.0, 10) for name in names}],
        **{"dead": np.array([[dead]]), "attempts": 1, "steps": steps[-1], "step": steps},
        "test_error": np.array([[curve]]),
    }


FLAT, RISING = [0.116, 0.113, 0.113, 0.113, 0.113, 0.113], [0.1124, 0.1122, 0.113, 0.115, 0.12, 0.13]


@pytest.fixture
def published_outcomes(monkeypatch):
    phases = [p for p in generalization.SETTINGS["paper"]["phases"] if p.sampler != "balanced"]
    phases = [p._replace(chains=replace(p.chains, num_steps=3_000)) for p in phases]
    monkeypatch.setitem(generalization.SETTINGS["paper"], "phases", tuple(phases))
    names = ("loss", "squared_norm", "test_error", "gradient_variance")
    found = {"Adam": outcome([0.115, 0.1118, 0.12, 0.1525]), "Adam on all": outcome([0.12, 0.13])}
    for phase in phases:
        for temperature in phase.temperatures:
            means = {n: published_average(1_006_110, "pL", temperature, n) for n in names}
            found[phase.name] = outcome(RISING if temperature == 1e-7 else FLAT, **means)
    return found


def test_published_averages_and_curves_pass_as_generalization(published_outcomes):
    rows = {r.quantity: r for r in generalization.rows(published_outcomes, generalization.SETTINGS["paper"])}
    assert [quantity for quantity, found in rows.items() if not found.passed] == []
    correlation = rows["rank correlation of test error and gradient variance over the temperatures (at least 0.5)"]
    assert correlation.measured == pytest.approx(0.893, abs=1e-3)
    assert correlation.published == pytest.approx(0.893, abs=1e-3)
    assert rows["test error after 500 steps, T = 1e-7 from random weights"].published == 0.1124


def test_a_bad_run_fails_the_rows_of_generalization_with_reasons(published_outcomes):
    bad = published_outcomes
    bad["2e-7"] = outcome(FLAT, loss=0.1, squared_norm=19_694.7, test_error=0.116, gradient_variance=4.2e-10)
    bad["3e-7 from random weights"]["test_error"] = np.array([[[0.13, 0.118, 0.117, 0.12, 0.13, 0.14]]])
    bad["Adam"] = outcome([0.12, 0.1118, 0.1118, 0.1118])
    bad["1e-7 from Adam"]["averages"][0]["loss"] = Average(0.2, 0.0, 10)
    bad["1e-4"] = outcome(FLAT, dead=True, **{n: a.mean for n, a in bad["1e-4"]["averages"][0].items()} | {"loss": 2.3})
    rows = generalization.rows(bad, generalization.SETTINGS["paper"])
    failed = {r.quantity: r.reason for r in rows if not r.passed}
    assert set(failed) == {
        "loss at T = 1e-7 from Adam",
        "loss at T = 1e-4",
        "loss at T = 2e-7",
        "test_error at T = 2e-7",
        "jump of the loss from T = 1e-07 to 2e-07 (at least 0.02)",
        "rise of the test error after its minimum, T = 3e-7 from random weights",
        "rise of the test error after its minimum, Adam (at least 0.003)",
    }
    assert "lost a class" in str(failed["loss at T = 1e-4"])
    assert "depends on the start" in str(failed["loss at T = 1e-7 from Adam"])


def test_a_published_step_that_was_not_reached_does_not_pass(published_outcomes):
    settings = generalization.SETTINGS["paper"]
    phases = [p._replace(chains=replace(p.chains, num_steps=50_000)) for p in settings["phases"]]
    rows = {r.quantity: r for r in generalization.rows(published_outcomes, {**settings, "phases": phases})}
    assert not rows["test error after 50000 steps, T = 1e-7 from random weights"].passed


def test_the_projection_of_the_images_is_the_published_one():
    pixels = np.random.default_rng(1).integers(0, 256, (5, 784))
    images = Dataset(pixels.astype(np.float32) / np.float32(255), np.zeros(5, np.int32))
    signs = np.random.default_rng(42).choice([-1, 1], size=(784, 100))
    found = fashion.projected(images)
    np.testing.assert_array_equal(found.inputs, np.sign(pixels @ signs))
    assert found.inputs.dtype == np.int8


def test_fashion_counts_starts_with_a_dead_class_and_leaves_them_out():
    trace = simulated_trace([5e-8, 1e-7, 5e-7], 3, 8, 500)
    trace["test_error"].values[:] = np.array([0.2, 0.4, 0.2])[:, None]
    trace["dead_class"].values[0, 1, -1, 3] = True
    weights = jax.tree.map(lambda w: w[None, None], small_task(3).network.init(jax.random.key(0)))
    result: Any = SimpleNamespace(trace=trace, weights=weights, sampler=SimpleNamespace(settings={}))
    found = spins.described(result)
    found["averages"] = [{n: Average(**value) for n, value in level.items()} for level in found["averages"]]
    rows = {r.quantity: r for r in fashion.rows({"pL": found}, fashion.SETTINGS["paper"])}
    assert rows["test_error, pL, T = 5e-08"].measured == pytest.approx(0.2)
    assert not rows["test_error, pL, T = 5e-08"].passed  # 0.1926 was published
    assert rows["starts with a dead class, pL, T = 5e-08"].measured == 1
    assert rows["starts with a dead class, pL, T = 5e-08"].passed
    assert rows["test_error, pL, T = 5e-07"].measured == pytest.approx(0.8 / 3)
