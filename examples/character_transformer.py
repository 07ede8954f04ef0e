"""A small transformer in Equinox that predicts the next character; its embeddings can be held fixed.

    python -m examples.character_transformer                       # some minutes on a CPU
    python -m examples.character_transformer --freeze-embeddings   # sample all other weights
    python -m examples.character_transformer --large               # four blocks, 128 wide, for a GPU

The default text is below; --text FILE reads another one.
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
"""Weight decay per weight, λ/N, so that the prior is the same at every size."""

TEXT = """
a grain of dust in a drop of water never rests. the molecules of the water strike it from all sides, sometimes more from
the left and sometimes more from the right, and the grain moves at random. the water also slows it down: the velocity
after each collision decays by friction. noise and friction have the same origin, and their ratio is the temperature.
with too little noise the grain would come to rest; with too little friction its velocity would grow without limit.
a network has weights instead of a position, and a loss instead of an energy. gradient descent would move the weights to
the nearest minimum and stop there. with noise of the right strength the weights move through all of the landscape. they
are seldom at a high loss and often at a low one, and they visit every minimum as often as its volume requires. wide
minima are visited often, and narrow minima are visited rarely, even if they are deep. this is the effect of
temperature: it weighs the depth of a minimum against its width.
to sample the weights one needs the gradient, and the exact gradient needs all the data. this takes a long time. a
gradient from a small batch of examples is fast, but it has an error, which is different at every step. this error is
noise as well, and it is stronger for some weights than for others. weights with a large mass respond to it slowly.
so each weight is given a mass, a large one if its gradient is noisy and a small one if it is not, until the error is a
small and known part of the noise. the remaining part is added as random numbers. then the temperature is right, and
the weights move as they should, at the cost of a small batch of examples per step.
"""


@dataclass(frozen=True)
class Size:
    """Settings that differ between a CPU and a GPU."""

    context: int
    """Number of characters in a sequence."""
    stride: int
    """Number of characters between the beginnings of two sequences."""
    width: int
    num_heads: int
    num_blocks: int
    batch_size: int
    temperatures: tuple[float, ...]
    num_steps: int


SMALL = Size(16, 4, 8, 2, 1, 64, (3e-3, 6e-3), 6_000)
LARGE = Size(64, 1, 128, 4, 4, 256, (1e-4, 3e-4), 100_000)


class Block(eqx.Module):
    """Causal attention, then a two-layer network at each position, both with a residual connection."""

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
    """Function from the tokens of one sequence (L,) to logits (L, K)."""

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
    """Return overlapping sequences of the text, the same sequences one character later, and the alphabet."""
    text = " ".join(text.split())
    alphabet = "".join(sorted(set(text)))
    tokens = np.asarray([alphabet.index(character) for character in text], np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, size.context + 1)[:: size.stride]
    return pl.Dataset(windows[:, :-1].copy(), windows[:, 1:].copy()), alphabet


def model_and_data(size: Size, text: str = TEXT) -> tuple[Transformer, pl.Dataset, str]:
    """Return the network, its data and the alphabet."""
    dataset, alphabet = sequences(text, size)
    return Transformer(len(alphabet), size, jax.random.key(0)), dataset, alphabet


def continued(network: Transformer, alphabet: str, beginning: str, num: int, size: Size) -> str:
    """Return a text with `num` more characters, each time the most probable one."""
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
    print(f"text of one sample: {continued(sampled, alphabet, 'the ', 40, size)}")
    return result, sampled


if __name__ == "__main__":
    main()
