"""Sampling some tensors with the others frozen: exp(−U/T) conditioned on the frozen ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from . import trees
from .patterns import Selection, chosen, first_match
from .potential import Potential
from .types import Array, Batch, PerExample, Weights


@dataclass(frozen=True, eq=False)
class Subset:
    """A potential over the sampled tensors alone, and the way back to the whole network."""

    potential: Potential
    """U as a function of the sampled tensors: the same loss, and the same λ/N with N the size of the whole network."""
    weights: Weights
    """The start: the same pytree, with None in place of every frozen tensor."""
    frozen: Weights
    """The rest: the same pytree, with None in place of every sampled tensor."""

    def merge(self, weights: Weights) -> Weights:
        """The whole network with these sampled tensors.

        Leading axes (temperature, chain, draw…) of the sampled tensors are kept; the frozen ones have none. With
        `jax.vmap(subset.merge)` they get them, too.
        """
        structure: Any = jax.tree.structure(self.weights)
        found: Any = jax.tree.structure(weights)
        if found != structure:
            raise ValueError(
                f"weights is a pytree {found}, the sampled subset is {structure}; pass what was "
                "sampled, not the whole network"
            )
        return jax.tree.map(lambda f, w: w if f is None else f, self.frozen, weights, is_leaf=lambda leaf: leaf is None)


def subset(potential: Potential, weights: Weights, selection: Selection) -> Subset:
    """Sample the chosen tensors, keep all others at their values in `weights`.

    The result's `potential` and `weights` go wherever a potential and weights go: samplers, observables and the
    certificate then count the sampled tensors alone.

    Args:
        potential: U of the whole network.
        weights: of the whole network, one chain's.
        selection: a pattern such as "layer3.*" (last layer only), "!embedding*" (all but embeddings), a list of them,
            or a mask: a pytree shaped like `weights` with True for the tensors to sample. See `patterns.chosen`.

    Example:
        >>> import jax.numpy as jnp
        >>> line = Potential(lambda w, batch: (w["slope"] * batch[0] + w["offset"] - batch[1]) ** 2)
        >>> part = subset(line, {"slope": jnp.ones(()), "offset": jnp.zeros(())}, "offset")
        >>> part.merge(part.weights)["slope"].item()
        1.0
    """
    trees.check_weights(weights)
    mask = chosen(weights, selection)
    if not any(jax.tree.leaves(mask)):
        raise ValueError(f"selection = {selection!r} chooses no tensor; there would be nothing to sample")
    sampled = jax.tree.map(lambda take, w: w if take else None, mask, weights)
    frozen = jax.tree.map(lambda take, w: None if take else w, mask, weights)
    part = Subset(potential, sampled, frozen)

    def on_whole(function: PerExample | Callable[[Weights, Any], Array]) -> Callable[[Weights, Any], Array]:
        return lambda tensors, batch: function(part.merge(tensors), batch)

    def check_data(tensors: Weights, batch: Batch) -> None:
        assert potential.check_data is not None
        potential.check_data(part.merge(tensors), batch)

    decay = potential.weight_decay
    restricted = replace(
        potential,
        per_example_loss=on_whole(potential.per_example_loss),
        per_example_error=None if potential.per_example_error is None else on_whole(potential.per_example_error),
        class_scores=None if potential.class_scores is None else on_whole(potential.class_scores),
        values=None if potential.values is None else on_whole(potential.values),
        check_data=None if potential.check_data is None else check_data,
        weight_decay=_for_the_sampled(decay, sampled) if isinstance(decay, Mapping) else decay,
        regularized_size=potential.regularized_size or trees.num_weights(weights),
        layered=None,
    )
    return replace(part, potential=restricted)


def _for_the_sampled(decay: Mapping[str, float], sampled: Weights) -> dict[str, float]:
    """λ of each sampled tensor by its name: patterns may also have spoken of frozen ones."""
    found = {name: first_match(name, decay) for name, _ in trees.named_leaves(sampled)}
    for name, value in found.items():
        if value is None:
            raise ValueError(f"weight_decay = {dict(decay)} has no pattern for {name}; add one, or '*' for all others")
    return {name: value for name, value in found.items() if value is not None}
