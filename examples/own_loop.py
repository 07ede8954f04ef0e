"""A loop of your own in the style of BlackJAX: `init`, `advance`, `jit` and `vmap`, without `pl.sample`.

    python -m examples.own_loop            # half a minute on two cores

A sampler is a frozen dataclass with pure functions of one chain. `init` makes the state, `advance` draws mini-batches,
steps, and measures the gradient variance again when due. The sampler is also a pytree whose leaves are its data sets:
pass it as an argument, so that the data are not copied into the compiled program.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp

import pseudolangevin as pl


def main(arguments: list[str] | None = None) -> jax.Array:
    """Sample several temperatures side by side and return the mean loss of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=200, help="steps between two records")
    parser.add_argument("--records", type=int, default=20)
    options = parser.parse_args(arguments)

    train, _ = pl.tasks.spin_vectors(jax.random.key(0), num_train=options.examples, num_test=1, dimension=50)
    network = pl.models.feedforward((50, 20, 10), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=5.0)
    sampler = pl.pseudo_langevin(potential, train, batch_size=options.examples // 50)
    weights = network.init(jax.random.key(1))

    temperatures = jnp.asarray([3e-4, 1e-3, 3e-3])
    keys = jax.random.split(jax.random.key(2), len(temperatures))
    states = jax.jit(jax.vmap(sampler.init, in_axes=(0, None, 0)))(keys, weights, temperatures)

    @jax.jit
    def advance(sampler: Any, states: Any) -> Any:
        return jax.vmap(lambda state: sampler.advance(state, options.steps))(states)

    @jax.jit
    def losses(sampler: Any, states: Any) -> jax.Array:
        return jax.vmap(lambda state: sampler.potential.loss(state.weights, sampler.dataset.batch))(states)

    history = []
    for _ in range(options.records):
        states = advance(sampler, states)
        history.append(losses(sampler, states))
    mean = jnp.stack(history[len(history) // 2 :]).mean(axis=0)
    for temperature, loss in zip(temperatures, mean, strict=True):
        print(f"T = {temperature:.0e}: mean loss {loss:.4f}")
    return mean


if __name__ == "__main__":
    main()
