"""The uncertainty of an ensemble and its mistakes: FashionMNIST, projected to 100 signs as in the paper.

    python -m examples.ensemble_uncertainty --out uncertainty.png
    python -m examples.ensemble_uncertainty --folder ~/data/fashion-mnist       # or other IDX files of 28x28 images

Without the data, noisy spin vectors are used. Test examples are sorted by the entropy of the predicted probabilities.
The error among the most certain ones should be small, and the confidence should equal the share of correct labels.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import pseudolangevin as pl


def load(folder: Path | None, num_examples: int | None) -> tuple[pl.Dataset, pl.Dataset]:
    """Return projected FashionMNIST if its files are found, and spin vectors otherwise."""
    try:
        train, _, test = pl.tasks.fashion_mnist(jax.random.key(0), folder=folder)
    except (OSError, ValueError) as error:
        print(f"no FashionMNIST ({error}); noisy spin vectors instead")
        train, test = pl.tasks.spin_vectors(jax.random.key(0), num_train=20_000, num_test=5_000, flip_probability=0.38)
    return (train, test) if num_examples is None else (train.head(num_examples), test.head(num_examples))


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Fit, predict, draw, and return the errors of the certain and of the uncertain half."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("uncertainty.png"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--examples", type=int, help="use only the first examples")
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--temperature", type=float, help="default: found from the training set")
    parser.add_argument("--steps", type=int, help="steps of the chain")
    options = parser.parse_args(arguments)

    train, test = load(options.folder, options.examples)
    network = pl.models.feedforward((train.inputs.shape[1], options.hidden, 100, 10), output_activation="identity")
    fitted = pl.fit(
        pl.classification(network.apply, weight_decay=10.0),
        train,
        network.init(jax.random.key(1)),
        temperature=options.temperature or "auto",
        num_steps=options.steps,
    )
    predictions = fitted.predict(test.inputs)
    one = predictions.members()[-1]
    targets = np.asarray(test.targets)
    for name, chosen in [("one sample", one), (f"ensemble of {len(predictions.members())}", predictions)]:
        likelihood, calibration = chosen.negative_log_likelihood(targets), chosen.calibration_error(targets)
        print(f"{name}: error {chosen.error(targets):.4f}, negative log likelihood {likelihood:.4f}, ", end="")
        print(f"calibration error {calibration:.4f}")
    wrong = (predictions.labels != targets)[np.argsort(predictions.predictive_entropy)]
    half = len(wrong) // 2
    errors = {"certain half": float(wrong[:half].mean()), "uncertain half": float(wrong[half:].mean())}
    print(", ".join(f"error of the {name}: {error:.4f}" for name, error in errors.items()))
    draw(predictions, targets, wrong, options.out)
    return errors


def draw(predictions: Any, targets: np.ndarray, wrong: np.ndarray, out: Path) -> None:
    """Draw error against the share of examples, most certain first, and accuracy against confidence."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    kept = np.arange(1, len(wrong) + 1)
    left.plot(kept / len(wrong), np.cumsum(wrong) / kept)
    left.set(xlabel="share of examples, most certain first", ylabel="error among them")
    confidence = predictions.mean_probabilities.max(axis=-1)
    bins = np.minimum((confidence * 10).astype(int), 9)
    filled = np.unique(bins)
    correct = predictions.labels == targets
    right.plot([0, 1], [0, 1], color="0.7", lw=1)
    right.plot([confidence[bins == b].mean() for b in filled], [correct[bins == b].mean() for b in filled], "o-")
    right.set(xlabel="confidence", ylabel="share of correct labels")
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    main()
