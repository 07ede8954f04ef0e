"""Warnings name the chain, the cause and the remedy, once."""

import warnings
from typing import Any

import jax
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin._progress import Reporter

HEALTHY = np.zeros(4, np.int32)


class FourChains:
    size = 4

    def chain_name(self, index: int) -> str:
        return f"chain {index % 2} at T = {(1e-5, 3e-5)[index // 2]:g}"


LAYOUT: Any = FourChains()


def record(status=HEALTHY, dead=None):
    result = {"status": np.asarray(status), "loss": np.ones(4), "layer_virial_temperature": np.ones((4, 3))}
    return result if dead is None else result | {"dead_class": np.asarray(dead)}


def test_a_stopped_chain_is_named_with_cause_and_remedy_and_only_once():
    reporter = Reporter(LAYOUT)
    status = [0, 0, 0, pl.Status.NON_FINITE]
    with pytest.warns(pl.ChainStoppedWarning, match=r"chain 1 at T = 3e-05 stopped by step 20: .*non-finite.*Lower"):
        reporter.report(record(status), step=20, last=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reporter.report(record(status), step=30, last=True)
    assert not reporter.all_stopped


def test_nothing_is_left_when_all_have_stopped():
    reporter = Reporter(LAYOUT)
    with pytest.warns(pl.ChainStoppedWarning) as caught:
        reporter.report(record([1, 2, 1, 2]), step=20, last=False)
    assert len(caught) == 4
    assert reporter.all_stopped


def test_every_status_explains_itself():
    assert all(status.explanation for status in pl.Status)


def test_numbers_of_stopped_chains_become_nan():
    reporter = Reporter(LAYOUT)
    masked = reporter.mask_stopped(record([0, 1, 0, 0]))
    np.testing.assert_array_equal(np.isnan(masked["loss"]), [False, True, False, False])
    assert np.isnan(masked["layer_virial_temperature"][1]).all()
    assert np.isfinite(masked["layer_virial_temperature"][[0, 2, 3]]).all()
    np.testing.assert_array_equal(masked["status"], [0, 1, 0, 0])


def test_a_class_that_stays_dead_is_named_with_its_chain_once():
    reporter = Reporter(LAYOUT)
    dead = np.zeros((4, 10), bool)
    dead[2, [3, 7]] = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reporter.report(record(dead=dead), step=20, last=False)  # it may be a moment's weakness
    with pytest.warns(pl.DeadClassWarning, match=r'chain 0 at T = 3e-05: class 3, 7 is dead.*"identity"') as caught:
        reporter.report(record(dead=dead), step=20, last=False)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reporter.report(record(dead=dead), step=30, last=True)


def test_every_class_that_dies_later_is_named_once():
    reporter = Reporter(LAYOUT)
    dead = np.zeros((4, 10), bool)
    dead[2, 3] = True
    later = dead.copy()
    later[2, [5, 6]] = later[0, 3] = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for now in (dead, dead, later, later, later):
            reporter.report(record(dead=now), step=20, last=False)
    named = [str(warning.message).split(" is dead")[0] for warning in caught]
    assert named == [
        "chain 0 at T = 3e-05: class 3",
        "chain 0 at T = 1e-05: class 3",
        "chain 0 at T = 3e-05: class 5, 6",
    ]


def test_clipped_noise_is_reported_once_by_the_worst_chain_that_runs():
    reporter = Reporter(LAYOUT)
    status = [0, 0, 0, pl.Status.NON_FINITE]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reporter.report(record() | {"clipped_share": np.zeros(4)}, step=10, last=False)
        for step in (20, 30):
            clipped = record(status) | {"clipped_share": np.array([0.0, 0.25, 0.5, 0.9])}
            reporter.report(clipped, step=step, last=False)
    _, warning = caught
    assert warning.category is pl.ClippedNoiseWarning
    assert "chain 0 at T = 3e-05: at step 20 the mini-batch noise of 50.0% of the weights" in str(warning.message)


def test_a_class_that_comes_back_is_not_reported():
    reporter = Reporter(LAYOUT)
    dead = np.zeros((4, 10), bool)
    dead[0, 5] = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reporter.report(record(dead=dead), step=20, last=False)
        reporter.report(record(dead=~dead & False), step=20, last=False)
        reporter.report(record(dead=dead), step=20, last=False)
    assert not caught


def test_at_the_end_one_record_is_enough():
    dead = np.zeros((4, 10), bool)
    dead[1, 0] = True
    with pytest.warns(pl.DeadClassWarning, match="chain 1 at T = 1e-05: class 0 is dead"):
        Reporter(LAYOUT).report(record(dead=dead), step=30, last=True)


def test_a_network_with_a_dead_class_is_reported_by_a_run(small_task):
    """ReLU on the logits, and a bias so low that class 2 never has a score."""
    network = pl.models.feedforward((20, 10, 10, 4), output_activation="relu")
    weights = network.init(jax.random.key(1))
    weights["layer3"]["bias"] = weights["layer3"]["bias"] + np.array([3.0, 3.0, -50.0, 3.0], np.float32)
    sampler = pl.full_batch_langevin(pl.classification(network.apply), small_task.train, time_step=0.01)
    with pytest.warns(pl.DeadClassWarning, match="chain 0 at T = 0.001: class 2 is dead"):
        result = pl.sample(sampler, weights, temperatures=[1e-3], num_steps=3, record_every=1, key=0)
    np.testing.assert_array_equal(result.trace.dead_class.isel(temperature=0, chain=0, draw=-1), [0, 0, 1, 0])
    assert "class" in result.trace.dead_class.dims
