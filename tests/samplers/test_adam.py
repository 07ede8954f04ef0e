"""Adam: it minimises, keeps the best weights of the validation set, and stops when patience runs out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pseudolangevin as pl
from pseudolangevin.samplers.adam import AdamKernel


@pytest.fixture(scope="module")
def overfitting():
    """A linear regression with as many weights as noisy examples: it learns the noise after the signal."""
    rng = np.random.default_rng(0)
    dimension = 40
    slope = np.where(np.arange(dimension) < 4, 1.0, 0.0)

    def examples(num):
        inputs = rng.normal(size=(num, dimension)) * np.where(np.arange(dimension) < 4, 1.0, 0.5)
        targets = inputs @ slope + rng.normal(size=num)
        return pl.Dataset(inputs.astype(np.float32), targets.astype(np.float32))

    potential = pl.regression(lambda w, x: x @ w)
    return potential, examples(40), examples(400), np.zeros(dimension, np.float32)


def validation_losses(potential, validation, weights):
    return np.asarray(jax.vmap(lambda w: potential.loss(w, validation.batch))(weights[0]))


def test_adam_reduces_the_loss_and_history_holds_every_set(small_task):
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
    # A record shows the last validation before it: refreshes come after records.
    np.testing.assert_array_equal(trace["validation_step"].values[0, 0], trace["step"].values - 10)

    best = pl.best_weights(result)
    errors = [
        np.mean(np.argmax(small_task.network.apply(w, small_task.test.head(200).inputs), -1)
                != small_task.test.head(200).targets)
        for w in (jax.tree.map(lambda leaf: leaf[0, chain], best) for chain in range(2))  # noqa: B023
    ]  # fmt: skip
    assert np.all(np.asarray(errors) <= trace["validation_error"].min("draw").values[0] + 1e-6)


def test_best_weights_are_those_of_the_best_validation_and_the_later_rise_is_seen(overfitting):
    potential, train, validation, weights = overfitting
    sampler = pl.adam(
        potential, train, batch_size=20, learning_rate=2e-2, validation=validation, validate_every=10
    )  # fmt: skip
    result = pl.sample(
        sampler, weights, num_steps=600, record_every=10, num_chains=3, keep_weights_every=1, key=0
    )  # fmt: skip
    trace, num = result.trace, 60
    assert result.samples is not None
    # Every record's weights, validated here, independently of the kernel.
    kept = np.stack([validation_losses(potential, validation, result.samples[:, :, draw]) for draw in range(num)])
    np.testing.assert_allclose(trace["validation_loss"].values[0, :, 1:].T, kept[:-1], rtol=1e-5)
    best = kept.argmin(axis=0)
    assert np.all((best > 2) & (best < num - 10))
    assert np.all(kept[-1] > 1.02 * kept.min(axis=0))
    np.testing.assert_array_equal(trace["best_step"].values[0, :, -1], (best + 1) * 10)
    expected = np.stack([result.samples[0, chain, draw] for chain, draw in enumerate(best)])
    np.testing.assert_array_equal(pl.best_weights(result)[0], expected)
    assert np.all(trace["status"] == pl.Status.RUNNING)


def test_patience_stops_a_chain_quietly_where_it_should(overfitting):
    potential, train, validation, weights = overfitting
    patience, every = 3, 10
    sampler = pl.adam(
        potential, train, batch_size=20, learning_rate=2e-2, validation=validation, validate_every=every,
        patience=patience,
    )  # fmt: skip
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


def test_the_last_weights_count_although_the_run_ends_before_they_are_validated(overfitting):
    potential, train, validation, weights = overfitting
    sampler = pl.adam(potential, train, batch_size=20, learning_rate=1e-2, validation=validation, validate_every=50)
    result = pl.sample(sampler, weights, num_steps=20, record_every=20, key=0)  # still improving
    np.testing.assert_array_equal(pl.best_weights(result), result.weights)


def test_the_validation_set_is_an_argument_of_compiled_functions_and_does_not_touch_training(overfitting):
    potential, train, validation, weights = overfitting
    plain = pl.adam(potential, train, batch_size=20, learning_rate=1e-2)
    with_validation = pl.adam(potential, train, batch_size=20, learning_rate=1e-2, validation=validation)
    kernel = with_validation.kernel
    assert isinstance(kernel, AdamKernel)
    state = kernel.init(jax.random.key(0), weights, jnp.float32(0), with_validation.dataset)
    program = jax.make_jaxpr(kernel.refresh)(state, with_validation.dataset)
    assert all(np.size(constant) < validation.num_examples for constant in program.consts)
    ends = [pl.sample(s, weights, num_steps=7, record_every=7, key=0).weights for s in (plain, with_validation)]
    np.testing.assert_array_equal(*ends)
    assert with_validation.dataset.head(3).num_examples == 3


BAD = {
    "batch_size": st.one_of(st.integers(max_value=0), st.integers(min_value=41), st.floats()),
    "learning_rate": st.one_of(st.floats(max_value=0), st.just(float("nan"))),
    "validate_every": st.one_of(st.integers(max_value=0), st.floats(), st.text()),
    "patience": st.one_of(st.integers(max_value=0), st.floats(), st.text()),
    "validation": st.one_of(st.integers(), st.just((np.ones((3, 40)), np.ones(3)))),
}


@pytest.mark.parametrize("name", BAD)
@settings(max_examples=20, deadline=None, database=None, derandomize=True)
@given(data=st.data())
def test_bad_input_is_refused_with_the_name_of_the_argument(overfitting, name, data):
    potential, train, validation, _ = overfitting
    arguments = {"validation": validation, "batch_size": 20} | {name: data.draw(BAD[name])}
    with pytest.raises(ValueError, match=name):
        pl.adam(potential, train, **arguments)


def test_validation_sets_that_do_not_fit_are_refused(overfitting, small_task):
    potential, train, _, weights = overfitting
    with pytest.raises(ValueError, match="validation holds examples of shapes"):
        pl.adam(potential, train, batch_size=20, validation=pl.Dataset(np.ones((5, 3)), np.ones(5)))
    with pytest.raises(ValueError, match="patience = 3 needs a validation set"):
        pl.adam(potential, train, batch_size=20, patience=3)
    with pytest.raises(ValueError, match="validate_every = 3 needs a validation set"):
        pl.adam(potential, train, batch_size=20, validate_every=3)
    bad_labels = pl.Dataset(np.ones((5, 20), np.int8), np.full(5, 9))
    sampler = pl.adam(small_task.potential, small_task.train, validation=bad_labels)
    with pytest.raises(ValueError, match="validation: targets holds the label 9"):
        pl.sample(sampler, small_task.weights, num_steps=1, key=0)
    plain = pl.sample(pl.adam(potential, train, batch_size=20), weights, num_steps=1, key=0)
    with pytest.raises(ValueError, match="best_weights needs"):
        pl.best_weights(plain)
