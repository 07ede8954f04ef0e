"""One TOML file describes a run: typed settings, their text form, and what they build."""

from .errors import ConfigError
from .settings import Settings
from .toml import parse, read, to_toml

__all__ = ["ConfigError", "Settings", "parse", "read", "to_toml"]
