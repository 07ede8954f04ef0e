"""PyTorch, eager: pseudo-Langevin written plainly, and the SGHMC of posteriors.

The pseudo-Langevin here is what one would write first: the same update rule as `integrator.step`, tensor by tensor,
with masses from the variance of mini-batch gradients. It is timed on a GPU where PyTorch has one.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from ..paper.spins import WEIGHT_DECAY
from ..samplers.langevin import DEFAULT_MOMENTUM_RETENTION
from .clock import Deadline, steps_per_block, time_blocks
from .problem import QUIET_TEMPERATURE_RATIO, Problem
from .rows import Row, row, skipped

VARIANCE_BATCHES = 10
"""Enough for masses that keep the chain finite while it is timed; the time of a step does not depend on it."""
REFRESH_BLOCK, REFRESH_BATCHES, REFRESH_TOLERANCE, REFRESH_EVERY = 100, 1_000, 0.1, 5_000
"""The paper's refresh of 𝒱: blocks of mini-batches until no component's deviation changes by more, every so often."""
MAX_STEPS_PER_BLOCK = 1_000


def measure_all(problem: Problem, deadline: Deadline, emit: Callable[[str, Row], None]) -> None:
    """Rows of every PyTorch peer at one size; on a GPU, eager pL with PyTorch's own float32 products and with TF32."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    inputs, labels = (torch.from_numpy(array).to(device) for array in problem.arrays())
    task = Task(problem, inputs, labels.long())
    plans: list[tuple[str, str, str, Callable[[Task], Callable[[], None]]]] = [
        ("torch", "pseudo_langevin", "highest", EagerPseudoLangevin)
    ]
    if device.type == "cuda":
        plans.append(("torch", "pseudo_langevin_tf32", "high", EagerPseudoLangevin))
    if importlib.util.find_spec("posteriors") is not None:
        precision = "high" if device.type == "cuda" else "highest"
        plans.append(("posteriors", "sghmc", precision, posteriors_sghmc))
    for index, (name, sampler, precision, make) in enumerate(plans):
        until = deadline.share(1, len(plans) - index)
        torch.set_float32_matmul_precision(precision)
        emit(*_measure(task, name, sampler, precision, make, until))


class Task:
    """Network, data and gradient in PyTorch."""

    def __init__(self, problem: Problem, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Random weights, uniform in ±1/√(inputs of the layer)."""
        self.problem, self.inputs, self.labels = problem, inputs, labels
        self.stiffness = WEIGHT_DECAY / problem.num_weights
        generator = torch.Generator(device=inputs.device).manual_seed(0)
        self.weights: dict[str, torch.Tensor] = {}
        for layer, (num_in, num_out) in enumerate(zip(problem.sizes[:-1], problem.sizes[1:], strict=True), start=1):
            for kind, shape in (("kernel", (num_in, num_out)), ("bias", (num_out,))):
                uniform = torch.rand(shape, generator=generator, device=inputs.device)
                self.weights[f"layer{layer}.{kind}"] = (2 * uniform - 1) / math.sqrt(num_in)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Examples drawn with replacement."""
        chosen = torch.randint(self.inputs.shape[0], (self.problem.batch_size,), device=self.inputs.device)
        return self.inputs[chosen].float(), self.labels[chosen]

    def energy(self, weights: dict[str, torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """U on a batch."""
        hidden, labels = batch
        for layer in (1, 2, 3):
            hidden = torch.relu(hidden @ weights[f"layer{layer}.kernel"] + weights[f"layer{layer}.bias"])
        squares = torch.stack([(w * w).sum() for w in weights.values()]).sum()
        return torch.nn.functional.cross_entropy(hidden, labels) + 0.5 * self.stiffness * squares

    def gradient(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """∇U on a batch of its own."""
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
        gradients = torch.autograd.grad(self.energy(leaves, self.batch()), list(leaves.values()))
        return dict(zip(leaves, gradients, strict=True))


class EagerPseudoLangevin:
    """Pseudo-Langevin as one would write it first; a call is a step (eq:PseudoLangevinIntegrator with δt = 1)."""

    def __init__(self, task: Task) -> None:
        """Measure 𝒱, choose masses for the ratio 𝒯, draw momenta."""
        self.task = task
        self.c1_squared = DEFAULT_MOMENTUM_RETENTION**2
        self.temperature = task.problem.temperature
        self.weights = {name: w.clone() for name, w in task.weights.items()}
        draws = [task.gradient(self.weights) for _ in range(VARIANCE_BATCHES)]
        self.variance = {name: torch.stack([g[name] for g in draws]).var(dim=0) for name in self.weights}
        # M = 𝒱/(4·(1 − c1²)·T·𝒯), and 1 % of a tensor's mean 𝒱 as the floor.
        scale = 1 / (4 * (1 - self.c1_squared) * self.temperature * QUIET_TEMPERATURE_RATIO)
        self.masses = {name: scale * torch.maximum(v, 0.01 * v.mean()) for name, v in self.variance.items()}
        self.momenta = {name: torch.sqrt(m * self.temperature) * torch.randn_like(m) for name, m in self.masses.items()}

    def __call__(self) -> None:
        """Drift, one gradient, kick."""
        kick = (1 + self.c1_squared) / 2
        for name, mass in self.masses.items():
            self.weights[name] = self.weights[name] + self.momenta[name] / mass
        gradient = self.task.gradient(self.weights)
        for name, mass in self.masses.items():
            thermal = (1 - self.c1_squared**2) * mass * self.temperature
            width = torch.sqrt(torch.clamp(thermal - kick**2 * self.variance[name], min=0))
            noise = width * torch.randn_like(width)
            self.momenta[name] = self.c1_squared * self.momenta[name] - kick * gradient[name] + noise

    def measure_variance(self) -> dict[str, torch.Tensor]:
        """𝒱 as the paper measures it; the masses that one would raise by it cost nothing beside."""
        sums = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        squares = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        before: dict[str, torch.Tensor] | None = None
        for batches in range(REFRESH_BLOCK, REFRESH_BATCHES + 1, REFRESH_BLOCK):
            for _ in range(REFRESH_BLOCK):
                for name, g in self.task.gradient(self.weights).items():
                    sums[name] = sums[name] + g
                    squares[name] = squares[name] + g * g
            now = {n: (squares[n] - sums[n] ** 2 / batches).clamp(min=0) / (batches - 1) for n in sums}
            if before is not None and all(self._agree(before[n], now[n]) for n in now):
                break
            before = now
        return now

    @staticmethod
    def _agree(old: torch.Tensor, new: torch.Tensor) -> bool:
        ratio = torch.sqrt(new / old)
        return bool((((ratio - 1).abs() <= REFRESH_TOLERANCE) | ((new == 0) & (old == 0))).all())


def posteriors_sghmc(task: Task) -> Callable[[], None]:
    """One update of the SGHMC of posteriors, which is one gradient."""
    sghmc = importlib.import_module("posteriors").sgmcmc.sghmc

    def log_posterior(weights: dict[str, torch.Tensor], batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        energy = task.energy(weights, batch)
        return -energy, energy.detach()

    transform = sghmc.build(log_posterior, lr=1e-6, alpha=0.01, temperature=task.problem.temperature)
    state = transform.init({name: w.clone() for name, w in task.weights.items()})

    def step() -> None:
        nonlocal state
        state, _ = transform.update(state, task.batch())

    return step


def _refresh(chain: EagerPseudoLangevin, step_seconds: float, wait: Callable[[], None], deadline: Deadline) -> Row:
    """One measurement of 𝒱, and what it adds to every step of its interval; nothing where there is no time for it."""
    if step_seconds * REFRESH_BATCHES > deadline.left:
        return {"refresh_seconds": None}
    began = time.perf_counter()
    chain.measure_variance()
    wait()
    seconds = time.perf_counter() - began
    return {
        "refresh_seconds": seconds,
        "refresh_interval": REFRESH_EVERY,
        "seconds_per_step_with_refresh": step_seconds + seconds / REFRESH_EVERY,
    }


def _measure(
    task: Task,
    name: str,
    sampler: str,
    precision: str,
    make: Callable[[Task], Callable[[], None]],
    deadline: Deadline,
) -> tuple[str, Row]:
    on_gpu = task.inputs.is_cuda
    problem = task.problem

    def wait() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    try:
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        step = make(task)

        def block(num_steps: int) -> None:
            for _ in range(num_steps):
                step()
            wait()

        one = time_blocks(lambda: block(1), Deadline.after(0), warm_up=2).median
        if one * 3 > deadline.left:
            reason = f"a step takes {one:.2g} s, and {deadline.left:.0f} s were left"
            return "skipped", skipped(problem.num_weights, name, sampler, reason, 1)
        num_steps = steps_per_block(one, MAX_STEPS_PER_BLOCK)
        timing = time_blocks(lambda: block(num_steps), deadline)
    except Exception as error:  # one peer's failure is not the others'
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return "skipped", skipped(problem.num_weights, name, sampler, reason, 1)
    more: Row = {"peak_bytes": torch.cuda.max_memory_allocated(), "peak_is": "device memory"} if on_gpu else {}
    if isinstance(step, EagerPseudoLangevin):
        more |= _refresh(step, timing.median / num_steps, wait, deadline)
    return "row", row(
        problem,
        name,
        sampler,
        num_chains=1,
        timing=timing,
        steps_per_block=num_steps,
        matmul_precision=precision,
        **more,
    )
