"""The contract that every sampler keeps: pure methods, settings, pytree, chains and observables."""

import dataclasses
import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import _trees as trees
from pseudolangevin import chains
from pseudolangevin.observables import OBSERVABLES
from pseudolangevin.samplers import SAMPLERS
from pseudolangevin.samplers.base import MAX_STEPS

MINIBATCH: dict[str, Any] = {"batch_size": 16, "refresh_every": 16, "variance_examples": 100}
SETTINGS: dict[str, dict[str, Any]] = {
    "balanced_langevin": {"friction_batch_size": 200, **MINIBATCH},
    "pseudo_langevin": {"warmup_refreshes": 1, "reset_probability": 0.3, **MINIBATCH},
    "naive_pseudo_langevin": {"time_step": 0.005, **MINIBATCH},
    "full_batch_langevin": {"time_step": 0.05},
    "hybrid_monte_carlo": {"num_leapfrog_steps": 3, "time_step": 0.05, "warmup_moves": 5},
    "minibatch_hybrid_monte_carlo": {"num_leapfrog_steps": 3, "time_step": 0.01, "batch_size": 16},
    "adam": {"batch_size": 16},
}
REFRESHING = {"balanced_langevin", "pseudo_langevin", "naive_pseudo_langevin"}
NOISE = {"temperature_ratio", "max_temperature_ratio"}
NOISE |= {"kinetic_temperature", "gradient_variance", "raised_share", "refresh_interval", "num_resets"}
HYBRID = {"acceptance", "energy_error", "time_step", "kinetic_temperature"}
OWN = {
    "balanced_langevin": NOISE | {"warmup_end", "friction_load"},
    "pseudo_langevin": NOISE,
    "naive_pseudo_langevin": NOISE | {"clipped_share"},
    "full_batch_langevin": {"kinetic_temperature"},
    "hybrid_monte_carlo": HYBRID,
    "minibatch_hybrid_monte_carlo": HYBRID,
    "adam": set(),
}
COMMON = {"loss", "potential", "squared_norm", "error", "test_loss", "test_error", "dead_class", "status"}
VIRIAL = {"virial_temperature", "layer_virial_temperature", "centred_virial_temperature"}
VIRIAL |= {"direction_position", "direction_gradient"}
WITHOUT_TESTS: dict[str, Any] = {name: {"tests": ()} if name != "adam" else {} for name in SETTINGS}
TEMPERATURES = [1e-4, 1e-3]
NUM_STEPS = 40


def make(name: str, task) -> pl.Sampler:
    return SAMPLERS[name](task.potential, task.train, **SETTINGS[name])


def flat(tree: Any, *index: int) -> np.ndarray:
    return np.asarray(trees.ravel(jax.tree.map(lambda leaf: leaf[index], tree)), np.float64)


def temperatures_of(sampler: pl.Sampler) -> list[float] | None:
    return TEMPERATURES if sampler.uses_temperature else None


@pytest.fixture(scope="module")
def task(small_task):
    """A network of 144 weights in two tensors, which compiles faster than one of three layers."""
    first, second = jax.random.split(jax.random.key(1))
    weights = {"first": 0.3 * jax.random.normal(first, (20, 6)), "second": 0.3 * jax.random.normal(second, (6, 4))}
    potential = pl.classification(lambda w, x: jax.nn.relu(x @ w["first"]) @ w["second"], weight_decay=5.0)
    return small_task._replace(potential=potential, weights=weights)


@pytest.fixture(scope="module", params=list(SAMPLERS))
def result(request, task) -> pl.Result:
    """A run of every sampler with two chains at two temperatures (one for Adam), and refreshes between records."""
    sampler = make(request.param, task)
    return pl.sample(
        sampler,
        task.weights,
        temperatures=temperatures_of(sampler),
        num_chains=2,
        num_steps=NUM_STEPS,
        record_every=20,
        keep_weights_every=1,
        test=task.test,
        key=7,
    )


def test_every_sampler_is_tested_and_public():
    assert set(SETTINGS) == set(OWN) == set(SAMPLERS)
    assert all(getattr(pl, name) is sampler for name, sampler in SAMPLERS.items())


def test_the_trace_has_its_dimensions_names_and_types(result):
    trace, sampler = result.trace, result.sampler
    assert {"temperature": 2 if sampler.uses_temperature else 1, "chain": 2, "draw": 2}.items() <= trace.sizes.items()
    np.testing.assert_array_equal(trace.step, [20, 40])
    virial = VIRIAL if sampler.uses_temperature else set()
    assert set(trace.data_vars) == COMMON | virial | OWN[sampler.name]
    for name, data in trace.data_vars.items():
        assert data.dims == ("temperature", "chain", "draw", *OBSERVABLES[name].dims)
        assert (data.attrs["label"], data.attrs["unit"]) == (OBSERVABLES[name].label, OBSERVABLES[name].unit)
        assert data.attrs["long_name"] == OBSERVABLES[name].long_name
        assert data.dtype in (np.float64, np.int32, np.bool_)
        assert np.isfinite(data).all(), name
    assert list(trace.layer.values) == ["first", "second"]
    assert (trace.status == pl.Status.RUNNING).all()
    assert trace.attrs == {"observed_examples": 1_000, "record_every": 20, "keep_weights_every": 1}


def test_weights_and_samples_have_leading_axes_and_chains_differ(result, task):
    shape = result.trace.status.shape[:2]
    starts, leaves = jax.tree.leaves(task.weights), jax.tree.leaves(result.weights)
    assert [(w.shape, w.dtype) for w in leaves] == [((*shape, *w.shape), w.dtype) for w in starts]
    assert result.num_weights == 144
    for kept, last in zip(jax.tree.leaves(result.samples), leaves, strict=True):
        assert kept.shape == (*shape, 2, *last.shape[2:])
        np.testing.assert_array_equal(kept[:, :, -1], last)
        assert (kept[:, :, 0] != kept[:, :, 1]).mean() > 0.4  # reused buffers are not shared; moves may be rejected
    assert (flat(result.weights, 0, 0) != flat(result.weights, 0, 1)).mean() > 0.9
    assert (flat(result.weights, 0, 0) != np.asarray(trees.ravel(task.weights))).mean() > 0.9


def test_records_are_made_at_the_position_of_the_states(result):
    positions = jax.jit(jax.vmap(lambda s, state: s.position(state), in_axes=(None, 0)))(result.sampler, result.states)
    np.testing.assert_allclose(flat(positions, 1), flat(result.weights, 0, 1), rtol=1e-6)
    last = result.trace.isel(temperature=0, chain=1, draw=-1)
    weights = jax.tree.map(lambda leaf: leaf[0, 1], result.weights)
    potential, batch = result.sampler.potential, result.sampler.dataset.batch
    assert float(last.loss) == pytest.approx(float(potential.loss(weights, batch)), rel=1e-5)
    assert float(last.potential) == pytest.approx(float(potential.energy(weights, batch)), rel=1e-5)
    assert float(last.squared_norm) == pytest.approx(float(trees.squared_norm(weights)), rel=1e-5)
    if not result.sampler.uses_temperature:
        assert not VIRIAL & set(last)  # a pass without gradient is cheaper
        return
    gradient = jax.grad(potential.energy)(weights, batch)
    assert float(last.virial_temperature) == pytest.approx(float(trees.dot(weights, gradient)) / 144, rel=1e-3)
    total = float(last.layer_virial_temperature.values @ [120, 24]) / 144
    assert total == pytest.approx(float(last.virial_temperature), rel=1e-4)


@pytest.fixture(scope="module")
def advance():
    """Return the method of one chain, compiled by the caller."""
    return jax.jit(lambda s, state, n: s.advance(state, n))


def test_advance_of_a_chain_alone_equals_the_chain_alongside_others(result, task, advance):
    """One chain at one temperature, with its refreshes, in two parts and without records."""
    sampler = result.sampler
    run = pl.Run(sampler, temperatures=TEMPERATURES[1:] if sampler.uses_temperature else None)
    state = jax.tree.map(lambda leaf: leaf[0], run.start(task.weights, 7)._replace(**WITHOUT_TESTS[sampler.name]))
    state = advance(sampler, advance(sampler, state, 27), NUM_STEPS - 27)
    together = jax.tree.map(lambda leaf: leaf[-2], result.states._replace(**WITHOUT_TESTS[sampler.name]))
    moved = np.abs(flat(together.weights) - np.asarray(trees.ravel(task.weights))).max()
    assert np.abs(flat(state.weights) - flat(together.weights)).max() < 1e-3 * moved
    assert int(state.step) == NUM_STEPS
    due = int(sampler.next_refresh(state))
    assert sampler.refreshes == (sampler.name in REFRESHING)
    assert due == int(sampler.next_refresh(together))
    assert due > 16 if sampler.refreshes else due == MAX_STEPS


def test_blocks_do_not_change_a_segment(linear_task):
    """A GPU runs blocks."""
    sampler = make("naive_pseudo_langevin", linear_task)
    state = jax.jit(lambda s, w: s.init(jax.random.key(0), w, 1e-3))(sampler, linear_task.weights)
    blocks, steps = (jax.jit(lambda s, state, n=n: s.segment(state, *n))(sampler, state) for n in ((2, 2), (4,)))
    np.testing.assert_allclose(blocks.weights, steps.weights, rtol=1e-4, atol=1e-5)
    assert int(blocks.step) == int(steps.step) == 4


def test_a_chain_that_is_not_finite_is_put_back_and_one_that_stopped_does_not_move(result, advance):
    state = jax.tree.map(lambda leaf: leaf[0], result.states._replace(**WITHOUT_TESTS[result.sampler.name]))
    stopped = state._replace(status=jnp.asarray(pl.Status.NO_NOISE, jnp.int32))
    if result.sampler.uses_temperature:
        broken = state._replace(temperature=jnp.full_like(state.temperature, jnp.nan))
    else:
        broken = state._replace(weights=jax.tree.map(lambda w: jnp.full_like(w, jnp.nan), state.weights))
    for before, status in ((broken, pl.Status.NON_FINITE), (stopped, pl.Status.NO_NOISE)):
        after = advance(result.sampler, before, 3)
        assert (int(after.status), int(after.step)) == (status, NUM_STEPS)
        np.testing.assert_array_equal(flat(after.weights), flat(before.weights))


def test_settings_are_the_fields_and_a_sampler_is_a_pytree_of_its_data(result):
    sampler = result.sampler
    assert set(sampler.settings) == {field.name for field in dataclasses.fields(sampler)} - {"potential", "dataset"}
    json.dumps(sampler.settings)
    assert repr(sampler) == f"{sampler.name}({', '.join(f'{n}={v!r}' for n, v in sampler.settings.items())})"
    assert "Args:\n    potential: U." in str(type(sampler).__doc__)
    name = "batch_size" if sampler.batch_size is not None else "time_step"
    changed = dataclasses.replace(sampler, **{name: 2 * getattr(sampler, name)})
    assert changed.settings == sampler.settings | {name: 2 * sampler.settings[name]}
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(sampler, **{name: -1})
    with pytest.raises(dataclasses.FrozenInstanceError):
        sampler.potential = None
    leaves, structure = jax.tree.flatten(sampler)
    assert len(leaves) == 2
    rebuilt = jax.tree.unflatten(structure, leaves)
    assert (type(rebuilt), rebuilt.settings) == (type(sampler), sampler.settings)
    assert rebuilt.potential is sampler.potential


def test_the_same_settings_compile_once(result, task):
    again = make(result.sampler.name, task)
    run = partial(pl.sample, weights=task.weights, temperatures=temperatures_of(again), num_chains=2, key=3)
    programs: Any = (chains._start, chains._segment, chains._refresh, chains._observe)
    before = [program._cache_size() for program in programs]
    run(again, num_steps=NUM_STEPS, record_every=20, test=task.test)
    assert [program._cache_size() for program in programs] == before
