"""A small transformer in Equinox that guesses the next character, sampled; embeddings may be frozen.

    python -m examples.character_transformer                       # some minutes on a CPU
    python -m examples.character_transformer --freeze-embeddings   # all other weights alone are sampled
    python -m examples.character_transformer --large               # four blocks, 128 wide, for a GPU

The text is below; --text FILE takes another.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pseudolangevin as pl
from pseudolangevin.adapters.equinox import from_equinox

WEIGHT_DECAY = 0.01
"""λ/N, so that the prior is the same at every size."""

TEXT = """
a grain of dust in a drop of water never rests. the water strikes it from all sides, a little more from the left, then a
little more from the right, and the grain wanders. the drop also holds it back: whatever speed a blow has given is soon
lost to friction. the two belong together. the blows come from the same water as the friction, and from their balance
follows the temperature. too few blows, and the grain would come to rest; too little friction, and it would run away.
a network has weights instead of a place, and a loss instead of a height. left alone it would slide down the nearest
slope and stay there. shaken by noise of the right strength it wanders over the landscape, seldom high, often low, and
visits every valley as often as the valley deserves. the wide valleys are visited often, the narrow ones hardly ever,
however deep they are. this is what a temperature does: it weighs the depth of a valley against its width.
to shake the weights one must know the slope, and to know the slope one must look at all the data. that takes long. one
may look at a handful of examples instead, and guess the slope from them. the guess is wrong, now too steep, now too
flat, and so the guessing shakes the weights as well. it is noise, but noise of its own making, stronger here than
there. heavy weights feel it less. so each weight is given a mass, the noisy ones a large mass, the quiet ones a small
mass, until the guess is a small and known part of the shaking. the rest is added by hand. then the heat is right, and
the grain wanders as it should, at the price of a handful of examples a step.
"""


@dataclass(frozen=True)
class Size:
    """What differs between a CPU and a GPU."""

    context: int
    """Characters that are seen at once."""
    stride: int
    """Characters between the beginnings of two sequences."""
    width: int
    num_heads: int
    num_blocks: int
    batch_size: int
    temperatures: tuple[float, ...]
    num_steps: int


SMALL = Size(16, 4, 8, 2, 1, 64, (3e-3, 6e-3), 6_000)
LARGE = Size(64, 1, 128, 4, 4, 256, (1e-4, 3e-4), 100_000)


class Block(eqx.Module):
    """Attention to the past, then a two-layer network at each place, both added to what was there."""

    attention_norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    hidden_norm: eqx.nn.LayerNorm
    widen: eqx.nn.Linear
    narrow: eqx.nn.Linear

    def __init__(self, width: int, num_heads: int, key: jax.Array):
        keys = jax.random.split(key, 3)
        self.attention_norm = eqx.nn.LayerNorm(width)
        self.attention = eqx.nn.MultiheadAttention(num_heads, width, key=keys[0])
        self.hidden_norm = eqx.nn.LayerNorm(width)
        self.widen = eqx.nn.Linear(width, 2 * width, key=keys[1])
        self.narrow = eqx.nn.Linear(2 * width, width, key=keys[2])

    def __call__(self, hidden: jax.Array) -> jax.Array:
        past = jnp.tril(jnp.ones((hidden.shape[0], hidden.shape[0]), bool))
        normed = jax.vmap(self.attention_norm)(hidden)
        hidden = hidden + self.attention(normed, normed, normed, mask=past)
        widened = jax.nn.relu(jax.vmap(self.widen)(jax.vmap(self.hidden_norm)(hidden)))
        return hidden + jax.vmap(self.narrow)(widened)


class Transformer(eqx.Module):
    """Maps the tokens of one sequence (L,) to logits (L, K)."""

    embedding: eqx.nn.Embedding
    positions: jax.Array
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, num_tokens: int, size: Size, key: jax.Array):
        keys = jax.random.split(key, 3 + size.num_blocks)
        self.embedding = eqx.nn.Embedding(num_tokens, size.width, key=keys[0])
        self.positions = 0.1 * jax.random.normal(keys[1], (size.context, size.width))
        self.blocks = [Block(size.width, size.num_heads, key) for key in keys[3:]]
        self.head = eqx.nn.Linear(size.width, num_tokens, key=keys[2])

    def __call__(self, tokens: jax.Array) -> jax.Array:
        hidden = self.embedding.weight[tokens] + self.positions[: len(tokens)]
        for block in self.blocks:
            hidden = block(hidden)
        return jax.vmap(self.head)(hidden)


def sequences(text: str, size: Size) -> tuple[pl.Dataset, str]:
    """Overlapping windows of the text with the same windows one character later, and the alphabet."""
    text = " ".join(text.split())
    alphabet = "".join(sorted(set(text)))
    tokens = np.asarray([alphabet.index(character) for character in text], np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, size.context + 1)[:: size.stride]
    return pl.Dataset(windows[:, :-1].copy(), windows[:, 1:].copy()), alphabet


def model_and_data(size: Size, text: str = TEXT) -> tuple[Transformer, pl.Dataset, str]:
    """The network, its data and the alphabet."""
    dataset, alphabet = sequences(text, size)
    return Transformer(len(alphabet), size, jax.random.key(0)), dataset, alphabet


def continued(network: Transformer, alphabet: str, beginning: str, num: int, size: Size) -> str:
    """`num` more characters, the most probable one each time."""
    text = beginning
    predict = eqx.filter_jit(network)
    for _ in range(num):
        seen = text[-size.context :]
        tokens = jnp.asarray([alphabet.index(c) for c in seen.ljust(size.context)])
        text += alphabet[int(jnp.argmax(predict(tokens)[len(seen) - 1]))]
    return text


def main(arguments: list[str] | None = None) -> tuple[pl.Result, Transformer]:
    """Train, sample, print the certificate; return the run and the network of the last sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--freeze-embeddings", action="store_true")
    options = parser.parse_args(arguments)
    size = LARGE if options.large else SMALL
    num_steps = options.steps or size.num_steps

    text = TEXT if options.text is None else options.text.read_text(encoding="utf-8")
    network, dataset, alphabet = model_and_data(size, text)
    model = from_equinox(network)
    num_weights = sum(w.size for w in jax.tree.leaves(model.weights))
    potential = pl.next_token(model.apply, weight_decay=WEIGHT_DECAY * num_weights)
    trainer = pl.adam(potential, dataset, batch_size=size.batch_size, learning_rate=3e-3)
    trained = pl.sample(trainer, model.weights, num_steps=max(1, num_steps // 5), key=0)
    weights = jax.tree.map(lambda w: w[0, 0], trained.weights)

    part = pl.subset(potential, weights, "!embedding*" if options.freeze_embeddings else "*")
    result = pl.sample(
        pl.pseudo_langevin(part.potential, dataset, batch_size=size.batch_size, refresh_every=max(10, num_steps // 10)),
        part.weights,
        temperatures=size.temperatures,
        num_chains=2,
        num_steps=num_steps,
        record_every=max(1, num_steps // 100),
        key=1,
    )
    print(result.trace[["loss", "error"]].isel(draw=slice(-50, None)).mean(["chain", "draw"]).to_dataframe())
    print(pl.certificate(result))
    sampled = model.write_back(part.merge(jax.tree.map(lambda w: w[0, 0], result.weights)))
    print(f"one sample writes: {continued(sampled, alphabet, 'the ', 40, size)}")
    return result, sampled


if __name__ == "__main__":
    main()
