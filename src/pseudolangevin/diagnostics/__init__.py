"""Judging samples: averages with errors, diffusion, tests of the noise, predictions, and the certificate."""

from .averages import Average, Drift, average, drift
from .certificate import Certificate, certificate
from .diffusion import Diffusion, Displacements, MeasuredDiffusion, diffusion, measure_diffusion
from .noise import NoiseStudy, noise_study
from .verdicts import Line, Verdict

__all__ = [
    "Average",
    "Certificate",
    "Diffusion",
    "Displacements",
    "Drift",
    "Line",
    "MeasuredDiffusion",
    "NoiseStudy",
    "Verdict",
    "average",
    "certificate",
    "diffusion",
    "drift",
    "measure_diffusion",
    "noise_study",
]
