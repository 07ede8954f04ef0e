"""A convolutional network in Flax NNX, sampled on FashionMNIST.

    python -m examples.fashion_convnet                       # some minutes on a CPU
    python -m examples.fashion_convnet --large               # all 60 000 images at full size, for a GPU
    python -m examples.fashion_convnet --data FOLDER         # folder with the four IDX files (.gz or not)

Without the files, images of random bars are used instead.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from flax import nnx

import pseudolangevin as pl
from pseudolangevin.adapters.flax import from_flax

DEFAULT_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Folder of Debian's package dataset-fashion-mnist."""
WEIGHT_DECAY = 0.01
"""Weight decay per weight, λ/N, so that the prior is the same at every size."""


@dataclass(frozen=True)
class Size:
    """Settings that differ between a CPU and a GPU."""

    num_train: int
    num_test: int
    pooling: int
    """Side of the squares of pixels that are averaged, in pixels."""
    channels: tuple[int, int]
    batch_size: int
    temperatures: tuple[float, ...]
    num_steps: int


SMALL = Size(1_000, 1_000, 4, (4, 8), 100, (3e-3, 6e-3), 6_000)
LARGE = Size(60_000, 10_000, 1, (32, 64), 2_000, (1e-5, 3e-5), 100_000)


class ConvNet(nnx.Module):
    """Two convolutions with stride two, and a linear layer."""

    def __init__(self, side: int, channels: tuple[int, int], rngs: nnx.Rngs):
        first, second = channels
        self.first = nnx.Conv(1, first, (3, 3), strides=2, rngs=rngs)
        self.second = nnx.Conv(first, second, (3, 3), strides=2, rngs=rngs)
        quarter = (side + 3) // 4
        self.head = nnx.Linear(second * quarter**2, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        hidden = nnx.relu(self.second(nnx.relu(self.first(images))))
        return self.head(hidden.reshape(hidden.shape[0], -1))


def fashion(folder: Path, size: Size) -> tuple[pl.Dataset, pl.Dataset]:
    """Return training and test images (S, side, side, 1), averaged over squares, with mean 0 and variance 1."""
    try:
        train, _, test = pl.tasks.fashion_mnist(jax.random.key(0), folder=folder, projected=False, num_validation=1)
        pairs = [(np.asarray(s.inputs).reshape(-1, 28, 28), np.asarray(s.targets)) for s in (train, test)]
    except ValueError as error:
        print(f"bars instead of FashionMNIST: {error}")
        pairs = [bars(np.random.default_rng(seed), num) for seed, num in enumerate((size.num_train, size.num_test))]
    shift, scale = pairs[0][0].mean(), pairs[0][0].std()
    sets = []
    for (images, labels), num in zip(pairs, (size.num_train, size.num_test), strict=True):
        side = 28 // size.pooling
        squares = images[:num].reshape(-1, side, size.pooling, side, size.pooling).mean(axis=(2, 4), dtype=np.float32)
        sets.append(pl.Dataset((squares[..., None] - shift) / scale, labels[:num].astype(np.int32)))
    return sets[0], sets[1]


def bars(rng: np.random.Generator, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images (num, 28, 28) with one bright bar at one of ten positions, and the positions."""
    labels = rng.integers(0, 10, num)
    images = rng.integers(0, 120, (num, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        start = 5 * (label % 5) + 2
        (image if label < 5 else image.T)[start : start + 3] += 120
    return images, labels


def model_and_data(size: Size, folder: Path) -> tuple[nnx.Module, pl.Dataset, pl.Dataset]:
    """Return the network and its data."""
    train, test = fashion(folder, size)
    return ConvNet(train.inputs.shape[1], size.channels, nnx.Rngs(0)), train, test


def main(arguments: list[str] | None = None) -> tuple[pl.Result, nnx.Module]:
    """Train, sample, print the certificate; return the result and the network with the weights of the last sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args(arguments)
    size = LARGE if options.large else SMALL
    num_steps = options.steps or size.num_steps

    network, train, test = model_and_data(size, options.data)
    model = from_flax(network)
    num_weights = sum(w.size for w in jax.tree.leaves(model.weights))
    potential = pl.classification(model.apply, weight_decay=WEIGHT_DECAY * num_weights)
    start = pl.sample(
        pl.adam(potential, train, batch_size=size.batch_size), model.weights, num_steps=max(1, num_steps // 10), key=0
    )
    result = pl.sample(
        pl.pseudo_langevin(potential, train, batch_size=size.batch_size, refresh_every=max(10, num_steps // 10)),
        start.weights,
        temperatures=size.temperatures,
        num_chains=2,
        num_steps=num_steps,
        record_every=max(1, num_steps // 100),
        key=1,
        test=test,
    )
    print(
        result.trace[["loss", "error", "test_error"]].isel(draw=slice(-50, None)).mean(["chain", "draw"]).to_dataframe()
    )
    print(pl.certificate(result))
    model.write_back(jax.tree.map(lambda w: w[0, 0], result.weights))
    predicted = np.argmax(nnx.jit(network)(test.inputs), axis=-1)
    print(
        f"one sample, written back, is wrong on {np.mean(predicted != np.asarray(test.targets)):.1%} of the test images"
    )
    return result, network


if __name__ == "__main__":
    main()
