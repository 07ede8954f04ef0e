"""Bridges to other libraries, each optional; import the one you need."""
