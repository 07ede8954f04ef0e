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

quick = settings(max_examples=15, deadline=None, derandomize=True)
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
    "adam": {"batch_size": 4},
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


# Settings of the samplers: for each, arguments of one kind and the values that are rejected
BAD_SETTINGS = [
    (["time_step"], ["pseudo_langevin", "full_batch_langevin", "hybrid_monte_carlo"], not_positive),
    (["momentum_retention"], ["pseudo_langevin", "balanced_langevin", "full_batch_langevin"],
     st.one_of(not_positive, st.floats(min_value=1.0))),
    (["batch_size"], ["pseudo_langevin", "balanced_langevin", "minibatch_hybrid_monte_carlo", "adam"],
     st.one_of(st.integers(max_value=0), st.integers(NUM + 1, 10**9), st.floats(), st.sampled_from(["4", True]))),
    (["refresh_every", "max_refresh_interval"],
     ["pseudo_langevin", "naive_pseudo_langevin", "balanced_langevin"], not_a_count),
    (["warmup_refreshes", "variance_examples"], ["pseudo_langevin"], not_a_count),
    (["friction_batch_size", "num_warmup"], ["balanced_langevin"], not_a_count),
    (["mass_floor", "reset_probability"], ["pseudo_langevin"], not_a_share),
    (["refresh_tolerance"], ["pseudo_langevin"], not_positive),
    (["temperature_ratio", "max_temperature_ratio"], ["pseudo_langevin", "balanced_langevin"],
     not_positive.filter(lambda v: v is not None)),
    (["masses_per", "variance_from"], ["pseudo_langevin"], st.text()),
    (["mass"], ["naive_pseudo_langevin"], not_positive),
    (["masses"], ["full_batch_langevin", "hybrid_monte_carlo"],
     st.one_of(st.floats(max_value=0.0), not_finite, st.sampled_from(["0.1", True, {}, {"a": np.zeros(2)}]))),
    (["warmup_moves"], ["hybrid_monte_carlo"], st.one_of(not_a_count, st.none())),
    (["chunk_size", "num_leapfrog_steps"], ["hybrid_monte_carlo"], st.one_of(not_a_count, st.just(0))),
    (["learning_rate", "decay_epochs"], ["adam"], not_positive),
    (["decay_factor"], ["adam"], not_a_share),
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


# Each row: a call, the argument in its message, and the value or remedy in its message
EMPTY: list[Any] = [{}, None, {"a": np.ones((0, 3), np.float32)}]
NO_DATA: list[Any] = [np.ones((0, 3)), [], None, 3.0, np.array(["a", "b"])]
FRACTIONS: Any = (3, 2.5)
NO_LOSS: Any = "loss"
HEAVY = jax.tree.map(lambda w: w[None] ** 2 + 1, WEIGHTS)
LABELS = np.arange(NUM) % 2
ONES = np.ones(4, np.float32)


def labelled(labels: Any) -> pl.Dataset:
    return pl.Dataset(DATASET.inputs, labels)


def with_loss(loss: Any, width: int) -> pl.Sampler:
    dataset = pl.Dataset(np.ones((NUM, width), np.float32), np.ones(NUM))
    return pl.pseudo_langevin(pl.Potential(loss), dataset, batch_size=4)


def with_layer(**changes: Any) -> dict:
    return WEIGHTS | {"layer1": WEIGHTS["layer1"] | changes}


def failing_loss(weights, batch):
    raise KeyError("missing layer")


LOSSES = [
    (lambda w, batch: jnp.mean(batch[0] @ w), "remove the mean"),
    (lambda w, batch: (batch[0] @ w)[:, None], "must return"),
    (lambda w, batch: (batch[0] * w).sum(axis=0), "must return"),
    (lambda w, batch: None, "must return"),
    (lambda w, batch: (batch[0] @ w, batch[0] @ w), "must return"),
    (lambda w, batch: (batch[0] @ w).astype(jnp.int32), "must return"),
    (failing_loss, "missing layer"),
]
CALLS = [
    # settings that contradict each other or do not fit the weights
    (lambda: make("pseudo_langevin", temperature_ratio=0.3, max_temperature_ratio=0.1), "max_temp", "raise the first"),
    *(
        (lambda m=masses: run(make("full_batch_langevin", masses=m)), "masses", "shaped like the weights")
        for masses in ({"a": 1.0}, np.ones(3), HEAVY)
    ),
    # arguments of sample
    *(
        (lambda t=value: run(temperatures=t), "temperatures", "")
        for value in (None, [], "15", 0, -1.0, np.nan, [1e-50], [1e39], [0.1, 0.2, 0.1])
    ),
    (lambda: run(make("adam"), temperatures=[0.1]), "temperatures", "leave it out"),
    (lambda: run(record_every=11), "record_every = 11", "record at least once"),
    (lambda: run(num_steps=2**31), "num_steps", "32 bits"),
    (lambda: run(observe_examples=NUM + 1), "observe_examples = 41", "between 1 and 40"),
    *(
        (lambda k=key: run(key=k), "key", "jax.random.key(0)")
        for key in (None, "0", 0.5, True, 2**64, [0], np.zeros(2), THREE_KEYS)
    ),
    (lambda: run(observables={"a b": jnp.sum}), r"observables\['a b'\]", "use a Python identifier"),
    (lambda: run(observables={"loss": jnp.sum}), r"observables\['loss'\]", "use a Python identifier"),
    (lambda: run(observables={"margin": 3.0}), r"observables\['margin'\] = 3.0", "a function f(weights, dataset)"),
    # data
    *(
        (lambda b=bad, n=name: pl.Dataset(**{"inputs": ONES, "targets": ONES} | {n: b}), name, "")
        for bad in NO_DATA
        for name in ("inputs", "targets")
    ),
    (lambda: pl.Dataset(np.ones((5, 2)), ONES), "inputs has 5 examples and targets has 4", "the same length"),
    (lambda: pl.Dataset({"a": np.ones(3), "b": np.ones(4)}, np.ones(3)), "inputs", "[(3,), (4,)]"),
    (lambda: pl.Dataset(np.full((4, 2), 1e300), ONES), "inputs", "NaN or infinity"),
    (lambda: pl.Dataset(ONES, ONES * np.nan), "targets", "NaN or infinity"),
    (lambda: run(pl.naive_pseudo_langevin(POTENTIAL, labelled(2 * LABELS), time_step=0.1)), "targets", "label 2"),
    (lambda: run(test=labelled(LABELS - 1)), "targets holds the label -1", "0 … 1"),
    (lambda: run(test=labelled(LABELS.astype(np.float32))), "targets", "astype('int32')"),
    # weights, losses, networks and tasks
    *(
        (lambda d=dtype: run(weights=with_layer(bias=jnp.ones(4, d))), r"weights\['layer1'\]", "astype('float32')")
        for dtype in ("int8", "bfloat16")
    ),
    *((lambda w=empty: run(weights=w), "weights is an empty pytree", "network.init") for empty in EMPTY),
    (lambda: run(weights=with_layer(bias=ONES * np.nan)), r"weights\['layer1'\]\['bias'\]", "NaN or infinity"),
    (lambda: run(weights={"a": "1.0", "b": ONES}), "weights", "jnp.asarray"),
    (lambda: run(weights={"layer1": WEIGHTS["layer1"]}), "per_example_loss", "fails"),
    *(  # the numbers of inputs, 3 and 5, are also those of the examples that the check uses
        (lambda f=loss, n=width: run(with_loss(f, n), np.ones(n, np.float32)), "per_example_loss", message)
        for loss, message in LOSSES
        for width in (3, 5)
    ),
    (lambda: pl.Potential(NO_LOSS), "per_example_loss", "not callable"),
    (lambda: pl.models.feedforward(FRACTIONS), "sizes", "positive integers"),
    (lambda: pl.models.feedforward((3, 2), output_activation="tanh"), "output_activation", "'relu'"),
    (lambda: pl.models.feedforward((3, 2), hidden_activation="sine"), "hidden_activation = 'sine'", "choose one of"),
    (lambda: pl.tasks.spin_vectors(THREE_KEYS[0], num_train=5, num_test=5, flip_probability=0.6), "flip_prob", "0.6"),
]


@pytest.mark.parametrize("row", range(len(CALLS)))
def test_bad_calls_are_rejected(row):
    call, argument, text = CALLS[row]
    check_rejected(call, argument, text)


COUNTS = ["num_steps", "num_chains", "record_every", "chunk_size", "keep_weights_every", "observe_examples"]


@given(st.sampled_from(COUNTS), st.one_of(not_a_count, st.just(0)))
@quick
def test_counts_are_positive_integers(name, value):
    check_rejected(lambda: run(**{name: value}), name, repr(value), remedy="integer")


@given(st.one_of(st.floats(max_value=-1e-30), not_finite, not_a_number.filter(lambda v: v != {})))
@quick
def test_weight_decay_is_not_negative(value):
    check_rejected(lambda: pl.Potential(lambda w, b: b[0], weight_decay=value), "weight_decay", repr(value))
