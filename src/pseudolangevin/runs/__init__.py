"""Run folders: a configuration, the run that it describes, and everything that the run leaves on disk.

Import the modules by name, for example ``from pseudolangevin.runs import session``; none is loaded in advance.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class RunFolderError(ValueError):
    """Error about a run folder that cannot be used; the message is one line with the remedy."""


class ConfigError(ValueError):
    """Error about a configuration that cannot be run, with one line for each problem."""

    lines = property(lambda self: str(self).split("\n"))


@contextmanager
def naming(section: str) -> Iterator[None]:
    """Turn a ValueError into a ConfigError whose line begins with the section of the file."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{section}: {' '.join(str(error).split())}".removeprefix(": ")) from error
