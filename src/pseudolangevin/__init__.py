"""Sample the weights of neural networks from their Boltzmann distribution exp(−U/T), with mini-batches."""

from . import diagnostics, models, tasks
from .chains import Result, sample
from .data import Dataset
from .diagnostics import Certificate, certificate
from .potential import Potential, classification, regression
from .reports import ChainStoppedWarning, DeadClassWarning
from .runs import load
from .samplers.adam import adam, best_weights
from .samplers.base import Sampler
from .samplers.hybrid import hybrid_monte_carlo, minibatch_hybrid_monte_carlo
from .samplers.langevin import full_batch_langevin, naive_pseudo_langevin, pseudo_langevin
from .streamed import StreamedDataset
from .types import Status

__all__ = [
    "Certificate",
    "ChainStoppedWarning",
    "Dataset",
    "DeadClassWarning",
    "Potential",
    "Result",
    "Sampler",
    "Status",
    "StreamedDataset",
    "adam",
    "best_weights",
    "certificate",
    "classification",
    "diagnostics",
    "full_batch_langevin",
    "hybrid_monte_carlo",
    "load",
    "minibatch_hybrid_monte_carlo",
    "models",
    "naive_pseudo_langevin",
    "pseudo_langevin",
    "regression",
    "sample",
    "tasks",
]
