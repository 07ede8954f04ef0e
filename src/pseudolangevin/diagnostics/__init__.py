"""What can be said about samples: averages with errors, tests of the mini-batch noise, and the certificate."""

from .averages import Average, average
from .certificate import Certificate, certificate
from .stationarity import Drift, drift
from .verdicts import Line, Verdict

__all__ = ["Average", "Certificate", "Drift", "Line", "Verdict", "average", "certificate", "drift"]
