"""A convolutional network on FashionMNIST: trained, sampled, and compared with other ensembles of equal cost.

    python -m examples.fashion_cnn                       # 5 000 images of 14 x 14, minutes on two cores
    python -m examples.fashion_cnn --full                # 60 000 images of 28 x 28, minutes on a GPU
    python -m examples.fashion_cnn --data FOLDER         # folder with the four IDX files (.gz or not)
    python -m examples.fashion_cnn --out table.json      # writes the table

| method | what it averages | cost |
|---|---|---|
| Adam | one training | 1 |
| deep ensemble | K trainings from different random weights | K |
| MC dropout | 50 random masks of one training with dropout | 1 |
| trained starts | the trainings that both samplers start from | 4 of K = 5 |
| SGHMC (BlackJAX) | samples at temperature T from these trainings | K |
| balanced Langevin | samples at temperature T from these trainings | K |

The cost is in gradients of examples; seconds are measured. Network, prior and batch size are the same for all. Training
minimises U of the Bayesian posterior, T = 1/P. Both samplers start from the same trainings, run at the same temperature
and keep as many samples. Most of the budget goes into these trainings, so compare both with the deep ensemble and with
`trained_starts`, the trainings that they start from without any sampling.

Settings were chosen on validation images of one seed that is not in the table: for balanced Langevin the temperature
(0.1, 0.3 or 1 in units of 1/P), ratio, prior and number of chains, 11 trials; for SGHMC step size and prior, 11 trials.
Dropout and Adam were not tuned. A seed draws training images, initial weights and mini-batches. Without the files,
images of random bars are used instead. All trainings of a seed run together, and their time is divided among them.
Images are not augmented: with random crops or flips there is no fixed U. A fixed, enlarged set of images has one.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import pseudolangevin as pl

DEFAULT_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Folder of Debian's package dataset-fashion-mnist."""


@dataclass(frozen=True)
class Size:
    """Settings that differ between a CPU and a GPU."""

    num_train: int
    num_test: int
    pooling: int
    """Side of the squares of pixels that are averaged, in pixels."""
    channels: tuple[int, int]
    batch_size: int
    epochs: int
    """Epochs of one training by Adam."""
    learning_rate: float
    prior_scale: float = 0.5
    """Standard deviation of a weight in the prior."""
    sghmc_step_size: float = 0.1
    """Step size of SGHMC times P."""
    temperature: float = 0.3
    """Temperature in units of 1/P; 1 is the Bayesian posterior."""
    temperature_ratio: float = 0.1
    num_seeds: int = 5
    cost: int = 5
    """Number of trainings of the deep ensemble, K."""
    num_chains: int = 4
    members: int = 20
    """Samples of the posterior."""
    dropout: float = 0.2


SMALL = Size(5_000, 10_000, 2, (8, 16), 100, 20, 3e-3)
FULL = Size(60_000, 10_000, 1, (32, 64), 500, 20, 1e-3, num_seeds=3)


def init(key: jax.Array, side: int, channels: tuple[int, int]) -> dict[str, Any]:
    """Return random weights of two convolutions with stride two and a linear layer."""
    first, second = channels
    shapes: dict[str, tuple[int, ...]] = {"first": (3, 3, 1, first), "second": (3, 3, first, second)}
    shapes["head"] = (second * ((side + 3) // 4) ** 2, 10)
    keys = jax.random.split(key, 3)
    return {
        name: {
            "kernel": jax.random.normal(k, shape) / np.sqrt(np.prod(shape[:-1])),
            "bias": jnp.zeros(shape[-1]),
        }
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def apply(weights: dict[str, Any], inputs: Any) -> jax.Array:
    """Return the logits of images (S, side, side, 1), or of a pair (images, mask of the features)."""
    hidden, mask = inputs if isinstance(inputs, tuple) else (inputs, 1.0)
    for name in ("first", "second"):
        layout = ("NHWC", "HWIO", "NHWC")
        hidden = lax.conv_general_dilated(hidden, weights[name]["kernel"], (2, 2), "SAME", dimension_numbers=layout)
        hidden = jax.nn.relu(hidden + weights[name]["bias"])
    return (hidden.reshape(len(hidden), -1) * mask) @ weights["head"]["kernel"] + weights["head"]["bias"]


def fashion(folder: Path, size: Size, seed: int = 0) -> tuple[pl.Dataset, pl.Dataset]:
    """Return training and test images (S, side, side, 1), averaged over squares, with mean 0 and variance 1."""
    try:
        both = pl.tasks.fashion_mnist(folder=folder)
        pairs = [(np.asarray(s.inputs).reshape(-1, 28, 28), np.asarray(s.targets)) for s in both]
    except ValueError as error:
        print(f"bars instead of FashionMNIST: {error}")
        pairs = [bars(np.random.default_rng(seed), num) for seed, num in enumerate((size.num_train, size.num_test))]
    shift, scale = pairs[0][0].mean(), pairs[0][0].std()
    chosen = np.random.default_rng(seed).permutation(len(pairs[0][0])) if seed else np.arange(len(pairs[0][0]))
    sets = []
    for (images, labels), index in zip(pairs, (chosen[: size.num_train], np.arange(size.num_test)), strict=True):
        side = 28 // size.pooling
        squares = images[index].reshape(-1, side, size.pooling, side, size.pooling).mean(axis=(2, 4), dtype=np.float32)
        sets.append(pl.Dataset((squares[..., None] - shift) / scale, labels[index].astype(np.int32)))
    return sets[0], sets[1]


def bars(rng: np.random.Generator, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images (num, 28, 28) with one bright bar at one of ten positions, and the positions."""
    labels = rng.integers(0, 10, num)
    images = rng.integers(0, 120, (num, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        start = 5 * (label % 5) + 2
        (image if label < 5 else image.T)[start : start + 3] += 120
    return images, labels


class Comparison:
    """The methods on one seed; each method returns weights along a leading axis, or probabilities."""

    def __init__(self, size: Size, potential: pl.Potential, folder: Path, seed: int) -> None:
        self.size, self.potential, self.seed = size, potential, seed
        self.train, self.test = fashion(folder, size, seed)
        side = self.train.inputs.shape[1]
        keys = jax.random.split(jax.random.key(seed), size.cost)
        self.starts = jax.vmap(lambda key: init(key, side, size.channels))(keys)
        self.num_weights = sum(w.size for w in jax.tree.leaves(self.starts)) // size.cost
        self.temperature = size.temperature * pl.posterior_temperature(self.train)
        self.training_steps = size.epochs * size.num_train // size.batch_size
        self.num_steps = size.cost * self.training_steps
        self.training_seconds = 0.0
        self.result: pl.Result | None = None

    @cached_property
    def trainings(self) -> Any:
        """Weights of all trainings by Adam with a falling learning rate, along a leading axis."""
        began, size = time.perf_counter(), self.size
        adam = pl.adam(
            self.potential,
            self.train,
            batch_size=size.batch_size,
            learning_rate=size.learning_rate,
            decay_factor=0.1,
            decay_epochs=0.7 * size.epochs,
        )
        trained = pl.sample(
            adam,
            jax.tree.map(lambda w: w[None], self.starts),
            num_chains=size.cost,
            num_steps=self.training_steps,
            record_every=self.training_steps,
            key=self.seed,
        ).weights
        self.training_seconds = time.perf_counter() - began
        return jax.tree.map(lambda w: w[0], trained)

    def trained(self, num: int) -> Any:
        """Return the weights of the first `num` trainings."""
        return jax.tree.map(lambda w: w[:num], self.trainings)

    def adam(self) -> Any:
        return self.trained(1)

    def deep_ensemble(self) -> Any:
        return self.trained(self.size.cost)

    def trained_starts(self) -> Any:
        return self.trained(self.size.num_chains)

    def balanced_langevin(self) -> Any:
        """Sample; training, steps and friction together visit as many examples as the deep ensemble."""
        size, chains = self.size, self.size.num_chains
        sampler = pl.balanced_langevin(
            self.potential,
            self.train,
            batch_size=size.batch_size,
            temperature_ratio=size.temperature_ratio,
            refresh_every=max(64, self.training_steps // 2),
        )
        # The friction visits a further eighth of a batch, with a derivative along the momentum and a gradient.
        per_step = 1 + 2 * (sampler.friction_batch_size or 0) / size.batch_size
        num_steps = int((self.num_steps - chains * self.training_steps) / (chains * per_step))
        every = max(1, num_steps // (2 * size.members // chains))
        self.result = pl.sample(
            sampler,
            jax.tree.map(lambda w: w[None], self.trained(chains)),
            temperatures=self.temperature,
            num_chains=chains,
            num_steps=every * (2 * size.members // chains),
            record_every=every,
            keep_weights_every=1,
            observe_examples=min(5_000, size.num_train),
            key=self.seed,
        )
        return self.result.ensemble()

    def sghmc(self) -> Any:
        """Run BlackJAX's SGHMC on the same posterior, from as many trainings and with the same budget."""
        size, chains = self.size, self.size.num_chains
        energy = self.potential.at(self.temperature).energy

        def log_posterior_gradient(weights: Any, batch: Any) -> Any:
            return jax.tree.map(lambda g: -g / self.temperature, jax.grad(energy)(weights, batch))

        step = blackjax.sghmc(log_posterior_gradient, 10).step
        num_steps = max(2, (self.num_steps - chains * self.training_steps) // (10 * chains))
        every = max(1, num_steps // (2 * size.members // chains))

        @jax.jit
        def run(train: pl.Dataset, starts: Any, keys: jax.Array) -> Any:
            def one(weights: Any, key: jax.Array) -> tuple[Any, Any]:
                batch_key, step_key = jax.random.split(key)
                batch = train.draw(batch_key, size.batch_size)
                weights = step(step_key, weights, batch, size.sghmc_step_size / size.num_train, 1.0)
                return weights, weights

            def chain(weights: Any, key: jax.Array) -> Any:
                visited = lax.scan(one, weights, jax.random.split(key, num_steps))[1]
                return jax.tree.map(lambda w: w[num_steps // 2 :: every], visited)

            return jax.vmap(chain)(starts, keys)

        kept = run(self.train, self.trained(chains), jax.random.split(jax.random.key(self.seed), chains))
        return jax.tree.map(lambda w: w.reshape(-1, *w.shape[2:]), kept)

    def mc_dropout(self) -> np.ndarray:
        """Train with dropout of the features of the last layer, and average the probabilities of 50 masks."""
        size, keep = self.size, 1 - self.size.dropout
        schedule = optax.piecewise_constant_schedule(size.learning_rate, {int(0.7 * self.training_steps): 0.1})
        optimizer, energy = optax.adam(schedule), self.potential.at(1 / size.num_train).energy  # as Adam
        start = jax.tree.map(lambda w: w[0], self.starts)

        def masks(key: Any, num: int) -> Any:
            return jax.random.bernoulli(key, keep, (num, len(start["head"]["kernel"]))) / keep

        @jax.jit
        def trained(train: pl.Dataset, weights: Any, key: Any) -> Any:
            def update(carry: Any, key: Any) -> Any:
                weights, state = carry
                batch_key, mask_key = jax.random.split(key)
                images, labels = train.draw(batch_key, size.batch_size)
                gradient = jax.grad(energy)(weights, ((images, masks(mask_key, size.batch_size)), labels))
                updates, state = optimizer.update(gradient, state)
                return (optax.apply_updates(weights, updates), state), None

            keys = jax.random.split(key, self.training_steps)
            return lax.scan(update, (weights, optimizer.init(weights)), keys)[0][0]

        weights = trained(self.train, start, jax.random.key(self.seed))
        predict = jax.jit(lambda key, images: jax.nn.softmax(apply(weights, (images, masks(key, len(images))))))
        keys = jax.random.split(jax.random.key(self.seed + 2**31), 50)
        return np.stack([np.asarray(predict(key, self.test.inputs)) for key in keys])

    def scores(self, method: str) -> dict[str, float]:
        """Run a method; return its scores on the test images and its seconds, training and compilation included."""
        size, call = self.size, getattr(self, method)
        used = {"adam": 1, "deep_ensemble": size.cost, "mc_dropout": 0}.get(method, size.num_chains)
        jax.block_until_ready(self.trainings)  # done once, and shared
        began = time.perf_counter()
        found = call()
        if not isinstance(found, np.ndarray):
            found = pl.predictions.predict(self.potential, found, self.test.inputs)
        else:
            found = pl.predictions.ClassPredictions(found.astype(np.float64))
        seconds = time.perf_counter() - began + used / size.cost * self.training_seconds
        return found.scores(self.test.targets) | {"seconds": seconds}


METHODS = ("adam", "deep_ensemble", "mc_dropout", "trained_starts", "sghmc", "balanced_langevin")
SCORES = {"error": "error", "negative_log_likelihood": "NLL", "calibration_error": "ECE", "brier_score": "Brier"}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and standard error over seeds of each method, and of its difference from balanced Langevin."""
    table = []
    for method in METHODS:
        line: dict[str, Any] = {"method": method}
        for score in (*SCORES, "seconds"):
            values, reference = (np.array([row[m][score] for row in rows]) for m in (method, METHODS[-1]))
            for name, numbers in ((score, values), (f"{score}_difference", values - reference)):
                error = numbers.std(ddof=1) / np.sqrt(len(numbers)) if len(numbers) > 1 else float("nan")
                line[name] = {"mean": float(numbers.mean()), "standard_error": float(error)}
        table.append(line)
    return table


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Compare the methods on all seeds, print the table and the certificate of the last run; return the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    size = FULL if options.full else SMALL
    size = replace(size, num_seeds=options.seeds or size.num_seeds, epochs=options.epochs or size.epochs)

    rows = []
    potential = pl.classification(apply, prior=pl.gaussian(size.prior_scale))  # one, so that programs compile once
    for seed in range(1, size.num_seeds + 1):
        comparison = Comparison(size, potential, options.data, seed)
        rows.append({method: comparison.scores(method) for method in METHODS})
        for method in METHODS:
            text = ", ".join(f"{SCORES.get(name, name)} {value:.4f}" for name, value in rows[-1][method].items())
            print(f"seed {seed}, {method}: {text}", flush=True)
        report = {
            "device": jax.devices()[0].device_kind,
            "data": "FashionMNIST" if options.data.exists() else "bars",
            "num_weights": comparison.num_weights,
            "temperature": comparison.temperature,
            "settings": asdict(size),
            "table": summary(rows),
            "seeds": rows,
        }
        if options.out is not None:  # after every seed, so that an interruption loses one at most
            options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for line in report["table"]:
        text = ", ".join(f"{SCORES[s]} {line[s]['mean']:.4f} ± {line[s]['standard_error']:.4f}" for s in SCORES)
        print(f"{line['method']}: {text}, {line['seconds']['mean']:.0f} s")
    print(pl.certificate(comparison.result))
    return report


if __name__ == "__main__":
    main()
