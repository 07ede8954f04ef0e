"""Standard normal numbers: the words of `threefry`, and the inverse of the normal distribution function."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp

from . import threefry
from .types import Array, Key

CENTRAL = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
"""Giles' polynomials for erf⁻¹, in w − 2.5 and √w − 3 with w = −ln(1 − x²); JAX has the same."""


@partial(jax.jit, inline=True)
def standard_normal(key: Key, step: Array | int, numbers: Array) -> Array:
    """Float32 standard normal numbers for the entries with these numbers, of a step.

    The bits are the same on every device, the numbers are so to rounding (1e-5 far out in the tails).
    """
    return math.sqrt(2) * _inverse_erf(_uniform(threefry.words(key, step, numbers)[0]))


def _uniform(bits: Array) -> Array:
    """The centres of 2²⁴ equal cells of (−1, 1): symmetric, and never ±1."""
    return ((bits >> 8).astype(jnp.float32) - (2**23 - 0.5)) * 2.0**-23


def _inverse_erf(x: Array) -> Array:
    """erf⁻¹(x). 1 − x and 1 + x are exact, so their product keeps the tails, where JAX's 1 − x² is rounded."""
    w = -jnp.log((1 - x) * (1 + x))
    is_central = w < 5
    argument = jnp.where(is_central, w - 2.5, jnp.sqrt(w) - 3)
    value = jnp.zeros_like(x)
    for central, tail in zip(CENTRAL, TAIL, strict=True):
        value = value * argument + jnp.where(is_central, central, tail)
    return value * x
