"""Sample the weights of neural networks from their Boltzmann distribution exp(−U/T), with mini-batches."""

from . import diagnostics, models, tasks
from .chains import Result, sample
from .data import Dataset
from .diagnostics import Certificate, certificate
from .potential import Potential, classification, regression
from .reports import ChainStoppedWarning, DeadClassWarning
from .samplers.adam import adam
from .samplers.base import Sampler
from .samplers.langevin import full_batch_langevin, naive_pseudo_langevin, pseudo_langevin
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
    "adam",
    "certificate",
    "classification",
    "diagnostics",
    "full_batch_langevin",
    "models",
    "naive_pseudo_langevin",
    "pseudo_langevin",
    "regression",
    "sample",
    "tasks",
]
