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
NOISE = {"temperature_ratio", "max_temperature_ratio", "peak_temperature_ratio"}
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


def test_a_chain_alone_equals_the_chain_alongside_others(result, task):
    """One temperature instead of two, one chain instead of two, one record instead of two, of fewer examples."""
    sampler = result.sampler
    temperatures = TEMPERATURES[1:] if sampler.uses_temperature else None
    lengths: dict[str, Any] = {"num_steps": NUM_STEPS, "record_every": NUM_STEPS, "observe_examples": 100}
    alone = pl.sample(sampler, task.weights, temperatures=temperatures, **lengths, key=7)
    together = flat(result.weights, -1, 0)
    moved = np.abs(together - np.asarray(trees.ravel(task.weights))).max()
    assert np.abs(flat(alone.weights, 0, 0) - together).max() < 1e-3 * moved


@pytest.fixture(scope="module")
def advance():
    """Return the method of one chain, compiled and mapped over chains by the caller."""
    return jax.jit(jax.vmap(lambda s, state, n: s.advance(state, n), in_axes=(None, 0, None)))


def test_advance_equals_the_chains_of_sample(result, task, advance):
    """With their refreshes."""
    sampler = result.sampler
    run = pl.Run(sampler, temperatures=temperatures_of(sampler), num_chains=2)
    states = run.start(task.weights, 7)
    states = advance(sampler, advance(sampler, states, 27), NUM_STEPS - 27)
    moved = np.abs(flat(result.states.weights, 1) - np.asarray(trees.ravel(task.weights))).max()
    assert np.abs(flat(states.weights, 1) - flat(result.states.weights, 1)).max() < 1e-3 * moved
    assert states.step.tolist() == [NUM_STEPS] * run.size
    due = jax.vmap(sampler.next_refresh)(states)
    assert sampler.refreshes == (sampler.name in REFRESHING)
    if sampler.refreshes:
        assert (np.asarray(due) > 16).all()
        np.testing.assert_array_equal(due, jax.vmap(sampler.next_refresh)(result.states))
    else:
        assert (np.asarray(due) == MAX_STEPS).all()


def test_a_segment_is_a_number_of_steps_and_blocks_do_not_change_it(result):
    """A GPU runs blocks."""
    sampler, state = result.sampler, jax.tree.map(lambda leaf: leaf[0], result.states)
    segment = jax.jit(lambda s, state, num: s.segment(state, num))
    stepped = jax.jit(lambda s, state: s.step(state, s.draw(state)))(sampler, state)
    np.testing.assert_allclose(flat(stepped.weights), flat(segment(sampler, state, 1).weights), rtol=1e-5, atol=1e-6)
    blocks = jax.jit(lambda s, state: s.segment(state, 2, 2))(sampler, state)
    np.testing.assert_allclose(flat(blocks.weights), flat(segment(sampler, state, 4).weights), rtol=1e-4, atol=1e-5)
    assert (int(stepped.step), int(blocks.step)) == (NUM_STEPS + 1, NUM_STEPS + 4)
    assert (sampler.draw(state) is None) == (sampler.batch_size is None)


def test_a_chain_that_is_not_finite_is_put_back_and_one_that_stopped_does_not_move(result, advance):
    before = result.states._replace(status=result.states.status.at[1].set(pl.Status.NO_NOISE))
    if result.sampler.uses_temperature:
        before = before._replace(temperature=before.temperature.at[0].set(jnp.nan))
    else:
        before = before._replace(weights=jax.tree.map(lambda w: w.at[0].set(jnp.nan), before.weights))
    after = advance(result.sampler, before, 3)
    assert after.status[:2].tolist() == [pl.Status.NON_FINITE, pl.Status.NO_NOISE]
    assert int(after.step[0]) == NUM_STEPS
    for chain in (0, 1):
        np.testing.assert_array_equal(flat(after.weights, chain), flat(before.weights, chain))


def test_settings_are_the_fields_and_replace_changes_them(result):
    sampler = result.sampler
    assert set(sampler.settings) == {field.name for field in dataclasses.fields(sampler)} - {"potential", "dataset"}
    json.dumps(sampler.settings)
    assert repr(sampler) == f"{sampler.name}({', '.join(f'{n}={v!r}' for n, v in sampler.settings.items())})"
    name = "batch_size" if sampler.batch_size is not None else "time_step"
    changed = dataclasses.replace(sampler, **{name: 2 * getattr(sampler, name)})
    assert changed.settings[name] == 2 * sampler.settings[name]
    assert dataclasses.replace(changed, **{name: getattr(sampler, name)}).settings == sampler.settings
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(sampler, **{name: -1})
    with pytest.raises(dataclasses.FrozenInstanceError):
        sampler.potential = None


def test_a_sampler_is_a_pytree_of_its_data(result):
    sampler = result.sampler
    leaves, structure = jax.tree.flatten(sampler)
    assert len(leaves) == 2
    rebuilt = jax.tree.unflatten(structure, leaves)
    assert type(rebuilt) is type(sampler)
    assert rebuilt.settings == sampler.settings
    assert rebuilt.potential is sampler.potential
    assert "Args:\n    potential: U." in str(type(sampler).__doc__)


def test_the_same_settings_compile_once(result, task):
    again = make(result.sampler.name, task)
    run = partial(pl.sample, weights=task.weights, temperatures=temperatures_of(again), num_chains=2, key=3)
    programs: Any = (chains._start, chains._segment, chains._refresh, chains._observe)
    before = [program._cache_size() for program in programs]
    run(again, num_steps=NUM_STEPS, record_every=20, test=task.test)
    assert [program._cache_size() for program in programs] == before
