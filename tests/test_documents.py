"""README and docs: their programs run, their links and commands exist, and their lines have the agreed width."""

import doctest
import importlib
import json
import os
import pkgutil
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
import typer
from flax import nnx

import pseudolangevin as pl
from pseudolangevin import observables
from pseudolangevin.cli import BAD_INPUT, app, run
from pseudolangevin.runs import config, session
from tests.runs.conftest import _share_programs  # noqa: F401

pytestmark = pytest.mark.usefixtures("_no_directions")

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NOTEBOOKS = sorted((ROOT / "docs/tutorials").glob("*.ipynb"))
NOT_RUN = ("certificate",)  # it has a test of its own, with the lines that its program prints
WIDTH = 100
num_directions = observables._num_directions


def page_name(page: Path) -> str:
    """Return the name of a page in the names of tests."""
    return page.relative_to(ROOT).with_suffix("").as_posix()


def blocks(page: Path, language: str = "python") -> list[str]:
    """Return the code blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def shortened(code: str, num_steps: int = 20) -> str:
    """Return the same program with fewer steps and less data."""
    lengths = {"num_train": 200, "num_test": 50, "num_steps": num_steps, "record_every": 10, "batch_size": 40}
    lengths |= {"stop": 20, "every": 10, "keep_weights_every": 1, "checkpoint_every": 10}
    lengths |= {"seconds": 2, "num_leapfrog_steps": 5}
    for name, short in lengths.items():
        code = re.sub(rf'\b({name}"?(=|: | = ))[\d_]+', rf"\g<1>{short}", code)
    return code


@pytest.fixture(scope="module")
def given():
    """Return what the pages take as given: data, a network, a sampler. Pages share its compiled programs."""
    train, test = pl.tasks.spin_vectors(jax.random.key(0), num_train=200, num_test=20, dimension=6, num_classes=3)
    network = pl.models.feedforward((6, 5, 4, 3), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=2.0)
    inputs, labels = train.batch
    return {
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "pl": pl,
        "key": jax.random.key(2),
        "train": train,
        "test": test,
        "held_out": test,
        "network": network,
        "apply": network.apply,
        "module": nnx.Linear(6, 3, rngs=nnx.Rngs(0)),
        "potential": potential,
        "weights": network.init(jax.random.key(1)),
        "inputs": inputs,
        "labels": labels,
        "sampler": pl.full_batch_langevin(potential, train, time_step=0.1),  # it compiles fastest
    }


@pytest.fixture
def names(given):
    return dict(given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a run in runs/first."""
    path = tmp_path_factory.mktemp("documents")
    settings = {
        "temperatures": [1e-5, 3e-5],
        "num_chains": 1,
        "num_steps": 40,
        "record_every": 10,
        "task": {"kind": "spin_vectors", "num_train": 200, "num_test": 50, "dimension": 10, "num_classes": 3},
        "network": {"sizes": [10, 5, 3], "output_activation": "identity"},
        "sampler": {"name": "full_batch_langevin", "time_step": 0.01},
        "start": {"kind": "random"},
    }
    assert not session.start(config.Settings.model_validate(settings), path / "runs/first").interrupted
    return path


@cache
def once(name: str, **budget: Any) -> Any:
    """Return the function with a small budget; it computes its result once, for all pages and docstrings."""
    function, results = getattr(pl, name), list[Any]()

    def call(*arguments: Any, **options: Any) -> Any:
        if not results:
            results.append(function(*arguments, **options | budget))
        return results[0]

    return call


@pytest.fixture
def _short(monkeypatch):
    """The same functions with small budgets; pages and docstrings call them with the same arguments."""
    monkeypatch.setattr(pl, "find_temperature", once("find_temperature", epochs=50, num_temperatures=3))
    monkeypatch.setattr(pl, "fit", once("fit", temperature=1e-2, num_steps=80, batch_size=40))
    monkeypatch.setattr(pl, "tune", once("tune", batch_sizes=(40,), temperature_ratios=(0.1,), seconds=2))


@pytest.mark.usefixtures("_short")
@pytest.mark.filterwarnings("ignore::pseudolangevin.apps.fit.EquilibriumWarning")  # runs are short
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=page_name)
def test_the_programs_of_a_page_run(page, names, folder, monkeypatch):
    monkeypatch.chdir(folder)
    matplotlib.use("Agg")
    monkeypatch.setattr(pl, "Placement", lambda **_: None)  # there is one device
    for block in blocks(page):
        code = shortened(block, 80 if page.stem == "gallery" else 20)
        code = re.sub(r'(num_chains"?(=|: ))\d+', r"\g<1>1", code)  # pages share compiled programs
        program = compile(code, page.name, "exec")
        if page.stem not in NOT_RUN:
            exec(program, names)


class AsPrinted(doctest.OutputChecker):
    """Compare the output of the examples that show one."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


@pytest.mark.slow
@pytest.mark.usefixtures("_short")
@pytest.mark.filterwarnings("ignore::pseudolangevin.apps.fit.EquilibriumWarning")  # runs are short
def test_the_examples_of_docstrings_run(names):
    options: dict[str, Any] = {"temperatures": 1e-2, "num_steps": 40, "record_every": 2, "key": 0}
    names["result"] = pl.sample(names["sampler"], names["weights"], num_chains=2, **options)
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(AsPrinted(), verbose=False)
    for module in pkgutil.walk_packages(pl.__path__, "pseudolangevin."):
        if module.name != "pseudolangevin.__main__":
            for found in finder.find(importlib.import_module(module.name), extraglobs=names):
                for example in found.examples:
                    example.source = example.source if example.want else shortened(example.source)
                runner.run(found)
    assert runner.tries > 30
    assert not runner.failures


def command(line: str) -> None:
    """Run a command line of a notebook in this process, which has one device."""
    line = re.split(r"2>|\|", line)[0].replace("--set placement.chains=4", "")
    assert (run(shlex.split(line)[1:]) == BAD_INPUT) == ("batchsize" in line), line


class Process:
    """A command that a notebook starts in the background, run in this process until its end."""

    def __init__(self, words: list[str], **_: Any) -> None:
        command(shlex.join(words))

    def poll(self) -> int:
        return 0

    def kill(self) -> None:
        pass

    def wait(self) -> int:
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=page_name)
def test_the_cells_of_a_notebook_run_one_after_another(path, tmp_path, monkeypatch):
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # a notebook sets it
    names: dict[str, Any] = {"command": command, "Popen": Process, "DEVNULL": None}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            code = shortened("".join(cell["source"])).replace("--steps 200000 --record-every 50", "--steps 40")
            code = code.replace("from subprocess import DEVNULL, Popen\n", "")
            for long, short in (("range(100)", "range(40)"), ("range(500)", "range(10)"), ("range(20)", "range(5)")):
                code = code.replace(long, short)
            code = re.sub(r"^!(.+)$", lambda found: f"command({found[1]!r})", code, flags=re.MULTILINE)
            exec(compile(code, f"{path.name}, cell {number}", "exec"), names)
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=page_name)
def test_a_notebook_is_small_and_was_executed_in_order(path):
    assert path.stat().st_size < 300_000
    cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert {output["output_type"] for cell in cells for output in cell["outputs"]} >= {"display_data", "stream"}
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_and_commands_exist_and_prose_is_wrapped(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / link).exists(), link
    outside_blocks = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    prose = [line for line in outside_blocks.splitlines() if not line.startswith(("|", "    ", "<!--"))]
    assert [line for line in prose if len(line) > WIDTH and "](" not in line] == []

    known: Any = typer.main.get_command(app)
    for placeholder, value in (("smoke|paper", "smoke"), ("NAME…", "noise"), ("[--max-seconds S]", "")):
        text = text.replace(placeholder, value)
    for line in re.findall(r"^    pseudolangevin ([^>\n]+)", text, re.MULTILINE):
        name, *arguments = shlex.split(line, comments=True)
        known.get_command(None, name).make_context(name, arguments)
    for program in re.findall(r"^    python (?:-m )?(\S+)", text, re.MULTILINE):
        file = program if program.endswith(".py") else program.replace(".", "/") + ".py"
        assert (ROOT / file).exists(), program


def test_every_public_name_is_in_the_reference_once():
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs/reference").glob("*.md")]
    named = [name for page in pages for name in re.findall(r"^::: pl\.(\S+)$", page, re.MULTILINE)]
    assert sorted(named) == sorted(pl.__all__)


def test_the_configurations_of_the_docs_are_valid():
    found = [block for page in PAGES for block in blocks(page, "toml")]
    assert found
    for block in found:
        config.Settings.model_validate(tomllib.loads(block))


def test_the_programs_and_lines_of_the_certificate_are_those_of_its_page(names, monkeypatch):
    monkeypatch.setattr(observables, "_num_directions", num_directions)
    page = ROOT / "docs/certificate.md"
    sampler = pl.pseudo_langevin(names["potential"], names["train"], batch_size=40, refresh_every=5)
    start: dict[str, Any] = {"temperatures": [1e-2, 1.1e-2], "num_chains": 2, "num_steps": 80, "record_every": 4}
    names["result"] = pl.sample(sampler, names["weights"], keep_weights_every=1, key=0, **start)
    exec(compile(blocks(page)[0], page.name, "exec"), names)
    lines = names["cert"].lines
    names["samples"] = jax.tree.map(lambda w: w[0], names["result"].samples)
    names["w"] = names["g"] = jax.random.normal(jax.random.key(0), (2, 100, 3))
    names["u"] = 0.5 * (names["w"] ** 2).sum(axis=-1)
    exec(compile(blocks(page)[1], page.name, "exec"), names)
    text = page.read_text(encoding="utf-8").replace("\\", "")
    for line in lines:
        name = line.name.partition(",")[0].replace(" of |w|²", " of ").replace(" of U", " of U")
        assert f"| {name}" in text, line.name
