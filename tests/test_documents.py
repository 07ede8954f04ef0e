"""What README and examples show, run as shown (shorter)."""

import re
import warnings
from functools import partial
from pathlib import Path

import matplotlib
import pytest

import pseudolangevin as pl
from examples import bias_law, ensemble_uncertainty, find_temperature, geometry_of_solutions, train_by_sampling
from pseudolangevin import config, runs

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
COMMANDS = re.findall(r"^    pseudolangevin (\w[\w-]*)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """The same programs with fewer mini-batches in a certificate, and fewer temperatures in a search."""
    monkeypatch.setattr(pl, "certificate", partial(pl.certificate, noise_draws=20))
    monkeypatch.setattr(pl, "find_temperature", partial(pl.find_temperature, num_temperatures=3))


def shortened(code: str) -> str:
    """The same program with a twentieth of the steps and a tenth of the data."""
    for long, short in [
        ("num_train=5_000", "num_train=500"),
        ("num_test=1_000", "num_test=100"),
        ("num_steps=4_000", "num_steps=200"),
        ("num_steps=1_000", "num_steps=50"),
        ("every=100", "every=10"),
    ]:
        assert long in code
        code = code.replace(long, short)
    return code


def test_the_readme_fits_its_own_description():
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(lines) <= 15
    assert set(COMMANDS) <= {"sample", "resume", "watch", "check", "report"}


def test_the_first_program_of_the_readme_runs(capsys):
    with warnings.catch_warnings():
        exec(compile(shortened(BLOCKS[0]), "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "kinetic_temperature" in printed
    assert "certificate" in printed


def test_the_readme_loads_a_run_and_plots_its_loss(tmp_path, monkeypatch):
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    settings = config.Settings.model_validate(
        {
            "temperatures": [1e-3, 2e-3],
            "num_chains": 1,
            "num_steps": 40,
            "record_every": 10,
            "task": {"num_train": 200, "num_test": 50, "dimension": 10, "num_classes": 3},
            "network": {"sizes": [10, 5, 3], "output_activation": "identity"},
            "sampler": {"name": "pseudo_langevin", "batch_size": 20, "variance_block": 10, "variance_max_batches": 20},
            "start": {"kind": "random"},
        }
    )
    assert not runs.start(settings, Path("runs/first")).interrupted
    names: dict = {}
    exec(compile("import pseudolangevin as pl\n" + BLOCKS[1], "README.md", "exec"), names)
    assert names["result"].trace.sizes == {
        "temperature": 2,
        "chain": 1,
        "draw": 4,
        "layer": 2,
        "quantile": 3,
        "class": 3,
    }


@pytest.mark.parametrize("ratio", [0.1])
def test_the_bias_law_example_confirms_its_law(tmp_path, ratio):
    picture = tmp_path / "law.png"
    worst = bias_law.main(["--out", str(picture), "--chains", "200", "--steps", "1000", "--ratios", str(ratio)])
    assert worst < 3
    assert picture.stat().st_size > 10_000


def test_the_examples_of_training_by_sampling_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["--examples", "1000", "--temperature", "1e-3", "--steps", "400", "--adam-epochs", "10"]
    errors = train_by_sampling.main(small)
    assert all(0 <= error < 0.75 for error in errors.values())  # 0.9 by chance; a thousand examples teach little
    assert capsys.readouterr().out.count("test error") == 4


def test_the_example_of_the_search_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    find_temperature.main(["--examples", "1000", "--epochs", "150", "--steps", "64"])
    assert (tmp_path / "temperature.png").stat().st_size > 10_000
    assert capsys.readouterr().out.count("test error") == 4


def test_the_example_of_uncertainty_runs(tmp_path, capsys):
    picture = tmp_path / "uncertainty.png"
    size = ["--examples", "600", "--hidden", "10", "--temperature", "1e-3", "--steps", "400"]
    errors = ensemble_uncertainty.main([*size, "--folder", str(tmp_path), "--out", str(picture)])
    assert "spin vectors instead" in capsys.readouterr().out
    assert errors["certain half"] < errors["uncertain half"]
    assert picture.exists()


def test_the_example_of_geometry_runs(tmp_path):
    picture = tmp_path / "geometry.png"
    summary = geometry_of_solutions.main(["--examples", "1000", "--steps", "256", "--out", str(picture)])
    assert len(summary) == 4
    for temperature in ("0.0002", "0.002"):
        within, between = (summary[f"T = {temperature}, {name}"] for name in ("within a chain", "between chains"))
        assert within["overlap"] > between["overlap"]
    assert picture.exists()
