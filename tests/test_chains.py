"""One contract for every sampler, and what the driver promises about chains in company."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import chains, trees
from pseudolangevin.samplers import base

QUICK: dict[str, Any] = {"batch_size": 16, "variance_block": 10, "variance_max_batches": 20}


def make(name: str, task) -> pl.Sampler:
    if name == "pseudo_langevin":
        return pl.pseudo_langevin(
            task.potential, task.train, refresh_every=16, warmup_refreshes=1, reset_probability=0.3, **QUICK
        )
    if name == "naive":
        return pl.naive_pseudo_langevin(task.potential, task.train, time_step=0.005, refresh_every=16, **QUICK)
    if name == "full_batch":
        return pl.full_batch_langevin(task.potential, task.train, time_step=0.05)
    return pl.adam(task.potential, task.train, batch_size=16)


SAMPLERS = ["pseudo_langevin", "naive", "full_batch", "adam"]
OWN = {
    "pseudo_langevin": {
        "kinetic_temperature",
        "temperature_ratio",
        "max_temperature_ratio",
        "peak_temperature_ratio",
        "stale_heat",
        "gradient_variance",
        "raised_share",
        "refresh_interval",
        "num_resets",
    },
    "full_batch": {"kinetic_temperature"},
    "adam": set(),
}
OWN["naive"] = OWN["pseudo_langevin"] | {"clipped_share"}
COMMON = {"loss", "potential", "squared_norm", "error", "virial_temperature", "layer_virial_temperature", "status"}
TEMPERATURES = [1e-4, 1e-3]


@pytest.fixture(scope="module")
def samplers(small_task):
    """Made once, so that each compiles once."""
    return {name: make(name, small_task) for name in SAMPLERS}


@pytest.fixture(scope="module")
def results(small_task, samplers):
    """One run of every sampler: 2 temperatures (1 for Adam), 2 chains, 48 steps with refreshes in between."""

    def run(name: str) -> pl.Result:
        temperatures = TEMPERATURES if samplers[name].uses_temperature else None
        return pl.sample(
            samplers[name],
            small_task.weights,
            temperatures=temperatures,
            num_chains=2,
            num_steps=48,
            record_every=16,
            keep_weights_every=1,
            test=small_task.test,
            key=7,
        )

    return {name: run(name) for name in SAMPLERS}


def flat(tree, *index: int) -> np.ndarray:
    return np.asarray(trees.ravel(jax.tree.map(lambda leaf: leaf[index], tree)))


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_trace_has_its_dimensions_names_and_types(results, samplers, name):
    result = results[name]
    num_temperatures = 2 if samplers[name].uses_temperature else 1
    trace = result.trace
    assert {"temperature": num_temperatures, "chain": 2, "draw": 3}.items() <= dict(trace.sizes).items()
    np.testing.assert_array_equal(trace.step, [16, 32, 48])
    assert COMMON | OWN[name] | {"test_loss", "test_error", "dead_class"} == set(trace.data_vars)
    extra = {"layer_virial_temperature": "layer", "gradient_variance": "layer", "temperature_ratio": "quantile"}
    for variable, data in trace.data_vars.items():
        assert data.dims[:3] == ("temperature", "chain", "draw")
        if variable in extra:
            assert data.dims[3] == extra[variable]
        assert data.attrs["long_name"] != variable
        assert data.dtype in (np.float64, np.int32, np.bool_)
        assert np.isfinite(data).all(), variable
    assert list(trace.layer.values) == ["layer1", "layer2", "layer3"]
    assert (trace.status == pl.Status.RUNNING).all()
    if samplers[name].uses_temperature:
        np.testing.assert_array_equal(trace.temperature, TEMPERATURES)


@pytest.mark.parametrize("name", SAMPLERS)
def test_weights_and_samples_have_leading_axes(results, small_task, name):
    result = results[name]
    shape = result.trace.status.shape[:2]
    for got, start in zip(jax.tree.leaves(result.weights), jax.tree.leaves(small_task.weights), strict=True):
        assert got.shape == (*shape, *start.shape)
        assert got.dtype == start.dtype
    assert result.num_weights == 364
    for kept, last in zip(jax.tree.leaves(result.samples), jax.tree.leaves(result.weights), strict=True):
        assert kept.shape == (*shape, 3, *last.shape[2:])
        np.testing.assert_array_equal(kept[:, :, -1], last)
        assert (kept[:, :, 0] != kept[:, :, 1]).mean() > 0.9  # buffers that are reused must not be shared


@pytest.mark.parametrize("name", SAMPLERS)
def test_chains_differ_from_each_other_and_move(results, small_task, name):
    first, second = flat(results[name].weights, 0, 0), flat(results[name].weights, 0, 1)
    assert (first != second).mean() > 0.9
    assert (first != np.asarray(trees.ravel(small_task.weights))).mean() > 0.9


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_chain_alone_is_the_chain_in_company_for_any_segment_length(results, samplers, small_task, name):
    """One temperature instead of two, one chain instead of two, records every 48 steps instead of 16."""
    temperatures = TEMPERATURES[1:] if samplers[name].uses_temperature else None
    alone = pl.sample(
        samplers[name], small_task.weights, temperatures=temperatures, num_steps=48, record_every=48, key=7
    )
    together = flat(results[name].weights, -1, 0)
    distance = np.abs(flat(alone.weights, 0, 0) - together).max()
    moved = np.abs(together - np.asarray(trees.ravel(small_task.weights))).max()
    assert distance < 1e-3 * moved
    assert float(alone.trace.loss[0, 0, -1]) == pytest.approx(float(results[name].trace.loss[-1, 0, -1]), rel=1e-5)
    if name == "pseudo_langevin":
        assert int(alone.states.num_refreshes[0]) == int(results[name].states.num_refreshes[2]) >= 2


def test_segments_between_the_same_stops_leave_no_mark_but_rounding(samplers, small_task):
    """record_every of 12 or 24 cuts the same steps, with a refresh every 8 or 16, into other segments."""
    runs = [
        pl.sample(
            samplers["pseudo_langevin"],
            small_task.weights,
            temperatures=[1e-3],
            num_steps=24,
            record_every=every,
            key=3,
        )
        for every in (12, 24)
    ]
    np.testing.assert_allclose(flat(runs[0].weights, 0, 0), flat(runs[1].weights, 0, 0), rtol=1e-4, atol=1e-6)
    assert int(runs[0].states.num_refreshes[0]) == int(runs[1].states.num_refreshes[0]) > 0


def test_an_integer_seed_is_a_key(samplers, small_task):
    runs = [
        pl.sample(samplers["adam"], small_task.weights, num_steps=3, record_every=3, key=key)
        for key in (5, jax.random.key(5), 5, 6)
    ]
    for same in runs[1:3]:
        np.testing.assert_array_equal(flat(runs[0].weights, 0, 0), flat(same.weights, 0, 0))
    assert (flat(runs[0].weights, 0, 0) != flat(runs[3].weights, 0, 0)).any()


@pytest.mark.parametrize("shape", [(2, 3), (1, 3), (2, 1), (1, 1)])
def test_each_chain_may_have_its_own_start(small_task, shape):
    layout = chains.Layout((1e-4, 1e-3), 3)
    rng = np.random.default_rng(0)
    weights = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=shape + w.shape), jnp.float32), small_task.weights)
    starts = layout.starts(weights, small_task.potential, small_task.train)
    for given, start in zip(jax.tree.leaves(weights), jax.tree.leaves(starts), strict=True):
        assert start.shape == (6, *given.shape[2:])
        for t in range(2):
            for c in range(3):
                np.testing.assert_array_equal(start[3 * t + c], given[min(t, shape[0] - 1), min(c, shape[1] - 1)])


def test_final_weights_continue_a_run(results, samplers, small_task):
    again = pl.sample(samplers["adam"], results["adam"].weights, num_chains=2, num_steps=12, record_every=12, key=1)
    assert float(again.trace.loss.mean()) < float(results["adam"].trace.loss.isel(draw=0).mean())


def test_weights_are_not_changed_by_a_run(results, small_task):
    """Buffers are donated inside; the caller's arrays stay alive."""
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(small_task.weights))
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(results["adam"].weights))


def test_the_virial_temperatures_of_the_layers_add_up(results):
    trace = results["pseudo_langevin"].trace
    sizes = np.array([21 * 10, 11 * 10, 11 * 4])
    total = (trace.layer_virial_temperature * sizes).sum("layer") / sizes.sum()
    np.testing.assert_allclose(total, trace.virial_temperature, rtol=1e-4, atol=1e-7)


def test_observables_are_those_of_the_final_weights(results, small_task):
    trace = results["full_batch"].trace
    weights = jax.tree.map(lambda leaf: leaf[1, 0], results["full_batch"].weights)
    potential, last = small_task.potential, {"temperature": 1, "chain": 0, "draw": -1}
    for prefix, data in (("", small_task.train), ("test_", small_task.test)):
        assert float(trace[prefix + "loss"].isel(last)) == pytest.approx(
            float(potential.loss(weights, data.batch)), rel=1e-5
        )
        error = float(potential.per_example_error(weights, data.batch).mean())
        assert float(trace[prefix + "error"].isel(last)) == pytest.approx(error, abs=1e-6)
    energy = float(potential.energy(weights, small_task.train.batch))
    assert float(trace.potential.isel(last)) == pytest.approx(energy, rel=1e-5)
    assert float(trace.squared_norm.isel(last)) == pytest.approx(float(trees.squared_norm(weights)), rel=1e-5)
    gradient = jax.grad(potential.energy)(weights, small_task.train.batch)
    virial = float(trees.dot(weights, gradient)) / 364
    assert float(trace.virial_temperature.isel(last)) == pytest.approx(virial, rel=1e-3)


def test_observing_a_part_of_the_data(samplers, small_task):
    result = pl.sample(
        samplers["adam"], small_task.weights, num_steps=2, record_every=2, observe_examples=100, chunk_size=33, key=0
    )
    weights = jax.tree.map(lambda leaf: leaf[0, 0], result.weights)
    part = float(small_task.potential.loss(weights, small_task.train.head(100).batch))
    whole = float(small_task.potential.loss(weights, small_task.train.batch))
    assert float(result.trace.loss[0, 0, 0]) == pytest.approx(part, rel=1e-5)
    assert abs(part - whole) > 1e-3 * whole


def test_double_precision_weights_stay_double(small_task):
    with jax.enable_x64(True):
        weights = jax.tree.map(lambda w: np.asarray(w, np.float64), small_task.weights)
        sampler = pl.pseudo_langevin(small_task.potential, small_task.train, **QUICK, refresh_every=2)
        result = pl.sample(sampler, weights, temperatures=[1e-3], num_steps=4, record_every=2, key=0)
        assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(result.weights))
        assert np.isfinite(result.trace.loss).all()


def walled_potential() -> pl.Potential:
    """Undefined outside |w| < 1, the gradient too (that of log(1 − w²) is not): a hot chain crosses, a cold one not."""
    return pl.Potential(lambda w, batch: -0.05 * jnp.sqrt(1 - w**2).sum() + batch[0] * w.sum() + 2 * (w**2).sum())


def walled_run(temperatures, num_steps=400):
    rng = np.random.default_rng(0)
    dataset = pl.Dataset(rng.normal(0, 0.01, 40).astype(np.float32), np.zeros(40))
    sampler = pl.full_batch_langevin(walled_potential(), dataset, time_step=0.1, momentum_retention=0.9)
    return pl.sample(
        sampler,
        jnp.zeros(2),
        temperatures=temperatures,
        num_steps=num_steps,
        record_every=10,
        key=0,
        keep_weights_every=1,
    )


def test_no_state_begins_with_a_weak_type():
    """jnp.full(2, 0.5) leaves its type open and no step does: every program would be compiled once for each."""
    sampler = walled_run([0.001], num_steps=10).sampler
    weights = jnp.full(2, 0.5)
    assert weights.aval.weak_type
    states = chains.make_plan(sampler, temperatures=[0.001], num_chains=1, num_steps=10).init(weights, 0)
    assert not any(leaf.aval.weak_type for leaf in jax.tree.leaves(states))


def test_a_chain_that_turns_non_finite_is_stopped_and_the_others_go_on():
    with pytest.warns(pl.ChainStoppedWarning, match=r"chain 0 at T = 1.2 stopped by step \d+: .*non-finite") as caught:
        result = walled_run([1e-3, 1.2])
    assert len(caught) == 1
    status = result.trace.status.values[:, 0]
    assert (status[0] == pl.Status.RUNNING).all()
    assert np.isfinite(result.trace.loss.values[0]).all()
    stopped_at = int(np.argmax(status[1] != 0))
    assert 0 < stopped_at < 40
    assert (status[1, stopped_at:] == pl.Status.NON_FINITE).all()
    hot_loss = result.trace.loss.values[1, 0]
    assert np.isfinite(hot_loss[:stopped_at]).all()
    assert np.isnan(hot_loss[stopped_at:]).all()
    # It rests where it was last finite: at the last good record.
    assert result.samples is not None
    np.testing.assert_array_equal(result.weights[1, 0], result.samples[1, 0, stopped_at - 1])
    assert int(result.states.step[1]) == 10 * stopped_at
    # The cold chain does not notice.
    alone = walled_run([1e-3])
    np.testing.assert_allclose(alone.weights[0, 0], result.weights[0, 0], rtol=1e-4, atol=1e-6)


def test_a_very_large_chain_that_breaks_is_left_as_it_is_and_moves_no_more(monkeypatch):
    kept = walled_run([1e-3])
    monkeypatch.setattr(base, "VERY_LARGE", 1)
    with pytest.warns(pl.ChainStoppedWarning, match="chain 0 at T = 1.2 stopped"):
        result = walled_run([1e-3, 1.2])
    status = result.trace.status.values[:, 0]
    stopped_at = int(np.argmax(status[1] != 0))
    assert (status[1, stopped_at:] == pl.Status.NON_FINITE).all()
    assert int(result.states.step[1]) == 10 * (stopped_at + 1)
    np.testing.assert_allclose(kept.weights[0, 0], result.weights[0, 0], rtol=1e-4, atol=1e-6)


def test_when_all_chains_have_stopped_the_run_ends():
    with pytest.warns(pl.ChainStoppedWarning) as caught:
        result = walled_run([0.5, 0.6], num_steps=100_000)
    assert len(caught) == 2
    assert result.trace.sizes["draw"] < 1000
    assert np.isfinite(result.weights).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_chain_with_finite_weights_and_a_non_finite_loss_is_stopped_and_named_with_its_step(bad):
    """Beyond the step at w = 1 the loss is not a number, and its gradient does not tell."""
    potential = pl.Potential(lambda w, batch: jnp.where(w > 1, bad, w * batch[0]))
    dataset = pl.Dataset(np.full(10, -1.0, np.float32), np.zeros(10))
    sampler = pl.full_batch_langevin(potential, dataset, time_step=0.1)
    starts = jnp.asarray([[0.2, -1e3]])
    with pytest.warns(pl.ChainStoppedWarning, match=r"chain 0 at T = 1e-08 stopped by step 20: .* U is not") as caught:
        result = pl.sample(sampler, starts, temperatures=[1e-8], num_chains=2, num_steps=40, record_every=10, key=0)
    assert len(caught) == 1
    energy = pl.Status.NON_FINITE_ENERGY
    np.testing.assert_array_equal(result.trace.status[0], [[0, energy, energy, energy], [0, 0, 0, 0]])
    np.testing.assert_array_equal(np.isnan(result.trace.loss[0]), [[False, True, True, True], [False] * 4])
    assert result.states.step.tolist() == [20, 40]  # it rests
    assert 1 < result.weights[0, 0] < np.inf


def test_a_loss_that_is_nan_on_an_example_not_drawn_stops_the_chain():
    potential = pl.Potential(lambda w, batch: jnp.where(batch[0] > 1e3, jnp.nan, w * batch[0]))
    dataset = pl.Dataset(np.append(np.ones(10_000), 1e6).astype(np.float32), np.zeros(10_001))
    with pytest.warns(pl.ChainStoppedWarning, match="stopped by step 1: .*Check the data for NaN"):
        result = pl.sample(pl.adam(potential, dataset, batch_size=2), jnp.ones(()), num_steps=2, record_every=1, key=0)
    assert np.isfinite(result.weights).all()
    assert result.trace.sizes["draw"] == 1
