"""Warnings name the chain, the cause and the remedy, once; progress is one line on a terminal, and rare elsewhere."""

import re
import sys
import warnings
from typing import Any

import jax
import numpy as np
import pytest

import pseudolangevin as pl
from pseudolangevin import chains
from pseudolangevin.observables import Reporter

pytestmark = pytest.mark.usefixtures("_no_directions")

HEALTHY = np.zeros(4, np.int32)


class FourChains:
    size = 4

    def chain_name(self, index: int) -> str:
        return f"chain {index % 2} at T = {(1e-5, 3e-5)[index // 2]:g}"


LAYOUT: Any = FourChains()


def record(status=HEALTHY, dead=None):
    result = {"status": np.asarray(status), "loss": np.ones(4), "layer_virial_temperature": np.ones((4, 3))}
    return result if dead is None else result | {"dead_class": np.asarray(dead)}


def reported(*records: dict, last: int = -1) -> list[str]:
    """Return the warnings of these records, the last of which may be the last of the run."""
    reporter = Reporter(LAYOUT)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for index, one in enumerate(records):
            reporter.report(one, step=20 + 10 * index, last=index == last)
    assert all(issubclass(warning.category, UserWarning) for warning in caught)
    return [f"{warning.category.__name__}: {warning.message}" for warning in caught]


def dead(**chains_and_classes: list[int]) -> dict:
    """Return a record in which these classes of chain0, chain1, … are dead."""
    flags = np.zeros((4, 10), bool)
    for chain, classes in chains_and_classes.items():
        flags[int(chain[-1]), classes] = True
    return record(dead=flags)


def test_a_stopped_chain_is_named_with_cause_and_remedy_and_only_once():
    stopped = record([0, 0, 0, pl.Status.NON_FINITE])
    (found,) = reported(stopped, stopped)
    assert re.match(r"ChainStopped.*: chain 1 at T = 3e-05 stopped by step 20: .*non-finite.*Lower", found)
    assert len(reported(record([1, 2, 1, 2]))) == 4
    assert all(status.explanation for status in pl.Status)


def test_numbers_of_stopped_chains_become_nan():
    with pytest.warns(pl.ChainStoppedWarning):
        masked = Reporter(LAYOUT).report(record([0, 1, 0, 0]), step=20, last=False)
    np.testing.assert_array_equal(np.isnan(masked["loss"]), [False, True, False, False])
    assert np.isnan(masked["layer_virial_temperature"][1]).all()
    assert np.isfinite(masked["layer_virial_temperature"][[0, 2, 3]]).all()
    np.testing.assert_array_equal(masked["status"], [0, 1, 0, 0])


def test_a_class_that_stays_dead_is_named_with_its_chain_once():
    first, later = dead(chain2=[3]), dead(chain0=[3], chain2=[3, 5, 6])
    assert not reported(first)  # it may be a moment's weakness
    assert not reported(dead(chain0=[5]), dead(), dead(chain0=[5]))
    assert len(reported(first, last=0)) == 1  # at the end one record is enough
    found = reported(first, first, later, later, later)
    assert [line.split(" is dead")[0].removeprefix("DeadClassWarning: ") for line in found] == [
        "chain 0 at T = 3e-05: class 3",
        "chain 0 at T = 1e-05: class 3",
        "chain 0 at T = 3e-05: class 5, 6",
    ]
    assert found[0].endswith('output_activation="identity"')


def test_clipped_noise_is_reported_once_by_the_worst_chain_that_runs():
    clipped = record([0, 0, 0, pl.Status.NON_FINITE]) | {"clipped_share": np.array([0.0, 0.25, 0.5, 0.9])}
    _, found = reported(record() | {"clipped_share": np.zeros(4)}, clipped, clipped)
    why = "chain 0 at T = 3e-05: at step 30 the mini-batch noise of 50.0% of the weights"
    assert found.startswith(f"ClippedNoiseWarning: {why}")


def test_a_network_with_a_dead_class_is_reported_by_a_run(small_task, capfd):
    """ReLU on the logits, and a bias so low that class 2 never has a score."""
    network = pl.models.feedforward((20, 10, 10, 4), output_activation="relu")
    weights = network.init(jax.random.key(1))
    weights["layer3"]["bias"] = weights["layer3"]["bias"] + np.array([3.0, 3.0, -50.0, 3.0], np.float32)
    sampler = pl.full_batch_langevin(pl.classification(network.apply), small_task.train, time_step=0.01)
    with pytest.warns(pl.DeadClassWarning, match="chain 0 at T = 0.001: class 2 is dead"):
        result = pl.sample(sampler, weights, temperatures=[1e-3], num_steps=3, record_every=1, key=0)
    assert capfd.readouterr() == ("", "")  # no progress in a pipe
    np.testing.assert_array_equal(result.trace.dead_class.isel(temperature=0, chain=0, draw=-1), [0, 0, 1, 0])
    assert "class" in result.trace.dead_class.dims


def drawn(monkeypatch, capsys, *, terminal: bool, show: bool | None, cost: float = 0.001) -> str:
    """Return what is printed of 70 records, each ten steps and 0.1 s, with a long compilation at two of them."""
    now = 0.0
    monkeypatch.setattr(chains.time, "monotonic", lambda: now)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with chains.progress_bar(1000, 3, show=show) as update:
        for index in range(1, 71):
            now += {1: 30.1, 60: 70.1}.get(index, 0.1)
            update(10 * index, np.array([np.nan, np.nan if index == 1 else 0.123456]), cost)
    return capsys.readouterr().err


def test_a_terminal_shows_one_line_with_the_speed_without_compilation(monkeypatch, capsys):
    for terminal, show in ((True, None), (False, True)):
        lines = drawn(monkeypatch, capsys, terminal=terminal, show=show).split("\r")[1:]
        assert len(lines) == 70
        assert lines[-1].strip() == "step 700 of 1000, 3 chains, 100 steps/s, 3 s left, loss 0.1235"
        assert "nan" not in "".join(lines)


def test_without_a_terminal_a_line_is_printed_now_and_then(monkeypatch, capsys):
    assert drawn(monkeypatch, capsys, terminal=True, show=False, cost=0.05) == ""
    first, second = drawn(monkeypatch, capsys, terminal=False, show=None).splitlines()
    assert first.startswith("step 10 of 1000, 3 chains")
    assert second.startswith("step 600 of 1000, 3 chains, 100 steps/s, 4 s left, loss 0.1235")


def test_the_last_line_is_the_cost_of_records_if_it_exceeds_5_percent(monkeypatch, capsys):
    for terminal in (True, False):
        last = drawn(monkeypatch, capsys, terminal=terminal, show=None, cost=0.05).splitlines()[-1]
        assert last == "records took 50% of the time, 0.05 s each; with record_every = 190 it would be 5%"
