"""Task, starts and stored weights of the spin figures."""

import jax
import numpy as np
import pytest

from pseudolangevin import _trees as trees
from pseudolangevin.diagnostics.diffusion import Diffusion
from pseudolangevin.paper import speeds, spins

WEIGHT_DECAY = 10.0611


@pytest.mark.parametrize(("hidden_units", "num_weights"), [(50, 11_160), (500, 101_610), (5_000, 1_006_110)])
def test_sizes_are_the_published_ones(hidden_units, num_weights):
    assert spins.spin_task(hidden_units, num_train=100).num_weights == num_weights


def test_the_ideal_loss_is_that_of_the_classifier_with_the_reference_vectors():
    task = spins.spin_task(3, num_train=4_000)
    assert spins.ideal_loss(task) == pytest.approx(0.324, abs=0.015)
    # Without flips of the sign of the exponent the scores would be those of another flip probability, and worse.
    assert spins.ideal_loss(task, 0.45) > spins.ideal_loss(task)
    assert spins.ideal_loss(task, 0.25) > spins.ideal_loss(task)


def test_weights_are_stored_once_and_checked(tmp_path):
    task, path = spins.spin_task(3, num_train=20), tmp_path / "weights.npz"
    weights = jax.tree.map(lambda w: np.stack([w, w + 1])[None], task.network.init(jax.random.key(0)))
    spins.stored(path, task, lambda: weights)
    again = spins.stored(path, task, lambda: pytest.fail("the file is there"))
    jax.tree.map(np.testing.assert_array_equal, again, weights)
    with pytest.raises(ValueError, match="another network"):
        spins.stored(path, spins.spin_task(4, num_train=20), lambda: weights)


def test_a_start_from_the_prior_has_its_norm_and_undecided_scores():
    task = spins.spin_task(20, num_train=600)
    weights = spins.prior_start(task, 1e-3, scores=0.5)
    last = trees.num_weights(weights["layer3"])
    rest = trees.squared_norm({name: layer for name, layer in weights.items() if name != "layer3"})
    num = task.num_weights
    assert rest == pytest.approx(num * 1e-3 / WEIGHT_DECAY * (num - last), rel=0.1)
    scores = np.asarray(task.network.apply(weights, task.train.inputs))
    assert scores.std() == pytest.approx(0.5, rel=0.2)
    assert ((scores > 0).mean(axis=0) >= 0.01).all()


def curve(seconds, displacement, error=0.0):
    seconds, displacement = np.array(seconds), np.array([displacement])
    return Diffusion(seconds * 100, seconds, displacement, np.full_like(displacement, error))


def test_ratios_are_taken_at_the_shortest_or_at_the_same_interval():
    fast, slow = curve([1.0, 2.0, 4.0], [3.0, 4.0, 4.0], 0.3), curve([2.0, 4.0], [1.0, 2.0], 0.2)
    found = speeds.ratio(fast, slow)
    assert found.mean == pytest.approx(6.0)
    assert found.standard_error == pytest.approx(6.0 * np.hypot(0.1, 0.2))
    assert speeds.ratio(fast, slow, same_interval=True).mean == pytest.approx(4.0)


@pytest.mark.parametrize("other", [None, curve([1.0], [0.0])])
def test_a_ratio_to_a_chain_that_failed_or_did_not_move_is_unknown(other):
    assert np.isnan(speeds.ratio(curve([1.0], [1.0]), other).mean)
