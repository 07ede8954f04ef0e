"""Bad input always gives a ValueError that names the argument and what is wrong with it, before anything compiles."""

import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pseudolangevin as pl
from pseudolangevin import chains

quick = settings(max_examples=25, deadline=None, derandomize=True)
not_finite = st.sampled_from([math.nan, math.inf, -math.inf])
not_positive = st.one_of(st.floats(max_value=0.0), not_finite)
not_a_number: st.SearchStrategy[Any] = st.sampled_from(["0.1", None, 1j, True, [0.1], {}, "abc"])
NUM = 40

DATASET = pl.Dataset(np.ones((NUM, 3), np.float32), np.arange(NUM) % 2)
NETWORK = pl.models.feedforward((3, 4, 2))
POTENTIAL = pl.classification(NETWORK.apply)
WEIGHTS = jax.tree.map(np.asarray, NETWORK.init(jax.random.key(0)))
THREE_KEYS = jax.random.split(jax.random.key(0), 3)
SAMPLER = pl.pseudo_langevin(POTENTIAL, DATASET, batch_size=4)
MAKERS = {
    "pseudo_langevin": lambda **options: pl.pseudo_langevin(POTENTIAL, DATASET, **{"batch_size": 4} | options),
    "naive": lambda **options: pl.naive_pseudo_langevin(
        POTENTIAL, DATASET, **{"batch_size": 4, "time_step": 0.1} | options
    ),
    "full_batch": lambda **options: pl.full_batch_langevin(POTENTIAL, DATASET, **{"time_step": 0.1} | options),
    "adam": lambda **options: pl.adam(POTENTIAL, DATASET, **{"batch_size": 4} | options),
}


@pytest.fixture(autouse=True, scope="module")
def nothing_compiles():
    """Any compiled program of the driver is a failure of these tests."""

    def refuse(*args, **kwargs):
        raise AssertionError("a program was about to be compiled")

    patch = pytest.MonkeyPatch()
    for name in ("_init", "_advance", "_refresh", "_observe"):
        patch.setattr(chains, name, refuse)
    yield
    patch.undo()


def run(sampler=SAMPLER, weights=WEIGHTS, **options):
    defaults: dict[str, Any] = {"temperatures": [1e-3], "num_steps": 10, "key": 0}
    return pl.sample(sampler, weights, **defaults | options)


def check_refused(function, argument: str, value=None, *, remedy: str = "") -> str:
    """The call gives a ValueError that names the argument, the value where given, and a remedy."""
    with pytest.raises(ValueError, match=argument) as caught:
        function()
    message = str(caught.value)
    if value is not None:
        assert value in message, message
    assert remedy in message, message
    assert len(message) > len(argument) + 15, message
    return message


def test_the_spy_works():
    with pytest.raises(AssertionError, match="compiled"):
        run()


# Temperatures and lengths of a run


@given(st.one_of(not_positive, not_a_number))
@quick
def test_temperatures_must_be_positive_numbers(value):
    check_refused(lambda: run(temperatures=[1e-3, value]), "temperatures", repr(value))


@given(st.floats(1e-29, 1e29))
@quick
def test_temperatures_must_differ(value):
    check_refused(lambda: run(temperatures=[value, 2 * value, value]), "temperatures", remedy="num_chains")


@pytest.mark.parametrize("value", [1e-50, 1e39, 1e-42])
def test_temperatures_must_be_numbers_in_float32(value):
    check_refused(lambda: run(temperatures=[value]), "temperatures", repr(value))


@pytest.mark.parametrize("value", [0.1, None, [], "15"])
def test_temperatures_must_be_a_list(value):
    check_refused(lambda: run(temperatures=value), "temperatures")


def test_adam_has_no_temperature():
    check_refused(lambda: run(MAKERS["adam"](), temperatures=[0.1]), "temperatures", remedy="leave it out")


@given(
    st.sampled_from(
        ["num_steps", "num_chains", "record_every", "chunk_size", "keep_weights_every", "observe_examples"]
    ),
    st.one_of(st.integers(max_value=0), st.floats(), st.sampled_from(["3", [1], True])),
)
@quick
def test_counts_must_be_positive_integers(name, value):
    check_refused(lambda: run(**{name: value}), name, repr(value), remedy="integer")


@given(st.integers(11, 10**9))
@quick
def test_there_must_be_a_record(value):
    check_refused(lambda: run(record_every=value), "record_every", str(value), remedy="record at least once")


@given(st.integers(NUM + 1, 10**9))
@quick
def test_only_examples_that_exist_can_be_observed(value):
    check_refused(lambda: run(observe_examples=value), "observe_examples", str(value))


# Settings of the samplers


@given(
    st.sampled_from(["pseudo_langevin", "naive", "full_batch"]),
    st.one_of(st.floats(max_value=0.0), st.floats(min_value=1.0), not_finite, not_a_number),
)
@quick
def test_momentum_retention_is_between_zero_and_one(maker, value):
    check_refused(lambda: MAKERS[maker](momentum_retention=value), "momentum_retention", repr(value))


@given(st.sampled_from(["pseudo_langevin", "naive", "full_batch"]), st.one_of(not_positive, not_a_number))
@quick
def test_time_steps_are_positive(maker, value):
    check_refused(lambda: MAKERS[maker](time_step=value), "time_step", repr(value))


@given(st.floats(0.01, 0.999), st.floats(1.0001, 100.0), st.sampled_from(["", "max_"]))
@quick
def test_the_temperature_ratio_stays_below_its_limit(c1, factor, prefix):
    limit = 1 / (1 + c1**2)
    name = prefix + "temperature_ratio"
    message = check_refused(
        lambda: MAKERS["pseudo_langevin"](momentum_retention=c1, **{name: factor * limit}),
        name,
        f"{factor * limit:g}",
        remedy="lower it",
    )
    assert f"{limit:.4g}" in message


@given(st.floats(0.002, 0.4), st.floats(0.1, 0.99))
@quick
def test_the_maximal_ratio_is_not_below_the_nominal_one(ratio, share):
    check_refused(
        lambda: MAKERS["pseudo_langevin"](temperature_ratio=ratio, max_temperature_ratio=share * ratio),
        "max_temperature_ratio",
        f"{share * ratio:g}",
        remedy="raise the first",
    )


@given(st.sampled_from(["temperature_ratio", "max_temperature_ratio"]), st.one_of(not_positive, not_a_number))
@quick
def test_temperature_ratios_are_positive(name, value):
    if name == "max_temperature_ratio" and value is None:
        return  # the default
    check_refused(lambda: MAKERS["pseudo_langevin"](**{name: value}), name, repr(value))


@given(
    st.sampled_from(["pseudo_langevin", "naive"]),
    st.one_of(st.integers(max_value=1), st.integers(NUM + 1, 10**9), st.floats(), st.sampled_from(["4", True])),
)
@quick
def test_batches_have_from_two_to_all_examples(maker, value):
    check_refused(lambda: MAKERS[maker](batch_size=value), "batch_size", repr(value), remedy="full_batch_langevin")


@given(
    st.sampled_from(
        ["refresh_every", "max_refresh_interval", "variance_block", "variance_max_batches", "warmup_refreshes"]
    ),
    st.one_of(st.integers(max_value=-1), st.floats(), st.sampled_from(["4", True])),
)
@quick
def test_counts_of_the_noise_control(name, value):
    check_refused(lambda: MAKERS["pseudo_langevin"](**{name: value}), name, repr(value), remedy="integer")


@given(
    st.sampled_from(["mass_floor", "reset_probability", "max_regularizer_frequency"]),
    st.one_of(st.floats(max_value=-1e-9), st.floats(min_value=1.0001), not_finite, not_a_number),
)
@quick
def test_shares_are_between_zero_and_one(name, value):
    check_refused(lambda: MAKERS["pseudo_langevin"](**{name: value}), name, repr(value))


@given(st.sampled_from(["refresh_tolerance", "variance_tolerance"]), st.one_of(not_positive, not_a_number))
@quick
def test_tolerances_are_positive(name, value):
    check_refused(lambda: MAKERS["pseudo_langevin"](**{name: value}), name, repr(value))


@given(st.text().filter(lambda text: text not in ("weight", "row", "tensor")))
@quick
def test_masses_per_is_one_of_three(value):
    check_refused(lambda: MAKERS["pseudo_langevin"](masses_per=value), "masses_per", repr(value), remedy="'row'")


@given(st.one_of(not_positive, st.sampled_from(["0.1", True, "abc"])))
@quick
def test_masses_are_positive(value):
    check_refused(lambda: MAKERS["naive"](mass=value), "mass", repr(value))
    check_refused(lambda: MAKERS["full_batch"](masses=value), "masses")
    if isinstance(value, float):
        check_refused(lambda: MAKERS["full_batch"](masses={"a": np.array([1.0, value])}), "masses")


# Data


@given(not_finite, st.integers(0, NUM - 1), st.sampled_from(["inputs", "targets"]), st.sampled_from(["f4", "f8"]))
@quick
def test_data_are_finite(value, index, name, dtype):
    arrays = {"inputs": np.ones((NUM, 2), dtype), "targets": np.ones(NUM, dtype)}
    arrays[name][index] = value
    check_refused(lambda: pl.Dataset(**arrays), name, "NaN or infinity", remedy="remove or repair")


def test_data_are_finite_in_the_precision_they_are_stored_in():
    check_refused(lambda: pl.Dataset(np.full((4, 2), 1e300), np.ones(4)), "inputs", "NaN or infinity")


@given(st.integers(1, 30), st.integers(1, 30))
@quick
def test_inputs_and_targets_have_one_length(num_inputs, num_targets):
    if num_inputs == num_targets:
        return
    message = check_refused(
        lambda: pl.Dataset(np.ones((num_inputs, 2)), np.ones(num_targets)), "inputs", remedy="same length"
    )
    assert str(num_inputs) in message
    assert str(num_targets) in message


@pytest.mark.parametrize("bad", [np.ones((0, 3)), np.ones((4, 0)), [], None, {}, 3.0, np.array(["a", "b"])])
def test_data_are_arrays_with_examples(bad):
    check_refused(lambda: pl.Dataset(bad, np.ones(4)), "inputs")
    check_refused(lambda: pl.Dataset(np.ones(4), bad), "targets")


def test_arrays_within_the_inputs_have_one_length():
    check_refused(lambda: pl.Dataset({"a": np.ones(3), "b": np.ones(4)}, np.ones(3)), "inputs", "[3, 4]")


@given(st.one_of(st.integers(-1000, -1), st.integers(2, 1000)), st.integers(0, NUM - 1))
@quick
def test_labels_are_in_range(label, index):
    labels = np.arange(NUM) % 2
    labels[index] = label
    dataset = pl.Dataset(np.ones((NUM, 3), np.float32), labels)
    check_refused(
        lambda: run(pl.pseudo_langevin(POTENTIAL, dataset, batch_size=4)), "targets", str(label), remedy="0 … 1"
    )
    check_refused(lambda: run(test=dataset), "targets", str(label))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.bool_])
def test_labels_are_integers(dtype):
    dataset = pl.Dataset(np.ones((NUM, 3), np.float32), (np.arange(NUM) % 2).astype(dtype))
    check_refused(
        lambda: run(pl.pseudo_langevin(POTENTIAL, dataset, batch_size=4)), "targets", remedy="astype('int32')"
    )


# Weights


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "bool", "complex64", "float16", "bfloat16"])
def test_weights_are_single_or_double_precision(dtype):
    weights = jax.tree.map(lambda w: jnp.asarray(w).astype(dtype), WEIGHTS)
    check_refused(lambda: run(weights=weights), "weights", dtype, remedy="astype('float32')")
    mixed = WEIGHTS | {"layer2": weights["layer2"]}
    check_refused(lambda: run(weights=mixed), r"weights\['layer2'\]", dtype)


@pytest.mark.parametrize("empty", [{}, [], None, (), {"a": {}}, {"a": np.ones((0, 3), np.float32)}])
def test_there_are_weights(empty):
    check_refused(lambda: run(weights=empty), "weights", "empty", remedy="network.init")


@given(not_finite, st.sampled_from(["kernel", "bias"]))
@quick
def test_weights_are_finite(value, name):
    array = WEIGHTS["layer1"][name].copy()
    array.flat[0] = value
    weights = WEIGHTS | {"layer1": WEIGHTS["layer1"] | {name: array}}
    check_refused(
        lambda: run(weights=weights), rf"weights\['layer1'\]\['{name}'\]", "NaN or infinity", remedy="start from finite"
    )


def test_weights_are_arrays():
    check_refused(lambda: run(weights={"a": "text"}), "weights")
    check_refused(lambda: run(weights={"a": 1.0, "b": np.ones(3, np.float32)}), "weights", remedy="jnp.asarray")


def test_weights_fit_the_network():
    check_refused(lambda: run(weights={"layer1": WEIGHTS["layer1"]}), "per_example_loss", "fails")
    other = pl.models.feedforward((5, 4, 2)).init(jax.random.key(0))
    check_refused(lambda: run(weights=other), "per_example_loss", "fails")


# The loss

LOSSES = {
    "scalar": lambda w, batch: jnp.mean(batch[0] @ w),
    "column": lambda w, batch: (batch[0] @ w)[:, None],
    "one number per input": lambda w, batch: (batch[0] * w).sum(axis=0),
    "nothing": lambda w, batch: None,
    "a pair": lambda w, batch: (batch[0] @ w, batch[0] @ w),
    "integers": lambda w, batch: (batch[0] @ w).astype(jnp.int32),
}


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("width", [3, 5])
def test_a_loss_gives_one_number_per_example(kind, width):
    """Also where the wrong shape happens to be that of a few examples."""
    dataset = pl.Dataset(np.ones((NUM, width), np.float32), np.ones(NUM))
    sampler = pl.pseudo_langevin(pl.Potential(LOSSES[kind]), dataset, batch_size=4)
    message = check_refused(lambda: run(sampler, np.ones(width, np.float32)), "per_example_loss must return")
    if kind == "scalar":
        assert "remove the mean" in message


def test_a_loss_that_raises_is_quoted():
    def broken(weights, batch):
        raise KeyError("missing layer")

    sampler = pl.full_batch_langevin(pl.Potential(broken), DATASET, time_step=0.1)
    check_refused(lambda: run(sampler, np.ones(3, np.float32)), "per_example_loss fails", "missing layer")


@pytest.mark.parametrize("loss", [None, 3.0, "loss", jnp.ones(3)])
def test_a_loss_is_a_function(loss):
    check_refused(lambda: pl.Potential(loss), "per_example_loss", "not callable")


@given(st.one_of(st.floats(max_value=-1e-30), not_finite, not_a_number))
@quick
def test_weight_decay_is_not_negative(value):
    check_refused(lambda: pl.Potential(lambda w, b: b[0], weight_decay=value), "weight_decay", repr(value))
    check_refused(lambda: pl.classification(NETWORK.apply, weight_decay=value), "weight_decay", repr(value))


# Networks and tasks


@given(
    st.one_of(
        st.lists(st.integers(1, 9), max_size=1),
        st.lists(st.one_of(st.integers(-5, 0), st.floats(), st.just("3")), min_size=1, max_size=3).map(
            lambda v: [4, *v]
        ),
        st.sampled_from([7, None]),
    )
)
@quick
def test_sizes_are_positive_integers(sizes):
    check_refused(lambda: pl.models.feedforward(sizes), "sizes", remedy="positive integers")


@given(st.text().filter(lambda text: text not in ("relu", "identity")))
@quick
def test_the_output_activation_is_known(value):
    check_refused(
        lambda: pl.models.feedforward((3, 2), output_activation=value), "output_activation", repr(value), remedy="relu"
    )


@given(st.one_of(st.floats(max_value=-1e-9), st.floats(min_value=0.5000001), not_finite, not_a_number))
@quick
def test_the_flip_probability_is_at_most_one_half(value):
    check_refused(
        lambda: pl.tasks.spin_vectors(jax.random.key(0), num_train=5, num_test=5, flip_probability=value),
        "flip_probability",
        repr(value),
    )


@given(
    st.sampled_from(["num_train", "num_test", "dimension", "num_classes"]),
    st.one_of(st.integers(max_value=0), st.floats(), st.sampled_from(["4", True])),
)
@quick
def test_sizes_of_a_task_are_positive(name, value):
    sizes = {"num_train": 5, "num_test": 5} | {name: value}
    check_refused(lambda: pl.tasks.spin_vectors(jax.random.key(0), **sizes), name, repr(value), remedy="integer")


@given(
    st.sampled_from(["learning_rate", "decay_epochs", "decay_factor"]),
    st.one_of(not_finite, not_a_number, st.just(-1.0)),
)
@quick
def test_adam_checks_its_numbers(name, value):
    check_refused(lambda: MAKERS["adam"](**{name: value}), name, repr(value))


@pytest.mark.parametrize("value", [None, "0", 0.5, True, 2**64, [0], np.zeros(2), THREE_KEYS])
def test_key_is_a_seed_or_a_key(value):
    check_refused(lambda: run(key=value), "key", remedy="jax.random.key(0)")


@pytest.mark.parametrize("masses", [{"a": 1.0}, [1.0], np.ones(3), jax.tree.map(lambda w: w[None] ** 2 + 1, WEIGHTS)])
def test_masses_fit_the_weights(masses):
    check_refused(lambda: run(MAKERS["full_batch"](masses=masses)), "masses", remedy="shaped like the weights")
    hybrid = pl.hybrid_monte_carlo(POTENTIAL, DATASET, num_leapfrog_steps=2, time_step=0.1, masses=masses)
    check_refused(lambda: run(hybrid), "masses", remedy="shaped like the weights")


def test_any_scalar_is_one_mass():
    for number in (2, 2.0, np.float32(2), np.int64(2), jnp.asarray(2.0)):
        assert MAKERS["full_batch"](masses=number).settings["masses"] == 2.0


@pytest.mark.parametrize("make", [pl.pseudo_langevin, pl.naive_pseudo_langevin, pl.full_batch_langevin])
def test_every_number_is_on_record(make):
    required = {"time_step": 0.1} if make is not pl.pseudo_langevin else {}
    names = {*inspect.signature(make).parameters} - {"potential", "dataset"}
    assert {*make(POTENTIAL, DATASET, **required).settings} == names
