"""Find the intermediate temperatures from the training set, then look at the test error.

python -m examples.find_temperature --out temperature.png            # a minute on two cores
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import numpy as np

import pseudolangevin as pl
from pseudolangevin.apps.temperature import temperature_figure


def main(arguments: list[str] | None = None) -> pl.TemperatureRange:
    """Search and draw without the test set; then sample at some temperatures and print their test errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("temperature.png"))
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--epochs", type=float, help="budget of the search")
    parser.add_argument("--steps", type=int, default=4_096, help="steps of the chains after the search")
    options = parser.parse_args(arguments)

    train, test = pl.tasks.spin_vectors(jax.random.key(0), num_train=options.examples, num_test=5_000, dimension=50)
    network = pl.models.feedforward((50, 40, 40, 10), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=5.0)
    found = pl.find_temperature(potential, train, network.init(jax.random.key(1)), epochs=options.epochs)
    print(found)
    temperature_figure(found).savefig(options.out)

    temperatures = sorted(found.temperature * np.array([0.1, 0.3, 1.0, 3.0]))
    result = pl.sample(
        pl.pseudo_langevin(
            potential, train, temperature_ratio=0.03, refresh_every=512, warmup_refreshes=5, mass_floor=0.1
        ),
        found.weights,
        temperatures=temperatures,
        num_steps=options.steps,
        record_every=options.steps // 8,
        key=0,
        test=test,
    )
    second_half = result.trace.isel(chain=0, draw=slice(result.trace.sizes["draw"] // 2, None)).mean("draw")
    for temperature, error in zip(temperatures, second_half.test_error.values, strict=True):
        print(f"T = {temperature:.3g} ({temperature / found.temperature:g} x recommended): test error {error:.4f}")
    return found


if __name__ == "__main__":
    main()
