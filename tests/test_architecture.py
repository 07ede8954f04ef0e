"""The shape of the code base: imports go one way, no pickle, no side effects at import, small files."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pseudolangevin

ROOT = Path(pseudolangevin.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LEVELS = [
    {"types", "threefry", "normals", "trees", "flat", "compensated", "checks", "idx", "patterns", "signs"},
    {"data", "models", "masses", "integrator", "kernels", "dense", "fashion"},
    {"tasks", "potential", "subset", "fused", "gradients", "noise", "moments", "streamed"},
    {"samplers", "observables"},
    {"layout", "progress", "reports", "stopping", "placement", "prefetch", "hosts", "segments", "chains"},
    {"predictions", "temperature_scan", "temperature_judgement", "temperature", "fitting"},
    {"config", "store", "provenance", "runs", "runfiles", "published", "diagnostics", "sparkline", "tuning"},
    {
        "estimates",
        "figures",
        "temperature_figure",
        "report",
        "watch",
        "adapters",
        "paper",
        "demo",
        "bench",
        "processes",
        "cli_errors",
        "cli",
    },
]
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}


def module_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def walk_runtime(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING`, which never run."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield from walk_runtime(child)


def imports_of(path: Path) -> set[tuple[str, ...]]:
    """The modules of this package that a file imports, as paths below the package."""
    package = path.relative_to(ROOT).parts[:-1]
    found = set()
    for node in walk_runtime(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            base = package[: len(package) - node.level + 1] + tuple(
                (node.module or "").split(".") if node.module else ()
            )
            found |= {resolve(base, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pseudolangevin":
            base = tuple((node.module or "").split(".")[1:])
            found |= {resolve(base, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {tuple(a.name.split(".")[1:]) for a in node.names if a.name.split(".")[0] == "pseudolangevin"}
    return {module for module in found if module}


def resolve(base: tuple[str, ...], name: str) -> tuple[str, ...]:
    """`from base import name`: the module `base.name` if there is one, else `base`."""
    inner = ROOT.joinpath(*base, name)
    return (*base, name) if inner.with_suffix(".py").exists() or inner.is_dir() else base


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downward(path):
    module = module_of(path)
    if not module or module == ("__main__",):
        return
    assert module[0] in LEVEL_OF, f"{module[0]} has no place in the order of imports; give it one in LEVELS"
    for imported in imports_of(path):
        assert LEVEL_OF[imported[0]] <= LEVEL_OF[module[0]], f"{module} imports upward: {imported}"


def test_there_are_no_circular_imports():
    """Modules of one level may import each other, but never in a circle."""
    graph = {module_of(path): imports_of(path) for path in FILES if module_of(path)}
    done: set[tuple[str, ...]] = set()

    def visit(module: tuple[str, ...], trail: tuple[tuple[str, ...], ...]) -> None:
        assert module not in trail, f"circle: {[*trail, module]}"
        if module in done:
            return
        for imported in graph.get(module, ()):
            visit(imported, (*trail, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_the_parser_of_imports_sees_them():
    """A checker that finds nothing would pass everything."""
    assert ("data",) in imports_of(ROOT / "gradients.py")
    assert ("samplers", "base") in imports_of(ROOT / "chains.py")
    assert ("integrator",) in imports_of(ROOT / "samplers" / "langevin_kernel.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_pickle_and_no_long_files(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert not {"pickle", "cloudpickle", "dill", "joblib"} & {name.split(".")[0] for name in names}


def test_importing_changes_no_jax_setting():
    code = (
        "import jax\n"
        "before = dict(jax.config.values)\n"
        "import pseudolangevin\n"
        "after = dict(jax.config.values)\n"
        "changed = {name for name in before | after if before.get(name) != after.get(name)}\n"
        "assert not changed, changed\n"
        "assert len(before) > 10\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
