"""Time until the certificate of the paper's network passes: two temperatures, four chains each.

    python -m benchmarks.certificate_paper --out FILE --seconds 165 --every 100 --first 1000 # on a GPU
    python -m benchmarks.certificate_paper --out FILE --seconds 1700 --every 100 --first 320   # on two cores

Chains of balanced Langevin start from Adam. The certificate is made after `--first` records, then after half as many
more each time, until it passes or the time is up. The seconds include compilation, training and certificates.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import jax

import pseudolangevin as pl
from pseudolangevin.diagnostics import average
from pseudolangevin.paper.spins import spin_task


def main() -> None:
    """Sample, judge and write one row for every certificate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=165, help="no certificate is begun after this time")
    parser.add_argument("--every", type=int, default=100, help="steps between records")
    parser.add_argument("--hidden", type=int, default=50, help="units of the first layer: N = 201·hidden + 1110")
    parser.add_argument("--training", type=int, default=6_000, help="steps of Adam")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[3e-5, 3.1e-5])
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--batch", type=int, help="mini-batch; default: that of the sampler")
    parser.add_argument("--first", type=int, default=200, help="records before the first certificate")
    options = parser.parse_args()

    began = time.perf_counter()
    task = spin_task(options.hidden)
    start = task.starts(options.training, num_starts=options.chains)
    found = {
        "name": "certificate of the paper's network",
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "num_weights": task.num_weights,
        "seconds_of_training": round(time.perf_counter() - began, 1),
        "rows": [],
    }
    sampler = pl.balanced_langevin(task.potential, task.train, batch_size=options.batch)
    run = pl.Run(sampler, temperatures=options.temperatures, num_chains=options.chains)
    found["settings"] = run.sampler.settings
    states, records, due = run.start(start, 2), [], options.first
    for record in run.records(states, stop=10**9, every=options.every, progress=False):
        records.append(record.observables)
        seconds = time.perf_counter() - began
        late = seconds > options.seconds
        if len(records) < due and not late:
            continue
        due += due // 2
        result = replace(run.result(record.states, records, every=options.every), seconds=seconds)
        before = time.perf_counter()
        certificate = pl.certificate(result)
        seen = result.trace.isel(draw=slice(len(records) // 2, None))
        averages = {
            f"{name} at {temperature:g}": average(seen[name].values[index])._asdict()
            for index, temperature in enumerate(options.temperatures)
            for name in ("loss", "squared_norm", "error", "potential")
        }
        found["rows"].append(
            {
                "records": len(records),
                "steps": record.step,
                "seconds": round(time.perf_counter() - began, 1),
                "seconds_of_the_certificate": round(time.perf_counter() - before, 1),
                "verdict": str(certificate.verdict),
                "advice": certificate.advice,
                "averages": averages,
                "lines": [line for line in certificate.to_dict()["lines"] if line["chain"] is None],
            }
        )
        print(f"{record.step} steps, {seconds:.0f} s: {certificate.verdict}; {certificate.advice}", flush=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")
        if certificate.passed or late:
            break


if __name__ == "__main__":
    main()
