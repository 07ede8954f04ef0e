"""Compare the temperature that `find_temperature` recommends with the best test error, and its cost with Adam's.

    python benchmarks/find_temperature.py 11160 --out benchmarks/results/find-temperature-11160.json
    python benchmarks/find_temperature.py 1006110 --epochs 100 --out FILE
    python benchmarks/find_temperature.py fashion --data FOLDER --out FILE

Each case has three parts: (1) Adam from random weights, at the paper's learning rate, until its test error has clearly
passed its best point; (2) `find_temperature` with at most twice the examples of (1), or with `--epochs`; (3) long
chains at every temperature scanned, and their test errors. FOLDER holds the four IDX files of FashionMNIST; the default
is that of the Debian package dataset-fashion-mnist. Costs are in examples and in seconds without compilation: on a GPU,
Adam's batches of 128 take far longer per example than those of a sampler.
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
from pseudolangevin._trees import num_weights
from pseudolangevin.apps.temperature import trained_starts
from pseudolangevin.chains import Run
from pseudolangevin.gradients import exact_means
from pseudolangevin.paper.fashion import projected
from pseudolangevin.paper.spins import spin_task

LARGEST_TEST = 100_000
MIN_RECORDS = 8
SHARE_OF_BUDGET = 0.98
REFERENCE = (0.1, 0.3, 1.01)
"""Temperatures colder than those of most scans, in units of 1/P; not used at a million weights."""


@dataclass(frozen=True)
class Case:
    """One task, and the paper's learning rate of Adam for it."""

    train: pl.Dataset
    test: pl.Dataset
    network: Any
    potential: pl.Potential
    learning_rate: float


def spins(size: int) -> Case:
    """Return the paper's spin vectors with one of its three networks."""
    task = spin_task((size - 1_110) // 201)
    test = task.test.head(min(LARGEST_TEST, task.test.num_examples))
    return Case(task.train, test, task.network, task.potential, 1e-5 if size > 10**6 else 1e-4)


def fashion(folder: Path | None, weight_decay: float) -> Case:
    """Return projected FashionMNIST, N = 101 610, P = 50 000."""
    images, test = map(projected, pl.tasks.fashion_mnist(folder=folder))
    train = images.head(50_000)
    network = pl.models.feedforward((100, 500, 100, 10), output_activation="relu")
    return Case(train, test, network, pl.classification(network.apply, weight_decay=weight_decay), 1e-4)


def train_adam(case: Case, start: Any, batch_size: int, learning_rate: float, seconds: float) -> dict[str, Any]:
    """Train until twice the examples of the best test error, or until the time is over; return costs and errors."""
    num_examples = case.train.num_examples
    every = max(1, num_examples // (4 * batch_size))
    run = Run(
        pl.adam(case.potential, case.train, batch_size=batch_size, learning_rate=learning_rate),
        test=case.test,
        observe_examples=min(10_000, num_examples),
    )
    errors, visited, times = [], [], []
    limits = {"stop": 2_000 * every, "every": every, "max_seconds": seconds}
    for record in run.records(run.start(start, 0), **limits, progress=False):
        errors.append(float(record.observables["test_error"][0]))
        visited.append(record.step * batch_size)
        times.append(time.perf_counter())
        best = int(np.argmin(errors))
        if len(errors) > max(40, 2 * (best + 1)):
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
        # Records are included, compilation is not.
        "seconds_to_best": float((best + 1) * np.median(np.diff(times))) if best else None,
    }


def equilibrium(case: Case, found: pl.TemperatureRange, seconds: float, ratio: float) -> list[dict[str, float]]:
    """Run long chains at every temperature scanned and at some colder ones; return averages over the second halves."""
    num_examples = case.train.num_examples
    reference = [share / num_examples for share in REFERENCE] if num_weights(found.weights) < 10**6 else []
    temperatures = sorted({*found.curve["temperature"].values.tolist(), *reference})
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
    observed = min(20_000, num_examples)
    run = Run(sampler, temperatures=temperatures, test=case.test, observe_examples=observed)
    began, records, every = time.perf_counter(), [], 128
    for record in run.records(run.start(found.weights, 1), stop=10_000_000, every=every, progress=False):
        records.append(record.observables)
        if time.perf_counter() - began > seconds and len(records) >= MIN_RECORDS:
            break
    quarter = len(records) // 4
    kept = records[-2 * quarter :]
    mean = {name: np.mean([record[name] for record in kept], axis=0) for name in kept[0]}
    halves = [np.mean([record["test_error"] for record in part], axis=0) for part in (kept[:quarter], kept[quarter:])]
    return [
        {
            "temperature": t,
            "loss": float(mean["loss"][i]),
            "error": float(mean["error"][i]),
            "test_error": float(mean["test_error"][i]),
            "test_error_third_quarter": float(halves[0][i]),
            "test_error_fourth_quarter": float(halves[-1][i]),
            "gradient_variance": float(mean["gradient_variance"][i, :-1].mean()),
            "squared_norm": float(mean["squared_norm"][i]),
            "steps": len(records) * every,
            "relaxations": len(records) * every * sampler.batch_size * 4 * t * ratio,
        }
        for i, t in enumerate(temperatures)
    ]


def judged(found: pl.TemperatureRange, rows: list[dict[str, float]]) -> dict[str, Any]:
    """Compare the recommended temperature with all others."""
    for row in rows:
        print(row)
    errors = np.array([row["test_error"] for row in rows])
    variances = np.array([row["gradient_variance"] for row in rows])
    finite = np.isfinite(errors) & np.isfinite(variances)
    scanned = np.isin([row["temperature"] for row in rows], found.curve["temperature"].values) & finite
    best_scanned = float(errors[scanned].min())
    inside = np.array([found.temperature * 0.999 <= row["temperature"] <= found.high * 1.001 for row in rows]) & finite
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
    """Replace NaN, the average of a chain that did not stay finite, by None: JSON has no NaN."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def main() -> None:
    """Run one case and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=["11160", "101610", "1006110", "fashion"])
    parser.add_argument("--data", type=Path, help="folder of FashionMNIST")
    parser.add_argument(
        "--weight-decay", type=float, default=101.61, help="weight decay of the case fashion (default: 1e-3 N)"
    )
    parser.add_argument("--minutes", type=float, default=4.0, help="time of the long chains; 0 for none")
    parser.add_argument("--adam-batch", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, help="learning rate of Adam (default: the paper's)")
    parser.add_argument("--adam-examples", type=int, help="examples that Adam visits up to its best point, if known")
    parser.add_argument("--adam-seconds", type=float, help="time of Adam (default: half that of the long chains)")
    parser.add_argument("--epochs", type=float, help="budget of the search (default: 1.96 times that of Adam)")
    parser.add_argument("--ratio", type=float, default=0.01, help="temperature ratio of the long chains")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not (options.minutes or options.adam_seconds or options.adam_examples):
        parser.error("--minutes 0 leaves no time for Adam: give --adam-seconds or --adam-examples")
    warnings.simplefilter("ignore", (pl.DeadClassWarning, pl.ChainStoppedWarning))

    case = fashion(options.data, options.weight_decay) if options.case == "fashion" else spins(int(options.case))
    settings = {"num_steps": 400, "candidates": 8, "untrained": True, "key": options.seed}
    start = jax.tree.map(lambda w: w[0], trained_starts(case.potential, case.train, case.network.init, **settings))
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
    error = exact_means([case.potential.per_example_error], found.weights, case.test, 10_000)[0].high
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
    if adam.get("seconds_to_best"):
        report["seconds_over_adam"] = (seconds - seconds_compiling) / adam["seconds_to_best"]
    if options.minutes:
        report |= judged(found, equilibrium(case, found, 60 * options.minutes, options.ratio))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(without_nan(report), indent=1, allow_nan=False) + "\n")
    print({name: value for name, value in report.items() if name not in ("found", "long_chains", "adam")})


if __name__ == "__main__":
    main()
