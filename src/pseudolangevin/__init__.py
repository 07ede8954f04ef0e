"""Sample the weights of neural networks from their Boltzmann distribution exp(−U/T), with mini-batches."""

from . import diagnostics, models, predictions, tasks
from .chains import Result, sample
from .data import Dataset
from .diagnostics import Certificate, certificate
from .fitting import Fit, fit
from .placement import Placement
from .potential import Potential, classification, next_token, regression
from .reports import ChainStoppedWarning, ClippedNoiseWarning, DeadClassWarning
from .runs import load
from .samplers.adam import adam, best_weights
from .samplers.base import Sampler
from .samplers.hybrid import hybrid_monte_carlo, minibatch_hybrid_monte_carlo
from .samplers.langevin import full_batch_langevin, naive_pseudo_langevin, pseudo_langevin
from .signs import Signs
from .streamed import StreamedDataset
from .subset import Subset, subset
from .temperature import TemperatureRange, find_temperature
from .tuning import Tuned, tune
from .types import Status

__all__ = [
    "Certificate",
    "ChainStoppedWarning",
    "ClippedNoiseWarning",
    "Dataset",
    "DeadClassWarning",
    "Fit",
    "Placement",
    "Potential",
    "Result",
    "Sampler",
    "Signs",
    "Status",
    "StreamedDataset",
    "Subset",
    "TemperatureRange",
    "Tuned",
    "adam",
    "best_weights",
    "certificate",
    "classification",
    "diagnostics",
    "find_temperature",
    "fit",
    "full_batch_langevin",
    "hybrid_monte_carlo",
    "load",
    "minibatch_hybrid_monte_carlo",
    "models",
    "naive_pseudo_langevin",
    "next_token",
    "predictions",
    "pseudo_langevin",
    "regression",
    "sample",
    "subset",
    "tasks",
    "tune",
]
