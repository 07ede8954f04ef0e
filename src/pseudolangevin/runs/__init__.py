"""Run folders: a configuration, the run that it describes, and everything that the run leaves on disk.

Import the modules by name, for example ``from pseudolangevin.runs import session``; none is loaded in advance.
"""
