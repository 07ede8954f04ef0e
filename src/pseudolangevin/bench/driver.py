"""The whole benchmark: which tasks, how much time for each, what is collected from them, what is written."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from ..config import ConfigError
from ..provenance import PACKAGES, version_of
from . import scaling, table
from .clock import Deadline
from .problem import PUBLISHED_SIZES, hidden_units
from .rows import OWN, Row, ratios, skipped

CHAINS = (1, 8, 64)
SAMPLERS = (
    "pseudo_langevin",
    "naive_pseudo_langevin",
    "full_batch_langevin",
    "hybrid_monte_carlo",
    "minibatch_hybrid_monte_carlo",
    "adam",
)
PEERS = {"blackjax": ("blackjax",), "torch": ("torch",), "posteriors": ("posteriors", "torch")}
"""Peers, and the packages each of them needs."""
MIN_SECONDS = 2.0
"""Less is not enough to start a process and compile something."""
GRACE = 90.0
"""Seconds that a task may run over its time, for a compilation or a block that began within it, before it is ended."""


@dataclass(frozen=True)
class Request:
    """What to measure."""

    sizes: Sequence[int] = PUBLISHED_SIZES
    chains: Sequence[int] = CHAINS
    samplers: Sequence[str] = SAMPLERS
    seconds: float = 600.0
    repeat_seconds: float = 2.0
    """How long a measurement is repeated."""
    peers: bool = True
    scaling: bool = True
    recording: bool = True
    largest: float = 1e9
    """Weights; where the search for the largest size ends at the latest."""
    recording_changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, in one line each."""
        problems = []
        for size in self.sizes:
            try:
                hidden_units(size)
            except ValueError as error:
                problems.append(f"--sizes: {error}")
        problems += [f"--chains: {n} is not a number of chains; give 1 or more" for n in self.chains if n < 1]
        problems += [
            f"--samplers: {name!r} is unknown; choose from {', '.join(SAMPLERS)}"
            for name in self.samplers
            if name not in SAMPLERS
        ]
        if not self.seconds > 0:
            problems.append(f"--seconds: {self.seconds:g} is not a time; give a positive number")
        if problems:
            raise ConfigError(problems)


def run(request: Request, *, json_path: Path | None = None, console: Console | None = None) -> dict[str, Any]:
    """Measure, print a line for every result and tables at the end; the content of the file."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=130)
    began, deadline = time.monotonic(), Deadline.after(request.seconds)
    content: dict[str, Any] = {
        "provenance": _provenance(request),
        "machine": {},
        "rows": [],
        "ratios": [],
        "skipped": [],
        "absent": _absent() if request.peers else [],
    }
    for peer in content["absent"]:
        console.print(f"{peer['peer']} is absent: {peer['reason']}", highlight=False, markup=False)
    grown: dict[str, list[Row]] = {"row": [], "skipped": []}
    tasks = _tasks(request, {peer["peer"] for peer in content["absent"]})
    for index, (task, weight) in enumerate(tasks):
        until = deadline.share(weight, sum(w for _, w in tasks[index:]))
        rates = content["machine"].get("matrix_product_flops_per_second")
        limits = {"until": time.time() + until.left, "repeat_seconds": request.repeat_seconds}
        for kind, value in _results(task | limits | {"rates": rates}):
            console.print(table.line(kind, value), highlight=False, markup=False, soft_wrap=True)
            if task["task"] == "scaling" and kind in grown:
                grown[kind].append(value)
                content["scaling"] = scaling.summary(grown["row"], grown["skipped"])
            elif kind == "row":
                content["rows"].append(_with_shares(value, rates))
            elif kind == "skipped":
                content["skipped"].append(value)
            else:
                content[kind] = value
        content["ratios"] = ratios(content["rows"])
        content["provenance"] |= {"seconds": round(time.monotonic() - began, 1), "load_average_after": _load()}
        if json_path is not None:
            _write(json_path, content)
    for part in table.tables(content):
        console.print(part)
    if json_path is not None:
        console.print(f"{json_path} ({content['provenance'].get('seconds', 0):.0f} s)", highlight=False)
    return content


def _tasks(request: Request, absent: set[str]) -> list[tuple[dict[str, Any], float]]:
    """Tasks in order, with their share of the time."""
    tasks: list[tuple[dict[str, Any], float]] = [({"task": "machine"}, 2.0)]
    for size in request.sizes:
        cases = _cases(request, with_blackjax=request.peers and "blackjax" not in absent)
        tasks.append(({"task": "steps", "num_weights": size, "cases": cases}, 6.0))
        if request.peers and "torch" not in absent:
            tasks.append(({"task": "torch", "num_weights": size}, 3.0))
    if request.recording:
        tasks.append(({"task": "recording", "changes": request.recording_changes}, 4.0))
    if request.scaling:
        tasks.append(({"task": "scaling", "largest": request.largest}, 9.0))
    return tasks


def _cases(request: Request, *, with_blackjax: bool) -> list[tuple[str, str, int]]:
    """What is measured at one size: the first sampler, then the peers, then the others; fewer chains first."""
    counts = sorted(request.chains)
    first, *others = [[(OWN, name, n) for n in counts] for name in request.samplers]
    peers = [("blackjax", name, n) for n in counts for name in ("sghmc", "sgld")] if with_blackjax else []
    return [*first, *peers, *(case for cases in zip(*others, strict=True) for case in cases)]


def _results(task: dict[str, Any]) -> Iterator[tuple[str, Row]]:
    """What a process of its own measures, as it comes; a process that fails or overruns leaves a reason instead."""
    seconds = task["until"] - time.time()
    if seconds < MIN_SECONDS:
        yield "skipped", _unstarted(task, "no time was left")
        return
    if task["task"] in ("steps", "scaling") and not task["rates"]:
        yield "skipped", _unstarted(task, "the machine's rate is not known")
        return
    environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"} | os.environ
    command = [sys.executable, "-m", f"{__package__}.worker", json.dumps(task)]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True) as process,
    ):
        overrun = threading.Timer(seconds + GRACE, process.kill)
        overrun.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith('{"kind"'):
                    result = json.loads(line)
                    yield result["kind"], result["value"]
            code = process.wait()
        finally:
            overrun.cancel()
            process.kill()
        if code:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
            why = f"its process ended with {code}: {last[0][:300] if last else 'no message'}"
            yield "skipped", _unstarted(task, why)


def _unstarted(task: dict[str, Any], reason: str) -> Row:
    return skipped(task.get("num_weights"), "torch" if task["task"] == "torch" else OWN, task["task"], reason)


def _with_shares(row: Row, rates: dict[str, float] | None) -> Row:
    """The row with its arithmetic as a share of what the machine's matrix products reach."""
    shares = {name: row["flops_per_second"] / rate for name, rate in (rates or {}).items()}
    return row | {"share_of_matrix_product_rate": shares}


def _absent() -> list[dict[str, str]]:
    """The peers that are not installed."""
    missing = {
        peer: [name for name in packages if importlib.util.find_spec(name) is None] for peer, packages in PEERS.items()
    }
    return [
        {"peer": peer, "reason": f"{', '.join(names)} not installed; pip install 'pseudolangevin[bench]'"}
        for peer, names in missing.items()
        if names
    ]


def _provenance(request: Request) -> dict[str, Any]:
    packages = (*PACKAGES, "blackjax", "torch", "posteriors")
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": {"python": sys.version.split()[0]} | {name: version_of(name) for name in packages},
        "settings": {
            "sizes": list(request.sizes),
            "chains": list(request.chains),
            "samplers": list(request.samplers),
            "seconds": request.seconds,
            "environment": {name: os.environ[name] for name in ("XLA_FLAGS", "JAX_PLATFORMS") if name in os.environ},
        },
        "load_average_before": _load(),
    }


def _load() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()]


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if content.get("scaling", {}).get("rows"):
        scaling.draw(content["scaling"], content["machine"]["device"], path.with_name(f"{path.stem}-scaling.png"))
