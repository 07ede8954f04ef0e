"""`report.html`: a run folder as one self-contained page."""

from .page import report_html
from .write import write_report

__all__ = ["report_html", "write_report"]
