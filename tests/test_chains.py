"""Running chains: starts, seeds, records, own observables, stops, and chains that fail."""

import re
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin.samplers import base

pytestmark = pytest.mark.usefixtures("_no_directions")

QUICK: dict[str, Any] = {"batch_size": 16, "variance_examples": 100}


@pytest.fixture(scope="module")
def langevin(linear_task):
    return pl.pseudo_langevin(linear_task.potential, linear_task.train, refresh_every=16, warmup_refreshes=1, **QUICK)


@pytest.fixture(scope="module")
def adam(linear_task):
    return pl.adam(linear_task.potential, linear_task.train, batch_size=16)


@pytest.mark.parametrize("shape", [(2, 3), (1, 3), (2, 1)])
def test_each_chain_may_have_its_own_start(linear_task, shape):
    sampler = pl.full_batch_langevin(linear_task.potential, linear_task.train, time_step=0.1)
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(*shape, 20, 4)), jnp.float32)
    run = pl.Run(sampler, temperatures=[1e-4, 1e-3], num_chains=3)
    assert (run.size, run.shape, run.chain_name(4)) == (6, (2, 3), "chain 1 at T = 0.001")
    states = run.start(weights, 0)
    np.testing.assert_array_equal(states.weights, np.broadcast_to(weights, (2, 3, 20, 4)).reshape(6, 20, 4))
    np.testing.assert_allclose(states.temperature, [1e-4] * 3 + [1e-3] * 3)


def test_programs_compiled_in_advance_are_those_of_the_run(langevin, linear_task, monkeypatch, caplog):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # there, they are compiled side by side
    monkeypatch.setattr(pl.pseudo_langevin, "block", 4)
    run = pl.Run(langevin, temperatures=[2e-4], num_chains=2)
    states = run.start(linear_task.weights, 0)
    with jax.log_compiles():  # in this thread: conversions, and compilations by calls
        assert len(list(run.records(states, stop=45, every=5, progress=False))) == 9
    messages = [record.getMessage() for record in caplog.records]
    found = re.findall(r"(conversion|compilation of) jit\(_(segment|observe|refresh|renew)\)", " ".join(messages))
    assert found == [("conversion", name) for name in ("observe", "renew", "refresh", "segment", "segment")]


def test_own_observables_and_on_record(langevin, linear_task):
    """A scalar and an array, recorded at the weights and examples of the other observables."""

    def scores(weights, dataset):
        return dataset.inputs[:2].astype(weights.dtype) @ weights

    own = {"norm": lambda w, d: jnp.sqrt(trees.squared_norm(w)), "scores": scores, "one": lambda w, d: 1}
    seen: list[pl.Record] = []
    options: dict[str, Any] = {"num_chains": 2, "num_steps": 6, "record_every": 2, "observe_examples": 50}
    options |= {"chunk_size": 33, "observables": own, "on_record": seen.append, "key": 0}
    result = pl.sample(langevin, linear_task.weights, temperatures=[1e-4, 1e-3], **options)
    trace = result.trace
    assert trace["scores"].dims == ("temperature", "chain", "draw", "scores_dim0", "scores_dim1")
    assert (trace["norm"].shape, trace["scores"].shape) == ((2, 2, 3), (2, 2, 3, 2, 4))
    assert trace["norm"].dtype == np.float64
    assert trace["norm"].attrs == {"label": "norm", "unit": "", "long_name": "norm"}
    np.testing.assert_allclose(trace["norm"] ** 2, trace["squared_norm"], rtol=1e-5)
    assert (trace["one"] == 1).all()
    weights = result.weights[1, 1]
    part = float(linear_task.potential.loss(weights, linear_task.train.head(50).batch))
    assert float(trace.loss[1, 1, -1]) == pytest.approx(part, rel=1e-5)
    assert trace.attrs["observed_examples"] == 50
    last = scores(weights, linear_task.train)
    np.testing.assert_allclose(trace["scores"][1, 1, -1], last, rtol=1e-4, atol=1e-6)
    assert [record.step for record in seen] == [2, 4, 6]
    assert seen[0].observables is not None
    np.testing.assert_array_equal(seen[0].observables["scores"], trace["scores"].values[:, :, 0].reshape(4, 2, 4))


def test_max_seconds_ends_the_run_at_a_record(adam, linear_task):
    long: dict[str, Any] = {"num_chains": 2, "num_steps": 1_000_000, "record_every": 5, "key": 0}
    result = pl.sample(adam, linear_task.weights, max_seconds=1e-6, **long)
    assert result.trace.sizes["draw"] == 1
    assert result.states.step.tolist() == [5, 5]
    with pytest.raises(ValueError, match="max_seconds = 0"):
        pl.sample(adam, linear_task.weights, num_steps=10, max_seconds=0, key=0)


def test_pauses_between_records_do_not_change_the_chain(adam, linear_task):
    """A pause yields the chains without observables; a run that continues from it is the same chain."""
    run = pl.Run(adam, num_chains=2)
    plain = list(run.records(run.start(linear_task.weights, 0), stop=13, every=5))
    paused = list(run.records(run.start(linear_task.weights, 0), stop=8, every=5, pause_every=4))
    rest = list(run.records(paused[-1].states, first=8, stop=13, every=5, pause_every=4))
    steps = [(record.step, record.observables is not None) for record in (*paused, *rest)]
    assert steps == [(4, False), (5, True), (8, False), (10, True), (12, False), (13, False)]
    np.testing.assert_allclose(rest[-1].states.weights, plain[-1].states.weights, rtol=1e-5, atol=1e-6)


def test_the_trace_before_the_first_record_is_empty_and_complete(langevin, linear_task):
    run = pl.Run(langevin, temperatures=[1e-3], observables={"norm": lambda w, d: trees.squared_norm(w)})
    states = run.start(linear_task.weights, 0)
    empty = run.trace(states, [], 5)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), run.abstract_states(linear_task.weights))
    assert shapes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), states)
    (record,) = run.records(states, stop=5, every=5)
    assert record.observables is not None
    full = run.result(record.states, [record.observables], every=5).trace
    assert {n: (v.dims, v.dtype, v.attrs) for n, v in empty.items()} == {
        n: (v.dims, v.dtype, v.attrs) for n, v in full.items()
    }
    assert empty.sizes["draw"] == 0
    assert "0 records" in repr(run.result(record.states, [], every=5))


def walled_potential() -> pl.Potential:
    """Return a potential that is NaN, with its gradient, outside |w| < 1: only a hot chain gets there."""
    return pl.Potential(lambda w, batch: -0.05 * jnp.sqrt(1 - w**2).sum() + batch[0] * w.sum() + 2 * (w**2).sum())


@cache
def walled_run(*temperatures, num_steps=400):
    rng = np.random.default_rng(0)
    dataset = pl.Dataset(rng.normal(0, 0.01, 40).astype(np.float32), np.zeros(40))
    sampler = pl.full_batch_langevin(walled_potential(), dataset, time_step=0.1, momentum_retention=0.9)
    lengths: dict[str, Any] = {"num_steps": num_steps, "record_every": 10, "keep_weights_every": 1}
    return pl.sample(sampler, jnp.zeros(2), temperatures=temperatures, key=0, **lengths)


def test_no_state_begins_with_a_weak_type():
    """The type of jnp.full(2, 0.5) is weak and that of a step is not: every program would be compiled twice."""
    sampler = walled_run(0.001).sampler
    weights = jnp.full(2, 0.5)
    assert weights.aval.weak_type
    states = pl.Run(sampler, temperatures=[0.001]).start(weights, 0)
    assert not any(leaf.aval.weak_type for leaf in jax.tree.leaves(states))


def test_a_chain_that_becomes_non_finite_stops_and_the_others_continue():
    with pytest.warns(pl.ChainStoppedWarning, match=r"chain 0 at T = 1.2 stopped by step \d+: .*non-finite") as caught:
        result = walled_run(1e-3, 1.2)
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
    # The chain was put back to its last finite state, at the last good record.
    assert result.samples is not None
    np.testing.assert_array_equal(result.weights[1, 0], result.samples[1, 0, stopped_at - 1])
    assert int(result.states.step[1]) == 10 * stopped_at
    # The cold chain is not affected.
    alone = walled_run(1e-3)
    np.testing.assert_allclose(alone.weights[0, 0], result.weights[0, 0], rtol=1e-4, atol=1e-6)


def test_a_very_large_chain_that_becomes_non_finite_is_not_put_back(monkeypatch):
    kept = walled_run(1e-3)
    monkeypatch.setattr(base, "VERY_LARGE", 1)
    with pytest.warns(pl.ChainStoppedWarning, match="chain 0 at T = 1.2 stopped"):
        result = walled_run.__wrapped__(1e-3, 1.2)
    status = result.trace.status.values[:, 0]
    stopped_at = int(np.argmax(status[1] != 0))
    assert (status[1, stopped_at:] == pl.Status.NON_FINITE).all()
    assert int(result.states.step[1]) == 10 * (stopped_at + 1)
    np.testing.assert_allclose(kept.weights[0, 0], result.weights[0, 0], rtol=1e-4, atol=1e-6)


def test_a_chain_with_finite_weights_and_a_non_finite_loss_is_stopped():
    """For w > 1 the loss is infinite, and its gradient is zero."""
    potential = pl.Potential(lambda w, batch: jnp.where(w > 1, jnp.inf, w * batch[0]))
    dataset = pl.Dataset(np.full(10, -1.0, np.float32), np.zeros(10))
    sampler = pl.full_batch_langevin(potential, dataset, time_step=0.1)
    starts = jnp.asarray([[0.2, -1e3]])
    with pytest.warns(pl.ChainStoppedWarning, match=r"chain 0 at T = 1e-08 stopped by step 20: .* U is not") as caught:
        result = pl.sample(sampler, starts, temperatures=[1e-8], num_chains=2, num_steps=40, record_every=10, key=0)
    assert len(caught) == 1
    energy = pl.Status.NON_FINITE_ENERGY
    np.testing.assert_array_equal(result.trace.status[0], [[0, energy, energy, energy], [0, 0, 0, 0]])
    np.testing.assert_array_equal(np.isnan(result.trace.loss[0]), [[False, True, True, True], [False] * 4])
    assert result.states.step.tolist() == [20, 40]
    assert 1 < result.weights[0, 0] < np.inf


def test_records_do_not_dwarf_the_steps_by_default(linear_task):
    sampler = pl.balanced_langevin(linear_task.potential, linear_task.train, batch_size=100)
    run = pl.Run(sampler, temperatures=[1e-3], num_chains=4)
    cost = 1.5 * 1_000 / sampler.examples_per_step + 10  # of a record in steps, by the estimate
    for num_steps, num_records in ((1_000_000, 400), (100_000, 198), (30_000, 100), (10_000, 79), (500, 10)):
        assert num_steps // run.record_interval(num_steps, None) == pytest.approx(num_records, abs=2)
        assert num_records == 10 or num_records * cost <= 0.201 * num_steps
