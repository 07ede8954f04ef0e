"""Sample the weights of neural networks from their Boltzmann distribution exp(−U/T), with mini-batches.

Four calls make a run: a potential U (`classification`, `regression`, `Potential`), a sampler (`balanced_langevin` if in
doubt), `sample`, and `certificate`, which tests the samples. `Dataset(inputs, targets)` holds the data, and
`posterior_temperature(dataset)` is the temperature of the Bayesian posterior.
"""

import importlib
from typing import Any

from . import models
from .chains import Record, Result, Run, sample
from .data import Dataset, Signs, StreamedDataset, tasks
from .observables import ChainStoppedWarning, ClippedNoiseWarning, DeadClassWarning
from .placement import Placement
from .potential import (
    Potential,
    Prior,
    Subset,
    classification,
    gaussian,
    laplace,
    log_density,
    next_token,
    posterior_temperature,
    regression,
    subset,
)
from .samplers import SAMPLERS
from .samplers.adam import Adam as adam
from .samplers.balanced import BalancedLangevin as balanced_langevin
from .samplers.base import Sampler, Status
from .samplers.hybrid import HybridMonteCarlo as hybrid_monte_carlo
from .samplers.hybrid import MinibatchHybridMonteCarlo as minibatch_hybrid_monte_carlo
from .samplers.langevin import FullBatchLangevin as full_batch_langevin
from .samplers.langevin import NaivePseudoLangevin as naive_pseudo_langevin
from .samplers.langevin import PseudoLangevin as pseudo_langevin
from .samplers.tempered import annealed, replica_exchange

__version__ = "0.1.0.dev0"

_LAZY = {  # imported when first used: they need files, plots or statistics
    name: module
    for module, names in (
        ("apps.fit", ("EquilibriumWarning", "Fit", "fit")),
        ("apps.temperature", ("TemperatureRange", "find_temperature")),
        ("apps.thermodynamics", ("evidence", "free_energy", "learning_coefficient")),
        ("apps.tune", ("Tuned", "tune")),
        ("diagnostics", ("diagnostics",)),  # the module itself
        ("diagnostics.certificate", ("Certificate", "certificate")),
        ("diagnostics.ensemble", ("predictions",)),  # the module itself
        ("runs.session", ("load", "resume")),
    )
    for name in names
}


def __getattr__(name: str) -> Any:
    if name in SAMPLERS:  # one that was added to the table only
        return SAMPLERS[name]
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_LAZY[name]}", __name__)
    globals()[name] = value = getattr(module, name, module)
    return value


__all__ = [
    "ChainStoppedWarning",
    "ClippedNoiseWarning",
    "Dataset",
    "DeadClassWarning",
    "Placement",
    "Potential",
    "Prior",
    "Record",
    "Result",
    "Run",
    "Sampler",
    "Signs",
    "Status",
    "StreamedDataset",
    "Subset",
    "adam",
    "annealed",
    "balanced_langevin",
    "classification",
    "full_batch_langevin",
    "gaussian",
    "hybrid_monte_carlo",
    "laplace",
    "log_density",
    "minibatch_hybrid_monte_carlo",
    "models",
    "naive_pseudo_langevin",
    "next_token",
    "posterior_temperature",
    "pseudo_langevin",
    "regression",
    "replica_exchange",
    "sample",
    "subset",
    "tasks",
    *_LAZY,
]
