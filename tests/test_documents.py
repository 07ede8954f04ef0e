"""What README and examples show, run as shown (shorter)."""

import re
import warnings
from pathlib import Path

import matplotlib
import pytest

from examples import bias_law
from pseudolangevin import config, runs

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
COMMANDS = re.findall(r"^    pseudolangevin (\w[\w-]*)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def shortened(code: str) -> str:
    """The same program with a twentieth of the steps."""
    for long, short in [
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
