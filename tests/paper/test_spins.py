"""Task, starts and stored weights of the spin figures."""

import math

import jax
import numpy as np
import pytest

from pseudolangevin.diagnostics.averages import Average
from pseudolangevin.paper import speeds, spins


def test_the_ideal_loss_is_that_of_the_classifier_with_the_reference_vectors():
    task = spins.spin_task(3, num_train=4_000)
    assert spins.ideal_loss(task) == pytest.approx(0.324, abs=0.015)
    # Without flips of the sign of the exponent the scores would be those of another flip probability, and worse.
    assert spins.ideal_loss(task, 0.45) > spins.ideal_loss(task)
    assert spins.ideal_loss(task, 0.25) > spins.ideal_loss(task)


def test_weights_are_stored_once(tmp_path):
    task, path = spins.spin_task(3, num_train=20), tmp_path / "weights.npz"
    weights = jax.tree.map(lambda w: np.stack([w, w + 1])[None], task.network.init(jax.random.key(0)))
    spins.stored(path, task, lambda: weights)
    again = spins.stored(path, task, lambda: pytest.fail("the file is there"))
    jax.tree.map(np.testing.assert_array_equal, again, weights)


def speed(seconds, displacement, error=0.0):
    coefficient = Average(displacement[0] / seconds[0], error / seconds[0], math.nan)
    return {"curve": {"seconds": seconds, "displacement": [displacement]}, "coefficient": coefficient}


def test_ratios_are_taken_at_the_shortest_or_at_the_same_interval():
    fast, slow = speed([1.0, 2.0, 4.0], [3.0, 4.0, 4.0], 0.3), speed([2.0, 4.0], [1.0, 2.0], 0.2)
    found = speeds.ratio(fast, slow)
    assert found.mean == pytest.approx(6.0)
    assert found.standard_error == pytest.approx(6.0 * np.hypot(0.1, 0.2))
    assert speeds.ratio(fast, slow, same_interval=True).mean == pytest.approx(4.0)


@pytest.mark.parametrize("other", [speed([1.0], [float("nan")]), speed([1.0], [0.0])])
def test_a_ratio_to_a_chain_that_failed_or_did_not_move_is_unknown(other):
    assert np.isnan(speeds.ratio(speed([1.0], [1.0]), other).mean)
