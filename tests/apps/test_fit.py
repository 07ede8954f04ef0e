import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin.fitting import default_steps
from pseudolangevin.predictions import ValuePredictions


def test_the_regression_ensemble_is_the_bayesian_posterior():
    """A line through Gaussian targets at T = σ²/P: the spread of the ensemble is the posterior's, σ²·xᵀ(XᵀX)⁻¹x."""
    num, sigma = 400, 0.5
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num, 2)).astype(np.float32)
    targets = (inputs @ [1.0, -2.0] + sigma * rng.normal(size=num)).astype(np.float32)
    potential = pl.regression(lambda w, x: x @ w)
    fitted = pl.fit(
        potential,
        pl.Dataset(inputs, targets),
        jnp.array([1.0, -2.0]),
        temperature=sigma**2 / num,
        num_chains=40,
        num_steps=1_200,
        samples_per_chain=5,
        batch_size=40,
        progress=False,
    )
    prediction = fitted.predict(inputs[:20])
    assert isinstance(prediction, ValuePredictions)
    assert prediction.noise_variance == pytest.approx(sigma**2)
    exact = sigma * np.sqrt(np.einsum("ni,ij,nj->n", inputs[:20], np.linalg.inv(inputs.T @ inputs), inputs[:20]))
    # 40 chains, so at least 40 independent members: the relative error of a spread is at most 1/√80.
    assert np.mean(prediction.spread / exact) == pytest.approx(1, abs=4 / np.sqrt(80))
    assert prediction.calibration_error(targets[:20]) < 0.2


def test_the_default_length_is_twelve_relaxation_times():
    assert default_steps(1e-5, 500, 0.01) == 60_000
    assert default_steps(1.0, 500, 0.01) == 1_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": "warm"}, "warm"),
        ({"temperature": -1.0}, "temperature = -1.0"),
        ({"temperature": 1e-3, "num_steps": 10}, "fewer samples"),
        ({"temperature": 1e-3, "samples_per_chain": 0}, "samples_per_chain"),
    ],
)
def test_bad_arguments(small_task, arguments, message):
    with pytest.raises(ValueError, match=message):
        pl.fit(small_task.potential, small_task.train, small_task.weights, **arguments)


def test_every_chain_lost_is_an_error():
    """Targets that are met exactly leave no mini-batch noise to choose masses from."""
    line = pl.regression(lambda w, x: x * w)
    data = pl.Dataset(np.arange(50.0), np.arange(50.0))
    with pytest.warns(pl.ChainStoppedWarning), pytest.raises(RuntimeError, match="temperature_ratio"):
        pl.fit(line, data, jnp.ones(()), temperature=1e-3, num_steps=4, samples_per_chain=1, progress=False)
