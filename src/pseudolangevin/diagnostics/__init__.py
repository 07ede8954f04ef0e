"""What can be said about samples: averages with errors, diffusion, tests of the noise, and the certificate."""

from .averages import Average, average
from .certificate import Certificate, certificate
from .diffusion import Diffusion, Displacements, diffusion, effective_samples_per_second
from .noise_study import NoiseStudy, noise_study
from .stationarity import Drift, drift
from .verdicts import Line, Verdict

__all__ = [
    "Average",
    "Certificate",
    "Diffusion",
    "Displacements",
    "Drift",
    "Line",
    "NoiseStudy",
    "Verdict",
    "average",
    "certificate",
    "diffusion",
    "drift",
    "effective_samples_per_second",
    "noise_study",
]
