"""Measure the size of the package, alongside its limits: `make size`. The exit code is 1 if a limit is exceeded."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "pseudolangevin"


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those under `if TYPE_CHECKING`, which never run."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from runtime_nodes(child)


@cache
def modules() -> dict[str, tuple[Path, ast.Module]]:
    """Return the path and the syntax tree of every module, by its name such as "runs.config"; that of all is empty."""
    paths = {".".join(p.relative_to(SOURCE).with_suffix("").parts): p for p in sorted(SOURCE.rglob("*.py"))}
    return {n.removesuffix("__init__").rstrip("."): (p, ast.parse(p.read_text("utf-8"))) for n, p in paths.items()}


@cache
def imports(name: str, *, deferred: bool = False) -> frozenset[str]:
    """Return the modules of this package that a module imports at its top level, or inside functions too (deferred)."""
    path, tree = modules()[name]
    package = path.relative_to(SOURCE).parts[:-1]
    found = set()
    for node in runtime_nodes(tree) if deferred else tree.body:
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {".".join(parts[1:]) for parts in names if parts[0] == SOURCE.name}
        elif isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            if node.level == 0 and parts[0] != SOURCE.name:
                continue
            above = [*package[: len(package) - node.level + 1], *parts] if node.level else parts[1:]
            base = ".".join(filter(None, above))
            inner = [f"{base}.{alias.name}".strip(".") for alias in node.names]
            found |= {full if full in modules() else base for full in inner}
    return frozenset(found - {"", name})


def longest_chain(*, deferred: bool = False) -> list[str]:
    """Return the longest chain of imports; raise a graphlib.CycleError if imports form a circle."""
    graph = {name: imports(name, deferred=deferred) for name in modules()}
    chains: dict[str, list[str]] = {}
    for name in TopologicalSorter(graph).static_order():
        chains[name] = [name, *max((chains[other] for other in graph.get(name, ())), key=len, default=[])]
    return max(chains.values(), key=len)


def is_constant(node: ast.stmt) -> bool:
    """Return whether a statement assigns an UPPER_CASE name."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    return any(name.isupper() and len(name) > 1 for name in names)


def measure() -> list[tuple[str, float, float, str]]:
    """Return (quantity, measured value, limit, detail) for everything that is limited."""
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, (path, _) in modules().items()}
    importers = {name: [n for n in modules() if n and name in imports(n)] for name in modules()}
    single = [name for name, by in importers.items() if len(by) == 1]
    chain, longest = longest_chain(), max(lines, key=lambda name: lines[name])
    return [
        ("Python lines in src", sum(lines.values()), 12_550, "the aim is 10 500"),
        ("modules", len(modules()), 65, ""),
        ("import depth", len(chain) - 1, 12, " > ".join(chain)),
        ("% of modules imported by one other", 100 * len(single) / len(modules()), 15, ", ".join(sorted(single))),
        (
            "module-level constants",
            sum(is_constant(node) for _, tree in modules().values() for node in tree.body),
            70,
            "",
        ),
        ("lines of the longest file", lines[longest], 600, longest),
    ]


if __name__ == "__main__":
    for quantity, value, limit, detail in measure():
        print(f"{quantity:36} {value:8,.0f}   limit {limit:6,}   {'' if value <= limit else 'EXCEEDED'}   {detail}")
    sys.exit(any(value > limit for _, value, limit, _ in measure()))
