"""Samplers, one family a file; `base` holds the contract they share."""
