"""Training by sampling, and starts without dead classes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin.apps.temperature import trained_starts


@pytest.fixture(scope="module")
def spins():
    """Four classes of spin vectors and a narrow network with ReLU on its scores, which often loses a class."""
    train, _ = pl.tasks.spin_vectors(
        jax.random.key(0), num_train=600, num_test=10, dimension=20, num_classes=4, flip_probability=0.2
    )
    network = pl.models.feedforward((20, 3, 4), output_activation="relu")
    return train, network, pl.classification(network.apply, weight_decay=1.0)


SETTINGS: dict[str, Any] = {"num_steps": 300, "num_starts": 2, "candidates": 8, "learning_rate": 1e-2, "key": 1}


def test_trained_starts_have_learned_every_class(spins):
    train, network, potential = spins
    starts = trained_starts(potential, train, network.init, **SETTINGS)
    random = trained_starts(potential, train, network.init, untrained=True, **SETTINGS)
    inits = jax.vmap(lambda i: network.init(jax.random.fold_in(jax.random.key(1), i)))(jnp.arange(16))
    for index in range(2):
        start, before = (jax.tree.map(lambda w, i=index: w[i], weights) for weights in (starts, random))
        scores = np.asarray(network.apply(start, train.inputs))
        assert (scores.std(axis=0) > 0).all()
        assert potential.loss(start, train.batch) < 0.8 * potential.loss(before, train.batch)
        assert any(np.array_equal(before["layer1"]["kernel"], kernel) for kernel in inits["layer1"]["kernel"])


def test_starts_that_lost_a_class_or_failed_are_reported(spins):
    train, network, potential = spins

    def silent(key):
        weights = network.init(key)
        return weights | {"layer2": jax.tree.map(lambda w: jnp.full_like(w, -1.0), weights["layer2"])}

    with pytest.warns(pl.DeadClassWarning, match=r"2 of 2 starts have a dead class.*candidates"):
        trained_starts(potential, train, silent, **SETTINGS)
    with pytest.raises(ValueError, match=r"16 of 16 trainings did not stay finite.*learning_rate"):
        trained_starts(potential, train, lambda key: jax.tree.map(lambda w: 1e30 * w, network.init(key)), **SETTINGS)


def test_the_regression_ensemble_is_the_bayesian_posterior():
    """A line through Gaussian targets at T = σ²/P: the spread of the ensemble is the posterior's, σ²·xᵀ(XᵀX)⁻¹x."""
    num, sigma = 400, 0.5
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num, 2)).astype(np.float32)
    targets = (inputs @ [1.0, -2.0] + sigma * rng.normal(size=num)).astype(np.float32)
    potential = pl.regression(lambda w, x: x @ w)
    options: dict[str, Any] = {"num_chains": 40, "num_steps": 1_200, "samples_per_chain": 5, "batch_size": 40}
    options |= {"temperature": sigma**2 / num, "progress": False}
    fitted = pl.fit(potential, pl.Dataset(inputs, targets), jnp.array([1.0, -2.0]), **options)
    prediction = fitted.predict(inputs[:20])
    assert isinstance(prediction, pl.predictions.ValuePredictions)
    assert prediction.noise_variance == pytest.approx(sigma**2)
    exact = sigma * np.sqrt(np.einsum("ni,ij,nj->n", inputs[:20], np.linalg.inv(inputs.T @ inputs), inputs[:20]))
    # 40 chains, so at least 40 independent members: the relative error of a spread is at most 1/√80.
    assert np.mean(prediction.spread / exact) == pytest.approx(1, abs=4 / np.sqrt(80))
    assert prediction.calibration_error(targets[:20]) < 0.2


@pytest.mark.filterwarnings("ignore::pseudolangevin.apps.fit.EquilibriumWarning")  # a short run
def test_a_classifier_is_fitted_at_the_temperature_found(cubic_task):
    options: dict[str, Any] = {"search_epochs": 100, "num_steps": 605, "samples_per_chain": 5, "num_chains": 2}
    options |= {"temperature_ratio": 0.1, "batch_size": 50, "test": cubic_task.test, "progress": False}
    fitted = pl.fit(cubic_task.potential, cubic_task.train, cubic_task.weights, **options)
    assert fitted.search is not None
    assert fitted.temperature == fitted.search.temperature
    assert fitted.trace.step[-1] == 600
    assert fitted.cost == fitted.search.cost + 2 * 600 * 50
    assert fitted.trace.sizes["draw"] == 100
    targets = cubic_task.test.targets
    ensemble = fitted.predict(cubic_task.test.inputs)
    assert isinstance(ensemble, pl.predictions.ClassPredictions)
    members = ensemble.members()
    assert len(members) == 10
    assert members[4].error(targets) == pytest.approx(fitted.trace.test_error.values[0, 0, -1], abs=1e-6)
    assert ensemble.error(targets) < 0.25
    losses = [member.negative_log_likelihood(targets) for member in members]
    assert ensemble.negative_log_likelihood(targets) <= np.mean(losses)
    table = fitted.evaluate(cubic_task.test)
    assert table.loc["ensemble", "error"] == ensemble.error(targets)
    assert table.loc["mean of members", "negative_log_likelihood"] == pytest.approx(np.mean(losses))
    assert len(table) == 12


def test_bad_arguments(cubic_task):
    for temperature, arguments, message in (
        ("warm", {}, "warm"),
        (-1.0, {}, "temperature = -1.0"),
        (1e-3, {"num_steps": 10}, "fewer samples"),
        (1e-3, {"samples_per_chain": 0}, "samples_per_chain"),
    ):
        with pytest.raises(ValueError, match=message):
            pl.fit(cubic_task.potential, cubic_task.train, cubic_task.weights, temperature=temperature, **arguments)


def test_what_was_recorded_is_returned_when_every_chain_stops():
    """Targets that are met exactly leave no mini-batch noise to choose masses from."""
    line = pl.regression(lambda w, x: x * w)
    data = pl.Dataset(np.arange(50.0), np.arange(50.0))
    options: dict[str, Any] = {"temperature": 1e-3, "num_steps": 4, "samples_per_chain": 1, "training_steps": 0}
    with pytest.warns(pl.ChainStoppedWarning):
        fitted = pl.fit(line, data, jnp.ones(()), **options, progress=False)
    assert fitted.trace.sizes["draw"] == 1
    with pytest.raises(ValueError, match=r"every chain at T = 0\.001 stopped"):
        fitted.ensemble()


def test_a_run_that_is_not_at_equilibrium_is_reported_and_shows_its_work(cubic_task, capfd):
    """Chains from far outside the prior still contract at the end."""
    far = cubic_task.weights + 30.0
    options: dict[str, Any] = {"temperature": 1e-3, "num_steps": 200, "batch_size": 50, "training_steps": 0}
    with pytest.warns(pl.EquilibriumWarning, match="not at equilibrium: .* failed; raise num_steps"):
        pl.fit(cubic_task.potential, cubic_task.train, far, **options)
    assert "fit: sampling: 1 chains of 160 steps at temperature 0.001, batch 50" in capfd.readouterr().err
