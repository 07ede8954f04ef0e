"""The certificate of chains from another library: BlackJAX's NUTS passes; its SGLD and SGHMC, with mini-batches, fail.

    python -m examples.certify_blackjax            # two minutes on two cores

The certificate needs the weights of the samples, and U with its data set, from which it computes gradients and
energies. BlackJAX samples a log density, here −U/T.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import blackjax
import jax
import jax.numpy as jnp

import pseudolangevin as pl


def main(arguments: list[str] | None = None) -> dict[str, pl.Certificate]:
    """Sample with three methods, print the three certificates and return them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2_000, help="draws of each of four chains")
    options = parser.parse_args(arguments)

    train, _ = pl.tasks.spin_vectors(jax.random.key(0), num_train=1_000, num_test=1, dimension=10, num_classes=3)
    network = pl.models.feedforward((10, 6, 3), output_activation="identity")
    potential = pl.classification(network.apply, weight_decay=2.0)
    temperature, start = 4e-3, network.init(jax.random.key(1))

    def log_density(weights: Any) -> jax.Array:
        return -potential.energy(weights, train.batch) / temperature

    def gradient(weights: Any, batch: Any) -> Any:
        return jax.grad(lambda w: -potential.energy(w, batch) / temperature)(weights)

    nuts = blackjax.nuts(log_density, step_size=0.08, inverse_mass_matrix=jnp.ones(87))
    sgld, sghmc = blackjax.sgld(gradient), blackjax.sghmc(gradient, 10)

    def stochastic(sampler: Any, step_size: float, thin: int) -> Callable[[jax.Array, Any], Any]:
        def step(key: jax.Array, weights: Any) -> Any:
            step_key, batch_key = jax.random.split(key)
            return sampler.step(step_key, weights, train.draw(batch_key, 50), step_size)

        return lambda key, weights: jax.lax.fori_loop(
            0, thin, lambda i, w: step(jax.random.fold_in(key, i), w), weights
        )

    samplers: dict[str, tuple[Any, Callable[..., Any], Callable[..., Any]]] = {
        "NUTS": (nuts.init(start), lambda key, state: nuts.step(key, state)[0], lambda state: state.position),
        "SGLD": (start, stochastic(sgld, 1e-3, 40), lambda state: state),
        "SGHMC": (start, stochastic(sghmc, 0.03, 10), lambda state: state),
    }
    found = {}
    for name, (state, step, position) in samplers.items():

        def chain(key: jax.Array, state: Any = state, step: Any = step, position: Any = position) -> Any:
            def one(state: Any, key: jax.Array) -> tuple[Any, Any]:
                state = step(key, state)
                return state, position(state)

            return jax.lax.scan(one, state, jax.random.split(key, options.draws))[1]

        weights = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(2), 4))
        found[name] = pl.certificate(
            weights=weights, potential=potential, dataset=train, temperature=temperature, burn_in=0.3
        )
        print(f"\n{name}\n{found[name]}")
    return found


if __name__ == "__main__":
    main()
