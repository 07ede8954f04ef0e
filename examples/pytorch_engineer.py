"""A PyTorch engineer: a trained module becomes an ensemble of modules with calibrated probabilities.

    python -m examples.pytorch_engineer             # minutes on two cores

The data are any `torch.utils.data.Dataset`; the model is any `torch.nn.Module` in evaluation mode, dropout off. The
chains run in JAX. In the end there is one `state_dict` for every sample, and the certificate of the chains.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import numpy as np
import torch

import pseudolangevin as pl
from pseudolangevin.adapters.torch import from_torch, state_dicts


def data() -> list[torch.utils.data.TensorDataset]:
    """Return training and test set as PyTorch has them; here noisy spin vectors."""
    sets = pl.tasks.spin_vectors(jax.random.key(0), num_train=2_000, num_test=1_000, dimension=20, num_classes=4)
    tensors = [[torch.from_numpy(np.array(array)) for array in data.batch] for data in sets]
    return [torch.utils.data.TensorDataset(inputs.float(), labels.long()) for inputs, labels in tensors]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train, sample, certify, evaluate; return the certificate, the scores and the state_dicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150_000)
    options = parser.parse_args(arguments)

    train, test = (pl.Dataset.from_torch(data) for data in data())
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(20, 10), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(10, 4)
    )
    module.eval()  # with random dropout there is no potential; in evaluation mode it is the identity
    model = from_torch(module, np.asarray(test.inputs[:8]))  # compared with PyTorch on these inputs
    potential = pl.classification(model.apply, weight_decay=2.0)
    trained = pl.sample(pl.adam(potential, train), model.weights, num_steps=1_000, key=0)
    result = pl.sample(
        pl.balanced_langevin(potential, train, batch_size=200),
        jax.tree.map(lambda w: w[0, 0], trained.weights),
        temperatures=2e-3,
        num_chains=4,
        num_steps=options.steps,
        record_every=max(1, options.steps // 1_000),
        keep_weights_every=50,
        key=1,
        test=test,
    )
    certificate = pl.certificate(result)
    print(certificate)
    scores = result.evaluate(test).head(2)  # the ensemble, and the mean of its members
    print(scores)

    members = state_dicts(model, result.ensemble())
    with torch.no_grad():
        probabilities = []
        for state in members:
            module.load_state_dict(state)
            probabilities.append(module(torch.from_numpy(np.array(test.inputs))).softmax(dim=1))
        predicted = torch.stack(probabilities).mean(dim=0).argmax(dim=1).numpy()
    error = float(np.mean(predicted != np.asarray(test.targets)))
    print(f"{len(members)} state_dicts; test error of their mean probability in PyTorch: {error:.4f}")
    return {"certificate": certificate, "scores": scores, "members": members, "error": error}


if __name__ == "__main__":
    main()
