"""What can be said about samples: averages with errors, tests of the mini-batch noise, and the certificate."""

from .averages import Average, average
from .certificate import Certificate, certificate
from .noise_study import NoiseStudy, noise_study
from .stationarity import Drift, drift
from .verdicts import Line, Verdict

__all__ = [
    "Average",
    "Certificate",
    "Drift",
    "Line",
    "NoiseStudy",
    "Verdict",
    "average",
    "certificate",
    "drift",
    "noise_study",
]
