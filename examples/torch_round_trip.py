"""A PyTorch model is sampled and returns to PyTorch with the sampled weights.

    python -m examples.torch_round_trip             # on a CPU
    python -m examples.torch_round_trip --large     # the smallest data set of the paper, for a GPU

The module has dropout, so it is put into evaluation mode first. In the end its `state_dict` is the last sample.
"""

from __future__ import annotations

import argparse

import jax
import numpy as np
import torch

import pseudolangevin as pl
from pseudolangevin.adapters.torch import from_torch, state_dicts


def main(arguments: list[str] | None = None) -> tuple[pl.Result, torch.nn.Module]:
    """Train and sample, print the certificate and the test error of the last sample in both frameworks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args(arguments)
    dimension, hidden, num_train, num_classes = (100, 50, 55_800, 10) if options.large else (30, 12, 2_000, 4)
    num_steps = options.steps or (100_000 if options.large else 6_000)

    train, test = pl.tasks.spin_vectors(
        jax.random.key(0), num_train=num_train, num_test=num_train // 5, dimension=dimension, num_classes=num_classes
    )
    tensors = [torch.from_numpy(np.array(array)) for data in (train, test) for array in data.batch]
    pairs = [torch.utils.data.TensorDataset(x.float(), y.long()) for x, y in (tensors[:2], tensors[2:])]
    train, test = (pl.Dataset.from_torch(data) for data in pairs)  # any torch.utils.data.Dataset
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(dimension, hidden), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(hidden, num_classes)
    )
    module.eval()  # with random dropout there is no potential; in evaluation mode it is the identity

    model = from_torch(module, np.asarray(test.inputs[:8]))
    potential = pl.classification(model.apply, weight_decay={"*.bias": 1.0, "*": 10.0})
    start = pl.sample(pl.adam(potential, train), model.weights, num_steps=max(1, num_steps // 10), key=0)
    temperatures = [1e-5, 3e-5] if options.large else [1e-3, 2e-3]
    result = pl.sample(
        pl.pseudo_langevin(potential, train, refresh_every=max(10, num_steps // 10), batch_size=num_train // 20),
        start.weights,
        temperatures=temperatures,
        num_chains=2,
        num_steps=num_steps,
        record_every=max(1, num_steps // 100),
        keep_weights_every=10,
        key=1,
        test=test,
    )
    print(pl.certificate(result))
    print(result.evaluate(test, temperatures[0]).head(2))  # the ensemble, and the mean of its members
    members = state_dicts(model, result.ensemble(temperatures[0]))  # for module.load_state_dict
    print(f"{len(members)} state_dicts")

    model.write_back(jax.tree.map(lambda w: w[0, 0], result.weights))
    with torch.no_grad():
        predicted = module(torch.from_numpy(np.array(test.inputs))).argmax(dim=1).numpy()
    error = float(np.mean(predicted != np.asarray(test.targets)))
    recorded = float(result.trace.test_error[0, 0, -1])
    print(f"test error of the last sample: {recorded:.4f} in JAX, {error:.4f} in PyTorch")
    return result, module


if __name__ == "__main__":
    main()
