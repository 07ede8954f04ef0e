"""Verdicts of the certificate on wrong chains, and on twenty correct ones.

    python benchmarks/sabotage.py benchmarks/results/sabotage.json [--only NAME …] [--seeds 20]

Every row is a run of four chains of a small classifier (254 weights), or of another problem where the sabotage needs
one, with the true error of its averages: of loss and |w|² against a long run of hybrid Monte Carlo, and of the mean of
the worst weight, in standard deviations, against the mean of the correct seeds. A wrong chain must not pass.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin import observables
from pseudolangevin._trees import Stream, draw_indices, key_for, stream_key
from pseudolangevin.apps.bench import machine

TEMPERATURE = 2e-3
NUM_TRAIN = 2_000
SETTINGS: dict[str, Any] = {"num_chains": 4, "num_steps": 100_000, "record_every": 100}
LONG = {"num_chains": 4, "num_steps": 6_000, "record_every": 1}

TRAIN, _ = pl.tasks.spin_vectors(jax.random.key(0), num_train=NUM_TRAIN, num_test=10, dimension=20, num_classes=4)
NETWORK = pl.models.feedforward((20, 10, 4), output_activation="identity")
POTENTIAL = pl.classification(NETWORK.apply, weight_decay=2.0)
START = NETWORK.init(jax.random.key(1))
LABELS = np.asarray(TRAIN.batch[1])


class FromTable(pl.balanced_langevin):
    """Draws examples from a table of indices instead of uniformly."""

    table = np.arange(NUM_TRAIN)

    def batch_indices(self, key, step, stream=Stream.BATCH):
        """Return entries of the table."""
        chosen = draw_indices(stream_key(key, stream), len(self.table), self.examples_per_step, step)
        return jnp.asarray(self.table)[chosen]


class OftenDrawn(FromTable):
    """Draws one class 20 % more often."""

    table = np.concatenate([np.arange(NUM_TRAIN), np.flatnonzero(LABELS == 0)[::5]])


class NeverDrawn(FromTable):
    """Never draws a tenth of the examples."""

    table = np.arange(NUM_TRAIN - NUM_TRAIN // 10)


class Offset(pl.balanced_langevin):
    """Adds a constant to the gradient of one bias, which moves its mean by about one standard deviation or more."""

    def step(self, state, batch):
        """Return one step with an offset in the kick."""
        moved = super().step(state, batch)
        momentum = trees.unpack(moved.half_step_momentum)
        kick = 0.02 * 0.5 * (1 + self.momentum_retention**2) * self.time_step
        layer = momentum["layer2"] | {"bias": momentum["layer2"]["bias"].at[0].add(-kick)}
        momentum = trees.pack_like(moved.half_step_momentum, momentum | {"layer2": layer})
        return moved._replace(half_step_momentum=momentum)


class ColdLayer(pl.balanced_langevin):
    """Holds one layer at half the temperature, so that its variance is halved."""

    def step(self, state, batch):
        """Return one step with two temperatures."""
        cold = super().step(state._replace(temperature=0.5 * state.temperature), batch)
        moved = super().step(state, batch)
        fields = ("weights", "half_step_momentum")
        mixed = {}
        for name in fields:
            warm, other = (trees.unpack(getattr(s, name)) for s in (moved, cold))
            mixed[name] = trees.pack_like(getattr(moved, name), warm | {"layer2": other["layer2"]})
        return moved._replace(**mixed)


class TooHot(pl.balanced_langevin):
    """Runs at a temperature 2 % above the one it states."""

    def init(self, key, weights, temperature):
        """Start at another temperature."""
        return super().init(key, weights, 1.02 * jnp.asarray(temperature, jnp.float32))


class Moved(pl.balanced_langevin):
    """Moves one recorded weight by about a standard deviation."""

    def position(self, state):
        """Return the weights with one of them moved."""
        weights = super().position(state)
        kernel = weights["layer1"]["kernel"]
        return weights | {"layer1": weights["layer1"] | {"kernel": kernel.at[0, 0].add(0.35)}}


class Frozen(pl.balanced_langevin):
    """Never moves one weight, which stays one standard deviation off."""

    def step(self, state, batch):
        """Return one step with one entry of the weights as it was."""
        moved = super().step(state, batch)
        old, new = trees.unpack(state.weights), trees.unpack(moved.weights)
        kernel = new["layer1"]["kernel"].at[3, 3].set(old["layer1"]["kernel"][3, 3])
        new = new | {"layer1": new["layer1"] | {"kernel": kernel}}
        return moved._replace(weights=trees.pack_like(moved.weights, new))


class Twice(pl.balanced_langevin):
    """Uses every mini-batch twice."""

    def batch_indices(self, key, step, stream=Stream.BATCH):
        """Return the examples of the step before, at odd steps."""
        return super().batch_indices(key, step - step % 2, stream)


class SameNoise(pl.balanced_langevin):
    """Uses the thermal noise of every step twice."""

    def step(self, state, batch):
        """Return one step with the noise of an even step."""
        step = state.step
        moved = super().step(state._replace(step=step - step % 2), batch)
        return moved._replace(step=step + 1)


class NeverRefreshed(pl.hybrid_monte_carlo):
    """Draws the same momenta at every move."""

    def propose(self, key, state, batch):
        """Return a proposal with the momenta of the first move."""
        return super().propose(key_for(state.key, Stream.STEP, 0), state, batch)


def balanced(kind: type[pl.Sampler] = pl.balanced_langevin, **settings: Any) -> pl.Sampler:
    """Return a sampler of the classifier."""
    return kind(POTENTIAL, TRAIN, **({"batch_size": 200} | settings))


def hybrid(kind: type[pl.Sampler] = pl.hybrid_monte_carlo) -> pl.Sampler:
    """Return hybrid Monte Carlo of the classifier."""
    return kind(POTENTIAL, TRAIN, num_leapfrog_steps=20, time_step=0.3, warmup_moves=100)


def classifier(sampler: pl.Sampler, key: int = 0, **settings: Any) -> pl.Result:
    """Sample the classifier."""
    return pl.sample(sampler, START, temperatures=[TEMPERATURE], key=key, **(SETTINGS | settings))


def regression(targets: np.ndarray, inputs: np.ndarray) -> tuple[pl.Potential, pl.Dataset]:
    """Return linear regression."""
    return pl.regression(lambda w, x: x @ w["slope"], weight_decay=0.1), pl.Dataset(inputs, targets)


def resonance() -> pl.Result:
    """Sample linear regression by trajectories as long as the period of three directions, which return to their start.

    They begin one standard deviation off.
    """
    rng = np.random.default_rng(0)
    scales = np.repeat([1.0, 0.5, 0.3, 0.2], 3)
    inputs = np.linalg.qr(rng.normal(size=(240, 12)))[0] * np.sqrt(240) * scales
    potential, data = regression((inputs @ np.ones(12)).astype(np.float32), inputs.astype(np.float32))
    # U = |x·w − y|²/2 averaged, so directions have curvatures scales² + λ/N.
    frequency = np.sqrt(1.0 + 0.1 / 12)
    sampler = pl.hybrid_monte_carlo(potential, data, num_leapfrog_steps=64, time_step=2 * np.pi / frequency / 64)
    start = {"slope": jnp.asarray(np.where(scales == 1.0, 1.0 + 0.1, 1.0), jnp.float32)}
    return pl.sample(sampler, start, temperatures=[0.01], num_chains=4, num_steps=4_000, record_every=1, key=0)


def heavy_tails(kind: str = "balanced") -> pl.Result:
    """Sample a regression with the loss of Student's distribution with 1.5 degrees of freedom: a correct chain."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(1_000, 8)).astype(np.float32)
    targets = (inputs @ np.ones(8) + rng.standard_t(1.5, size=1_000)).astype(np.float32)

    def loss(weights: Any, batch: Any) -> Any:
        residual = batch[0] @ weights["slope"] - batch[1]
        return 1.25 * jnp.log1p(residual**2 / 1.5)

    potential, data = pl.Potential(loss, weight_decay=0.1), pl.Dataset(inputs, targets)
    sampler: pl.Sampler = pl.hybrid_monte_carlo(potential, data, num_leapfrog_steps=8, time_step=0.12)
    steps = {"num_steps": 8_000, "record_every": 2}
    if kind == "balanced":
        sampler = pl.balanced_langevin(potential, data, batch_size=100)
        steps = {"num_steps": 200_000, "record_every": 20}
    start = {"slope": jnp.ones(8)}
    return pl.sample(sampler, start, temperatures=[1e-3], num_chains=4, key=0, **steps)


def two_modes() -> pl.Result:
    """Sample a double well from one well, with a barrier of 20 T: no test of these samples can see the other one."""
    data = pl.Dataset(np.zeros((8, 1), np.float32), np.zeros(8, np.float32))

    def loss(weights: Any, batch: Any) -> Any:
        return jnp.zeros(batch[1].shape) + 20.0 * jnp.sum((weights["x"] ** 2 - 1) ** 2) / 4

    sampler = pl.hybrid_monte_carlo(pl.Potential(loss), data, num_leapfrog_steps=6, time_step=0.15)
    start = {"x": jnp.ones(4)}
    return pl.sample(sampler, start, temperatures=[0.25], num_chains=4, num_steps=24_000, record_every=2, key=0)


RUNS: dict[str, tuple[Any, bool]] = {
    "correct: balanced Langevin": (lambda: classifier(balanced()), True),
    "correct: hybrid Monte Carlo": (lambda: classifier(hybrid(), **LONG), True),
    "correct: heavy-tailed losses, hybrid Monte Carlo": (lambda: heavy_tails("hybrid"), True),
    "correct: heavy-tailed losses, balanced Langevin": (heavy_tails, True),
    "one class drawn 20 % more often": (lambda: classifier(balanced(OftenDrawn)), False),
    "a tenth of the data never drawn": (lambda: classifier(balanced(NeverDrawn)), False),
    "constant offset on one bias": (lambda: classifier(balanced(Offset)), False),
    "variance of one layer halved": (lambda: classifier(balanced(ColdLayer)), False),
    "temperature off by 2 %": (lambda: classifier(balanced(TooHot)), False),
    "a slowly drifting chain": (lambda: classifier(balanced(temperature_ratio=1e-4)), False),
    "one weight's mean moved": (lambda: classifier(balanced(Moved)), False),
    "one weight does not move": (lambda: classifier(balanced(Frozen)), False),
    "resonance of hybrid Monte Carlo": (resonance, False),
    "every batch used twice": (lambda: classifier(balanced(Twice)), False),
    "momenta never refreshed": (lambda: classifier(hybrid(NeverRefreshed), **LONG), False),
    "noise repeated between steps": (lambda: classifier(balanced(SameNoise)), False),
    "all chains in one mode of two": (two_modes, True),
}


def averages(result: pl.Result) -> dict[str, float]:
    """Return the averages of loss and |w|² over the second half."""
    half = result.trace.sizes["draw"] // 2
    return {name: float(result.trace[name].values[..., half:].mean()) for name in ("loss", "squared_norm")}


def weight_means(result: pl.Result) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of every weight over the second half."""
    blocks = observables.stein_blocks(jax.device_get(result.states.tests), 0.5).mean(axis=(0, 1))
    return blocks[0], np.sqrt(np.maximum(blocks[3] - blocks[0] ** 2, 0))


def row_of(name: str, result: pl.Result, certificate: pl.Certificate, reference: dict[str, Any]) -> dict[str, Any]:
    """Return verdict and true errors of one run."""
    row: dict[str, Any] = {"name": name, "verdict": str(certificate.verdict), "may_pass": RUNS[name][1]}
    if result.num_weights == 254:
        found = averages(result)
        row |= {f"error_of_{key}": found[key] / reference[key] - 1 for key in found}
        if "mean" in reference:
            shift = weight_means(result)[0] - np.array(reference["mean"])
            row["worst_mean"] = float(np.abs(shift / np.array(reference["deviation"])).max())
    lines = {line.name for line in certificate.lines if line.required and str(line.verdict) == row["verdict"]}
    return row | {"lines": [] if certificate.passed else sorted(lines)}


def seeds_of(certificates: list[pl.Certificate], results: list[pl.Result], reference: dict[str, Any]) -> dict[str, Any]:
    """Return the row of correct runs; their mean weights become part of the reference."""
    mean, deviation = np.mean([weight_means(result) for result in results], axis=0)
    reference |= {"mean": mean.round(4).tolist(), "deviation": deviation.round(4).tolist()}
    verdicts = [str(certificate.verdict) for certificate in certificates]
    row = {"name": f"{len(verdicts)} seeds of a correct run, twice as long", "may_pass": True}
    return row | {word: verdicts.count(word) for word in ("passed", "undecided", "failed")}


def main() -> None:
    """Run correct seeds, then every sabotage, and write one row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", help="parts of names of rows")
    parser.add_argument("--seeds", type=int, default=0, help="number of correct runs in the last row")
    options = parser.parse_args()
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    known = {row["name"]: row for row in rows}

    def write() -> None:
        last = [name for name in known if "seeds" in name]
        ordered = [row for name, row in known.items() if name not in last] + [known[name] for name in last]
        options.out.write_text(json.dumps({"machine": machine(), "rows": ordered}, indent=1) + "\n")

    if "reference" not in known:
        reference = averages(classifier(hybrid(), key=9, **(LONG | {"num_steps": 12_000})))
        known["reference"] = {"name": "reference", **reference}
    if options.seeds:
        results = [classifier(balanced(), key=100 + seed, num_steps=200_000) for seed in range(options.seeds)]
        row = seeds_of([pl.certificate(result) for result in results], results, known["reference"])
        known[row["name"]] = row
        print(row, flush=True)
        write()
    for name, (make, _) in RUNS.items():
        if options.only is None or any(part in name for part in options.only):
            began = time.perf_counter()
            result = make()
            certificate = pl.certificate(result)
            row = row_of(name, result, certificate, known["reference"])
            known[name] = row | {"seconds": round(time.perf_counter() - began, 1)}
            print(row, certificate, sep="\n", flush=True)
            write()


if __name__ == "__main__":
    main()
