"""Hybrid Monte Carlo: the trajectory, the energies and the warm-up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin._trees import Stream, key_for, normal_like
from pseudolangevin.samplers.hybrid import trajectory

pytestmark = pytest.mark.usefixtures("_no_directions")


def smooth_problem():
    """A regression with a tanh network in float64: no kinks, so the order of the integrator can be measured."""
    x = jax.random.normal(jax.random.key(0), (30, 4), jnp.float64)
    dataset = pl.Dataset(x, jnp.sin(x[:, :1]))
    potential = pl.regression(lambda w, x: jnp.tanh(x @ w["a"]) @ w["b"], weight_decay=1.0)
    shapes = {"a": (4, 6), "b": (6, 1)}
    weights, momentum = (
        {name: jax.random.normal(jax.random.fold_in(jax.random.key(seed), i), shape, jnp.float64)
         for i, (name, shape) in enumerate(shapes.items())}
        for seed in (1, 2)
    )  # fmt: skip
    return potential, dataset, weights, momentum


def as_float64(tree):
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float64), tree)


def largest_difference(left, right):
    return float(jnp.max(jnp.abs(trees.ravel(jax.tree.map(jnp.subtract, left, right)))))


def test_global_energy_error_is_of_second_order():
    with jax.enable_x64(True):
        potential, dataset, weights, momentum = smooth_problem()
        mass = jax.tree.map(jnp.ones_like, weights)
        gradient_at = jax.grad(lambda w: potential.energy(w, dataset.batch))

        def energy_error(num_steps):
            w, p = trajectory(weights, momentum, gradient_at, mass, 3.0 / num_steps, num_steps)
            energy = potential.energy(w, dataset.batch) - potential.energy(weights, dataset.batch)
            return float(energy + (trees.squared_norm(p) - trees.squared_norm(momentum)) / 2)

        errors = np.array([energy_error(num) for num in (40, 80, 160)])
    orders = np.log2(errors[:-1] / errors[1:])
    # ΔH = c·δt² + c'·δt⁴ + …: every halving of δt brings the observed order four times closer to two.
    np.testing.assert_allclose(orders[-1], 2, atol=0.01)
    assert abs(orders[1] - 2) < abs(orders[0] - 2) / 2


@pytest.mark.parametrize("name", ["hybrid_monte_carlo", "minibatch_hybrid_monte_carlo"])
def test_reversed_momenta_return_to_the_start(small_task, name):
    with jax.enable_x64(True):
        weights = as_float64(small_task.weights)
        momentum = normal_like(jax.random.key(2), weights)
        mass = jax.tree.map(lambda w: 1 + jnp.abs(w), weights)
        sampler = getattr(pl, name)(small_task.potential, small_task.train, num_leapfrog_steps=50, time_step=0.03)
        batch = None if name == "hybrid_monte_carlo" else small_task.train.draw(jax.random.key(3), 20)
        run = jax.jit(lambda w, p: trajectory(w, p, lambda w: sampler.gradient(w, batch), mass, jnp.asarray(0.03), 50))
        end, end_momentum = run(weights, momentum)
        back, back_momentum = run(end, jax.tree.map(jnp.negative, end_momentum))
        assert largest_difference(end, weights) > 0.5
        assert largest_difference(back, weights) < 1e-12
        assert largest_difference(jax.tree.map(jnp.negative, back_momentum), momentum) < 1e-12


def paper_energy(weights, inputs, labels, weight_decay):
    """Return U of the network in the paper, with NumPy in float64."""
    hidden = inputs.astype(np.float64)
    for name in ("layer1", "layer2", "layer3"):
        layer = {key: np.asarray(value, np.float64) for key, value in weights[name].items()}
        hidden = np.maximum(hidden @ layer["kernel"] + layer["bias"], 0)
    losses = np.logaddexp.reduce(hidden, axis=1) - hidden[np.arange(len(labels)), labels]
    flat = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(weights)])
    return losses.mean() + weight_decay / (2 * flat.size) * flat @ flat


def test_the_energy_error_is_precise_at_the_lowest_temperature_of_the_paper():
    """N = 11 160, P = 55 800, T = 1e-6: ΔH/T in float32 against float64, for |ΔH/T| from 0.2 to 30."""
    temperature, weight_decay = 1e-6, 10.0611
    train, _ = pl.tasks.spin_vectors(jax.random.key(0), num_train=55_800, num_test=1)
    network = pl.models.feedforward((100, 50, 100, 10), output_activation="relu")
    potential = pl.classification(network.apply, weight_decay=weight_decay)
    training = pl.adam(potential, train.head(5_000), learning_rate=2e-3)
    trained = pl.sample(training, network.init(jax.random.key(0)), num_steps=200, record_every=200, key=0)
    weights = jax.tree.map(lambda leaf: leaf[0, 0], trained.weights)

    sampler = pl.hybrid_monte_carlo(potential, train, num_leapfrog_steps=5, time_step=0.04)
    propose = jax.jit(lambda s, key, state: s.propose(jax.random.split(key)[0], state, None))
    move = jax.jit(lambda s, state: s.step(state, None))
    state = jax.jit(lambda s, w: s.init(jax.random.key(2), w, temperature))(sampler, weights)
    inputs, labels = np.asarray(train.inputs), np.asarray(train.targets)
    start = paper_energy(weights, inputs, labels, weight_decay)
    exact, measured = [], []
    for step, time_step in enumerate((0.02, 0.04, 0.08)):
        state = state._replace(time_step=jnp.float32(time_step), step=jnp.int32(step))
        momentum, proposed, end_momentum = propose(sampler, key_for(state.key, Stream.STEP, step), state)
        end = paper_energy(proposed, inputs, labels, weight_decay)
        squares = [np.sum(np.asarray(trees.ravel(p), np.float64) ** 2) for p in (end_momentum, momentum)]
        exact.append((end - start + (squares[0] - squares[1]) / 2) / temperature)
        measured.append(float(move(sampler, state).energy_error))
    assert 0.3 < np.max(np.abs(exact)) < 100
    np.testing.assert_allclose(measured, exact, rtol=0, atol=0.02)


def quartic():
    """Return the potential Σ w⁴/4 with a data set of one example."""
    potential = pl.Potential(lambda w, batch: jnp.sum(w**4) / 4 + 0 * batch[0])
    return potential, pl.Dataset(np.zeros(1, np.float32), np.zeros(1, np.float32))


def test_the_warmup_adapts_the_time_step_of_every_chain_and_then_keeps_it():
    """With w → s·w the quartic scales as s⁴ and its frequencies as s, so the right δt is proportional to T^(−1/4).

    The first δt is so large that every trajectory diverges.
    """
    potential, dataset = quartic()
    sampler = pl.hybrid_monte_carlo(potential, dataset, num_leapfrog_steps=5, time_step=1e3, warmup_moves=400)
    temperatures, num_chains = [0.01, 100.0], 16
    starts = np.asarray(temperatures)[:, None, None] ** 0.25 * np.random.default_rng(0).normal(size=(2, num_chains, 10))
    result = pl.sample(
        sampler, starts.astype(np.float32), temperatures=temperatures, num_chains=num_chains,
        num_steps=800, record_every=100, key=0,
    )  # fmt: skip
    time_step = result.trace["time_step"].values
    assert (result.trace["status"] == pl.Status.RUNNING).all()
    assert np.all(time_step[:, :, 3:] == time_step[:, :, 3:4])
    assert np.all(time_step[:, :, 0] != time_step[:, :, 3])
    assert len(np.unique(time_step[:, :, -1])) == 2 * num_chains

    acceptance = result.trace["acceptance"].values[:, :, -1]
    errors = acceptance.std(axis=1, ddof=1) / num_chains**0.5
    # ln δt fluctuated during the warm-up with a variance of order gain·var(acceptance) ≈ 2·400^(−0.6)·0.1 ≈ 0.005;
    # the curvature of the acceptance in ln δt (about −2) turns that into a bias of its mean of about 0.005.
    assert np.all(np.abs(acceptance.mean(axis=1) - 0.75) < 3 * errors + 0.005)

    logs = np.log(time_step[:, :, -1])
    ratio, error = logs[0].mean() - logs[1].mean(), np.sqrt(np.sum(logs.var(axis=1, ddof=1)) / num_chains)
    assert abs(ratio - np.log(10)) < 3 * error
    assert error < 0.1
