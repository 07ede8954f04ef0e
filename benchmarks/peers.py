"""Time pseudo-Langevin alongside BlackJAX, posteriors and PyTorch: seconds per gradient, same data and batch size.

    pip install '.[bench]'
    python benchmarks/peers.py benchmarks/results/peers.json [--sizes 11160 101610] [--chains 1 8]

Each library is used in its usual form: BlackJAX's SGHMC (ten gradients per batch) and SGLD in a compiled scan,
posteriors' SGHMC, and pseudo-Langevin as one would first write it in eager PyTorch, on a GPU also with TF32 products.
Measurements of the gradient variance, every 5000 steps, are counted against pseudo-Langevin, here and in PyTorch.
Libraries that are not installed are listed as absent.
"""

import argparse
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch shares the GPU

import jax
import jax.numpy as jnp
from jax import lax

import pseudolangevin as pl
from pseudolangevin.apps.bench import Problem, machine, time_sampler

WEIGHT_DECAY, REFRESH_EVERY = 10.0611, 5_000


def timed(block: Callable[[int], None], seconds: float) -> float:
    """Return the median time per step; `block(n)` runs n steps and waits for them."""
    block(1)
    began = time.perf_counter()
    block(1)
    num_steps = max(1, min(1_000, round(0.25 / (time.perf_counter() - began))))
    block(num_steps)  # compiles, if the number of steps is static
    times: list[float] = []
    began = time.perf_counter()
    while not times or time.perf_counter() - began < seconds:
        started = time.perf_counter()
        block(num_steps)
        times.append((time.perf_counter() - started) / num_steps)
    return statistics.median(times)


def blackjax_step(problem: Problem, name: str) -> tuple[Any, int]:
    """Return the step of SGHMC or SGLD, and its number of gradients."""
    blackjax = importlib.import_module("blackjax")
    grad_estimator = importlib.import_module("blackjax.sgmcmc.gradients").grad_estimator

    def log_prior(weights: Any) -> jax.Array:
        squares = sum(jnp.sum(w**2) for w in jax.tree.leaves(weights))
        return -0.5 * problem.num_examples * WEIGHT_DECAY / problem.num_weights * squares

    def log_likelihood(weights: Any, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        inputs, label = example
        return jax.nn.log_softmax(problem.network.apply(weights, inputs[None])[0])[label]

    gradient = grad_estimator(log_prior, log_likelihood, problem.num_examples)
    return (blackjax.sghmc(gradient, 10).step, 10) if name == "sghmc" else (blackjax.sgld(gradient).step, 1)


@partial(jax.jit, static_argnums=(0, 1, 2))
def advance(step: Any, batch_size: int, num_steps: int, weights: Any, keys: jax.Array, dataset: pl.Dataset) -> Any:
    """Run chains of BlackJAX, with batches drawn as pseudo-Langevin draws them."""

    def body(carry: Any, index: jax.Array) -> tuple[Any, None]:
        position, key = carry
        batch_key, noise_key = jax.random.split(jax.random.fold_in(key, index))
        chosen = jax.random.randint(batch_key, (batch_size,), 0, dataset.num_examples)
        batch = (dataset.inputs[chosen], dataset.targets[chosen])
        return (step(noise_key, position, batch, 1e-9, 1.0), key), None

    return jax.vmap(lambda w, key: lax.scan(body, (w, key), jnp.arange(num_steps))[0][0])(weights, keys)


def blackjax_rows(problem: Problem, dataset: pl.Dataset, num_chains: int, seconds: float) -> list[dict[str, Any]]:
    """Time SGHMC and SGLD of BlackJAX."""
    keys = jax.random.split(jax.random.key(0), num_chains)
    weights, rows = jax.vmap(problem.network.init)(keys), []
    for name in ("sghmc", "sgld"):
        step, gradients = blackjax_step(problem, name)

        def block(num_steps: int, step: Any = step) -> None:
            jax.block_until_ready(advance(step, problem.batch_size, num_steps, weights, keys, dataset))

        rows.append({"peer": f"blackjax {name}", "seconds": timed(block, seconds) / gradients / num_chains})
    return rows


class TorchChain:
    """Pseudo-Langevin as one would first write it: the update rule of `integrator.step`, tensor by tensor."""

    def __init__(self, problem: Problem, device: str) -> None:
        """Draw random weights, measure the gradient variance on ten batches, set the masses."""
        torch = importlib.import_module("torch")
        self.torch, self.problem, self.temperature = torch, problem, problem.temperature
        inputs, labels = problem.arrays()
        self.inputs, self.labels = torch.from_numpy(inputs).to(device), torch.from_numpy(labels).long().to(device)
        start = problem.network.init(jax.random.key(0))
        self.weights = {
            f"{layer}.{kind}": torch.tensor(jax.device_get(array)).to(device)
            for layer, tensors in start.items()
            for kind, array in tensors.items()
        }
        self.variance = self.measure_variance(10, 10)
        # M = V/(4·(1 − c1²)·T·ratio) with c1² = 0.99 and a ratio of 1e-6, at which the chain stays finite.
        scale = 1 / (4 * 0.01 * self.temperature * 1e-6)
        self.masses = {name: scale * torch.maximum(v, 0.01 * v.mean()) for name, v in self.variance.items()}
        self.momenta = {name: torch.sqrt(m * self.temperature) * torch.randn_like(m) for name, m in self.masses.items()}

    def batch(self) -> Any:
        """Draw examples with replacement."""
        size = (self.problem.batch_size,)
        chosen = self.torch.randint(len(self.labels), size, device=self.labels.device)
        return self.inputs[chosen].float(), self.labels[chosen]

    def energy(self, weights: dict[str, Any], batch: Any) -> Any:
        """Return U on a batch."""
        hidden, labels = batch
        for layer in ("layer1", "layer2", "layer3"):
            hidden = self.torch.relu(hidden @ weights[f"{layer}.kernel"] + weights[f"{layer}.bias"])
        squares = self.torch.stack([(w * w).sum() for w in weights.values()]).sum()
        loss = self.torch.nn.functional.cross_entropy(hidden, labels)
        return loss + 0.5 * WEIGHT_DECAY / self.problem.num_weights * squares

    def gradient(self) -> dict[str, Any]:
        """Return the gradient on a new batch."""
        leaves = {name: w.detach().requires_grad_() for name, w in self.weights.items()}
        found = self.torch.autograd.grad(self.energy(leaves, self.batch()), list(leaves.values()))
        return dict(zip(leaves, found, strict=True))

    def step(self) -> None:
        """Drift, gradient, kick (eq:PseudoLangevinIntegrator with a time step of 1)."""
        torch, c1_squared, kick = self.torch, 0.99, 0.995
        for name, mass in self.masses.items():
            self.weights[name] = self.weights[name] + self.momenta[name] / mass
        gradient = self.gradient()
        for name, mass in self.masses.items():
            thermal = (1 - c1_squared**2) * mass * self.temperature
            width = torch.sqrt(torch.clamp(thermal - kick**2 * self.variance[name], min=0))
            noise = width * torch.randn_like(width)
            self.momenta[name] = c1_squared * self.momenta[name] - kick * gradient[name] + noise

    def measure_variance(self, block: int = 100, largest: int = 1_000) -> dict[str, Any]:
        """Return the variance over mini-batches, in blocks until no standard deviation changes by more than 10 %."""
        sums = {name: self.torch.zeros_like(w) for name, w in self.weights.items()}
        squares = {name: self.torch.zeros_like(w) for name, w in self.weights.items()}
        before: dict[str, Any] = {}
        for batches in range(block, largest + 1, block):
            for _ in range(block):
                for name, g in self.gradient().items():
                    sums[name], squares[name] = sums[name] + g, squares[name] + g * g
            now = {n: (squares[n] - sums[n] ** 2 / batches).clamp(min=0) / (batches - 1) for n in sums}
            if before and all(bool(((now[n] / before[n]).sqrt() - 1).abs().nan_to_num().max() <= 0.1) for n in now):
                break
            before = now
        return now

    def run(self, step: Callable[[], None], num_steps: int) -> None:
        """Do some steps and wait for them."""
        for _ in range(num_steps):
            step()
        if self.labels.is_cuda:
            self.torch.cuda.synchronize()


def torch_rows(problem: Problem, seconds: float) -> list[dict[str, Any]]:
    """Time eager PyTorch and posteriors, one chain."""
    torch = importlib.import_module("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for label, precision in [("float32", "highest"), ("TF32", "high")][: 2 if device == "cuda" else 1]:
        torch.set_float32_matmul_precision(precision)
        chain = TorchChain(problem, device)
        step = timed(partial(chain.run, chain.step), seconds)
        began = time.perf_counter()
        chain.measure_variance()
        chain.run(chain.step, 1)
        rows.append(
            {"peer": f"eager PyTorch, {label}", "seconds": step + (time.perf_counter() - began) / REFRESH_EVERY}
        )
    if importlib.util.find_spec("posteriors") is not None:
        sghmc = importlib.import_module("posteriors").sgmcmc.sghmc

        def log_posterior(weights: Any, batch: Any) -> Any:
            energy = chain.energy(weights, batch)
            return -energy, energy.detach()

        transform = sghmc.build(log_posterior, lr=1e-6, alpha=0.01, temperature=problem.temperature)
        state = transform.init({name: w.clone() for name, w in chain.weights.items()})

        def update() -> None:
            nonlocal state
            state, _ = transform.update(state, chain.batch())

        rows.append({"peer": "posteriors sghmc", "seconds": timed(partial(chain.run, update), seconds)})
    return rows


def main() -> None:
    """Time all of them at every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[11_160, 101_610])
    parser.add_argument("--chains", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=2.0, help="for every measurement")
    options = parser.parse_args()
    installed = {name for name in ("blackjax", "torch", "posteriors") if importlib.util.find_spec(name)}
    content: dict[str, Any] = {"machine": machine(), "absent": sorted({"blackjax", "torch", "posteriors"} - installed)}
    content["ratios"] = []
    for size in options.sizes:
        problem = Problem(size)
        dataset = pl.Dataset(*problem.arrays())
        for num_chains in options.chains:
            own = time_sampler(problem, dataset, "pseudo_langevin", num_chains, seconds=options.seconds)
            ours = own["seconds_per_step_with_refresh"] / num_chains
            rows = blackjax_rows(problem, dataset, num_chains, options.seconds) if "blackjax" in installed else []
            rows += torch_rows(problem, options.seconds) if "torch" in installed and num_chains == 1 else []
            for row in rows:
                place = {"num_weights": size, "num_chains": num_chains, "peer": row["peer"]}
                place |= {"peer_seconds_per_gradient": row["seconds"], "pseudo_langevin_seconds_per_gradient": ours}
                place |= {"refresh_included": True, "times_faster": row["seconds"] / ours}
                content["ratios"].append(place)
                print(json.dumps(place), flush=True)
            options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
