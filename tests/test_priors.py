"""Priors are part of U as documented, exact samplers sample them, and bad ones are rejected in one line."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin.gradients import exact_energy, exact_sums

pytestmark = pytest.mark.usefixtures("_no_directions")

DATA = pl.Dataset(np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32), np.zeros(40, np.float32))
WEIGHTS = {"a": jnp.asarray([0.5, -1.0]), "b": {"c": jnp.asarray([[2.0, 0.1, -0.3]])}}


def loss(weights, batch):
    return 0.5 * jnp.sum((batch[0] - weights["a"]) ** 2, axis=-1) + 0.1 * jnp.sum(weights["b"]["c"] ** 2)


def own(weights):
    return -jnp.sum(weights["a"] ** 4) - jnp.sum(weights["b"]["c"] ** 2)


PRIORS: dict[str, Any] = {
    "gaussian": (pl.gaussian(2.0), lambda w: -(w["a"] ** 2).sum() / 8 - (w["b"]["c"] ** 2).sum() / 8),
    "center": (
        pl.gaussian(2.0, center=jax.tree.map(jnp.ones_like, WEIGHTS)),
        lambda w: -((w["a"] - 1) ** 2).sum() / 8 - ((w["b"]["c"] - 1) ** 2).sum() / 8,
    ),
    "groups": (
        {"b.*": pl.laplace(0.5, center=1.0), "*": pl.gaussian(2.0)},
        lambda w: -(w["a"] ** 2).sum() / 8 - abs(w["b"]["c"] - 1).sum() / 0.5,
    ),
    "own": (own, own),
}


@pytest.mark.parametrize("kind", PRIORS)
def test_the_prior_is_part_of_energy_and_gradient(kind):
    """U = mean loss − T·ln prior, with T that of the chain, or T0 if it is given."""
    prior, log_prior = PRIORS[kind]
    expected = jax.jit(jax.value_and_grad(lambda w: jnp.mean(loss(w, DATA.batch)) - 0.3 * log_prior(w)))(WEIGHTS)
    for potential in (pl.Potential(loss, prior=prior).at(0.3), pl.Potential(loss, prior=prior, prior_temperature=0.3)):
        assert float(potential.regularizer(WEIGHTS)) == pytest.approx(-0.3 * float(log_prior(WEIGHTS)), rel=1e-5)

        def both(weights, potential=potential):
            gradient = exact_sums(potential, weights, DATA, None).gradient
            return sum(exact_energy(potential, weights, DATA)), trees.ravel(gradient)

        energy, gradient = jax.jit(both)(WEIGHTS)
        assert float(energy) == pytest.approx(float(expected[0]), rel=1e-5)
        np.testing.assert_allclose(gradient, trees.ravel(expected[1]), rtol=1e-4, atol=1e-5)


def test_weight_decay_is_a_gaussian_prior_of_variance_n_times_t_over_lambda():
    assert pl.posterior_temperature(DATA) == 1 / 40
    assert pl.posterior_temperature(DATA, noise_scale=0.5) == 0.25 / 40
    by_decay = pl.Potential(loss, weight_decay=2.0)
    scale = (5 * 0.01 / 2.0) ** 0.5
    by_prior = pl.Potential(loss, prior=pl.gaussian(scale)).at(0.01)
    energies = [float(p.energy(WEIGHTS, DATA.batch)) for p in (by_decay, by_prior)]
    assert energies[0] == pytest.approx(energies[1], rel=1e-5)
    stiffness = by_prior.stiffness(WEIGHTS)["a"]
    assert float(stiffness) == pytest.approx(by_decay.stiffness(WEIGHTS)["a"], rel=1e-5)


def test_the_prior_stays_and_the_likelihood_is_tempered():
    """Mean of a normal, prior N(0, σ²): the posterior at T has the precision 1/T + 1/σ²."""
    potential = pl.Potential(lambda w, batch: 0.5 * (batch[0][:, 0] - w) ** 2, prior=pl.gaussian(0.5))
    sampler = pl.hybrid_monte_carlo(potential, DATA, num_leapfrog_steps=7, time_step=0.15)
    temperatures = np.asarray([0.05, 0.5])
    options: Any = {"temperatures": temperatures, "num_chains": 40, "num_steps": 100, "record_every": 5, "key": 0}
    result = pl.sample(sampler, jnp.zeros(()), **options, keep_weights_every=1)
    precision = 1 / np.asarray(result.samples)[:, :, 4:].var(axis=(1, 2))  # 640 nearly independent draws: 6 %
    np.testing.assert_allclose(precision, 1 / temperatures + 4, rtol=0.2)


def test_a_prior_works_with_masses_from_the_noise_and_a_subset():
    potential = pl.Potential(loss, prior={"b.*": pl.gaussian(1.0), "*": pl.laplace(1.0)})
    part = pl.subset(potential, WEIGHTS, "b.*")
    assert list(part.potential.prior) == ["b.c"]  # type: ignore[arg-type]
    sampler = pl.pseudo_langevin(potential, DATA, batch_size=10, refresh_every=20)
    result = pl.sample(sampler, WEIGHTS, temperatures=[0.1], num_steps=40, record_every=20, key=0)
    last = result.trace.isel(temperature=0, chain=0, draw=-1)
    weights = jax.tree.map(lambda w: w[0, 0], result.weights)
    assert float(last.potential) == pytest.approx(float(potential.at(0.1).energy(weights, DATA.batch)), rel=1e-5)
    assert potential.tempered_energy == "loss"
    trained = pl.sample(pl.adam(potential, DATA, batch_size=10), WEIGHTS, num_steps=20, key=0)
    map_energy = float(trained.trace.potential[0, 0, -1])
    trained_weights = jax.tree.map(lambda w: w[0, 0], trained.weights)
    assert map_energy == pytest.approx(float(potential.at(1 / 40).energy(trained_weights, DATA.batch)), rel=1e-5)


def test_a_density_without_data_is_sampled_exactly():
    normal = pl.log_density(lambda w: -0.5 * jnp.sum(w**2 / jnp.asarray([1.0, 4.0])))
    sampler = pl.hybrid_monte_carlo(normal, num_leapfrog_steps=5, time_step=0.5)
    options: Any = {"temperatures": 1.0, "num_chains": 50, "num_steps": 200, "record_every": 10, "key": 0}
    result = pl.sample(sampler, jnp.zeros(2), **options, keep_weights_every=1)
    variance = np.asarray(result.samples)[0, :, 2:].reshape(-1, 2).var(axis=0)
    np.testing.assert_allclose(variance, [1.0, 4.0], rtol=0.2)  # 900 draws: 5 %
    pl.full_batch_langevin(normal, time_step=0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pl.gaussian(0.0), "scale = 0.0 is not positive"),
        (lambda: pl.Potential(loss, prior=3.0), "prior = 3.0 is not a prior; pass pl.gaussian"),  # type: ignore[arg-type, dict-item, unused-ignore]
        (lambda: pl.Potential(loss, prior=pl.gaussian(1.0), weight_decay=1.0), "are two priors"),
        (lambda: pl.Potential(loss, prior=pl.gaussian(1.0), prior_temperature=0), "prior_temperature = 0"),
        (lambda: pl.Potential(loss, prior=pl.gaussian(1.0)).energy(WEIGHTS, DATA.batch), "call potential.at"),
        (lambda: pl.Potential(loss, prior={"z": pl.gaussian(1.0)}).check(WEIGHTS, DATA), "matches no tensor"),
        (lambda: pl.Potential(loss, prior=lambda w: w["a"]).check(WEIGHTS, DATA), "must return one number"),
        (lambda: pl.balanced_langevin(pl.log_density(own)), "has no mini-batches"),
        (lambda: pl.hybrid_monte_carlo(pl.log_density(own), DATA, num_leapfrog_steps=1, time_step=1), "has no data"),
        (
            lambda: pl.hybrid_monte_carlo(pl.Potential(loss), num_leapfrog_steps=1, time_step=1),
            "is not a Dataset; pass",
        ),
        (lambda: pl.adam(loss, DATA), "is not a Potential"),  # type: ignore[arg-type]
    ],
)
def test_bad_priors_and_densities_are_rejected_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
