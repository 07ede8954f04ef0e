"""The shape of the package: levels, size, and an import without side effects."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module, util
from pathlib import Path

import jax
import pytest

import pseudolangevin as pl

ROOT = Path(__file__).parent.parent
SLOW = {"zarr", "orbax", "pydantic", "rich", "matplotlib", "arviz", "scipy"}
RUNNING = {"chains", "results", "observables", "placement"}
USING = {"runs", "adapters", "cli", "demo", "paper", "__main__"}


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py")))
def test_the_names_that_a_benchmark_imports_exist(name):
    assert import_module(f"benchmarks.{name}").__doc__


def load_size():
    spec = util.spec_from_file_location("size", ROOT / "benchmarks" / "size.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


size = load_size()
MODULES = sorted(filter(None, size.modules()))


def level(module: str) -> int:
    """Method < running < diagnostics < apps < runs, adapters, command line and paper, told by folders."""
    top = module.partition(".")[0]
    return 4 if top in USING else 3 if top == "apps" else 2 if top == "diagnostics" else int(top in RUNNING)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_to_the_same_level_or_below(module):
    upward = {other for other in size.imports(module, deferred=True) if level(other) > level(module)}
    assert not upward


def test_imports_form_no_circle():
    assert len(size.longest_chain(deferred=True)) > 3


@pytest.mark.parametrize("row", size.measure(), ids=lambda row: row[0])
def test_the_package_stays_within_its_limits(row):
    quantity, value, limit, detail = row
    assert value <= limit, f"{quantity}: {detail}"


def test_nothing_is_pickled():
    for path, tree in size.modules().values():
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {alias.name for node in nodes for alias in node.names} | {getattr(node, "module", "") for node in nodes}
        assert not {"pickle", "cloudpickle", "dill", "joblib"} & {str(name).split(".")[0] for name in names}, path


IMPORTS = f"""
import sys, jax
before = dict(jax.config.values)
import pseudolangevin as pl, pseudolangevin.cli
after = dict(jax.config.values)
changed = {{name for name in before | after if before.get(name) != after.get(name)}}
assert not changed, changed
loaded = {SLOW} & set(sys.modules)
assert not loaded, loaded
import pseudolangevin.adapters
assert not {{"flax", "equinox", "torch", "torch2jax"}} & set(sys.modules)
for name in pl.__all__:
    getattr(pl, name)
assert set(pl.__all__) <= set(dir(pl))
"""


def test_importing_changes_no_setting_of_jax_and_loads_no_slow_module_and_no_framework_of_an_adapter():
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("_no_directions")
def test_a_call_of_sample_passes_through_few_files():
    """From the call to the arithmetic, with everything traced anew: files in which any function runs."""
    train, _ = pl.tasks.spin_vectors(jax.random.key(0), num_train=31, num_test=1, dimension=7, num_classes=3)
    network = pl.models.feedforward((7, 6, 5, 3), output_activation="identity")
    sampler = pl.balanced_langevin(pl.classification(network.apply), train, batch_size=4)
    weights, package = network.init(jax.random.key(1)), str(Path(pl.__file__).parent)
    visited = set()

    def note(frame, *_):
        if frame.f_code.co_filename.startswith(package):
            visited.add(frame.f_code.co_filename.removeprefix(package))

    before = sys.gettrace()
    sys.settrace(note)
    try:
        pl.sample(sampler, weights, temperatures=1e-2, num_steps=2, record_every=1, key=0, progress=False)
    finally:
        sys.settrace(before)
    assert 8 <= len(visited) <= 12, sorted(visited)
