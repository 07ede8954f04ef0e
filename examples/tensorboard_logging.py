"""Log every record to TensorBoard through `on_record`.

    pip install tensorboardX
    python -m examples.tensorboard_logging --out events ; tensorboard --logdir events

`on_record` is called with `record.step`, `record.states` and `record.observables`: a dictionary of NumPy arrays whose
first axis runs over all chains, temperature by temperature.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
from tensorboardX import SummaryWriter

import pseudolangevin as pl


def main(arguments: list[str] | None = None) -> pl.Result:
    """Sample two temperatures; write one event file with a curve for each chain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("events"))
    parser.add_argument("--steps", type=int, default=4_000)
    options = parser.parse_args(arguments)

    train, _ = pl.tasks.spin_vectors(jax.random.key(0), num_train=5_000, num_test=1, dimension=50)
    network = pl.models.feedforward((50, 20, 10), output_activation="identity")
    sampler = pl.pseudo_langevin(pl.classification(network.apply, weight_decay=5.0), train, batch_size=100)

    with SummaryWriter(str(options.out)) as writer:

        def log(record: Any) -> None:
            for name in ("loss", "squared_norm", "kinetic_temperature"):
                values = {f"chain {chain}": value for chain, value in enumerate(record.observables[name])}
                writer.add_scalars(name, values, record.step)

        return pl.sample(
            sampler,
            network.init(jax.random.key(1)),
            temperatures=[1e-3, 2e-3],
            num_steps=options.steps,
            record_every=options.steps // 20,
            key=0,
            on_record=log,
        )


if __name__ == "__main__":
    main()
