"""`python -m pseudolangevin`."""

from .cli import main

main()
