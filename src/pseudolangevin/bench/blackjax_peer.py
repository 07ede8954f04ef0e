"""BlackJAX's SGHMC and SGLD on the same network, batch size and data, in a compiled scan."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
from blackjax.sgmcmc.gradients import grad_estimator
from jax import lax

from .. import trees
from ..data import Dataset
from ..paper.spins import WEIGHT_DECAY
from ..types import Array, Weights
from .clock import Deadline, steps_per_block, time_blocks
from .memory import PeakMemory, available_bytes, program_bytes
from .own import MAX_STEPS_PER_BLOCK, guessed_seconds
from .problem import Problem
from .rows import Row, row, skipped

NAME = "blackjax"
SAMPLERS = ("sghmc", "sgld")
INTEGRATION_STEPS = 10
"""BlackJAX's default: so many gradients of SGHMC share one batch, which is drawn once."""
STEP_SIZE = 1e-9


def measure(
    problem: Problem, dataset: Dataset, name: str, num_chains: int, rates: Mapping[str, float], deadline: Deadline
) -> Row:
    """One row; a step of SGHMC is `INTEGRATION_STEPS` gradients on one batch, of SGLD one."""
    gradients = INTEGRATION_STEPS if name == "sghmc" else 1
    flops = gradients * problem.batch_size * problem.gradient_flops
    guess = guessed_seconds(num_chains * flops, rates.get("tensorfloat32", rates["float32"]))
    if 4 * guess > deadline.left:
        reason = f"a step may take {guess:.2g} s, and {deadline.left:.0f} s were left"
        return skipped(problem.num_weights, NAME, name, reason, num_chains)
    peak = PeakMemory()
    num_steps = steps_per_block(guess, MAX_STEPS_PER_BLOCK)
    keys = jax.random.split(jax.random.key(0), num_chains)
    weights = jax.vmap(problem.network().init)(keys)
    began = time.perf_counter()
    program = _advance.lower(_kernel(problem, name), problem.batch_size, num_steps, weights, keys, dataset).compile()
    compile_seconds = time.perf_counter() - began
    needed, available = program_bytes(program), available_bytes()
    if needed is not None and needed > available:
        reason = f"needs {needed / 2**30:.3g} GiB, and the device has {available / 2**30:.3g} GiB"
        return skipped(problem.num_weights, NAME, name, reason, num_chains)
    timing = time_blocks(lambda: jax.block_until_ready(program(weights, keys, dataset)), deadline)
    return row(
        problem,
        NAME,
        name,
        num_chains=num_chains,
        timing=timing,
        steps_per_block=num_steps,
        gradients_per_step=gradients,
        compile_seconds=compile_seconds,
        program_bytes=needed,
        **peak.since(),
    )


def _kernel(problem: Problem, name: str) -> Any:
    network = problem.network()

    def log_prior(weights: Weights) -> Array:
        return -0.5 * problem.num_examples * WEIGHT_DECAY / problem.num_weights * trees.squared_norm(weights)

    def log_likelihood(weights: Weights, example: tuple[Array, Array]) -> Array:
        image, label = example
        return jax.nn.log_softmax(network.apply(weights, image[None])[0])[label]

    gradient = grad_estimator(log_prior, log_likelihood, problem.num_examples)
    algorithm = blackjax.sghmc(gradient, INTEGRATION_STEPS) if name == "sghmc" else blackjax.sgld(gradient)
    return algorithm.step


@partial(jax.jit, static_argnums=(0, 1, 2))
def _advance(step: Any, batch_size: int, num_steps: int, weights: Weights, keys: Array, dataset: Dataset) -> Weights:
    def body(carry: tuple[Weights, Array], index: Array) -> tuple[tuple[Weights, Array], None]:
        position, key = carry
        batch_key, noise_key = jax.random.split(jax.random.fold_in(key, index))
        chosen = jax.random.randint(batch_key, (batch_size,), 0, dataset.num_examples)
        batch = (dataset.inputs[chosen], dataset.targets[chosen])
        return (step(noise_key, position, batch, STEP_SIZE, 1.0), key), None

    def chain(position: Weights, key: Array) -> Weights:
        return lax.scan(body, (position, key), jnp.arange(num_steps))[0][0]

    return jax.vmap(chain)(weights, keys)
