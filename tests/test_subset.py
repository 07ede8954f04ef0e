"""Sampling some tensors with the rest frozen."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pseudolangevin.patterns import chosen

import pseudolangevin as pl
from pseudolangevin import trees

WEIGHTS = {
    "embedding": {"table": jnp.ones((3, 2))},
    "layer1": {"kernel": jnp.full((2, 2), 2.0), "bias": jnp.zeros(2)},
    "layer2": {"kernel": jnp.full((2, 1), 3.0), "bias": jnp.zeros(1)},
}


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        ("layer2.*", ["layer2.bias", "layer2.kernel"]),
        ("!embedding*", ["layer1.bias", "layer1.kernel", "layer2.bias", "layer2.kernel"]),
        (["layer*", "!*.bias"], ["layer1.kernel", "layer2.kernel"]),
        (["!layer*", "layer2.bias"], ["embedding.table", "layer2.bias"]),
        (jax.tree.map(lambda w: w.shape == (2, 1), WEIGHTS), ["layer2.kernel"]),
    ],
)
def test_patterns_and_masks_choose_by_name(selection, names):
    assert [name for name, taken in trees.named_leaves(chosen(WEIGHTS, selection)) if taken] == names


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ("layer3.*", "matches no tensor; the names are embedding.table, layer1.bias"),
        (["layer1.*", "!bias"], "'bias' matches no tensor"),
        (["*", "!*"], "chooses no tensor"),
        ([], "neither a pattern nor a mask"),
        ({"embedding": True}, "neither a pattern nor a mask"),
        (jax.tree.map(lambda w: w > 0, WEIGHTS), "one True or False for every tensor"),
    ],
)
def test_bad_selections_are_refused(selection, message):
    with pytest.raises(ValueError, match=message):
        pl.subset(pl.Potential(lambda w, batch: batch[0]), WEIGHTS, selection)


def test_the_energy_is_that_of_the_whole_network_but_for_a_constant(small_task):
    """The same loss, and the same λ/N with N the whole network's: only the frozen tensors' |w|² is left out."""
    part = pl.subset(small_task.potential, small_task.weights, "layer3.*")
    moved = jax.tree.map(lambda w: w + 0.3, part.weights)
    whole = part.merge(moved)
    np.testing.assert_array_equal(whole["layer1"]["kernel"], small_task.weights["layer1"]["kernel"])
    np.testing.assert_array_equal(whole["layer3"]["kernel"], small_task.weights["layer3"]["kernel"] + 0.3)
    batch = small_task.train.batch
    frozen = 5.0 / (2 * 364) * float(trees.squared_norm(part.frozen))
    assert float(part.potential.energy(moved, batch)) + frozen == pytest.approx(
        float(small_task.potential.energy(whole, batch)), rel=1e-6
    )
    full = jax.grad(small_task.potential.energy)(whole, batch)["layer3"]
    restricted = jax.grad(part.potential.energy)(moved, batch)["layer3"]
    for a, b in zip(jax.tree.leaves(full), jax.tree.leaves(restricted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8)
    with pytest.raises(ValueError, match="not the whole network"):
        part.merge(whole)


def test_the_decay_of_groups_follows_the_sampled_tensors():
    potential = pl.Potential(lambda w, batch: batch[0], weight_decay={"embedding.*": 2.0, "*.bias": 1.0, "*": 4.0})
    part = pl.subset(potential, WEIGHTS, "layer2.*")
    stiffness = part.potential.stiffness(part.weights)
    assert stiffness["layer2"] == {"kernel": 4.0 / 15, "bias": 1.0 / 15}


def test_a_subset_is_sampled_and_certified_like_any_network(small_task):
    """U restricted to the last layer is convex: pL agrees with hMC on it, and nothing else moves."""
    part = pl.subset(small_task.potential, small_task.weights, "layer3.*")
    train = small_task.train.head(300)
    common: dict[str, Any] = {"temperatures": [1e-2], "num_chains": 4, "key": 0}
    result = pl.sample(
        pl.pseudo_langevin(part.potential, train, batch_size=100, variance_max_batches=100, warmup_refreshes=0),
        part.weights,
        num_steps=1_500,
        record_every=15,
        **common,
    )
    exact = pl.sample(
        pl.hybrid_monte_carlo(part.potential, train, num_leapfrog_steps=4, time_step=2.0),
        part.weights,
        num_steps=300,
        record_every=3,
        **common,
    )
    assert result.num_weights == pl.certificate(result).num_weights == 44
    assert result.weights["layer1"] == {"kernel": None, "bias": None}
    assert list(result.trace.layer.values) == ["bias", "kernel"]
    sampled, reference = (r.trace.isel(draw=slice(20, None)) for r in (result, exact))
    for name in ("loss", "squared_norm", "virial_temperature"):
        by_chain = np.stack([t[name].mean("draw").values[0] for t in (sampled, reference)])
        # The bias of pL at 𝒯 = 0.01 in so small a network is a few per cent.
        error = by_chain.std(axis=1, ddof=1) / 2
        difference = by_chain[0].mean() - by_chain[1].mean()
        assert abs(difference) < 3 * np.hypot(*error) + 0.03 * by_chain[1].mean()
    assert float(reference.acceptance.mean()) > 0.5
