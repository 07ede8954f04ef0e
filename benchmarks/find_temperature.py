"""Does `find_temperature` land where the test error is best, and what does it cost beside one Adam training?

    python benchmarks/find_temperature.py 11160 --out benchmarks/results/find-temperature-11160.json
    python benchmarks/find_temperature.py 1006110 --epochs 100 --out …
    python benchmarks/find_temperature.py fashion --data FOLDER --out …

For each case: (1) Adam from random weights, at the paper's learning rate, until its test error has clearly passed its
best point; (2) `find_temperature` with at most twice the examples of (1), or with `--epochs`; (3) only then, long
chains at every temperature scanned and at the recommended one, and their test errors. FOLDER holds the four IDX files
of FashionMNIST; by default it is where the Debian package dataset-fashion-mnist puts them. Costs are in examples and
in seconds without compilation: on a GPU, Adam's batches of 128 take far longer per example than a sampler's.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.stats import spearmanr

import pseudolangevin as pl
from pseudolangevin import chains, gradients, temperature_scan
from pseudolangevin.paper.spins import HIDDEN_UNITS, spin_task

LARGEST_TEST = 100_000
MIN_RECORDS = 8
SHARE_OF_BUDGET = 0.98
REFERENCE = (0.1, 0.3, 1.01)
"""Colder than most scans look, in units of 1/P; not at a million weights."""


@dataclass(frozen=True)
class Case:
    """One task, and the learning rate that the paper gives Adam there."""

    train: pl.Dataset
    test: pl.Dataset
    network: Any
    potential: pl.Potential
    learning_rate: float


def spins(num_weights: int) -> Case:
    """The paper's spin vectors at one of its three sizes."""
    task = spin_task(HIDDEN_UNITS[num_weights])
    test = task.test.head(min(LARGEST_TEST, task.test.num_examples))
    return Case(task.train, test, task.network, task.potential, 1e-5 if num_weights > 10**6 else 1e-4)


def fashion(folder: Path | None, weight_decay: float) -> Case:
    """Projected FashionMNIST, N = 101 610, P = 50 000."""
    train, _, test = pl.tasks.fashion_mnist(jax.random.key(0), folder=folder)
    network = pl.models.feedforward((100, 500, 100, 10), output_activation="relu")
    return Case(train, test, network, pl.classification(network.apply, weight_decay=weight_decay), 1e-4)


def living_start(case: Case, seed: int, num_candidates: int = 8) -> Any:
    """The first of some random weights whose classes all show a signal after 400 steps of Adam."""
    candidates = [case.network.init(jax.random.key(seed + index)) for index in range(num_candidates)]
    result = pl.sample(
        pl.adam(case.potential, case.train, learning_rate=1e-3),
        jax.tree.map(lambda *leaves: np.stack(leaves)[None], *candidates),
        num_chains=num_candidates,
        num_steps=400,
        record_every=400,
        observe_examples=min(10_000, case.train.num_examples),
        key=seed,
    )
    dead = result.trace.dead_class.values[0, :, -1].any(axis=-1)
    return candidates[int(np.argmin(dead))]


def train_adam(case: Case, start: Any, batch_size: int, learning_rate: float, seconds: float) -> dict[str, Any]:
    """Test error against examples visited, until it has been past its best for as long again, or by the clock."""
    num_examples = case.train.num_examples
    record_every = max(1, num_examples // (4 * batch_size))
    plan = chains.make_plan(
        pl.adam(case.potential, case.train, batch_size=batch_size, learning_rate=learning_rate),
        temperatures=None,
        num_chains=1,
        num_steps=2_000 * record_every,
        record_every=record_every,
        test=case.test,
        observe_examples=min(10_000, num_examples),
    )
    began, errors, visited, times = time.perf_counter(), [], [], []
    for record in plan.run(plan.init(start, 0), progress=False):
        errors.append(float(record.observables["test_error"][0]))
        visited.append(record.step * batch_size)
        times.append(time.perf_counter())
        best = int(np.argmin(errors))
        if len(errors) > max(40, 2 * (best + 1)) or time.perf_counter() - began > seconds:
            break
    return {
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "best_test_error": errors[best],
        "examples_to_best": visited[best],
        "epochs_to_best": visited[best] / num_examples,
        "last_test_error": errors[-1],
        "epochs": visited[-1] / num_examples,
        "passed_its_best": len(errors) > 2 * (best + 1),
        "seconds_to_best": float((best + 1) * np.median(np.diff(times))),  # records included, compilation not
    }


def equilibrium(case: Case, found: pl.TemperatureRange, seconds: float, ratio: float) -> list[dict[str, float]]:
    """Long chains at every temperature scanned, at the recommended one, and at some colder ones, so that a scan that
    looked in the wrong place shows; averages over the second half, and over its own two halves for the drift."""
    num_examples = case.train.num_examples
    small = pl.trees.num_weights(found.weights) < 10**6
    curve = found.curve if small else found.curve.isel(temperature=found.curve["stage"].values == 0)
    scanned = [float(t) for t in curve["temperature"].values]
    reference = [share / num_examples for share in REFERENCE] if small else []
    temperatures = sorted({*scanned, found.temperature, *reference})
    sampler = pl.pseudo_langevin(
        case.potential,
        case.train,
        batch_size=max(64, num_examples // 100),
        temperature_ratio=ratio,
        refresh_every=512,
        max_refresh_interval=512,
        warmup_refreshes=6,
        variance_examples=4_096,
        mass_floor=0.1,
    )
    plan = chains.make_plan(
        sampler,
        temperatures=temperatures,
        num_chains=1,
        num_steps=10_000_000,
        record_every=128,
        test=case.test,
        observe_examples=min(20_000, num_examples),
    )
    began, records = time.perf_counter(), []
    for record in plan.run(plan.init(found.weights, 1), progress=False):
        records.append(record.observables)
        if time.perf_counter() - began > seconds and len(records) >= MIN_RECORDS:
            break
    quarter = len(records) // 4
    kept = records[-2 * quarter :]
    mean = {name: np.mean([record[name] for record in kept], axis=0) for name in kept[0]}
    halves = [np.mean([record["test_error"] for record in part], axis=0) for part in (kept[:quarter], kept[quarter:])]
    variance = temperature_scan.hidden_variance(mean["gradient_variance"], found.weights, None)
    return [
        {
            "temperature": t,
            "loss": float(mean["loss"][i]),
            "error": float(mean["error"][i]),
            "test_error": float(mean["test_error"][i]),
            "test_error_third_quarter": float(halves[0][i]),
            "test_error_fourth_quarter": float(halves[-1][i]),
            "gradient_variance": float(variance[i]),
            "squared_norm": float(mean["squared_norm"][i]),
            "steps": len(records) * plan.record_every,
            "relaxations": len(records) * plan.record_every * sampler.settings["batch_size"] * 4 * t * ratio,
        }
        for i, t in enumerate(temperatures)
    ]


def judged(found: pl.TemperatureRange, rows: list[dict[str, float]]) -> dict[str, Any]:
    """How the recommended temperature does beside all others."""
    for row in rows:
        print(row)
    errors = np.array([row["test_error"] for row in rows])
    variances = np.array([row["gradient_variance"] for row in rows])
    finite = np.isfinite(errors) & np.isfinite(variances)
    scanned = np.isin([row["temperature"] for row in rows], found.curve["temperature"].values) & finite
    best_scanned = float(errors[scanned].min())
    inside = np.array([found.low * 0.999 <= row["temperature"] <= found.high * 1.001 for row in rows]) & finite
    recommended = next(row for row in rows if row["temperature"] == found.temperature)
    return {
        "long_chains": rows,
        "best_test_error_scanned": best_scanned,
        "best_test_error_scanned_or_reference": float(errors[finite].min()),
        "test_error_at_recommended": recommended["test_error"],
        "worst_test_error_in_range": float(errors[inside].max()),
        "within_0.002_of_scanned": bool(recommended["test_error"] <= best_scanned + 0.002),
        "within_0.002_of_all": bool(recommended["test_error"] <= errors[finite].min() + 0.002),
        "rank_correlation_of_variance_and_test_error": float(spearmanr(variances[finite], errors[finite]).statistic),
    }


def without_nan(value: Any) -> Any:
    """JSON has no NaN: the averages of a chain that did not stay finite are null."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def main() -> None:
    """Run one case and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=[*map(str, HIDDEN_UNITS), "fashion"])
    parser.add_argument("--data", type=Path, help="folder of FashionMNIST")
    parser.add_argument("--weight-decay", type=float, default=101.61, help="of the case fashion: λ/N = 1e-3")
    parser.add_argument("--minutes", type=float, default=4.0, help="of the long chains; 0: none")
    parser.add_argument("--adam-batch", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, help="of Adam; default: the paper's")
    parser.add_argument("--adam-examples", type=int, help="what Adam visits to its best point, if that is known")
    parser.add_argument("--adam-seconds", type=float, help="default: half the minutes of the long chains")
    parser.add_argument("--epochs", type=float, help="budget of the search; default: twice Adam's, less 2 %%")
    parser.add_argument("--ratio", type=float, default=0.01, help="temperature ratio of the long chains")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not (options.minutes or options.adam_seconds or options.adam_examples):
        parser.error("--minutes 0 leaves no time for Adam: give --adam-seconds or --adam-examples")
    warnings.simplefilter("ignore", (pl.DeadClassWarning, pl.ChainStoppedWarning))

    case = fashion(options.data, options.weight_decay) if options.case == "fashion" else spins(int(options.case))
    start = living_start(case, options.seed)
    learning_rate = options.learning_rate or case.learning_rate
    if options.adam_examples:
        epochs = options.adam_examples / case.train.num_examples
        adam = {"examples_to_best": options.adam_examples, "epochs_to_best": epochs, "measured": "elsewhere"}
    else:
        adam_seconds = 30 * options.minutes if options.adam_seconds is None else options.adam_seconds
        adam = train_adam(case, start, options.adam_batch, learning_rate, adam_seconds)
    print(json.dumps(adam), flush=True)

    compiling: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, duration, **_: compiling.append(duration) if name.startswith("/jax/core/compile") else None
    )
    began = time.perf_counter()
    epochs = options.epochs or 2 * SHARE_OF_BUDGET * adam["epochs_to_best"]
    found = pl.find_temperature(case.potential, case.train, start, epochs=epochs, key=options.seed)
    seconds, seconds_compiling = time.perf_counter() - began, sum(compiling)
    print(found, flush=True)

    assert case.potential.per_example_error is not None
    error = gradients.exact_mean(case.potential.per_example_error, found.weights, case.test, 10_000).high
    report = {
        "case": options.case,
        "adam": adam,
        "found": found.to_dict() | {"seconds": seconds, "seconds_compiling": seconds_compiling},
        "test_error_of_the_weights_found": float(error),
        "cost_over_adam": found.cost / adam["examples_to_best"],
        "at_most_twice_adam": bool(found.cost <= 2 * adam["examples_to_best"]),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "settings": {name: str(value) for name, value in vars(options).items() if name != "out"},
    }
    if "seconds_to_best" in adam:
        report["seconds_over_adam"] = (seconds - seconds_compiling) / adam["seconds_to_best"]
    if options.minutes:
        report |= judged(found, equilibrium(case, found, 60 * options.minutes, options.ratio))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(without_nan(report), indent=1, allow_nan=False) + "\n")
    print({name: value for name, value in report.items() if name not in ("found", "long_chains", "adam")})


if __name__ == "__main__":
    main()
