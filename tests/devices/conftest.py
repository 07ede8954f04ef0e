"""The fixture of the finished run."""

from tests.runs.conftest import finished  # noqa: F401
