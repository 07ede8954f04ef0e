"""Training by sampling compared with Adam: no validation set, no early stopping, no temperature chosen by hand.

    python -m examples.train_by_sampling            # about two minutes on two cores

`pl.fit` finds the intermediate temperature from the training set, samples there and keeps an ensemble. Adam minimises
the same potential; its test error falls, then rises again unless the training is stopped early. The test set is used
for printing only.
"""

from __future__ import annotations

import argparse

import jax

import pseudolangevin as pl


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Fit, train, print, and return the test errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--temperature", type=float, help="default: found from the training set")
    parser.add_argument("--steps", type=int, help="steps of the chain")
    parser.add_argument("--adam-epochs", type=int, default=100)
    options = parser.parse_args(arguments)

    train, test = pl.tasks.spin_vectors(jax.random.key(0), num_train=options.examples, num_test=5_000, dimension=50)
    network = pl.models.feedforward((50, 40, 40, 10), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=5.0)
    start = network.init(jax.random.key(1))

    fitted = pl.fit(
        potential, train, start, temperature=options.temperature or "auto", num_steps=options.steps, test=test
    )
    print(fitted.search or f"T = {fitted.temperature:g}, as given")
    ensemble = fitted.predict(test.inputs)
    predictions = {"one sample": ensemble.members()[-1], "ensemble": ensemble}

    steps = options.adam_epochs * options.examples // 128
    adam = pl.sample(pl.adam(potential, train, learning_rate=1e-3), start, num_steps=steps, key=0, test=test)
    history = adam.trace.test_error.values[0, 0]
    errors = {"Adam, stopped at its best by the test set": float(history.min()), "Adam, to the end": float(history[-1])}
    for name, prediction in predictions.items():
        errors[name] = prediction.error(test.targets)
        likelihood = prediction.negative_log_likelihood(test.targets)
        calibration = prediction.calibration_error(test.targets)
        print(f"{name}: negative log likelihood {likelihood:.4f}, calibration error {calibration:.4f}")
    for name, error in errors.items():
        print(f"test error, {name}: {error:.4f}")
    return errors


if __name__ == "__main__":
    main()
