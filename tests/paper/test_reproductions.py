"""All reproductions on simulated chains, some on short real ones: rows, files, pictures, and what fails when."""

import json
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from pseudolangevin import paper
from pseudolangevin.data import Dataset
from pseudolangevin.diagnostics import NoiseStudy
from pseudolangevin.diagnostics.diffusion import Diffusion, MeasuredDiffusion
from pseudolangevin.paper import fashion, generalization, noise, prediction_vs_size, speeds, spins, thermodynamics
from pseudolangevin.paper.results import Reproduction
from pseudolangevin.paper.spins import chains

RESULTS = sorted((Path(__file__).parents[2] / "paper/results").glob("*.json"))
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
    return [Dataset(rng.integers(0, 256, (n, 784)).astype(np.float32) / 255, np.arange(n) % 10) for n in (600, 50)]


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


def test_a_phase_that_is_continued_is_measured_again_where_its_weights_are_missing(simulated, no_picture, tmp_path):
    paper.reproduce("thermodynamics", "smoke", tmp_path)
    content = json.loads((tmp_path / "thermodynamics.json").read_text())
    del content["parts"]["cooled, pL, T = 0.0002"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "thermodynamics.json").write_text(json.dumps(content))
    assert paper.reproduce("thermodynamics", "smoke", other) in (0, 1)
    assert not json.loads((other / "thermodynamics.json").read_text())["provenance"]["parts_left"]


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
    with pytest.raises(ValueError, match=r"variants\.json was measured at another scale or with other settings"):
        paper.reproduce("variants", "smoke", tmp_path)


@pytest.mark.parametrize("name", [p.stem for p in RESULTS if '"parts":' in p.read_text() and p.stem in paper.MODULES])
def test_committed_rows_follow_from_the_parts_with_the_reasons_that_were_added(name):
    """The files are of real chains, of which many failed: dead classes, no equilibrium, steps not reached."""
    path, _, attribute = paper.MODULES[name].partition(".")
    module: Any = import_module(f"pseudolangevin.paper.{path}")
    made = Reproduction(name, "paper", getattr(module, attribute) if attribute else module, RESULTS[0].parent, 0)
    stored = json.loads((RESULTS[0].parent / f"{name}.json").read_text())["rows"]
    for found, expected in zip(made.rows, stored, strict=True):
        numbers = {n: pytest.approx(v) for n, v in expected.items() if isinstance(v, float)}
        assert vars(found) | {"measured": found.measured if np.isfinite(found.measured) else None} == expected | numbers


@pytest.mark.filterwarnings("ignore::pseudolangevin.DeadClassWarning")  # of a short training
def test_short_real_chains_of_thermodynamics(no_picture, monkeypatch, tmp_path):
    length = chains(20, 10, 60, batch_size=100)
    settings = thermodynamics.SETTINGS["smoke"] | {
        **{"hidden_units": 3, "start_steps": 20, "coolings": {"pL": (length,) * 2}},
        **{"levels": (2e-4,), "temperatures": (2e-4,), "from Adam": {}},
    }
    monkeypatch.setattr(thermodynamics, "spin_task", small_task)
    monkeypatch.setitem(thermodynamics.SETTINGS, "smoke", settings)
    assert paper.reproduce("thermodynamics", "smoke", tmp_path) in (0, 1)
    content = json.loads((tmp_path / "thermodynamics.json").read_text())
    assert list(content["parts"]) == ["data", "cooled, pL, T = 0.0002"]
    assert all(line["measured"] > 0 for line in content["rows"])
    assert content["parts"]["cooled, pL, T = 0.0002"]["value"]["steps"] == 20
    names = {path.name for path in tmp_path.glob("*.npz")}
    assert {"end-1713-trained.npz", "end-1713-cooled,-pL,-T-=-0.0002.npz"} <= names


def test_speeds_are_measured_on_real_chains_with_the_masses_of_many_measurements(tmp_path):
    task = small_task(3)
    case = speeds.Case(3, 1e-3, 1, seconds=0.02, chunk_size=600)
    weights = task.network.init(jax.random.key(0))
    speed = case.measure(speeds.pseudo(task, weights, case, share=2.5), weights)
    assert speed.diffusion is not None
    assert speed.diffusion.steps[0] == 100
    assert speed.coefficient.mean > 0
    assert int(speed.states.num_refreshes[0]) >= 9


def test_the_projection_of_the_images_is_the_published_one():
    pixels = np.random.default_rng(1).integers(0, 256, (5, 784))
    images = Dataset(pixels.astype(np.float32) / np.float32(255), np.zeros(5, np.int32))
    signs = np.random.default_rng(42).choice([-1, 1], size=(784, 100))
    found = fashion.projected(images)
    np.testing.assert_array_equal(found.inputs, np.sign(pixels @ signs))
    assert found.inputs.dtype == np.int8
