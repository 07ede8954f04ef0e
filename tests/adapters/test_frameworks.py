"""Adapters compared with their frameworks: the same outputs, the same gradients, and weights written back."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import pseudolangevin as pl
from pseudolangevin._trees import named_leaves
from pseudolangevin.adapters.equinox import from_equinox
from pseudolangevin.adapters.flax import from_flax
from pseudolangevin.adapters.torch import from_torch, state_dicts

IMAGES = np.random.default_rng(0).normal(size=(6, 12, 12, 1)).astype(np.float32)
CHANNELS_FIRST = IMAGES.transpose(0, 3, 1, 2)
LABELS = np.asarray([0, 1, 2, 0, 1, 2])


class FlaxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, 3, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(2)])

    def __call__(self, images):
        hidden = self.drop(nnx.relu(self.norm(self.conv(images)))).mean((1, 2))
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


class EquinoxNet(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(1, 3, 3, key=keys[0])
        self.norm = eqx.nn.BatchNorm(3, axis_name="batch", mode="batch")
        self.drop = eqx.nn.Dropout(0.5)
        self.head = eqx.nn.Linear(3, 3, key=keys[1])

    def __call__(self, image, state):
        hidden, state = self.norm(self.conv(image), state)
        return self.head(self.drop(jax.nn.relu(hidden)).mean((1, 2))), state


class TorchVision(torch.nn.Module):
    """Common layers, a shared weight and a bias that requires no gradient."""

    def __init__(self):
        super().__init__()
        pools = [torch.nn.MaxPool2d(2), torch.nn.AdaptiveAvgPool2d(3), torch.nn.AvgPool2d(2, stride=1, padding=1)]
        layers = [torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.GELU(), *pools]
        layers += [torch.nn.Dropout(0.5), torch.nn.Conv2d(4, 2, 3, stride=2), torch.nn.AdaptiveAvgPool2d(1)]
        self.features = torch.nn.Sequential(*layers, torch.nn.Flatten())
        self.first, self.second, self.third = torch.nn.Linear(2, 3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.third.weight = self.second.weight
        self.first.bias.requires_grad_(False)

    def forward(self, images):
        return self.third(torch.tanh(self.second(torch.nn.functional.relu(self.first(self.features(images))))))


class TorchText(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1)
        self.norm, self.head = torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        hidden = self.norm(hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0])
        return self.head(hidden.mean(dim=1))


def largest_difference(ours, theirs) -> float:
    """Largest difference, relative to the largest component of each tensor."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def gradient(model, inputs):
    potential = pl.classification(model.apply)
    potential.check(model.weights, pl.Dataset(inputs, LABELS))
    return jax.jit(jax.grad(potential.energy))(model.weights, (inputs, jnp.asarray(LABELS)))


def moved(model):
    return jax.tree.map(lambda w: w * 1.5 + 0.01, model.weights)


def test_flax_gradient_and_weights_written_back():
    module = FlaxNet(nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"changes its variable drop.rngs.count when called.*module.eval\(\)"):
        gradient(from_flax(module), IMAGES)
    module.drop.deterministic = True
    with pytest.raises(ValueError, match=r"changes its variable norm.mean when called.*module.eval\(\)"):
        gradient(from_flax(module), IMAGES)
    module.eval()
    model = from_flax(module)

    def loss(network):
        return -nnx.log_softmax(network(IMAGES))[jnp.arange(6), LABELS].mean()

    theirs = nnx.to_pure_dict(nnx.jit(nnx.grad(loss))(module))
    assert largest_difference(gradient(model, IMAGES), theirs) < 1e-5
    sampled = moved(model)
    predicted = model.apply(sampled, IMAGES)
    assert float(jnp.abs(module(IMAGES) - predicted).max()) > 1e-3
    assert model.write_back(sampled) is module
    np.testing.assert_array_equal(module(IMAGES), predicted)
    assert set(model.weights["blocks"]) == {0, 1}


def test_equinox_gradient_and_weights_written_back():
    module, state = eqx.nn.make_with_state(EquinoxNet)(jax.random.key(0))
    with pytest.raises(ValueError, match=r"norm \(BatchNorm\) learns a state.*inference_mode"):
        from_equinox(module, state)
    module = eqx.nn.inference_mode(module)
    with pytest.raises(ValueError, match=r"norm \(BatchNorm\) reads a state.*from_equinox\(module, state\)"):
        from_equinox(module)
    with pytest.raises(ValueError, match=r"layers.0 \(Dropout\) drops 0.1"):
        from_equinox(eqx.nn.Sequential([eqx.nn.Dropout(0.1)]))
    model = from_equinox(module, state)

    def outputs(network):
        return jax.vmap(lambda image: network(image, state)[0])(CHANNELS_FIRST)

    def loss(network):
        return -jax.nn.log_softmax(outputs(network))[jnp.arange(6), LABELS].mean()

    assert largest_difference(gradient(model, CHANNELS_FIRST), eqx.filter_jit(eqx.filter_grad(loss))(module)) < 1e-5
    sampled = moved(model)
    back = model.write_back(jax.tree.map(np.asarray, sampled))
    assert isinstance(back, EquinoxNet)
    predicted = jax.jit(model.apply)(sampled, CHANNELS_FIRST)
    np.testing.assert_array_equal(eqx.filter_jit(outputs)(back), predicted)


@pytest.mark.parametrize("make", [TorchVision, TorchText])
def test_torch_gradient_and_weights_written_back(make):
    torch.manual_seed(0)
    module = make().eval()
    inputs = CHANNELS_FIRST if make is TorchVision else np.random.default_rng(0).integers(0, 11, (6, 5))
    model = from_torch(module, inputs)
    given, labels = torch.from_numpy(inputs), torch.from_numpy(LABELS)
    torch.nn.functional.cross_entropy(module(given), labels).backward()
    ours = dict(named_leaves(gradient(model, inputs)))
    theirs = {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None}
    assert set(ours) == set(theirs)
    assert max(np.abs(ours[n] - theirs[n]).max() / np.abs(theirs[n]).max() for n in theirs) < 1e-5

    sampled = moved(model)
    assert model.write_back(sampled) is module
    with torch.no_grad():
        np.testing.assert_allclose(module(given).numpy(), model.apply(sampled, inputs), rtol=1e-5, atol=1e-6)
    if make is TorchVision:
        assert set(model.weights) == {"features.0", "features.1", "features.7", "first", "second", "third"}
        assert set(model.weights["first"]) == {"weight"}  # the bias requires no gradient
        assert set(model.weights["third"]) == {"bias"}  # its weight is that of `second`
        np.testing.assert_array_equal(module.state_dict()["third.weight"].numpy(), sampled["second"]["weight"])


def test_torch_modules_in_training_mode_are_rejected():
    module = TorchVision()
    with pytest.raises(ValueError, match=r"features.1 \(BatchNorm2d\) normalises each example by its batch"):
        from_torch(module, CHANNELS_FIRST)
    module.features[1].eval()
    with pytest.raises(ValueError, match=r"features.6 \(Dropout\) drops 0.5 of its inputs.*module.eval\(\)"):
        from_torch(module, CHANNELS_FIRST)


class Wrong(torch.nn.Module):
    def __init__(self, last):
        super().__init__()
        self.layer, self.last = torch.nn.Linear(4, 4), last

    def forward(self, inputs):
        return self.last(self.layer(inputs))


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (torch.nn.Softsign(), "cannot translate this module: .*; replace the layer"),
        (torch.nn.BatchNorm1d(4, track_running_stats=False), "normalises each example by its batch"),
        (lambda hidden: hidden - torch.mean(hidden, 0), "depends on the other examples of its batch"),
        (lambda hidden: torch.nn.functional.dropout(hidden, 0.5), "forgot to include a `rng`"),
    ],
)
def test_torch_modules_that_cannot_be_sampled_are_rejected(last, message):
    inputs = np.arange(12, dtype=np.float32).reshape(3, 4)
    with pytest.raises(ValueError, match=message):
        from_torch(Wrong(last).eval(), inputs)
    with pytest.raises(ValueError, match="at least two examples"):
        from_torch(Wrong(torch.relu).eval(), inputs[:1])


@pytest.mark.parametrize(("adapt", "name"), [(from_flax, "nnx.Module"), (from_equinox, "equinox.Module")])
def test_objects_that_are_not_modules_are_rejected(adapt, name):
    with pytest.raises(ValueError, match=f"is not an {name}"):
        adapt(3)


def test_write_back_needs_one_chain_and_all_weights():
    model = from_equinox(eqx.nn.Linear(2, 2, key=jax.random.key(0)))
    with pytest.raises(ValueError, match=r"weight has shape \(1, 1, 2, 2\).*pick one chain"):
        model.write_back(jax.tree.map(lambda w: w[None, None], model.weights))
    part = pl.subset(pl.classification(model.apply), model.weights, "bias")
    with pytest.raises(ValueError, match=r"subset.merge"):
        model.write_back(part.weights)
    assert isinstance(model.write_back(part.merge(part.weights)), eqx.nn.Linear)


def test_a_torch_module_is_sampled_from_its_loader_and_its_members_are_state_dicts():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3)).eval()
    inputs = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(inputs), torch.arange(8) % 3)
    data = pl.Dataset.from_torch(torch.utils.data.DataLoader(pairs, shuffle=True, batch_size=2))
    np.testing.assert_array_equal(data.targets, np.arange(8) % 3)
    model = from_torch(module, np.asarray(data.inputs))
    sampler = pl.full_batch_langevin(pl.classification(model.apply, prior=pl.gaussian(1.0)), data, time_step=0.1)
    options: Any = {"num_chains": 2, "num_steps": 4, "record_every": 2, "keep_weights_every": 1}
    options["observe_examples"] = 8  # all of them; leaves out the records for the certificate, which compile slowly
    result = pl.sample(sampler, model.weights, temperatures=0.1, **options, key=0)
    predictions = result.predict(data.inputs).probabilities
    states = state_dicts(model, result.ensemble())
    assert len(states) == 2
    for state, expected in zip(states, predictions, strict=True):
        module.load_state_dict(state)
        with torch.no_grad():
            found = torch.softmax(module(torch.from_numpy(inputs)), dim=1).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4)
