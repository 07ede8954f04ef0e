"""Time until the certificate of correct chains passes, by class of model, with the true error of the averages.

    python benchmarks/certificates.py benchmarks/results/certificates-cpu.json [--only NAME …]

Every row is one call of `pl.sample` as a user would make it, judged by `pl.certificate`. References: the exact
posterior of linear regression, BlackJAX's NUTS for logistic regression, and otherwise hybrid Monte Carlo with another
seed. The true error of loss and |w|² is given with its standard error; for regressions without hidden units also that
of the worst mean and of the worst standard deviation of a weight, in standard deviations. Seconds include compilation.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin import observables
from pseudolangevin.apps.bench import machine
from pseudolangevin.diagnostics import average


@dataclass
class Case:
    """A model with its data, a sampler, and the length of the run."""

    potential: pl.Potential
    data: pl.Dataset
    start: Any
    temperature: float
    sampler: pl.Sampler
    length: dict[str, int]
    reference: Callable[["Case"], dict[str, Any]] = field(default=lambda case: case.long_run())

    def sample(self, sampler: pl.Sampler | None = None, key: int = 0, **length: Any) -> pl.Result:
        """Return chains of the sampler, or of another one."""
        shared: dict[str, Any] = {"temperatures": [self.temperature], "num_chains": 4, "key": key, "progress": False}
        return pl.sample(sampler or self.sampler, self.start, **shared, **(length or self.length))

    def long_run(self) -> dict[str, Any]:
        """Return loss and |w|² from hybrid Monte Carlo."""
        hybrid = pl.hybrid_monte_carlo(
            self.potential, self.data, num_leapfrog_steps=20, time_step=0.02, warmup_moves=500
        )
        return averages(self.sample(hybrid, key=9, num_steps=6_000, record_every=3))


def averages(result: pl.Result) -> dict[str, Any]:
    """Return loss and |w|² over the second half, each with its error."""
    half = result.trace.sizes["draw"] // 2
    return {name: average(result.trace[name].values[0, :, half:])[:2] for name in ("loss", "squared_norm")}


def compared(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """Return the relative errors of averages and their standard errors, and errors of single weights if known."""
    row = {}
    for name in ("loss", "squared_norm"):
        (value, error), (other, its_error) = found[name], expected[name]
        row[f"error_of_{name}"] = value / other - 1
        row[f"error_of_{name}_uncertainty"] = float(np.hypot(error, its_error)) / other
    if "mean" in expected and "mean" in found:
        deviation = expected["deviation"]
        row["worst_mean"] = float(np.abs((found["mean"] - expected["mean"]) / deviation).max())
        row["worst_deviation"] = float(np.abs(found["deviation"] / deviation - 1).max())
    return row


def weights_of(result: pl.Result) -> dict[str, np.ndarray]:
    """Return mean and standard deviation of every weight over the second half, from the sums of the certificate."""
    blocks = observables.stein_blocks(jax.device_get(result.states.tests), 0.5).mean(axis=(0, 1))
    return {"mean": blocks[0], "deviation": np.sqrt(blocks[3] - blocks[0] ** 2)}


def linear_regression() -> Case:
    """Return Bayesian linear regression, sampled by hybrid Monte Carlo."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(200, 10)).astype(np.float32)
    targets = (inputs @ rng.normal(size=10) + rng.normal(size=200)).astype(np.float32)
    potential, data = pl.regression(lambda w, x: x @ w["slope"], weight_decay=0.5), pl.Dataset(inputs, targets)
    start, temperature = {"slope": jnp.zeros(10)}, 1 / 200

    def exact(case: Case) -> dict[str, Any]:
        x, y = inputs.astype(np.float64), targets.astype(np.float64)
        hessian = x.T @ x / 200 + 0.5 / 10 * np.eye(10)
        mean, covariance = np.linalg.solve(hessian, x.T @ y / 200), temperature * np.linalg.inv(hessian)
        loss = 0.5 * np.mean((x @ mean - y) ** 2) + 0.5 * np.trace(x.T @ x @ covariance) / 200
        norm = mean @ mean + np.trace(covariance)
        return {"loss": (loss, 0), "squared_norm": (norm, 0), "mean": mean, "deviation": np.sqrt(np.diag(covariance))}

    sampler = pl.hybrid_monte_carlo(potential, data, num_leapfrog_steps=8, time_step=0.2)
    return Case(potential, data, start, temperature, sampler, {"num_steps": 2_000, "record_every": 1}, exact)


def logistic_regression() -> Case:
    """Return Bayesian logistic regression, sampled by hybrid Monte Carlo."""
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(500, 8)).astype(np.float32)
    labels = (rng.random(500) < 1 / (1 + np.exp(-inputs @ np.linspace(-1, 1, 8)))).astype(np.int32)

    def scores(weights: Any, x: Any) -> Any:
        logit = x @ weights["slope"] + weights["offset"]
        return jnp.stack([-logit, logit], axis=-1) / 2

    potential, data = pl.classification(scores, weight_decay=0.01), pl.Dataset(inputs, labels)
    start, temperature = {"slope": jnp.zeros(8), "offset": jnp.zeros(())}, 1 / 500

    def nuts(case: Case) -> dict[str, Any]:
        kernel = blackjax.nuts(
            lambda w: -potential.energy(w, data.batch) / temperature, step_size=0.15, inverse_mass_matrix=jnp.ones(9)
        )

        def chain(key: jax.Array) -> Any:
            def one(state: Any, key: jax.Array) -> Any:
                state = kernel.step(key, state)[0]
                return state, state.position

            return jax.lax.scan(one, kernel.init(start), jax.random.split(key, 3_000))[1]

        samples = jax.tree.map(lambda w: w[:, 500:], jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(5), 4)))
        flat = np.concatenate([np.asarray(w, np.float64).reshape(4, 2_500, -1) for w in jax.tree.leaves(samples)], -1)
        losses = jax.jit(jax.vmap(jax.vmap(lambda w: potential.per_example_loss(w, data.batch).mean())))(samples)
        found = {"loss": average(losses)[:2], "squared_norm": average((flat**2).sum(axis=2))[:2]}
        return found | {"mean": flat.mean(axis=(0, 1)), "deviation": flat.std(axis=(0, 1))}

    sampler = pl.hybrid_monte_carlo(potential, data, num_leapfrog_steps=8, time_step=0.3)
    return Case(potential, data, start, temperature, sampler, {"num_steps": 4_000, "record_every": 1}, nuts)


def spins(dimension: int, num_classes: int) -> pl.Dataset:
    """Return training examples of the paper's task, of another size."""
    sizes = {"num_train": 1_000, "num_test": 1, "dimension": dimension, "num_classes": num_classes}
    return pl.tasks.spin_vectors(jax.random.key(0), **sizes)[0]


def classifier(
    apply: Callable[..., Any],
    data: pl.Dataset,
    start: Any,
    select: str | None = None,
    *,
    batch_size: int = 100,
    num_steps: int = 100_000,
) -> Case:
    """Return a classifier, sampled by balanced Langevin; all of its tensors or some."""
    potential = pl.classification(apply, weight_decay=2.0)
    if select is not None:
        part = pl.subset(potential, start, select)
        potential, start = part.potential, part.weights
    sampler = pl.balanced_langevin(potential, data, batch_size=batch_size)
    return Case(potential, data, start, 4e-3, sampler, {"num_steps": num_steps, "record_every": 100})


def small_network() -> Case:
    """Return a classifier with one hidden layer."""
    network = pl.models.feedforward((10, 6, 3), output_activation="identity")
    start = network.init(jax.random.key(1))
    return classifier(network.apply, spins(10, 3), start, batch_size=200, num_steps=200_000)


def tied_weights() -> Case:
    """Return a classifier whose first layer is used twice, forwards and backwards."""

    def apply(weights: Any, x: Any) -> Any:
        hidden = jnp.tanh(x @ weights["tied"]) @ weights["tied"].T
        return jnp.tanh(hidden) @ weights["last"]

    keys = jax.random.split(jax.random.key(1))
    start = {"tied": 0.3 * jax.random.normal(keys[0], (10, 5)), "last": 0.3 * jax.random.normal(keys[1], (10, 3))}
    return classifier(apply, spins(10, 3), start)


def frozen_layers() -> Case:
    """Return a classifier of which the last layer is sampled and the others stay as they are."""
    network = pl.models.feedforward((10, 12, 8, 3), output_activation="identity")
    return classifier(network.apply, spins(10, 3), network.init(jax.random.key(1)), "layer3.*")


def regression_network() -> Case:
    """Return a regression by a network with one hidden layer, at the temperature of the posterior.

    Units whose output weight is small leave their other weights free, so single weights relax more slowly than U.
    """
    rng = np.random.default_rng(2)
    inputs = rng.normal(size=(300, 4)).astype(np.float32)
    targets = (np.tanh(inputs @ rng.normal(size=(4, 2))) @ np.array([1.0, -1.5]) + rng.normal(size=300)).astype(
        np.float32
    )
    network = pl.models.feedforward((4, 4, 1), output_activation="identity", hidden_activation="tanh")
    potential = pl.regression(lambda w, x: network.apply(w, x)[:, 0], weight_decay=2.0)
    data, start = pl.Dataset(inputs, targets), network.init(jax.random.key(1))
    sampler = pl.hybrid_monte_carlo(potential, data, num_leapfrog_steps=20, time_step=0.3)
    return Case(potential, data, start, 1 / 300, sampler, {"num_steps": 100_000, "record_every": 10})


CASES = (linear_regression, logistic_regression, small_network, regression_network, tied_weights, frozen_layers)


def main() -> None:
    """Sample, judge and compare every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", help="parts of names of cases")
    options = parser.parse_args()
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    known = {row["name"]: row for row in rows}
    for make in CASES:
        name = make.__name__.replace("_", " ")
        if options.only is not None and not any(part in name for part in options.only):
            continue
        case, began, began_cpu = make(), time.perf_counter(), time.process_time()
        result = case.sample()
        certificate = pl.certificate(result)
        row: dict[str, Any] = {"name": name, "num_weights": trees.num_weights(case.start), "sampler": case.sampler.name}
        row |= case.length | {"verdict": str(certificate.verdict), "advice": certificate.advice}
        row |= {"lines": sorted({line.name for line in certificate.lines if line.required and not line.passed})}
        row |= {"seconds": round(time.perf_counter() - began, 1)}
        row |= {"cpu_seconds": round(time.process_time() - began_cpu, 1)}
        print(certificate, flush=True)
        known[name] = row | compared(averages(result) | weights_of(result), case.reference(case))
        print(known[name], flush=True)
        options.out.write_text(json.dumps({"machine": machine(), "rows": list(known.values())}, indent=1) + "\n")


if __name__ == "__main__":
    main()
