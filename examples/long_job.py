"""An engineer with a long job: it is stopped, continued from its folder to the same bits, checked and reported.

    python -m examples.long_job --out runs/long            # a minute or two on two cores

Start it again with the same folder after Ctrl-C, a kill or a full disk: it continues. From another terminal

    pseudolangevin watch runs/long          # progress and averages
    pseudolangevin check runs/long          # the certificate; exit code 0 if it passes
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax

import pseudolangevin as pl


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Begin or continue the run; return its result and its certificate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/long"))
    parser.add_argument("--steps", type=int, default=100_000, help="total number of steps")
    parser.add_argument("--max-seconds", type=float, help="time of this part of the job, as a batch queue limits it")
    options = parser.parse_args(arguments)

    train, test = pl.tasks.spin_vectors(jax.random.key(0), num_train=2_000, num_test=1_000, dimension=20, num_classes=4)
    network = pl.models.feedforward((20, 10, 4), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=2.0)
    sampler = pl.balanced_langevin(potential, train, batch_size=200)

    limits: dict[str, Any] = {"num_steps": options.steps, "max_seconds": options.max_seconds, "test": test}
    if options.out.exists():  # the model is code, so it is given again; it is compared with that of the folder
        result = pl.resume(options.out, sampler, **limits)
    else:
        settings: dict[str, Any] = {"temperatures": [2e-3], "num_chains": 4, "key": 1}
        settings |= {"record_every": max(1, options.steps // 1_000), "keep_weights_every": 50}
        result = pl.sample(sampler, network.init(jax.random.key(1)), folder=options.out, **settings, **limits)
    done = int(result.trace["step"][-1]) if result.trace.sizes["draw"] else 0
    if done < options.steps:
        print(f"{done} of {options.steps} steps are done; start the same command again")
        return {"result": result, "certificate": None}
    certificate = pl.certificate(result)
    print(certificate)
    print(result.evaluate(test).head(2))
    print(f"report: {options.out / 'report.html'}")
    return {"result": result, "certificate": certificate}


if __name__ == "__main__":
    main()
