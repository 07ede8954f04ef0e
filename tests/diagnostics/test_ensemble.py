"""The predictions of ensembles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import pseudolangevin as pl
from pseudolangevin.diagnostics.ensemble import ClassPredictions, ValuePredictions, predict


def test_two_members_that_disagree():
    certain = np.array([[[1.0, 0.0], [0.9, 0.1]], [[0.0, 1.0], [0.9, 0.1]]])
    both = ClassPredictions(certain)
    np.testing.assert_allclose(both.mean_probabilities, [[0.5, 0.5], [0.9, 0.1]])
    shared = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
    np.testing.assert_allclose(both.total_uncertainty, [np.log(2), shared])
    np.testing.assert_allclose(both.epistemic_uncertainty, [np.log(2), 0.0], atol=1e-12)
    assert both.brier_score([0, 1]) == pytest.approx((2 * 0.5**2 + 2 * 0.9**2) / 2)
    assert both.members()[0].brier_score([0, 1]) == pytest.approx(2 * 0.9**2 / 2)
    assert ClassPredictions(certain[1:]).error([0, 0]) == 0.5
    np.testing.assert_allclose(both.negative_log_likelihood([1, 0]), -(np.log(0.5) + np.log(0.9)) / 2)
    # Two bins whose gaps between confidence and accuracy have opposite signs do not cancel.
    mixed = ClassPredictions(np.concatenate([np.tile([0.8, 0.2], (10, 1)), np.tile([0.6, 0.4], (10, 1))])[None])
    assert mixed.calibration_error([0] * 6 + [1] * 4 + [0] * 8 + [1] * 2) == pytest.approx(0.2)
    assert mixed.calibration_error([0] * 8 + [1] * 2 + [0] * 6 + [1] * 4) == pytest.approx(0.0, abs=1e-12)


def test_a_mixture_of_gaussians():
    values = ValuePredictions(np.array([[0.0, 1.0], [2.0, 1.0]]), noise_variance=0.25)
    np.testing.assert_allclose(values.mean, [1, 1])
    np.testing.assert_allclose(values.standard_deviation, [np.sqrt(1.25), 0.5])
    targets = norm.ppf((np.arange(999) + 0.5) / 999) * 2.0
    assert ValuePredictions(np.zeros((1, 999)), noise_variance=4.0).calibration_error(targets) < 1e-3
    assert ValuePredictions(np.zeros((1, 999)), noise_variance=0.1).calibration_error(targets) > 0.1
    density = [0.5 * (norm.pdf(0, 0, 0.5) + norm.pdf(0, 2, 0.5)), norm.pdf(3, 1, 0.5)]
    assert values.negative_log_likelihood([0.0, 3.0]) == pytest.approx(-np.mean(np.log(density)))


def test_predictions_do_not_depend_on_the_chunk_size(linear_task):
    members = jnp.stack([linear_task.weights, 2 * linear_task.weights])
    whole = predict(linear_task.potential, members, linear_task.test.inputs)
    pieces = predict(linear_task.potential, members, linear_task.test.inputs, chunk_size=77)
    assert isinstance(whole, ClassPredictions)
    assert isinstance(pieces, ClassPredictions)
    assert whole.probabilities.shape == (2, 300, 4)
    np.testing.assert_allclose(whole.probabilities, pieces.probabilities, rtol=1e-6)
    logits = linear_task.test.inputs @ linear_task.weights
    np.testing.assert_allclose(whole.probabilities[0], jax.nn.softmax(logits), rtol=1e-4)


def test_bad_input_is_named(linear_task):
    silent, line = pl.Potential(lambda w, batch: jnp.zeros(batch[0].shape[0])), pl.regression(lambda w, x: x @ w)
    for potential, members, width, message in (
        (linear_task.potential, linear_task.weights[None], 7, r"inputs of shape \(3, 7\) do not fit the network"),
        (silent, jnp.zeros((1, 2)), 2, "class_scores"),
        (line, jnp.zeros((1, 2)), 2, "noise_variance"),
    ):
        with pytest.raises(ValueError, match=message):
            predict(potential, members, np.ones((3, width)))
    values = predict(line, jnp.ones((1, 2)), np.ones((3, 2)), noise_variance=1.0)
    with pytest.raises(ValueError, match=r"predictions \(3,\)"):
        values.negative_log_likelihood([1.0])
    with pytest.raises(ValueError, match="label 5"):
        ClassPredictions(np.full((1, 2, 2), 0.5)).error([0, 5])
