"""The fixtures of the run folders."""

from tests.runs.conftest import _share_programs, finished  # noqa: F401
