"""Bad arguments give a ValueError with the argument, its value and the remedy, before anything is compiled."""

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
not_a_number: st.SearchStrategy[Any] = st.sampled_from(["0.1", None, 1j, True, [0.1], {}, "abc"])
not_positive = st.one_of(st.floats(max_value=0.0), not_finite, not_a_number)
not_a_count = st.one_of(st.integers(max_value=-1), st.floats(), st.sampled_from(["4", [1], True]))
not_a_share = st.one_of(st.floats(max_value=-1e-9), st.floats(min_value=1.0001), not_finite, not_a_number)
NUM = 40

DATASET = pl.Dataset(np.ones((NUM, 3), np.float32), np.arange(NUM) % 2)
NETWORK = pl.models.feedforward((3, 4, 2))
POTENTIAL = pl.classification(NETWORK.apply)
WEIGHTS = jax.tree.map(np.asarray, NETWORK.init(jax.random.key(0)))
THREE_KEYS = jax.random.split(jax.random.key(0), 3)
REQUIRED: dict[str, dict[str, Any]] = {
    "pseudo_langevin": {"batch_size": 4},
    "balanced_langevin": {"batch_size": 4},
    "naive_pseudo_langevin": {"batch_size": 4, "time_step": 0.1},
    "full_batch_langevin": {"time_step": 0.1},
    "hybrid_monte_carlo": {"time_step": 0.1, "num_leapfrog_steps": 5},
    "minibatch_hybrid_monte_carlo": {"time_step": 0.1, "num_leapfrog_steps": 5},
    "adam": {"batch_size": 4, "validation": DATASET},
}


def make(name: str, **options: Any) -> pl.Sampler:
    return getattr(pl, name)(POTENTIAL, DATASET, **REQUIRED[name] | options)


SAMPLER = make("pseudo_langevin")


@pytest.fixture(autouse=True, scope="module")
def nothing_compiles():
    """Any compiled program of the driver is a failure of these tests."""

    def fail(*args, **kwargs):
        raise AssertionError("a program was about to be compiled")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_start", "_segment", "_refresh", "_observe"):
            patch.setattr(chains, name, fail)
        yield


def run(sampler=SAMPLER, weights=WEIGHTS, **options):
    defaults: dict[str, Any] = {"temperatures": [1e-3], "num_steps": 10, "key": 0}
    return pl.sample(sampler, weights, **defaults | options)


def check_rejected(function, argument: str, value: str = "", *, remedy: str = "") -> None:
    """Check that the call raises a ValueError with the argument, the value and a remedy."""
    with pytest.raises(ValueError, match=argument) as caught:
        function()
    message = str(caught.value)
    assert value in message, message
    assert remedy in message, message
    assert len(message) > len(argument) + 15, message


def test_a_compiled_program_would_be_noticed():
    with pytest.raises(AssertionError, match="compiled"):
        run()


# Settings of the samplers: for each, arguments of one kind and the values that are rejected
BAD_SETTINGS = [
    (["time_step"], ["pseudo_langevin", "full_batch_langevin", "hybrid_monte_carlo"], not_positive),
    (["momentum_retention"], ["pseudo_langevin", "balanced_langevin", "full_batch_langevin"],
     st.one_of(not_positive, st.floats(min_value=1.0))),
    (["batch_size"], ["pseudo_langevin", "balanced_langevin", "minibatch_hybrid_monte_carlo", "adam"],
     st.one_of(st.integers(max_value=0), st.integers(NUM + 1, 10**9), st.floats(), st.sampled_from(["4", True]))),
    (["refresh_every", "max_refresh_interval", "variance_block", "variance_max_batches"],
     ["pseudo_langevin", "naive_pseudo_langevin", "balanced_langevin"], not_a_count),
    (["warmup_refreshes"], ["pseudo_langevin"], not_a_count),
    (["friction_every", "friction_batch_size", "num_warmup"], ["balanced_langevin"], not_a_count),
    (["variance_examples"], ["pseudo_langevin"], st.one_of(not_a_count, st.just(1))),
    (["mass_floor", "max_regularizer_frequency"], ["pseudo_langevin", "balanced_langevin"], not_a_share),
    (["reset_probability"], ["pseudo_langevin"], not_a_share),
    (["refresh_tolerance", "variance_tolerance"], ["pseudo_langevin"], not_positive),
    (["temperature_ratio"], ["pseudo_langevin", "balanced_langevin"], not_positive),
    (["max_temperature_ratio"], ["pseudo_langevin", "balanced_langevin"], not_positive.filter(lambda v: v is not None)),
    (["masses_per", "variance_from"], ["pseudo_langevin"], st.text()),
    (["mass"], ["naive_pseudo_langevin"], not_positive),
    (["masses"], ["full_batch_langevin", "hybrid_monte_carlo"],
     st.one_of(st.floats(max_value=0.0), not_finite, st.sampled_from(["0.1", True, {}, {"a": np.zeros(2)}]))),
    (["num_leapfrog_steps"], ["hybrid_monte_carlo"], st.one_of(not_a_count, st.sampled_from([0, None]))),
    (["warmup_moves"], ["hybrid_monte_carlo"], st.one_of(not_a_count, st.none())),
    (["target_acceptance"], ["hybrid_monte_carlo"], st.one_of(not_a_share, st.sampled_from([0.0, 1.0]))),
    (["chunk_size"], ["hybrid_monte_carlo", "full_batch_langevin"], st.one_of(not_a_count, st.just(0))),
    (["learning_rate", "decay_epochs"], ["adam"], not_positive),
    (["decay_factor"], ["adam"], not_a_share),
    (["validate_every", "patience"], ["adam"], st.one_of(not_a_count, st.just(0))),
    (["validation"], ["adam"], st.sampled_from([3, (np.ones((3, 40)), np.ones(3))])),
]  # fmt: skip


@pytest.mark.parametrize(("names", "samplers", "values"), BAD_SETTINGS, ids=[case[0][0] for case in BAD_SETTINGS])
@given(data=st.data())
@quick
def test_bad_settings_are_rejected(names, samplers, values, data):
    name, sampler, value = (
        data.draw(strategy) for strategy in (st.sampled_from(names), st.sampled_from(samplers), values)
    )
    check_rejected(lambda: make(sampler, **{name: value}), name)


@given(st.floats(0.01, 0.999), st.floats(1.0001, 100.0), st.sampled_from(["", "max_"]))
@quick
def test_the_temperature_ratio_of_pseudo_langevin_is_below_its_limit(c1, factor, prefix):
    limit, name = 1 / (1 + c1**2), prefix + "temperature_ratio"
    call = lambda: make("pseudo_langevin", momentum_retention=c1, **{name: factor * limit})  # noqa: E731
    check_rejected(call, name, f"{factor * limit:g}", remedy="lower it")
    check_rejected(call, name, f"{limit:.4g}")


def test_settings_that_contradict_each_other_are_rejected():
    check_rejected(
        lambda: make("pseudo_langevin", temperature_ratio=0.3, max_temperature_ratio=0.1),
        "max_temperature_ratio", "0.1", remedy="raise the first",
    )  # fmt: skip
    check_rejected(lambda: make("pseudo_langevin", mass_floor=0.0), "mass_floor", remedy="weight_decay")
    for name in ("patience", "validate_every"):
        check_rejected(lambda n=name: make("adam", validation=None, **{n: 3}), f"{name} = 3 needs a validation set")


@pytest.mark.parametrize("masses", [{"a": 1.0}, [1.0], np.ones(3), jax.tree.map(lambda w: w[None] ** 2 + 1, WEIGHTS)])
@pytest.mark.parametrize("name", ["full_batch_langevin", "hybrid_monte_carlo"])
def test_masses_that_do_not_fit_the_weights_are_rejected(name, masses):
    check_rejected(lambda: run(make(name, masses=masses)), "masses", remedy="shaped like the weights")


# Arguments of sample


@given(not_positive)
@quick
def test_temperatures_are_positive_numbers(value):
    check_rejected(lambda: run(temperatures=[1e-3, value]), "temperatures", repr(value))


@pytest.mark.parametrize("value", [None, [], "15", [1e-50], [1e39], [0.1, 0.2, 0.1]])
def test_temperatures_are_different_and_within_single_precision(value):
    check_rejected(lambda: run(temperatures=value), "temperatures")


def test_adam_has_no_temperature():
    check_rejected(lambda: run(make("adam"), temperatures=[0.1]), "temperatures", remedy="leave it out")


@given(
    st.sampled_from(
        ["num_steps", "num_chains", "record_every", "chunk_size", "keep_weights_every", "observe_examples"]
    ),
    st.one_of(not_a_count, st.just(0)),
)
@quick
def test_counts_are_positive_integers(name, value):
    check_rejected(lambda: run(**{name: value}), name, repr(value), remedy="integer")


def test_numbers_beyond_the_run_or_the_data_are_rejected():
    check_rejected(lambda: run(record_every=11), "record_every", "11", remedy="record at least once")
    check_rejected(lambda: run(num_steps=2**31), "num_steps", remedy="32 bits")
    check_rejected(lambda: run(observe_examples=NUM + 1), "observe_examples", str(NUM + 1))


@pytest.mark.parametrize("value", [None, "0", 0.5, True, 2**64, [0], np.zeros(2), THREE_KEYS])
def test_a_key_is_a_seed_or_one_key(value):
    check_rejected(lambda: run(key=value), "key", remedy="jax.random.key(0)")


@pytest.mark.parametrize(
    ("observables", "message"),
    [
        ({"a b": jnp.sum}, "'a b'; use a Python identifier"),
        ({3: jnp.sum}, "3; use a Python identifier"),
        ({"loss": jnp.sum}, "'loss', which the trace uses already"),
        ({"chain": jnp.sum}, "'chain', which the trace uses already"),
        ({"margin": 3.0}, "3.0 is not callable"),
    ],
)
def test_names_of_own_observables_are_checked(observables, message):
    check_rejected(lambda: run(observables=observables), "observables", message)


# Data


@given(not_finite, st.integers(0, NUM - 1), st.sampled_from(["inputs", "targets"]), st.sampled_from(["f4", "f8"]))
@quick
def test_data_are_finite(value, index, name, dtype):
    arrays = {"inputs": np.ones((NUM, 2), dtype), "targets": np.ones(NUM, dtype)}
    arrays[name][index] = value
    check_rejected(lambda: pl.Dataset(**arrays), name, "NaN or infinity", remedy="remove or repair")


@pytest.mark.parametrize("bad", [np.ones((0, 3)), np.ones((4, 0)), [], None, {}, 3.0, np.array(["a", "b"])])
def test_data_are_arrays_with_examples(bad):
    check_rejected(lambda: pl.Dataset(bad, np.ones(4)), "inputs")
    check_rejected(lambda: pl.Dataset(np.ones(4), bad), "targets")


def test_lengths_and_precision_of_data_are_checked():
    check_rejected(lambda: pl.Dataset(np.ones((5, 2)), np.ones(6)), "inputs has 5 examples and targets has 6")
    check_rejected(lambda: pl.Dataset({"a": np.ones(3), "b": np.ones(4)}, np.ones(3)), "inputs", "[3, 4]")
    check_rejected(lambda: pl.Dataset(np.full((4, 2), 1e300), np.ones(4)), "inputs", "NaN or infinity")


@pytest.mark.parametrize("label", [-1, 2, 1000])
def test_labels_are_in_range(label):
    dataset = pl.Dataset(DATASET.inputs, np.append(np.arange(NUM - 1) % 2, label))
    sampler = pl.pseudo_langevin(POTENTIAL, dataset, batch_size=4)
    check_rejected(lambda: run(sampler), "targets", str(label), remedy="0 … 1")
    check_rejected(lambda: run(test=dataset), "targets", str(label))
    check_rejected(lambda: run(make("adam", validation=dataset), temperatures=None), "validation: targets", str(label))


@pytest.mark.parametrize("dtype", [np.float32, np.bool_])
def test_labels_are_integers(dtype):
    dataset = pl.Dataset(DATASET.inputs, (np.arange(NUM) % 2).astype(dtype))
    sampler = pl.pseudo_langevin(POTENTIAL, dataset, batch_size=4)
    check_rejected(lambda: run(sampler), "targets", remedy="astype('int32')")


def test_a_validation_set_has_examples_like_those_of_the_training_set():
    other = pl.Dataset(np.ones((5, 4)), np.ones(5))
    check_rejected(lambda: make("adam", validation=other), "validation holds examples of shapes")


# Weights and losses


@pytest.mark.parametrize("dtype", ["int8", "bool", "complex64", "float16", "bfloat16"])
def test_weights_are_in_single_or_double_precision(dtype):
    weights = WEIGHTS | {"layer2": jax.tree.map(lambda w: jnp.asarray(w).astype(dtype), WEIGHTS["layer2"])}
    check_rejected(lambda: run(weights=weights), r"weights\['layer2'\]", dtype, remedy="astype('float32')")


@pytest.mark.parametrize("empty", [{}, [], None, (), {"a": {}}, {"a": np.ones((0, 3), np.float32)}])
def test_weights_are_not_empty(empty):
    check_rejected(lambda: run(weights=empty), "weights", "empty", remedy="network.init")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_are_finite_arrays_that_fit_the_network(value):
    bias = np.append(WEIGHTS["layer1"]["bias"][:-1], np.float32(value))
    weights = WEIGHTS | {"layer1": WEIGHTS["layer1"] | {"bias": bias}}
    check_rejected(lambda: run(weights=weights), r"weights\['layer1'\]\['bias'\]", "NaN or infinity")
    check_rejected(lambda: run(weights={"a": 1.0, "b": np.ones(3, np.float32)}), "weights", remedy="jnp.asarray")
    check_rejected(lambda: run(weights={"layer1": WEIGHTS["layer1"]}), "per_example_loss", "fails")


def raises(weights, batch):
    raise KeyError("missing layer")


LOSSES = {
    "a scalar": (lambda w, batch: jnp.mean(batch[0] @ w), "remove the mean"),
    "a column": (lambda w, batch: (batch[0] @ w)[:, None], "must return"),
    "one number per input": (lambda w, batch: (batch[0] * w).sum(axis=0), "must return"),
    "nothing": (lambda w, batch: None, "must return"),
    "a pair": (lambda w, batch: (batch[0] @ w, batch[0] @ w), "must return"),
    "integers": (lambda w, batch: (batch[0] @ w).astype(jnp.int32), "must return"),
    "an error": (raises, "missing layer"),
}


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("width", [3, 5])
def test_a_loss_returns_one_number_per_example(kind, width):
    """The numbers of inputs, 3 and 5, are also those of the examples that the check uses."""
    dataset = pl.Dataset(np.ones((NUM, width), np.float32), np.ones(NUM))
    sampler = pl.pseudo_langevin(pl.Potential(LOSSES[kind][0]), dataset, batch_size=4)
    check_rejected(lambda: run(sampler, np.ones(width, np.float32)), "per_example_loss", LOSSES[kind][1])


@given(st.one_of(st.floats(max_value=-1e-30), not_finite, not_a_number.filter(lambda v: v != {})))
@quick
def test_weight_decay_is_not_negative(value):
    check_rejected(lambda: pl.Potential(lambda w, b: b[0], weight_decay=value), "weight_decay", repr(value))


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: pl.Potential("loss"), "per_example_loss"),
        (lambda: pl.models.feedforward((3,)), "sizes"),
        (lambda: pl.models.feedforward((3, 0)), "sizes"),
        (lambda: pl.models.feedforward((3, 2.5)), "sizes"),
        (lambda: pl.models.feedforward((3, 2), output_activation="tanh"), "output_activation"),
        (lambda: pl.tasks.spin_vectors(THREE_KEYS[0], num_train=0, num_test=5), "num_train"),
        (lambda: pl.tasks.spin_vectors(THREE_KEYS[0], num_train=5, num_test=5, flip_probability=0.51), "flip_prob"),
    ],
)
def test_bad_arguments_of_losses_networks_and_tasks_are_rejected(call, argument):
    check_rejected(call, argument)
