"""Results are one call away, and arguments are forgiving where the meaning is clear."""

import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl

pytestmark = pytest.mark.usefixtures("_no_directions")

LINE = pl.Dataset(np.linspace(-1, 1, 20, dtype=np.float32), np.linspace(-1, 1, 20, dtype=np.float32))
REGRESSION = pl.regression(lambda w, x: w["slope"] * x + w["offset"], prior=pl.gaussian(1.0))
START = {"slope": jnp.zeros(()), "offset": jnp.zeros(())}


def run(weights, **options):
    sampler = pl.hybrid_monte_carlo(REGRESSION, LINE, num_leapfrog_steps=2, time_step=0.05)
    return pl.sample(sampler, weights, **({"num_steps": 20, "record_every": 2, "key": 0} | options))


@pytest.fixture(scope="module")
def result():
    return run(START, temperatures=[0.01, 0.02], num_chains=3, keep_weights_every=1, num_warmup=5)


def test_averages_are_a_table_by_temperature_and_traces_a_figure(result):
    table = result.averages(discard=0.0)
    row = table.loc[(0.01, "loss")]
    assert row["mean"] == pytest.approx(float(result.trace.loss[0].mean()))
    assert set(table.columns) == {"mean", "standard_error", "effective_samples"}
    assert result.plot().axes


def test_the_ensemble_has_the_last_half_of_each_chain(result):
    members = result.ensemble(0.02)
    assert members["slope"].shape == (15,)
    np.testing.assert_array_equal(members["slope"], np.asarray(result.samples["slope"])[1, :, 5:].ravel())
    assert result.ensemble(0.01, discard=0.0)["slope"].shape == (30,)
    with pytest.raises(ValueError, match=r"2 temperatures; pass one of temperature=\[0.01, 0.02\]"):
        result.ensemble()
    with pytest.raises(ValueError, match=r"temperature = 0.5 was not sampled"):
        result.predict(LINE.inputs, 0.5)


def test_predictions_and_scores_of_a_regression(result):
    found = result.predict(LINE.inputs, 0.01)
    assert found.noise_variance == pytest.approx(20 * 0.01)
    assert result.predict(LINE.inputs, 0.01, noise_scale=0.5).noise_variance == 0.25
    np.testing.assert_allclose(found.total_uncertainty**2, found.epistemic_uncertainty**2 + 0.2)
    table = result.evaluate(LINE, 0.01)
    assert list(table.index[:3]) == ["ensemble", "mean of members", "member 0"]
    by_hand = np.sqrt(np.mean((found.mean - np.asarray(LINE.targets)) ** 2))
    assert table.loc["ensemble", "root_mean_square_error"] == pytest.approx(by_hand)


def test_the_warm_up_has_no_records_and_continues_the_chain(result):
    assert result.trace.step.values.tolist() == list(range(6, 26, 2))
    without = run(START, temperatures=[0.01, 0.02], num_chains=3, num_steps=25, record_every=25)
    np.testing.assert_allclose(result.weights["slope"], without.weights["slope"], rtol=1e-5)


def test_one_temperature_and_weights_may_be_floats():
    by_floats = run({"slope": 0.0, "offset": 0.0}, temperatures=0.01)
    np.testing.assert_array_equal(by_floats.weights["slope"], run(START, temperatures=[0.01]).weights["slope"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pl.sample("pl", START, num_steps=1, key=0), "sampler = 'pl' is not a sampler"),  # type: ignore[arg-type]
        (lambda: run(START, temperatures=1.0, test=(1, 2)), "is not a Dataset; pass pl.Dataset"),
        (lambda: run(START, temperatures=1.0, num_warmup=-1), "num_warmup = -1 must be an integer"),
        (lambda: run({"slope": jnp.zeros(3), "offset": 0.0}, temperatures=1.0), "fails on these weights.*check the"),
        (lambda: run(START, temperatures=1.0, test=pl.Dataset(np.ones((4, 2)), np.ones(4))), "^test: "),
        (lambda: pl.Dataset.from_torch([1.0, 2.0]), "must be a pair"),
    ],
)
def test_bad_arguments_are_rejected_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
