"""One measuring process: it does one task, and writes a line of JSON for every result.

Every task has a process of its own, so that the peak of memory is its own, that PyTorch and JAX do not share a GPU's
memory, and that a crash loses one task.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from importlib import import_module
from typing import Any

from .clock import Deadline
from .problem import Problem
from .rows import OWN, Row, skipped

FIRST_WEIGHT, OVERBOOKED = 4, 2
"""The first sampler's rows have four times the others' time, and each row twice its share: most end early."""


def emit(kind: str, value: Row) -> None:
    """Hand a result to the process that asked."""
    print(json.dumps({"kind": kind, "value": value}), flush=True)


def steps(task: dict[str, Any], deadline: Deadline) -> None:
    """Samplers of this package and BlackJAX's, at one size."""
    own = import_module(".own", __package__)
    scaling = import_module(".scaling", __package__)
    problem = Problem(task["num_weights"])
    dataset = problem.dataset()
    weights = [FIRST_WEIGHT if sampler == task["cases"][0][1] else 1 for _, sampler, _ in task["cases"]]
    for index, (name, sampler, num_chains) in enumerate(task["cases"]):
        until = deadline.share(OVERBOOKED * weights[index], sum(weights[index:]))
        module = own if name == OWN else import_module(f".{name}_peer", __package__)
        try:
            row = module.measure(problem, dataset, sampler, num_chains, task["rates"], until)
        except Exception as error:
            reason = "out of memory" if scaling.out_of_memory(error) else f"{type(error).__name__}: {error}"
            row = skipped(problem.num_weights, name, sampler, " ".join(reason.split())[:300], num_chains)
        emit("skipped" if "reason" in row else "row", row)
        gc.collect()


def machine(task: dict[str, Any], deadline: Deadline) -> None:
    """The device, and its rates of matrix products."""
    del task
    module = import_module(".machine", __package__)
    emit("machine", module.describe() | {"matrix_product_flops_per_second": module.product_rates(deadline)})


def torch(task: dict[str, Any], deadline: Deadline) -> None:
    """The PyTorch peers at one size."""
    import_module(".torch_peers", __package__).measure_all(Problem(task["num_weights"]), deadline, emit)


def scaling(task: dict[str, Any], deadline: Deadline) -> None:
    """One chain at growing sizes."""
    import_module(".scaling", __package__).measure(task["rates"], deadline, emit, task["largest"])


def recording(task: dict[str, Any], deadline: Deadline) -> None:
    """The share of recording in the default run."""
    emit("recording", import_module(".recording", __package__).measure(deadline, task["changes"]))


TASKS = {function.__name__: function for function in (machine, steps, torch, scaling, recording)}


def main() -> None:
    """The task is the only argument, as JSON."""
    task = json.loads(sys.argv[1])
    deadline = Deadline.after(task["until"] - time.time(), task["repeat_seconds"])
    if task["task"] != "torch":
        jax = import_module("jax")
        jax.config.update("jax_enable_compilation_cache", False)  # compile times are to be of compiling
    TASKS[task["task"]](task, deadline)


if __name__ == "__main__":
    main()
