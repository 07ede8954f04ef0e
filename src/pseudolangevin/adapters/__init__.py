"""Bridges to other tools; nothing in the core imports them."""
