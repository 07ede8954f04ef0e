"""Adam minimises the loss, keeps the weights of the best validation, and stops when patience runs out."""

import dataclasses

import jax
import numpy as np
import pytest

import pseudolangevin as pl


@pytest.fixture(scope="module")
def overfitting():
    """A linear regression with as many weights as noisy examples, which fits the noise after the signal."""
    rng = np.random.default_rng(0)
    dimension = 40
    slope = np.where(np.arange(dimension) < 4, 1.0, 0.0)

    def examples(num):
        inputs = rng.normal(size=(num, dimension)) * np.where(np.arange(dimension) < 4, 1.0, 0.5)
        targets = inputs @ slope + rng.normal(size=num)
        return pl.Dataset(inputs.astype(np.float32), targets.astype(np.float32))

    potential = pl.regression(lambda w, x: x @ w)
    return potential, examples(40), examples(400), np.zeros(dimension, np.float32)


@pytest.fixture(scope="module")
def validated(overfitting):
    potential, train, validation, _ = overfitting
    return pl.adam(potential, train, batch_size=20, learning_rate=2e-2, validation=validation, validate_every=10)


def validation_losses(potential, validation, weights):
    return np.asarray(jax.vmap(lambda w: potential.loss(w, validation.batch))(weights[0]))


def test_adam_reduces_the_loss_and_records_every_data_set(small_task):
    sampler = pl.adam(
        small_task.potential, small_task.train, batch_size=100, learning_rate=1e-2, validation=small_task.test.head(200)
    )
    assert sampler.settings["validate_every"] == 10  # one epoch: 1000 examples in batches of 100
    result = pl.sample(
        sampler, small_task.weights, num_steps=200, record_every=20, num_chains=2, key=0, test=small_task.test
    )
    trace = result.trace
    assert np.all(trace["loss"][..., -1] < 0.5 * trace["loss"][..., 0])
    for name in ("error", "test_error", "validation_error"):
        assert np.all(trace[name][..., -1] < 0.2), name
    # Refreshes come after records, so a record holds the validation before it.
    np.testing.assert_array_equal(trace["validation_step"].values[0, 0], trace["step"].values - 10)

    best = pl.best_weights(result)
    errors = [
        np.mean(np.argmax(small_task.network.apply(w, small_task.test.head(200).inputs), -1)
                != small_task.test.head(200).targets)
        for w in (jax.tree.map(lambda leaf: leaf[0, chain], best) for chain in range(2))  # noqa: B023
    ]  # fmt: skip
    assert np.all(np.asarray(errors) <= trace["validation_error"].min("draw").values[0] + 1e-6)


def test_best_weights_are_those_of_the_best_validation(overfitting, validated):
    potential, _, validation, weights = overfitting
    result = pl.sample(validated, weights, num_steps=600, record_every=10, num_chains=3, keep_weights_every=1, key=0)
    trace, num = result.trace, 60
    assert result.samples is not None
    # The weights of every record, validated independently.
    kept = np.stack([validation_losses(potential, validation, result.samples[:, :, draw]) for draw in range(num)])
    np.testing.assert_allclose(trace["validation_loss"].values[0, :, 1:].T, kept[:-1], rtol=1e-5)
    best = kept.argmin(axis=0)
    assert np.all((best > 2) & (best < num - 10))
    assert np.all(kept[-1] > 1.02 * kept.min(axis=0))
    np.testing.assert_array_equal(trace["best_step"].values[0, :, -1], (best + 1) * 10)
    expected = np.stack([result.samples[0, chain, draw] for chain, draw in enumerate(best)])
    np.testing.assert_array_equal(pl.best_weights(result)[0], expected)
    assert np.all(trace["status"] == pl.Status.RUNNING)


def test_patience_stops_a_chain_without_a_warning(overfitting, validated):
    potential, _, validation, weights = overfitting
    patience, every = 3, 10
    sampler = dataclasses.replace(validated, patience=patience)
    result = pl.sample(sampler, weights, num_steps=600, record_every=every, num_chains=3, key=0)
    trace = result.trace
    assert np.all(trace["status"][..., -1] == pl.Status.EARLY_STOPPED)
    assert trace.sizes["draw"] < 60  # the run ended when the last chain did
    stopped_at = trace["validation_step"].values[0, :, -1]
    np.testing.assert_array_equal(stopped_at - trace["best_step"].values[0, :, -1], patience * every)
    np.testing.assert_array_equal(result.states.step, stopped_at)
    assert np.all(np.isfinite(trace["loss"]))
    best = validation_losses(potential, validation, pl.best_weights(result))
    np.testing.assert_allclose(best, trace["validation_loss"].min("draw").values[0], rtol=1e-5)


def test_the_last_weights_count_for_best_weights(overfitting, validated):
    result = pl.sample(validated, overfitting[-1], num_chains=3, num_steps=7, record_every=7, key=0)  # still improving
    np.testing.assert_array_equal(pl.best_weights(result), result.weights)


def test_the_validation_set_is_an_argument_of_compiled_functions_and_does_not_change_the_training(
    overfitting, validated
):
    potential, train, validation, weights = overfitting
    plain = pl.adam(potential, train, batch_size=20, learning_rate=2e-2)
    assert validated.settings["validation"] == "given"
    state = validated.init(jax.random.key(0), weights)
    program = jax.make_jaxpr(lambda s, state: s.refresh(state))(validated, state)
    assert all(np.size(constant) < validation.num_examples for constant in program.consts)
    results = [pl.sample(s, weights, num_chains=3, num_steps=7, record_every=7, key=0) for s in (plain, validated)]
    np.testing.assert_array_equal(*(result.weights for result in results))
    with pytest.raises(ValueError, match="best_weights needs"):
        pl.best_weights(results[0])
